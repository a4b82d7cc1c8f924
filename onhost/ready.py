"""The command ready: an endpoint is ready when it has answered one real completion.

/health alone proves little: a head whose worker has died keeps saying 200 until a request comes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from onhost.docker_cli import STOPPED, docker, unit_state
from onhost.http_client import ask
from onhost.last_words import error_line, without_secrets
from onhost.plan import JobError, read_secret

PAUSE = 1.0  # s between attempts
LEAST = 5.0  # s that an attempt has, also at the end of the wait: its answer says what is wrong
ANSWER = 120.0  # s for the one completion: a first request may compile kernels


@dataclass
class Container:
    """Watches the serving container, so that a crash ends the wait at once and not at its end."""

    name: str
    seen: tuple[str, str] | None = None  # id and start of what ran when we first looked
    key: str | None = None  # the endpoint's, which is never shown

    def ended(self) -> str | None:
        """What became of the container, or None while it runs or has not been made yet."""
        if (state := unit_state()) in STOPPED:
            return f"Docker {state}"
        done = docker("container", "inspect", self.name)
        if done.returncode:
            if self.seen is None or "no such container" not in done.stderr.lower():
                return None
            return f"container {self.name} gone"
        found: dict[str, Any] = json.loads(done.stdout)[0]
        state = found["State"]
        now = (str(found["Id"]), str(state["StartedAt"]))
        if state["Status"] in {"exited", "dead", "restarting"}:
            return f"container {self.name} {state['Status']} with code {state['ExitCode']}{self._last_line()}"
        if self.seen is not None and now != self.seen:
            return f"container {self.name} started anew{self._last_line()}"
        self.seen = now if state["Running"] else self.seen
        return None

    def _last_line(self) -> str:
        """What its log says of its end."""
        done = docker("logs", "--tail", "60", self.name)
        last = without_secrets(error_line((done.stdout + done.stderr).splitlines()), [self.key or ""])
        return f" ({last})" if last else ""


class NotInTime(JobError):
    """The time is over, and nothing that was seen says that waiting longer could not help."""


def wait(url: str, model: str, key: str | None, container: Container | None, timeout: float) -> None:
    """Returns after one completion. Errors: NotInTime when `timeout` s are over; JobError when waiting cannot
    help."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    deadline = time.monotonic() + timeout
    while True:
        if container is not None and (end := container.ended()):
            raise JobError(
                f"found {end}; wanted a completion from {url}; "
                f"see `docker logs {container.name}` and the journal of the serving unit"
            )
        # The port opens after minutes of loading; until then a quick refusal costs nothing.
        last = attempt(headers, url, model, min(max(deadline - time.monotonic(), LEAST), ANSWER))
        if last is None:
            if key:
                _refuses_others(url, model)
            return
        if time.monotonic() >= deadline:
            raise NotInTime(
                f"found {last} after {timeout:.0f} s; wanted a completion from {url}; "
                "see the journal of the serving unit, or raise the recipe's time for starting"
            )
        time.sleep(min(PAUSE, max(0.0, deadline - time.monotonic())))


def _refuses_others(url: str, model: str) -> None:
    """JobError where the endpoint answers one who has no key: its engine knows of none, and serves all.

    A completion is asked for: llama.cpp's server lists its models for everybody, also where it has a key."""
    body = {"model": model, "prompt": "One, two,", "max_tokens": 1}
    try:
        status = ask("POST", f"{url.rstrip('/')}/v1/completions", seconds=ANSWER, json=body).status_code
    except httpx.HTTPError:
        return  # it has just answered: the next who asks will see
    if status < 300:
        raise JobError(
            f"found HTTP {status} from {url} without the API key; wanted 401; this engine does not read "
            "VLLM_API_KEY: name the key's file in its command, or declare no key"
        )


def attempt(headers: Mapping[str, str], url: str, model: str, timeout: float) -> str | None:
    """One completion: None where it came, else what was found.

    JobError where the server refuses us for good.
    """
    body = {"model": model, "prompt": "One, two, three,", "max_tokens": 4, "temperature": 0}
    try:
        place = f"{url.rstrip('/')}/v1/completions"
        answer = ask("POST", place, seconds=timeout, headers=headers, json=body)
    except httpx.ConnectError:
        return "a closed port"
    except httpx.TimeoutException:
        return f"no answer within {timeout:.0f} s"
    except httpx.HTTPError as error:
        return f"'{error or type(error).__name__}'"
    if answer.status_code == 401:
        raise JobError(f"found HTTP 401 from {url}; wanted the API key accepted; check the API key's file")
    try:
        data = answer.json()
    except ValueError:
        data = None
    if answer.status_code == 404:
        raise JobError(
            f"found HTTP 404 for model {model!r} at {url} ({message_of(data)}); wanted it served; "
            "check the recipe's served name, and what else listens on this port"
        )
    if answer.status_code != 200:
        return f"HTTP {answer.status_code} ({message_of(data)})"
    try:
        come = data["usage"]["completion_tokens"] > 0
        text = data["choices"][0]["text"]
    except (TypeError, KeyError, IndexError):
        return f"HTTP 200 without a completion ({message_of(data)})"
    # Random weights may write white space only; tokens counted by the engine prove that it computed.
    return None if isinstance(text, str) and come else "HTTP 200 with an empty completion"


def message_of(data: Any) -> str:
    """The words of an error answer, in either shape that OpenAI-like servers use."""
    if isinstance(data, dict):
        inner = data.get("error", data)
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("detail") or inner.get("object") or ""
        return " ".join(str(inner).split())[:200] or "no message"
    return "no JSON"


def main(url: str, model: str, key_file: Path | None, container: str | None, timeout: float) -> int:
    """The command: 0 after a completion, else 1 and one line on standard error."""
    try:
        key = None if key_file is None else read_secret(key_file)
        wait(url, model, key, None if container is None else Container(container, key=key), timeout)
    except JobError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0
