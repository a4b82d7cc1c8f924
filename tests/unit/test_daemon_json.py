import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstack.daemon_json import combined, dropped, merge, unmerge
from sparkstack.errors import SparkstackError

LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text('aü"\\\n', max_size=3)
    | st.lists(st.integers(), max_size=3)
)
OBJECT = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), LEAF, max_size=4),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), LEAF | inner, max_size=4),
    max_leaves=6,
)


def test_foreign_keys_stay_in_their_order() -> None:
    current = '{"zeta": 1, "registry-mirrors": ["http://old"], "alpha": {"x": 1}}'
    merged = merge(current, {"registry-mirrors": ["http://new"], "mtu": 1450})
    assert list(json.loads(merged).items()) == [
        ("zeta", 1), ("registry-mirrors", ["http://new"]), ("alpha", {"x": 1}), ("mtu", 1450)
    ]  # fmt: skip


def test_lists_become_exactly_what_is_declared() -> None:
    assert json.loads(merge('{"a": [1, 2, 3]}', {"a": [2]})) == {"a": [2]}
    assert json.loads(merge('{"a": [1]}', {"a": []})) == {"a": []}


def test_objects_are_merged_key_by_key() -> None:
    current = '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
    merged = json.loads(merge(current, {"runtimes": {"runsc": {"path": "runsc"}}}))
    assert list(merged["runtimes"]) == ["nvidia", "runsc"]


def test_text_that_says_it_already_comes_back_byte_for_byte() -> None:
    current = '{ "mtu":9000,\n\n  "b": [ 1 ] }'
    assert merge(current, {"b": [1], "mtu": 9000}) is current


@pytest.mark.parametrize(("there", "wanted"), [("1", True), ("true", 1), ("1.0", 1), ('"1"', 1)])
def test_values_that_python_holds_for_equal_are_not(there: str, wanted: object) -> None:
    assert merge(f'{{"a": {there}}}', {"a": wanted}) == json.dumps({"a": wanted}, indent=4) + "\n"


def test_what_utf8_cannot_write_stays_as_json_names_it() -> None:
    assert merge('{"a": "\\ud800"}', {"b": 1}) == '{\n    "a": "\\ud800",\n    "b": 1\n}\n'


@pytest.mark.parametrize("current", [None, "", "  \n"])
def test_no_file_and_an_empty_file_are_an_empty_object(current: str | None) -> None:
    assert merge(current, {"a": "ü"}) == '{\n    "a": "ü"\n}\n'


@pytest.mark.parametrize(
    ("current", "message"),
    [
        ('{\n  "a": 1,\n}', "/etc/docker/daemon.json:3:1: found invalid JSON ("),
        ("{", "/etc/docker/daemon.json:1:2: found invalid JSON ("),
        ("[1]", "/etc/docker/daemon.json: found a list; wanted a JSON object;"),
        ("null", "/etc/docker/daemon.json: found null; wanted a JSON object;"),
        ('{"a": NaN}', "/etc/docker/daemon.json: found NaN;"),
        ('{"a": 1, "a": 2}', "/etc/docker/daemon.json: found key 'a' twice;"),
        ('\ufeff{"a": 1}', "/etc/docker/daemon.json:1:1: found a byte order mark before the JSON; wanted"),
        ('{\n "\udcfc": 1}', "/etc/docker/daemon.json:2:3: found a byte that is not UTF-8 (0xfc); wanted"),
        ("[" * 100_000, "/etc/docker/daemon.json: found JSON that is nested too deep, or a number that is"),
        (f'{{"a": {"1" * 5000}}}', "/etc/docker/daemon.json: found JSON that is nested too deep, or a"),
    ],
)
def test_what_is_no_object_is_an_error_that_says_where(current: str, message: str) -> None:
    with pytest.raises(SparkstackError) as caught:
        merge(current, {})
    # The column after a trailing comma differs between Python's versions; the line does not.
    assert str(caught.value).startswith(message) or str(caught.value).startswith(
        message.replace(":3:1", ":2:9")
    )


