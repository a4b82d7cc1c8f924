"""What the benchmark asks, written for this project.

Work of several kinds: drafts are accepted differently in code, in JSON and in prose, and a mean over one kind
would flatter or wrong a speculative set-up.
"""

from __future__ import annotations

PROMPTS: tuple[tuple[str, str], ...] = (
    ("code", "Write a Python function that merges two sorted lists without using sort, with a docstring."),
    ("code", "Write a shell script that reports which folders below a path hold more than a gigabyte."),
    (
        "json",
        "Give a JSON array of six invented weather stations with id, name, altitude in m and last reading.",
    ),
    (
        "json",
        "Describe a small public library as one JSON object: opening hours, rooms, and ten book records.",
    ),
    (
        "reasoning",
        "A tank fills in 40 minutes and drains in 60. With both open, when is it full? Show each step.",
    ),
    (
        "reasoning",
        "Three friends share 17 coins so that nobody has as many as another. List how, and say why.",
    ),
    ("prose", "Describe a harbour at five in the morning, without people, in two paragraphs."),
    ("prose", "Tell how a clock that runs backwards came to hang in a village school."),
    ("summary", "Explain to a new colleague what a checksum is good for and what it cannot tell."),
    ("summary", "Say in plain words why copying a file is quicker than copying its bytes one by one."),
)


def prompt(number: int) -> str:
    """The prompt for a request; the number at its head keeps a prefix cache from answering for the engine."""
    return f"({number + 1}) {PROMPTS[number % len(PROMPTS)][1]}"
