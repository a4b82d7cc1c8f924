"""What the benchmark asks, written for this project: eight kinds of work, five prompts each.

Drafts are accepted differently in code, in JSON and in prose, and a mean over one kind would flatter or wrong
a speculative set-up.
"""

from __future__ import annotations

import random

PROMPTS: dict[str, tuple[str, ...]] = {
    "coding": (
        "Write a Python function that merges two sorted lists without using sort, with a docstring.",
        "Write a shell script that reports which folders below a path hold more than a gigabyte.",
        "Write a C function that reverses the bits of a 32-bit word, and a table of five test cases for it.",
        "Write a SQL query that gives each customer's two latest orders, and say which index it needs.",
        "Write a Rust struct for a ring buffer of fixed size, with push, pop and an iterator.",
    ),
    "reasoning": (
        "A tank fills in 40 minutes and drains in 60. With both open, when is it full? Show each step.",
        "Three friends share 17 coins so that nobody has as many as another. List how, and say why.",
        "A lift stops at floors 3, 7 and 12 and is never above 12. Which orders of stops move it the least?",
        "Two ropes each burn for an hour, unevenly. Explain how to measure 45 minutes, and why it works.",
        "Anna is older than Ben, Ben not older than Cleo, and Dana the youngest but one. Who may be who?",
    ),
    "json": (
        "Give a JSON array of six invented weather stations with id, name, altitude in m and last reading.",
        "Describe a small public library as one JSON object: opening hours, rooms, and ten book records.",
        "Write a JSON document of a train timetable with four stations and departures through one morning.",
        "Give the settings of an imagined camera as nested JSON, with limits and defaults for each value.",
        "Write a JSON list of eight support tickets with priority, state, owner and times of each change.",
    ),
    "html": (
        "Write an HTML page with a table of five planets, a caption, and a style sheet for narrow screens.",
        "Write an accessible HTML form for booking a bicycle repair, with labels and native checks.",
        "Write the HTML of a recipe page: ingredients as a list, steps in order, a figure with a caption.",
        "Write an HTML navigation bar with a nested menu that works without JavaScript.",
        "Write an HTML page with an inline SVG bar chart of four values, a title and a text alternative.",
    ),
    "prose": (
        "Describe a harbour at five in the morning, without people, in two paragraphs.",
        "Write an essay's first page on why people keep things that are broken.",
        "Describe the smell and the sound of a workshop where wooden boats are mended.",
        "Write a letter to a neighbour who is moving away after twenty years.",
        "Describe a market hall in the hour after the last customer has gone.",
    ),
    "narrative": (
        "Tell how a clock that runs backwards came to hang in a village school.",
        "Tell of a lighthouse keeper who finds a second lighthouse on the same rock one evening.",
        "Tell a short story in which a borrowed umbrella passes through five hands.",
        "Tell how two sisters cross a frozen lake with a piano on a sledge.",
        "Tell of a translator who understands every language except the one of her own town.",
    ),
    "summary": (
        "Explain to a new colleague what a checksum is good for and what it cannot tell.",
        "Say in plain words why copying a file is quicker than copying its bytes one by one.",
        "Summarise for a manager what caching is, when it helps, and when it gives wrong answers.",
        "Summarise how a letter travels from a street box to another country, in ten sentences.",
        "Sum up what a city should look at before it lets trees grow along its tram lines.",
    ),
    "format": (
        "List twelve months with their days as a Markdown table, then the same as CSV, then as YAML.",
        "Write the minutes of a meeting of four people: date, decisions, tasks with owner and deadline.",
        "Give the packing list for a three-day hike as numbered sections with at most five points each.",
        "Write a change log of three releases with the sections Added, Changed and Fixed.",
        "Write ten log lines of a web server in one fixed format, then the pattern that reads them.",
    ),
}
CATEGORIES = tuple(PROMPTS)

_TEXT = (
    "river stone window garden paper winter bridge copper morning village letter summer harbour "
    "lantern meadow carpet orchard thunder market kitchen island feather mirror valley button candle "
    "forest hammer ladder pocket ribbon saddle ticket wagon anchor basket cellar dragon engine flower"
)
_WORDS = _TEXT.split()
WORDS = len(_WORDS)


# The order of "all": kinds that are unlike first, for those who ask three things only.
MIXED = ("coding", "prose", "json", "reasoning", "narrative", "html", "summary", "format")


def prompt(number: int, category: str = "all", mark: int = 0) -> str:
    """Prompt `number` of a kind; the mark at its head keeps a prefix cache from answering for the engine.

    "all" goes through the kinds in turn, so that any eight that follow one another have each once.
    """
    kinds = MIXED if category == "all" else (category,)
    texts = PROMPTS[kinds[number % len(kinds)]]
    return f"({mark}) {texts[number // len(kinds) % len(texts)]}"


def filler(words: int, seed: int) -> list[str]:
    """`words` common words in sentences of ten; another seed gives another beginning, so nothing is cached.

    Each forty hold every word once, so that the tokens grow evenly with the words.
    """
    chance = random.Random(seed)
    text: list[str] = []
    while len(text) < words:
        text += chance.sample(_WORDS, WORDS)
    del text[words:]
    for at in range(0, words, 10):
        text[at] = text[at].capitalize()
        text[min(at + 9, words - 1)] += "."
    return text
