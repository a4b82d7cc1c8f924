"""One QEMU process: how it is started, told something, known again, and ended. None but ours is touched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.paths import LabError

BINARY = "qemu-system-x86_64"
PROBE_S = 15.0
MEMORY_MIB = 1024
ENDS_S = 20.0


@dataclass(frozen=True)
class Nic:
    """A network card: its MAC address and QEMU's words for what it is connected to."""

    ident: str
    mac: str
    netdev: str
    device: str = ""


@dataclass(frozen=True)
class Machine:
    """A virtual machine by its name; everything of it lies in `folder`."""

    name: str
    folder: Path

    @property
    def pidfile(self) -> Path:
        return self.folder / f"{self.name}.pid"

    @property
    def disk(self) -> Path:
        return self.folder / f"{self.name}.img"

    @property
    def console(self) -> Path:
        return self.folder / f"{self.name}.console"

    @property
    def monitor(self) -> Path:
        return self.folder / f"{self.name}.qmp"

    def pid(self) -> int | None:
        """Its process, None where it does not run: also where the number is somebody else's by now."""
        try:
            pid = int(self.pidfile.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        mine = f"file={self.disk},".encode()
        return pid if any(word.startswith(mine) for word in words) else None

    def start(self, accelerator: str, kernel: Path, initrd: Path, nics: list[Nic]) -> None:
        """Start it in the background. Raises LabError with QEMU's words where that fails."""
        words = [BINARY, *accelerator_words(accelerator), "-smp", "1", "-m", str(MEMORY_MIB)]
        words += ["-name", self.name, "-nodefaults", "-no-user-config", "-display", "none"]
        words += ["-kernel", str(kernel), "-initrd", str(initrd), "-append"]
        words += [f"console=ttyS0 root=/dev/vda rw quiet mitigations=off systemd.hostname={self.name}"]
        words += ["-drive", f"file={self.disk},format=raw,if=virtio,cache=unsafe"]
        words += ["-serial", f"file:{self.console}", "-qmp", f"unix:{self.monitor},server=on,wait=off"]
        for nic in nics:
            words += ["-netdev", f"{nic.netdev},id={nic.ident}"]
            words += ["-device", f"virtio-net-pci,netdev={nic.ident},mac={nic.mac},romfile={nic.device}"]
        words += ["-daemonize", "-pidfile", str(self.pidfile)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(f"{self.name}: QEMU did not start: {done.stderr.strip()[-300:]}")

    def stop(self) -> None:
        """End the process as a power cut would; nothing where it does not run."""
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + ENDS_S
            while self.pid() is not None:
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
                    until += ENDS_S
                time.sleep(0.05)
        for path in (self.pidfile, self.monitor):
            path.unlink(missing_ok=True)

    def link(self, ident: str, on: bool) -> None:
        """Pull a NIC's cable, or put it back: the guest loses its carrier, or gets it."""
        self._tell("set_link", name=ident, up=on)

    def _tell(self, command: str, **arguments: Any) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            try:
                connection.connect(str(self.monitor))
            except OSError as error:
                raise LabError(f"{self.name}: no monitor ({error}); run: sparkstack lab up --vm") from None
            stream = connection.makefile("rw")
            stream.readline()  # the greeting
            for message in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                stream.write(json.dumps(message) + "\n")
                stream.flush()
                answer: dict[str, Any] = {}
                while not {"return", "error"} & set(answer):
                    answer = json.loads(stream.readline())
                if "error" in answer:
                    raise LabError(f"{self.name}: {command}: {answer['error']['desc']}")


def accelerator_words(accelerator: str) -> list[str]:
    if accelerator == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi", "-cpu", "max"]


def probe(kernel: Path, scratch: Path) -> str:
    """Returns "kvm" where that boots this kernel, else "tcg": in a nested machine the device says little."""
    if shutil.which(BINARY) is None:
        raise LabError(f"virtual machines need {BINARY}: apt install qemu-system-x86")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    console = scratch / "probe.console"
    console.unlink(missing_ok=True)
    words = [BINARY, *accelerator_words("kvm"), "-m", "256", "-nodefaults", "-no-user-config", "-no-reboot"]
    words += ["-display", "none", "-serial", f"file:{console}", "-kernel", str(kernel)]
    # Without a root file system the kernel gets as far as saying so, and is started again: QEMU ends.
    words += ["-append", "console=ttyS0 panic=-1"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + PROBE_S
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        process.kill()
    said = console.read_text(errors="replace") if console.exists() else ""
    return "kvm" if "Kernel panic" in said else "tcg"
