"""Jobs image and fetch-image: an image under its tag, built here or the head's, whole or not at all."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from onhost import image_check
from onhost.docker_cli import ENVIRONMENT, check_tag, docker, inspect_image
from onhost.files import CHUNK
from onhost.jobs import Job
from onhost.plan import JobError
from onhost.pull import pull
from onhost.staging.openers import plain_opener
from onhost.staging.transfer import Transfer

# What a builder says of a step that failed repeats all of the step, and with it words such as "timeout".
REPEATED = re.compile(r"""process ".*" did not|The command '.*' returned""")
STALL = 120.0  # s without a word; a daemon that extracts a layer of gigabytes is silent for long
SAVES = 900.0
"""s without a byte of an image: `docker save` may first write all of it to the head's disk, for each host."""
DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
BUILDKIT = "Dockerfile.buildkit"  # the same build with cache mounts
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# "Step 2/7 : RUN …" is the classic builder's line, "#9 [2/7] RUN …" BuildKit's (a stage's name may come
# first).
STEP = re.compile(r"Step (\d+)/(\d+) : (.*)|#\d+ \[(?:\S+ +)?(\d+)/(\d+)\] (.*)")
# What builders print around the words of a failing command.
CHATTER = re.compile(
    r"( ---> |Removing intermediate|Sending build context|Step \d+/|DEPRECATED|Install the buildx"
    r"|#\d+ (DONE|CACHED|sha256)"
    r"|BuildKit is|environment-variable|https://docs\.docker\.com|-{3,}|\s*$"
    # BuildKit ends with the part of the Dockerfile that failed.
    r"|Dockerfile\S*:\d+$|\s*\d+ \||\s*> \[)"
)


def build(job: Job) -> dict[str, Any]:
    """Job image: pulls the base by digest, builds the context on it, proves it, and tags the result last.

    Where the plan's `context` is null nothing is built: the base is the image. Where it has no `check`, the
    image is not proved and says so by having no label.
    """
    plan = job.plan
    tag = check_tag(plan.text("tag"))
    check = plan.data.get("check")
    found = inspect_image(tag)
    profile, version = (check or {}).get("profile"), (check or {}).get("vllm")
    base = plan.text("base")
    context = None if plan.data.get("context") is None else plan.path("context")
    if found is not None and (
        image_check.proved(found, str(profile), version)
        if check is not None
        else context is not None or _is_or_gone(base, found["Id"])
    ):
        return _stands(job, tag, found)
    if not DIGEST.fullmatch(base):
        raise JobError(f"found the base {base!r}; wanted repository@sha256:DIGEST; correct the recipe")
    if context is not None and not (context / "Dockerfile").is_file():
        raise JobError(f"found no Dockerfile in {context}; wanted the build context; run the deploy again")
    arguments = dict(plan.data.get("build_args") or {})
    base = pull(job, base, plan.data.get("mirrors") or [])
    image = base if context is None else _build(job, context, {**arguments, "BASE": base})
    if check is not None:
        image = image_check.prove(job, image, tag, check)
    _tag(image, tag)
    return _value(tag)


def fetch(job: Job) -> dict[str, Any]:
    """Job fetch-image: the head's image through its share; its id must be the head's, or no tag stays."""
    plan = job.plan
    tag, wanted = check_tag(plan.text("tag")), plan.text("image_id")
    found = inspect_image(tag)
    if found is not None and found["Id"] == wanted:
        return _stands(job, tag, found)
    if inspect_image(wanted) is not None:
        _tag(wanted, tag)
        return _value(tag)
    token = plan.secret("token_file")
    _load(job, f"{plan.text('url').rstrip('/')}/images/{quote(tag, safe='')}", tag, wanted, token)
    return _value(tag)


def has_buildkit() -> bool:
    """Whether `docker build` goes to BuildKit, which reads cache mounts; the legacy builder does not."""
    return os.environ.get("DOCKER_BUILDKIT") != "0" and docker("buildx", "version").returncode == 0


def _build(job: Job, context: Path, arguments: dict[str, str]) -> str:
    """Builds without a tag and returns the image's id."""
    job.progress.stage("build", None, "steps", str(context))
    with tempfile.TemporaryDirectory(prefix="onhost-") as folder:
        id_file = Path(folder) / "id"
        command = ["docker", "build", f"--iidfile={id_file}"]
        if (context / BUILDKIT).is_file() and has_buildkit():
            command.append(f"--file={context / BUILDKIT}")
        for key, value in sorted(arguments.items()):
            command.append(f"--build-arg={key}={value}")
        command.append(str(context))
        last: deque[str] = deque(maxlen=40)
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=ENVIRONMENT,
        ) as process:
            try:
                assert process.stdout is not None
                for raw in process.stdout:
                    print(raw, end="", flush=True)  # the journal keeps the whole output
                    line = ANSI.sub("", raw).rstrip()
                    last.append(line)
                    step = STEP.match(line)
                    if step:
                        at, total, what = [part for part in step.groups() if part is not None]
                        job.progress.set(int(at) - 1, int(total), what[:80])
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            lines = list(last)
            remedy = likely_cause(lines) or "see this unit's journal for the whole output"
            raise JobError(f"found a failing build: {meaningful(lines)}; wanted an image; {remedy}")
        return id_file.read_text(encoding="ascii").strip()


def meaningful(lines: list[str]) -> str:
    """The last few lines that say something, as one."""
    kept: list[str] = []
    for line in lines:
        text = re.sub(r"^#\d+ (\d+\.\d+ )?", "", line).strip()
        if text and not CHATTER.match(line) and not CHATTER.match(text) and text not in kept:
            kept.append(text)
    return " | ".join(part[:300] for part in kept[-3:]) or "no output"


