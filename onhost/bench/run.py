"""Job bench: measures a serving endpoint by a profile, and keeps what it showed in `measurement.json`."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx

from onhost.bench import profile as profiles
from onhost.bench.client import Target
from onhost.bench.phases import Phases
from onhost.bench.server import ANSWER, base_of, look
from onhost.files import write_json
from onhost.http_client import make_async_client
from onhost.jobs import Job
from onhost.plan import JobError

SPARE = 8  # connections beside the streams: questions about the server, an open loop's bursts


def bench(job: Job) -> dict[str, Any]:
    """The job's function: measures by the plan's profile, writes the measurement, and returns it."""
    return measure(job)


def measure(
    job: Job,
    transport: httpx.AsyncBaseTransport | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> dict[str, Any]:
    """The same with another way to the server, or another clock (that of the loop), for tests.

    Every error (a signal's, too) comes after what was measured until then has been written as not complete.
    """
    plan = job.plan
    profile = profiles.read(plan.sub("profile"))
    result, release = plan.path("result"), plan.text("release")
    key, previous = plan.secret("api_key_file"), plan.maybe_text("previous")
    base, model = base_of(plan.text("url")), plan.maybe_text("model")
    measurement: dict[str, Any] = {
        "format": 2,
        "release": release,
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "complete": False,
        "profile": profile.as_dict(),
    }
    stopped: list[int] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        ends = math.inf if profile.seconds is None else loop.time() + profile.seconds
        streams = max(*profile.streams, *profile.category_streams)
        connections = 1000 if profile.rates or profile.saturation else streams + SPARE
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with _signals(loop, job, stopped):
            async with make_async_client(
                connections=connections, headers=headers, transport=transport
            ) as client:
                about = await look(client, base, model, min(ANSWER, ends - loop.time()))
                measurement["server"] = about.as_dict()
                target = Target(base, about.model, profile.endpoint, profile.timeout_s)
                phases = Phases(job, client, target, profile, about, ends, measurement)
                await phases.all(previous)
                write_json(
                    result.parent / "answers.json",
                    {
                        "format": 1,
                        "release": release,
                        "model": about.model,
                        "tokens": profile.agreement_tokens,
                        "answers": phases.answers,
                    },
                ) if phases.answers else None

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(work())
        measurement["complete"] = True
    except asyncio.CancelledError:
        name = signal.Signals(stopped[0]).name if stopped else "the end of the job"
        raise JobError(
            f"found {name} in the middle; wanted to measure to the end; what was measured stays, start it "
            "again"
        ) from None
    finally:
        if measurement.get("points") or measurement["complete"]:
            write_json(result, measurement)
    return measurement


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, job: Job, stopped: list[int]) -> Iterator[None]:
    """SIGTERM and SIGINT end the measuring: a handler that raises, as other jobs have, may be raised inside
    of the loop's own callbacks, where it is lost."""
    task = asyncio.current_task()
    if threading.current_thread() is not threading.main_thread() or task is None:
        yield
        return

    def stop(number: int) -> None:
        if not job.stop.is_set():
            job.stop.set()
            stopped.append(number)
            task.cancel()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
