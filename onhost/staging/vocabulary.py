"""Which token ids a pruned draft vocabulary keeps: the most used ones, special and byte tokens always.

Without special tokens a draft can never end a turn; without byte tokens it cannot spell what is rare.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onhost.plan import JobError

TOKENIZER = "tokenizer.json"


def byte_letters() -> list[str]:
    """The 256 letters by which byte-level vocabularies write bytes: printable ones as they are, the others
    as the letters from 256 on, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (number for number in range(256) if number not in set(printable))
    return [chr(number) for number in printable] + [chr(256 + at) for at, _ in enumerate(others)]


def pinned(tokenizer: Any) -> set[int]:
    """The ids of added and byte tokens in a `tokenizer.json`; JobError where it does not say."""
    wanted = f"wanted a {TOKENIZER} with a vocabulary; fetch it, or set `pin_special: false` in the recipe"
    try:
        vocabulary = tokenizer["model"]["vocab"]
        added = {int(token["id"]) for token in tokenizer.get("added_tokens") or []}
        if isinstance(vocabulary, list):  # a unigram model: pairs of token and score
            vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
        for names in (byte_letters(), [f"<0x{number:02X}>" for number in range(256)]):
            if all(name in vocabulary for name in names):
                return added | {int(vocabulary[name]) for name in names}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise JobError(f"found a {TOKENIZER} of an unknown form; {wanted}") from None
    raise JobError(f"found no complete set of 256 byte tokens in {TOKENIZER}; {wanted}")


def read_counts(content: str, name: str, rows: int) -> list[int]:
    """Counts by id: a JSON list, or a number a line; JobError for anything else, or for too many."""
    try:
        listed = json.loads(content) if content.lstrip().startswith("[") else content.split()
        counts = [int(number) for number in listed]
    except (ValueError, TypeError):
        raise JobError(
            f"found {name} with something that is no whole number; wanted a JSON list or a count a line, "
            "in the order of the ids; correct the file"
        ) from None
    if len(counts) > rows or min(counts, default=0) < 0:
        found = f"{len(counts)} counts" if len(counts) > rows else "a count below zero"
        raise JobError(
            f"found {found} in {name}; wanted at most {rows}, one an id, none below zero; correct the file"
        )
    return counts


def chosen(rows: int, size: int, always: Iterable[int], counts: list[int] | None) -> list[int]:
    """`size` ids below `rows`, sorted: `always` first, then by count, of equal ones the lowest.

    Without counts the lowest ids are taken: byte-pair vocabularies number their tokens by how often they were
    merged. JobError where `always` does not fit.
    """
    kept = set(always)
    if size > rows or len(kept) > size or any(not 0 <= number < rows for number in kept):
        raise JobError(
            f"found {len(kept)} special and byte tokens and an LM head of {rows} rows for a draft vocabulary "
            f"of {size}; wanted {len(kept)} to {rows}; correct `size` in the recipe"
        )
    known = counts or []
    order = sorted(range(rows), key=lambda number: (-(known[number] if number < len(known) else 0), number))
    for number in order:
        if len(kept) == size:
            break
        kept.add(number)
    return sorted(kept)


def read_tokenizer(path: Path, offset: int, size: int) -> Any:
    """A tokenizer.json's object."""
    try:
        return json.loads(read_part(path, offset, size))
    except ValueError:
        raise JobError(f"found {TOKENIZER} that is not JSON; wanted a tokenizer; fetch it again") from None


def read_part(path: Path, offset: int, size: int) -> str:
    """Text at a place of a file."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size).decode("utf-8", "replace")