@given(OBJECT, OBJECT)
def test_a_second_merge_changes_nothing(current: dict[str, Any], wanted: dict[str, Any]) -> None:
    once = merge(json.dumps(current), wanted)
    assert merge(once, wanted) is once


@given(OBJECT, OBJECT)
def test_what_is_wanted_is_there_and_the_rest_stays(current: dict[str, Any], wanted: dict[str, Any]) -> None:
    merged = json.loads(merge(json.dumps(current), wanted))
    assert list(merged)[: len(current)] == list(current)
    _contains(merged, wanted)
    assert all(merged[key] == current[key] for key in current.keys() - wanted.keys())


def _contains(merged: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        if isinstance(value, dict):
            _contains(merged[key], value)
        else:
            assert merged[key] == value


BEFORE = '{"zeta": 1, "registry-mirrors": ["http://old"]}'
OURS = {"registry-mirrors": ["http://new"], "mtu": 1450, "log-opts": {"max-size": "50m"}}


@pytest.mark.parametrize(
    "before", [None, "", " \n", "{}", BEFORE, '{ "mtu":1450 }', '{"log-opts": {}, "mtu": null}']
)
def test_taken_back_whole_it_is_as_before_byte_for_byte(before: str | None) -> None:
    assert unmerge(merge(before, OURS), OURS, before) == before


def test_settings_that_others_made_since_stay() -> None:
    current = json.loads(merge(BEFORE, OURS))
    current |= {"dns": ["10.0.0.1"], "mtu": 9000}
    current["log-opts"]["max-file"] = "3"
    current["registry-mirrors"].append("http://theirs")
    assert json.loads(unmerge(json.dumps(current), OURS, BEFORE) or "") == {
        "zeta": 1,
        "registry-mirrors": ["http://old", "http://theirs"],
        "log-opts": {"max-file": "3"},
        "dns": ["10.0.0.1"],
        "mtu": 9000,
    }


def test_settings_that_others_took_out_stay_out() -> None:
    assert json.loads(unmerge('{"dns": []}', OURS, BEFORE) or "") == {"dns": []}
    assert (
        unmerge('{"registry-mirrors": ["http://both"]}', {"registry-mirrors": ["http://both"]}, None) is None
    )


def test_a_file_that_others_removed_stays_away() -> None:
    assert unmerge(None, OURS, BEFORE) is None


def test_where_nothing_is_ours_the_file_stays_byte_for_byte() -> None:
    current = '{"a":1 }'
    assert unmerge(current, {}, None) is current


def test_what_is_no_object_is_not_touched_on_the_way_back() -> None:
    with pytest.raises(SparkstackError, match="1:2: found invalid JSON"):
        unmerge("{", OURS, None)


@given(st.none() | OBJECT.map(json.dumps), st.lists(OBJECT, min_size=1, max_size=3))
def test_what_runs_put_in_goes_without_a_trace(before: str | None, runs: list[dict[str, Any]]) -> None:
    current = before
    for wanted in runs:
        current = merge(current, wanted)
    assert unmerge(current, combined(runs), before) == before


@given(OBJECT, OBJECT, OBJECT)
def test_taking_back_twice_is_taking_back_once(
    before: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    text = json.dumps(before)
    once = unmerge(merge(merge(text, ours), theirs), ours, text)
    assert unmerge(once, ours, text) == once


@pytest.mark.parametrize(
    ("ours", "wanted", "gone"),
    [
        ({}, {"a": 1}, {}),
        ({"a": 1}, {"a": 2}, {}),
        ({"a": 1, "b": [1]}, {"a": 1}, {"b": [1]}),
        ({"o": {"x": 1, "y": 2}}, {"o": {"y": 3}}, {"o": {"x": 1}}),
        ({"o": {"x": 1}}, {"o": 5}, {}),
    ],
)
def test_what_is_dropped(ours: dict[str, Any], wanted: dict[str, Any], gone: dict[str, Any]) -> None:
    assert dropped(ours, wanted) == gone
