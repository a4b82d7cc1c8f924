"""Every knob of a site, with its default. Override a value in `group_data/<inventory name>.py`.

The file is the reference: a name that is not here is not a knob.
"""

# What to serve: the name of a file in recipes/ (without .yaml), or the path of a file anywhere.
recipe = "lab-tiny"

# The user that owns the daily work on each Spark; joins the group "docker".
user = "nvidia"

# "gpu" (a real Spark) or "cpu" (the lab's virtual Sparks).
accelerator = "gpu"

# Run every command on the hosts through sudo. `user` needs sudo without a prompt.
_sudo = True

# Packages that must be there (apt). Nothing is ever removed or upgraded.
packages = ["ca-certificates", "curl", "ethtool", "iproute2", "netplan.io", "python3"]

# Registry mirrors for docker.io, tried in this order; becomes exactly this list.
docker_mirrors: list[str] = []

# Further settings that /etc/docker/daemon.json must contain; keys of others stay as they are.
docker_settings: dict[str, object] = {}

# Miniforge: where from, and the SHA-256 that the installer must have. None: preflight says so.
conda_url = None
conda_sha256 = None

# Environment variables for pip on the hosts, such as PIP_INDEX_URL of a mirror.
pip_environment: dict[str, str] = {}

# The hub's API for downloads (a mirror, say). None: the hub client's own default.
hub_endpoint = None

# File ON THE CONTROLLER with the hub token; becomes a root-only file on the head. None: no token.
hub_token_file = None

# Pins for base images: name as in the recipe -> name with digest.
image_bases: dict[str, str] = {}

# How the ConnectX-7 ports are cabled: {"kind": "single" | "pair" | "ring" | "switch", "port": 0 | 1,
# "base": "192.168.100.0/22"}. kind None: "single" for one host, "pair" for two.
fabric: dict[str, object] = {"kind": None, "port": 0, "base": "192.168.96.0/19"}

# The network interface by which people and the controller reach a Spark.
management_interface = "enP7s7"

# Where the endpoint listens on the head. "management": the head's own management address.
serve_bind = "127.0.0.1"

# TCP port of the head's share (images and checkpoints for the other hosts, fabric only).
share_port = 18090

# Operating systems that preflight accepts, as ID:VERSION_ID of /etc/os-release.
accepted_systems = ["ubuntu:24.04"]

# Folders on the hosts.
state_dir = "/var/lib/sparkstack"
config_dir = "/etc/sparkstack"
install_dir = "/opt/sparkstack"
