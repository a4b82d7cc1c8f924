# Tries new netplan files on a host and goes back by itself unless the controller comes back and says "keep".
# Runs as the unit sparkstack-fabric-try; before this text stand, as shell variables: `files` (lines BASE64
# NAME), `ports` (lines INTERFACE ADDRESS MTU), `masters` and `profiles` (a name a line), `seconds`.
#
# The new files lie in /run/netplan, where a file hides the one of the same name in /etc/netplan: nothing in
# /etc is touched here, so a power cut in the middle boots with the files of before. The controller writes
# /etc once it has seen that the host answers, and only then says "keep".
set -u
umask 077
D=/run/sparkstack-fabric
N=/run/netplan

state() { printf '%s\n' "$*" >"$D/state.new" && mv -f "$D/state.new" "$D/state"; }
# each LINES FUNCTION: calls the function with the words of each line, the third one and all after it as one.
each() { printf '%s\n' "$1" | while read -r a b c; do [ -z "$a" ] || "$2" "$a" "$b" "$c"; done; }
# The same with the whole line as one word: NetworkManager's names have spaces.
lines() { printf '%s\n' "$1" | while IFS= read -r a; do [ -z "$a" ] || "$2" "$a"; done; }

# What the kernel has now, whoever set it: put back by hand where netplan does not do it.
remember() {
    mkdir -p "$D/run" "$D/profiles" "$N"
    ip -4 -o addr show | awk '{ for (i = 1; i < NF; i++) if ($i == "brd") b = $(i + 1); print $2, $4, b; b = "" }' >"$D/addresses"
    ip -4 route show table main | sed 's/ linkdown//; s/ expires [^ ]*//' >"$D/routes"
    for f in /sys/class/net/*/mtu; do n=${f%/mtu} && echo "${n##*/} $(cat "$f")"; done >"$D/mtus"
}
hide() {
    [ ! -e "$N/$2" ] || cp -p "$N/$2" "$D/run/$2"
    printf %s "$1" | base64 -d >"$N/$2"
}
unhide() {
    rm -f "$N/$2"
    [ ! -e "$D/run/$2" ] || cp -p "$D/run/$2" "$N/$2"
}
away() { [ ! -e "$1" ] || mv -f "$1" "$D/profiles/"; }
home() { [ ! -e "$D/profiles/${1##*/}" ] || mv -f "$D/profiles/${1##*/}" "$1"; }
free() { ip link set dev "$1" nomaster 2>/dev/null || true; }
dissolve() { ip link delete dev "$1" 2>/dev/null || true; }
nm() { [ -z "$profiles" ] || nmcli connection reload >/dev/null 2>&1 || true; }
apply() { timeout 90 netplan apply 2>&1 | tr '\n' ' ' >"$D/said"; }

has() { ip -4 -o addr show dev "$1" 2>/dev/null | grep -qF " $2 " || echo "$1" >>"$D/missing"; }
strays() {
    ip -4 -o addr show dev "$1" | awk '{ print $4 }' | while read -r one; do
        [ "$one" = "$2" ] || ip addr del "$one" dev "$1" 2>/dev/null || true
    done
    # netplan leaves the MTU of a port alone that had one of its own before.
    [ "$(cat "/sys/class/net/$1/mtu" 2>/dev/null)" = "$3" ] || ip link set dev "$1" mtu "$3" 2>/dev/null || true
}
mtu_back() { [ "$(cat "/sys/class/net/$1/mtu" 2>/dev/null)" = "$2" ] || ip link set dev "$1" mtu "$2" 2>/dev/null || true; }
address_back() { ip addr add "$2" ${3:+brd "$3"} dev "$1" 2>/dev/null || true; }

down() { [ "$(($(cat "/sys/class/net/$1/flags" 2>/dev/null || echo 1) & 1))" = 1 ] || touch "$D/down"; }
settled() { # SECONDS: until every port has its address; thrice as long where a busy host has not raised it yet
    end=$(($(date +%s) + $1))
    last=$(($(date +%s) + 3 * $1))
    while :; do
        rm -f "$D/missing" "$D/down"
        each "$ports" has
        [ -e "$D/missing" ] || return 0
        each "$ports" down
        if [ -e "$D/down" ]; then stop=$last; else stop=$end; fi
        [ "$(date +%s)" -lt "$stop" ] || return 1
        sleep 0.5
    done
}
back() {
    trap '' TERM
    each "$files" unhide
    lines "$profiles" home
    nm
    apply
    # Addresses by DHCP come back by themselves; what was set by hand, or by nobody's file, does not.
    sleep 3
    while read -r line; do mtu_back $line; done <"$D/mtus"
    while read -r line; do address_back $line; done <"$D/addresses"
    while read -r line; do ip route add $line 2>/dev/null || true; done <"$D/routes"
    rm -rf "$D/run"
}

remember
# Stopped from outside, as a removal does it: nobody will say "keep" any more.
trap 'back; state "back stopped"; exit 0' TERM
state trying
each "$files" hide
if ! said=$(netplan generate 2>&1); then
    each "$files" unhide
    netplan generate >/dev/null 2>&1
    state "refused $(echo "$said" | tr '\n' ' ' | tail -c 300)"
    exit 0
fi
lines "$profiles" away
nm
each "$ports" free
each "$masters" dissolve
apply
if settled 20; then
    each "$ports" strays
    state applied
else
    state "without $(tr '\n' ' ' <"$D/missing")"
fi
end=$(($(date +%s) + seconds))
while [ ! -e "$D/keep" ] && [ ! -e "$D/back" ] && [ "$(date +%s)" -lt "$end" ]; do sleep 0.2; done
if [ -e "$D/keep" ]; then
    # /etc has them now. What is generated from there is the same, so nothing is applied again.
    each "$files" unhide
    netplan generate >/dev/null 2>&1
    rm -rf "$D/run" "$D/profiles"
    state kept
else
    said=$(cat "$D/state")
    back
    state "back $said"
fi
