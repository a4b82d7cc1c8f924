# What the fabric's ports of this host are like now; read by sparkstack/fabric_state.py. Changes nothing.
# Words: MTU, a folder with a key for the other hosts, INTERFACE=PEER for each planned port (PEER: an address
# that shall answer), and paths of files.
mtu=$1 keys=$2
shift 2
ip -j -d addr show | sed 's/^/links /'
# All tables: what a VPN has in one of its own comes first. That of the host's own addresses says nothing more.
ip -4 route show table all | sed '/ table local /d; s/^/route /'
for d in /sys/class/infiniband/*/device/net/*; do
    [ -e "$d" ] || continue
    hca=${d#/sys/class/infiniband/}
    hca=${hca%%/*}
    ! grep -q ACTIVE /sys/class/infiniband/"$hca"/ports/*/state || echo "hca ${d##*/} $hca"
done
# The jumbo ping of all ports at once: the slowest one is waited for. Only where the address is there already.
if command -v ping >/dev/null; then
    addresses=$(ip -4 -o addr show)
    for word; do
        name=${word%%=*} peer=${word#*=}
        case $word in /*) continue ;; esac
        [ -n "$peer" ] || continue
        case $addresses in *": $name "*) ;; *) continue ;; esac
        (
            if ping -nq -c 1 -W 1 -M do -s $((mtu - 28)) -I "$name" "$peer" >/dev/null 2>&1; then
                echo "reach $name jumbo"
            elif ping -nq -c 1 -W 1 -I "$name" "$peer" >/dev/null 2>&1; then
                echo "reach $name small"
            else
                echo "reach $name none"
            fi
        ) &
    done
    wait
fi
# Files of others that speak of a port, by its name, its MAC address, or a pattern.
words="name: *[\"']?[^ ]*[*?[]"
for word; do
    shift
    name=${word%%=*}
    case $word in
    /*)
        [ ! -f "$word" ] || set -- "$@" "$word"
        continue
        ;;
    esac
    words="$words|(^|[^A-Za-z0-9])$name([^A-Za-z0-9]|\$)"
    mac=
    [ ! -r "/sys/class/net/$name/address" ] || read -r mac <"/sys/class/net/$name/address"
    words="$words${mac:+|$mac}"
done
for f in /etc/netplan/*.yaml; do
    [ ! -f "$f" ] || set -- "$@" "$f"
done
# What these files are is asked at the end, by the words of sparkstack/file_states.py.
for f in /etc/netplan/*.yaml; do
    [ -f "$f" ] && grep -qiE "$words" "$f" || continue
    # A password does not travel: such a file is named, and its owner edits it.
    if grep -qiE '(password|psk|private-key|auth-key|client-key)' "$f"; then
        echo "secret $f"
    else
        echo "netplan $(base64 -w0 <"$f") $f"
    fi
done
for f in /etc/NetworkManager/system-connections/*; do
    [ -f "$f" ] || continue
    # Of a profile only what says which device it is for: the rest may be secrets.
    sed -nE "s/^(uuid|id|type|interface-name|master|controller|mac-address)=(.*)/profile \1=\2/p" "$f"
    echo "profile-of $f"
done
for f in "$keys/id_ed25519.pub" /etc/ssh/ssh_host_ed25519_key.pub; do
    # The third word is a comment.
    [ ! -f "$f" ] || { read -r kind key _ <"$f" && echo "public ${f##*/} $kind $key"; }
done
# By which port the others come: the inventory may say one that is forwarded from elsewhere.
sshd -T 2>/dev/null | sed -n 's/^port /sshd-port /p' | head -n 1
! id -u sparkstack-peer >/dev/null 2>&1 || echo "peer-user"
# A transient unit has its file there for as long as systemd knows it.
[ ! -e /run/systemd/transient/sparkstack-fabric-try.service ] ||
    ! systemctl is-active --quiet sparkstack-fabric-try.service || echo "trying"
