from __future__ import annotations

import pytest

from sparkstack.disk_need import Need, Staged, by_file_system, need
from sparkstack.native import Budget
from sparkstack.units import GIB

# 81 GB of source, written anew, and the image.
BUDGET = Budget(memory_gib=118, disk_gib=190, download_gib=76)


@pytest.mark.parametrize(
    ("staged", "head", "transformed", "download", "checkpoint", "image"),
    [
        (Staged(), True, True, 76, 76, 38),
        (Staged(), True, False, 76, 0, 114),
        (Staged(), False, True, 0, 76, 38),  # a worker receives one copy
        (Staged(), False, False, 0, 76, 114),
        (Staged(downloaded_bytes=70 * GIB), True, True, 6, 76, 38),
        (Staged(downloaded_bytes=99 * GIB), True, True, 0, 76, 38),
        (Staged(checkpoint=True), True, True, 0, 0, 38),
        (Staged(checkpoint=True, image=True), False, True, 0, 0, 0),
        (Staged(image=True), True, True, 76, 76, 0),
    ],
)
def test_need(
    staged: Staged, head: bool, transformed: bool, download: int, checkpoint: int, image: int
) -> None:
    found = need(BUDGET, transformed=transformed, head=head, staged=staged)
    assert found == Need(download * GIB, checkpoint * GIB, image * GIB)


@pytest.mark.parametrize(("transformed", "image"), [(True, 38), (False, 114)])
def test_what_cannot_be_linked_is_copied(transformed: bool, image: int) -> None:
    found = need(BUDGET, transformed=transformed, head=True, staged=Staged(), one_file_system=False)
    assert found == Need(76 * GIB, 76 * GIB, image * GIB)


def test_a_budget_of_one_figure_is_asked_for_as_a_whole() -> None:
    budget = Budget(memory_gib=3, disk_gib=6)
    assert need(budget, transformed=True, head=True, staged=Staged()) == Need(0, 6 * GIB, None)
    assert need(budget, transformed=True, head=True, staged=Staged(checkpoint=True)) == Need(0, 0, 0)


def test_a_transform_that_writes_less_than_it_reads() -> None:
    budget = Budget(memory_gib=3, disk_gib=6, download_gib=5)
    assert need(budget, transformed=True, head=True, staged=Staged()) == Need(5 * GIB, 1 * GIB, 0)


@pytest.mark.parametrize(
    ("staged", "head", "weights", "image"),
    [
        (Staged(), True, 96, 94),  # the output and two files of the source
        (Staged(), False, 76, 94),
        (Staged(downloaded_bytes=90 * GIB), True, 6, 94),
        (Staged(downloaded_bytes=99 * GIB), True, 0, 94),
        (Staged(checkpoint=True, image=True), True, 0, 0),
    ],
)
def test_need_where_sources_do_not_stay(staged: Staged, head: bool, weights: int, image: int) -> None:
    found = need(BUDGET, transformed=True, head=head, staged=staged, keep_source=False)
    assert (found.download + found.checkpoint, found.image) == (weights * GIB, image * GIB)
    assert found.checkpoint == min(weights, 76) * GIB  # the source's files come and go
    plain = need(BUDGET, transformed=False, head=head, staged=staged, keep_source=False)
    assert plain == need(BUDGET, transformed=False, head=head, staged=staged)


def test_folders_by_their_file_system() -> None:
    needs = {"/a": 1, "/b": 2, "/c": 4, "/d": 8}
    assert by_file_system(needs, {"/a": "/", "/b": "/data", "/c": "/"}) == [
        (["/a", "/c"], 5), (["/b"], 2), (["/d"], 8)
    ]  # fmt: skip
