"""The knobs of a site (`group_data/all.py`) as a schema: a wrong type or an unknown name is one line.

Defaults and what each knob means live in `group_data/all.py`; here is what a value may be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator

from sparkstack.distribution import Distribution
from sparkstack.endpoint import no_bind
from sparkstack.errors import Problem
from sparkstack.links import LinkWanted
from sparkstack.schema import Strict, matching, refusal

SHA256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Written into sudoers, so it must be what useradd takes, and nothing else.
UserName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
Percent = Annotated[int, Field(ge=1, le=99)]


def _folder(path: str) -> str:
    # Paths go into units and scripts of several languages; none of them quotes like the next one.
    strange = any(not (c.isalnum() or c in "/._-+@") for c in path)
    if not path.startswith("/") or path == "/" or ".." in path.split("/") or strange:
        raise refusal("an absolute path of letters, digits and / . _ - + @, without ..")
    return path.rstrip("/")


def _url(*schemes: str) -> AfterValidator:
    def check(text: str) -> str:
        wanted = ""
        if re.search(r"\s", text):
            wanted = "without blanks in it"
        elif not text.lower().startswith(tuple(f"{scheme}://" for scheme in schemes)):
            wanted = f"that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}"
        elif "?" in text:
            wanted = "without a query (the ? and what follows), for logs and reports show it"
        elif "#" in text:
            wanted = "without a fragment (the # and what follows)"
        else:
            wanted = _place(text)
        if wanted:
            raise refusal(f"a URL {wanted}")
        return text

    return AfterValidator(check)


def _place(url: str) -> str:
    """What a URL shall have instead, where the part that says where something is is wrong; else ""."""
    no_place = "with a host's name or address in it"
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that does not close
        return no_place
    if "@" in parts.netloc:
        return "without user and password in it, for logs and reports show it"
    if not (parts.hostname if parts.scheme != "file" else parts.path):
        return no_place
    try:
        port = parts.port
    except ValueError:
        port = 0
    return "whose port is a number from 1 to 65535" if port == 0 else ""


def shown_url(url: str) -> str:
    """A URL as it may stand in a message: without what may be a password or a key."""
    url = re.sub(r"//.*@", "//…@", url, flags=re.DOTALL)
    return re.sub(r"([?#]).+", r"\1…", url, flags=re.DOTALL)


def _bind(text: str) -> str:
    if text != "management":
        try:
            wanted = no_bind(text)
        except ValueError:
            raise refusal("an IP address, or 'management' for the head's own") from None
        if wanted is not None:
            raise refusal(wanted, "say where the endpoint listens by an address that others can write")
    return text


Url = Annotated[str, _url("https", "http")]
Download = Annotated[str, _url("https", "http", "file")]
Bind = Annotated[str, AfterValidator(_bind)]
# As in /etc/os-release, where both parts have only these characters.
System = Annotated[
    str,
    matching(r"[a-z0-9._-]+:[A-Za-z0-9._-]+", "ID:VERSION_ID of /etc/os-release, such as 'ubuntu:24.04'"),
]
# What the kernel takes as a name: at most 15 bytes.
NetworkInterface = Annotated[
    str,
    matching(r"(?!\.{1,2}$)[A-Za-z0-9._@-]{1,15}", "the name of an interface, as `ip link` shows it"),
]
Package = Annotated[str, matching(r"[a-z0-9][a-z0-9.+-]+(:[a-z0-9]+)?", "the name of a Debian package")]
PackagePattern = Annotated[
    str, matching(r"!?[a-z0-9*?\[][a-z0-9.+*?\[\]-]*", "a package's name or pattern, or ! and one of these")
]
EnvName = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name (letters, digits, '_')")]
Folder = Annotated[str, AfterValidator(_folder)]


def _json(value: Any, place: str = "") -> Any:
    """What becomes JSON has to be what JSON has."""
    wrong = isinstance(value, float) and not math.isfinite(value)
    if isinstance(value, str):
        wrong = any("\ud800" <= char <= "\udfff" for char in value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            wrong = wrong or not isinstance(key, str)
            _json(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            _json(inner, f"{place}.{at}")
    elif not isinstance(value, bool | int | float | None):
        wrong = True
    if wrong:
        what = "text, numbers, True, False, None, lists, dictionaries with text as keys"
        raise refusal(f"at {place or 'its top'} what JSON has: {what}")
    return value


Settings = Annotated[dict[str, Any], AfterValidator(_json)]


class Installer(Strict):
    """A conda installer: where it is, and the SHA-256 that it must have. None: not known."""

    url: Download | None
    sha256: SHA256 | None


class SourceBuild(Strict):
    """vLLM built in a conda environment; see `runtime_install`."""

    repository: str
    ref: str
    python: str
    torch: list[str]
    torch_index: Url
    cuda_arch: str
    jobs: Annotated[int, Field(ge=1)] | None


def _port(value: Any) -> Any:
    # Which numbers and names there are is the topology's to say (sparkstack/cabling.py).
    each = value.items() if isinstance(value, dict) else [("", value)]
    if not all(isinstance(name, str) and type(number) is int for name, number in each):
        raise refusal('a whole number, or one for each host as in {"spark-1": 0}')
    return value


def _cables(value: Any) -> Any:
    listed = isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)
    if not (value is None or type(value) is int or listed):
        raise refusal('a whole number, or a list such as ["spark-1:0 spark-2:1"]')
    return value


def _ports(value: Any) -> Any:
    """Two twins (interface, RDMA device) for each port; keys may be text, as JSON has them."""
    name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
    good = isinstance(value, dict) and all(
        str(port) in ("0", "1")
        and isinstance(twins, (list, tuple))
        and len(twins) == 2
        and all(isinstance(twin, (list, tuple)) and len(twin) == 2 for twin in twins)
        and all(isinstance(one, str) and name.fullmatch(one) for twin in twins for one in twin)
        for port, twins in value.items()
    )
    if not good:
        raise refusal('two twins for port 0 or 1, as in {0: [["cx0", "mlx5_0"], ["cx1", "mlx5_1"]]}')
    return value


class Fabric(Strict):
    """How the fabric is cabled."""

    kind: str | None = None
    port: Annotated[Any, AfterValidator(_port)] = 0
    cables: Annotated[Any, AfterValidator(_cables)] = None
    base: str | None = None


Seconds = Annotated[float, Field(ge=1, le=86400)]


class Watchdog(Strict):
    """The limits of the watchdog and of a rank's start (onhost/limits.py has the same names, and the same
    defaults); each may be left out."""

    enabled: bool = True
    interval_s: Seconds = 15
    timeout_s: Seconds = 30
    misses: Annotated[int, Field(ge=1, le=1000)] = 4
    away_s: Seconds = 120
    busy_s: Seconds = 3600
    head_stops_s: Seconds = 60
    docker_s: Seconds = 120
    port_s: Seconds = 60
    memory_s: Seconds = 180
    again_s: Seconds = 300
    back_off_s: Seconds = 60


class Knobs(Strict):
    """Every knob; the names are those of `group_data/all.py`."""

    recipe: str
    user: UserName | None
    accelerator: Literal["gpu", "cpu"]
    accepted_systems: Annotated[list[System], Field(min_length=1)]
    packages: list[Package]
    state_dir: Folder
    config_dir: Folder
    install_dir: Folder

    sshd_protected: bool
    earlyoom: bool
    earlyoom_memory_percent: Percent
    earlyoom_swap_percent: Percent
    memlock_unlimited: bool
    vm_swappiness: Annotated[int, Field(ge=0, le=200)] | None
    swap: Literal["keep", "off"]
    drop_caches: bool
    drop_caches_sudo: bool
    gpu_clock_max_mhz: Annotated[int, Field(ge=200, le=4000)] | None
    headless: bool
    held_packages: list[PackagePattern]
    time_sync: bool
    journald_persistent: bool

    docker_mirrors: list[Url] | None
    docker_settings: Settings
    docker_log_options: dict[str, str] | None
    docker_cgroupfs: bool
    docker_nvidia_default: bool
    docker_data_root: Folder | None

    conda_url: Download | None
    conda_sha256: SHA256 | None
    conda_channel_alias: Url | None
    conda_installers: dict[str, Installer]
    pip_environment: dict[EnvName, str]
    runtime_install: Literal["container", "source"]
    source_build: SourceBuild

    hub_endpoint: Url | None
    hub_token_file: str | None
    image_bases: dict[str, str]
    keep_releases: Annotated[int, Field(ge=2)]
    benchmark: Literal["smoke", "standard", "full", "off"]

    fabric: Fabric
    fabric_ports: Annotated[Any, AfterValidator(_ports)]
    link_gate: Literal["stop", "warn", "off"]
    link_wanted: LinkWanted
    management_interface: NetworkInterface
    serve_bind: Bind
    drain_s: Annotated[int, Field(ge=0, le=3600)]
    watchdog: Watchdog
    api_key_file: str | None
    api_key_env: EnvName | None
    share_port: Annotated[int, Field(ge=1, le=65535)]
    distribution: Distribution

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, values: Any) -> Any:
        # A tuple in group data is as good as a list.
        if isinstance(values, dict):
            return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
        return values


# What an inventory says of a host: how others reach it, where SSH does not tell.
HOST_NAMES = ("address",)

# Words that belong to one run (`--data only=docker`), not to a site; True: yes or no.
RUN_OPTIONS: Mapping[str, bool] = {
    "only": False,
    "restart_serving": True,
    "checkpoints": True,
    "rollback": True,
    "retry": True,
    "keep_failed": True,
    "plan": True,
    "hashes": True,
    "measure_links": True,
}

# Passwords as pyinfra would take them. One for sudo has better ways in; those for SSH may stand in a site's
# own inventory, but arguments are read by every user of the controller.
SECRETS = {
    "_sudo_password": "take it out; set SPARKSTACK_SUDO_PASSWORD, or type it on the terminal",
    "ssh_password": "take it out; use a key or an SSH agent",
    "ssh_key_password": "take it out; use an SSH agent",
}


def problems(
    data: Mapping[str, Any], homes: Mapping[str, str] | None = None, known: Iterable[str] = ()
) -> list[Problem]:
    """What is wrong with a host's data.

    `homes` says for a name where it was set ("group_data/lab.py"); `known` are names that are pyinfra's own.
    """
    homes = homes or {}
    ours = {key: value for key, value in data.items() if key in Knobs.model_fields}
    candidates = [*Knobs.model_fields, *HOST_NAMES, *RUN_OPTIONS, *known]
    found = []
    for key in sorted(SECRETS.keys() & data.keys()):
        if data[key] not in (None, "") and (key == "_sudo_password" or homes.get(key) == "--data"):
            # Never the value: this line is shown, and kept in reports.
            wanted = "no password in a file or an argument"
            found.append(Problem(_where(homes, key), key, wanted, SECRETS[key]))
    for key in data:
        if key not in candidates:
            near = next(iter(get_close_matches(key, candidates, 1)), None)
            remedy = f"did you mean {near!r}?" if near else "the knobs are in group_data/all.py"
            found.append(
                Problem(_where(homes, key), f"unknown name {key!r}", "a knob of group_data/all.py", remedy)
            )
    for key, is_switch in RUN_OPTIONS.items():
        if is_switch and key in data and _switch(data[key]) is None:
            found.append(
                Problem(_where(homes, key), f"{key} = {data[key]!r}", "yes or no", f"--data {key}=yes")
            )
    try:
        Knobs.model_validate(ours)
    except ValidationError as error:
        told: set[str] = set()
        for detail in error.errors():
            key = str(detail["loc"][0]) if detail["loc"] else "?"
            if key in told:  # each branch of "a list or None" complains by itself
                continue
            told.add(key)
            found.append(_problem(dict(detail), key, homes))
    return found


def switched_on(data: Any, name: str) -> bool:
    """True where an option of the run was said to be yes; False where it was not given."""
    return bool(_switch(data.get(name, False)))


def _switch(value: Any) -> bool | None:
    words = {"yes": True, "no": False, "on": True, "off": False, "true": True, "false": False}
    return value if isinstance(value, bool) else words.get(str(value).lower())


def _problem(detail: dict[str, Any], key: str, homes: Mapping[str, str]) -> Problem:
    inner = [str(part) for part in detail["loc"] if not _is_branch(part)]
    name = ".".join(inner)
    if detail["type"] == "missing":
        return Problem(_where(homes, key), f"no {name!r}", "a value", "copy its line from group_data/all.py")
    if detail["type"] == "extra_forbidden":
        models: dict[str, type[Strict]] = {
            "fabric": Fabric,
            "source_build": SourceBuild,
            "link_wanted": LinkWanted,
            "watchdog": Watchdog,
        }
        known = list(models.get(key, Installer).model_fields)
        near = next(iter(get_close_matches(inner[-1], known, 1)), None)
        remedy = f"did you mean {near!r}?" if near else "remove it"
        return Problem(_where(homes, key), f"unknown name {name!r}", f"one of: {', '.join(known)}", remedy)
    context = detail.get("ctx", {})
    if detail["type"] == "refusal":
        wanted = str(context["wanted"])
    elif detail["type"] == "too_short":
        wanted = "at least one"
    elif detail["type"] == "string_pattern_mismatch":
        wanted = f"text that matches {context['pattern']}"
    else:
        plain = detail["msg"].removeprefix("Input should be ")
        wanted = _WORDS.get(plain, plain)
    value = detail["input"]
    # A URL may hold a password or a key.
    if wanted.startswith("a URL ") or "://" in str(value):
        text = repr(shown_url(value)) if isinstance(value, str) else shown_url(repr(value))
    else:
        text = repr(value)
    found = f"{name} = {text if len(text) <= 60 else text[:57] + '…'} ({_kind(value)})"
    return Problem(_where(homes, key), found, wanted, "see its line in group_data/all.py")


# pydantic's words for what the declaration's language calls otherwise.
_WORDS = {
    "a valid boolean": "True or False",
    "a valid string": "text",
    "a valid list": "a list",
    "a valid integer": "a whole number",
    "a valid dictionary": "a dictionary",
}


def _is_branch(part: Any) -> bool:
    # pydantic names the branches of a union and the validators on the way; they are not names of ours.
    return isinstance(part, str) and (part.endswith(("]", ")")) or part in ("none", "str", "int"))


def _kind(value: Any) -> str:
    names = {bool: "yes or no", str: "text", int: "a number", float: "a number", list: "a list"}
    return {**names, dict: "a dictionary", type(None): "nothing"}.get(type(value), type(value).__name__)


def _where(homes: Mapping[str, str], key: str) -> str:
    return homes.get(key, "group_data")
