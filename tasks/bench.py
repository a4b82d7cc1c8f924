"""What `bench.py` does: measures what serves, or any OpenAI-compatible endpoint, and deploys nothing.

From the head, as a job like the deployment's own; from this machine (`@local` with a URL) as a process. On a
host nothing changes but the job's files; the figures are kept in the report alone.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pyinfra import host, inventory
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import gates, knobs
from sparkstack import recipe as recipes
from sparkstack.errors import Problem, SparkstackError
from sparkstack.expectation import PROFILES, QUALITY, Benchmark, Expect, profile_of
from sparkstack.releases import Kept
from tasks import access, alone, bench_local, declared, live, report
from tasks.activation import Releases
from tasks.files import Commands, ManagedFile
from tasks.remote import Watch, fail, job, report_failure, shell
from tasks.site import LOCAL, ROOT, SiteError

OPTIONS = ("profile", "url", "model", "api_key_file", "quality")
KEY_VARIABLE = "SPARKSTACK_API_KEY"
URL = "url"
"""The release of an endpoint that nobody here deployed."""


@dataclass(frozen=True)
class Wish:
    """What shall be measured, from `--data`. `url` None: what serves on the inventory's head. `recipe` is
    what the figures are compared with, None where none was named; `quality` the tests in place of the
    profile's."""

    profile: str
    url: str | None
    model: str | None
    key: str | None = field(repr=False)
    recipe: recipes.Recipe | None
    quality: tuple[str, ...] | None = None

    @cached_property
    def expect(self) -> Expect | None:
        return self.recipe.expect if self.recipe else None

    @property
    def plan_profile(self) -> dict[str, Any]:
        profile = profile_of(self.profile, self.recipe.benchmark if self.recipe else Benchmark())
        return profile if self.quality is None else {**profile, "quality": list(self.quality)}


def wish(one: Any) -> Wish:
    """The wish of this run. Errors: SiteError, a line a mistake."""
    if mistakes := declared.problems(one, OPTIONS):
        raise SiteError("\n".join(map(str, mistakes)))
    data = one.data
    try:
        profile = str(data.get("profile") or "standard")
        if profile not in PROFILES:
            wanted = f"one of: {', '.join(PROFILES)}"
            raise SparkstackError(Problem("--data", f"profile = {profile!r}", wanted, "--data profile=smoke"))
        url = None if data.get("url") is None else _base(str(data.url))
        model = None if data.get("model") is None else str(data.model)
        if model is not None and url is None:
            wanted, remedy = "url beside it", "name the endpoint with --data url=…, or leave it out"
            raise SparkstackError(Problem("--data", f"model = {model!r} without url", wanted, remedy))
        # The default recipe says nothing of an endpoint that somebody else runs.
        named = url is None or declared.homes(one).get("recipe") == "--data"
        chosen = _recipe(str(data.recipe)) if named else None
        return Wish(profile, url, model, _key(one, url is None), chosen, _tests(one.data.get("quality")))
    except SparkstackError as error:
        raise SiteError(str(error)) from None


def _tests(wish: Any) -> tuple[str, ...] | None:
    """The tests that were named: `sane,gsm8k`, `none`, or nothing at all (None)."""
    if wish is None:
        return None
    names = [name.strip() for name in (wish if isinstance(wish, list) else str(wish).split(","))]
    if names == ["none"]:
        return ()
    for name in names:
        if name not in QUALITY:
            near = get_close_matches(name, QUALITY, 1)
            remedy = f"did you mean {near[0]!r}?" if near else "such as --data quality=sane,gsm8k"
            wanted = f"none, or of: {', '.join(QUALITY)}"
            raise SparkstackError(Problem("--data", f"quality = {name!r}", wanted, remedy))
    return tuple(dict.fromkeys(names))


def _base(url: str) -> str:
    try:
        return str(TypeAdapter(knobs.Url).validate_python(url)).rstrip("/").removesuffix("/v1")
    except ValidationError as error:
        wanted = str(error.errors()[0].get("ctx", {}).get("wanted", "a URL"))
        remedy = "such as --data url=http://192.0.2.1:8000"
        if "query" in wanted:
            remedy = f"a key comes from --data api_key_file=PATH or {KEY_VARIABLE}"
        found = f"url = {knobs.shown_url(url)!r}"
        raise SparkstackError(Problem("--data", found, wanted, remedy)) from None


