"""A headless Chromium, spoken to by the DevTools protocol over two pipes: for the tests of the report's page,
and for its picture.

    python -m lab.browser reports/latest/report.html docs/report.png [--width 900] [--height 1200] [--dark]

Debian's package `chromium` is all it takes; frameworks that drive browsers bring one of their own along, or a
driver process, for what is a few calls here.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from sparkstack.errors import Problem, SparkstackError

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60.0
"""How long an answer may take; a busy machine starts a browser slowly."""
QUIET = (
    "--headless=new",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-default-browser-check",
    "--hide-scrollbars",
    # Nothing may leave the machine, whatever the page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


@dataclass
class Seen:
    """What happened while a page was loaded and looked at."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


class Browser:
    """One browser with one page, as a context manager. Errors: SparkstackError where there is no Chromium, or
    it does not answer."""

    def __init__(self) -> None:
        path = next((found for name in NAMES if (found := shutil.which(name))), None)
        if path is None:
            raise SparkstackError(
                Problem("browser", "no Chromium", "Debian's package", "apt-get install chromium")
            )
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        words = [path, *QUIET, f"--user-data-dir={self._folder.name}"]
        if os.geteuid() == 0:
            words.append("--no-sandbox")  # Chromium refuses its sandbox to root
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        commands, answers = _high(commands), _high(answers)
        # Chromium reads commands from 3 and answers on 4. bash, for dash knows one digit only.
        script = f'exec 3<&{commands} 4>&{answers} {commands}<&- {answers}>&- && exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._left = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None

    def __enter__(self) -> Browser:
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser, and all that it started."""
        for pipe in (self._out, self._in):
            os.close(pipe)
        try:
            self._process.wait(10)  # it ends by itself when nobody speaks to it
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        self._folder.cleanup()

    def show(self, path: Path, width: int, height: int = 800, dark: bool = False) -> Seen:
        """Load a file in a window of so many pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self._call("Page.navigate", url=path.resolve().as_uri())
        self._wait_for("Page.loadEventFired")
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        return self._seen()

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression on the page (it is ours; the page itself may run none)."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise SparkstackError(f"browser: {answer['exceptionDetails'].get('text')}: {script}")
        return answer["result"].get("value")

    def picture(self, path: Path, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _seen(self) -> Seen:
        seen = Seen()
        for event in self._events:
            about = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                seen.requests.append(about["request"]["url"])
            elif event["method"] == "Log.entryAdded":
                seen.complaints.append(about["entry"]["text"])
            elif event["method"] == "Runtime.exceptionThrown":
                seen.complaints.append(about["exceptionDetails"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                seen.complaints.append(f"console.{about['type']}")
        return seen

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        try:
            os.write(self._out, json.dumps(message).encode() + b"\0")
        except OSError as error:
            raise self._gone(method) from error
        while True:
            answer = self._receive(method)
            if answer.get("id") != self._number:
                if "method" in answer:
                    self._events.append(answer)
                continue
            if "error" in answer:
                raise SparkstackError(f"browser: {method}: {answer['error'].get('message')}")
            result: dict[str, Any] = answer["result"]
            return result

    def _wait_for(self, event: str) -> None:
        while not any(one["method"] == event for one in self._events):
            answer = self._receive(event)
            if "method" in answer:
                self._events.append(answer)

    def _receive(self, what: str) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while b"\0" not in self._left:
            if not select.select([self._in], [], [], max(0.0, until - time.monotonic()))[0]:
                raise SparkstackError(Problem("browser", f"no answer to {what}", f"one in {SECONDS:g} s"))
            piece = os.read(self._in, 1 << 16)
            if not piece:
                raise self._gone(what)
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        value: dict[str, Any] = json.loads(message)
        return value

    def _gone(self, what: str) -> SparkstackError:
        return SparkstackError(Problem("browser", f"that Chromium ended before {what}", "that it runs"))


def _high(number: int) -> int:
    """The same file, clear of the numbers that it shall get."""
    high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(number)
    return high


@click.command()
@click.argument("page", type=click.Path(path_type=Path, exists=True))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--width", default=900, show_default=True)
@click.option("--height", default=1200, show_default=True, help="0: the whole page.")
@click.option("--dark", is_flag=True)
def main(page: Path, target: Path, width: int, height: int, dark: bool) -> None:
    """A picture (PNG) of a page."""
    try:
        with Browser() as browser:
            browser.show(page, width, height or 800, dark)
            browser.picture(target, whole=not height)
    except SparkstackError as error:
        click.echo(str(error), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
