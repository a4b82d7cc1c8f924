"""Arithmetic word problems of our own: made from templates, the same ones each time, with exact answers.

They are easier than GSM8K (two to three steps, whole numbers) and were in nobody's training data: a model
that serves in order gets nearly all, one with broken scales or a wrong template gets few.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


class Problem(NamedTuple):
    """The question and the whole number that answers it."""

    text: str
    answer: int


class _Numbers:
    """A sequence that depends on its seed alone, and on no version of Python (Lehmer's, modulus 2³¹ − 1)."""

    def __init__(self, seed: int) -> None:
        self._state = seed * 7919 + 104729
        for _ in range(3):  # neighbouring seeds begin alike
            self.between(0, 1)

    def between(self, low: int, high: int) -> int:
        self._state = self._state * 48271 % 2147483647
        return low + self._state % (high - low + 1)

    def one_of(self, *words: str) -> str:
        return words[self.between(0, len(words) - 1)]


def _crates(n: _Numbers) -> Problem:
    thing, boxes, each, gone = (
        n.one_of("apples", "pears", "eggs"),
        n.between(4, 19),
        n.between(6, 24),
        n.between(3, 20),
    )
    text = (
        f"A shop gets {boxes} crates with {each} {thing} in each. {gone} {thing} are spoiled and thrown away."
    )
    return Problem(f"{text} How many good {thing} are left?", boxes * each - gone)


def _savings(n: _Numbers) -> Problem:
    start, week, weeks, price = n.between(10, 90), n.between(5, 25), n.between(4, 16), n.between(12, 28)
    name = n.one_of("Mira", "Jonas", "Aylin", "Pablo")
    text = f"{name} has {start} euros and saves {week} a week for {weeks} weeks. A lamp costs {price} euros."
    return Problem(f"{text} How many euros does {name} have after buying it?", start + week * weeks - price)


def _train(n: _Numbers) -> Problem:
    first, hours, faster = n.between(40, 90), n.between(2, 5), n.between(5, 40)
    text = f"A train runs {hours} hours at {first} km/h, then {hours + 1} hours at {first + faster} km/h."
    return Problem(f"{text} How many km has it gone?", hours * first + (hours + 1) * (first + faster))


def _shares(n: _Numbers) -> Problem:
    people, each, rest = n.between(3, 12), n.between(7, 30), n.between(1, 2)
    total = people * each + rest
    text = f"{people} children share {total} marbles; each gets as many as possible, and all get the same."
    return Problem(f"{text} How many marbles does each child get?", each)


def _garden(n: _Numbers) -> Problem:
    wide, longer, gap = n.between(4, 20), n.between(2, 15), n.between(1, 3)
    text = f"A garden is {wide} m wide and {longer} m longer than wide. A gate of {gap} m needs no fence."
    return Problem(f"{text} How many metres of fence go around it?", 2 * (2 * wide + longer) - gap)


def _bus(n: _Numbers) -> Problem:
    on, off, more, out = n.between(20, 50), n.between(3, 15), n.between(4, 20), n.between(2, 4)
    total = on - off + more
    text = f"A bus leaves with {on} people. Then {off} get off and {more} get on, and later {out} get off."
    return Problem(f"{text} How many people are on the bus now?", total - out)


def _baker(n: _Numbers) -> Problem:
    trays, rolls, price, unsold = n.between(3, 12), n.between(8, 24), n.between(2, 5), n.between(1, 20)
    text = f"A baker makes {trays} trays of {rolls} rolls, and sells all but {unsold} for {price} euros each."
    return Problem(f"{text} How many euros does he take in?", (trays * rolls - unsold) * price)


def _pages(n: _Numbers) -> Problem:
    day, days, left = n.between(12, 45), n.between(3, 9), n.between(20, 150)
    total = day * days + left
    text = f"A book has {total} pages. Lea reads {day} pages a day for {days} days."
    return Problem(f"{text} How many pages has she still to read?", left)


def _twice(n: _Numbers) -> Problem:
    small, times, more = n.between(5, 40), n.between(2, 6), n.between(1, 30)
    text = f"A tank holds {small} litres. A second holds {times} times as much, a third {more} more still."
    return Problem(f"{text} How many litres do all three hold together?", small + 2 * small * times + more)


def _percent(n: _Numbers) -> Problem:
    whole, part = 20 * n.between(3, 30), 5 * n.between(1, 15)
    less = whole * part // 100
    text = f"A coat costs {whole} euros. In a sale its price falls by {part} percent."
    return Problem(f"{text} How many euros does it cost in the sale?", whole - less)


TEMPLATES: tuple[Callable[[_Numbers], Problem], ...] = (
    _crates,
    _savings,
    _train,
    _shares,
    _garden,
    _bus,
    _baker,
    _pages,
    _twice,
    _percent,
)
INSTRUCTION = "Work it out step by step. End with a line of the form 'Answer: N', N being the number alone."
_SAID = re.compile(r"answer\s*(?:is|:|=)?[\s*_$\\(]*(-?\d[\d,]*(?:\.\d+)?)", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def problems(count: int = 100) -> list[Problem]:
    """The first `count` problems; the templates take turns."""
    return [TEMPLATES[at % len(TEMPLATES)](_Numbers(at + 1)) for at in range(count)]


def answer_in(text: str) -> float | None:
    """The number that an answer ends with: after its last "Answer:", else the last number of all."""
    found = _SAID.findall(text) or _NUMBER.findall(text)
    try:
        return float(found[-1].replace(",", "")) if found else None
    except ValueError:
        return None
