# ruff: noqa: E501
"""Where a recipe's command listens, and options with which an endpoint is no HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkstack import command_endpoint
from sparkstack.check import check, refusals
from sparkstack.native import Recipe

WHERE = "{bind}, which is serve_bind of group_data"


def about(**serve: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "model": "a/b",
        "checkpoint": {"source": {"repo": "a/b", "revision": "0" * 40}},
        "image": {"base": f"x@sha256:{'0' * 64}"},
        "budget": {"memory_gib": 1, "disk_gib": 1},
        "serve": {"engine": "command"} | serve,
    }


def said(tmp_path: Path, **serve: Any) -> list[str]:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(about(**serve)))
    found = check(path).findings
    assert len(refusals(path, 1)) == sum(finding.refused for finding in found)
    assert {finding.code for finding in found} <= {"endpoint", "contradiction", "option"}
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
            ["error: port 9999; {port}, which is serve.port (8000)", f"warning: host 0.0.0.0, all interfaces, whatever the site says; {WHERE}"],
        ),
        (
            {"command": ["sh", "-c", "exec srv --host='::' --port=8000"]},
            [f"warning: host ::, all interfaces, whatever the site says; {WHERE}", "warning: port 8000 written out; {port}, which is serve.port (8000)"],
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
            ["warning: port 11434 written out; {port}, which is serve.port (8000)", f"warning: host 0.0.0.0:11434, all interfaces, whatever the site says; {WHERE}"],
        ),
        (
            {"command": "srv --addr [::]:8000"},
            [f"warning: host [::]:8000, all interfaces, whatever the site says; {WHERE}", "warning: port 8000 written out; {port}, which is serve.port (8000)"],
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
def test_all_interfaces_are_told(tmp_path: Path, host: str, flag: str, sign: str, script: bool) -> None:
    line = f"srv {flag}{sign}{host} --port {{port}}"
    [found] = said(tmp_path, command=["sh", "-c", f"exec {line}"] if script else line)
    assert found.startswith(f"warning: host {host}, all interfaces")


WRITTEN = "warning: port 8000 written out; {port}, which is serve.port (8000)"
NO_PORT = "warning: a command without {port}; {port}, which is serve.port (8000)"
NO_BIND = f"warning: a command without {{bind}}; {WHERE}"


def script(text: str) -> dict[str, Any]:
    return {"command": ["sh", "-c", text]}


@pytest.mark.parametrize(
    ("serve", "lines"),
    [
        # Other programs of a script, and other listeners of the server, have ports of their own.
        (script("redis-server --port 6379 & exec srv --port 8000 --host {bind}"), [WRITTEN]),
        (script("redis-server --port 6379 & exec srv --host {bind}"), ["warning: port 6379 written out; {port}, which is serve.port (8000)"]),
        (script("exec srv --port 9999 --host {bind}"), ["error: port 9999; {port}, which is serve.port (8000)"]),
        (script("exec srv --port 9999 --host {bind} # as ever\n"), ["error: port 9999; {port}, which is serve.port (8000)"]),
        (script("cd /x && exec srv \\\n --port 9999 --host {bind}"), ["error: port 9999; {port}, which is serve.port (8000)"]),
        (script('exec srv --port "$PORT" --host {bind}'), ["warning: port $PORT written out; {port}, which is serve.port (8000)"]),
        ({"command": "mpirun --port 22 srv --port 8000 --host {bind}"}, [WRITTEN]),
        ({"command": "srv --port 8000 --host {bind} --listen-port 9"}, [WRITTEN]),
        ({"command": "srv --port 9 --host {bind} -p 8000"}, [WRITTEN]),
        ({"command": "srv --port 9 --host {bind} --http 8000"}, [WRITTEN]),
        ({"command": "srv --port 9 --host {bind} --max-model-len 8000"}, ["error: port 9; {port}, which is serve.port (8000)"]),
        ({"command": "srv --metrics 0.0.0.0:9090 -p 8000"}, [WRITTEN, f"warning: host 0.0.0.0:9090, all interfaces, whatever the site says; {WHERE}"]),
        ({"command": "env PORT=8000 srv --port 9 --host {bind}"}, [WRITTEN]),
        ({"command": "srv --port 9 --host {bind}", "env": {"PORT": "8000"}}, [WRITTEN]),
        ({"command": "srv --port 9 --host {bind}", "options": {"port": 8000}}, [WRITTEN]),
        # Comments and URLs are no listeners.
        (script("# srv --port 1 --host 0.0.0.0\nexec srv --host {bind}"), [NO_PORT]),
        (script("curl http://0.0.0.0:1234; exec srv --port 8000"), [WRITTEN, NO_BIND]),
        (script("exec srv # --host {bind} --port {port}"), [NO_PORT, NO_BIND]),
        # What becomes no word is nothing.
        ({"command": "srv --host {bind} --port {port}", "options": {"ssl_keyfile": None, "ssl_certfile": None}}, []),
        ({"command": "srv --host {bind} --port {port}", "options": {"host": None, "port": None, "uds": None}}, []),
        (script("srv --host {bind} --port {port} # --ssl-keyfile x"), []),
        ({"command": "srv --host {bind} --port {port} --enable-ssl-refresh"}, ["error: --enable-ssl-refresh; it only from a reverse proxy before the endpoint: a run, its watchdog and its status ask by HTTP over TCP"]),
    ],
)  # fmt: skip
def test_what_works_is_not_refused(tmp_path: Path, serve: dict[str, Any], lines: list[str]) -> None:
    assert sorted(said(tmp_path, **serve)) == sorted(lines)


@pytest.mark.parametrize("name", ["ssl_keyfile", "ssl_cert_file", "uds"])
def test_an_option_of_tls_that_is_false_is_not_refused(tmp_path: Path, name: str) -> None:
    found = said(tmp_path, command="srv --host {bind} --port {port}", options={name: False})
    assert found == [f"warning: serve.options.{name}: false, which is left out; a flag that the engine has"]


@pytest.mark.parametrize(
    ("serve", "opened"),
    [
        ({"command": "srv --host 0.0.0.0 --port {port}"}, "host 0.0.0.0"),
        ({"command": "srv --host :: --port {port}"}, "host ::"),
        ({"command": "srv --listen 0.0.0.0:{port}"}, "host 0.0.0.0:{port}"),
        ({"command": "srv --addr [::]:8000"}, "host [::]:8000"),
        ({"command": "srv", "options": {"host": "0.0.0.0"}}, "host 0.0.0.0"),
        ({"command": "srv", "env": {"X_HOST": "0.0.0.0:8000"}}, "host 0.0.0.0:8000"),
        (script("x; exec srv --host 0.0.0.0"), "host 0.0.0.0"),
        # Not sure that it is the endpoint.
        ({"command": "srv --metrics 0.0.0.0:9090 -p 8000"}, None),
        ({"command": "mpirun --host 0.0.0.0 srv --host 127.0.0.1"}, None),
        ({"command": "srv --host {bind} --metrics-host 0.0.0.0"}, None),
        ({"command": "env OLLAMA_HOST=0.0.0.0 ollama serve"}, None),
        (script("redis-server --bind 0.0.0.0 & exec srv"), None),
        (script("exec srv # --host 0.0.0.0"), None),
        ({"engine": "vllm"}, None),
    ],
)  # fmt: skip
def test_all_interfaces_against_the_site(serve: dict[str, Any], opened: str | None) -> None:
    recipe = Recipe.model_validate(about(**serve))
    for bind in ("0.0.0.0", "::"):
        assert command_endpoint.against_site(recipe, bind) == []
    for bind in ("127.0.0.1", "management", "192.0.2.7", "fd00::1"):
        assert [problem.found for problem in command_endpoint.against_site(recipe, bind)] == (
            [f"{opened}, all interfaces"] if opened else []
        )
