"""`sparkstack recipe check`: everything that can be said about a recipe's file without a host, in one go."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkstack import (
    command_endpoint,
    conversion,
    description,
    memory,
    parallel_sizes,
    rules,
    schema,
    vllm_options,
    yamlfile,
)
from sparkstack.description import Launch
from sparkstack.errors import Problem, SparkstackError
from sparkstack.expectation import CATEGORIES, QUALITY
from sparkstack.findings import Finding, error, in_order, unsupported, warning
from sparkstack.flags import ALIASES, canonical, is_placeholder
from sparkstack.native import (
    PLUGIN_FEATURES,
    PLUGIN_KNOBS,
    Recipe,
    contradictions,
    missing_pins,
    not_made,
    plugin_switch,
    secret_options,
    secrets_at,
)
from sparkstack.recipe import FORMATS, NATIVE_VERSION, detect_format, not_a_recipe
from sparkstack.recipe_fields import NOT_HTTP
from sparkstack.yamlfile import Document


@dataclass
class Checked:
    """What came of a file. `skipped` says what it is instead of a recipe; `launch` is None when it could not
    be read as one."""

    path: Path
    findings: list[Finding] = field(default_factory=list)
    skipped: str | None = None
    launch: Launch | None = None

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)

    @property
    def refused(self) -> int:
        """How many findings each keep it from being deployed."""
        return sum(finding.refused for finding in self.findings)

    @property
    def pins(self) -> int:
        """How many of those are pins that are missing."""
        return sum(finding.code == "unpinned" for finding in self.findings)

    def verdict(self) -> str:
        """One line: what the file is good for."""
        if self.skipped:
            return f"{self.path}: skipped ({self.skipped})"
        if self.errors:
            return f"{self.path}: {_count(self.errors, 'error')}"
        assert self.launch is not None
        serves = f"serves {self.launch.served_name}"
        if self.refused:
            pins, others = self.pins, self.refused - self.pins
            parts = [pins and _count(pins, "pin"), others and f"{_count(others, 'thing')} that we cannot do"]
            missing = " and ".join(str(part) for part in parts if part)
            return f"{self.path}: no errors; deploy refuses it for {missing} ({serves})"
        return f"{self.path}: ok ({serves})"


def check(path: Path, nodes: int | None = None, overrides: Mapping[str, Any] | None = None) -> Checked:
    """All findings of the file at `path`. Nothing is raised for what the file holds."""
    result = Checked(path)
    if not path.exists():
        found, remedy = "no such file or directory", "check the path"
        result.findings = [error("file", str(path), found, "a readable YAML file", remedy)]
        return result
    result.skipped = not_a_recipe(path)
    if result.skipped:
        return result
    try:
        document = yamlfile.read(path)
    except SparkstackError as mistake:
        result.findings = [Finding(problem, "error", "file") for problem in mistake.problems]
        return result
    result.skipped = not_a_recipe(path, document.value)
    if result.skipped:
        return result
    version = detect_format(document.value)
    if version not in FORMATS:
        where = document.where(("recipe_version",))
        found = f"recipe format {version!r}"
        result.findings = [error("format", where, found, '"1", "2" or "3" (ours)', "correct it")]
        return result
    if version == NATIVE_VERSION:
        result.launch = _native(document, result.findings)
    else:
        converted = conversion.convert(document, version, nodes, overrides)
        result.findings, result.launch = converted.findings, converted.launch
        if result.launch is not None:
            result.findings += _foreign_pins(result.launch)
    if result.launch is not None:
        result.findings += _about(result.launch, document, nodes)
    result.findings = in_order(result.findings)
    return result


def _native(document: Document, findings: list[Finding]) -> Launch | None:
    try:
        recipe = Recipe.model_validate(document.value)
    except ValidationError as first:
        for problem in schema.problems(first, document, Recipe):
            code = "unknown-key" if problem.found.startswith("unknown key") else "type"
            findings.append(Finding(problem, "error", code))
        # What is wrong is told; what is right beside it is still looked at.
        kept = _filled(_without(document.value, first))
        try:
            recipe = Recipe.model_validate(kept)
        except ValidationError:
            return None
    findings += [Finding(problem, "error", "contradiction") for problem in contradictions(recipe, document)]
    for loc, found, wanted, remedy in missing_pins(recipe):
        findings.append(_blocking("unpinned", document.where(loc), found, wanted, remedy))
    for loc, found, wanted, remedy in not_made(recipe):
        findings.append(unsupported("not-made", document.where(loc), found, wanted, remedy))
    findings += _plugin_variables(recipe, document)
    twice = rules.spelled_twice(recipe.serve.options)
    for first_name, again in twice:
        where = document.where(("serve", "options", again))
        found = f"serve.options.{again}, which is {first_name} again"
        findings.append(error("twice", where, found, "each flag once", "remove one"))
    if recipe.serve.engine == "vllm":
        for name in [name for name in recipe.serve.options if all(name not in pair for pair in twice)]:
            if name in ALIASES:  # beside the long form, which we write, it would stand there twice
                where = document.where(("serve", "options", name))
                wanted, remedy = canonical(name), "write its long name"
                findings.append(error("option", where, f"serve.options.{name}", wanted, remedy))
            if name.startswith("no_") and recipe.serve.options[name] is False:
                where = document.where(("serve", "options", name))
                found, wanted = f"serve.options.{name}: false", f"{name.removeprefix('no_')}: true"
                findings.append(error("option", where, found, wanted, "no option is denied twice"))
    for key, names, known in (
        ("categories", recipe.expect.categories, CATEGORIES),
        ("quality", recipe.expect.quality, QUALITY),
    ):
        for name in names:
            if name not in known:
                where = document.where(("expect", key, name))
                near = get_close_matches(name, known, 1)
                remedy = f"did you mean {near[0]!r}?" if near else "nothing measures it"
                found, wanted = f"expect.{key}.{name}", f"one of: {', '.join(known)}"
                findings.append(warning("not-measured", where, found, wanted, remedy))
    for name, score in recipe.expect.quality.items():
        if any(limit > 1 for limit in (score.min, score.value) if limit is not None):
            where = document.where(("expect", "quality", name))
            found, wanted = f"expect.quality.{name} above 1", "a share from 0 to 1"
            findings.append(warning("score", where, found, wanted, "97 of 100 is 0.97"))
    findings += command_endpoint.findings(recipe, document)
    return description.of_native(recipe, document)


def _blocking(code: str, where: str, found: str, wanted: str, remedy: str) -> Finding:
    return Finding(Problem(where, found, wanted, remedy), "warning", code, blocks=True)


def _without(value: Any, mistake: ValidationError) -> Any:
    """A copy of a file's value without the places that a validation complained about."""
    wrong = [
        tuple(part for part in detail["loc"] if part != "[key]")
        for detail in mistake.errors()
        if detail["type"] != "missing"
    ]

    def copy(here: Any, loc: tuple[str | int, ...]) -> Any:
        if isinstance(here, dict):
            return {key: copy(item, (*loc, key)) for key, item in here.items() if (*loc, key) not in wrong}
        if isinstance(here, list):
            # A transform's name stands in its place in pydantic's path, so whole items go.
            return [
                copy(item, (*loc, at))
                for at, item in enumerate(here)
                if not any(place[: len(loc) + 1] == (*loc, at) for place in wrong)
            ]
        return here

    return copy(value, ())


