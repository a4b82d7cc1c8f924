"""What is worked out once is what pyinfra works out each time."""

from __future__ import annotations

import inspect
import socket
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest
from pyinfra.api import Inventory, util
from pyinfra.api.host import Host

from tasks import quicker


def test_the_order_of_operations_is_what_it_is_with_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyinfra takes it from the stack."""

    def order() -> list[int]:
        return util.get_operation_order_from_stack(state)

    state: Any = SimpleNamespace(current_deploy_filename=__file__, current_op_file_number=0)
    for name in ("stack", "getframeinfo"):
        monkeypatch.setattr(util, name, getattr(inspect, name))
    both = []
    for prepare in (lambda: None, quicker._walk_the_stack):
        prepare()
        both.append(order())
    assert both[0] == both[1] and len(both[0]) > 1


def test_the_place_of_a_call_is_what_it_is_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stack", "getframeinfo"):
        monkeypatch.setattr(util, name, getattr(inspect, name))
    both = []
    for prepare in (lambda: None, quicker._walk_the_stack):
        prepare()
        found = util.get_caller_frameinfo()
        both.append((found.filename, found.lineno))
    assert both[0] == both[1]


def an_inventory() -> Inventory:
    return Inventory(
        ([("one", {"of_host": 1, "same": "host", "list": [1]}), "two"], {"same": "all", "of_all": 1}),
        override_data={"forced": "yes", "of_host": 3},
        first=(["one", "two"], {"same": "first", "of_first": [1]}),
        second=(["one"], {"same": "second", "forced": "no"}),
    )


KEYS = ("of_host", "same", "list", "of_all", "forced", "of_first", "nothing", "set", "of_deploy")


def seen(host: Host) -> tuple[dict[str, Any], dict[str, Any]]:
    return {key: host.data.get(key) for key in KEYS}, host.data.dict()


def test_a_hosts_data_is_what_it_is_unmerged() -> None:
    plain, merged = an_inventory(), an_inventory()
    for name in ("one", "two"):
        one, other = plain.get_host(name), merged.get_host(name)
        for _ in range(2):
            quicker._merge_data(other)
        assert seen(other) == seen(one)
        for host in (one, other):
            host.data.set = "later"
            host.current_deploy_data = {"of_deploy": "default", "same": "deploy"}
        assert seen(other) == seen(one)
        other.data.get("list" if name == "one" else "of_first").append(2)
        assert seen(other) == seen(one)  # what is handed out is a copy
        with pytest.raises(AttributeError, match=f"host {name} has no data 'nothing'"):
            _ = other.data.nothing


def test_a_hosts_data_as_text_shows_no_values() -> None:
    host = Inventory(([("one", {"ssh_password": "hunter2"})], {})).get_host("one")
    quicker._merge_data(host)
    assert "ssh_password" in str(host.data) and "hunter2" not in str(host.data)


def test_small_packets_are_not_held_back() -> None:
    with socket.socket() as sock:
        transport = SimpleNamespace(sock=sock)
        client = SimpleNamespace(get_transport=lambda: transport)
        quicker._send_at_once(SimpleNamespace(connector=SimpleNamespace(client=client)))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def gone() -> socket.socket:
    sock = socket.socket()
    sock.close()
    return sock


@pytest.mark.parametrize(
    "sock", [paramiko.ProxyCommand("cat"), paramiko.Channel(0), gone()], ids=["command", "jump", "gone"]
)
def test_a_connection_through_another_host_and_one_that_is_gone_are_left_alone(sock: Any) -> None:
    client = SimpleNamespace(get_transport=lambda: SimpleNamespace(sock=sock))
    quicker._send_at_once(SimpleNamespace(connector=SimpleNamespace(client=client)))
    sock.close()


@pytest.mark.parametrize("client", [None, SimpleNamespace(get_transport=lambda: None)])
def test_a_connection_that_is_none_is_left_alone(client: Any) -> None:
    """That of this machine itself, and one that is closed."""
    quicker._send_at_once(SimpleNamespace(connector=SimpleNamespace(client=client)))
    quicker._send_at_once(SimpleNamespace(connector=SimpleNamespace()))
