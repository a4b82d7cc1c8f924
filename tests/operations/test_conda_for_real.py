"""The scripts of the task conda, run by a real shell with stand-ins for the tools that would download."""

from __future__ import annotations

import base64
import hashlib
import os
import runpy
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from fake_host import GROUP_DATA, FakeHost, commands_of, written

from tasks import conda, drift
from tasks.facts import CondaEnvironment, Text
from tasks.site import ROOT

INSTALLER = '#!/bin/sh\nfor last; do :; done\necho ran >> "$last/ran"\n'


def script(commands: list[Any]) -> str:
    (text,) = written(commands).values()
    return text


def tool(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("served", [INSTALLER, INSTALLER[:-9], "<html>404</html>", ""])
def test_a_corrupt_or_wrong_installer_never_runs(tmp_path: Path, served: str) -> None:
    source, prefix = tmp_path / "served.sh", tmp_path / "conda"
    source.write_text(served)
    pinned = hashlib.sha256(INSTALLER.encode()).hexdigest()
    host = FakeHost("spark-1", {Text: None})
    commands = commands_of(conda.miniforge, host, "aarch64", {}, f"file://{source}", pinned, str(prefix))
    done = run(script(commands), tmp_path)
    assert (prefix / "ran").exists() is (served == INSTALLER)
    assert (done.returncode == 0) is (served == INSTALLER)
    assert not (tmp_path / "conda.installer.sh").exists()
    if served == INSTALLER:
        assert (prefix / ".sparkstack").read_text() == f"{pinned}\n"
    else:
        assert not (prefix / ".sparkstack").exists()
        assert done.stdout.splitlines()[-1] == (
            f"found another SHA-256 than {pinned} at file://{source}; wanted the pinned one; check conda_url"
        )


def test_the_pinned_installers_have_a_version_and_a_hash() -> None:
    installers = runpy.run_path(str(ROOT / "group_data/all.py"))["conda_installers"]
    for arch in ("aarch64", "x86_64"):
        assert (
            installers[arch]["url"].endswith(f"-Linux-{arch}.sh") and "latest" not in installers[arch]["url"]
        )
        assert len(installers[arch]["sha256"]) == 64


# A conda whose environments have a Python that works, unless its mirror is down or its packages are broken.
CONDA = """mkdir -p {target}/bin
touch {target}/{state}
if test {state} = down; then echo no mirror; exit 1; fi
if test {state} = slow; then sleep 60; fi
printf '#!/bin/sh\\ntest {state} != broken\\n' > {target}/bin/python
chmod 755 {target}/bin/python
"""


def environment_job(folder: Path, definition: str, found: str | None = None) -> str:
    """The script of the operation, its definition (which it writes besides) left out."""
    host = FakeHost("spark-1", {CondaEnvironment: found})
    with drift.listen("spark-1"):
        files = written(commands_of(conda.environment, host, str(folder), definition, {}))
    return next(text for path, text in files.items() if path.endswith(".sh"))


def built(folder: Path) -> str | None:
    """The fact, as a shell of this machine answers it."""
    fact = CondaEnvironment()
    command = fact.command(**conda._environment_words(str(folder)))
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert said.stderr == ""
    return fact.process(said.stdout.splitlines())


def conda_is(folder: Path, state: str) -> None:
    tool(folder / "conda/bin", "conda", CONDA.format(target=folder / "env", state=state))


def digest(definition: str) -> str:
    return hashlib.sha256(definition.encode()).hexdigest()[:12]


@pytest.mark.parametrize("state", ["down", "broken"])
def test_an_environment_is_back_where_its_successor_cannot_be_built(tmp_path: Path, state: str) -> None:
    assert built(tmp_path) is None
    conda_is(tmp_path, "works")
    assert run(environment_job(tmp_path, "one"), tmp_path).returncode == 0
    assert built(tmp_path) == digest("one")
    conda_is(tmp_path, state)
    done = run(environment_job(tmp_path, "two"), tmp_path)
    assert done.returncode != 0
    # Nothing is said after conda: the log's last line is what the user reads.
    assert done.stdout == ("no mirror\n" if state == "down" else "")
    assert built(tmp_path) == digest("one") and (tmp_path / "env/works").exists()
    assert not (tmp_path / "env" / state).exists()
    conda_is(tmp_path, "new")
    assert run(environment_job(tmp_path, "two"), tmp_path).returncode == 0
    assert built(tmp_path) == digest("two")
    assert (tmp_path / "env/new").exists() and not (tmp_path / "env/works").exists()
    assert not (tmp_path / "conda/env.before").exists()


def test_a_first_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    conda_is(tmp_path, "broken")
    assert run(environment_job(tmp_path, "one"), tmp_path).returncode != 0
    assert not (tmp_path / "env").exists() and built(tmp_path) is None


def test_an_environment_that_does_not_import_is_built_again(tmp_path: Path) -> None:
    conda_is(tmp_path, "works")
    run(environment_job(tmp_path, "one"), tmp_path)
    host = FakeHost("spark-1", {CondaEnvironment: built(tmp_path)})
    assert commands_of(conda.environment, host, str(tmp_path), "one", {}) == []
    (tmp_path / "env/bin/python").unlink()
    assert built(tmp_path) == CondaEnvironment.BROKEN
    host.facts = {CondaEnvironment: CondaEnvironment.BROKEN}
    with drift.listen("spark-1") as told:
        assert commands_of(conda.environment, host, str(tmp_path), "one", {}) != []
    (one,) = told
    assert (one.thing, one.found) == (
        f"{tmp_path}/env", "that it cannot import huggingface_hub, httpx"
    )  # fmt: skip
    assert run(environment_job(tmp_path, "one", CondaEnvironment.BROKEN), tmp_path).returncode == 0
    assert built(tmp_path) == digest("one")


def test_packages_are_imported_again_only_where_something_was_touched(tmp_path: Path) -> None:
    environment, imports = tmp_path / "env", tmp_path / "imports"
    package = environment / "lib/python3.11/site-packages/httpx"
    package.mkdir(parents=True)
    (package / "client.py").write_text("whole")
    tool(environment / "bin", "python", f"echo once more >>{imports}")
    (environment / conda.MARKER).write_text("one\n")

    def imported() -> int:
        assert built(tmp_path) == "one"
        return len(imports.read_text().splitlines()) if imports.exists() else 0

    def mark() -> None:
        """As if it was installed some time ago: the clock of a file system goes by ticks."""
        (environment / conda.ONHOST_MARKER).write_text("x")
        while True:
            probe = tmp_path / "probe"
            probe.write_text("")
            if probe.stat().st_ctime_ns > (environment / conda.ONHOST_MARKER).stat().st_mtime_ns:
                return

    assert imported() == 1  # no marker of what was installed last
    changes: list[Any] = [
        lambda: (package / "client.py").write_text("half"),
        lambda: (package / "client.py").chmod(0o600),
        lambda: (package / "client.py").rename(package / "other.py"),
        lambda: tool(environment / "bin", "python", f"echo changed >>{imports}"),
        lambda: package.rename(environment / "lib/python3.11/httpx"),
    ]
    for number, change in enumerate(changes, 2):
        mark()
        assert imported() == number - 1
        change()
        assert imported() == number
    mark()
    # What Python compiled for itself is no change.
    (environment / "lib/python3.11/__pycache__").mkdir()
    mark()
    (environment / "lib/python3.11/__pycache__/os.pyc").write_text("")
    assert imported() == len(changes) + 1


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_build_costs_no_environment(tmp_path: Path, sent: signal.Signals) -> None:
    conda_is(tmp_path, "works")
    run(environment_job(tmp_path, "one"), tmp_path)
    conda_is(tmp_path, "slow")
    # As systemd stops a unit: every process of it.
    job = subprocess.Popen(["sh", "-c", environment_job(tmp_path, "two")], start_new_session=True)
    until = time.monotonic() + 30
    while not (tmp_path / "env/slow").exists():
        assert time.monotonic() < until and job.poll() is None
    os.killpg(job.pid, sent)
    assert job.wait(timeout=30) != 0
    if sent == signal.SIGTERM:
        assert built(tmp_path) == digest("one")
    conda_is(tmp_path, "down")
    assert run(environment_job(tmp_path, "two"), tmp_path).returncode != 0
    assert built(tmp_path) == digest("one")


def test_the_labs_conda_builds_such_an_environment_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if subprocess.run(["/usr/bin/python3", "-c", "import venv, ensurepip, yaml"], check=False).returncode:
        pytest.skip("the lab's stand-in needs python3-venv and python3-yaml")
    monkeypatch.setattr(conda, "PACKAGES", "pip, json")
    standin = str(ROOT / "lab/conda_standin.sh")
    subprocess.run(["bash", standin, "-b", "-u", "-p", str(tmp_path / "conda")], check=True)
    # The one before, by hand: a real one takes seconds.
    (tmp_path / "env").mkdir()
    (tmp_path / "env/old").touch()
    (tmp_path / "env" / conda.MARKER).write_text("before\n")
    definition = "dependencies: [python, pip]\n"
    (tmp_path / f"environment-{digest(definition)}.yml").write_text(definition)
    done = run(environment_job(tmp_path, definition), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert built(tmp_path) == digest(definition)
    assert not (tmp_path / "env/old").exists() and not (tmp_path / "conda/env.before").exists()


def source_job(folder: Path) -> str:
    host = FakeHost("spark-1", {Text: None})
    build = {**GROUP_DATA["source_build"], "jobs": 4}
    commands = commands_of(conda.vllm_from_source, host, "source", build, str(folder), {"PIP_X": "a b"})
    return script(commands)


def test_a_source_build_is_asked_for() -> None:
    host = FakeHost("spark-1")
    assert commands_of(conda.vllm_from_source, host, "container", {}, "/opt/x", {}) == []
    build = GROUP_DATA["source_build"]
    digest, _ = conda.source_script(build, "/opt/x", {})
    host.facts = {Text: f"{digest}\n"}
    assert commands_of(conda.vllm_from_source, host, "source", build, "/opt/x", {}) == []
    assert conda.source_script({**build, "ref": "v0.20.1"}, "/opt/x", {})[0] != digest


def test_what_the_source_build_does() -> None:
    text = source_job(Path("/opt/sparkstack"))
    order = [
        'create --yes --quiet -p "$prefix" python=3.12',
        "pip install --quiet torch==2.11.0 torchvision==0.26.0 torchaudio==2.11.0 --index-url https://",
        "git clone --quiet --depth 1 --branch v0.20.2 ",
        "use_existing_torch.py",
        "TORCH_CUDA_ARCH_LIST=12.1a",
        "MAX_JOBS=4",
        '--no-build-isolation --override "$prefix/torch.txt" -e .',
        "torch.version.cuda",
        "echo ",
    ]
    at = [text.index(words) for words in order[:-1]] + [text.rindex(order[-1])]
    assert at == sorted(at)
    assert "/cu130\n" in text and "export PIP_X='a b'\n" in text
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


PYTHON = """case "$*" in
*"pip freeze"*) printf 'torch==2.11.0+cu130\\nnumpy==2.3\\ntorchvision==0.26.0+cu130\\n' ;;
*torch.version.cuda*) echo {cuda} ;;
*torch.__version__*) echo 2.11.0+cpu ;;
*) echo "python $*" >> {log} ;;
esac"""


@pytest.mark.parametrize("cuda", ["13.0", ""])
def test_a_cpu_torch_fails_the_source_build(tmp_path: Path, cuda: str) -> None:
    text, log = source_job(tmp_path), tmp_path / "log"
    python = base64.b64encode(f"#!/bin/sh\n{PYTHON.format(cuda=cuda, log=log)}\n".encode()).decode()
    uv = base64.b64encode(f'#!/bin/sh\necho "uv $*" >> {log}\n'.encode()).decode()
    target = f"{tmp_path}/vllm/bin"
    make = f"mkdir -p {target}; " + "".join(
        f"echo {body} | base64 -d > {target}/{name}; chmod 755 {target}/{name}; "
        for name, body in (("python", python), ("uv", uv))
    )
    tool(tmp_path / "conda/bin", "conda", make)
    tool(
        tmp_path / "bin",
        "git",
        'for last; do :; done; mkdir -p "$last/requirements"; : > "$last/requirements/build.txt"',
    )
    done = run(text, tmp_path)
    marker = tmp_path / "vllm/.sparkstack"
    assert (tmp_path / "vllm/torch.txt").read_text() == "torch==2.11.0+cu130\ntorchvision==0.26.0+cu130\n"
    steps = log.read_text().splitlines()
    assert any("-r requirements/build.txt --override" in step for step in steps)
    assert (done.returncode == 0) is bool(cuda), done.stderr
    assert marker.exists() is bool(cuda)
    if not cuda:
        assert done.stdout.splitlines()[-1].startswith(
            "found torch 2.11.0+cpu without CUDA; wanted one from https://"
        )
