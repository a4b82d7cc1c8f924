"""Every knob of a site, with its default. Override a value in `group_data/<inventory name>.py`.

The file is the reference: a name that is not here is not a knob, and a run says so. What each of the host's
knobs does to a Spark, and why, is in docs/host.md.
"""

# What to serve: the name of a file in recipes/ (without .yaml), or the path of a file anywhere.
recipe = "lab-tiny"

# The user that owns the daily work on each Spark; joins the group "docker". None: the one of `ssh_user`,
# or who runs this where a Spark provisions itself.
user = None

# "gpu" (a real Spark) or "cpu" (the lab's virtual Sparks).
accelerator = "gpu"

# Run every command on the hosts through sudo. `user` needs sudo without a prompt.
_sudo = True

# Operating systems that preflight accepts, as ID:VERSION_ID of /etc/os-release.
accepted_systems = ["ubuntu:24.04"]

# Folders on the hosts.
state_dir = "/var/lib/sparkstack"
config_dir = "/etc/sparkstack"
install_dir = "/opt/sparkstack"

# ── Host ──

# Packages that must be there (apt). Nothing is ever removed or upgraded.
packages = [
    *("ca-certificates", "curl", "ethtool", "iproute2", "iputils-ping", "netplan.io", "perftest", "python3"),
]

# sshd is the last process that the kernel kills for memory, so that a full host can still be entered.
sshd_protected = True

# A daemon (package earlyoom) that ends the serving process before the host stops answering: when less than
# these percentages of memory AND of swap are free.
earlyoom = True
earlyoom_memory_percent = 2
earlyoom_swap_percent = 80

# No limit on locked memory for login sessions: RDMA registers its buffers as locked memory.
memlock_unlimited = True

# vm.swappiness. None: left as it is.
vm_swappiness: int | None = 10

# "keep" (as it is) or "off" (no swap, now and after each boot, by a unit of ours; /etc/fstab stays).
swap = "keep"

# Drop the page cache before each launch: on a Spark it takes the memory that vLLM asks the GPU for.
drop_caches = True

# `user` may do the same by hand, and nothing else: sudo tee /proc/sys/vm/drop_caches <<< 3
drop_caches_sudo = True

# Cap of the GPU's clock in MHz, set at each boot; against power-offs under load. None: no cap.
gpu_clock_max_mhz: int | None = None

# Boot without a desktop (multi-user.target), which leaves its memory to the model. From the next boot on.
headless = False

# Kernel and driver: what of these is installed is held back from upgrades, as a set, so that no unattended
# upgrade parts the one from the other. Names as dpkg-query matches them; with "!" before it: not these (the
# container toolkit has versions of its own, and needs its upgrades). []: nothing is held.
held_packages = [
    "linux-image-*",
    "linux-headers-*",
    "linux-modules-*",
    "linux-nvidia*",
    "nvidia-driver-*",
    "nvidia-dkms-*",
    "nvidia-kernel-*",
    "nvidia-firmware-*",
    "nvidia-utils-*",
    "nvidia-compute-utils-*",
    "libnvidia-*",
    "!libnvidia-container*",
]

# The clock is kept by the daemon that is there (chrony, ntpsec, systemd-timesyncd); without any, the last one
# is installed.
time_sync = True

# The journal survives a reboot: what a host said before it stopped answering can be read afterwards.
journald_persistent = True

# ── Docker ──

# Registry mirrors for docker.io, tried in this order; becomes exactly this list. None: as they are on the
# host. One that does not answer is a warning.
docker_mirrors: list[str] | None = None

# Options of the containers' logs (driver json-file). None: left as they are.
docker_log_options: dict[str, str] | None = {"max-size": "100m", "max-file": "3"}

# Where there is a GPU: control groups without systemd. With systemd's, each daemon-reload (snapd does them at
# will) takes the GPU away from running containers.
docker_cgroupfs = True

