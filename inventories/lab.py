"""The virtual Sparks of `sparkstack lab up`, as `.lab/state.json` says they are now."""

import json
from pathlib import Path

from pyinfra.api.exceptions import PyinfraError

_root = Path(__file__).resolve().parent.parent
try:
    _state = json.loads((_root / ".lab" / "state.json").read_text())
except FileNotFoundError:
    raise PyinfraError("the lab is not up; start it with: sparkstack lab up") from None

_files = _state["files"]
_ssh = {
    "ssh_user": _state["user"],
    "ssh_key": str(_root / _state["key"]),
    "ssh_known_hosts_file": str(_root / _state["known_hosts"]),
    "ssh_strict_host_key_checking": "yes",
    "ssh_allow_agent": False,
    "ssh_look_for_keys": False,
}

sparks = (
    [(node["name"], {"ssh_hostname": node["address"], **_ssh}) for node in _state["nodes"]],
    {
        "docker_mirrors": [_state["registry"]],
        "hub_endpoint": _state["hub"],
        "image_bases": _state["image_base"],
        "conda_url": _state["conda"]["url"],
        "conda_sha256": _state["conda"]["sha256"],
        "pip_environment": {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": f"{_files}/wheels/",
            "PIP_TRUSTED_HOST": _files.removeprefix("http://").partition(":")[0],
        },
    },
)