def _key(one: Any, own: bool) -> str | None:
    """The API key: of a file, or of the environment; never of an argument. What the site declares for its
    `own` endpoint goes to no other."""
    file, variable = one.data.get("api_key_file"), one.data.get("api_key_env")
    if not own and declared.homes(one).get("api_key_file") != "--data":
        file = variable = None
    if file is None:
        for name in (variable or KEY_VARIABLE, KEY_VARIABLE):
            if os.environ.get(name):
                return _checked(os.environ[name].strip(), name, "set it anew")
        return None
    path = Path(str(file)).expanduser()
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise SparkstackError(Problem("api_key_file", f"{path}: {why}", "a file with the API key")) from None
    if not key:
        raise SparkstackError(Problem("api_key_file", f"nothing in {path}", "the API key", "correct it"))
    return _checked(key, "api_key_file", f"correct {path}")


def _checked(key: str, where: str, remedy: str) -> str:
    """A key that fits into a header; what an HTTP client says of another one would show it."""
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        found, wanted = "no key of one line", "printable ASCII without blanks"
        raise SparkstackError(Problem(where, found, wanted, remedy))
    return key


def _recipe(name: str) -> recipes.Recipe:
    return recipes.load_recipe(recipes.recipe_file(name, ROOT / "recipes"))


def of_release(asked: Wish, kept: Kept, explicit: bool) -> Wish:
    """The wish for a release that serves: it is compared with its own recipe, as that reads now; with the
    one that was named, where one was (`explicit`); with none where its own is not to be found."""
    name = str(kept.about.get("recipe"))
    if explicit or (asked.recipe is not None and asked.recipe.name == name):
        return asked
    try:
        found: recipes.Recipe | None = _recipe(name)
    except SparkstackError:
        found = None
    return replace(asked, recipe=found)


@operation()
def measured(asked: Wish, hosts: list[Any]) -> Commands:
    """Measure what serves, or the URL, from the first host, and judge it.

    Never a no-op: who calls it wants figures of now. On a host only the job's own files change.
    """
    if host.name != hosts[0].name:
        return
    if asked.url is not None:
        endpoint, model, release = asked.url, asked.model, URL
    else:
        kept = host.get_fact(Releases, config_dir=host.data.config_dir)
        if kept.current is None or kept.current not in kept.releases:
            yield fail(
                f"{host.name}: bench: found no release that serves; wanted one; run deploy.py first, or name "
                "an endpoint with --data url=http://…"
            )
            return
        about = kept.releases[kept.current]
        asked = of_release(asked, about, declared.homes(host).get("recipe") == "--data")
        endpoint, model, release = str(about.about["endpoint"]), str(about.about["model"]), kept.current
        if host.state.is_executing:
            report.note_release(release, about.about)
    name = f"sparkstack-bench-now-{release}-{asked.profile}"
    plan = {
        "job": name,
        "kind": "bench",
        "url": endpoint,
        "model": model,
        "release": release,
        "profile": asked.plan_profile,
        "previous": None,
    }
    if host.name == LOCAL and asked.url is not None:
        yield FunctionCommand(_here, (plan, asked), {})
        return
    yield from _there(plan, asked)


def _there(plan: dict[str, Any], asked: Wish) -> Commands:
    """As a job of the current host."""
    jobs = f"{host.data.state_dir}/jobs"
    python = f"{host.data.install_dir}/env/bin/python"
    result, key = f"{jobs}/{plan['job']}/measurement.json", f"{jobs}/{plan['job']}.key"
    plan = {**plan, "jobs_dir": jobs, "result": result, "api_key_file": key if asked.key else None}
    yield FunctionCommand(_has_environment, (python,), {})
    if asked.key:
        yield ManagedFile.text(key, asked.key + "\n", "600").write()
    watch = Watch(live.table)

    def failed(host: Any) -> None:
        _drop(host, key)
        if (part := live.partial(host, f"{jobs}/{plan['job']}")) is not None:
            _note(host, asked, plan, part)
        if watch.interrupted:
            report_failure(host, f"{host.name}: bench: found {watch.interrupted}; {live.INTERRUPTED}")

    def done(state: Any, host: Any) -> bool:
        _drop(host, key)
        found = live.read(host, result)
        if found is None:
            line = f"{host.name}: bench: found no measurement; wanted {result}; run again"
            return report_failure(host, line)
        if asked.url is not None and (other := _of_another(plan, found)):
            found_there = f"found {other} being measured from there"
            line = f"{host.name}: bench: {found_there}; wanted {asked.url}; run again"
            return report_failure(host, line)
        return _judged(host, asked, plan, found)

    yield from job(plan, failed=failed, watch=watch)
    yield FunctionCommand(done, (), {})