def _filled(value: Any) -> Any:
    """A file's value with stand-ins for what every recipe has, none of which is complained about again."""

    def under(skeleton: dict[str, Any], here: Any) -> Any:
        if not isinstance(here, dict):
            return here
        result = dict(here)
        for key, stand_in in skeleton.items():
            there = result.get(key)
            result[key] = (
                under(stand_in, {} if there is None else there)
                if isinstance(stand_in, dict)
                else (stand_in if there is None else there)
            )
        return result

    return under(_SKELETON, value)


_SKELETON: dict[str, Any] = {
    "name": "x",
    "model": "x/x",
    "checkpoint": {"source": {"repo": "x/x", "revision": "0" * 40}},
    "image": {"base": conversion.NO_IMAGE},
    "serve": {},
    "budget": {"memory_gib": 1, "disk_gib": 1},
}


def _plugin_variables(recipe: Recipe, document: Document) -> list[Finding]:
    switches = {plugin_switch(feature) for feature in PLUGIN_FEATURES | recipe.image.plugin.keys()}
    known = switches | PLUGIN_KNOBS
    result = []
    for name in recipe.serve.env:
        if name.startswith("SPARKSTACK_") and name not in known:
            near = get_close_matches(name, known, 1)
            remedy = f"did you mean {near[0]!r}?" if near else "remove it"
            where = document.where(("serve", "env", name))
            found = f"serve.env.{name}, which our plugin does not read"
            result.append(error("env", where, found, f"one of: {', '.join(sorted(known))}", remedy))
    return result


