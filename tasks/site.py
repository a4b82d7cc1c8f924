"""What this run wants, worked out once: recipe, ranks, addresses, ids, and what each rank launches.

Everything here comes from declared data through the pure core; no host is asked anything. How a declaration
becomes a site, or is refused, is `tasks/declaration.py`.
"""

from __future__ import annotations

import functools
import getpass
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyinfra.api.exceptions import PyinfraError

from sparkstack import (
    api_key,
    engine_cache,
    engines,
    image_source,
    knobs,
    launch,
    nccl,
    recipe,
    release,
    releases,
)
from sparkstack.distribution import Distribution
from sparkstack.endpoint import own_url
from sparkstack.expectation import profile_of
from sparkstack.fabric import FabricPlan, Interface
from tasks import wheels
from tasks.files import ManagedFile, render

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "files" / "patches"
UNIT = "sparkstack-serve.service"
WATCHDOG = "sparkstack-watchdog.service"
# What pyinfra calls the machine it runs on.
LOCAL = "@local"


class SiteError(PyinfraError):
    """A user's mistake in a declaration; pyinfra prints it as one line."""

    # pyinfra would put our source file and line before the message, where the user's mistake is not. gevent
    # hands the exception on and sets the attribute, so it takes a value and forgets it.
    __traceback__ = property(lambda self: None, lambda self, value: None)


