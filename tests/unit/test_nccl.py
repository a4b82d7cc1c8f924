# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstack.errors import SparkstackError
from sparkstack.launch import Accelerator
from sparkstack.nccl import empties, host_address, rank_env
from sparkstack.topology import plan

SOCKETS = (
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include"
)  # fmt: skip
HCAS = ["rocep1s0f0", "roceP2p1s0f0"]


def env(kind: str, count: int, hcas: list[str], accelerator: Accelerator = "gpu") -> dict[str, str]:
    nodes = [f"n{index}" for index in range(count)]
    return rank_env(
        kind, plan(kind, nodes), nodes[-1], management="enP7s7", active_hcas=hcas, accelerator=accelerator,
        management_address="10.0.0.9",
    )  # fmt: skip


def test_a_single_spark_has_its_address_and_no_more() -> None:
    assert env("single", 1, HCAS) == {"VLLM_HOST_IP": "127.0.0.1"}


@pytest.mark.parametrize(("kind", "count"), [("pair", 2), ("switch", 4)])
def test_a_pair_and_a_switch_talk_over_the_first_twin(kind: str, count: int) -> None:
    assert env(kind, count, HCAS) == {
        "VLLM_HOST_IP": f"192.168.96.{9 + count}",
        **dict.fromkeys(SOCKETS, "enp1s0f0np0"),
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
    }


def test_a_ring_of_three_meets_on_the_management_network() -> None:
    assert env("ring", 3, HCAS) == {
        "VLLM_HOST_IP": "10.0.0.9",
        **dict.fromkeys(SOCKETS, "enP7s7"),
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_NET_PLUGIN": "none",
    }


def test_a_longer_ring_also_names_the_algorithm() -> None:
    four, three = env("ring", 4, HCAS), env("ring", 3, HCAS)
    assert four.items() - three.items() == {("NCCL_ALGO", "Ring")}


@given(st.lists(st.sampled_from(HCAS), unique=True), st.sampled_from(["pair", "ring", "switch"]))
def test_exactly_the_active_devices_are_named(active: list[str], kind: str) -> None:
    found = env(kind, 2 if kind == "pair" else 3, active)
    assert found.get("NCCL_IB_HCA") == ("=" + ",".join(active) if active else None)
    assert found["NCCL_IB_DISABLE"] == ("0" if active else "1")
    assert not any("GID_INDEX" in name for name in found)
    assert all(found.values())  # an empty value is not "unset"


def test_a_pair_with_two_cables_pairs_its_devices_by_subnet() -> None:
    nodes = ["a", "b"]
    found = rank_env(
        "pair", plan("pair", nodes, cables=2), "a", management="enP7s7", active_hcas=[*HCAS, "rocep1s0f1"],
        accelerator="gpu",
    )  # fmt: skip
    assert found["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
    assert found["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0,rocep1s0f1"
    assert "NCCL_IB_MERGE_NICS" not in found and "NCCL_ALGO" not in found


def test_what_must_not_be_empty() -> None:
    said = empties({"NCCL_IB_GID_INDEX": "", "GLOO_SOCKET_IFNAME": " ", "NCCL_DEBUG": "", "NCCL_IB_HCA": "x"}, "r")
    assert [problem.found.split()[0] for problem in said] == ["GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX"]


def test_a_cpu_build_uses_no_rdma() -> None:
    found = env("pair", 2, HCAS, "cpu")
    assert "NCCL_IB_HCA" not in found
    assert found["NCCL_IB_DISABLE"] == "1"
    assert found["GLOO_SOCKET_IFNAME"] == "enp1s0f0np0"


def test_a_ring_needs_management_addresses() -> None:
    with pytest.raises(SparkstackError) as caught:
        host_address(plan("ring", list("abc")), "b")
    assert (
        str(caught.value) == "b: found no management address; wanted one for a ring; name it in the inventory"
    )
