"""What is somebody else's in daemon.json stays somebody else's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkstack.docker_settings import DaemonFile, own_log_driver, wanted


def site(**changes: Any) -> Any:
    plain = {
        "docker_mirrors": None,
        "docker_log_options": {"max-size": "100m"},
        "docker_nvidia_default": True,
        "docker_cgroupfs": True,
        "docker_data_root": None,
        "docker_settings": {},
    }
    return SimpleNamespace(**{**plain, **changes})


def test_mirrors_that_nobody_declares_are_left_alone() -> None:
    assert "registry-mirrors" not in wanted(site(), gpu=False)
    assert wanted(site(docker_mirrors=[]), gpu=False)["registry-mirrors"] == []


@pytest.mark.parametrize(("driver", "ours"), [(None, True), ("json-file", True), ("syslog", False)])
def test_log_options_go_with_their_driver(driver: str | None, ours: bool) -> None:
    assert ("log-opts" in wanted(site(), gpu=False, log_driver=driver)) is ours


def test_the_driver_is_the_owners_and_not_the_one_that_we_set() -> None:
    assert own_log_driver(DaemonFile(text='{"log-driver": "syslog"}')) == "syslog"
    ours = DaemonFile(text='{"log-driver": "json-file"}', ours={"log-driver": "json-file"}, before="{}")
    assert own_log_driver(ours) is None
    for text in ("not JSON", "[" * 100_000, "[]", '"x"'):
        assert own_log_driver(DaemonFile(text=text)) is None
