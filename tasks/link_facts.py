"""What a host says of its links, and what was measured on them before: one command."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pyinfra.api import FactBase

# A port that is down has no carrier to read, and some drivers no speed: "-" then.
_PORT = (
    'd=/sys/class/net/$i; [ -e "$d" ] || continue; '
    "said=; for f in carrier speed mtu carrier_changes; do "
    'v=; { read -r v <"$d/$f"; } 2>/dev/null; said="$said ${v:--}"; done; echo "port=$i$said"'
)


class LinkState(FactBase[dict[str, Any]]):
    """Returns `{"boot", "ports": {name: {"carrier", "speed_mbps", "mtu", "changes", "hca", "hca_active"}},
    "perftest", "result"}` as `sparkstack.links.HostState` wants it; "result" is what the JSON file `result`
    holds, None where it is absent or broken."""

    default = dict

    def command(self, names: list[str], result: str) -> str:
        ports = f"for i in {shlex.join(names)}; do {_PORT}; done; " if names else ""
        return (
            f'echo "boot=$(cat /proc/sys/kernel/random/boot_id)"; {ports}'
            "rdma link 2>/dev/null | sed -n 's/^link /link=/p'; "
            "command -v ib_write_bw >/dev/null && echo perftest=yes; "
            f"sed 's/^/result=/' {shlex.quote(result)} 2>/dev/null; true"
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"boot": "", "ports": {}, "perftest": False, "result": None}
        links, result = [], []
        for line in output:
            key, _, value = line.partition("=")
            if key == "boot":
                found["boot"] = value
            elif key == "port":
                name, carrier, speed, mtu, changes = value.split(" ")
                # A driver without a speed says -1.
                found["ports"][name] = {
                    "carrier": {"1": True, "0": False}.get(carrier),
                    "speed_mbps": int(speed) if speed.isdigit() else None,
                    "mtu": int(mtu) if mtu.isdigit() else None,
                    "changes": int(changes) if changes.isdigit() else None,
                }
            elif key == "link":
                links.append(value.split())
            elif key == "perftest":
                found["perftest"] = True
            elif key == "result":
                result.append(value)
        # "rocep1s0f0/1 state ACTIVE physical_state LINK_UP netdev enp1s0f0np0"
        for device, *words in links:
            facts = dict(zip(words[::2], words[1::2], strict=False))
            if (port := found["ports"].get(facts.get("netdev"))) is not None:
                port |= {"hca": device.partition("/")[0], "hca_active": facts.get("state") == "ACTIVE"}
        try:
            found["result"] = json.loads("\n".join(result))
        except ValueError:
            found["result"] = None
        return found
