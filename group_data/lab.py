"""The lab's site values: virtual Sparks on Debian, no GPU. What changes with each start of the lab
(addresses, digests) comes from `.lab/state.json` through inventories/lab.py."""

recipe = "lab-tiny"
accelerator = "cpu"
accepted_systems = ["debian:12"]
serve_bind = "management"

# Containers have no RDMA, their links no speed of their own, and nothing to measure with ib_write_bw.
packages = ["ca-certificates", "curl", "ethtool", "iproute2", "iputils-ping", "netplan.io", "python3"]
link_wanted = {
    "speed_mbps": 10_000,
    "rail_gbps": 0.1,
    "both_gbps": 0.1,
    "tcp_gbps": 0.2,
    "rdma": "optional",
    "nccl_gbytes": 0.1,
    "nccl_ring_gbytes": 0.1,
    "nccl_size_gib": 0.25,
    "seconds": 1,
    "port": 18515,
}

# vLLM on two shared cores takes its time for a token; a test waits for what the watchdog sees.
watchdog = {"interval_s": 5, "timeout_s": 30, "misses": 3, "away_s": 60}
