"""Typed access to a job's plan, so that a wrong plan ends in a line that names the key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST = 10**9
"""The largest number that a plan may name: that many seconds a clock can still wait."""
SHOWN = 200  # characters of a wrong value


class JobError(Exception):
    """An end that a user can act on: one line of the form "found …; wanted …; remedy"."""


class Plan:
    """One JSON object of a plan; `where` is its dotted place, for messages."""

    def __init__(self, data: Mapping[str, Any], where: str = "") -> None:
        self.data = dict(data)
        self.where = where

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in a file; JobError where it is absent, cannot be read or is no JSON object."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise JobError(f"found no plan at {path}; wanted a JSON file; run the deploy again") from None
        except OSError as error:
            raise JobError(
                f"found a plan at {path} that cannot be read ({error.strerror}); wanted a JSON file; "
                "run the deploy again"
            ) from None
        except (ValueError, RecursionError) as error:
            raise JobError(
                f"found a plan at {path} that is not JSON ({error}); wanted an object; run the deploy again"
            ) from None
        if not isinstance(data, dict):
            raise JobError(f"found {type(data).__name__} in {path}; wanted an object; run the deploy again")
        return cls(data)

    def _bad(self, key: str, wanted: str) -> JobError:
        name = f"{self.where}{key}"
        found = f"{self.data[key]!r}" if key in self.data else "nothing"
        found = found if len(found) <= SHOWN else f"{found[:SHOWN]}…"
        return JobError(f"found {found} for the plan's key {name}; wanted {wanted}; correct the plan's maker")

    def text(self, key: str) -> str:
        """A string that is not empty."""
        value = self.data.get(key)
        if not isinstance(value, str) or not value:
            raise self._bad(key, "a string")
        return value

    def maybe_text(self, key: str) -> str | None:
        """A string, or None where the key is absent, null or empty."""
        value = self.data.get(key)
        if value is None or value == "":
            return None
        return self.text(key)

    def path(self, key: str) -> Path:
        """An absolute path."""
        value = Path(self.text(key))
        if not value.is_absolute():
            raise self._bad(key, "an absolute path")
        return value

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number, at least `least`."""
        value = self.data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._bad(key, f"a whole number of at least {least}")
        return value

    def truth(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise self._bad(key, "true or false")
        return value

    def number(self, key: str, default: float) -> float:
        """A number above zero, and at most MOST."""
        value = self.data.get(key, default)
        # NaN is in no range.
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MOST:
            raise self._bad(key, f"a number above zero, at most {MOST}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise self._bad(key, "true or false")
        return value

    def sub(self, key: str) -> Plan:
        """An object within."""
        value = self.data.get(key)
        if not isinstance(value, dict):
            raise self._bad(key, "an object")
        return Plan(value, f"{self.where}{key}.")

    def subs(self, key: str) -> list[Plan]:
        """A list of objects; an absent key is an empty list."""
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._bad(key, "a list of objects")
        return [Plan(item, f"{self.where}{key}[{at}].") for at, item in enumerate(value)]

    def texts(self, key: str) -> list[str] | None:
        """A list of strings, or None where the key is absent or null."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._bad(key, "a list of strings")
        return list(value)

    def secret(self, key: str) -> str | None:
        """The content of the file that the key names; None where the key is null. Never part of a message."""
        name = self.maybe_text(key)
        return None if name is None else read_secret(Path(name))


def read_secret(path: Path) -> str:
    """The one line of a secret file; JobError where it is absent, empty, or what no header can hold (the
    content is never shown: an HTTP client's own words about such a header would show it)."""
    try:
        value = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise JobError(
            f"found no readable secret at {path} ({error.strerror}); wanted a file with one line; run the "
            "deploy again"
        ) from None
    except UnicodeDecodeError:
        value = "\n"
    if value and not re.fullmatch(r"[\x21-\x7e]+", value):
        raise JobError(
            f"found no secret of one line at {path}; wanted printable ASCII without blanks; correct the file"
        )
    if not value:
        raise JobError(f"found an empty secret at {path}; wanted one line; set it and run the deploy again")
    return value
