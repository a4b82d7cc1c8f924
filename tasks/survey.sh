# What preflight judges of a host, as KEY=VALUE lines. Arguments: the port to serve on ("" for none), the folders
# of what is downloaded or made already (":" between, "" for none), who works there ("" for nobody), then folders
# that will need room. Nothing here changes anything, and nothing fails: what cannot be asked stays empty.
port=$1
downloads=$2
account=$3
shift 3
[ ! -r /etc/os-release ] || . /etc/os-release
echo "system=$ID:$VERSION_ID"
echo "arch=$(uname -m)"
echo "kernel=$(uname -r)"
echo "clock=$(date +%s.%N)"
echo "user=$(id -un)"
[ -z "$account" ] || echo "account=$(id -u "$account" 2>/dev/null || echo none)"
echo "python=$(python3 -V 2>/dev/null | cut -d ' ' -f 2)"
awk '/^MemAvailable/ {printf "memory_available=%.0f\n", $2*1024} /^MemTotal/ {printf "memory_total=%.0f\n", $2*1024}
     /^CmaTotal/ {printf "cma_total=%.0f\n", $2*1024} /^CmaFree/ {printf "cma_free=%.0f\n", $2*1024}' /proc/meminfo

docker_root=/var/lib/docker
if command -v docker >/dev/null; then
    said=$(docker info --format '{{.ServerVersion}}|{{.DockerRootDir}}|{{.DriverStatus}}' 2>/dev/null)
    echo "docker=${said%%|*}"
    said=${said#*|}
    docker_root=${said%%|*}
    docker_root=${docker_root:-/var/lib/docker}
    # With containerd's image store, images are in containerd's own folder, wherever Docker's data is.
    case $said in *io.containerd.snapshotter*) docker_root=/var/lib/containerd image_store=containerd ;; esac
fi
echo "docker_root=$docker_root"
echo "image_store=$image_store"

# Free bytes where a folder is or will be, and what it is on: the file system of its nearest parent.
for folder in "$@" "$docker_root"; do
    at=$folder
    while [ ! -e "$at" ]; do at=$(dirname "$at"); done
    echo "disk:$folder=$(df -PB1 "$at" | awk 'NR==2 {print $4 " " $6}')"
done
# Blocks, not lengths: a file that is being fetched has its full length from the start.
# shellcheck disable=SC2086  # several folders
[ -z "$downloads" ] || echo "downloaded=$(IFS=:; du -scB1 $downloads 2>/dev/null | tail -n 1 | cut -f1)"

# A rank of ours that runs holds the memory, whether or not it is the one with the port.
# Its unit's word is a tenth of Docker's work; a container may also stand without it.
if systemctl is-active --quiet sparkstack-serve.service 2>/dev/null ||
    docker ps -q --filter 'name=^sparkstack-serve$' 2>/dev/null | grep -q .; then echo "serving=yes"; fi

# Whose a listening process is, from the control group that systemd or Docker put it in.
owner() {
    group=$(cat "/proc/$1/cgroup" 2>/dev/null)
    id=$(echo "$group" | grep -oE '[0-9a-f]{64}' | tail -1)
    box=$([ -z "$id" ] || docker inspect -f '{{.Name}}' "$id" 2>/dev/null)
    # Where Docker forwards a port, its proxy listens in place of the container.
    [ "$2" != docker-proxy ] || box=$(docker ps --filter "publish=$port" --format '{{.Names}}' 2>/dev/null | head -1)
    unit=$(echo "$group" | sed -n 's/.*\/\([^/]*\.service\).*/\1/p' | head -1)
    case ${box#/},$unit in
        sparkstack-serve,* | ,sparkstack-serve.service) echo sparkstack ;;
        ?*,*) echo "$2 (pid $1, container ${box#/})" ;;
        ,?*) echo "$2 (pid $1, $unit)" ;;
        *) echo "$2 (pid $1)" ;;
    esac
}
# The line of a listener ends with users:(("nginx",pid=812,fd=6),("nginx",pid=813,fd=6)), or names nobody.
if [ -n "$port" ] && listeners=$(ss -Hltnp "sport = :$port" 2>/dev/null); then
    owners=$(echo "$listeners" | grep . | while read -r line; do
        case $line in *'(("'*) ;; *) echo "another process" ;; esac
        echo "$line" | grep -oE '"[^"]*",pid=[0-9]+' | sed 's/"\(.*\)",pid=\(.*\)/\2 \1/' | while read -r pid name; do
            owner "$pid" "$name"
        done
    done | sort -u)
    # Ours alone, or whoever else is there, too.
    echo "port=$(echo "${owners:-free}" | { grep -vx sparkstack || echo sparkstack; } | head -1)"
fi

! command -v nvidia-ctk >/dev/null || echo "nvidia_ctk=$(nvidia-ctk --version 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -1)"
if command -v nvidia-smi >/dev/null; then
    echo "gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null | head -1)"
    echo "cuda=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' | head -1)"
fi

# Which kernel boots next, and whether the GPU's module is there for it. grub.cfg's first entry is the default
# of the default; the last assignment of several counts.
for modules in /lib/modules/*; do
    [ -d "$modules/kernel" ] || continue
    version=${modules##*/}
    words=
    [ ! -e "/boot/vmlinuz-$version" ] || words=bootable
    [ -z "$(find "$modules" -name 'nvidia.ko*' 2>/dev/null | head -1)" ] || words="$words nvidia"
    echo "kernel:$version=$words"
done
echo "grub_first=$(sed -n 's/^[[:space:]]*linux[[:space:]].*vmlinuz-\([^[:space:]]*\).*/\1/p' /boot/grub/grub.cfg 2>/dev/null | head -1)"
echo "grub_default=$(cat /etc/default/grub /etc/default/grub.d/*.cfg 2>/dev/null | sed -n 's/^[[:space:]]*GRUB_DEFAULT=//p' | tail -1 | tr -d \"\')"
echo "grub_saved=$(sed -n 's/^saved_entry=//p' /boot/grub/grubenv 2>/dev/null)"
echo "grub_once=$(sed -n 's/^next_entry=//p' /boot/grub/grubenv 2>/dev/null)"

# A container shares its machine's kernel and has no journal of it.
[ -r /run/systemd/container ] && read -r container </run/systemd/container ||
    container=$(systemd-detect-virt --container 2>/dev/null)
[ "$container" = none ] || echo "container=$container"
# By the maker's number: a port that broke may have lost its driver.
ports=
for device in /sys/bus/pci/devices/*; do
    vendor=
    [ ! -r "$device/vendor" ] || read -r vendor <"$device/vendor"
    [ "$vendor" != 0x15b3 ] || ports="$ports ${device##*/}"
done
echo "connectx=$ports"
if [ "$container" = none ] && journalctl -k -b -n 1 -o cat --no-pager 2>/dev/null | grep -q .; then
    echo "log_read=yes"
    journalctl -k -b -o cat --no-pager 2>/dev/null | grep -aE 'AER|PCIe Bus Error|mlx5_core.*([Ff]atal|[Hh]ealth|bad device|[Rr]ecover)|NVRM.*(NO_MEMORY|memdescAlloc)' | tail -n 200 | sed 's/^/log:/'
fi
# Again: what was asked in between takes its time, and hosts are compared to the second.
echo "clock_last=$(date +%s.%N)"
