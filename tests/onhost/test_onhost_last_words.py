"""Which line of an engine's output says why it ended, and what everybody may read of it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_onhost_group import RELEASE, Host, Peers, host, release_json, served

from onhost import __main__ as command
from onhost import group, last_words, watchdog
from onhost.last_words import LIMIT, error_line, without_secrets
from onhost.prestart import Start

__all__ = ["host"]

VLLM = """\
INFO 11-30 15:14:20 [core.py:93] Initializing a V1 LLM engine
(EngineCore_DP0 pid=207) ERROR 11-30 15:14:29 [core.py:844] EngineCore failed to start.
(EngineCore_DP0 pid=207) ERROR 11-30 15:14:29 [core.py:844] Traceback (most recent call last):
(EngineCore_DP0 pid=207) ERROR 11-30 15:14:29 [core.py:844]   File "/x/core.py", line 835, in run
(EngineCore_DP0 pid=207) ERROR 11-30 15:14:29 [core.py:844] torch.OutOfMemoryError: CUDA out of memory.
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed procs: {}
"""
NO_GPU = """\
docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].

Run 'docker run --help' for more information
"""
LLAMA = "loading\nggml_cuda_init: failed to initialize CUDA: no device\nsrv  main: bye\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (VLLM, "torch.OutOfMemoryError: CUDA out of memory."),
        (NO_GPU, 'docker: Error response from daemon: could not select device driver "" with capabilities'),
        (LLAMA, "ggml_cuda_init: failed to initialize CUDA: no device"),
        ("[rank0]: ValueError: no head\n[rank0]: bye\n", "ValueError: no head"),
        ("a\n\n  b  c \n", "b c"),
        ("(APIServer pid=1) RuntimeError: see root cause above\n", "RuntimeError: see root cause above"),
        ("\n \n", ""),
        ("", ""),
    ],
)
def test_the_line_that_says_why(text: str, said: str) -> None:
    found = error_line(text.splitlines())
    assert found.startswith(said) and bool(said) is bool(found)


@pytest.mark.parametrize(
    ("line", "safe"),
    [
        ("Error: key my-own-key-7 is wrong", "Error: key … is wrong"),
        ("401 for https://user:pa55@mirror/x", "401 for https://…mirror/x"),
        ("Error: token hf_AbCdEfGhIjKl refused", "Error: token … refused"),
        ("Error: Authorization: Bearer abc.def", "Error: Authorization: Bearer …"),
        ("Error: api_key=s3cr3t password: pw", "Error: api_key=… password: …"),
        ("ValueError: max_model_len 4096 token: ids", "ValueError: max_model_len 4096 token: …"),
        ("x" * 500, "x" * (LIMIT - 1) + "…"),
    ],
)
def test_what_is_secret_is_not_said(line: str, safe: str) -> None:
    said = without_secrets(line, ["my-own-key-7", ""])
    for secret in ("my-own-key-7", "pa55", "hf_Ab", "abc.def", "s3cr3t", ": pw"):
        assert secret not in said
    assert said == safe


SECRET = "pR1v4te/x+y=="


@pytest.mark.parametrize(
    "line",
    [
        "serve: error: --api-key {} is refused",
        "serve --token {} --port 1",
        "['serve', '--api-key', '{}']",
        "--admin-api-key={}",
        "AWS_SECRET_ACCESS_KEY={}",
        "WANDB_KEY={}",
        "HF_TOKEN={} not valid",
        "{'aws_secret_access_key': '{}', 'region': 'x'}",
        '{"api_key": "{}"}',
        r'json "{\"apiKey\": \"{}\"}"',
        "GET https://h/x?X-Amz-Credential={}&X-Amz-Signature={}&a=b",
        "https://h/x?key={}",
        "Authorization: {}",
        "{'Authorization': 'Basic {}'}",
        "Authorization: Token {}",
        "X-Api-Key: {}",
        "Proxy-Authorization: Basic {}",
        "sent Basic {}",
        "password = 'my {} pw'",
        "password='it\\'s {} pw'",
        'passphrase: "my {} p',
        "PGPASSWORD={}",
        "password=b'my {} pw'",
        "Incorrect API key provided: {}.",
        "the credentials={}",
    ],
)
def test_a_value_is_hidden_by_its_name(line: str) -> None:
    said = without_secrets("Error: " + line.replace("{}", SECRET))
    assert SECRET not in said and "my " not in said and " pw" not in said and "…" in said
    assert said.startswith("Error: " + line.split("{}")[0].rstrip("'\"bmy ")[:7])


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE", "github_pat_11ABCDEFG0abcdefgh", "ghp_abcdefghijkl", "hf_abcdefghijkl",
        "sk-proj-abcdefgh", "glpat-abcdefgh12", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_d",
    ],
)  # fmt: skip
def test_a_secret_is_known_by_how_it_begins(secret: str) -> None:
    assert without_secrets(f"Error: found {secret}, refused") == "Error: found …, refused"
    assert without_secrets("password=12345 api_key: $ecret") == "password=… api_key: …"
    assert without_secrets("token 3f9c8a7b6d5e4f3a2b1c") == "token …"


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: max_tokens=64 is above 32",
        "max_token=64", "draft_token: 7", "n_token = 12", "token: 5, of 9", "eos_token='</s>'",
        "pad_token: None",
        "KeyError: 'lm_head.weight'",
        "Missing key: 'model.layers.0.weight'", "Missing key(s) in state_dict: \"a\"", "cache_key=abc",
        "SyntaxError: Unexpected token < in JSON at position 0", "special token: <|im_start|>",
        "ValueError: the token ids are wrong", "401: API key is missing", "password authentication failed",
        "error: argument --api-key: expected one argument", "--api-key --port 1", "--eos-token </s>",
        "RuntimeError: no signature: (Tensor self, int dim)", "Unable to locate credentials: run it again",
        "num_key_value_heads=8 tokenizer=x token_ids: [1]", "api_key=None", "--api-key $KEY",
        "api_key: <set it>",
        "a basic information", "Basic authentication is off", "secret not found",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays_readable(line: str) -> None:
    assert without_secrets(line) == line


@given(st.text(max_size=400), st.text("ab-", min_size=4, max_size=12))
def test_a_known_secret_is_in_no_line(text: str, secret: str) -> None:
    line = error_line(f"{text} Error: {secret} {text}".splitlines())
    said = without_secrets(line, [secret])
    assert secret not in said and len(said) <= LIMIT and "\n" not in said


def entry(message: object, at: float, who: str = f"sparkstack-rank0-{RELEASE}") -> str:
    times = {"__MONOTONIC_TIMESTAMP": str(int(at * 1e6))}
    return json.dumps({"MESSAGE": message, "SYSLOG_IDENTIFIER": who, **times})


def journal(host: Host, entries: Sequence[str]) -> None:
    before = host.command

    def answers(*words: str, seconds: float = 0) -> tuple[bool, str]:
        return (True, "\n".join(entries)) if words[0] == "journalctl" else before(*words)

    group.command = answers  # type: ignore[assignment]  # the fixture puts it back


KILLED = "sparkstack-serve.service: Main process exited, code=exited, status=137/n/a"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([entry("ValueError: old", 5), entry("ValueError: new", 11)], "ValueError: new"),
        ([entry("ValueError: another rank's", 11, "sparkstack-rank1-x")], ""),
        ([entry(list(b"KeyError: \xff"), 11)], "KeyError: \ufffd"),
        (["-- no json --", entry(None, 11), "{}", "[]"], ""),
        ([entry("loading 3/9", 11), entry(KILLED, 12, "systemd")], "it was killed (status 137)"),
        ([entry("ValueError: x", 11), entry(KILLED, 12, "systemd")], "ValueError: x"),
        ([], ""),
    ],
)
def test_what_the_journal_has_of_this_start(host: Host, entries: list[str], said: str) -> None:
    journal(host, entries)
    found = last_words.of_engine(0, RELEASE, 10.0)
    assert found.startswith(said) and bool(found) is bool(said)


def test_the_next_start_says_the_engines_words(host: Host) -> None:
    """For a release whose `ready` does not note them; the endpoint and the other ranks read them."""
    group.write_line("tries", "0 0.000")
    host.numbers = {"NRestarts": 1}
    time.sleep(1)
    journal(host, [entry(line, 0.5) for line in VLLM.splitlines()])
    Start(
        served(world=1), Peers(Path("/nowhere")), Path("/c"),
        drop_caches=False, invocation="hh", say=host.said.append,
    ).run()  # fmt: skip
    why = "its engine ended before it served: torch.OutOfMemoryError: CUDA out of memory."
    assert host.said[1] == f"tries again after 5 s (1 start failed): {why}"
    assert group.read_line("ended") == ""  # its engine has begun


def test_a_release_notes_why_its_engine_ended(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("my-own-key-7\n")
    folder = release_json(tmp_path, rank=0, api_key_file=str(key))
    journal(host, [entry("ValueError: my-own-key-7 is no key", 1)])
    assert command.main(["ended", "--config-dir", str(folder)]) == 0
    why = "its engine ended before it served: ValueError: … is no key"
    assert capsys.readouterr().err == (
        f"rank 0, release {RELEASE}: found {why}; wanted it to serve; see journalctl -t "
        f"sparkstack-rank0-{RELEASE}\n"
    )
    assert group.read_line("ended") == why
    assert command.main(["ended", "--config-dir", "/nowhere"]) == 1


def test_an_engine_that_the_watchdog_killed_is_none_that_the_kernel_killed(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit's `ready` looks at it in the moment of the kill, and the next start where `ready` did not."""
    loading = "ActiveState=activating\nSubState=start-post\nInvocationID=aa\n"
    journal(host, [entry("loading 3/9", 0.5), entry(KILLED, 0.6, "systemd")])
    before, folder = group.command, release_json(tmp_path, rank=0, world=1)
    seen: list[str] = []

    def answers(*words: str, seconds: float = 0) -> tuple[bool, str]:
        if words[:2] == ("docker", "kill"):
            command.main(["ended", "--config-dir", str(folder)])
            seen.append(group.read_line("ended"))
        shown = words[:4] == ("systemctl", "show", "-p", group.PROPERTIES)
        return (True, loading) if shown else before(*words)

    monkeypatch.setattr(group, "command", answers)
    watchdog.begin_anew("aa", "rank 1 (b) is gone for 120 s: it does not answer (timed out)")
    why = "the watchdog started the group anew: rank 1 (b) is gone for 120 s: it does not answer (timed out)"
    assert seen == [why]
    for ended in (True, False):
        if not ended:
            (group.RUN / "ended").unlink(missing_ok=True)
            group.write_line("anew", "rank 1 (b) is gone for 120 s: it does not answer (timed out)")
        host.said.clear()
        Start(
            served(world=1), Peers(Path("/nowhere")), Path("/c"),
            drop_caches=False, invocation="hh", say=host.said.append,
        ).run()  # fmt: skip
        told = [line for line in host.said if line.startswith("tries again")]
        assert told and all(line.endswith(f": {why}") for line in told)
        assert not group.read_line("anew")
