from pathlib import Path

import pytest

from sparkstack import api_key
from sparkstack.errors import SparkstackError

KEY = "sesame-open-1"


def test_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    assert api_key.read(str(path), None, {}) == api_key.read(None, "K", {"K": KEY}) == KEY
    assert api_key.read(None, None, {"VLLM_API_KEY": "x"}) is None
    assert api_key.env_file(KEY).splitlines() == [f"VLLM_API_KEY={KEY}", f"LLAMA_API_KEY={KEY}"]


def test_a_mark_tells_keys_apart_and_nothing_else() -> None:
    assert api_key.mark(KEY) == api_key.mark(KEY) != api_key.mark(KEY + "x")
    assert len(api_key.mark(KEY)) == 12 and KEY not in api_key.mark(KEY)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "0 characters, or some that are none of ASCII's"),
        (b"short\n", "5 characters, or some that are none of ASCII's"),
        (b"two words are none\n", "18 characters, or some that are none of ASCII's"),
        (b"one-line-1\none-line-2\n", "21 characters, or some that are none of ASCII's"),
        ("schlüssel-1".encode(), "11 characters, or some that are none of ASCII's"),
        (b"\xff" * 20, "0 characters, or some that are none of ASCII's"),
        (None, "{path}: no such file or directory"),
    ],
)
def test_what_is_no_key(tmp_path: Path, content: bytes | None, found: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SparkstackError) as caught:
        api_key.read(str(path), None, {})
    [line] = caught.value.lines
    assert line.startswith(f"api_key_file: found {found.format(path=path)}; wanted ")
    if content and len(content) > 8:
        assert content.split()[0].decode("latin-1") not in line


def test_variables(tmp_path: Path) -> None:
    with pytest.raises(SparkstackError, match="api_key_env: found no variable K; wanted one with the key"):
        api_key.read(None, "K", {})
    with pytest.raises(SparkstackError, match="found api_key_file and api_key_env; wanted one of the two"):
        api_key.read(str(tmp_path), "K", {})
