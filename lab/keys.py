"""SSH keys of the lab: one for the user, one a host, and the lab's own known_hosts."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def pair(comment: str) -> tuple[bytes, bytes]:
    """A new Ed25519 pair as OpenSSH writes it: (private, public line)."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + f" {comment}\n".encode()


def write_private(path: Path, private: bytes, public: bytes) -> None:
    """Writes `path` (mode 0600 from the start) and `path`.pub."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(private)
    path.with_name(path.name + ".pub").write_bytes(public)


def known_hosts(hosts: dict[str, bytes]) -> str:
    """The file that pins `{address: public host key line}`."""
    lines = []
    for address, public in hosts.items():
        kind, key = public.split()[:2]
        lines.append(f"{address} {kind.decode()} {key.decode()}\n")
    return "".join(lines)
