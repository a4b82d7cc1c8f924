"""`sparkstack status` and `sparkstack monitoring`: how it serves now, and what watches it from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.live import Live

from sparkstack import hosts, serving_status
from sparkstack import monitoring as rendered
from sparkstack.errors import Problem, SparkstackError

SCRIPT = "status.py"


@click.command()
@click.argument("inventory")
@click.option("--json", "as_json", is_flag=True, help="For programs; with --watch a line each time.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=1), default=3.0, show_default=True, help="Of --watch, in s."
)
@click.option("--endpoint", help="Read this URL from here, in place of the release's from its head.")
def status(inventory: str, as_json: bool, watch: bool, interval: float, endpoint: str | None) -> None:
    """Show what the hosts of INVENTORY serve, and how fast. They are asked, not touched.

    Status 1 where a host is down, a rank does not serve, or the endpoint does not answer.
    """
    words = []
    if endpoint is not None:
        words += ["--data", f"status_endpoint={json.dumps(_url(endpoint))}"]
    if watch:
        words += ["--data", f"status_interval={interval}"]
    console, ok = Console(), True
    documents = _documents(hosts.command(inventory, SCRIPT, words), endless=watch)
    try:
        if as_json:
            for found in documents:
                click.echo(json.dumps(found, indent=None if watch else 2, ensure_ascii=False))
                ok = found["ok"]
        elif console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                for found in documents:
                    live.update(serving_status.table(found), refresh=True)
                    ok = found["ok"]
        else:
            for found in documents:
                click.echo("\n".join(serving_status.lines(found)))
                ok = found["ok"]
    except KeyboardInterrupt:
        pass
    finally:
        documents.close()
    if not ok:
        raise SystemExit(1)


@click.command()
@click.argument("inventory")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder; made if missing.")
def monitoring(inventory: str, out: Path) -> None:
    """Write what watches the endpoint of INVENTORY: a scrape configuration for Prometheus and a dashboard for
    Grafana. The hosts are asked what they serve, and not touched."""
    found = next(_documents(hosts.command(inventory, SCRIPT, [])))
    if found["endpoint"] is None:
        why = "; ".join(found["problems"])
        raise SparkstackError(Problem("monitoring", f"no endpoint ({why})", "one", "run deploy.py first"))
    names = [host["host"] for host in found["hosts"]]
    endpoint = found["endpoint"]
    engine = endpoint["engine"]
    texts = {
        rendered.SCRAPE: rendered.scrape(
            endpoint["url"], found["release"], found["recipe"], names, endpoint["bind"], engine
        ),
        rendered.DASHBOARD: rendered.dashboard(engine),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SparkstackError(
            Problem(str(out), (error.strerror or str(error)).lower(), "a folder to write to", "name another")
        ) from None
    click.echo("\n".join(str(out / name) for name in texts))
    if told := rendered.remark(engine):
        click.echo(told)


def _documents(command: Sequence[str], endless: bool = False) -> Generator[dict[str, Any]]:
    """What the script prints, as it comes. Errors: SparkstackError where it prints nothing, dies (its own
    results are the statuses 0 and 1), or ends though it should be `endless`."""
    come, whole = 0, True
    with (
        tempfile.TemporaryFile("w+") as aside,
        subprocess.Popen(command, cwd=hosts.ROOT, stdout=subprocess.PIPE, stderr=aside, text=True) as run,
    ):
        try:
            assert run.stdout is not None
            for line in run.stdout:
                if line.startswith("{") and (whole := line.endswith("\n")):
                    try:
                        found = json.loads(line)
                    except ValueError:  # somebody else's words
                        continue
                    come += 1
                    yield found
            code = run.wait()
            aside.seek(0)
            told = aside.read().strip()
        finally:
            run.terminate()
    if not come:
        raise SparkstackError(Problem("status", _last(told), "what the hosts say", "check the inventory"))
    if endless or not whole or code not in (0, 1):
        ended = f"{SCRIPT} ended by signal {-code}" if code < 0 else f"{SCRIPT} ended with status {code}"
        why = f" ({mistakes[-1]})" if (mistakes := _mistakes(told)) else ""
        wanted = "it to go on until Ctrl-C" if endless else "its whole answer"
        raise SparkstackError(Problem("status", f"that {ended}{why}", wanted, "start it again"))


def _last(told: str) -> str:
    """The line of pyinfra's words that says what is wrong: behind it stands where to report a bug."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return (_mistakes(told) or [line for line in lines if not line.startswith("-->")] or ["no word"])[-1]


def _mistakes(told: str) -> list[str]:
    lines = [line.strip() for line in told.splitlines()]
    return [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise SparkstackError(Problem("--endpoint", repr(text), "http://HOST:PORT", "correct it"))
    return text.rstrip("/").removesuffix("/v1")
