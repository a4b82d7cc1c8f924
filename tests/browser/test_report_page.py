"""The report's page in a real browser: what it shows, and that it asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.browser import Browser, Seen
from sparkstack import report_files
from sparkstack.report import RunReport
from tests.browser import sample

WIDTHS = (360, 768, 1280)
PICTURES = Path(__file__).resolve().parents[2] / ".cache" / "pictures"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by what they are of; `whole` has runs before it."""
    made = {}
    early = sample.report()
    early.when = "20261128T100000Z"
    cut = sample.report(complete=False)
    cut.when = "20261128T110000Z"
    noise = {"spread": 0.4, "limit": 0.1, "repeated": 2, "verdict": "noisy"}
    bare = RunReport(when="20261129T231000Z", inventory="bare", recipe="r", release="x")
    bare.add("host", "spark-1", "packages are there", "ok", 0.1)
    folder = tmp_path_factory.mktemp("reports")
    for name, run in {
        "early": early,
        "cut": cut,
        "whole": sample.report(),
        "noisy": sample.report(noise=noise),
        "missed": sample.report({"decode_tok_s": {1: {"min": 900}}}),
        "hostile": sample.hostile(),
        "bare": bare,
    }.items():
        if name in ("noisy", "missed"):
            run.inventory = name
        made[name] = report_files.store(run, folder).with_name(report_files.PAGE)
    return made


def quiet(seen: Seen, page: Path) -> None:
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith("data:")] == [page.resolve().as_uri()]


def text(browser: Browser) -> str:
    return str(browser.ask("document.body.innerText"))


@pytest.mark.parametrize("name", ["whole", "cut", "noisy", "missed", "hostile", "bare"])
def test_no_page_scrolls_sideways_complains_or_asks_for_anything(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    for width in WIDTHS:
        quiet(browser.show(pages[name], width, dark=width == 360), pages[name])
        browser.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
        assert browser.ask("document.scrollingElement.scrollWidth") <= width, (name, width)
        wide = (
            "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > "
            f"{width} + 1 && !e.closest('thead') && !e.closest('svg')).map(e => e.outerHTML.slice(0, 90))"
        )
        assert browser.ask(wide) == [], (name, width)


def test_verdicts_come_first_and_all_parts_are_there(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["whole"], 1280)
    browser.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
    headings = browser.ask("[...document.querySelectorAll('h2')].map(e => e.innerText)")
    assert headings == [
        "Verdicts",
        "Speed",
        "Quality",
        "Endpoint",
        "What was deployed",
        "What changed, and how long it took",
        "Link gate",
        "Runs of this inventory before",
    ]
    assert "pass" in browser.ask("document.querySelector('h1').innerText")
    said = text(browser)
    for piece in (
        "decode_tok_s@1/coding",
        "≥ 22.5 (25.0 − 10 %)",
        "the profile standard does not measure it",
        "sparkstack/vllm:0123456789ab",
        "org/m at " + "ab" * 20,
        "spark-1 (head)",
        "92 + 97 = 189 Gb/s",
        "97 of 100",
        "docker is as declared (spark-1, spark-2)",
        "2026-11-28 10:00:00 UTC",
        "stopped before its end",
    ):
        assert piece in said, piece
    plots = browser.ask("[...document.querySelectorAll('svg.plot')].map(e => e.getAttribute('aria-label'))")
    assert plots == [
        "Speed by number of streams, tok/s",
        "Time to the first token by number of streams, s",
        "Decode tokens/s by kind of prompts, 1 stream",
        "Time to the first token by length of input, s",
        "Time of each stage",
        "Speed of the last runs, tok/s",
    ]


def test_a_status_is_a_word_and_not_a_colour_alone(browser: Browser, pages: dict[str, Path]) -> None:
    for name, word, headline in (
        ("whole", "pass", "Meets what its recipe expects"),
        ("missed", "fail", "Misses what its recipe expects"),
        ("noisy", "inconclusive", "Measured, and no result to rely on"),
        ("cut", "inconclusive", "Measured, and no result to rely on"),
        ("bare", "not measured", "nothing was measured"),
    ):
        browser.show(pages[name], 800)
        said = browser.ask("document.querySelector('h1').innerText")
        assert word in said and headline in said, name
    browser.show(pages["cut"], 800)
    assert "stopped before its end" in text(browser)
    assert "pass" not in browser.ask("document.querySelector('table').innerText")
    assert browser.ask("[...document.querySelectorAll('.badge')].every(e => e.textContent.trim().length > 2)")


def test_words_of_others_are_words(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["hostile"], 800)
    assert "owned" not in browser.ask("document.title").split("<")[0]
    assert browser.ask("document.scripts.length + document.images.length") == 0
    assert "<script>" in text(browser) and "{{7*7}}" in text(browser)


def contrast(browser: Browser, what: str) -> Any:
    """The contrast of an element's text to what is behind it (WCAG); 4.5 is what readable text takes."""
    return browser.ask(
        """(() => { const of = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
          .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
          return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2] };
        let worst = 99;
        for (const e of document.querySelectorAll('"""
        + what
        + """')) { let back = e; while (getComputedStyle(back).backgroundColor == 'rgba(0, 0, 0, 0)')
            back = back.parentElement;
          const [a, b] = [of(getComputedStyle(e).color), of(getComputedStyle(back).backgroundColor)];
          worst = Math.min(worst, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)) }
        return worst })()"""
    )


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_are_both_readable(browser: Browser, pages: dict[str, Path], dark: bool) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in ("whole", "noisy", "missed"):
        browser.show(pages[name], 800, dark=dark)
        browser.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
        assert contrast(browser, ".badge, td, dd, dt, p, h1, h2, th, a") >= 4.5
    backs = browser.ask("getComputedStyle(document.body).backgroundColor").removeprefix("rgb(").split(",")
    assert (int(backs[0]) < 60) is dark
    for width in (360, 1280):
        browser.show(pages["whole"], width, dark=dark)
        path = PICTURES / f"report-{width}-{'dark' if dark else 'light'}.png"
        browser.picture(path, whole=True)
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000
