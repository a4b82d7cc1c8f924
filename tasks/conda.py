"""The Spark-side environment: Miniforge, an environment from files/environment.yml, the package `onhost`."""

from __future__ import annotations

import hashlib
import shlex
from typing import Any

from pyinfra import host
from pyinfra.api import deploy, operation
from pyinfra.facts.server import Arch

from sparkstack import conda
from sparkstack.errors import SparkstackError
from tasks import drift, wheels
from tasks.facts import Ask, CondaEnvironment, Text
from tasks.files import Commands, ManagedFile, render
from tasks.operations import wheel_installed
from tasks.remote import fail, shell_job
from tasks.site import ROOT, Site

# Each product carries a marker with the hash of what it was made from, written last.
MARKER = ".sparkstack"
ONHOST_MARKER = ".sparkstack-onhost"
# What the package `onhost` imports of files/environment.yml: an environment counts when it can, too.
PACKAGES = "huggingface_hub, httpx"


def _environment_words(prefix: str) -> dict[str, Any]:
    return {"path": f"{prefix}/env", "marker": MARKER, "packages": PACKAGES, "last": ONHOST_MARKER}


def asks(site: Site) -> list[Ask]:
    """The facts that the operations below ask of a host that is as declared."""
    prefix = site.data.install_dir
    source: Ask = (Text, {"path": f"{prefix}/vllm/{MARKER}"})
    return [
        (Arch, {}),
        (Text, {"path": f"{prefix}/conda/{MARKER}"}),
        (CondaEnvironment, _environment_words(prefix)),
        (Text, {"path": f"{prefix}/env/{ONHOST_MARKER}"}),
        *([source] if site.data.runtime_install == "source" else []),
    ]


@operation()
def miniforge(
    arch: str, installers: dict[str, Any], url: str | None, sha256: str | None, prefix: str
) -> Commands:
    """Install Miniforge under `prefix` from the installer that is pinned for the host's architecture, or from
    the site's own.

    No-op when the prefix's marker holds the installer's SHA-256. An installer with another hash never runs.
    """
    try:
        url, sha256 = conda.installer(arch, installers, url, sha256)
    except SparkstackError as error:
        yield fail(*error.lines)
        return
    if (host.get_fact(Text, path=f"{prefix}/{MARKER}") or "").strip() == sha256:
        host.noop(f"{prefix} is installed from {sha256[:12]}")
        return
    drift.differs(f"{prefix}/{MARKER}", "no installation, or from another installer", sha256)
    installer = f"{prefix}.installer.sh"
    yield from shell_job(
        "conda",
        sha256[:12],
        f"""set -e
mkdir -p {shlex.quote(str(prefix))}
curl -fsSL --retry 3 -o {installer} {shlex.quote(url)}
echo "{sha256}  {installer}" | sha256sum -c --quiet || {{
  rm -f {installer}
  echo "found another SHA-256 than {sha256} at {url}; wanted the pinned one; check conda_url"
  exit 1
}}
bash {installer} -b -u -p {prefix}
rm -f {installer}
echo {sha256} > {prefix}/{MARKER}
""",
    )


@operation()
def environment(prefix: str, definition: str, pip_environment: dict[str, str]) -> Commands:
    """Build the conda environment `<prefix>/env` from a definition (the YAML's text).

    No-op when the environment's marker holds the definition's hash and its packages can be imported; else
    it is rebuilt whole. The one before is back where the build fails (environments cannot be built elsewhere
    and moved), and after a killed build the next run begins with it.
    """
    digest = hashlib.sha256(definition.encode()).hexdigest()[:12]
    target = f"{prefix}/env"
    found = host.get_fact(CondaEnvironment, **_environment_words(prefix))
    if found == digest:
        host.noop(f"{target} is built from {digest}")
        return
    if found == CondaEnvironment.BROKEN:
        drift.differs(target, f"that it cannot import {PACKAGES}", "an environment that works")
    else:
        drift.differs(f"{target}/{MARKER}", "no environment, or from another definition", digest)
    source = f"{prefix}/environment-{digest}.yml"
    # Among conda's own files: `remove.py` takes them with it.
    before = f"{prefix}/conda/env.before"
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in pip_environment.items())
    yield ManagedFile.text(source, definition).write()
    yield from shell_job(
        "environment",
        digest,
        f"""set -e
{exports}if test -e {before}; then
  if test -e {target}/{MARKER}; then rm -rf {before}; else rm -rf {target}; mv {before} {target}; fi
fi
put_back() {{
  status=$?
  if test $status != 0 && test ! -e {target}/{MARKER}; then
    rm -rf {target}
    test ! -e {before} || mv {before} {target}
  fi
  exit $status
}}
test ! -e {target} || mv {target} {before}
trap put_back EXIT
trap 'exit 143' HUP INT TERM
{prefix}/conda/bin/conda env create --yes -p {target} -f {source}
{target}/bin/python -IBc 'import {PACKAGES}'
echo {digest} > {target}/{MARKER}
rm -rf {before}
""",
    )


@operation()
def vllm_from_source(
    runtime_install: str, build: dict[str, Any], install_dir: str, pip_environment: dict[str, str]
) -> Commands:
    """Build vLLM from source under `<install_dir>/vllm`, as a job of the host.

    No-op when `runtime_install` is not "source", and when the environment's marker holds the hash of the
    job's script; the marker is written after torch was seen to have CUDA.
    """
    if runtime_install != "source":
        host.noop("vLLM comes as an image")
        return
    digest, script = source_script(build, install_dir, pip_environment)
    marker = f"{install_dir}/vllm/{MARKER}"
    if (host.get_fact(Text, path=marker) or "").strip() == digest:
        host.noop(f"{install_dir}/vllm is built from {digest}")
        return
    drift.differs(marker, "no build of vLLM, or another one", digest)
    yield from shell_job("vllm-source", digest, script)


def source_script(
    build: dict[str, Any], install_dir: str, pip_environment: dict[str, str]
) -> tuple[str, str]:
    """(digest, text) of the job's script; the digest is over the script with its own place empty."""
    values = {**conda.source_values(build, install_dir), "environment": sorted(pip_environment.items())}
    digest = hashlib.sha256(render("vllm-source.sh.j2", digest="", **values).encode()).hexdigest()[:12]
    return digest, render("vllm-source.sh.j2", digest=digest, **values)


@deploy("conda")
def deploy_conda(site: Site) -> None:
    """After this the host runs jobs: `<install_dir>/env/bin/python -m onhost`."""
    prefix = site.data.install_dir
    variables = conda.variables(site.data.pip_environment, site.data.conda_channel_alias)
    miniforge(
        name="Miniforge is installed",
        arch=host.get_fact(Arch),  # for a machine it is what it is; asked once
        installers=site.data.conda_installers,
        url=site.data.conda_url,
        sha256=site.data.conda_sha256,
        prefix=f"{prefix}/conda",
    )
    environment(
        name="environment is built",
        prefix=prefix,
        definition=(ROOT / "files/environment.yml").read_text(),
        pip_environment=variables,
    )
    wheel, digest = wheels.build(ROOT / "onhost")
    wheel_installed(
        name="package onhost is installed",
        python=site.python,
        wheel=wheel,
        digest=digest,
        marker=f"{prefix}/env/{ONHOST_MARKER}",
    )
    vllm_from_source(
        name="vLLM is built, where it is to be",
        runtime_install=site.data.runtime_install,
        build=site.data.source_build,
        install_dir=prefix,
        pip_environment=variables,
    )
