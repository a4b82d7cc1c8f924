"""Site values of the lab's virtual machines: kernels and RDMA are real, speed is not. There is no Docker and
no serving; what runs here are the stages host, fabric and link."""

recipe = "lab-tiny"
accelerator = "cpu"
accepted_systems = ["debian:12"]

# Nothing is fetched: what the stages need is on the disks.
packages = [
    *("ca-certificates", "curl", "ethtool", "iproute2", "iputils-ping", "netplan.io", "perftest", "python3"),
]
earlyoom = False
time_sync = False
image_bases = {"sparkstack-lab/vllm-cpu": "sparkstack-lab/vllm-cpu@sha256:" + "0" * 64}

# An emulated machine moves some hundredths of a Gb/s.
link_wanted = {
    "speed_mbps": 200_000,
    "rail_gbps": 0.001,
    "both_gbps": 0.001,
    "tcp_gbps": 0.002,
    "rdma": "required",
    "nccl_gbytes": 0.1,
    "nccl_ring_gbytes": 0.1,
    "nccl_size_gib": 0.25,
    "seconds": 4,
    "port": 18515,
}