def _of_another(plan: dict[str, Any], found: dict[str, Any]) -> str:
    """What was measured instead: a job that was under way is joined, and it may be about another endpoint."""
    server = found.get("server") or {}
    url, model = server.get("url"), server.get("model")
    same = url in (None, plan["url"]) and (plan["model"] is None or model in (None, plan["model"]))
    return "" if same else f"{model} at {url}"


def _has_environment(state: Any, host: Any, python: str) -> bool:
    ok, _ = shell(host, f"test -x {shlex.quote(python)}")
    return ok or report_failure(
        host,
        f"{host.name}: bench: found no {python}; wanted the environment that measures; run deploy.py --data "
        "only=conda, or measure from here: pyinfra @local bench.py --data url=…",
    )


def _drop(host: Any, path: str) -> None:
    shell(host, f"rm -f {shlex.quote(path)}")


def _here(state: Any, host: Any, plan: dict[str, Any], asked: Wish) -> bool:
    """On this machine, with this Python."""
    end = bench_local.run(plan, asked.key)
    if end.measurement is not None and not end.error and not end.interrupted:
        return _judged(host, asked, plan, end.measurement)
    if end.measurement is not None:
        _note(host, asked, plan, {**end.measurement, "complete": False})
    error = f"found {end.by}; {live.INTERRUPTED}" if end.interrupted else end.error
    return report_failure(host, f"bench: {error}")


def _note(host: Any, asked: Wish, plan: dict[str, Any], measurement: dict[str, Any]) -> dict[str, Any] | None:
    """Put the figures and their verdict into the report; None (and a line) where they cannot be judged."""
    try:
        verdict = gates.judge(measurement, asked.expect).as_dict()
    except SparkstackError as error:
        report_failure(host, f"{host.name}: bench: {error}")
        return None
    server = measurement.get("server") or {}
    model = plan["model"] or str(server.get("model") or "the model")
    recipe = asked.recipe.name if asked.recipe else None
    head = None if host.name == LOCAL or asked.url is not None else host.name
    report.note_bench(recipe, plan["url"], head, model, measurement, verdict, asked.key is not None)
    return verdict


def _judged(host: Any, asked: Wish, plan: dict[str, Any], measurement: dict[str, Any]) -> bool:
    verdict = _note(host, asked, plan, measurement)
    if verdict is None or verdict["ok"]:
        return verdict is not None
    wanted = f"what recipe {asked.recipe.name} expects" if asked.recipe else "answers that make sense"
    if verdict["result"] == "inconclusive":
        wanted = "figures that can be believed"
        return report_failure(
            host,
            f"{host.name}: bench: found no result ({verdict['why']}); wanted {wanted}; "
            f"{gates.remedy(measurement, 'profile')}",
        )
    line = f"{host.name}: bench: found {gates.missed(verdict)}; wanted {wanted}"
    return report_failure(host, f"{line}; look at the report, or correct `expect`")


@deploy("benchmark")
def _declare(asked: Wish, hosts: list[Any]) -> None:
    measured(name="endpoint is measured", asked=asked, hosts=hosts)


def declare() -> None:
    """Declare the measurement on the current host of the run. Errors: SiteError."""
    hosts = list(inventory)
    host.state.should_raise_failed_hosts = lambda state: True
    asked = wish(host)
    if not hosts[0].connected:
        raise SiteError(
            f"{hosts[0].name}: found no connection; wanted it, for it is measured from there; check power, "
            "cable and ssh"
        )
    if not (host.name == LOCAL and asked.url is not None):
        access.ensure(host)
        # A deployment beside it would be measured, too, and would find a busy endpoint.
        alone.ensure(host, "bench.py")
    recipe = asked.recipe.name if asked.recipe else "none"
    report.begin(release="", recipe=recipe, kind="bench")
    _declare(asked=asked, hosts=hosts)
