"""From pydantic's errors to our problems: file and line, what was found, what is wanted, what to do."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from sparkstack.errors import Problem
from sparkstack.yamlfile import Document, Loc


class Strict(BaseModel):
    """The base of all declared models: no unknown keys, no silent conversions, no changes afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Loose(BaseModel):
    """The base of models of foreign formats: what they do not know is kept, and told by `check`."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


def refusal(wanted: str, remedy: str = "", inside: Loc = (), found: Any = None) -> PydanticCustomError:
    """What a validator raises to say in our words what it wants. `inside` is where in the value that it got
    the mistake is, and `found` what is there; () for the value itself."""
    # Braces would be taken for placeholders in the template, so the words travel in the context.
    context = {"wanted": wanted, "remedy": remedy, "inside": inside, "found": found}
    return PydanticCustomError("refusal", "{wanted}", context)


def at_fault(detail: ErrorDetails) -> tuple[Loc, Any]:
    """Where a mistake is, down to the item of a value that a validator of ours refused, and what is there."""
    # "[key]" is pydantic's mark for "the key itself, not its value".
    loc: Loc = tuple(part for part in detail["loc"] if part != "[key]")
    if inside := detail.get("ctx", {}).get("inside"):
        return (*loc, *inside), detail["ctx"]["found"]
    return loc, detail["input"]


def matching(pattern: str, wanted: str) -> AfterValidator:
    """A validator of texts that match a pattern as a whole."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise refusal(wanted)
        return text

    return AfterValidator(check)


def problems(error: ValidationError, document: Document, model: type[BaseModel]) -> list[Problem]:
    """One problem for each thing that is wrong in `document`, in the order of the file's lines."""
    result: list[tuple[int, Problem]] = []
    details = error.errors()
    # A mistyped key is unknown and also leaves its right name missing: one mistake, one line.
    mistyped = {
        (*at_fault(detail)[0][:-1], _nearest(model, at_fault(detail)[0]))
        for detail in details
        if detail["type"] == "extra_forbidden"
    }
    for detail in details:
        loc, found = at_fault(detail)
        if detail["type"] == "missing" and loc in mistyped:
            continue
        where = document.where(loc)
        result.append((int(where.rpartition(":")[2]), _problem(detail, loc, found, where, model)))
    return [problem for _, problem in sorted(result, key=lambda pair: pair[0])]


def _problem(detail: ErrorDetails, loc: Loc, value: Any, where: str, model: type[BaseModel]) -> Problem:
    key = dotted(loc)
    parent = dotted(loc[:-1]) or "the recipe"
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known(model, loc[:-1])
        near = _nearest(model, loc)
        wanted = f"one of: {', '.join(known)}" if known else "no keys here"
        remedy = f"did you mean {near!r}?" if near else f"remove it from {parent}"
        return Problem(where, f"unknown key {key!r}", wanted, remedy)
    if kind == "missing":
        return Problem(where, f"no {key!r}", "a value", f"add {loc[-1]!r} to {parent}")
    if kind == "union_tag_invalid":
        tag = str(context.get("tag"))
        known = [word.strip(" '") for word in str(context.get("expected_tags")).split(",")]
        near = next(iter(get_close_matches(tag, known, 1)), "")
        remedy = f"did you mean {near!r}?" if near else "use one of these"
        return Problem(where, f"{key} = {tag!r}", f"one of: {', '.join(known)}", remedy)
    found = f"{key} = {_short(value)}"
    if kind == "refusal":
        return Problem(where, found, str(context["wanted"]), str(context["remedy"]))
    wanted = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if "valid dictionary" in wanted:
        wanted = "keys with values"
    remedy = ""
    if kind == "string_type" and isinstance(detail["input"], (int, float)):
        remedy = "put it in quotes"
    elif kind in ("int_type", "float_type") and re.fullmatch(r"[-\d.]+", str(detail["input"])):
        remedy = "write it without quotes"
    return Problem(where, found, wanted, remedy)


def dotted(loc: Loc) -> str:
    """`serve.options.x[1]`"""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _nearest(model: type[BaseModel], loc: Loc) -> str:
    known = _known(model, loc[:-1])
    return next(iter(get_close_matches(str(loc[-1]), known, 1)), "")


def _known(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys that may stand at `loc`, by walking the annotations; [] where any may, or none."""
    here: Any = model
    for part in loc:
        here = _inside(here, part)
    # `name` of a transform is what it is told by, not a key that people write.
    hidden = {"name"} if loc[-2:-1] and isinstance(loc[-2], int) else set()
    return [key for key in here.model_fields if key not in hidden] if _is_model(here) else []


def _inside(annotation: Any, part: str | int) -> Any:
    if _is_model(annotation):
        field = annotation.model_fields.get(str(part))
        return _bare(field.annotation) if field else None
    if get_origin(annotation) is list:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) is dict:
        return _bare(get_args(annotation)[1])
    # What is left is a union whose members are told apart by their literal `name`.
    for member in get_args(annotation):
        if _is_model(member) and "name" in member.model_fields:
            tag = member.model_fields["name"].annotation
            if get_origin(tag) is Literal and part in get_args(tag):
                return member
    return None


def _bare(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    members = [member for member in get_args(annotation) if member is not type(None)]
    if get_origin(annotation) not in (list, dict) and len(members) == 1:
        return _bare(members[0])  # X | None
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
