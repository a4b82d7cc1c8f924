"""Which interfaces and RDMA devices a rank's libraries shall use, as environment variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from sparkstack.errors import Problem, SparkstackError
from sparkstack.fabric import FabricPlan
from sparkstack.launch import Accelerator

LOOPBACK = "127.0.0.1"
GID_INDEX = "NCCL_IB_GID_INDEX"
SOCKET_NAMES = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "OMPI_MCA_btl_tcp_if_include",
)


def empties(env: Mapping[str, str], where: str) -> list[Problem]:
    """A recipe's variables that must not be empty: NCCL reads an empty GID index as 0, which is RoCE v1, and
    an empty name as no interface."""
    names = (*SOCKET_NAMES, "NCCL_IB_HCA", GID_INDEX, "VLLM_HOST_IP")
    return [
        Problem(where, f"{name} without a value", "a value, or no such line", "remove it from serve.env")
        for name in names
        if name in env and not str(env[name]).strip()
    ]


def host_address(plan: FabricPlan, node: str, management_address: str = "") -> str:
    """The address by which the other ranks find `node`: VLLM_HOST_IP, and the head's is the master address.

    On a ring no fabric network holds all nodes, so they meet on the management network.
    Errors: SparkstackError for a ring whose `management_address` is none, or a name: vLLM listens on it, and
    listens on addresses only.
    """
    if plan.kind == "single":
        return LOOPBACK
    if plan.kind == "ring":
        if not management_address:
            raise SparkstackError(
                Problem(node, "no management address", "one for a ring", "name it in the inventory")
            )
        try:
            return str(ip_address(management_address))
        except ValueError:
            found, wanted = f"management address {management_address!r}", "an IP address for a ring"
            raise SparkstackError(
                Problem(node, found, wanted, "set `address` in the inventory")
            ) from None
    return plan.of(node)[0].address


def rank_env(
    kind: str,
    plan: FabricPlan,
    node: str,
    *,
    management: str,
    active_hcas: Sequence[str],
    accelerator: Accelerator,
    management_address: str = "",
) -> dict[str, str]:
    """The variables of `node`'s rank.

    `management` is the name of its management interface (enP7s7), which only a ring uses, with its address.
    `active_hcas` are the fabric's RDMA devices whose port is active, in order of the plan's interfaces.
    NCCL_IB_GID_INDEX is never set: the right index differs by node and moves with time, and NCCL finds it by
    itself.
    """
    env = {"VLLM_HOST_IP": host_address(plan, node, management_address)}
    if kind == "single":
        return env
    socket = management if kind == "ring" else plan.of(node)[0].name
    for name in SOCKET_NAMES:
        env[name] = socket
    # The CPU build talks by gloo alone.
    hcas = list(dict.fromkeys(active_hcas)) if accelerator == "gpu" else []
    env["NCCL_IB_DISABLE"] = "0" if hcas else "1"
    if hcas:
        # "=": by the whole name; otherwise mlx5_1 would also mean mlx5_10.
        env["NCCL_IB_HCA"] = "=" + ",".join(hcas)
    if len({interface.subnet for interface in plan.of(node)}) > 2:
        # More than one cable: each port reaches its own neighbour only, so devices are paired by subnet.
        env["NCCL_IB_SUBNET_AWARE_ROUTING"] = "1"
    if kind == "ring":
        # Two twins of different cables must not be bundled.
        env |= {"NCCL_IB_MERGE_NICS": "0", "NCCL_NET_PLUGIN": "none"}
        if len(plan.nodes) > 3:
            env["NCCL_ALGO"] = "Ring"  # a tree would need cables across
    return env
