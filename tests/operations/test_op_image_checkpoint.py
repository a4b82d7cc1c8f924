"""Image, checkpoint and share: made once on the head, fetched by the others, nothing when all is there."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, commands_of, follow, shell_lines, written

from sparkstack import topology
from tasks import checkpoint, drift, image, share
from tasks.facts import CheckpointFaults, FileStates, ImageCheck, ImageId, Json, Text, UnitState
from tasks.site import Site

Sites = Callable[..., list[Site]]
FETCHING = ["write", "put token", "reach share", "begin job", "look at job", "drop token"]
# What the head prints when it is asked to open the share: the token of one that an earlier run opened.
OPEN = {"open share": "token-of-the-running-share"}
ENDED_WELL = {"look at job": 'inactive\n{"ok": true, "seconds": 1, "value": {}}'}


def plan_of(commands: list[Any]) -> dict[str, Any]:
    plans = [
        text for path, text in written(commands).items() if path.startswith("/var/lib/sparkstack/plans/")
    ]
    assert len(plans) == 1
    plan: dict[str, Any] = json.loads(plans[0])
    return plan


def joined(host: FakeHost, job: str) -> bool:
    return any(f"systemd-run --quiet --collect --unit={job} " in line for line in host.heard)


def silent(site: Site, commands: list[Any]) -> None:
    assert shell_lines(commands) == []
    assert not follow(commands, site.host)
    (line,) = site.host.shown
    assert line == (
        f"{site.host.name}: image: found a Docker daemon that does not answer; wanted it running; "
        "see `systemctl status docker`"
    )


def test_image_is_built_on_the_head(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts, site.host.answers = {ImageId: None}, dict(ENDED_WELL)
    commands = commands_of(image.built, site.host, site)
    context = f"/var/lib/sparkstack/build/{site.image_id}"
    files = written(commands)
    assert files[f"{context}/sparkstack_vllm-0.1.0-py3-none-any.whl"] == "a wheel\n"
    assert f'sparkstack.image="{site.image_id}"' in files[f"{context}/Dockerfile"]
    job = f"sparkstack-image-{site.image_id}"
    assert plan_of(commands) == {
        "job": job,
        "kind": "image",
        "jobs_dir": "/var/lib/sparkstack/jobs",
        "tag": f"sparkstack/vllm:{site.image_id}",
        "base": "example/vllm@sha256:" + 64 * "1",
        "context": context,
        "mirrors": [],
        "build_args": {"JOBS": "2"},
        "check": {"profile": "cpu", "vllm": None},
    }
    assert follow(commands, site.host)
    assert joined(site.host, job)


@pytest.mark.parametrize("base", [None, "sha256:0b"])
def test_a_base_that_we_pull_is_noted(sites: Sites, base: str | None) -> None:
    (site,) = sites(1)
    site.host.facts = {ImageId: lambda tag: base if tag == site.image_base else None}
    lines = shell_lines(commands_of(image.built, site.host, site))
    assert any("/did/image/example%2Fvllm@sha256:1111" in line for line in lines) is (base is None)


def test_image_that_is_built_stays(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {ImageId: "sha256:0a", ImageCheck: {"ok": True, "profile": "cpu", "lines": []}}
    assert commands_of(image.built, site.host, site) == []
    assert site.host.noops == [f"sparkstack/vllm:{site.image_id} is built"]


def test_another_version_of_vllm_is_proved_anew(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    (site,) = sites(1)
    line = {"check": "vllm_version", "status": "ok", "found": "vLLM 0.20.2", "wanted": "vLLM 0.20.2"}
    report = {"ok": True, "profile": "cpu", "lines": [line]}
    site.host.facts = {ImageId: "sha256:0a", ImageCheck: report}
    monkeypatch.setattr(image, "_version", lambda site: "0.20.2")
    assert commands_of(image.built, site.host, site) == []
    monkeypatch.setattr(image, "_version", lambda site: "0.33.0")
    assert plan_of(commands_of(image.built, site.host, site))["check"]["vllm"] == "0.33.0"


@pytest.mark.parametrize(
    "report", [None, {"ok": False, "profile": "cpu"}, {"ok": True, "profile": "gpu"}, {"ok": "yes"}]
)
def test_an_image_that_is_not_proved_for_this_hardware_is_not_built(sites: Sites, report: Any) -> None:
    """A tag alone proves nothing: somebody may have made it, or for another kind of host."""
    (site,) = sites(1)
    site.host.facts = {ImageId: "sha256:0a", ImageCheck: report}
    assert plan_of(commands_of(image.built, site.host, site))["check"]["profile"] == "cpu"


def test_the_release_keeps_the_images_check(sites: Sites) -> None:
    (site,) = sites(1)
    path = f"/etc/sparkstack/releases/{site.release_id}/image-check.json"
    site.host.facts = {Text: None}
    (line,) = shell_lines(commands_of(image.recorded, site.host, site))
    assert line.startswith("docker image inspect --format ") and f"mv -T {path}.new {path}" in line
    site.host.facts = {Text: "{}\n"}
    assert commands_of(image.recorded, site.host, site) == []


def test_the_release_keeps_the_images_id(sites: Sites) -> None:
    (site,) = sites(1)
    path = f"/etc/sparkstack/releases/{site.release_id}/image-id"
    for kept in (None, "sha256:0b\n"):
        site.host.facts = {Text: kept, ImageId: "sha256:0a"}
        (line,) = shell_lines(commands_of(image.identified, site.host, site))
        assert line.startswith("docker image inspect --format '{{.Id}}' ")
        assert f"mv -T {path}.new {path}" in line
    for found in ("sha256:0b", ""):  # a daemon that is silent says nothing against it
        site.host.facts = {Text: "sha256:0b\n", ImageId: found}
        assert commands_of(image.identified, site.host, site) == []


def test_an_id_reaches_the_kept_releases_of_the_same_image(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would not start otherwise, when somebody goes back to one."""
    (site,) = sites(1, config_dir=str(tmp_path))
    site.host.facts = {Text: None, ImageId: "sha256:0a"}
    (line,) = shell_lines(commands_of(image.identified, site.host, site))
    folder = tmp_path / "releases"
    tags = {site.release_id: site.image_tag, "same": site.image_tag, "other": "sparkstack/x:1"}
    for name, tag in tags.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "release.json").write_text(json.dumps({"image": tag}, indent=1))
        (folder / name / "image-id").write_text("sha256:old\n")
    (folder / "older").mkdir()  # of before ids were kept: it stays so
    (folder / "older" / "release.json").write_text(json.dumps({"image": site.image_tag}, indent=1))
    (tmp_path / "docker").write_text("#!/bin/sh\necho sha256:new\n")
    (tmp_path / "docker").chmod(0o755)
    subprocess.run(["sh", "-c", line], check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    kept = {path.parent.name: path.read_text() for path in folder.glob("*/image-id")}
    new, old = "sha256:new\n", "sha256:old\n"
    assert kept == {site.release_id: new, "same": new, "other": old}
    assert not list(folder.glob("*/*.new"))


def test_a_silent_daemon_is_no_missing_image(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {ImageId: ""}
    silent(site, commands_of(image.built, site.host, site))


@pytest.mark.parametrize("of_the_head", ["sha256:0a", None, ""])
def test_a_worker_whose_daemon_is_silent(sites: Sites, of_the_head: str | None) -> None:
    """Two daemons that say nothing do not have the same image."""
    head, worker = sites(2)
    head.host.facts, worker.host.facts = {ImageId: of_the_head}, {ImageId: ""}
    silent(worker, commands_of(image.received, worker.host, worker))


def test_another_base_is_another_image(sites: Sites) -> None:
    (one,), (other,) = sites(1), sites(1, image_bases={one_base(): "example/vllm@sha256:" + 64 * "2"})
    assert one.image_id != other.image_id
    assert one.checkpoint_id == other.checkpoint_id
    assert one.release_id != other.release_id


def one_base() -> str:
    return "example/vllm@sha256:" + 64 * "1"


def test_image_is_fetched_from_the_head(sites: Sites) -> None:
    head, worker = sites(2)
    head.host.facts, worker.host.facts = {ImageId: "sha256:0a"}, {ImageId: None}
    head.host.answers, worker.host.answers = dict(OPEN), dict(ENDED_WELL)
    commands = commands_of(image.received, worker.host, worker)
    job = f"sparkstack-fetch-image-{head.image_id}"
    assert plan_of(commands) == {
        "job": job,
        "kind": "fetch-image",
        "jobs_dir": "/var/lib/sparkstack/jobs",
        "tag": head.image_tag,
        "image_id": "sha256:0a",
        "url": "http://192.168.96.10:18090",
        "token_file": "/etc/sparkstack/secrets/share.token",
    }
    assert follow(commands, worker.host)
    assert joined(worker.host, job)
    assert worker.host.kinds() == FETCHING
    assert head.host.kinds() == ["open share"]
    assert "-m onhost share --bind 192.168.96.10 --port 18090 " in head.host.heard[-1]


def test_image_of_the_head_stays(sites: Sites) -> None:
    head, worker = sites(2)
    head.host.facts = worker.host.facts = {ImageId: "sha256:0a"}
    assert commands_of(image.received, worker.host, worker) == []
    assert worker.host.noops == [f"{head.image_tag} is the head's"]


def test_checkpoint_is_staged_on_the_head(sites: Sites) -> None:
    (site,) = sites(1, hub_endpoint="https://mirror.example", hub_token_file="~/token")
    site.host.facts, site.host.answers = {Json: None}, dict(ENDED_WELL)
    commands = commands_of(checkpoint.staged, site.host, site)
    job = f"sparkstack-checkpoint-{site.checkpoint_id}"
    assert plan_of(commands) == {
        "job": job,
        "kind": "checkpoint",
        "jobs_dir": "/var/lib/sparkstack/jobs",
        "id": site.checkpoint_id,
        "source": {
            "repo": "org/model",
            "revision": "0123456789012345678901234567890123456789",
            "endpoint": "https://mirror.example",
            "token_file": "/etc/sparkstack/secrets/hub.token",
            "allow": ["*.safetensors", "*.json"],
        },
        "transforms": [{"name": "register_mtp"}],
        "keep_source": True,
        "hashes": False,
        "downloads_dir": "/var/lib/sparkstack/downloads",
        "checkpoints_dir": "/var/lib/sparkstack/checkpoints",
    }
    assert follow(commands, site.host)
    assert joined(site.host, job)


@pytest.mark.parametrize("manifest", [None, {}, {"id": "another"}])
def test_only_the_right_manifest_means_staged(sites: Sites, manifest: Any) -> None:
    (site,) = sites(1)
    site.host.facts = {Json: manifest}
    assert commands_of(checkpoint.staged, site.host, site) != []
    for faults in ([], None):  # None: nothing there that could look
        site.host.facts = {Json: {"id": site.checkpoint_id}, CheckpointFaults: faults}
        assert commands_of(checkpoint.staged, site.host, site) == []
        assert site.host.noops.pop() == f"checkpoint {site.checkpoint_id} is staged"


@pytest.mark.parametrize("hashes", [False, True])
def test_damage_is_mended_by_the_same_job(sites: Sites, hashes: bool) -> None:
    head, worker = sites(2, hashes="yes" if hashes else "no")
    asked: list[bool] = []

    def faults(python: str, folder: str, hashes: bool) -> list[str]:
        asked.append(hashes)
        return ["a: missing", "b: 3 bytes, wanted 4", "c: missing", "d: missing"]

    for site, what, kind in ((head, checkpoint.staged, ""), (worker, checkpoint.received, "fetch-")):
        site.host.facts = {Json: {"id": head.checkpoint_id}, CheckpointFaults: faults}
        with drift.listen(site.host.name) as told:
            plan = plan_of(commands_of(what, site.host, site))
        assert plan["job"] == f"sparkstack-{kind}checkpoint-{head.checkpoint_id}"
        assert plan["hashes"] is hashes
        assert [(one.thing, one.found) for one in told] == [
            (head.checkpoint_dir, "a: missing; b: 3 bytes, wanted 4; c: missing and 1 more")
        ]
    assert asked == [hashes, hashes]


def test_checkpoint_is_fetched_from_the_head(sites: Sites) -> None:
    head, worker = sites(2)
    manifest = {"id": head.checkpoint_id, "bytes": 2}
    head.host.facts, worker.host.facts = {Json: manifest}, {Json: {**manifest, "bytes": 1}}
    head.host.answers, worker.host.answers = dict(OPEN), dict(ENDED_WELL)
    commands = commands_of(checkpoint.received, worker.host, worker)
    assert plan_of(commands) == {
        "job": f"sparkstack-fetch-checkpoint-{head.checkpoint_id}",
        "kind": "fetch-checkpoint",
        "jobs_dir": "/var/lib/sparkstack/jobs",
        "id": head.checkpoint_id,
        "checkpoints_dir": "/var/lib/sparkstack/checkpoints",
        "url": "http://192.168.96.10:18090",
        "token_file": "/etc/sparkstack/secrets/share.token",
        "streams": 4,
        "hashes": False,
    }
    assert follow(commands, worker.host)
    assert worker.host.kinds() == FETCHING


def test_checkpoint_of_the_head_stays(sites: Sites) -> None:
    head, worker = sites(2)
    head.host.facts = worker.host.facts = {Json: {"id": head.checkpoint_id}, CheckpointFaults: []}
    assert commands_of(checkpoint.received, worker.host, worker) == []
    assert worker.host.noops == [f"checkpoint {head.checkpoint_id} is the head's"]


def test_the_token_travels_on_standard_input(sites: Sites) -> None:
    head, worker = sites(2)
    head.host.facts, worker.host.facts = {ImageId: "sha256:0a"}, {ImageId: None}
    head.host.answers, worker.host.answers = dict(OPEN), dict(ENDED_WELL)
    commands = commands_of(image.received, worker.host, worker)
    assert follow(commands, worker.host)
    everything = [*head.host.heard, *worker.host.heard, *shell_lines(commands), *written(commands).values()]
    everything += [*head.host.shown, *worker.host.shown]
    tokens = (share.TOKEN, OPEN["open share"])
    assert not [line for line in everything if any(token in line for token in tokens)]
    assert head.host.fed == [share.TOKEN]


def test_the_worker_gets_the_token_that_the_head_has(sites: Sites) -> None:
    """Not this run's, where the share is an earlier run's."""
    head, worker = sites(2)
    head.host.facts, worker.host.facts = {ImageId: "sha256:0a"}, {ImageId: None}
    head.host.answers, worker.host.answers = dict(OPEN), dict(ENDED_WELL)
    assert follow(commands_of(image.received, worker.host, worker), worker.host)
    assert worker.host.fed[-1] == OPEN["open share"]
    assert share.TOKEN not in worker.host.fed


def test_a_token_that_cannot_be_written(sites: Sites) -> None:
    head, worker = sites(2)
    head.host.facts, worker.host.facts = {ImageId: "sha256:0a"}, {ImageId: None}
    head.host.answers = dict(OPEN)
    worker.host.answers = {"put token": (False, "Read-only file system")}
    assert not follow(commands_of(image.received, worker.host, worker), worker.host)
    assert worker.host.shown == [
        "spark-2: the share's token could not be written to /etc/sparkstack/secrets/share.token; "
        "found: Read-only file system"
    ]
    assert "begin job" not in worker.host.kinds()


def test_a_share_that_does_not_start_fails_the_worker(sites: Sites) -> None:
    head, worker = sites(2)
    head.host.facts, worker.host.facts = {ImageId: "sha256:0a"}, {ImageId: None}
    head.host.answers = {"open share": (False, "Address already in use")}
    commands = commands_of(image.received, worker.host, worker)
    assert not follow(commands, worker.host)
    assert worker.host.kinds() == ["write"]
    assert worker.host.shown == ["spark-1: the share did not start; found: Address already in use"]


def test_a_job_of_the_worker_that_fails_says_why(sites: Sites) -> None:
    head, worker = sites(2)
    head.host.facts, worker.host.facts = {ImageId: "sha256:0a"}, {ImageId: None}
    head.host.answers = dict(OPEN)
    said = "found 401 from the share; wanted 200; run again"
    worker.host.answers = {"look at job": "failed\n" + json.dumps({"ok": False, "error": said})}
    assert not follow(commands_of(image.received, worker.host, worker), worker.host)
    assert worker.host.shown == [f"sparkstack-fetch-image-{head.image_id}: {said}"]


def test_hub_token_is_for_root_alone(sites: Sites, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hf_secret\n")
    (site,) = sites(1, hub_token_file=str(token))
    site.host.facts = {FileStates: {}}
    commands = commands_of(checkpoint.hub_token, site.host, site)
    assert written(commands) == {"/etc/sparkstack/secrets/hub.token": "hf_secret\n"}
    (line,) = shell_lines(commands)
    assert "umask 077; mkdir -p /etc/sparkstack/secrets " in line and " chmod 600 " in line
    assert "hf_secret" not in line


def test_hub_token_that_is_not_there(sites: Sites, tmp_path: Path) -> None:
    (site,) = sites(1, hub_token_file=f"{tmp_path}/no")
    assert not follow(commands_of(checkpoint.hub_token, site.host, site), site.host)
    assert site.host.shown == [
        f"hub_token_file: found no file {tmp_path}/no; wanted one with the token; correct group_data"
    ]


def test_no_hub_token_is_declared(sites: Sites) -> None:
    (site,) = sites(1)
    assert commands_of(checkpoint.hub_token, site.host, site) == []


def test_share_is_closed_and_its_token_goes(sites: Sites) -> None:
    head, _ = sites(2)
    head.host.facts = {UnitState: "active"}
    assert shell_lines(commands_of(share.closed, head.host, head)) == [
        "systemctl stop sparkstack-share sparkstack-share-management; "
        "rm -f /etc/sparkstack/secrets/share.token /etc/sparkstack/secrets/relay.token"
    ]


def test_share_that_does_not_run_is_left_alone(sites: Sites) -> None:
    head, _ = sites(2)
    head.host.facts = {UnitState: "inactive"}
    assert commands_of(share.closed, head.host, head) == []
    assert head.host.noops == ["the share does not run"]


CHECKPOINT = {Json: {"id": "x"}}


def test_the_third_host_of_a_chain_asks_the_second(sites: Sites) -> None:
    head, second, third = sites(3, distribution="chain")
    for site in (head, second, third):
        site.host.facts, site.host.answers = dict(CHECKPOINT), {**OPEN, **ENDED_WELL}
    third.host.facts = {Json: None}
    head.host.answers["read token"] = OPEN["open share"]
    commands = commands_of(checkpoint.received, third.host, third)
    plan = plan_of(commands)
    assert plan["urls"] == ["http://192.168.96.11:18090", "http://192.168.96.10:18090"]
    assert "url" not in plan
    assert follow(commands, third.host)
    assert head.host.kinds() == ["open share", "read token"]
    (opened,) = second.host.heard
    assert "--bind 192.168.96.11 --port 18090 --token-file /etc/sparkstack/secrets/relay.token" in opened
    assert opened.endswith("--relay; }; } && cat /etc/sparkstack/secrets/relay.token'")
    assert second.host.fed == [OPEN["open share"]]
    assert third.host.shown == []
    second.host.facts = {UnitState: "active"}
    assert shell_lines(commands_of(share.closed, second.host, second)) == [
        "systemctl stop sparkstack-share; "
        "rm -f /etc/sparkstack/secrets/share.token /etc/sparkstack/secrets/relay.token"
    ]
    assert commands_of(share.closed, third.host, third) == []  # nobody asks the last one


def test_a_relay_that_does_not_start_is_left_out(sites: Sites) -> None:
    head, second, third = sites(3, distribution="chain")
    for site in (head, third):
        site.host.facts, site.host.answers = {Json: None}, {**OPEN, **ENDED_WELL}
    head.host.answers["read token"] = "t"
    second.host.answers = {"open share": (False, "no such user")}
    assert follow(commands_of(checkpoint.received, third.host, third), third.host)
    assert third.host.shown == [
        "spark-2: its share did not start (no such user); receiving from the head instead"
    ]


def test_no_fabric_means_the_management_network_and_a_warning(sites: Sites) -> None:
    head, worker = sites(2)
    head.host.facts = worker.host.facts = {Json: None}
    head.host.answers = dict(OPEN)
    worker.host.answers = {**ENDED_WELL, "reach share": [(False, ""), ""]}
    commands = commands_of(checkpoint.received, worker.host, worker)
    assert follow(commands, worker.host)
    assert worker.host.shown == [
        "spark-2: found no answer from spark-1 at its fabric address 192.168.96.10; receiving over the "
        "management network, which is slower; run deploy.py --data only=fabric"
    ]
    assert "--unit=sparkstack-share-management " in head.host.heard[-1]
    assert "--bind 10.0.0.1 " in head.host.heard[-1]
    plan = json.loads(base64.b64decode(worker.host.fed[-1]))
    assert plan["url"] == "http://10.0.0.1:18090"
    worker.host.answers["reach share"], worker.host.shown[:] = (False, ""), []
    assert not follow(commands, worker.host)
    (line,) = worker.host.shown
    assert line.startswith("spark-2: found no share of spark-1 at 192.168.96.10, nor at 10.0.0.1 over the ")


def test_hosts_of_a_ring_without_a_cable_say_so(sites: Sites) -> None:
    made = sites(5)
    plan = topology.plan("ring", made[0].names)
    ring = [replace(site, fabric=plan) for site in made]
    for site in ring:
        site.host.facts, site.host.answers = {ImageId: None}, {**OPEN, **ENDED_WELL}
    third = ring[2]
    commands = commands_of(image.received, third.host, third)
    assert plan_of(commands)["url"] == "http://10.0.0.1:18090"
    assert follow(commands, third.host)
    assert third.host.shown == [
        "spark-3: no cable to spark-1: receiving over the management network"
    ]
