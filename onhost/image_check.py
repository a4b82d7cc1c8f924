"""The proof of an image: its own check runs in it once, and the result becomes a label of what gets the tag.

An image without the label has not been proved, whoever made it; one whose check failed never gets a tag.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from onhost.docker_cli import ENVIRONMENT, docker, inspect_image
from onhost.jobs import Job
from onhost.plan import JobError

LABEL = "sparkstack.check"
COMMAND = "sparkstack-image-check"
PROFILES = ("gpu", "cpu")
CHECK_LIMIT_S = 900  # vLLM's import alone takes a minute on a cold disk


def report_of(image: dict[str, Any]) -> dict[str, Any] | None:
    """The check's result on the label of an inspected image; None where there is none to be read."""
    try:
        report = json.loads(((image.get("Config") or {}).get("Labels") or {})[LABEL])
    except (KeyError, ValueError):
        return None
    return report if isinstance(report, dict) and isinstance(report.get("lines"), list) else None


def proved(image: dict[str, Any], profile: str, vllm: str | None = None) -> bool:
    """Has the image passed its check, for this use and this version of vLLM (None: any)?"""
    report = report_of(image)
    if report is None or report.get("ok") is not True or report.get("profile") != profile:
        return False
    return vllm is None or any(
        (line.get("check"), line.get("status"), line.get("wanted")) == ("vllm_version", "ok", f"vLLM {vllm}")
        for line in report["lines"]
    )


def prove(job: Job, image: str, tag: str, wanted: dict[str, Any]) -> str:
    """Run the check in `image` (an id); returns the id of the same image with the result as its label.

    `wanted`: {"profile": "gpu" | "cpu", "vllm": version or null}. JobError when a check fails, with its line.
    """
    profile, version = wanted.get("profile"), wanted.get("vllm")
    if profile not in PROFILES:
        raise JobError(f"found the profile {profile!r}; wanted gpu or cpu; correct the plan's maker")
    job.progress.stage("check", None, "steps", COMMAND)
    report = _run(image, str(profile), version)
    failed = [line for line in report["lines"] if line.get("status") == "failed"]
    if failed or report.get("ok") is not True:
        raise JobError(failure(failed))
    return _labelled(image, tag, json.dumps(report, separators=(",", ":"), ensure_ascii=False))


def failure(lines: list[dict[str, Any]]) -> str:
    """What the user is told: the first failed check, and how many more there are."""
    if not lines:
        return f"found {COMMAND} without a verdict; wanted one; use another base image"
    first = lines[0]
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    remedy = REMEDIES.get(str(first.get("check")), "use another base image")
    return f"found {first.get('found')} in the image{more}; wanted {first.get('wanted')}; {remedy}"


REMEDIES = {
    "vllm_version": "correct image.version or image.base in the recipe",
    "torch_cuda": "use a base built for this hardware; a dependency may have exchanged torch",
    "architectures": "use a base built for CUDA 13 (vLLM 0.20 or later), or build from source for 12.1a",
    "plugin": "see the plugin's words; files/patches is what was installed",
    "extensions": "torch and vLLM of the base do not fit each other; use another base or rebuild it",
    "extensions_device_code": "check the driver (580 or later), or use a base built for it",
    "device_code": "check the driver (580 or later) and that containers see the GPU",
}


def _run(image: str, profile: str, version: str | None) -> dict[str, Any]:
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", COMMAND]
    if profile == "gpu":
        command += ["--gpus", "all"]
    command += [image, "--profile", profile, *(["--vllm", version] if version else [])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=ENVIRONMENT, timeout=CHECK_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise JobError(
            f"found {COMMAND} still at work after {CHECK_LIMIT_S} s; wanted its result; run the deploy again"
        ) from None
    print(done.stderr, end="", flush=True)  # the journal keeps what the libraries said
    try:
        report = json.loads(done.stdout.strip().splitlines()[-1])
        if isinstance(report["lines"], list):
            return dict(report)
    except (IndexError, ValueError, KeyError, TypeError):
        pass
    said = " ".join(done.stderr.split())[-300:] or f"status {done.returncode} and no word"
    if COMMAND in said and ("not found" in said or "no such file" in said):
        raise JobError(
            f"found no {COMMAND} in the image; wanted the plugin in it; "
            "use a base with vLLM in a Python on PATH"
        )
    raise JobError(
        f"found no result of {COMMAND}: {said}; wanted one; see this unit's journal for the whole output"
    )


def _labelled(image: str, tag: str, text: str) -> str:
    """The same image with the label. BuildKit takes no id after FROM, so it has a name while that runs."""
    name = f"{tag}-unproved"
    done = docker("image", "tag", image, name)
    if done.returncode == 0:
        try:
            done = subprocess.run(
                ["docker", "build", "--quiet", "--label", f"{LABEL}={text}", "-"],
                input=f"FROM {name}\n",
                capture_output=True,
                text=True,
                env=ENVIRONMENT,
                check=False,
            )
        finally:
            docker("image", "rm", name)
    made = done.stdout.strip()
    if done.returncode or not made:
        said = " ".join(done.stderr.split())[-300:]
        raise JobError(f"found '{said}' on labelling the image; wanted the check's result on it; run again")
    found = inspect_image(made)
    if found is None or report_of(found) is None:
        raise JobError(f"found no label {LABEL} on {made}; wanted the check's result; see `docker version`")
    return made