@dataclass(frozen=True)
class Site:
    """The declaration as one host sees it. Equal on every host but for `host` and `rank`."""

    host: Any
    rank: int
    hosts: list[Any]
    recipe: recipe.Recipe
    fabric: FabricPlan

    def at_head(self) -> Site:
        """The same declaration as the head sees it."""
        return self.seen_by(0)

    def seen_by(self, rank: int) -> Site:
        """The same declaration as another rank's host sees it."""
        return replace(self, host=self.hosts[rank], rank=rank)

    @property
    def data(self) -> Any:
        return self.host.data

    @property
    def head(self) -> Any:
        return self.hosts[0]

    @property
    def reached_by(self) -> str:
        """The address by which the controller comes; "" where it is this machine."""
        return "" if self.host.name == LOCAL else management_address(self.host)

    @property
    def user(self) -> str:
        return daily_user(self.host)

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    @property
    def python(self) -> str:
        return f"{self.data.install_dir}/env/bin/python"

    @property
    def jobs_dir(self) -> str:
        return f"{self.data.state_dir}/jobs"

    @property
    def checkpoints_dir(self) -> str:
        return f"{self.data.state_dir}/checkpoints"

    @property
    def downloads_dir(self) -> str:
        """Where the files of this checkpoint's source are while they are fetched (onhost names it)."""
        source = self.recipe.checkpoint.source
        return f"{self.data.state_dir}/downloads/{source.repo.replace('/', '--')}/{source.revision}"

    @property
    def secrets_dir(self) -> str:
        return f"{self.data.config_dir}/secrets"

    # Ids: hashes of all inputs, so that an equal id means an equal product.

    @property
    def image_base(self) -> str:
        base = self.recipe.image.base
        return str(self.data.image_bases.get(base, base))

    @functools.cached_property
    def plugin_wheel(self) -> tuple[Path, str]:
        return wheels.build(PLUGIN)

    @property
    def has_plugin(self) -> bool:
        """Does this engine's image get our vLLM plugin?"""
        return engines.has_plugin(self.recipe.serve.engine)

    def _dockerfile(self, image_id: str, *, buildkit: bool = False) -> str:
        if not self.has_plugin:
            return render("Dockerfile.plain.j2", image_id=image_id)
        image, wheel = self.recipe.image, self.plugin_wheel[0].name
        values = image_source.dockerfile_values(image.source, image.version)
        plugin = {"wheel": wheel, "plugin_version": wheel.split("-")[1], "image_id": image_id}
        template = "Dockerfile.source.j2" if image.build == "source" else "Dockerfile.j2"
        return render(template, **values, **plugin, buildkit=buildkit)

    @functools.cached_property
    def image_id(self) -> str:
        # The Dockerfile labels the image with its id, so it is hashed with that place empty.
        image = self.recipe.image
        plugin = self.plugin_wheel[1] if self.has_plugin else ""
        return image_source.id_of(
            image.build, self.image_base, plugin, self._dockerfile(""), image.build_args
        )

    @property
    def dockerfiles(self) -> dict[str, str]:
        """By name, as the job looks for them: the one that every builder reads and, where cache mounts gain
        something, the same for BuildKit. None where nothing is built."""
        build = self.recipe.image.build
        if build == "pull":
            return {}
        made = {"Dockerfile": self._dockerfile(self.image_id)}
        if build == "source":
            made["Dockerfile.buildkit"] = self._dockerfile(self.image_id, buildkit=True)
        return made

    @property
    def image_tag(self) -> str:
        return engines.image_name(self.recipe.serve.engine, self.image_id)

    @functools.cached_property
    def transforms(self) -> list[dict[str, Any]]:
        return self.recipe.checkpoint.plan()

    @functools.cached_property
    def checkpoint_id(self) -> str:
        source = self.recipe.checkpoint.source
        return release.checkpoint_id(
            source.repo, source.revision, self.transforms, release.TRANSFORM_VERSIONS, source.allow
        )

    @property
    def checkpoint_dir(self) -> str:
        return f"{self.checkpoints_dir}/{self.checkpoint_id}"

    @property
    def manifest_path(self) -> str:
        return f"{self.checkpoint_dir}/manifest.json"

    @property
    def hub_token_path(self) -> str | None:
        return f"{self.secrets_dir}/hub.token" if self.data.hub_token_file else None

    @functools.cached_property
    def api_key(self) -> str | None:
        """The endpoint's key; None where the site declares none. Errors: SparkstackError."""
        return api_key.read(self.data.api_key_file, self.data.api_key_env, os.environ)

    @property
    def api_key_path(self) -> str | None:
        """The file on every host with the key."""
        return f"{self.secrets_dir}/{api_key.KEY_FILE}" if self.api_key else None

    @functools.cached_property
    def _key_mark(self) -> dict[str, str]:
        return {api_key.VARIABLES[0]: api_key.mark(self.api_key)} if self.api_key else {}

    @property
    def secret_files(self) -> list[ManagedFile]:
        """What only root may read on every host."""
        if self.api_key is None:
            return []
        return [
            ManagedFile.text(f"{self.secrets_dir}/{api_key.ENV_FILE}", api_key.env_file(self.api_key), "600"),
            ManagedFile.text(f"{self.secrets_dir}/{api_key.KEY_FILE}", f"{self.api_key}\n", "600"),
        ]

    # The fabric and this rank's place in it.

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        return self.fabric.of(self.host.name)

    def rank_env(self, active_hcas: list[str]) -> dict[str, str]:
        return nccl.rank_env(
            self.fabric.kind,
            self.fabric,
            self.host.name,
            management=self.data.management_interface,
            active_hcas=active_hcas,
            accelerator=self.data.accelerator,
            management_address=management_address(self.host),
        )

    @property
    def head_fabric_address(self) -> str:
        return nccl.host_address(self.fabric, self.head.name, management_address(self.head))

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.hosts]

    @property
    def management(self) -> dict[str, str]:
        """Each host's address on the management network."""
        return {host.name: management_address(host) for host in self.hosts}

    @property
    def distribution(self) -> Distribution:
        return self.data.distribution  # type: ignore[no-any-return]

    # What each rank launches.

    @property
    def bind(self) -> str:
        """The address on which the head answers; a site may say "management" for the head's own."""
        bind = self.data.serve_bind
        return management_address(self.head) if bind == "management" else str(bind)

    @property
    def endpoint(self) -> str:
        """How the head itself asks."""
        return own_url(self.bind, self.recipe.serve.port)

    @property
    def served_model(self) -> str:
        return self.recipe.served_name

    def argv(self, rank: int) -> list[str]:
        """`docker run … vllm serve …` of a rank."""
        return self._argv(rank, launch.rendezvous_port(self.release_id, self.recipe.serve.port))

    def _argv(self, rank: int, master_port: int) -> list[str]:
        target = self.hosts[rank]
        config = self.data.config_dir
        place = launch.Rank(
            rank=rank,
            world=len(self.hosts),
            head_address=self.head_fabric_address,
            host_address=nccl.host_address(self.fabric, target.name, management_address(target)),
            master_port=master_port,
        )
        accelerator = self.data.accelerator
        secrets = [f"{self.secrets_dir}/{api_key.ENV_FILE}"] if self.api_key else []
        engine = engines.started(
            self.recipe,
            place,
            bind=self.bind,
            port=self.recipe.serve.port,
            accelerator=accelerator,
            api_key=self.api_key is not None,
            drain=self.data.drain_s,
        )
        files = []
        if self.api_key_path and engines.reads_key_file(self.recipe.serve.engine):
            files = ["--mount", f"type=bind,src={self.api_key_path},dst={api_key.INSIDE},readonly"]
        return launch.docker_argv(
            engine.words,
            entrypoint=engine.entrypoint,
            image=self.image_tag,
            checkpoint_dir=self.checkpoint_dir,
            accelerator=accelerator,
            env_files=[f"{config}/current/fabric.env", f"{config}/current/serve.env", *secrets],
            shm_size=self.recipe.serve.shm_size,
            cache=engine_cache.keeps(self.recipe),
            stop_signal=engines.STOP_SIGNALS.get(self.recipe.serve.engine),
            drain=self.data.drain_s,
            extra=[*files, *self.recipe.serve.extra_docker_args],
        )

    @functools.cached_property
    def unit_file(self) -> ManagedFile:
        text = render(
            "sparkstack-serve.service.j2",
            config_dir=self.data.config_dir,
            state_dir=self.data.state_dir,
            python=self.python,
            stop_seconds=launch.stop_seconds(self.data.drain_s),
            unit_stop_seconds=launch.unit_stop_seconds(self.data.drain_s),
            drop_caches=self.data.drop_caches,
        )
        return ManagedFile.text(f"/etc/systemd/system/{UNIT}", text)

    @functools.cached_property
    def watchdog_files(self) -> list[ManagedFile]:
        """The limits of starts and watchdog, which are in no release, and the watchdog's unit, which is the
        same in every one."""
        limits = {name: value for name, value in dict(self.data.watchdog).items() if name != "enabled"}
        # Until its unit is killed a head that stops may serve.
        stops = launch.unit_stop_seconds(self.data.drain_s) + launch.UNIT_SECONDS
        if stops > limits.get("head_stops_s", knobs.Watchdog().head_stops_s):
            limits["head_stops_s"] = stops
        config = self.data.config_dir
        unit = render("sparkstack-watchdog.service.j2", python=self.python, config_dir=config)
        return [
            ManagedFile.text(f"{config}/watchdog.json", json.dumps(limits, sort_keys=True) + "\n"),
            ManagedFile.text(f"/etc/systemd/system/{WATCHDOG}", unit),
        ]

    def ready_script(self, rank: int) -> str:
        return render(
            "ready.sh.j2",
            rank=rank,
            url=self.endpoint if rank == 0 else None,
            model=self.served_model,
            python=self.python,
            config_dir=self.data.config_dir,
            api_key_file=self.api_key_path,
            timeout=self.recipe.serve.ready_timeout_s,
        )

    @property
    def serve_env(self) -> dict[str, str]:
        """The variables of every rank's engine (serve.env)."""
        return engines.env(self.recipe, len(self.hosts))

    @functools.cached_property
    def release_id(self) -> str:
        ranks = range(len(self.hosts))
        return release.release_id(
            self.image_id,
            self.checkpoint_id,
            # The port at which the ranks meet is worked out of the id, so it is hashed without it.
            [self._argv(rank, launch.MASTER_PORT) for rank in ranks],
            [self.serve_env | self._key_mark] * len(self.hosts),
            self.unit_file.content.decode() + "".join(self.ready_script(rank) for rank in ranks),
        )

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """What a release is (release.json): enough to start it, and to compare it, without its recipe."""
        source = self.recipe.checkpoint.source
        return {
            "format": releases.FORMAT,
            "release": self.release_id,
            "recipe": self.recipe.name,
            "rank": self.rank,
            "world": len(self.hosts),
            "hosts": [host.name for host in self.hosts],
            "image": self.image_tag,
            "base": self.image_base,
            "checkpoint": self.checkpoint_id,
            "source": {"repo": source.repo, "revision": source.revision},
            "donors": [step["donor"] for step in self.transforms if step.get("donor")],
            "transforms": [step["name"] for step in self.transforms],
            "endpoint": self.endpoint,
            "bind": self.bind,
            "port": self.recipe.serve.port,
            "memory_gib": self.recipe.budget.memory_gib,
            "api_key_file": self.api_key_path,
            "model": self.served_model,
            "ready_timeout_s": self.recipe.serve.ready_timeout_s,
            "argv": self.argv(self.rank),
            "env": releases.env_marks(self.serve_env) | self._key_mark,
        }

    @functools.cached_property
    def release_files(self) -> list[ManagedFile]:
        folder = f"{self.data.config_dir}/releases/{self.release_id}"
        about = json.dumps(self.about, indent=1, sort_keys=True)
        run = launch.run_script(launch.journaled(self.rank, self.release_id, self.argv(self.rank)))
        return [
            ManagedFile.text(f"{folder}/release.json", about + "\n"),
            ManagedFile.text(f"{folder}/serve.env", launch.env_file(self.serve_env), "600"),
            ManagedFile.text(f"{folder}/run", run, "755"),
            ManagedFile.text(f"{folder}/ready", self.ready_script(self.rank), "755"),
        ]

    # The benchmark.

    @property
    def is_measured(self) -> bool:
        return bool(self.data.benchmark != "off")

    @property
    def profile(self) -> dict[str, Any]:
        return profile_of(str(self.data.benchmark), self.recipe.benchmark)

    @property
    def measurement_path(self) -> str:
        return f"{self.data.state_dir}/results/{self.release_id}/measurement.json"

    @property
    def verdict_path(self) -> str:
        return f"{self.data.state_dir}/results/{self.release_id}/verdict.json"


def management_address(host: Any) -> str:
    """The address by which people and the controller reach a host: `address` of the inventory where it is
    set, else that of SSH. A Spark that provisions itself (@local) has no other name than this machine."""
    address = host.data.get("address") or host.data.get("ssh_hostname") or host.name
    return "127.0.0.1" if address == LOCAL else str(address)


def daily_user(host: Any) -> str:
    """Who works on a host: `user` where it is declared, else who comes by SSH, else who runs this."""
    declared = host.data.get("user") or host.data.get("ssh_user")
    return str(declared or os.environ.get("SUDO_USER") or getpass.getuser())
