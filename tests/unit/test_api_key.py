from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("#sesame-open", "a key with a '#' at its beginning, which is a comment in a file of keys (Atlas)"),
        ("sesame,open-1", "a key with a ',' in it, which parts several keys (llama.cpp): each part alone"),
        (",sesame-open-1", "a key with a ',' in it"),
        ("sesame\topen", "11 characters, or some that are none"),
        ("sesame-open\x7f", "12 characters, or some that are none"),
        ("sesame-open ", "12 characters, or some that are none"),
    ],
)
@pytest.mark.parametrize("from_file", [True, False])
def test_keys_that_an_engine_reads_as_something_else(
    tmp_path: Path, key: str, found: str, from_file: bool
) -> None:
    path = tmp_path / "key"
    path.write_text(f"{key}\n")
    with pytest.raises(SparkstackError) as caught:
        api_key.read(*((str(path), None, {}) if from_file else (None, "K", {"K": key})))
    [line] = caught.value.lines
    assert line.startswith(f"api_key_{'file' if from_file else 'env'}: found {found}")
    assert line.endswith("; make one, say with `openssl rand -hex 24`") and "sesame" not in line


@given(st.text(st.characters(codec="ascii", min_codepoint=0), min_size=1, max_size=40) | st.text(max_size=20))
def test_what_is_taken_is_one_key_to_every_engine(text: str) -> None:
    try:
        key = api_key.read(None, "K", {"K": text})
    except SparkstackError as error:
        assert len(error.lines) == 1 and (len(text) < 8 or text not in error.lines[0])
        return
    assert key is not None and key.isascii() and key.isprintable()
    assert key.split() == [key] == key.split(",") and not key.startswith("#")
    assert api_key.env_file(key).splitlines()[1].partition("=")[2].split(",") == [key]
