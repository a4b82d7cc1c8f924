import pytest

from sparkstack import units


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4_000_000_000), ("4 GiB", 2**32), ("17", 17), ("1.5kb", 1500), ("9007199254740993", 2**53 + 1)],
)
def test_sizes(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "4 parsecs", "-4GB", "4GB5"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        units.parse_size(text)


def test_texts() -> None:
    assert [units.bytes_text(n) for n in (12, 3400, 5_600_000, 7_890_000_000, 2e12)] == [
        "12 B", "3 kB", "5.6 MB", "7.89 GB", "2.00 TB"
    ]  # fmt: skip
    assert [units.seconds_text(n) for n in (0.42, 12.4, 59.6, 185, 7385)] == [
        "0.4 s", "12 s", "1:00 min", "3:05 min", "2:03:05 h"
    ]  # fmt: skip
    assert units.gib_text(1.5 * 2**30) == "1.5 GiB"
