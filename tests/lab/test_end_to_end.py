"""Fresh hosts → killed and joined → serving → no-op → each kind of change → mistakes.

The tests build on one another in the order of the file: a lab is minutes, not milliseconds. What is asserted
is read from the hosts over SSH, not from the code under test (but for the run's own report of changes).
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkstack import report_files
from tests.lab.conftest import (
    ROOT,
    Run,
    Spark,
    complete,
    hub_faults,
    newest_report,
    pyinfra,
    start_pyinfra,
)
from tests.lab.test_doctor import bad, doctor, everything

pytestmark = pytest.mark.lab

UNIT = "sparkstack-serve"
TWINS = ("enp1s0f0np0", "enP2p1s0f0np0")
HOST_STAGES = "preflight,host,docker,conda,fabric"


def release(spark: Spark) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(spark.run("cat /etc/sparkstack/current/release.json"))
    return found


def wait_for(what: str, seconds: float, look: Any) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.5)
    raise AssertionError(f"no {what} within {seconds} s")


def job_unit(spark: Spark, kind: str) -> str:
    """The name of the running job of a kind, or ''."""
    return spark.run(
        f"systemctl list-units --no-legend --plain 'sparkstack-{kind}-*' | awk '{{print $1}}' | head -1"
    )


def invocation(spark: Spark, unit: str) -> str:
    return spark.run(f"systemctl show -p InvocationID --value {unit}")


def progress(spark: Spark, unit: str) -> dict[str, Any]:
    """The last line of a job's progress; {} before the first."""
    name = unit.removesuffix(".service")
    text = spark.run(f"tail -n 1 /var/lib/sparkstack/jobs/{name}/progress.jsonl 2>/dev/null; true")
    return dict(json.loads(text)) if text else {}


def kill_and_join(head: Spark, unit: str, controller: subprocess.Popen[bytes], only: str) -> None:
    """SIGKILL the controller, see the job go on, and join the very same one with a second run."""
    began = invocation(head, unit)
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    time.sleep(2)
    assert invocation(head, unit) == began, "the job ended with its controller"
    second = start_pyinfra("-y", "--data", only)
    # The second run has handed its plan over while the first one's job was still at work: it has joined.
    plan = f"/var/lib/sparkstack/plans/{unit.removesuffix('.service')}.json"
    stamp = head.run(f"stat -c %Y.%i {plan}")
    wait_for("the second run's plan", 60, lambda: head.run(f"stat -c %Y.%i {plan}") != stamp)
    assert invocation(head, unit) == began, "the job ended before it could be joined"
    assert second.wait(timeout=900) == 0
    starts = head.run(f"journalctl -u {unit} -o cat --no-pager | grep -c '^Started ' || true")
    assert starts == "1", "the job was begun a second time"


def at_rest(spark: Spark) -> dict[str, str]:
    """Everything on a host that has booted, once the boot's own last changes are over."""
    found = everything(spark)
    for _ in range(20):
        time.sleep(3)
        before, found = found, everything(spark)
        if before == found:
            return found
    raise AssertionError(f"{spark.name} changes by itself: {differing(before, found)}")


def test_the_doctor_on_fresh_hosts_says_what_is_to_be_done(sparks: list[Spark]) -> None:
    before = [at_rest(spark) for spark in sparks]
    run, report = doctor("-y")
    assert run.code == 1, run.output
    assert "Traceback" not in run.output and "No hosts remaining" not in run.output
    assert report["ok"] is False
    # All of it is what a deployment would do, and nothing would stop one.
    assert {line["status"] for line in bad(report)} == {"drift"}, run.output
    assert {line["host"] for line in bad(report)} == {spark.name for spark in sparks}
    assert {line["stage"] for line in bad(report)} >= {"host", "docker", "conda", "fabric", "image", "serve"}
    assert [everything(spark) for spark in sparks] == before


def stops_before_any_change(sparks: list[Spark], line: str, *words: str) -> None:
    """A deployment ends in preflight with this line (a pattern after the host's name) for each host."""
    before = [spark.files() for spark in sparks]
    run = pyinfra("-y", *words)
    assert run.code != 0, run.output
    for spark in sparks:
        assert re.search(rf"(^|\s){spark.name}: {line}\s*$", run.output, re.M), run.output
    assert "Traceback" not in run.output
    assert [spark.files() for spark in sparks] == before


