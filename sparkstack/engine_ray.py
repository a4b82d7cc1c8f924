"""vLLM over Ray, for images whose vLLM knows no other way to several hosts.

Ray's processes live in the unit's own container. On the head vLLM replaces the shell that started Ray and is
the container's main process; on another host Ray itself is (`--block`), and ends with the head's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sparkstack.launch import Accelerator, Rank

OWN_VARIABLES = (
    "GLOO_SOCKET_IFNAME",
    "MN_IF_NAME",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "OMPI_MCA_btl_tcp_if_include",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "VLLM_HOST_IP",
)
"""What each host has its own value of. vLLM hands its driver's environment on to the other hosts, but for the
names in this file; there the head's interfaces would be the wrong ones."""
ENV = {
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_num_prestart_python_workers": "0",
    "RAY_object_store_memory": str(2**30),
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Unified memory is the model's: Ray kills nothing for it, and takes one GiB instead of a third of all."""
OBJECT_STORE = f"--object-store-memory={2**30}"

_HEAD = """\
set -e
config="${VLLM_CONFIG_ROOT:-${XDG_CONFIG_HOME:-$HOME/.config}/vllm}"
mkdir -p "$config"
printf %s "$1" > "$config/ray_non_carry_over_env_vars.json"
address=$2 port=$3 gpus=$4
shift 4
ray start --head --node-ip-address="$address" --port="$port" $gpus {store} --include-dashboard=false
export RAY_ADDRESS="$address:$port"
exec "$@"
"""
_WORKER = """\
head=$1 port=$2 address=$3 gpus=$4
until python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)' \\
    "$head" "$port" 2>/dev/null; do sleep 1; done
exec ray start --address="$head:$port" --node-ip-address="$address" $gpus {store} --block
"""


def argv(rank: Rank, serve: Sequence[str], accelerator: Accelerator) -> list[str]:
    """What a rank's container runs; `serve` is the head's `vllm serve …`."""
    gpus, port = "--num-gpus=1" if accelerator == "gpu" else "", str(rank.master_port)
    if rank.rank > 0:
        script = _WORKER.replace("{store}", OBJECT_STORE)
        return ["sh", "-c", script, "ray-worker", rank.head_address, port, rank.host_address, gpus]
    script = _HEAD.replace("{store}", OBJECT_STORE)
    names = json.dumps(OWN_VARIABLES)
    return ["sh", "-c", script, "ray-head", names, rank.head_address, port, gpus, *serve]
