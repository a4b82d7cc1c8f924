"""The host: packages that the rest needs, and the user in Docker's group."""

from __future__ import annotations

from pyinfra.api import deploy
from pyinfra.operations import apt, server

from tasks.site import Site


@deploy("host")
def deploy_host(site: Site) -> None:
    """Packages are only ever added; groups of others stay (`append`)."""
    apt.packages(name="packages are there", packages=site.data.packages)
    server.group(name="group docker exists", group="docker", system=True)
    server.user(
        name=f"{site.data.user} may use Docker",
        user=site.data.user,
        groups=["docker"],
        append=True,
        ensure_home=False,
    )
