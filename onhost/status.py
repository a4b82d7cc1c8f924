"""What a host says of its rank, for `sparkstack status`: `python3 - CONFIG_DIR UNIT SECONDS < status.py`.

A file by itself, for the system's Python and with nothing installed. It asks and changes nothing. Prints one
JSON object; on the head with two readings of the engine's counters, SECONDS apart.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

PROPERTIES = (
    "ActiveState",
    "SubState",
    "NRestarts",
    "Result",
    "InvocationID",
    "StatusText",
    "ActiveEnterTimestampMonotonic",
    "InactiveExitTimestampMonotonic",
)
RANK = Path("/run/sparkstack/rank")
"""What the rank's start says of itself: its invocation, and a word (onhost/group.py)."""
LOOK = Path("/run/sparkstack/watchdog")
"""What the watchdog's last look found (onhost/watchdog.py)."""
WATCHDOG = "sparkstack-watchdog.service"
NO_HEALTH = (404, 405, 501)  # of an engine that has no such question
QUERY = "temperature.gpu,power.draw,utilization.gpu,memory.used"
ANSWER_S = 3.0
PREFIXES = ("vllm:", "sglang:", "llamacpp:", "atlas_")
"""How the metrics of the engines begin (sparkstack/engine_metrics.py says which is which)."""
WORDS = 300  # of an answer that is no success: what stands in the engine's place says why in them


def output(*words: str) -> str | None:
    """What a command says; None where it fails or is not there."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def release(config: Path) -> dict[str, Any] | None:
    """What is said of the release that is current here; None where there is none."""
    try:
        found = json.loads((config / "current" / "release.json").read_text())
    except (OSError, ValueError):
        return None
    names = ("release", "recipe", "rank", "world", "hosts", "endpoint", "bind", "model")
    return {name: found.get(name) for name in names}


def unit(name: str) -> dict[str, str]:
    said = output("systemctl", "show", "-p", ",".join(PROPERTIES), name) or ""
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


def note(invocation: str) -> str:
    """Why this start of the rank waits; "" where it does not say. An earlier start's word is none of it."""
    try:
        whose, _, word = RANK.read_text(encoding="utf-8", errors="replace").strip().partition(" ")
    except OSError:
        return ""
    return word[:WORDS] if invocation and whose == invocation else ""


def last_error(name: str) -> str:
    """The line with which the unit's last start ended, where it ended with one of ours."""
    said = output("journalctl", "-u", name, "-n", "60", "-o", "cat", "--no-pager", "-q") or ""
    lines = [" ".join(line.split()) for line in said.splitlines() if "found " in line and "; wanted " in line]
    return lines[-1][:WORDS] if lines else ""


def watchdog() -> dict[str, Any]:
    """Its unit, and what its last look found: None where it wrote nothing."""
    names = "ActiveState,UnitFileState,ActiveEnterTimestampMonotonic"
    said = output("systemctl", "show", "-p", names, WATCHDOG) or ""
    about = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    try:
        last = json.loads(LOOK.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = None
    return {
        "active": about.get("ActiveState", ""),
        "enabled": about.get("UnitFileState", ""),
        "since": about.get("ActiveEnterTimestampMonotonic", ""),
        "last": last if isinstance(last, dict) else None,
    }


def reason(text: str) -> str:
    """What an answer that is no success says: the message of an error, where it is one in JSON."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        text = str(json.loads(text)["error"]["message"])
    return " ".join(text.split())[:WORDS]


def memory() -> dict[str, int] | None:
    """Bytes of the host: total and available."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return {
            "total": int(lines["MemTotal"].split()[0]) * 1024,
            "available": int(lines["MemAvailable"].split()[0]) * 1024,
        }
    except (OSError, KeyError, ValueError):
        return None


def gpus() -> list[dict[str, float | None]] | None:
    """None where there is no GPU, or nobody to ask."""
    if shutil.which("nvidia-smi") is None:
        return None
    said = output("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    if not said:
        return None
    names = QUERY.split(",")
    return [dict(zip(names, map(number, line.split(",")), strict=False)) for line in said.splitlines()]


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def get(url: str, key: str = "", body: Any = None) -> tuple[int, str]:
    """Status and text; status 0 where nobody answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {} if data is None else {"Content-Type": "application/json"})
    if key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    try:
        with opener.open(request, timeout=ANSWER_S) as answer:
            return int(answer.status), answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        text = b""
        with contextlib.suppress(OSError, HTTPException):  # cut off, or too slow: the status is there
            text = error.read()
        return error.code, text.decode("utf-8", "replace")
    except OSError as error:
        return 0, str(getattr(error, "reason", error))
    except Exception as error:  # whatever listens there may answer anything
        return 0, f"no HTTP ({type(error).__name__})"


def api_key(config: Path) -> str:
    """The endpoint's key, "" where it asks for none, or it cannot be read."""
    try:
        path = json.loads((config / "current" / "release.json").read_text()).get("api_key_file")
        return Path(path).read_text().strip() if path else ""
    except (OSError, ValueError, AttributeError, TypeError):
        return ""


def reading(url: str, key: str = "") -> dict[str, Any]:
    """The engine's own metrics at a time (s), without histograms' buckets, which are most of the text. The
    key is shown to an engine that asks for it, and to no other."""
    status, text = get(f"{url}/metrics")
    if status in (401, 403) and key:
        status, text = get(f"{url}/metrics", key)
    lines = [line for line in text.splitlines() if not line.startswith("#") and "_bucket{" not in line]
    kept = [line for line in lines if line.startswith(PREFIXES)]
    return {"status": status, "t": time.time(), "text": "\n".join(kept)}


def completes(url: str, model: Any, key: str) -> bool:
    """Does one token come? For an engine that has no /health."""
    body = {"model": model, "prompt": "One, two,", "max_tokens": 1, "temperature": 0}
    status, text = get(f"{url}/v1/completions", key, body)
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return status == 200 and json.loads(text)["usage"]["completion_tokens"] > 0
    return False


def endpoint(url: str, seconds: float, key: str = "", model: Any = None) -> dict[str, Any]:
    status, text = get(f"{url}/health")
    first = reading(url, key)
    time.sleep(seconds if first["status"] == 200 else 0)
    readings = [first, reading(url, key)] if first["status"] == 200 else [first]
    said = "" if status == 200 else reason(text)
    found = {"health": status, "said": said, "readings": readings}
    if status in NO_HEALTH:
        found["completes"] = completes(url, model, key)
    return found


def main(config: str, name: str, seconds: str) -> None:
    about, said = release(Path(config)), unit(name)
    ended = said.get("ActiveState") == "failed" or said.get("SubState", "").startswith("auto-restart")
    found: dict[str, Any] = {
        "release": about,
        "unit": said,
        "note": note(said.get("InvocationID", "")),
        "last_error": last_error(name) if ended else "",
        # By the clock that systemd's monotonic times are of.
        "now_s": time.clock_gettime(time.CLOCK_MONOTONIC),
        "watchdog": watchdog(),
        "memory": memory(),
        "gpus": gpus(),
        "endpoint": None,
    }
    if about and about.get("rank") == 0 and about.get("endpoint"):
        url, key = str(about["endpoint"]).rstrip("/"), api_key(Path(config))
        found["endpoint"] = endpoint(url, float(seconds), key, about.get("model"))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
