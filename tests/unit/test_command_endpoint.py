# ruff: noqa: E501
"""Where a recipe's command listens, and options with which an endpoint is no HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkstack.check import check, refusals

WHERE = "{bind}, which is serve_bind of group_data"


def said(tmp_path: Path, **serve: Any) -> list[str]:
    about = {
        "name": "x",
        "model": "a/b",
        "checkpoint": {"source": {"repo": "a/b", "revision": "0" * 40}},
        "image": {"base": f"x@sha256:{'0' * 64}"},
        "budget": {"memory_gib": 1, "disk_gib": 1},
        "serve": {"engine": "command"} | serve,
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(about))
    found = check(path).findings
    assert len(refusals(path, 1)) == sum(finding.refused for finding in found)
    assert {finding.code for finding in found} <= {"endpoint", "contradiction"}
    return [f"{finding.severity}: {finding.problem.found}; {finding.problem.wanted}" for finding in found]


@pytest.mark.parametrize(
    ("serve", "lines"),
    [
        ({"command": "srv --host {bind} --port {port}"}, []),
        ({"command": ["sh", "-c", 'exec srv "$0" "$1" --metrics-host 0.0.0.0', "{bind}", "{port}"]}, []),
        ({"command": ["env", "OLLAMA_HOST={bind}:{port}", "ollama", "serve"]}, []),
        ({"command": "srv --listen {bind}:{port} --other-port 9999"}, []),
        (
            {"command": "llama-server --host 0.0.0.0 --port 9999"},
            ["error: port 9999; {port}, which is serve.port (8000)", f"error: host 0.0.0.0, all interfaces, whatever the site says; {WHERE}"],
        ),
        (
            {"command": ["sh", "-c", "exec srv --host='::' --port=8000"]},
            [f"error: host ::, all interfaces, whatever the site says; {WHERE}", "warning: port 8000 written out; {port}, which is serve.port (8000)"],
        ),
        (
            {"command": "srv", "options": {"host": "127.0.0.1", "port": 9000}},
            ["error: port 9000; {port}, which is serve.port (8000)", f"warning: host 127.0.0.1 written out; {WHERE}"],
        ),
        (
            {"command": "ollama serve"},
            ["warning: a command without {port}; {port}, which is serve.port (8000)", f"warning: a command without {{bind}}; {WHERE}"],
        ),
        ({"command": "ollama serve", "env": {"OLLAMA_HOST": "{bind}:{port}"}}, ["error: {bind} in serve.env.OLLAMA_HOST; placeholders in serve.command alone", "error: {port} in serve.env.OLLAMA_HOST; placeholders in serve.command alone"]),
        (
            {"command": "ollama serve", "env": {"OLLAMA_HOST": "0.0.0.0:11434"}},
            ["error: port 11434; {port}, which is serve.port (8000)", f"error: host 0.0.0.0, all interfaces, whatever the site says; {WHERE}"],
        ),
        (
            {"command": "srv --addr [::]:8000"},
            [f"error: host [::], all interfaces, whatever the site says; {WHERE}", "warning: port 8000 written out; {port}, which is serve.port (8000)"],
        ),
        (
            {"command": "srv --host {bind} --port {port} --ssl-cert-file /c --ssl-keyfile=/k", "options": {"uds": "/x"}},
            [f"error: --{name}; it only from a reverse proxy before the endpoint: a run, its watchdog and its status ask by HTTP over TCP" for name in ("ssl-cert-file", "ssl-keyfile", "uds")],
        ),
        ({"engine": "vllm", "options": {"ssl_certfile": "/c"}}, ["error: serve.options.ssl_certfile; it only from a reverse proxy before the endpoint: a run, its watchdog and its status ask by HTTP over TCP"]),
    ],
)  # fmt: skip
def test_where_a_command_listens(tmp_path: Path, serve: dict[str, Any], lines: list[str]) -> None:
    assert sorted(said(tmp_path, **serve)) == sorted(lines)


@pytest.mark.parametrize("name", ["ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "uds"])
def test_a_recipe_of_the_community_is_told_too(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.yaml"
    flag = name.replace("_", "-")
    path.write_text(
        f"recipe_version: '2'\nname: x\nmodel: a/b\ncontainer: c\ncommand: vllm serve {{model}} --{flag} /x\n"
    )
    [problem] = refusals(path, 1)
    assert problem.found == name and "reverse proxy" in problem.wanted


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    st.sampled_from(["0.0.0.0", "::", "0:0:0:0:0:0:0:0"]),
    st.sampled_from(["--host", "--bind", "--listen", "--address"]),
    st.sampled_from([" ", "="]),
    st.booleans(),
)
def test_all_interfaces_are_never_ok(tmp_path: Path, host: str, flag: str, sign: str, script: bool) -> None:
    line = f"srv {flag}{sign}{host} --port {{port}}"
    [found] = said(tmp_path, command=["sh", "-c", f"exec {line}"] if script else line)
    assert found.startswith(f"error: host {host}, all interfaces")
