"""The knobs of a site (`group_data/all.py`) as a schema: a wrong type or an unknown name is one line.

Defaults and what each knob means live in `group_data/all.py`; here is what a value may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from sparkstack.distribution import Distribution
from sparkstack.errors import Problem
from sparkstack.schema import Strict, refusal

SHA256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Written into sudoers, so it must be what useradd takes, and nothing else.
UserName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
Percent = Annotated[int, Field(ge=1, le=99)]


def _folder(path: str) -> str:
    # Paths go into units and scripts of several languages; none of them quotes like the next one.
    if not path.startswith("/") or path == "/" or any(not (c.isalnum() or c in "/._-+@") for c in path):
        raise refusal("an absolute path of letters, digits and / . _ - + @")
    return path.rstrip("/")


Folder = Annotated[str, AfterValidator(_folder)]


class Installer(Strict):
    """A conda installer: where it is, and the SHA-256 that it must have. None: not known."""

    url: str | None
    sha256: SHA256 | None


class SourceBuild(Strict):
    """vLLM built in a conda environment; see `runtime_install`."""

    repository: str
    ref: str
    python: str
    torch: list[str]
    torch_index: str
    cuda_arch: str
    jobs: Annotated[int, Field(ge=1)] | None


class Fabric(Strict):
    """How the fabric is cabled."""

    kind: str | None = None
    port: int = 0
    base: str | None = None


class Knobs(Strict):
    """Every knob; the names are those of `group_data/all.py`."""

    recipe: str
    user: UserName | None
    accelerator: Literal["gpu", "cpu"]
    accepted_systems: list[str]
    packages: list[str]
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
    held_packages: list[str]
    time_sync: bool
    journald_persistent: bool

    docker_mirrors: list[str] | None
    docker_settings: dict[str, Any]
    docker_log_options: dict[str, str] | None
    docker_cgroupfs: bool
    docker_nvidia_default: bool
    docker_data_root: Folder | None

    conda_url: str | None
    conda_sha256: SHA256 | None
    conda_installers: dict[str, Installer]
    pip_environment: dict[str, str]
    runtime_install: Literal["container", "source"]
    source_build: SourceBuild

    hub_endpoint: str | None
    hub_token_file: str | None
    image_bases: dict[str, str]

    fabric: Fabric
    management_interface: str
    serve_bind: str
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
    "hashes": True,
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
        models: dict[str, type[Strict]] = {"fabric": Fabric, "source_build": SourceBuild}
        known = list(models.get(key, Installer).model_fields)
        near = next(iter(get_close_matches(inner[-1], known, 1)), None)
        remedy = f"did you mean {near!r}?" if near else "remove it"
        return Problem(_where(homes, key), f"unknown name {name!r}", f"one of: {', '.join(known)}", remedy)
    text = repr(detail["input"])
    found = f"{name} = {text if len(text) <= 60 else text[:57] + '…'} ({_kind(detail['input'])})"
    context = detail.get("ctx", {})
    if detail["type"] == "refusal":
        wanted = str(context["wanted"])
    elif detail["type"] == "string_pattern_mismatch":
        wanted = f"text that matches {context['pattern']}"
    else:
        plain = detail["msg"].removeprefix("Input should be ")
        wanted = _WORDS.get(plain, plain)
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
