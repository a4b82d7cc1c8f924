"""What goes wrong on a host, what a user reads then, and that nothing is harmed by it.

On a cluster that serves (after test_doctor.py, or by itself), which is left as it was.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkstack.machine import FILES
from tests.lab.conftest import Run, Spark, pyinfra
from tests.lab.test_doctor import DAEMON, NETPLAN, bad, doctor

pytestmark = pytest.mark.lab

ACCOUNTS = "/etc/passwd /etc/shadow /etc/group /etc/gshadow /etc/subuid /etc/subgid"
MEMLOCK = FILES["memlock"]


@pytest.fixture(scope="module", autouse=True)
def deployed(sparks: list[Spark]) -> None:
    run = pyinfra("-y")
    assert run.code == 0, run.output


def deploy(*data: str) -> Run:
    return pyinfra("-y", *(word for one in data for word in ("--data", one)))


def refused(run: Run, *patterns: str) -> None:
    """The run failed in these words, and in no traceback."""
    assert run.code != 0, run.output
    assert "Traceback" not in run.output
    for pattern in patterns:
        assert re.search(pattern, run.output), f"{pattern}\n{run.output}"


@contextmanager
def changed(spark: Spark, do: str, back: str) -> Iterator[None]:
    try:
        spark.run(do)
        yield
    finally:
        spark.run(back)


def no_operation(*data: str) -> None:
    run = deploy(*data)
    assert (run.code, run.changed()) == (0, {}), run.output


def test_preflight_names_user_distribution_and_who_has_the_port(sparks: list[Spark]) -> None:
    """All in one run, before any change; the port is somebody else's although our endpoint is there, too.
    On a worker, where nothing of ours listens, a port may be anybody's."""
    head, worker = sparks
    fedora = "rm /etc/os-release; printf 'ID=fedora\\nVERSION_ID=42\\n' > /etc/os-release"
    web = "systemd-run --quiet --unit=other-web python3 -m http.server 8000 --bind 127.0.0.9"
    listens = "for i in $(seq 50); do ss -Hltn src 127.0.0.9:8000 | grep -q . && break; sleep 0.1; done"
    with (
        changed(head, f"{web}; {listens}", "systemctl stop other-web"),
        changed(
            worker,
            f"cp -a /etc/os-release /root/os-release; {fedora}; {web}; {listens}",
            "systemctl stop other-web; mv -f /root/os-release /etc/os-release",
        ),
    ):
        before = [spark.files() for spark in sparks]
        run = deploy("user=nobody-such")
        no_user = "user: found no user nobody-such; wanted the one that owns the daily work; correct `user`"
        refused(
            run,
            f"spark-1: {no_user}",
            f"spark-2: {no_user}",
            "spark-2: system: found fedora 42; wanted debian 12; ",
            r"spark-1: port 8000: found python3 \(pid \d+, other-web\.service\); wanted free, or ours; ",
        )
        assert "spark-1: system" not in run.output and "spark-2: port" not in run.output
        assert [spark.files() for spark in sparks] == before
    # The head's own listener is ours, by its unit and not by its name.
    assert "sparkstack" in head.run("docker ps --format '{{.Names}}'")
    assert deploy("only=preflight").code == 0


def test_a_host_that_hangs_is_a_line(sparks: list[Spark]) -> None:
    """Its kernel takes the connection, and nobody answers."""
    name = sparks[1].name
    subprocess.run(["docker", "pause", name], check=True, capture_output=True)
    try:
        run = pyinfra("-y")
    finally:
        subprocess.run(["docker", "unpause", name], check=True, capture_output=True)
    refused(run, f"{name}: found no connection; wanted all hosts of the inventory; check power, cable")


def test_a_user_that_is_not_there_stops_the_stage_too(sparks: list[Spark]) -> None:
    before = [spark.files() for spark in sparks]
    refused(deploy("only=host", "user=nobody-such"), "spark-1: user: found no user nobody-such; wanted ")
    assert [spark.files() for spark in sparks] == before


def test_a_daemon_json_that_is_no_file_is_left_alone(sparks: list[Spark]) -> None:
    head, worker = sparks
    serving = [spark.serving() for spark in sparks]
    with (
        changed(
            head, f"mv {DAEMON} /root/d.json; mkdir {DAEMON}", f"rmdir {DAEMON}; mv -T /root/d.json {DAEMON}"
        ),
        changed(
            worker,
            f"mv {DAEMON} /root/d.json; ln -s /root/d.json {DAEMON}",
            f"rm {DAEMON}; mv -T /root/d.json {DAEMON}",
        ),
    ):
        wanted = "wanted a regular file or nothing; "
        refused(
            deploy("only=docker"),
            f"spark-1: {DAEMON}: found a directory; {wanted}move it away, then run again",
            f"spark-2: {DAEMON}: found a symlink to /root/d.json; {wanted}put a file in its place, then run ",
        )
        assert head.run(f"stat -c %F {DAEMON}; ls -A {DAEMON}") == "directory"
        assert worker.run(f"readlink {DAEMON}") == "/root/d.json"
    assert [spark.serving() for spark in sparks] == serving
    no_operation("only=docker")


