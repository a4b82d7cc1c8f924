"""What has to be made from what, in which order, and how much disk that takes. Pure.

The plan of a chain of transforms names its files and what each is made from. Here they become tasks: what
nobody needs is left out, each task knows when it is due, and the disk's peak is known before the first byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onhost.staging.catalog import Need
from onhost.staging.chain import Chained
from onhost.staging.outputs import Output

FINAL = "checkpoint"  # the origin of a finished file


@dataclass(frozen=True)
class Graph:
    """`tasks` in an order in which each comes after what it needs; `sources` with their bytes, in the order
    of their first use; `groups`: for each file of the checkpoint the tasks that become due with it."""

    tasks: Mapping[Need, Output]
    sources: Mapping[Need, int]
    groups: Sequence[Sequence[Need]]

    @property
    def linked(self) -> frozenset[Need]:
        """Sources that the checkpoint holds as they are: they stay on the disk, whatever their first name."""
        return frozenset(task.link_of for task in self.tasks.values() if task.link_of is not None)

    def users(self) -> dict[Need, set[Need]]:
        """For each source and each file between: the tasks that read or link it."""
        found: dict[Need, set[Need]] = {}
        for key, task in self.tasks.items():
            for need in task.needs:
                found.setdefault(need, set()).add(key)
        return found

    def sources_of(self, group: Sequence[Need]) -> list[Need]:
        """The sources that a group needs, in a fixed order."""
        found = {need for key in group for need in self.tasks[key].needs if need in self.sources}
        return sorted(found)

    def written(self, group: Sequence[Need]) -> int:
        """Bytes that a group writes anew."""
        return sum(self.tasks[key].written for key in group)


def graph_of(chained: Chained, sizes: Mapping[Need, int], done: Iterable[str] = ()) -> Graph:
    """The tasks for all files of a planned checkpoint but those of `done`; `sizes`: bytes of each source."""
    between = {
        Need(origin, output.name): output
        for origin, outputs in chained.between.items()
        for output in outputs
    }
    tasks: dict[Need, Output] = {}
    sources: dict[Need, int] = {}
    groups: list[list[Need]] = []

    def add(key: Need, output: Output, group: list[Need]) -> None:
        if key in tasks:
            return
        for need in sorted(output.needs):
            if need in between:
                add(need, between[need], group)
            else:
                sources.setdefault(need, sizes[need])
        tasks[key] = output
        group.append(key)

    left_out = set(done)
    for output in chained.outputs:
        if output.name not in left_out:
            group: list[Need] = []
            add(Need(FINAL, output.name), output, group)
            groups.append(group)
    return Graph(tasks, sources, groups)


class Ledger:
    """Bytes on the disk while a graph is worked off group by group. `keep_source`: sources stay."""

    def __init__(self, graph: Graph, keep_source: bool) -> None:
        self._graph, self._keep = graph, keep_source
        self._left = {key: set(tasks) for key, tasks in graph.users().items()}
        self._linked = graph.linked
        self._had: set[Need] = set()
        self.now = 0

    def cost(self, group: Sequence[Need]) -> int:
        """Bytes that beginning a group will add."""
        new = [need for need in self._graph.sources_of(group) if need not in self._had]
        return sum(self._graph.sources[need] for need in new) + self._graph.written(group)

    def begin(self, group: Sequence[Need]) -> None:
        """A group is begun: its sources and its files take their room."""
        self.now += self.cost(group)
        self._had.update(self._graph.sources_of(group))

    def finish(self, task: Need) -> list[Need]:
        """A task is done; returns the sources and files between that nobody needs any more.

        Their bytes are counted as gone, but for what stays: kept sources, and what the checkpoint links.
        """
        gone = []
        for need in sorted(self._graph.tasks[task].needs):
            self._left[need].discard(task)
            if self._left[need]:
                continue
            if need not in self._graph.sources:
                self.now -= self._graph.tasks[need].written
                gone.append(need)
            elif not self._keep:
                self.now -= 0 if need in self._linked else self._graph.sources[need]
                gone.append(need)
        return gone


def disk_limit(graph: Graph, keep_source: bool) -> int:
    """Bytes that sources and files of a graph take together at most, which is what users are told.

    With `keep_source` all of both. Without it: the output and two of the largest source files, so that one
    can come in while another is worked on; more only where one file is made from more at once.
    """
    sources = sum(graph.sources.values())
    made = sum(task.written for task in graph.tasks.values())
    if keep_source:
        return sources + made
    ledger = Ledger(graph, keep_source)
    highest = 0
    for group in graph.groups:
        ledger.begin(group)
        highest = max(highest, ledger.now)
        for task in group:
            ledger.finish(task)
    final = sum(task.written for key, task in graph.tasks.items() if key.origin == FINAL)
    final += sum(size for need, size in graph.sources.items() if need in graph.linked)
    window = final + 2 * max(graph.sources.values(), default=0)
    return min(sources + made, max(window, highest))
