"""`python -m onhost …`: the commands that tasks and units call on a Spark."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and runs one command; the exit status is what it returns."""
    parser = argparse.ArgumentParser(prog="onhost", description="Jobs and small commands on a Spark.")
    commands = parser.add_subparsers(dest="command", required=True)
    job = commands.add_parser("job", help="run the job that a plan describes")
    job.add_argument("plan", metavar="PLAN")
    share = commands.add_parser("share", help="give checkpoints and images to the other Sparks")
    share.add_argument("--bind", required=True, action="append", metavar="IP", help="once for each address")
    share.add_argument("--port", required=True, type=int)
    share.add_argument("--token-file", required=True, type=Path)
    share.add_argument("--checkpoints-dir", required=True, type=Path)
    share.add_argument("--relay", action="store_true", help="this host is receiving: say so, not 404")
    ready = commands.add_parser("ready", help="wait for a real completion")
    ready.add_argument("--url", required=True)
    ready.add_argument("--model", required=True)
    ready.add_argument("--api-key-file", type=Path)
    ready.add_argument("--container")
    ready.add_argument("--timeout", required=True, type=float, metavar="S")
    serves = commands.add_parser("serves", help="does the endpoint serve now, be it slowly?")
    serves.add_argument("--url", required=True)
    serves.add_argument("--model", required=True)
    serves.add_argument("--api-key-file", type=Path)
    serves.add_argument("--timeout", required=True, type=float, metavar="S")
    verify = commands.add_parser("verify", help="hold a checkpoint against its manifest, offline")
    verify.add_argument("--checkpoint", required=True, type=Path, metavar="DIR")
    verify.add_argument("--hashes", action="store_true", help="read all contents, not only headers")
    repair = commands.add_parser("repair", help="verify all contents and mend what is damaged")
    repair.add_argument("plan", metavar="PLAN", help="plan of the job that made the checkpoint")
    prestart = commands.add_parser("prestart", help="what must be so before a rank's engine starts")
    prestart.add_argument("--config-dir", required=True, type=Path)
    prestart.add_argument("--state-dir", required=True, type=Path)
    prestart.add_argument("--drop-caches", action="store_true")
    ended = commands.add_parser("ended", help="say, and note, why a rank's engine ended before it served")
    ended.add_argument("--config-dir", required=True, type=Path)
    watchdog = commands.add_parser("watchdog", help="watch what serves; a broken group begins anew")
    watchdog.add_argument("--config-dir", required=True, type=Path)
    given = parser.parse_args(arguments)

    # Imports wait until a command needs them: `ready` starts every few seconds and should not load a hub
    # client.
    if given.command == "job":
        from onhost import jobs

        return jobs.main(given.plan)
    if given.command == "share":
        from onhost import share as sharing

        return sharing.main(given.bind, given.port, given.token_file, given.checkpoints_dir, given.relay)
    if given.command == "ready":
        from onhost import ready as waiting

        return waiting.main(given.url, given.model, given.api_key_file, given.container, given.timeout)
    if given.command == "serves":
        from onhost import probe_engine

        return probe_engine.main(given.url, given.model, given.api_key_file, given.timeout)
    if given.command == "prestart":
        from onhost import prestart as starting

        return starting.main(given.config_dir, given.state_dir, given.drop_caches)
    if given.command == "ended":
        from onhost import last_words

        return last_words.main(given.config_dir)
    if given.command == "watchdog":
        from onhost import watchdog as watching

        return watching.main(given.config_dir)
    if given.command == "repair":
        from onhost import jobs

        return jobs.main(given.plan, hashes=True)
    from onhost.staging import verify as verifying

    return verifying.verify(given.checkpoint, given.hashes)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A worker thread may still wait for a dead connection; the result is written, nothing is left to wait
    # for.
    os._exit(status)
