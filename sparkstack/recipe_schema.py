"""JSON Schemas of the three formats, for editors: `docs/recipe.schema.json` and two of the community's.

`sparkstack recipe schema --write docs` makes the files anew; a test says when they are stale.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from sparkstack.community import RecipeV1, RecipeV2
from sparkstack.native import Recipe
from sparkstack.schema import Strict
from sparkstack.transforms import Transform

FILES: dict[str, tuple[str, type[BaseModel]]] = {
    "3": ("recipe.schema.json", Recipe),
    "1": ("recipe-v1.schema.json", RecipeV1),
    "2": ("recipe-v2.schema.json", RecipeV2),
}


def schema(version: str) -> str:
    """The JSON Schema of a format ("1", "2" or "3") as the text of its file."""
    name, model = FILES[version]
    value = model.model_json_schema()
    if model is Recipe:
        _as_written(value)
    value = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name, **value}
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _as_written(value: dict[str, Any]) -> None:
    """A recipe writes a transform as `{reshard: {…}}`, pydantic sees `{name: reshard, …}`; and of what is
    expected there are short forms."""
    expect = value["$defs"]["Expect"]["properties"]
    expect["categories"]["additionalProperties"] = {
        "anyOf": [{"$ref": "#/$defs/Bound"}, {"$ref": "#/$defs/Figures"}]
    }
    expect["quality"]["additionalProperties"] = {
        "anyOf": [{"enum": ["pass", "ignore", False]}, {"$ref": "#/$defs/Score"}]
    }
    forms = []
    for model in _transforms():
        inner = value["$defs"][model.__name__]
        name = inner["properties"].pop("name")["const"]
        forms.append(
            {
                "type": "object",
                "properties": {name: {"$ref": f"#/$defs/{model.__name__}"}},
                "required": [name],
                "additionalProperties": False,
            }
        )
    value["$defs"]["Checkpoint"]["properties"]["transforms"]["items"] = {"anyOf": forms}


def _transforms() -> list[type[Strict]]:
    union = Transform.__origin__  # type: ignore[attr-defined]
    return list(union.__args__)