def _foreign_pins(launch: Launch) -> list[Finding]:
    """As `missing_pins`, in the words of the community's formats."""
    result = []
    if not launch.model:
        where = found = remedy = ""  # told as missing
    elif launch.revision is None:
        where, found = launch.where("model"), f"no pinned revision of {launch.model}"
        remedy = "add model_revision" if launch.format == "2" else "take a native recipe, which can pin it"
    elif not re.fullmatch(r"[0-9a-f]{40}", launch.revision):
        where, found = launch.where("revision"), f"model_revision {launch.revision!r}"
        remedy = "pin the commit; branches and tags move"
    else:
        where = found = remedy = ""
    tail = "; deploy refuses the recipe until then"
    if found:
        result.append(_blocking("unpinned", where, found, "a commit (40 hex digits)", remedy + tail))
    if launch.image and not re.search(r"@sha256:[0-9a-f]{64}$", launch.image):
        remedy = "add the digest that you have checked, here or in image_bases of group_data"
        found = f"image {launch.image} without a digest"
        result.append(_blocking("unpinned", launch.where("image"), found, "NAME@sha256:…", remedy + tail))
    return result


def refusals(path: Path, nodes: int) -> list[Problem]:
    """Why a recipe that can be read is not deployed on `nodes` hosts: its errors, and the rules that block.

    Without what a run looks at by itself, knowing more: pins (a site may have them), secrets, and what is
    not made.
    """
    result = []
    for finding in check(path, nodes).findings:
        if finding.refused and finding.code not in ("unpinned", "secret", "not-made"):
            why = f" ({finding.reason}; source: {finding.source})" if finding.reason else ""
            result.append(replace(finding.problem, remedy=f"{finding.problem.remedy}{why}"))
    return result


def _about(launch: Launch, document: Document, nodes: int | None) -> list[Finding]:
    return [
        *_mistyped(launch),
        *_json_options(launch),
        *_json_lists(launch),
        *_not_http(launch),
        *_parallel(launch),
        *memory.fits(launch, nodes),
        *_secrets(launch, document),
        *rules.apply(launch),
    ]


def _mistyped(launch: Launch) -> list[Finding]:
    """Options that are nearly one of vLLM's. A warning: another version may have them."""
    return [
        warning("option", launch.where(f"options.{name}"), f"option {name}", near, f"did you mean {near!r}?")
        for name in launch.options
        if launch.is_vllm and (near := vllm_options.meant(name))
    ]


def _not_http(launch: Launch) -> list[Finding]:
    """Of the community's recipes: what a native one is told as a contradiction."""
    return [
        error("endpoint", launch.where(f"options.{name}"), name, f"it only from {home}", "remove the option")
        for name, home in NOT_HTTP.items()
        if launch.format != NATIVE_VERSION and name in launch.options
    ]


# Not a chat template, which begins with {% or {{.
_OBJECT = re.compile(r"""\s*\{\s*["'}]""")


def _json_options(launch: Launch) -> list[Finding]:
    """Options of vLLM that take a JSON object, and texts of any engine's that begin as one: what else is in
    them is told by no engine before minutes of loading."""
    result = []
    for name, value in launch.options.items():
        an_object = launch.is_vllm and name in vllm_options.JSON_OBJECTS
        if isinstance(value, list) and not an_object:
            result += _json_items(launch, name, value)
            continue
        if not (an_object or (isinstance(value, str) and _OBJECT.match(value))):
            continue
        if value is None or (isinstance(value, str) and is_placeholder(value)):
            continue  # nothing, or told as a name without a value
        if isinstance(value, dict) or (name == "compilation_config" and type(value) is int):
            continue
        if launch.command and isinstance(value, str) and value.startswith("{"):
            continue  # told where the command was read
        problem = _not_json(value, an_object)
        if problem is not None:
            where, remedy = launch.where(f"options.{name}"), "write its keys below it, or one line of JSON"
            result.append(error("json", where, f"{name} = {problem}", "a JSON object", remedy))
    return result


def _json_items(launch: Launch, name: str, values: list[Any]) -> list[Finding]:
    """The same for each of several values, as `lora_modules` has them."""
    result = []
    for at, value in enumerate(values):
        if isinstance(value, str) and _OBJECT.match(value) and (problem := _not_json(value, False)):
            remedy = "write its keys below it, or one line of JSON"
            where = launch.where(f"options.{name}")
            result.append(error("json", where, f"{name}[{at}] = {problem}", "a JSON object", remedy))
    return result


