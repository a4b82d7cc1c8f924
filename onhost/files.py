"""Files done safely: whole or not at all, copied by the kernel, hashed in constant memory."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from onhost.plan import JobError

CHUNK = 4 << 20  # bytes; large enough that system calls cost nothing, small enough for eight streams
BLOCK = 4096  # bytes; what file systems that share blocks share
AT_ONCE = 64 << 20  # bytes that the kernel copies between two words of progress
OnBytes = Callable[[int], None]

# Where the kernel or the file system cannot copy between two files, reading and writing can.
_NO_COPY_RANGE = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF}


def ignore_bytes(_count: int) -> None:
    """For callers that show no progress."""


@contextmanager
def placed(path: Path) -> Iterator[None]:
    """Writes below it that fail tell `path`: the kernel says no place once a file is open, and a user whose
    disk is full wants to know which one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def fsync_path(path: Path) -> None:
    """Brings a file's content, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_tree(folder: Path) -> None:
    """Brings every file and every folder below (and `folder` itself) to the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if not path.is_symlink():
            fsync_path(path)
    fsync_path(folder)


def write_atomic(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Writes a file that is either the old one or the new one, also after a power cut.

    One writer at a time: the temporary name is always the same, so that a killed writer's is used again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with placed(path):
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(handle, "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(path)
            fsync_path(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically, keys in the given order, readable. Half a character (a server's answer may hold
    one) stands there as JSON's own escape."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_atomic(path, text.encode(errors="backslashreplace"))


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Writes all of `data` at the descriptor's position."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def copy_range(source: int, target: int, offset: int, count: int, on_bytes: OnBytes = ignore_bytes) -> None:
    """Appends `count` bytes from `offset` of file descriptor `source` to `target` at its position.

    The kernel copies, and shares blocks where the file system can and both places lie alike within a block
    (then the part before the first whole block goes by itself: a request that begins within a block would be
    copied as a whole). Reading and writing is the fallback. EOFError where the source is shorter.
    """
    by_kernel = hasattr(os, "copy_file_range")
    at = os.lseek(target, 0, os.SEEK_CUR)
    within = -offset % BLOCK if (offset - at) % BLOCK == 0 else 0
    while count:
        if by_kernel:
            try:
                done = os.copy_file_range(source, target, min(count, within or AT_ONCE), offset)
                within = 0
            except OSError as error:
                if error.errno not in _NO_COPY_RANGE:
                    raise
                by_kernel = False
                continue
        else:
            data = os.pread(source, min(count, CHUNK), offset)
            done = len(data)
            write_all(target, data)
        if done == 0:
            raise EOFError(f"{count} bytes missing from offset {offset}")
        offset += done
        count -= done
        on_bytes(done)


def link_or_copy(source: Path, target: Path, on_bytes: OnBytes = ignore_bytes) -> None:
    """Makes `target` the same content as `source`: a hard link where possible, else a copy.

    Who gets a link must never write into it: new content is a new file under the same name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    source = source.resolve()  # a link to a symlink would point into somebody's cache
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES}:
            raise
        with source.open("rb") as read, target.open("xb") as write:
            copy_range(read.fileno(), write.fileno(), 0, os.fstat(read.fileno()).st_size, on_bytes)
    else:
        on_bytes(target.stat().st_size)


def sha256_of(path: Path, on_bytes: OnBytes = ignore_bytes) -> str:
    """SHA-256 of a file in hex, in constant memory."""
    return _digest(path, hashlib.sha256(), on_bytes)


def git_sha1_of(path: Path, on_bytes: OnBytes = ignore_bytes) -> str:
    """The id that git gives to a file's content: SHA-1 over a short header and the bytes."""
    return _digest(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size), on_bytes)


def _digest(path: Path, digest: Any, on_bytes: OnBytes) -> str:
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(buffer):
            digest.update(view[:got])
            on_bytes(got)
    return str(digest.hexdigest())


def safe_relative(name: str) -> str:
    """`name` as a relative path that stays inside its folder; JobError for any other."""
    path = PurePosixPath(name)
    bad = not path.parts or name != path.as_posix() or path.is_absolute() or "\\" in name or "\0" in name
    if bad or any(part in {"..", "."} for part in path.parts):
        raise JobError(
            f"found the file name {name!r}; wanted a relative path inside the folder; distrust the source"
        )
    return name


def files_below(folder: Path) -> Iterator[str]:
    """Relative names of all files below a folder, sorted."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]
    return iter(sorted(names))


def need_space(folder: Path, wanted: int, what: str) -> None:
    """JobError where the file system of `folder` has less than `wanted` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise JobError(
            f"found {size_text(free)} free at {folder}; wanted {size_text(wanted)} for {what}; "
            "free some space (old checkpoints, downloads) and run again"
        )


def size_text(count: int) -> str:
    """Bytes for people, in powers of ten as disks are sold."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