# Where there is a GPU and nvidia-ctk: NVIDIA's runtime is the default one.
docker_nvidia_default = True

# Where Docker keeps images and containers. None: left as it is. What is in the old place is not moved.
docker_data_root: str | None = None

# Further settings that /etc/docker/daemon.json must contain; keys of others stay as they are.
docker_settings: dict[str, object] = {}

# A restart of Docker that would stop what serves, or containers of others, is refused, unless the run says:
# --data restart_serving=yes

# ── Conda and the runtime ──

# Miniforge for each architecture: where from, and the SHA-256 that the installer must have; one with another
# hash never runs. Version 26.3.2-3; its hashes as pinned by Homebrew (cask miniforge) and by Spack (package
# miniforge3), which agree.
conda_installers: dict[str, dict[str, str | None]] = {
    "aarch64": {
        "url": "https://github.com/conda-forge/miniforge/releases/download/26.3.2-3/"
        "Miniforge3-26.3.2-3-Linux-aarch64.sh",
        "sha256": "2c113a69297e612b01ca0f320c22a3107a11f2ab9b573d79ac868a175945ce29",
    },
    "x86_64": {
        "url": "https://github.com/conda-forge/miniforge/releases/download/26.3.2-3/"
        "Miniforge3-26.3.2-3-Linux-x86_64.sh",
        "sha256": "848194851a98903134187fbb4ab50efe87b003e0c0f808f97644b7524a62bf2c",
    },
}

# The same installer from elsewhere (a mirror): its hash is still the one above. With conda_sha256: any other
# installer, for all hosts.
conda_url: str | None = None
conda_sha256: str | None = None

# Where conda looks for channels such as conda-forge (CONDA_CHANNEL_ALIAS), for sites that use a mirror:
# "https://mirrors.tuna.tsinghua.edu.cn/anaconda/cloud", say. None: conda's own place.
conda_channel_alias: str | None = None

# Environment variables for pip on the hosts, such as PIP_INDEX_URL of a mirror (and UV_… for uv, which builds
# from source).
pip_environment: dict[str, str] = {}

# "container": vLLM comes as an image. "source": besides, vLLM is built on each host in a conda environment of
# its own (<install_dir>/vllm), as a job of the host; see docs/host.md. The recipes serve from the image.
runtime_install = "container"

# What that build takes. cuda_arch: 12.1 is the GB10. jobs: compilers at a time; None: as many as it likes.
source_build: dict[str, object] = {
    "repository": "https://github.com/vllm-project/vllm.git",
    "ref": "v0.20.2",
    "python": "3.12",
    "torch": ["torch==2.11.0", "torchvision==0.26.0", "torchaudio==2.11.0"],
    "torch_index": "https://download.pytorch.org/whl/cu130",
    "cuda_arch": "12.1a",
    "jobs": None,
}

# ── Downloads and images ──

# The hub's API for downloads (a mirror, say). None: the hub client's own default.
hub_endpoint: str | None = None

# File ON THE CONTROLLER with the hub token; becomes a root-only file on the head. None: no token.
hub_token_file: str | None = None

# Pins for base images: name as in the recipe -> name with digest.
image_bases: dict[str, str] = {}

# How many releases a host keeps, the present one and the one before among them; what only older ones needed
# (images, checkpoints, downloads) goes with them. See docs/releases.md.
keep_releases = 3

# How much is measured at the end of a run: "smoke" (a minute at most), "standard" (streams, kinds of prompts,
# quality: minutes), "full", or "off" (nothing is measured or judged). See docs/benchmark.md.
benchmark = "smoke"

# ── Network ──

# How the ConnectX-7 ports are cabled; docs/fabric.md. kind: "single", "pair", "ring", "switch", or "auto"
# (the ports are asked whom they hear). None: "single" for one host, "pair" for two. port: the cage, 0 or 1,
# of all hosts or of each: {"spark-1": 0, "spark-2": 1}. cables: 2 for a pair with two; or all of them by
# their ends: ["spark-1:0 spark-2:1", …]. base: the network that the /24 networks are cut from, two a cable.
fabric: dict[str, object] = {"kind": None, "port": 0, "base": "192.168.96.0/19"}

