"""Why an engine ended, in its own words: the line of its output that says most, without what is secret."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from onhost import group
from onhost.group import Served
from onhost.plan import JobError, read_secret

LIMIT = 200  # characters of a line that are kept: it goes into an answer to everybody
LINES = 400  # of the journal that are looked at: a traceback of each of several processes

# What vLLM puts before a line: who says it, and when.
_PREFIX = re.compile(
    r"^(?:\(\w+(?: \w+=\w+)* pid=\d+\)\s*|\[rank\d+\]:\s*"
    r"|(?:ERROR|CRITICAL|WARNING) \d\d-\d\d [\d:]+ \[[^\]]*\]\s*)+"
)
_EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b:? ?\S")
_ERROR = re.compile(r"error|exception|fatal|panic|killed|no such|cannot|failed", re.IGNORECASE)
# These say that another line says it.
_ELSEWHERE = re.compile(r"root cause|see stack trace|EngineDeadError|exited unexpectedly", re.IGNORECASE)
_PATTERNS = (
    re.compile(r"(://)[^/\s@]+@"),
    re.compile(r"()\b(?:hf_|sk-|gh[oprsu]_|github_pat_|glpat-|nvapi-|xox[a-z]-|AIza|eyJ)[\w-]{8,}[\w.-]*"),
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),
    re.compile(r"(bearer )\S+", re.IGNORECASE),
    # Base64, and not "basic information".
    re.compile(r"(\b[Bb]asic )(?=\S*[0-9+/=]|\S+[A-Z])[A-Za-z0-9+/=]{6,}(?![\w.])"),
)
# What a variable, an option, a header or a key of JSON that holds a secret is called, and its value: all that
# is in quotes (of which the last may be cut off), else a word.
_NAMED = re.compile(
    r"""(?<![\w-])
    (?P<name>[\w.-]*(?:(?P<weak>signature|credentials?)|token|secret|passwd|password|passphrase|authorization
        |(?:api|auth|access|secret|private|account|admin|master|signing|encryption|subscription|license)
         [-_. ]?keys?
        |(?-i:_KEY)|(?<=[?&])key|(?<=--)key))
    (?:\ provided)?
    (?P<end>\\?["'])?
    (?P<between>\s*[=:]\s*|\s+|\s*,\s*)
    (?P<scheme>(?:basic|bearer|token|digest|negotiate)\s+)?
    (?P<value>[bruf]{0,2}\\?(?:"(?:\\.|[^"\\])*\\?"?|'(?:\\.|[^'\\])*\\?'?)|\S+)""",
    re.IGNORECASE | re.VERBOSE,
)
# A model's tokens, and counts of them.
_OF_A_MODEL = re.compile(
    r"(?:^|[-_.])(?:bos|eos|pad|unk|sep|cls|mask|stop|start|end|image|video|audio|special|think|draft|max|min"
    r"|num|per|first|next|last)[-_.]token$",
    re.IGNORECASE,
)
# What a value is that says nothing: none, a place for one, a special token; and a number of tokens.
_NO_VALUE = re.compile(
    r"[\"']?(?:<.*|(?-i:\$\{?[A-Z_]+\}?)|\{\w*\}|(?:true|false|none|null)\b)[\"',;)\]}]*", re.IGNORECASE
)
_COUNT = re.compile(r"[\d.]{1,8}[,;)\]}]*")
# What follows a name in a sentence and is none of its words.
_RANDOM = re.compile(r"(?=[^\s\d]*\d)(?=[\W\d]*[A-Za-z])[A-Za-z0-9+/=_-]{16,}")


def _hide(found: re.Match[str]) -> str:
    """A name and its value, without the value where that is a secret."""
    name, between, value = found["name"], found["between"], found["value"]
    option, said = name.startswith("-"), between.strip()
    secret = not (_OF_A_MODEL.search(name) or _NO_VALUE.fullmatch(value))
    secret = secret and not (name.lower().endswith("token") and _COUNT.fullmatch(value))
    if said == ",":  # of a list of words, as Python prints it
        secret = secret and option and bool(found["end"])
    elif said == ":":  # "argument --api-key: expected one argument"
        secret = secret and not option and (not found["weak"] or bool(found["end"]))
    elif not said:
        secret = secret and (not value.startswith("-") if option else bool(_RANDOM.fullmatch(value)))
    whole = found[0]
    return f"{whole[: len(whole) - len(value)]}…" if secret else whole


def error_line(lines: Iterable[str]) -> str:
    """The line of an engine's output that says best why it ended; "" where there is none.

    That is the last line of a traceback, but for those that say to look further up; else the last line that
    sounds like an error; else the last one."""
    bare = [_PREFIX.sub("", " ".join(line.split())) for line in lines]
    bare = [line for line in bare if line]
    own = [line for line in bare if not _ELSEWHERE.search(line)]
    for some in ([one for one in own if _EXCEPTION.match(one)], [one for one in own if _ERROR.search(one)]):
        if some:
            return some[-1]
    return bare[-1] if bare else ""


def without_secrets(line: str, secrets: Sequence[str] = ()) -> str:
    """A line as everybody may read it, cut to LIMIT."""
    for secret in secrets:
        if secret:
            line = line.replace(secret, "…")
    line = _NAMED.sub(_hide, line[: 10 * LIMIT])
    for pattern in _PATTERNS:
        line = pattern.sub(r"\1…", line)
    return line if len(line) <= LIMIT else line[: LIMIT - 1] + "…"


def of_engine(rank: int, release: str, since: float, secrets: Sequence[str] = ()) -> str:
    """What the journal has of a rank's engine since a moment (s, monotonic); "" where that is nothing."""
    words = ("-b", "-n", str(LINES), "-o", "json", "--output-fields=MESSAGE,SYSLOG_IDENTIFIER", "--no-pager")
    _, text = group.command("journalctl", "-q", "-u", group.UNIT, *words)
    lines, killed = [], False
    for entry in text.splitlines():
        try:
            found = json.loads(entry)
            message, when = found["MESSAGE"], float(found["__MONOTONIC_TIMESTAMP"]) / 1e6
        except (ValueError, KeyError, TypeError):
            continue  # no entry, or one whose message is too long to be shown
        if isinstance(message, list):  # not UTF-8 alone: its bytes
            message = bytes(one for one in message if isinstance(one, int) and 0 <= one < 256).decode(
                errors="replace"
            )
        if when < since or not isinstance(message, str):
            continue
        who = str(found.get("SYSLOG_IDENTIFIER"))
        if who == f"sparkstack-rank{rank}-{release}":
            lines += message.splitlines()
        elif who == "systemd" and "Main process exited" in message and "status=137" in message:
            killed = True  # 128 + SIGKILL, as Docker says it
    line = error_line(lines)
    # Who is killed says nothing itself; its last line is of something else.
    if killed and not _ERROR.search(line):
        line = f"it was killed (status 137), as by the kernel where memory ends; its last line: {line}"
    return without_secrets(line, secrets)


def secrets_of(served: Served) -> list[str]:
    """What of a release must be in no line: the endpoint's key."""
    with contextlib.suppress(JobError):
        return [] if served.api_key_file is None else [read_secret(served.api_key_file)]
    return []


def why_ended(served: Served) -> str:
    """Why the engine ended of the start that began last, before it served."""
    secrets = secrets_of(served)
    if anew := group.read_line("anew"):
        return without_secrets(f"the watchdog started the group anew: {anew}", secrets)
    words = of_engine(served.rank, served.release, group.tries()[1], secrets)
    return "its engine ended before it served" + (f": {words}" if words else "")


def main(config_dir: Path) -> int:
    """The command `ended`, for a release's `ready`: says it, and notes it for the next start."""
    try:
        served = group.read_release(config_dir)
    except JobError as error:
        print(f"ended: {error}", file=sys.stderr)
        return 1
    why = why_ended(served)
    unit = f"sparkstack-rank{served.rank}-{served.release}"
    line = f"found {why}; wanted it to serve; see journalctl -t {unit}"
    print(f"rank {served.rank}, release {served.release}: {line}", file=sys.stderr)
    with contextlib.suppress(OSError):
        group.write_line("ended", why)
    return 0
