"""The stages of a run, in order, and which of them a user asked for."""

from __future__ import annotations

from difflib import get_close_matches

from sparkstack.errors import Problem, SparkstackError

STAGES = (
    "preflight",
    "host",
    "docker",
    "conda",
    "fabric",
    "link",
    "image",
    "nccl",
    "checkpoint",
    "serve",
    "benchmark",
)
OF_RELEASE = STAGES[STAGES.index("image") :]
"""The stages that make a release and start it; those before make the host."""


def select(only: str | None) -> list[str]:
    """The stages to run: all for None, else those named in `only` (comma-separated), in the order of a run.

    Errors: SparkstackError that lists the known names, one problem for each unknown one.
    """
    if only is None:
        return list(STAGES)
    asked = [name.strip() for name in only.split(",")]
    problems = []
    for name in asked:
        if name not in STAGES:
            near = get_close_matches(name, STAGES, 1)
            remedy = f"did you mean {near[0]!r}?" if near else "name one of these"
            problems.append(Problem("stage", repr(name), "one of: " + ", ".join(STAGES), remedy))
    if problems:
        raise SparkstackError(problems)
    return [stage for stage in STAGES if stage in asked]