def test_too_little_memory_stops_before_any_change(sparks: list[Spark], tmp_path: Path) -> None:
    path = recipe_copy(tmp_path, budget__memory_gib=118)  # more than the lab has, no more than a Spark
    line = (
        r"memory: found \d+\.\d GiB available; wanted 118\.0 GiB; "
        r"stop what uses it, or take a smaller recipe"
    )
    stops_before_any_change(sparks, line, "--data", f"recipe={path}")


def test_another_distribution_stops_before_any_change(sparks: list[Spark]) -> None:
    line = (
        r"system: found debian 12; wanted ubuntu 24\.04; install one of these, or add this one to the "
        r"accepted systems once you have tried it"
    )
    stops_before_any_change(sparks, line, "--data", 'accepted_systems=["ubuntu:24.04"]')


def test_a_dry_run_on_fresh_hosts_changes_nothing(sparks: list[Spark]) -> None:
    before = [spark.files() for spark in sparks]
    run = pyinfra("--dry")
    assert run.code == 0, run.output
    for stage in ("host", "docker", "conda", "fabric", "image", "checkpoint", "serve", "benchmark"):
        assert re.search(rf"^\s+{stage} \| .*\d \(", run.output, re.M), (
            f"{stage} is not announced:\n{run.output}"
        )
    assert [spark.files() for spark in sparks] == before


def test_an_unknown_stage_is_an_error_that_lists_the_known_ones() -> None:
    run = pyinfra("-y", "--data", "only=docker,sreve")
    assert run.code != 0
    assert "'sreve'" in run.output and "serve" in run.output and "preflight" in run.output
    assert "Traceback" not in run.output


def test_only_runs_the_named_stages(sparks: list[Spark]) -> None:
    run = pyinfra("-y", "--data", f"only={HOST_STAGES}")
    assert run.code == 0, run.output
    for spark in sparks:
        assert "docker" in spark.run("id -nG nvidia").split()
        assert spark.run("ls /var/lib/sparkstack/checkpoints 2>/dev/null; true") == ""


def test_the_host_is_as_declared(sparks: list[Spark]) -> None:
    for spark in sparks:
        assert spark.run("systemctl show -p OOMScoreAdjust --value ssh") == "-1000"
        assert spark.run("systemctl is-active earlyoom") == "active"
        assert "--prefer" in spark.run("tr '\\0' ' ' < /proc/$(pidof earlyoom)/cmdline")
        assert spark.run("stat -c %a /etc/sudoers.d/sparkstack") == "440"
        spark.run("visudo -c")
        assert spark.run("ls /run/sparkstack-due /run/sparkstack-docker-* 2>/dev/null; true") == ""
        # A container has its machine's kernel: the file is there for the next boot, the value is not touched.
        assert "vm.swappiness = 10" in spark.run("cat /etc/sysctl.d/90-sparkstack.conf")


def test_a_mistake_in_the_data_changes_nothing() -> None:
    run = pyinfra("-y", "--data", "docker_mirors=[]")
    assert run.code != 0 and "Traceback" not in run.output
    assert "--data: found unknown name 'docker_mirors'" in run.output
    assert "did you mean 'docker_mirrors'?" in run.output


def test_daemon_json_is_merged(sparks: list[Spark], state: dict[str, Any]) -> None:
    for spark in sparks:
        settings = json.loads(spark.run("cat /etc/docker/daemon.json"))
        before = json.loads(spark.run("cat /etc/docker/daemon.json.before-sparkstack"))
        assert settings.pop("registry-mirrors") == [state["registry"]]
        assert settings.pop("log-opts") == {"max-size": "100m", "max-file": "3"}
        assert before.pop("log-opts") and settings == before, "what others set stays"
        mirrors = json.loads(spark.run("docker info --format '{{json .RegistryConfig.Mirrors}}'"))
        assert [mirror.rstrip("/") for mirror in mirrors] == [state["registry"]]


