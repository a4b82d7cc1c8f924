# What preflight judges of a host, as KEY=VALUE lines. Arguments: the port to serve on, then folders that
# will need room. Nothing here changes anything, and nothing fails: what cannot be asked stays empty.
port=$1
shift
[ ! -r /etc/os-release ] || . /etc/os-release
echo "system=$ID:$VERSION_ID"
echo "arch=$(uname -m)"
echo "kernel=$(uname -r)"
echo "clock=$(date +%s.%N)"
echo "user=$(id -un)"
echo "python=$(python3 -c 'import platform; print(platform.python_version())' 2>/dev/null)"
awk '/^MemAvailable/ {printf "memory_available=%.0f\n", $2*1024} /^MemTotal/ {printf "memory_total=%.0f\n", $2*1024}' /proc/meminfo

# Free bytes where a folder is or will be: on the file system of its nearest parent.
for folder in "$@"; do
    at=$folder
    while [ ! -e "$at" ]; do at=$(dirname "$at"); done
    echo "disk:$folder=$(df -PB1 "$at" | awk 'NR==2 {print $4}')"
done

# A rank of ours that runs holds the memory, whether or not it is the one with the port.
listener=$(ss -Hltnp "sport = :$port" 2>/dev/null | head -1)
if docker ps -q --filter 'name=^sparkstack-serve$' 2>/dev/null | grep -q .; then
    echo "port=sparkstack"
elif [ -z "$listener" ]; then
    echo "port=free"
else
    # users:(("nginx",pid=812,fd=6))
    echo "port=$(echo "$listener" | sed -n 's/.*users:(("\([^"]*\)".*/\1/p' | grep . || echo another process)"
fi

if command -v nvidia-smi >/dev/null; then
    echo "gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null | head -1)"
fi
if command -v docker >/dev/null; then
    echo "docker=$(docker version --format '{{.Server.Version}}' 2>/dev/null)"
fi
true
