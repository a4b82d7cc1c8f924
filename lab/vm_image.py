"""The disks of virtual Sparks that are machines: Debian with its kernel, Soft-RoCE, a Spark's names."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab import images, keys, rootfs
from lab.paths import LabError, Progress, digest
from lab.qemu import Nic

FILES = Path(__file__).parent / "vm_files"
SIZE = "2G"
USER = "nvidia"

PACKAGES = (
    *("ca-certificates", "curl", "dbus", "ethtool", "ibverbs-utils", "iproute2", "iptables", "iputils-ping"),
    *("kmod", "linux-image-amd64", "netplan.io", "nftables", "openssh-server", "perftest", "procps"),
    *("python3", "python3-yaml", "rdma-core", "sudo", "systemd", "systemd-sysv", "udev"),
)

# The start has only what it needs: with all drivers in it, an emulated machine unpacks for half a minute.
INITRAMFS = (
    '--essential-hook=mkdir -p "$1"/etc/initramfs-tools/conf.d',
    '--essential-hook=echo MODULES=list > "$1"/etc/initramfs-tools/conf.d/lab',
    '--essential-hook=printf "virtio_pci\\nvirtio_blk\\next4\\n" > "$1"/etc/initramfs-tools/modules',
)

# Units that cost an emulated machine seconds and do nothing for it.
MASKED = (
    *("e2scrub_reap.service", "e2scrub_all.timer", "apt-daily.timer", "apt-daily-upgrade.timer"),
    *("systemd-networkd-wait-online.service", "systemd-binfmt.service", "fstrim.timer", "getty.target"),
    *("dpkg-db-backup.timer", "man-db.timer", "dev-hugepages.mount", "sys-kernel-debug.mount"),
    *("sys-kernel-tracing.mount", "iwpmd.service", "rdma-ndd.service"),
)


@dataclass(frozen=True)
class Root:
    """A root file system as a folder, and the kernel and initrd in it."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self._boot("vmlinuz-")

    @property
    def initrd(self) -> Path:
        return self._boot("initrd.img-")

    def _boot(self, prefix: str) -> Path:
        return next(path for path in sorted((self.folder / "boot").iterdir()) if path.name.startswith(prefix))


def root(folder: Path, progress: Progress) -> Root:
    """The root file system in `folder`, made where it is not there with these very contents."""
    tools = {"mmdebstrap": "mmdebstrap", "mkfs.ext4": "e2fsprogs", "qemu-system-x86_64": "qemu-system-x86"}
    rootfs.check(tools)
    files = {path.name: path.read_bytes() for path in sorted(FILES.iterdir())}
    mark = digest(rootfs.SUITE, PACKAGES, INITRAMFS, MASKED, [*files], *files.values())
    made = folder / f"root-{mark}"
    if not made.exists():
        for old in folder.glob("root-*"):
            drop(old)
        partial = folder / "root-partial"
        rootfs.bootstrap(partial, PACKAGES, progress, "rootfs", INITRAMFS)
        progress("rootfs", 0, None, "configuring")
        _configure(partial, files)
        partial.rename(made)
    return Root(made)


def drop(tree: Path) -> None:
    """Remove a root file system, or what a killed command left of one. Raises LabError where something is
    mounted in it: what is below would be this machine's."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [mount for mount in mounts if mount.startswith(f"{tree.resolve()}/")]
    if below:
        raise LabError(f"{tree}: found {below[0]} mounted; wanted nothing mounted there; umount it first")
    shutil.rmtree(tree)


def _configure(tree: Path, files: dict[str, bytes]) -> None:
    for name in ("usr/share/doc", "usr/share/locale", "usr/share/man"):
        shutil.rmtree(tree / name, ignore_errors=True)
    (tree / "etc/fstab").write_text("/dev/vda / ext4 defaults,noatime 0 0\n")
    (tree / "usr/local/sbin/lab-rdma").write_bytes(files["lab-rdma"])
    (tree / "usr/local/sbin/lab-rdma").chmod(0o755)
    (tree / "etc/systemd/system/lab-rdma.service").write_bytes(files["lab-rdma.service"])
    context = images.context_files()
    (tree / "etc/ssh/sshd_config.d/lab.conf").write_bytes(context["sshd.conf"])
    (tree / "etc/dgx-release").write_bytes(context["dgx-release"].replace(b"a container", b"a machine"))
    (tree / "etc/sudoers.d/nvidia").write_text(f"{USER} ALL=(ALL) NOPASSWD:ALL\n")
    (tree / "etc/sudoers.d/nvidia").chmod(0o440)
    (tree / "etc/machine-id").write_text("")
    for key in (tree / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    _in(tree, "useradd", "--create-home", "--shell", "/bin/bash", USER)
    _in(tree, "systemctl", "mask", *MASKED)
    _in(tree, "systemctl", "enable", "systemd-networkd.service", "ssh.service", "lab-rdma.service")
    _in(tree, "systemctl", "set-default", "multi-user.target")


def _in(tree: Path, *words: str) -> None:
    done = subprocess.run(["chroot", str(tree), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(words[:2])} in the root file system: {done.stderr.strip()[-300:]}")


def disk(made: Root, target: Path, name: str, authorized: bytes, nics: dict[str, Nic]) -> bytes:
    """Make the disk of the machine `name`; returns the public line of its own SSH key.

    `nics` has the interfaces by the names that they shall have. Only this machine's files differ.
    """
    tree = made.folder
    (tree / "etc/hostname").write_text(name + "\n")
    (tree / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
    for interface, nic in nics.items():
        link = f"[Match]\nMACAddress={nic.mac}\n\n[Link]\nName={interface}\n"
        (tree / f"etc/systemd/network/10-{interface}.link").write_text(link)
    netplan = tree / "etc/netplan/01-management.yaml"
    netplan.parent.mkdir(exist_ok=True)
    # The addresses are the ones of QEMU's user network.
    netplan.write_text(
        "network:\n  version: 2\n  renderer: networkd\n  ethernets:\n    enP7s7:\n"
        "      addresses: [10.0.2.15/24]\n      routes: [{to: default, via: 10.0.2.2}]\n"
    )
    netplan.chmod(0o600)
    private, public = keys.pair(f"root@{name}")
    host_key = tree / "etc/ssh/ssh_host_ed25519_key"
    keys.write_private(host_key, private, public)
    home = tree / f"home/{USER}/.ssh"
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "authorized_keys").write_bytes(authorized)
    for path in (home, home / "authorized_keys"):
        os.chown(path, 1000, 1000)
    partial = target.with_suffix(".partial")
    words = ["mkfs.ext4", "-q", "-F", "-d", str(tree), str(partial), SIZE]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    host_key.unlink()
    if done.returncode != 0:
        raise LabError(f"disk of {name}: {done.stderr.strip()[-300:]}")
    partial.rename(target)
    return public
