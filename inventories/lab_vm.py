"""The virtual machines of `sparkstack lab up --vm`, as `.lab/vm/state.json` says they are now."""

import json
from pathlib import Path

from pyinfra.api.exceptions import PyinfraError

_root = Path(__file__).resolve().parent.parent
try:
    _state = json.loads((_root / ".lab" / "vm" / "state.json").read_text())
except FileNotFoundError:
    raise PyinfraError("no virtual machines stand; start them with: sparkstack lab up --vm") from None

_ssh = {
    "ssh_user": _state["user"],
    "ssh_key": str(_root / _state["key"]),
    "ssh_known_hosts_file": str(_root / _state["known_hosts"]),
    "ssh_strict_host_key_checking": "yes",
    "ssh_allow_agent": False,
    "ssh_look_for_keys": False,
    # Every machine has the same address in a network of its own.
    "address": "10.0.2.15",
}

sparks = [
    (node["name"], {"ssh_hostname": node["address"], "ssh_port": node["port"], **_ssh})
    for node in _state["nodes"]
]
