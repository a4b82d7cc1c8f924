"""`sparkstack recipe check`: everything that can be said about a recipe's file without a host, in one go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkstack import (
    check_options,
    command_endpoint,
    conversion,
    description,
    memory,
    rules,
    schema,
    yamlfile,
)
from sparkstack.check_options import counted
from sparkstack.description import Launch
from sparkstack.errors import Problem, SparkstackError
from sparkstack.expectation import CATEGORIES, QUALITY
from sparkstack.findings import Finding, error, in_order, unsupported, warning
from sparkstack.flags import ALIASES, canonical
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
            return f"{self.path}: {counted(self.errors, 'error')}"
        assert self.launch is not None
        serves = f"serves {self.launch.served_name}"
        if self.refused:
            pins, others = self.pins, self.refused - self.pins
            parts = [counted(pins, "pin")] if pins else []
            parts += [f"{counted(others, 'thing')} that we cannot do"] if others else []
            missing = " and ".join(parts)
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
        *check_options.options(launch),
        *memory.fits(launch, nodes),
        *_secrets(launch, document),
        *rules.apply(launch),
    ]


def _secrets(launch: Launch, document: Document) -> list[Finding]:
    if launch.format == NATIVE_VERSION and launch.recipe is not None:
        return [error("secret", document.where(loc), *words) for loc, *words in secrets_at(launch.recipe)]
    inside = [] if launch.recipe is None else secrets_at(launch.recipe)
    return [
        *(error("secret", launch.where("env"), *words) for loc, *words in inside if loc[1] != "options"),
        *(
            error("secret", launch.where(f"options.{name}"), f"{shown} among the options",
                  "no secrets in a recipe", "remove it; arguments can be read by every user of a host")
            for shown, name in secret_options(launch.options).items()
        ),
    ]  # fmt: skip
