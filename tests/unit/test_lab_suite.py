"""What the lab's tests must have, or no run of the suite runs them."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "lab"


def test_every_file_is_marked_and_has_its_place() -> None:
    """Without the mark `-m lab` leaves a file out; without a place it meets hosts of nobody's making."""
    files = sorted(FOLDER.glob("test_*.py"))
    order = re.search(r"ORDER = \((.*?)\n\)", (FOLDER / "conftest.py").read_text(), re.DOTALL)
    assert order and sorted(re.findall(r'"(\w+)"', order[1])) == [file.stem for file in files]
    unmarked = [file.name for file in files if "pytestmark = pytest.mark.lab" not in file.read_text()]
    assert unmarked == []