def test_a_daemon_json_that_is_no_json_is_named_with_line_and_column(sparks: list[Spark]) -> None:
    head = sparks[0]
    text = '{\n  "log-driver": "local",\n}\n'
    with changed(
        head,
        f"mv {DAEMON} /root/d.json; printf %s '{text}' > {DAEMON}",
        f"mv -T /root/d.json {DAEMON}",
    ):
        refused(
            deploy("only=docker"),
            rf"spark-1: {DAEMON}:3:1: found invalid JSON \(.*\); wanted valid JSON; correct or remove",
        )
        assert head.run(f"cat {DAEMON}; echo .") == f"{text}."


def test_a_full_disk_and_a_read_only_one_and_what_a_killed_run_left(sparks: list[Spark]) -> None:
    head, worker = sparks
    folder = str(Path(MEMLOCK).parent)
    sysctl = FILES["sysctl"]
    fresh = head.run(f"sha256sum {MEMLOCK} {sysctl}")
    full = f"mount -t tmpfs -o size=4k,mode=755 tmpfs {folder}; ! cat /dev/zero > {folder}/full 2>/dev/null"
    with (
        changed(head, full, f"umount {folder}"),
        changed(worker, f"mount -t tmpfs -o ro tmpfs {folder}", f"umount {folder}"),
    ):
        wanted = "; wanted to write it; make room there, or mend its folder; the file is as it was"
        refused(
            deploy("only=host"),
            f"spark-1.*{MEMLOCK}: found base64: .*No space left on device *{wanted}",
            f"spark-2.*{MEMLOCK}: found .*Read-only file system *{wanted}",
        )
        assert head.run(f"ls -A {folder}") == "full" and worker.run(f"ls -A {folder}") == ""
    # What a run leaves that is killed while it writes: a part beside the file, and the file of before.
    head.run(f"sed -i s/swappiness/swapp/ {sysctl}; printf 'vm.swapp' > {sysctl}.sparkstack-new")
    run = deploy("only=host")
    assert run.code == 0, run.output
    assert head.run(f"sha256sum {MEMLOCK} {sysctl}") == fresh
    assert head.run(f"ls {sysctl}*") == sysctl
    no_operation("only=host")


def test_a_knob_that_is_off_takes_its_file_away(sparks: list[Spark]) -> None:
    off = {
        "sshd": "sshd_protected",
        "earlyoom": "earlyoom",
        "memlock": "memlock_unlimited",
        "sudoers": "drop_caches_sudo",
        "journald": "journald_persistent",
    }
    paths = " ".join(FILES[topic] for topic in off)
    before = [spark.run(f"sha256sum {paths}; systemctl is-active earlyoom") for spark in sparks]
    words = ["only=host", *(f"{knob}=false" for knob in off.values())]
    run = deploy(*words)
    assert run.code == 0, run.output
    for spark in sparks:
        assert spark.run(f"ls {paths} 2>/dev/null; true") == ""
        assert spark.run("systemctl is-active earlyoom; true") == "inactive"
    no_operation(*words)
    run = deploy("only=host")
    assert run.code == 0, run.output
    assert [spark.run(f"sha256sum {paths}; systemctl is-active earlyoom") for spark in sparks] == before


def test_an_installer_with_another_hash_never_runs(sparks: list[Spark]) -> None:
    place = "/opt/sparkstack"
    look = f"cat {place}/conda/.sparkstack; stat -c '%i %Y' {place}/conda/bin/conda; ls {place}"
    before = [spark.run(look) for spark in sparks]
    refused(
        deploy("only=conda", f"conda_sha256={'a' * 64}"),
        f"found another SHA-256 than {'a' * 64} at http.*; wanted the pinned one; check conda_url",
    )
    assert [spark.run(look) for spark in sparks] == before
    no_operation("only=conda")


def test_a_restart_of_docker_names_the_containers_of_others(sparks: list[Spark]) -> None:
    worker = sparks[1]
    about = json.loads(worker.run("cat /etc/sparkstack/current/release.json"))
    start = f"docker run -d --name webui --restart unless-stopped --entrypoint sleep {about['image']} 900"
    with changed(worker, start, "docker rm -f webui"):
        serving = [spark.serving() for spark in sparks]
        daemon = [spark.run(f"cat {DAEMON}") for spark in sparks]
        ranks = ", ".join(rf"{spark.name} \(release {about['release']}\)" for spark in sparks)
        theirs = r"on spark-2 the container webui \(comes back by itself\); wanted a yes to that; run with "
        refused(
            deploy("only=docker", 'docker_settings={"debug": true}'),
            f"spark-2: docker: found settings .* would stop serving on {ranks} and {theirs}",
            f"spark-1: docker: found settings .* would stop serving on {ranks}; wanted a yes",
        )
        # The removal, too, before it has changed anything.
        refused(pyinfra("-y", script="remove.py"), f"spark-2: docker: found .* would stop {theirs}")
        assert [spark.serving() for spark in sparks] == serving
        assert [spark.run(f"cat {DAEMON}") for spark in sparks] == daemon
        assert worker.run("docker inspect -f '{{.State.Running}}' webui") == "true"


