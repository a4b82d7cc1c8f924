"""pyinfra's own settings for every run from this checkout."""

import logging
import os
import sys

from pyinfra import config
from pyinfra.api.exceptions import PyinfraError
from pyinfra_cli import cli

# A cluster with a rank missing cannot serve: the first failing host stops the run for all.
config.FAIL_PERCENT = 0

# Long work has bars of its own; pyinfra's spinner would write over them.
os.environ.setdefault("PYINFRA_PROGRESS", "off")

# What paramiko logs of a connection that breaks is a traceback; pyinfra says the same in a line.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# For who only looks a host that does not answer is a finding: the others are looked at all the same, and
# nobody is asked whether to go on. Without -y pyinfra would ask, before any code of ours runs.
_doctor = any(word.endswith("doctor.py") for word in sys.argv)
_status = any(word.endswith("status.py") for word in sys.argv)
if _doctor or _status:
    config.FAIL_PERCENT = None
    cli._do_confirm = lambda message: "failed to connect" in message


def _ask(message, ask=cli._do_confirm):
    try:
        return ask(message)
    except EOFError:
        from tasks.site import SiteError

        raise SiteError("found nobody at a terminal to say yes; wanted a yes; run again with -y") from None


if not (_doctor or _status):
    cli._do_confirm = _ask


def _connect_all(state, connect=cli.connect_all):
    try:
        connect(state)
    except PyinfraError as error:
        if not state.failed_hosts:
            # No host was tried to the end: a mistake in how they are reached, such as a key that is no file.
            raise
        from tasks import declaration, doctor, status

        if _status:
            sys.exit(status.nobody_answers(state.inventory))
        if _doctor:
            sys.exit(doctor.nobody_answers(state.inventory))
        # pyinfra would say how many percent of the hosts failed.
        raise declaration.unreached(state.inventory) or error from None


cli.connect_all = _connect_all
