"""What must be made from what: the outputs of chained transforms as tasks, and the disk that they take. Pure.

Each transform of a chain plans over what the one before it will make. Here the plans become one graph from the
files of the hub to the files of the checkpoint: what nobody needs is not in it, and a file that every step
hands on unchanged is a link to the hub's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onhost.staging.steps import BASE, Output, Need, Planned

Key = tuple[str, str]  # (a source's name, or "step N", or FINAL; the file's name there)
FINAL = "checkpoint"


@dataclass(frozen=True)
class Task:
    """One file to be made: by `output.write` from the files at `inputs`, or as a link to `link`.

    `inputs` maps what the transform calls a file to its key here.
    """

    key: Key
    output: Output
    inputs: Mapping[Need, Key]
    link: Key | None

    @property
    def size(self) -> int:
        """Bytes that it adds to the disk."""
        return 0 if self.link is not None else self.output.info.size

    @property
    def needs(self) -> frozenset[Key]:
        """Keys of all files that it is made from."""
        return frozenset(self.inputs.values()) if self.link is None else frozenset({self.link})


@dataclass(frozen=True)
class Graph:
    """`tasks` in an order in which each comes after its needs; `sources` with their bytes, in first-use order;
    `groups`: for each file of the checkpoint the tasks that become due with it, in order."""

    tasks: Mapping[Key, Task]
    sources: Mapping[Key, int]
    groups: Sequence[Sequence[Key]]

    def users(self) -> dict[Key, set[Key]]:
        """For each source and intermediate file: the tasks that read or link it."""
        found: dict[Key, set[Key]] = {}
        for task in self.tasks.values():
            for need in task.needs:
                found.setdefault(need, set()).add(task.key)
        return found

    def new_sources(self, group: Sequence[Key], had: set[Key]) -> list[Key]:
        """The sources that a group needs and that are not in `had`, in a fixed order."""
        found: dict[Key, None] = {}
        for key in group:
            for need in sorted(self.tasks[key].needs):
                if need in self.sources and need not in had:
                    found[need] = None
        return list(found)


def compose(
    plans: Sequence[Planned], sizes: Mapping[Key, int], done: Iterable[str] = (), only: Iterable[str] | None = None
) -> Graph:
    """The graph of a chain of plans over sources of the given bytes.

    `done`: files of the checkpoint that stand already; `only`: the files that are wanted (None: all).
    """
    levels = [{output.name: output for output in plan.outputs} for plan in plans]
    tasks: dict[Key, Task] = {}
    groups: list[list[Key]] = []
    sources: dict[Key, int] = {}

    def place(level: int, need: Need) -> Key:
        """Where a file that step `level` calls `need` really is: links of earlier steps lead on."""
        while need.source == BASE and level > 0:
            output = levels[level - 1][need.file]
            if output.link_of is None:
                return (f"step {level}", need.file)
            level, need = level - 1, output.link_of
        return (need.source, need.file)

    def add(level: int, name: str, group: list[Key]) -> None:
        last = level == len(levels) - 1
        key = (FINAL, name) if last else (f"step {level + 1}", name)
        if key in tasks:
            return
        output = levels[level][name]
        link = None if output.link_of is None else place(level, output.link_of)
        inputs = {need: place(level, need) for need in output.needs} if link is None else {}
        task = Task(key, output, inputs, link)
        for need in sorted(task.needs):
            if need[0].startswith("step "):
                add(int(need[0].removeprefix("step ")) - 1, need[1], group)
            else:
                sources.setdefault(need, sizes[need])
        tasks[key] = task
        group.append(key)

    left_out = set(done)
    wanted = None if only is None else set(only)
    for name in levels[-1] if levels else ():
        if name not in left_out and (wanted is None or name in wanted):
            group: list[Key] = []
            add(len(levels) - 1, name, group)
            groups.append(group)
    return Graph(tasks, sources, groups)


def sequential_peak(graph: Graph, keep_source: bool) -> int:
    """The most bytes on the disk at a time when the files are made one after the other."""
    users = graph.users()
    left = {key: set(value) for key, value in users.items()}
    linked = {task.link for task in graph.tasks.values() if task.link is not None}
    now = peak = 0
    had: set[Key] = set()
    for group in graph.groups:
        new = graph.new_sources(group, had)
        had.update(new)
        now += sum(graph.sources[key] for key in new) + sum(graph.tasks[key].size for key in group)
        peak = max(peak, now)
        for key in group:
            now -= freed(graph, key, left, linked, keep_source)
    return peak


def freed(
    graph: Graph, done: Key, left: dict[Key, set[Key]], linked: set[Key | None], keep_source: bool
) -> int:
    """Bytes that go when task `done` is finished; takes it out of `left` (file → its tasks to come)."""
    size = 0
    for need in graph.tasks[done].needs:
        left[need].discard(done)
        if left[need]:
            continue
        if need in graph.sources:
            # What the checkpoint links stays on the disk, whatever its first name.
            size += 0 if keep_source or need in linked else graph.sources[need]
        else:
            size += 0 if need in linked else graph.tasks[need].size
    return size


def disk_limit(graph: Graph, keep_source: bool) -> int:
    """Bytes that the sources and outputs of a graph may take together at any time, which is what is told.

    With `keep_source` all of both. Without: the output and two of the largest source files, so that one can
    come in while another is worked on, or more where a single output needs more at once.
    """
    made = sum(task.size for task in graph.tasks.values() if task.key[0] == FINAL)
    between = sum(task.size for task in graph.tasks.values() if task.key[0] != FINAL)
    sources = sum(graph.sources.values())
    everything = sources + made + between
    if keep_source:
        return everything
    linked = {task.link for task in graph.tasks.values() if task.link is not None}
    made += sum(size for key, size in graph.sources.items() if key in linked)
    window = made + 2 * max(graph.sources.values(), default=0)
    return min(everything, max(window, sequential_peak(graph, keep_source)))
