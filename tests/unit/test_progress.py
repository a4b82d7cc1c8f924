import io

import pytest
from rich.console import Console

from sparkstack.progress import Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def display(clock: Clock, terminal: bool = False) -> tuple[Progress, io.StringIO]:
    stream = io.StringIO()
    return Progress(Console(file=stream, force_terminal=terminal, width=100), clock=clock), stream


def test_piped_there_is_a_line_every_five_seconds(clock: Clock) -> None:
    progress, stream = display(clock)
    for step in range(13):
        progress.update("spark-1 image", "pull", step * 1e6, 100e6, "B")
        clock.now += 1
    lines = stream.getvalue().splitlines()
    assert lines == [
        "spark-1 image: pull 0 B of 100.0 MB, 0%",
        "spark-1 image: pull 5.0 MB of 100.0 MB, 5%, 1.0 MB/s, 1:35 min left",
        "spark-1 image: pull 10.0 MB of 100.0 MB, 10%, 1.0 MB/s, 1:30 min left",
    ]


def test_a_new_stage_and_its_end_are_said_at_once_and_only_once(clock: Clock) -> None:
    progress, stream = display(clock)
    progress.update("a", "download", 0, 2, "files")
    clock.now += 1
    progress.update("a", "download", 2, 2, "files")
    progress.update("a", "download", 2, 2, "files")
    progress.update("a", "verify", 0, None, "files", "x\x1b[31m\ny")
    assert stream.getvalue().splitlines() == [
        "a: download 0 of 2 files, 0%",
        "a: download 2 of 2 files, 100%, 2 files/s",
        "a: verify 0 files, x [31m y",
    ]


def test_labels_do_not_silence_each_other(clock: Clock) -> None:
    progress, stream = display(clock)
    progress.update("a", "x", 0, None, "")
    progress.update("b", "x", 0, None, "")
    assert len(stream.getvalue().splitlines()) == 2


def test_finish_says_how_long_it_took(clock: Clock) -> None:
    progress, stream = display(clock)
    progress.task("models", 0, 1, "models")
    clock.now += 75
    progress.finish("models")
    progress.finish("models")
    progress.finish("unknown")
    assert stream.getvalue().splitlines() == ["models 0 of 1 models, 0%", "models: 1:15 min in all"]


def test_passing_seconds_have_no_rate(clock: Clock) -> None:
    progress, stream = display(clock)
    progress.update("a", "start", 0, 600, "s")
    clock.now += 6
    progress.update("a", "start", 6, 600, "s", "loading")
    assert stream.getvalue().splitlines()[-1] == "a: start 6.0 s of 10:00 min, 1%, loading"


def test_a_job_that_begins_anew_has_no_negative_rate(clock: Clock) -> None:
    progress, stream = display(clock)
    for done in (50e6, 10e6, 20e6):
        progress.update("a", "x", done, None, "B")
        clock.now += 6
    assert stream.getvalue().splitlines() == [
        "a: x 50.0 MB",
        "a: x 10.0 MB",
        "a: x 20.0 MB, 1.7 MB/s",
    ]


def test_the_rate_is_that_of_late(clock: Clock) -> None:
    progress, stream = display(clock)
    done = 0.0
    for second in range(200):
        progress.update("a", "x", done, None, "B")
        done += 100e6 if second < 100 else 1e6
        clock.now += 1
    assert stream.getvalue().splitlines()[-1].endswith(", 1.0 MB/s")


def test_a_terminal_gets_bars_that_go_away(clock: Clock) -> None:
    progress, stream = display(clock, terminal=True)
    with progress:
        progress.update("a", "x", 1, 4, "layers", "[bold]note")
        progress.update("a", "y", 1, None, "layers")
        progress.update("b", "x", 1, 4, "layers")
        progress.finish("a")
        progress.update("b", "x", 4, 4, "layers")
        progress.finish("b")
        progress.update("c", "x", 1, 4, "layers")
        progress.close()
        progress.update("c", "x", 2, 4, "layers")
    text = stream.getvalue()
    assert "━" in text and "[bold]note" in text
    assert "a: 0.0 s in all" in text


ROW = ("1", "all kinds", "0.3 s", "7 tok/s", "7 tok/s", "", "3")


def test_figures_so_far_are_a_line_each_when_piped(clock: Clock) -> None:
    progress, stream = display(clock)
    progress.show("spark-1", [ROW])
    progress.show("spark-1", [ROW])
    progress.show("spark-1", [ROW, ("2", "x\x1b[31m\ny", *ROW[2:])])
    progress.show("spark-1", [ROW])  # measured anew
    said = "TTFT 0.3 s, decode 7 tok/s, all streams 7 tok/s, requests 3"
    first = f"spark-1: streams 1, prompts all kinds, {said}"
    assert stream.getvalue().splitlines() == [first, f"spark-1: streams 2, prompts x [31m y, {said}", first]


def test_figures_so_far_are_a_table_on_a_terminal(clock: Clock) -> None:
    progress, stream = display(clock, terminal=True)
    progress.update("spark-1 bench", "speed", 1, 4, "requests")
    progress.show("spark-1", [ROW])
    progress.update("spark-1 bench", "speed", 2, 4, "requests")
    progress.close()
    assert "all kinds" in stream.getvalue() and "prompts" in stream.getvalue()