def test_twins_are_addressed_and_carry_jumbo_frames(sparks: list[Spark]) -> None:
    addresses: dict[str, list[str]] = {}
    for spark in sparks:
        assert spark.run("stat -c %a /etc/netplan/40-sparkstack.yaml") == "600"
        links = {link["ifname"]: link for link in json.loads(spark.run("ip -j -4 addr show"))}
        assert [links[twin]["mtu"] for twin in TWINS] == [9000, 9000]
        addresses[spark.name] = [links[twin]["addr_info"][0]["local"] for twin in TWINS]
        environment = spark.run("cat /etc/sparkstack/fabric.env")
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            assert f"{name}={TWINS[0]}\n" in environment + "\n"
        assert "NCCL_IB_GID_INDEX" not in environment
        assert f"VLLM_HOST_IP={addresses[spark.name][0]}" in environment
    networks = {address.rsplit(".", 1)[0] for address in addresses["spark-1"]}
    assert len(networks) == 2, "twins never share a subnet"
    for twin, address in zip(TWINS, addresses["spark-2"], strict=True):
        sparks[0].run(f"ping -c 1 -W 2 -M do -s 8972 -I {twin} {address}")


def test_a_killed_controller_leaves_the_build_and_the_next_run_joins_it(sparks: list[Spark]) -> None:
    head = sparks[0]
    controller = start_pyinfra("-y", "--data", "only=image")
    unit = wait_for("image job", 120, lambda: job_unit(head, "image"))
    wait_for("progress of the build", 60, lambda: progress(head, unit).get("done"))
    kill_and_join(head, unit, controller, "only=image")


def test_a_killed_controller_leaves_the_download_and_the_next_run_joins_it(
    sparks: list[Spark], state: dict[str, Any]
) -> None:
    head = sparks[0]
    # Slow enough to be under way through all of this: 10 MB at 0.2 MB/s a file.
    hub_faults(state, {"path": "*.safetensors", "kind": "slow", "count": None, "bytes_per_second": 200_000})
    try:
        controller = start_pyinfra("-y", "--data", "only=checkpoint")
        unit = wait_for("checkpoint job", 60, lambda: job_unit(head, "checkpoint"))
        wait_for("downloaded bytes", 60, lambda: progress(head, unit).get("done"))
        kill_and_join(head, unit, controller, "only=checkpoint")
    finally:
        hub_faults(state, None)