# What a build's last words say about its cause, and what to do about it; the first that fits.
CAUSES = (
    (
        r"no space left on device|disk quota exceeded",
        "the disk is full: free some (docker system df) and run again; the build goes on from its cache",
    ),
    (
        r"hash(es)? (do|does)(n't| not) match|do not match the hash|(hash|digest) mismatch|checksum",
        "a file is not the one that was pinned: check the mirror, or correct the pin",
    ),
    (
        # What `git apply` says, and not a compiler ("fatal error:"); BuildKit puts a time before it.
        r"(?<!fatal )\berror: (patch failed: \S+|\S+: (patch does not apply|no such file or directory))",
        "a change does not fit the sources: take its commit for this version, or a version that has it",
    ),
    (
        r"timed? ?out|timeout|connection (reset|refused)|temporary failure in name resolution"
        r"|could not resolve|network is unreachable|no route to host|incompleteread|502 bad gateway",
        "the network failed: check mirrors and proxy and run again; the build goes on from its cache",
    ),
    (
        r"undefined symbol|no CUDA|cannot import name .* from 'torch'|version `[^']+' not found|\bABI\b",
        "torch and what was built against it do not fit each other: pin one torch for all stages",
    ),
    (
        r"\bKilled\b|signal (9|killed)|out of memory|cannot allocate memory|exit code: 137",
        "the compiler ran out of memory: lower image.source.jobs and run again",
    ),
)


def likely_cause(lines: list[str]) -> str | None:
    """The likely cause of a failed build with its remedy, from its last lines; None where none is known.

    The later a line, the nearer it is to the end. What the builder repeats of the Dockerfile tells nothing.
    """
    for line in reversed(lines):
        if STEP.match(line) or CHATTER.match(line):
            continue
        said = REPEATED.sub("it", line)
        for pattern, remedy in CAUSES:
            if re.search(pattern, said, re.IGNORECASE):
                return remedy
    return None


def _load(job: Job, url: str, tag: str, wanted: str, token: str | None) -> None:
    opener = plain_opener({"Authorization": f"Bearer {token}"} if token else {}, SAVES)
    job.progress.stage("fetch", None, "B", url)
    process = subprocess.Popen(
        ["docker", "load", "--quiet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=CHUNK,
        env=ENVIRONMENT,
    )
    fault = ""
    try:
        with opener(url, None) as body:
            if body.status != 200:
                raise _refusal(body.status, url)
            announced = body.header("x-image-id")
            if announced != wanted:
                raise JobError(
                    f"found image {announced} for {tag} on the head; wanted {wanted}; run the deploy again"
                )
            size = body.header("x-image-size") or ""
            job.progress.stage("fetch", int(size) if size.isdigit() else None, "B", tag)
            assert process.stdin is not None
            for chunk in body.chunks():
                process.stdin.write(chunk)
                job.progress.add(len(chunk))
            process.stdin.close()
    except Transfer as error:
        raise JobError(f"found {error}; wanted the head's image; check the fabric and run again") from None
    except BrokenPipeError:
        fault = "docker load ended early"
    finally:
        output = _end(process, fault=fault)
        if not _is(tag, wanted):
            docker("image", "rm", tag)  # takes the name away only where a load has set it
    if process.returncode or fault:
        raise JobError(
            f"found a failing docker load: {meaningful(output)}; wanted {tag}; see this unit's journal"
        )
    if not _is(tag, wanted):
        raise JobError(
            f"found another image than {wanted} after loading {tag}; wanted the head's; "
            "check that both daemons use the same image store (docker info: Storage Driver)"
        )


def _end(process: subprocess.Popen[bytes], *, fault: str) -> list[str]:
    """Waits for docker load where its input was complete, ends it otherwise."""
    if process.stdin is not None and not process.stdin.closed:
        if not fault:
            process.kill()  # a cut stream must not look like an end to it
        with suppress(BrokenPipeError):
            process.stdin.close()
    assert process.stdout is not None
    output = process.stdout.read().decode("utf-8", "replace").splitlines()
    process.stdout.close()
    process.wait()
    return output


def _refusal(status: int, url: str) -> JobError:
    if status == 401:
        return JobError(
            f"found HTTP 401 at {url}; wanted access with the share's token; "
            "run the deploy again, which gives all hosts the same token"
        )
    if status == 404:
        return JobError(f"found HTTP 404 at {url}; wanted the head's image; build it on the head first")
    return JobError(
        f"found HTTP {status} at {url}; wanted 200; see the journal of sparkstack-share on the head"
    )


def _is(tag: str, image_id: str) -> bool:
    found = inspect_image(tag)
    return found is not None and found["Id"] == image_id


def _is_or_gone(base: str, image_id: str) -> bool:
    """Is the image the base itself? One that is not here any more cannot be compared."""
    found = inspect_image(base)
    return found is None or found["Id"] == image_id


def _tag(image: str, tag: str) -> None:
    done = docker("image", "tag", image, tag)
    if done.returncode:
        raise JobError(f"found '{done.stderr.strip()}' on tagging; wanted {tag}; see `docker image ls`")


def _value(tag: str) -> dict[str, Any]:
    found = inspect_image(tag)
    if found is None:
        raise JobError(f"found no image {tag} at the end; wanted it; somebody removed it: run again")
    return {"tag": tag, "image_id": found["Id"], "bytes": int(found["Size"])}


def _stands(job: Job, tag: str, found: dict[str, Any]) -> dict[str, Any]:
    job.progress.stage("done", int(found["Size"]), "B", f"{tag} stands already", done=int(found["Size"]))
    return _value(tag)
