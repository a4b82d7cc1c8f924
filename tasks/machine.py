"""What a host is below Docker, asked in one command."""

from __future__ import annotations

import shlex
from pathlib import Path

from pyinfra.api import FactBase

from sparkstack import machine

SCRIPT = Path(__file__).with_name("machine.sh")


class MachineState(FactBase[machine.Machine]):
    """Returns what the host is now; of `packages` (names or patterns), which are installed.

    `units`: whose states are asked; None: those that `sparkstack.machine` judges.
    """

    default = machine.Machine

    def command(self, packages: list[str], units: list[str] | None = None) -> str:
        asked = machine.UNITS if units is None else units
        words = ["sh", "-c", SCRIPT.read_text(), "machine", *asked, "--", *packages]
        return " ".join(shlex.quote(word) for word in words)

    def process(self, output: list[str]) -> machine.Machine:
        return machine.parse(output)