def test_the_first_whole_run_serves(sparks: list[Spark]) -> None:
    run = pyinfra("-y")
    assert run.code == 0, run.output
    for word in ("endpoint: http://", "curl ", "TTFT", "tok/s", "report: "):
        assert word in run.output, f"{word!r} is missing in:\n{run.output}"
    for stage in (
        "preflight",
        "host",
        "docker",
        "conda",
        "fabric",
        "image",
        "checkpoint",
        "serve",
        "benchmark",
    ):
        assert re.search(rf"^{stage}\s+[\d.:]+ (s|min)", run.output, re.M), f"no time for {stage}"
    command = next(line for line in run.output.splitlines() if line.strip().startswith("curl "))
    answer = subprocess.run(
        shlex.split(command), capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert json.loads(answer)["choices"][0]["message"]["content"]


def test_docker_is_not_restarted_under_a_release_that_serves(sparks: list[Spark]) -> None:
    began = [spark.run("systemctl show -p ActiveEnterTimestamp --value docker") for spark in sparks]
    before = [spark.run("sha256sum /etc/docker/daemon.json") for spark in sparks]
    run = pyinfra("-y", "--data", "only=docker", "--data", 'docker_settings={"debug": true}')
    assert run.code != 0
    assert "which would stop serving on spark-1 (release " in run.output
    assert "run with --data restart_serving=yes" in run.output
    assert [spark.run("sha256sum /etc/docker/daemon.json") for spark in sparks] == before
    assert [spark.run("systemctl show -p ActiveEnterTimestamp --value docker") for spark in sparks] == began


def test_images_are_the_same_on_every_host(sparks: list[Spark]) -> None:
    tag = release(sparks[0])["image"]
    ids = {spark.run(f"docker image inspect -f '{{{{.Id}}}}' {tag}") for spark in sparks}
    assert len(ids) == 1
    for spark in sparks:
        entry = (
            "import importlib.metadata as m;"
            "print([e.name for e in m.entry_points(group='vllm.general_plugins')])"
        )
        assert "sparkstack" in spark.run(f'docker exec {UNIT} python3 -c "{entry}"')
        # What the engine compiles outlives its container, in a volume of this image.
        volumes = spark.run("docker volume ls -q --filter label=sparkstack.image").split()
        assert f"sparkstack-cache-{tag.rpartition(':')[2]}" in volumes


def test_checkpoints_are_whole_on_every_host(sparks: list[Spark]) -> None:
    folder = f"/var/lib/sparkstack/checkpoints/{release(sparks[0])['checkpoint']}"
    manifests = {spark.run(f"cat {folder}/manifest.json") for spark in sparks}
    assert len(manifests) == 1
    manifest = json.loads(manifests.pop())
    recipe = yaml.safe_load((ROOT / "recipes/lab-tiny.yaml").read_text())
    assert manifest["source"] == {key: recipe["checkpoint"]["source"][key] for key in ("repo", "revision")}
    for spark in sparks:
        for name, file in manifest["files"].items():
            assert spark.run(f"sha256sum < {folder}/{name}").split()[0] == file["sha256"]
            assert int(spark.run(f"stat -c %s {folder}/{name}")) == file["size"]
        index = json.loads(spark.run(f"cat {folder}/model.safetensors.index.json"))
        assert any(name.startswith("mtp.") for name in index["weight_map"]), "MTP tensors are not registered"
        limit = next(
            t["reshard"]["max_shard_bytes"] for t in recipe["checkpoint"]["transforms"] if "reshard" in t
        )
        shards = [f for name, f in manifest["files"].items() if re.match(r"model-\d+-of-\d+", name)]
        assert len(shards) > 2 and all(shard["size"] < 2 * limit for shard in shards)


def test_one_unit_a_rank_with_vllm_as_main_process(sparks: list[Spark]) -> None:
    for rank, spark in enumerate(sparks):
        assert spark.run(f"systemctl is-active {UNIT}") == "active"
        assert spark.run(f"systemctl is-enabled {UNIT}") == "enabled"
        top = spark.run(f"docker top {UNIT} -o pid,args | sed -n 2p")
        assert "vllm serve" in top and f"--node-rank {rank}" in top and "--nnodes 2" in top
        assert ("--headless" in top) == (rank > 0)
        assert "--tensor-parallel-size 2" in top


def test_the_endpoint_completes(sparks: list[Spark]) -> None:
    about = release(sparks[0])
    assert complete(about["endpoint"], about["model"])["usage"]["completion_tokens"] == 4


def test_the_benchmark_is_a_measurement_with_a_verdict(sparks: list[Spark]) -> None:
    head = sparks[0]
    folder = f"/var/lib/sparkstack/results/{release(head)['release']}"
    measurement = json.loads(head.run(f"cat {folder}/measurement.json"))
    verdict = json.loads(head.run(f"cat {folder}/verdict.json"))
    assert measurement["points"][0]["decode_tok_s"]["median"] > 0
    assert measurement["points"][0]["failed"] == 0
    assert verdict["ok"] and verdict["release"] == measurement["release"]
    assert {line["verdict"] for line in verdict["lines"]} <= {"pass", "baseline"}
    # The run that measured; one that was refused, later on, has no figures.
    reports = [json.loads(path.read_text()) for path in report_files.files(ROOT / "reports")]
    last = [report for report in reports if report["measurement"]][-1]
    assert last["measurement"] == measurement and last["ok"]


def nothing_changed(run: Run) -> None:
    assert run.code == 0, run.output
    assert run.changed() == {}, run.changed()


def test_a_second_run_changes_and_restarts_nothing(sparks: list[Spark], record_property: Any) -> None:
    before = [(spark.files(), spark.serving()) for spark in sparks]
    run = pyinfra("-y")
    nothing_changed(run)
    after = [(spark.files(), spark.serving()) for spark in sparks]
    assert before == after
    record_property("second run, s", round(run.seconds, 1))
    # The bound; the usual figure is a third of it.
    assert run.seconds <= 15


def recipe_copy(folder: Path, **changes: Any) -> Path:
    """The lab's recipe with dotted keys changed, as a file elsewhere."""
    value = yaml.safe_load((ROOT / "recipes/lab-tiny.yaml").read_text())
    for key, new in changes.items():
        *parents, last = key.split("__")
        place = value
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = new
    path = folder / "lab-tiny.yaml"
    path.write_text(yaml.safe_dump(value, sort_keys=False))
    return path


def differing(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def test_a_changed_expectation_touches_only_the_result(sparks: list[Spark], tmp_path: Path) -> None:
    before = [(spark.files(), spark.serving()) for spark in sparks]
    path = recipe_copy(tmp_path, expect__decode_tok_s={"1": {"min": 0.4}})
    run = pyinfra("-y", "--data", f"recipe={path}")
    assert run.code == 0, run.output
    for spark, (files, serving) in zip(sparks, before, strict=True):
        touched = differing(files, spark.files())
        results = f"/var/lib/sparkstack/results/{release(sparks[0])['release']}/verdict.json"
        assert touched == ({results} if spark is sparks[0] else set())
        assert spark.serving() == serving


def test_a_missed_expectation_fails_the_run_with_the_figures(tmp_path: Path) -> None:
    path = recipe_copy(tmp_path, expect__decode_tok_s={"1": {"min": 1_000_000}})
    run = pyinfra("-y", "--data", f"recipe={path}")
    assert run.code != 0
    assert re.search(r"spark-1: benchmark: found decode_tok_s@1 [\d.]+ .*1000000", run.output), run.output
    assert "Traceback" not in run.output


def test_a_changed_option_changes_only_the_release(sparks: list[Spark], tmp_path: Path) -> None:
    old = release(sparks[0])
    before = [(spark.files(), spark.serving()) for spark in sparks]
    daemons = [spark.run("systemctl show -p ActiveEnterTimestampMonotonic docker") for spark in sparks]
    path = recipe_copy(tmp_path, serve__options__max_model_len=512)
    run = pyinfra("-y", "--data", f"recipe={path}")
    assert run.code == 0, run.output
    new = release(sparks[0])
    assert new["release"] != old["release"]
    assert (new["image"], new["checkpoint"]) == (old["image"], old["checkpoint"])
    allowed = re.compile(
        rf"/etc/sparkstack/(releases/{new['release']}/.*|current|previous)"
        rf"|/var/lib/sparkstack/(results|jobs|plans)/.*{new['release']}.*"
        "|/var/lib/sparkstack/engine-began"
    )
    for spark, (files, serving) in zip(sparks, before, strict=True):
        strange = [path for path in differing(files, spark.files()) if not allowed.fullmatch(path)]
        assert strange == []
        assert spark.serving() != serving
    assert daemons == [
        spark.run("systemctl show -p ActiveEnterTimestampMonotonic docker") for spark in sparks
    ]
    back = pyinfra("-y")
    assert back.code == 0, back.output
    assert release(sparks[0])["release"] == old["release"]


def greedy(spark: Spark) -> list[dict[str, Any]]:
    """Greedy answers with the logprobs of what came near."""
    about = release(spark)
    prompts = ("One", "The answer is", "def f(x):", "Es war einmal")
    asked = {"tokens": 24, "temperature": 0, "logprobs": 5}
    answers = [complete(about["endpoint"], about["model"], prompt=one, **asked) for one in prompts]
    return [answer["choices"][0]["logprobs"] for answer in answers]


def differs_by(plain: dict[str, Any], other: dict[str, Any]) -> float | None:
    """How far apart, by `plain`, the two tokens are where two greedy answers part; None where they do not.

    Infinite where the other's token is none of the five that came nearest.
    """
    for one, two, near in zip(plain["tokens"], other["tokens"], plain["top_logprobs"], strict=True):
        if one != two:
            return float(near[one] - near.get(two, float("-inf")))
    return None


def test_a_changed_plugin_rebuilds_only_the_image(sparks: list[Spark], tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    (copy / ".lab").symlink_to(ROOT / ".lab")
    module = copy / "files/patches/sparkstack_vllm/__init__.py"
    module.write_text(module.read_text() + "\n# a changed line\n")
    recipe = copy / "recipes/lab-tiny.yaml"
    recipe.write_text(recipe.read_text().replace("image:\n", "image:\n  plugin: {int8_lm_head: true}\n"))

    plain = greedy(sparks[0])
    assert plain == greedy(sparks[0])
    old, checkpoints = (
        release(sparks[0]),
        [spark.run("ls -i /var/lib/sparkstack/checkpoints") for spark in sparks],
    )
    run = pyinfra("-y", root=copy)
    assert run.code == 0, run.output
    new = release(sparks[0])
    assert new["image"] != old["image"] and new["checkpoint"] == old["checkpoint"]
    assert checkpoints == [spark.run("ls -i /var/lib/sparkstack/checkpoints") for spark in sparks]
    ids = {spark.run(f"docker image inspect -f '{{{{.Id}}}}' {new['image']}") for spark in sparks}
    assert len(ids) == 1
    changed = {
        operation.split(" | ")[0]
        for operation in json.loads(newest_report(copy).read_text())["operations"]
        if operation["status"] == "changed"
        for operation in [f"{operation['stage']} | {operation['name']}"]
    }
    assert changed == {"image", "serve", "benchmark"}, changed
    # Both ranks serve with the plugin's head: other logits, and another token only where two came as near as
    # a weight's rounding to INT8 can turn them round.
    for spark in sparks:
        assert re.search(r"int8_lm_head: LM head of .* is INT8 now", spark.run(f"docker logs {UNIT} 2>&1"))
    quantised = greedy(sparks[0])
    assert quantised == greedy(sparks[0])
    assert [one["token_logprobs"] for one in plain] != [one["token_logprobs"] for one in quantised]
    apart = [differs_by(one, two) for one, two in zip(plain, quantised, strict=True)]
    assert all(one is None or one < 0.05 for one in apart), apart


def test_an_unreachable_host_is_named(state: dict[str, Any], tmp_path: Path) -> None:
    ssh = {
        "ssh_user": state["user"],
        "ssh_key": str(ROOT / state["key"]),
        "ssh_known_hosts_file": str(ROOT / state["known_hosts"]),
    }
    sparks = [
        ("spark-1", {**ssh, "ssh_hostname": state["nodes"][0]["address"]}),
        ("spark-9", {**ssh, "ssh_hostname": "127.0.0.1", "ssh_port": 9}),
    ]
    inventory = tmp_path / "lab.py"
    inventory.write_text(f"sparks = {sparks!r}\n")
    run = pyinfra("-y", "--data", "only=docker", inventory=str(inventory))
    assert run.code != 0
    assert re.search(r"\[spark-9\]\s+Could not connect", run.output), run.output
    assert "Traceback" not in run.output and "Starting operation" not in run.output


def test_a_dead_worker_is_seen_and_the_group_starts_again_by_itself(sparks: list[Spark]) -> None:
    head, worker = sparks
    run = pyinfra("-y")  # the test before leaves the release of another plugin
    assert run.code == 0, run.output
    before = [spark.run(f"systemctl show -p InvocationID {UNIT}") for spark in sparks]
    worker.run(f"docker kill {UNIT}")

    def again() -> bool:
        now = [spark.run(f"systemctl show -p InvocationID,ActiveState {UNIT}") for spark in sparks]
        return all(old not in new and "=active" in new for old, new in zip(before, now, strict=True))

    wait_for("group", 600, again)
    run = pyinfra("-y")
    assert (run.code, run.changed()) == (0, {}), run.output
    about = release(head)
    assert complete(about["endpoint"], about["model"])["usage"]["completion_tokens"] == 4


def test_nothing_stops_before_every_rank_can_start(sparks: list[Spark], tmp_path: Path) -> None:
    before = [spark.serving() for spark in sparks]
    path = recipe_copy(tmp_path, serve__options__max_model_len=256)
    run = pyinfra("-y", "--limit", "spark-1", "--data", f"recipe={path}")
    assert run.code != 0
    assert "spark-2: serve: found no" in run.output, run.output
    assert before == [spark.serving() for spark in sparks]


def test_try_on_a_lab_that_stands(sparks: list[Spark]) -> None:
    before = [spark.serving() for spark in sparks]
    done = subprocess.run(["./try"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    for word in ("lab up in", "endpoint: http://", "curl ", "TTFT", "tok/s", "report: "):
        assert word in output, f"{word!r} is missing in:\n{output}"
    assert before == [spark.serving() for spark in sparks]