# Names of a Spark's interfaces and RDMA devices, where it does not call them as DGX OS does: set it for that
# host, {0: [["enp1s0f0np0", "rocep1s0f0"], ["enP2p1s0f0np0", "roceP2p1s0f0"]], 1: …}, by port, twin by twin.
fabric_ports: dict[int, list[list[str]]] = {}

# What happens when a link is not as wanted, before anything is served over it: "stop" (the run ends with the
# reason), "warn" (it says so and goes on) or "off" (nothing is measured). See docs/link-gate.md.
link_gate = "stop"

# What every link must give. speed_mbps: what both ends negotiate (0: any). rail_gbps, both_gbps: ib_write_bw
# in Gb/s, on one twin alone and on both at once. rdma: "required", or "optional" (where there is no RDMA
# device TCP is measured instead, and must bring tcp_gbps). nccl_gbytes, nccl_ring_gbytes: bus bandwidth of
# NCCL's all_gather in GB/s, with nccl_size_gib gathered. seconds: for how long each is measured. port: the
# first of the TCP ports for it.
link_wanted: dict[str, object] = {
    "speed_mbps": 200_000,
    "rail_gbps": 80.0,
    "both_gbps": 160.0,
    "tcp_gbps": 10.0,
    "rdma": "required",
    "nccl_gbytes": 21.875,
    "nccl_ring_gbytes": 10.0,
    "nccl_size_gib": 2.0,
    "seconds": 3,
    "port": 18515,
}

# The network interface by which people and the controller reach a Spark.
management_interface = "enP7s7"

# Where the endpoint listens on the head: an IP address, or "management" for the head's own.
serve_bind = "127.0.0.1"

# How many s open requests have to end when a server is stopped; the rest is cut off. vLLM is told (its
# shutdown_timeout), a recipe's own may not be longer, and every engine is killed 5 s later.
drain_s = 25

# What watches that tokens come, on every host; docs/serving.md. enabled: False takes it away. interval_s:
# between two looks. timeout_s: for one token. misses: so many without a token, while the engine's counters
# stand still, and the group is started again (two looks at least). away_s: so long may a worker's head be
# gone, or run no group with it, before the worker ends its engine and waits for a new group; and so long may
# a worker's host be away while the engine loads. busy_s: so long may an engine without counters, on one host,
# give no token while its container has processor time. head_stops_s: so long, at least, a worker stays with a
# head that stops (raised by itself where drain_s asks for more).
# How long a rank's start waits, also without the watchdog: docker_s for a Docker that does not answer, port_s
# for the endpoint's port, memory_s for the recipe's memory; again_s: so long is a look at image, checkpoint
# and memory good while others are waited for; back_off_s: the longest pause after starts that failed.
watchdog: dict[str, object] = {
    "enabled": True,
    "interval_s": 15,
    "timeout_s": 30,
    "misses": 4,
    "away_s": 120,
    "busy_s": 3600,
    "head_stops_s": 60,
    "docker_s": 120,
    "port_s": 60,
    "memory_s": 180,
    "again_s": 300,
    "back_off_s": 60,
}

# The API key that the endpoint asks for: a file ON THE CONTROLLER with it, or the name of a variable of the
# controller's environment. On the hosts it is in files that root alone reads. Both None: no key is asked for.
api_key_file: str | None = None
api_key_env: str | None = None

# TCP port of the shares (images and checkpoints for the other hosts, over the fabric).
share_port = 18090

# How a checkpoint reaches the other hosts: "fan-out" (all from the head), "chain" (each from the one before
# it, while that one still receives), "auto" (a chain from five hosts on).
distribution = "auto"
