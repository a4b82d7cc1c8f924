"""The vLLM plugin's frame, against a stand-in for vLLM: what stops the server, what is logged."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PATCHES = Path(__file__).parents[2] / "files" / "patches"
ALONE = SimpleNamespace(rank_in_group=0, world_size=1)  # a pipeline of one stage


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Gives a function that puts a vLLM of some version in place and returns the plugin's frame, fresh."""
    monkeypatch.syspath_prepend(PATCHES)

    class WorkerWrapperBase:
        """As vLLM's: what it has no method for is its worker's."""

        def __init__(self, worker: Any) -> None:
            self.worker = worker

        def __getattr__(self, name: str) -> Any:
            return getattr(self.worker, name)

    def start(version: str) -> Any:
        fake = ModuleType("vllm")
        fake.__version__ = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "vllm", fake)
        for name, members in {
            "v1": {},
            "v1.worker": {},
            "v1.worker.worker_base": {"WorkerWrapperBase": WorkerWrapperBase},
            "distributed": {},
            "distributed.parallel_state": {"get_pp_group": lambda: ALONE},
        }.items():
            module = ModuleType(f"vllm.{name}")
            vars(module).update(members)
            monkeypatch.setitem(sys.modules, f"vllm.{name}", module)
        import sparkstack_vllm.plugin as plugin

        return plugin

    def forget() -> None:
        for name in [n for n in sys.modules if n.split(".")[0] == "sparkstack_vllm"]:
            del sys.modules[name]

    forget()
    yield start
    forget()


def feature(plugin: Any, monkeypatch: pytest.MonkeyPatch, name: str = "thing", **more: Any) -> list[str]:
    """Give the plugin one feature, whose module only notes its calls in the list that is returned."""
    from sparkstack_vllm.features import SUPPORTED, Feature

    calls: list[str] = []
    module = SimpleNamespace(
        apply=lambda: calls.append("apply"),
        self_check=lambda: calls.append("self_check"),
        loaded=lambda model: f"{model} is another now",
    )
    monkeypatch.setitem(sys.modules, f"sparkstack_vllm.{name}", module)
    entry = Feature(name, "does something", **{"supported": SUPPORTED, **more})
    monkeypatch.setattr(plugin, "FEATURES", (entry,))
    return calls


def test_importing_the_package_imports_nothing_that_can_fail(vllm: Any) -> None:
    vllm("0.32.0")
    for name in [n for n in sys.modules if n.startswith("sparkstack_vllm")]:
        del sys.modules[name]
    import sparkstack_vllm

    assert callable(sparkstack_vllm.register)
    assert not [n for n in sys.modules if n.startswith("sparkstack_vllm.")]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("0.19.1", (0, 19, 1)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("0.20.2rc1.dev3+g12ab34c", (0, 20, 2)),
        ("v0.33", (0, 33, 0)),
    ],
)
def test_version(vllm: Any, text: str, parsed: tuple[int, int, int]) -> None:
    assert vllm(text).parse_version(text) == parsed


@pytest.mark.parametrize("version", ["0.18.9", "0.34.0", "0.34.0rc1", "1.0.0"])
def test_a_vllm_outside_the_range_stops_the_server(vllm: Any, version: str) -> None:
    plugin = vllm(version)
    with pytest.raises(plugin.PluginError) as caught:
        plugin.register("0.1.0")
    assert str(caught.value) == (
        f"sparkstack plugin: found vLLM {version}; wanted >=0.19,<0.34; "
        "use a base image in that range, or start with VLLM_PLUGINS= to leave the plugin out"
    )


def test_a_vllm_without_a_release_number_stops_the_server(vllm: Any) -> None:
    plugin = vllm("dev")
    with pytest.raises(plugin.PluginError, match=r"found vLLM version 'dev'; wanted >=0\.19,<0\.34; use a"):
        plugin.register("0.1.0")


