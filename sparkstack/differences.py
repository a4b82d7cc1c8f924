"""How what was found differs from what is declared, in words of a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def of_file(found: Mapping[str, str] | None, wanted: Mapping[str, str]) -> tuple[str, str]:
    """(found, wanted) of a file's {"sha256", "mode", "owner"}; None is for a file that is not there."""
    if found is None:
        return "no file", "the declared one"
    names = {"sha256": "content", "mode": "mode", "owner": "owner"}
    keys = [key for key in names if found[key] != wanted[key]]

    def said(state: Mapping[str, str]) -> str:
        return ", ".join(f"{names[key]} {state[key][:12] if key == 'sha256' else state[key]}" for key in keys)

    return said(found), said(wanted)


def of_settings(text: str | None, wanted: Mapping[str, Any]) -> tuple[str, str]:
    """(found, wanted) of the declared keys that a JSON file does not have as they are declared."""
    if text is None:
        return "no file", "the declared settings"
    found = json.loads(text) if text.strip() else {}
    keys = [key for key, value in wanted.items() if found.get(key) != value]
    return (
        ", ".join(f"{key} {json.dumps(found[key]) if key in found else 'not set'}" for key in keys),
        ", ".join(f"{key} {json.dumps(wanted[key])}" for key in keys),
    )
