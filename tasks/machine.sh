# What the host is now, below Docker, as KEY=VALUE lines (sparkstack/machine.py reads them). Arguments: units,
# then "--", then packages or patterns of packages. Changes nothing and never fails: what is not there is empty.
echo "due=$(ls /run/sparkstack-due 2>/dev/null | tr '\n' ' ')"
# systemd itself notes there what it runs in.
[ -r /run/systemd/container ] && read -r container </run/systemd/container ||
    container=$(systemd-detect-virt --container 2>/dev/null)
echo "container=$container"
echo "swappiness=$(cat /proc/sys/vm/swappiness 2>/dev/null)"
awk 'NR > 1 {printf "%s ", $1; used += $4 * 1024} END {printf "\nswap_used=%.0f\n", used}' /proc/swaps | sed '1s/^/swaps=/'
awk '/^MemAvailable/ {printf "memory_available=%.0f\n", $2 * 1024}' /proc/meminfo
# As `systemctl get-default`, at a fraction of its time.
default=systemd/system/default.target
target=$(readlink -e /etc/$default || readlink -e /usr/lib/$default)
echo "target=${target##*/}"

units=
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
    units="$units $1"
    shift
done
shift
# Unit names have no blanks; one call for all of them, one block of lines a unit.
# shellcheck disable=SC2086
systemctl show -p Id -p UnitFileState -p ActiveState -p NeedDaemonReload -p OOMScoreAdjust $units 2>/dev/null | awk -F= '
    function tell() { if (id != "") print "unit:" id "=" enabled "," active "," stale "," score; id = enabled = active = stale = score = "" }
    $1 == "" { tell() }
    $1 == "Id" { id = $2 }
    $1 == "UnitFileState" { enabled = $2 }
    $1 == "ActiveState" { active = $2 }
    $1 == "NeedDaemonReload" { stale = $2 }
    $1 == "OOMScoreAdjust" { score = $2 }
    END { tell() }'

if [ "$#" -gt 0 ]; then
    dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sort -u | awk '
        $2 == "installed" { installed = installed " " $3 }
        $1 == "hold" { held = held " " $3 }
        END { print "installed=" installed; print "held=" held }'
fi

if command -v nvidia-smi >/dev/null; then
    echo "gpu=yes"
fi
# Which containers use a GPU matters only where there is one.
if command -v nvidia-smi >/dev/null && command -v docker >/dev/null; then
    echo "cgroup_driver=$(docker info -f '{{.CgroupDriver}}' 2>/dev/null)"
    echo "gpu_containers=$(docker ps -q 2>/dev/null | xargs -r docker inspect \
        -f '{{.Name}} {{.HostConfig.Runtime}} {{json .HostConfig.DeviceRequests}}' 2>/dev/null |
        awk '$2 == "nvidia" || ($3 != "null" && $3 != "[]") {sub("^/", "", $1); print $1}' | tr '\n' ' ')"
fi
true