@pytest.mark.parametrize("version", ["0.19.0", "0.32.0", "0.33.9"])
def test_says_once_a_process_what_is_on(
    vllm: Any, version: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = vllm(version)
    calls = feature(plugin, monkeypatch)
    monkeypatch.setenv("SPARKSTACK_THING", "1")
    caplog.set_level(logging.INFO, "vllm.sparkstack")

    plugin.register("0.1.0")
    plugin.register("0.1.0")

    assert calls == ["self_check", "apply"]
    assert [r.getMessage() for r in caplog.records] == [
        f"sparkstack plugin 0.1.0: vLLM {version}, features: thing"
    ]


def test_features_are_off_unless_switched_on(
    vllm: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = vllm("0.32.0")
    caplog.set_level(logging.INFO, "vllm.sparkstack")
    from sparkstack_vllm.features import FEATURES

    for known in FEATURES:
        monkeypatch.delenv(known.switch, raising=False)
    plugin.register("0.1.0")
    assert caplog.records[0].getMessage().endswith("features: none")


def test_a_default_can_be_switched_off(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = vllm("0.32.0")
    calls = feature(plugin, monkeypatch, default=True)
    monkeypatch.setenv("SPARKSTACK_THING", "0")
    plugin.register("0.1.0")
    assert calls == []


def test_a_switch_takes_0_or_1(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = vllm("0.32.0")
    calls = feature(plugin, monkeypatch)
    monkeypatch.setenv("SPARKSTACK_THING", "yes")
    with pytest.raises(plugin.PluginError, match=r"found SPARKSTACK_THING='yes'; wanted 0 or 1"):
        plugin.register("0.1.0")
    assert calls == []


def test_a_feature_that_is_on_but_not_for_this_vllm_stops_the_server(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = vllm("0.32.0")
    from sparkstack_vllm.features import Range

    calls = feature(plugin, monkeypatch, supported=Range((0, 19), (0, 24)))
    monkeypatch.setenv("SPARKSTACK_THING", "1")
    with pytest.raises(plugin.PluginError) as caught:
        plugin.register("0.1.0")
    assert str(caught.value) == (
        "sparkstack plugin: found vLLM 0.32.0; thing wants >=0.19,<0.24; set SPARKSTACK_THING=0"
    )
    assert calls == []


def test_a_failing_feature_stops_the_server(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = vllm("0.32.0")
    feature(plugin, monkeypatch)

    def broken() -> None:
        raise ImportError("no such class in this vLLM")

    monkeypatch.setattr(sys.modules["sparkstack_vllm.thing"], "apply", broken)
    monkeypatch.setenv("SPARKSTACK_THING", "1")
    with pytest.raises(ImportError):
        plugin.register("0.1.0")


def test_a_feature_whose_self_check_fails_stops_the_server(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = vllm("0.32.0")
    calls = feature(plugin, monkeypatch)

    def wrong() -> None:
        raise AssertionError("logits are off\nby half")

    monkeypatch.setattr(sys.modules["sparkstack_vllm.thing"], "self_check", wrong)
    monkeypatch.setenv("SPARKSTACK_THING", "1")
    with pytest.raises(plugin.PluginError) as caught:
        plugin.register("0.1.0")
    assert str(caught.value) == "sparkstack plugin: self-check of thing failed: logits are off by half"
    assert calls == []


def test_an_unknown_switch_is_named(
    vllm: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = vllm("0.32.0")
    feature(plugin, monkeypatch)
    monkeypatch.setenv("SPARKSTACK_THNIG", "1")
    plugin.register("0.1.0")
    assert "SPARKSTACK_THNIG names no feature; known: SPARKSTACK_THING" in caplog.text


def test_every_feature_in_the_list_is_a_module(vllm: Any) -> None:
    vllm("0.32.0")
    from sparkstack_vllm.features import FEATURES

    for known in FEATURES:
        source = (PATCHES / "sparkstack_vllm" / f"{known.name}.py").read_text()
        assert "\ndef apply() -> None:" in source
        assert "\ndef self_check() -> None:" in source
        assert "\ndef loaded(model: Any) -> str | Nothing:" in source


class TestCheckCommand:
    """`python -m sparkstack_vllm`, which decides whether an image build succeeds."""

    @pytest.fixture
    def main(self, vllm: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        vllm("0.32.0")
        import sparkstack_vllm
        import sparkstack_vllm.__main__ as main

        found = SimpleNamespace(load=lambda: sparkstack_vllm.register)
        monkeypatch.setattr(main, "entry_points", lambda **_: [found])
        return main

    def test_runs_self_checks_of_features_that_are_off(
        self, main: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = feature(main, monkeypatch)
        assert main.check() == "sparkstack plugin 0.1.0: vLLM 0.32.0, checked: thing"
        assert calls == ["self_check"]

    def test_fails_where_vllm_would_not_find_the_plugin(
        self, main: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(main, "entry_points", lambda **_: [])
        with pytest.raises(main.PluginError, match=r"found 0 entry points .*; wanted 1; install the wheel"):
            main.check()

    def test_fails_with_a_self_check(self, main: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        feature(main, monkeypatch)

        def wrong() -> None:
            raise AssertionError("logits are off by 1.0e-02")

        monkeypatch.setattr(sys.modules["sparkstack_vllm.thing"], "self_check", wrong)
        with pytest.raises(main.PluginError, match=r"self-check of thing failed: logits are off by 1\.0e-02"):
            main.check()


def test_a_feature_that_vllm_has_itself_says_so(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = vllm("0.30.0")
    from sparkstack_vllm.features import Range

    feature(plugin, monkeypatch, supported=Range((0, 20), (0, 30)), instead="the option x does it there")
    monkeypatch.setenv("SPARKSTACK_THING", "1")
    with pytest.raises(plugin.PluginError) as caught:
        plugin.register("0.1.0")
    assert str(caught.value) == (
        "sparkstack plugin: found vLLM 0.30.0; thing wants >=0.20,<0.30; set SPARKSTACK_THING=0; "
        "the option x does it there"
    )
    older = vllm("0.19.1")
    with pytest.raises(older.PluginError, match=r"thing wants >=0\.20,<0\.30; set SPARKSTACK_THING=0$"):
        older.register("0.1.0")


def test_a_features_knobs_are_known(
    vllm: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = vllm("0.32.0")
    feature(plugin, monkeypatch, knobs=("SPARKSTACK_THING_SIZE",))
    monkeypatch.setenv("SPARKSTACK_THING_SIZE", "3")
    monkeypatch.setenv("SPARKSTACK_THING_SIZES", "3")
    plugin.register("0.1.0")
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 1 and "SPARKSTACK_THING_SIZES names no feature" in warned[0]


class TestWhatWasFound:
    """Each feature's line once a worker has loaded its model, and a warning where there was nothing to do."""

    @pytest.fixture
    def worker(self, vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
        """A worker in vLLM's wrapper, with the plugin in its process; `loads` are its calls."""
        plugin = vllm("0.32.0")
        feature(plugin, monkeypatch)
        monkeypatch.setenv("SPARKSTACK_THING", "1")
        plugin.register("0.1.0")
        plugin.register("0.1.0")
        monkeypatch.setattr(plugin, "_done", False)
        plugin.register("0.1.0")
        caplog.clear()
        caplog.set_level(logging.INFO, "vllm.sparkstack")
        loads: list[Any] = []

        def load_model(**more: Any) -> str:
            loads.append(more)
            return "loaded"

        wrapper: Any = sys.modules["vllm.v1.worker.worker_base"].WorkerWrapperBase  # type: ignore[attr-defined]
        return wrapper(SimpleNamespace(load_model=load_model, get_model=lambda: "model", loads=loads))

    @staticmethod
    def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    def test_one_line_a_load(self, worker: Any, caplog: pytest.LogCaptureFixture) -> None:
        assert worker.load_model(load_dummy_weights=False) == "loaded"
        assert worker.loads == [{"load_dummy_weights": False}]
        assert self.said(caplog) == [("INFO", "sparkstack plugin: thing: model is another now")]

    def test_a_load_that_fails_says_nothing(self, worker: Any, caplog: pytest.LogCaptureFixture) -> None:
        def broken() -> None:
            raise MemoryError("no memory")

        worker.worker.load_model = broken
        with pytest.raises(MemoryError):
            worker.load_model()
        assert not caplog.records

    def test_a_worker_that_cannot_be_asked_serves(
        self, worker: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        del worker.worker.get_model
        assert worker.load_model() == "loaded"
        ((level, text),) = self.said(caplog)
        assert level == "WARNING" and text.endswith("when asked what its features did; not known")

    def test_a_wrapper_that_has_the_method_itself(self, vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        plugin = vllm("0.32.0")
        feature(plugin, monkeypatch)
        monkeypatch.setenv("SPARKSTACK_THING", "1")
        wrapper: Any = sys.modules["vllm.v1.worker.worker_base"].WorkerWrapperBase  # type: ignore[attr-defined]
        wrapper.load_model = lambda self, which: f"its own, {which}"
        plugin.register("0.1.0")
        assert wrapper(SimpleNamespace(get_model=lambda: "model")).load_model("a") == "its own, a"

    @pytest.mark.parametrize(
        ("more", "stage", "stages", "level", "text"),
        [
            ({}, 1, 1, "WARNING", "found no table; nothing was changed; set SPARKSTACK_THING=0"),
            (
                {"remedy": "correct its patterns", "changed": "little was changed"},
                1,
                1,
                "WARNING",
                "found no table; little was changed; correct its patterns, or set SPARKSTACK_THING=0",
            ),
            (
                {},
                1,
                2,
                "INFO",
                "found no table in pipeline stage 1 of 2; nothing was changed here; where every stage says "
                "so, set SPARKSTACK_THING=0",
            ),
            (
                {"in_last": True},
                1,
                2,
                "INFO",
                "nothing to do in pipeline stage 1 of 2; the last stage says what was done",
            ),
            (
                {"in_last": True},
                2,
                2,
                "WARNING",
                "found no table; nothing was changed; set SPARKSTACK_THING=0",
            ),
        ],
    )
    def test_nothing_found(
        self,
        worker: Any,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        more: dict[str, Any],
        stage: int,
        stages: int,
        level: str,
        text: str,
    ) -> None:
        from sparkstack_vllm.loading import Nothing

        thing = sys.modules["sparkstack_vllm.thing"]
        monkeypatch.setattr(thing, "loaded", lambda model: Nothing("no table", **more))
        group = SimpleNamespace(rank_in_group=stage - 1, world_size=stages)
        monkeypatch.setattr(sys.modules["vllm.distributed.parallel_state"], "get_pp_group", lambda: group)
        worker.load_model()
        assert self.said(caplog) == [(level, f"sparkstack plugin: thing: {text}")]