AS_ITSELF = """from pyinfra.operations import server

from tasks import declaration, host

host.deploy_host(declaration.load())
server.shell(name="Docker without sudo", commands=["id -nG | grep -qw docker && docker ps -q"], _sudo=False)
"""


def test_the_group_counts_in_the_same_run(sparks: list[Spark], tmp_path: Path) -> None:
    """A user that was never in the group uses Docker after the stage, over the connection of that run."""
    script = tmp_path / "as_itself.py"
    script.write_text(AS_ITSELF)
    for spark in sparks:
        spark.run(
            f"tar cf /root/accounts.tar {ACCOUNTS} 2>/dev/null; useradd -m -s /bin/sh fresh; "
            "cp -r /home/nvidia/.ssh /home/fresh/; chown -R fresh: /home/fresh/.ssh; "
            "echo 'fresh ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/fresh; ! id -nG fresh | grep -qw docker"
        )
    try:
        run = pyinfra("-y", "--data", "ssh_user=fresh", script=str(script))
        assert run.code == 0, run.output
        assert run.output.count("Docker without sudo") >= 1
    finally:
        for spark in sparks:
            spark.run(
                "loginctl kill-user fresh 2>/dev/null; rm -rf /home/fresh /etc/sudoers.d/fresh; "
                "tar xf /root/accounts.tar -C / && rm /root/accounts.tar"
            )
        # The line of sudoers names nvidia again.
        assert deploy("only=host").code == 0
    assert [spark.run("id -nG nvidia") for spark in sparks] == 2 * ["nvidia docker"]
    no_operation("only=host")


# Drifts that one run of the doctor has to tell apart: host, what is done, stage, what is named, and found.
HTTPX = "/opt/sparkstack/env/lib/python3*/site-packages/httpx"
CONDA = "/opt/sparkstack/conda/.sparkstack"
DRIFTS: list[tuple[int, str, str, str, str]] = [
    (0, f"sed -i s/-1000/-10/ {FILES['sshd']}", "host", FILES["sshd"], "content"),
    (0, "systemctl daemon-reload", "host", "ssh.service", "OOMScoreAdjust -10"),
    (1, f"rm {FILES['earlyoom']}", "host", FILES["earlyoom"], "no file"),
    (0, "systemctl disable --now --quiet earlyoom", "host", "earlyoom.service", "disabled and inactive"),
    (1, f"chmod 400 {FILES['sudoers']}", "host", FILES["sudoers"], "mode 400"),
    (0, f"echo '# mine' >> {MEMLOCK}", "host", MEMLOCK, "content"),
    (1, f"chown nvidia {FILES['journald']}", "host", FILES["journald"], "owner nvidia"),
    (0, "gpasswd -d nvidia docker", "host", "user nvidia", "not in group docker"),
    (1, "apt-mark unhold curl", "host", "package curl", "not held"),
    (1, "systemctl disable --quiet docker.service", "docker", "docker.service", "disabled and active"),
    (1, f"rm -rf {HTTPX}", "conda", "/opt/sparkstack/env", "cannot import huggingface_hub, httpx"),
    (0, f"rm {CONDA}", "conda", CONDA, "no installation"),
    (1, f"echo '# mine' >> {NETPLAN}", "fabric", NETPLAN, "content"),
]


def test_each_of_many_drifts_is_a_line_of_its_own(sparks: list[Spark]) -> None:
    stages = "host,docker,conda,fabric"
    data = (f"only={stages}", 'held_packages=["curl"]')
    words = [word for one in data for word in ("--data", one)]
    assert deploy(*data).code == 0
    for at, command, *_ in DRIFTS:
        sparks[at].run(command)
    run, report = doctor("-y", *words)
    assert run.code == 1 and report["ok"] is False and "Traceback" not in run.output
    found = {(line["host"], line["stage"], line["check"]): line for line in bad(report)}
    for at, _, stage, check, words_found in DRIFTS:
        line = found.pop((sparks[at].name, stage, check))
        assert words_found in line["found"] and line["status"] == "drift", line
        assert line["remedy"] == f"run deploy.py --data only={stage}"
    assert found == {}, run.output
    run = deploy(*data)
    assert run.code == 0, run.output
    run, report = doctor("-y", *words)
    assert (run.code, bad(report)) == (0, []), run.output
    # Docker's unit was as it should be before the first run, so the hand of this test is what the mending run
    # has noted as the state before; a removal shall find what was really there.
    sparks[1].run("rm -f /etc/sparkstack/undo/did/unit/docker.service")
    time.sleep(1)
    no_operation(*data)
