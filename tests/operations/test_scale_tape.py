"""The tape of `benchmarks.scale` takes apart what is asked together, as `tasks.ahead` puts it together."""

from __future__ import annotations

import subprocess
import sys

from tasks.site import ROOT

# In a process of its own: pyinfra's command line makes sockets gevent's.
CODE = """
import secrets
from types import SimpleNamespace
from benchmarks.scale import tape
from tasks import ahead

secrets.token_hex = lambda nbytes=None: tape.WORD
heard = []

def run(command, **arguments):
    heard.append((command, arguments))
    return False, None

connector = ahead.Connector(SimpleNamespace(state=SimpleNamespace(is_executing=False), run_shell_command=run))
asked = ["echo 'one'", "printf '%s\\\\n' two; cat", "sh -c 'echo three'"]
connector.ask_ahead([asked, []], {"_sudo": True})
together = tape.parts("spark-1", *heard.pop())
assert len({key for key, _ in together}) == 3, together
assert [one["_stdin"].splitlines()[0] for _, one in together] == [
    f"(eval {__import__('shlex').quote(text)}) </dev/null" for text in asked
]
connector.ask_ahead([asked[1:2], []], {"_sudo": True})
assert tape.parts("spark-1", *heard.pop()) == together[1:2]
alone = tape.parts("spark-1", asked[0], {"_sudo": True})
assert len(alone) == 1 and alone[0][0] not in {key for key, _ in together}
assert tape.parts("spark-2", asked[0], {"_sudo": True})[0][0] != alone[0][0]
"""


def test_what_is_asked_together_is_known_part_by_part() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
