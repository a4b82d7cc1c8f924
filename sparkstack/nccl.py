"""Which interfaces and RDMA devices a rank's libraries shall use, as environment variables."""

from __future__ import annotations

from collections.abc import Sequence

from sparkstack.errors import Problem, SparkstackError
from sparkstack.fabric import FabricPlan
from sparkstack.launch import Accelerator

LOOPBACK = "127.0.0.1"


def host_address(plan: FabricPlan, node: str, management_address: str = "") -> str:
    """The address by which the other ranks find `node`: VLLM_HOST_IP, and the head's is the master address.

    On a ring no fabric network holds all nodes, so they meet on the management network.
    Errors: SparkstackError for a ring without `management_address`.
    """
    if plan.kind == "single":
        return LOOPBACK
    if plan.kind == "ring":
        if not management_address:
            raise SparkstackError(
                Problem(node, "no management address", "one for a ring", "name it in the inventory")
            )
        return management_address
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
    `active_hcas` are the RDMA devices whose port is active (ibv_devinfo). NCCL_IB_GID_INDEX is never set: the
    right index differs by node and moves with time, and NCCL finds it by itself.
    """
    env = {"VLLM_HOST_IP": host_address(plan, node, management_address)}
    if kind == "single":
        return env
    socket = management if kind == "ring" else plan.of(node)[0].name
    for name in (
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
        "OMPI_MCA_btl_tcp_if_include",
    ):
        env[name] = socket
    # The CPU build talks by gloo alone.
    hcas = list(dict.fromkeys(active_hcas)) if accelerator == "gpu" else []
    env["NCCL_IB_DISABLE"] = "0" if hcas else "1"
    if hcas:
        # "=": by the whole name; otherwise mlx5_1 would also mean mlx5_10.
        env["NCCL_IB_HCA"] = "=" + ",".join(hcas)
    if kind == "ring":
        # Each port reaches one neighbour only: pair devices by subnet, and do not bundle the two twins.
        env |= {
            "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
            "NCCL_IB_MERGE_NICS": "0",
            "NCCL_NET_PLUGIN": "none",
        }
        if len(plan.nodes) > 3:
            env["NCCL_ALGO"] = "Ring"  # a tree would need cables across
    return env
