"""A pyinfra deployment without operations: what a site declares for each host, as Ansible's host variables.

Run by `python -m benchmarks.rerun`, which names the folder for them in SPARKSTACK_RERUN_EXPORT. The values
are those that our tasks work with; the playbook says in Ansible's words what shall become of them.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from pyinfra import host

from sparkstack import docker_settings, launch, netplan
from tasks import declaration, site, wheels

KNOBS = [
    "packages",
    "sshd_protected",
    "earlyoom",
    "earlyoom_memory_percent",
    "earlyoom_swap_percent",
    "memlock_unlimited",
    "vm_swappiness",
    "swap",
    "drop_caches_sudo",
    "gpu_clock_max_mhz",
    "headless",
    "held_packages",
    "time_sync",
    "journald_persistent",
    "docker_mirrors",
    "conda_installers",
    "conda_url",
    "conda_sha256",
    "pip_environment",
    "config_dir",
    "state_dir",
    "install_dir",
    "accelerator",
]


def _connection() -> dict[str, Any]:
    """How Ansible reaches the host: by what the inventory says to pyinfra."""
    if host.name == "@local":
        return {"ansible_connection": "local"}
    found: dict[str, Any] = {"ansible_host": host.data.get("ssh_hostname") or host.name}
    for ours, theirs in (
        ("ssh_user", "ansible_user"),
        ("ssh_port", "ansible_port"),
        ("ssh_key", "ansible_ssh_private_key_file"),
    ):
        if host.data.get(ours):
            found[theirs] = host.data.get(ours)
    if known := host.data.get("ssh_known_hosts_file"):
        found["ansible_ssh_common_args"] = f"-o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes"
    return found


def _variables(here: site.Site) -> dict[str, Any]:
    definition = (site.ROOT / "files/environment.yml").read_bytes()
    wheel, digest = wheels.build(site.ROOT / "onhost")
    return {
        **_connection(),
        **{name: host.data.get(name) for name in KNOBS},
        "user": here.user,
        "docker_mirrors": host.data.get("docker_mirrors") or [],
        "root": str(site.ROOT),
        "daemon_settings": docker_settings.wanted(host.data, gpu=False),
        "daemon_settings_gpu": docker_settings.wanted(host.data, gpu=True),
        "environment_digest": hashlib.sha256(definition).hexdigest()[:12],
        "onhost_digest": digest,
        "onhost_wheel": str(wheel),
        "netplan": netplan.render(here.interfaces) if here.interfaces else "",
        "fabric_addresses": {interface.name: interface.cidr for interface in here.interfaces},
        "fabric_environment": launch.env_file(here.rank_env([])),
        "fabric_environment_hcas": launch.env_file(here.rank_env(["HCAS"])),
    }


folder = Path(os.environ["SPARKSTACK_RERUN_EXPORT"])
(folder / f"{host.name}.json").write_text(json.dumps(_variables(declaration.load())))
