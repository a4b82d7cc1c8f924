"""Docker's daemon: our settings merged into what is there, and a restart only when they changed."""

from __future__ import annotations

from pyinfra.api import deploy
from pyinfra.operations import systemd

from tasks.operations import merged_daemon_json
from tasks.site import Site


@deploy("docker")
def deploy_docker(site: Site) -> None:
    """daemon.json gets the mirrors; the daemon runs and starts at boot."""
    settings = {"registry-mirrors": site.data.docker_mirrors, **site.data.docker_settings}
    merged = merged_daemon_json(
        name="daemon.json has our settings", path="/etc/docker/daemon.json", settings=settings
    )
    systemd.service(
        name="daemon restarts for changed settings",
        service="docker.service",
        restarted=True,
        _if=merged.did_change,
    )
    systemd.service(name="daemon runs", service="docker.service", running=True, enabled=True)