def _json_lists(launch: Launch) -> list[Finding]:
    """Options of vLLM that take a JSON list of texts, as a list or as text."""
    result = []
    for name in [name for name in launch.options if name in vllm_options.JSON_LISTS and launch.is_vllm]:
        value = launch.options[name]
        if value is None or (isinstance(value, str) and is_placeholder(value)) or _texts(value):
            continue
        if launch.command and isinstance(value, str) and value.startswith("{"):
            continue  # told where the command was read
        problem = _not_json(value, False) if isinstance(value, str) else _shown(value)
        if problem is None and not _texts(json.loads(value)):
            problem = _shown(value)
        if problem is not None:
            where, remedy = launch.where(f"options.{name}"), "write a list, or one line of JSON"
            result.append(error("json", where, f"{name} = {problem}", "a JSON list of texts", remedy))
    return result


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "…"


def _not_json(value: Any, an_object: bool) -> str | None:
    """What a value is, where it is no JSON (object); None where it is."""
    shown = _shown(value)
    if not isinstance(value, str):
        return shown
    try:
        read = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as mistake:
        return f"{shown} ({str(mistake).lower()})"
    return None if isinstance(read, dict) or not an_object else shown


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _sizes(launch: Launch) -> list[Finding]:
    """Parallel sizes that are no counts: they would be taken for 1."""
    result = []
    for name in parallel_sizes.SIZES:
        value = launch.options.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            continue
        if isinstance(value, str) and is_placeholder(value):
            continue  # told as a name without a value
        where = launch.where(f"options.{name}")
        result.append(error("parallel", where, f"{name} {value!r}", "a number from 1", "correct it"))
    return result


def _parallel(launch: Launch) -> list[Finding]:
    """Parallel sizes against the numbers of hosts on which the recipe may run; one host is one GPU."""
    if result := _sizes(launch):
        return result
    size, others = launch.size("tensor_parallel_size"), launch.other_parallel
    low, high = launch.min_nodes, launch.max_nodes
    fixed = launch.recipe is None or "tensor_parallel_size" in launch.recipe.serve.options
    where = launch.where("options.tensor_parallel_size")
    limits = (
        _count(low, "host") if high == low else f"{low} to {high} hosts" if high else f"{low} or more hosts"
    )
    if launch.options.get("tensor_parallel_size") is not None and fixed:
        product = size * others
        if product < low or (high is not None and product > high):
            found = f"a recipe for {product} GPUs ({parallel_sizes.ALL_NAME}) on {limits}"
            remedy = "correct the size, or min_nodes and max_nodes"
            result.append(error("parallel", where, found, "one GPU a host", remedy))
        elif not low == high == product:
            found = f"tensor parallel size {size} written out on {limits}"
            remedy = "leave it out: it follows from the inventory"
            result.append(warning("parallel", where, found, f"exactly {_count(product, 'host')}", remedy))
    elif others > 1 and low % others and high == low:
        where = launch.where(f"options.{parallel_sizes.said(launch.options)}")
        found = f"{parallel_sizes.OTHERS_NAME} {others} on {limits}"
        result.append(error("parallel", where, found, f"a multiple of {others} hosts", "correct one"))
    if launch.recipe is None or launch.recipe.serve.engine != "vllm" or any(one.refused for one in result):
        return result
    # What a run gets: of a community recipe Ray and the open size are left out.
    options, world = launch.recipe.serve.options, low if high == low else max(low, 2)
    told = parallel_sizes.backends(options, launch.env, world)
    if high == low:
        told += parallel_sizes.decode_context(options, launch.metadata, world)
    for name, *words in told:
        result.append(error("parallel", launch.where(f"options.{name}"), *words))
    return result


def _secrets(launch: Launch, document: Document) -> list[Finding]:
    if launch.format == NATIVE_VERSION and launch.recipe is not None:
        return [error("secret", document.where(loc), *words) for loc, *words in secrets_at(launch.recipe)]
    inside = [] if launch.recipe is None else secrets_at(launch.recipe)
    return [
        *(error("secret", launch.where("env"), *words) for loc, *words in inside if loc[1] != "options"),
        *(
            error("secret", launch.where(f"options.{name}"), f"{name} among the options",
                  "no secrets in a recipe", "remove it; arguments can be read by every user of a host")
            for name in secret_options(launch.options)
        ),
    ]  # fmt: skip


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")
