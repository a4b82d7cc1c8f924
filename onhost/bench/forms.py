"""Answers that programs read: JSON of an asked form, and calls of a tool."""

from __future__ import annotations

import json
import re
from typing import Any

from onhost.bench.client import Refused
from onhost.bench.plain import Reply
from onhost.bench.quality import Asked, Result, scored

JSON_TASKS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "Give one invented person as a JSON object with the keys name (string), age (integer) and languages "
        "(array of strings). Answer with the JSON alone.",
        {"name": str, "age": int, "languages": [str]},
    ),
    (
        "Give a JSON object with the keys city (string), population (integer) and coastal (boolean) for "
        "Lisbon. Answer with the JSON alone.",
        {"city": str, "population": int, "coastal": bool},
    ),
    (
        'Give a JSON object with one key, "steps", an array of three objects with the keys number (integer) '
        "and text (string), that says how to make tea. Answer with the JSON alone.",
        {"steps": [{"number": int, "text": str}]},
    ),
)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city now",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}
TOOL_TASK = "What is the weather in Oslo now, in celsius? Use the tool."


async def json_schema(asked: Asked) -> Result:
    prompts = [prompt for prompt, _ in JSON_TASKS]
    replies = await asked.all(prompts, 300)
    faults = [
        "no answer" if isinstance(reply, str) else json_fault(reply.text, shape)
        for reply, (_, shape) in zip(replies, JSON_TASKS, strict=True)
    ]
    right = [fault is None for fault in faults]
    wrong = next((fault for fault in faults if fault), "")
    return scored("json", replies, right, "JSON of the asked form", wrong)


def json_fault(text: str, shape: Any) -> str | None:
    """Why a text is not JSON of this shape; a fence around it is allowed."""
    fenced = re.search(r"```(?:json)?\s*(.*?)```", text, re.DOTALL)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except ValueError as error:
        return f"no JSON ({error}): {text.strip()[:60]!r}"
    return _unlike(value, shape, "the value")


def _unlike(value: Any, shape: Any, where: str) -> str | None:
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where} is no object"
        if missing := sorted(shape.keys() - value.keys()):
            return f"{where} has no {missing[0]}"
        faults = (_unlike(value[key], inner, key) for key, inner in shape.items())
    elif isinstance(shape, list):
        if not isinstance(value, list) or not value:
            return f"{where} is no array with something in it"
        faults = (_unlike(one, shape[0], where) for one in value)
    else:
        good = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
        return None if good else f"{where} is no {shape.__name__}"
    return next((fault for fault in faults if fault), None)


async def tool(asked: Asked) -> Result:
    wanted = "a call of get_weather with city and unit"
    if asked.asker.target.endpoint != "chat":
        return Result("tool", "not checked", "the profile's endpoint is not chat", wanted)
    try:
        replies = await asked.all([TOOL_TASK], 200, tools=[TOOL], tool_choice="auto")
    except Refused as error:
        # vLLM without --enable-auto-tool-choice says so; it serves no tools, which is a choice.
        return Result("tool", "not checked", f"the server takes no tools ({error.words})", wanted)
    fault = None if isinstance(replies[0], str) else tool_fault(replies[0])
    right = [isinstance(replies[0], Reply) and fault is None]
    return scored("tool", replies, right, wanted, fault or "")


def tool_fault(reply: Reply) -> str | None:
    if not reply.tools:
        return f"no call, but {reply.text.strip()[:80]!r}"
    try:
        function = reply.tools[0]["function"]
        name, arguments = function["name"], json.loads(function["arguments"])
    except (TypeError, KeyError, ValueError):
        return f"a call that does not parse: {str(reply.tools[0])[:80]}"
    if name != "get_weather":
        return f"a call of {name!r}"
    if not isinstance(arguments, dict) or "oslo" not in str(arguments.get("city")).lower():
        return f"a call with the arguments {arguments}"
    return None if arguments.get("unit") == "celsius" else f"a call with the arguments {arguments}"
