import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstack import release
from sparkstack.errors import SparkstackError

TEXT = st.text('abü"\\\n ', max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
VERSIONS = {"register_mtp": 1, "reshard": 2}
RESHARD = {"name": "reshard", "max_shard_bytes": 10}


@given(JSON)
def test_canonical_json_says_the_same_value(value: object) -> None:
    assert json.loads(release.canonical_json(value)) == value


@given(st.dictionaries(TEXT, st.integers(), min_size=2))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    backwards = dict(reversed(value.items()))
    assert release.content_id(value) == release.content_id(backwards)


@given(JSON, JSON)
def test_different_values_have_different_texts(one: object, other: object) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (release.canonical_json(one) == release.canonical_json(other)) == same


def test_the_text_is_fixed_for_all_times() -> None:
    assert release.canonical_json({"b": [1, "ü"], "a": None}) == '{"a":null,"b":[1,"ü"]}'
    assert release.content_id({"b": [1, "ü"], "a": None}) == "6bafd57c7869"


@pytest.mark.parametrize("value", [{1: "a"}, [{"a": {None: 1}}], {"a": {1, 2}}, Path("x")])
def test_what_json_has_not_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        release.canonical_json(value)


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        release.canonical_json([float("nan")])


@pytest.mark.parametrize("length", [0, 65])
def test_an_id_has_1_to_64_digits(length: int) -> None:
    assert len(release.content_id("x", 64)) == 64
    with pytest.raises(ValueError, match="1 to 64"):
        release.content_id("x", length)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("1")
    (tmp_path / "b.txt").write_text("2")
    return tmp_path


def test_a_tree_hash_ignores_what_a_build_leaves(tree: Path) -> None:
    before = release.tree_hash(tree)
    for name in ("__pycache__", "build", "x.egg-info", "pkg/__pycache__", "empty"):
        (tree / name).mkdir()
        if name != "empty":
            (tree / name / "file").write_text("made")
    assert release.tree_hash(tree) == before
    assert len(before) == 64


def test_a_tree_hash_counts_contents_names_and_links(tree: Path) -> None:
    seen = {release.tree_hash(tree)}
    (tree / "b.txt").write_text("3")
    seen.add(release.tree_hash(tree))
    (tree / "b.txt").rename(tree / "c.txt")
    seen.add(release.tree_hash(tree))
    (tree / "link").symlink_to("c.txt")
    seen.add(release.tree_hash(tree))
    (tree / "link").unlink()
    (tree / "link").symlink_to("nowhere")
    seen.add(release.tree_hash(tree))
    assert len(seen) == 5


def test_a_tree_hash_does_not_depend_on_where_the_tree_is(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "deep"
    (other / "pkg").mkdir(parents=True)
    (other / "b.txt").write_text("2")
    (other / "pkg" / "a.py").write_text("1")
    assert release.tree_hash(other) == release.tree_hash(tree)


def test_a_missing_tree_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SparkstackError, match="no such folder"):
        release.tree_hash(tmp_path / "none")


def test_every_input_of_an_image_counts() -> None:
    base = ("repo@sha256:1", "hash", "FROM x", {"A": "1"})
    changed = [
        ("other", *base[1:]),
        (base[0], "other", *base[2:]),
        (*base[:2], "FROM y", base[3]),
        (*base[:3], {}),
    ]
    ids = {release.image_id(*inputs) for inputs in (base, *changed)}
    assert len(ids) == 5


def test_every_input_of_a_checkpoint_counts() -> None:
    ids = {
        release.checkpoint_id("a/b", "0" * 40, [RESHARD], VERSIONS),
        release.checkpoint_id("a/c", "0" * 40, [RESHARD], VERSIONS),
        release.checkpoint_id("a/b", "1" * 40, [RESHARD], VERSIONS),
        release.checkpoint_id("a/b", "0" * 40, [], VERSIONS),
        release.checkpoint_id("a/b", "0" * 40, [{**RESHARD, "max_shard_bytes": 11}], VERSIONS),
        release.checkpoint_id("a/b", "0" * 40, [RESHARD], {**VERSIONS, "reshard": 3}),
        release.checkpoint_id("a/b", "0" * 40, [{"name": "register_mtp"}, RESHARD], VERSIONS),
        release.checkpoint_id("a/b", "0" * 40, [RESHARD, {"name": "register_mtp"}], VERSIONS),
        release.checkpoint_id("a/b", "0" * 40, [RESHARD], VERSIONS, ["*.json"]),
    }
    assert len(ids) == 9


def test_versions_of_transforms_that_are_not_used_do_not_count() -> None:
    used = release.checkpoint_id("a/b", "0" * 40, [RESHARD], VERSIONS)
    assert used == release.checkpoint_id("a/b", "0" * 40, [RESHARD], {**VERSIONS, "register_mtp": 9})


def test_the_order_of_allowed_patterns_does_not_count() -> None:
    def of(allow: list[str]) -> str:
        return release.checkpoint_id("a/b", "0" * 40, [], {}, allow)

    assert of(["*.json", "*.txt"]) == of(["*.txt", "*.json"])


def test_a_transform_without_a_version_is_an_error() -> None:
    with pytest.raises(SparkstackError) as caught:
        release.checkpoint_id("a/b", "0" * 40, [{"name": "melt"}], VERSIONS)
    assert str(caught.value) == (
        "checkpoint a/b: found transform 'melt'; wanted one of: register_mtp, reshard; correct the recipe"
    )


def test_every_input_of_a_release_counts() -> None:
    base = ("image", "checkpoint", [["a"], ["b"]], [{"X": "1"}, {}], "[Unit]")
    changed = [
        ("other", *base[1:]),
        (base[0], "other", *base[2:]),
        (*base[:2], [["b"], ["a"]], *base[3:]),
        (*base[:3], [{}, {"X": "1"}], base[4]),
        (*base[:4], "[Service]"),
    ]
    assert len({release.release_id(*inputs) for inputs in (base, *changed)}) == 6
