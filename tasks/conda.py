"""The Spark-side environment: Miniforge, an environment from files/environment.yml, the package `onhost`."""

from __future__ import annotations

import hashlib
import shlex

from pyinfra import host
from pyinfra.api import deploy, operation

from tasks import wheels
from tasks.facts import Text
from tasks.files import Commands, ManagedFile
from tasks.operations import wheel_installed
from tasks.remote import fail, shell_job
from tasks.site import ROOT, Site

# Each product carries a marker with the hash of what it was made from, written last.
MARKER = ".sparkstack"


@operation()
def miniforge(url: str | None, sha256: str | None, prefix: str) -> Commands:
    """Install Miniforge under `prefix` from an installer with exactly this SHA-256.

    No-op when the prefix's marker holds that SHA-256. An installer with another hash never runs.
    """
    if not url or not sha256:
        yield fail(
            "conda: found no conda_url and conda_sha256; wanted an installer to trust; set both in group_data"
        )
        return
    if (host.get_fact(Text, path=f"{prefix}/{MARKER}") or "").strip() == sha256:
        host.noop(f"{prefix} is installed from {sha256[:12]}")
        return
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

    No-op when the environment's marker holds the definition's hash; rebuilt whole when it changed.
    """
    digest = hashlib.sha256(definition.encode()).hexdigest()[:12]
    target = f"{prefix}/env"
    if (host.get_fact(Text, path=f"{target}/{MARKER}") or "").strip() == digest:
        host.noop(f"{target} is built from {digest}")
        return
    source = f"{prefix}/environment-{digest}.yml"
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in pip_environment.items())
    yield ManagedFile.text(source, definition).write()
    yield from shell_job(
        "environment",
        digest,
        f"""set -e
{exports}rm -rf {target}
{prefix}/conda/bin/conda env create --yes -p {target} -f {source}
{target}/bin/python -c 'import huggingface_hub, httpx'
echo {digest} > {target}/{MARKER}
""",
    )


@deploy("conda")
def deploy_conda(site: Site) -> None:
    """After this the host runs jobs: `<install_dir>/env/bin/python -m onhost`."""
    prefix = site.data.install_dir
    miniforge(
        name="Miniforge is installed",
        url=site.data.conda_url,
        sha256=site.data.conda_sha256,
        prefix=f"{prefix}/conda",
    )
    environment(
        name="environment is built",
        prefix=prefix,
        definition=(ROOT / "files/environment.yml").read_text(),
        pip_environment=site.data.pip_environment,
    )
    wheel, digest = wheels.build(ROOT / "onhost")
    wheel_installed(
        name="package onhost is installed",
        python=site.python,
        wheel=wheel,
        digest=digest,
        marker=f"{prefix}/env/.sparkstack-onhost",
    )
