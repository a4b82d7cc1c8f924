# shellcheck shell=bash
# What ./try, ./test and .ci/run share: what the machine must have, the Python environment, and the way to be
# root for the few steps that need it. Sourced, with `set -euo pipefail` and the checkout as working directory.

# A plain user's PATH leaves out where the tools of an administrator are.
export PATH=$PATH:/usr/sbin:/sbin

VENV=.venv
STAMP=$VENV/.sparkstack-made-from # the mark of an environment that is whole, and that is ours to remove

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# Runs a command as root. With sudo the environment goes along (proxies and indexes are set there), and Python
# writes no bytecode: files of root in the checkout could not be removed by its owner.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -E env PYTHONDONTWRITEBYTECODE=1 "PATH=$PATH" "$@"
    else
        die "found neither root nor sudo; wanted one of them for: $*"
    fi
}

# Hands what root made in the checkout back to whoever calls, so that only the lab itself needs root.
own_again() {
    local name
    if [ "$(id -u)" = 0 ]; then return 0; fi
    for name in .lab .cache reports; do
        if [ -e "$name" ]; then as_root chown -R "$(id -u):$(id -g)" "$name"; fi
    done
}

# Prints the first Python that can make the environment. A name on the PATH may be a shim that does not run.
find_python() {
    local name
    for name in python3.13 python3.12 python3.11 python3; do
        if "$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

has() { command -v "$1" >/dev/null; }

has_browser() { has chromium || has chromium-browser || has google-chrome; }

# Prints the packages that are missing, one a line. With "lab": also what the virtual Sparks need; with "vm"
# after that: what those need that are machines; with "browser" after that: what looks at the report's page.
missing_packages() {
    find_python >/dev/null || echo python3-venv
    # Ubuntu's package of that name is a snap, which needs a machine of its own kind.
    if [ "${3:-}" = browser ] && ! has_browser && grep -qx 'ID=debian' /etc/os-release; then echo chromium; fi
    [ "${1:-}" = lab ] || return 0
    if ! has dockerd || ! has docker; then
        echo docker.io
        # From Debian 13 on the client is a package of its own.
        if [ -n "$(apt-cache search --names-only '^docker-cli$' 2>/dev/null)" ]; then echo docker-cli; fi
    fi
    has mmdebstrap || echo mmdebstrap
    has gpg || echo gpg # mmdebstrap checks signatures with it
    if [ "${2:-}" = vm ]; then
        has qemu-system-x86_64 || echo qemu-system-x86
        has mkfs.ext4 || echo e2fsprogs
    fi
    has ip || echo iproute2
    has iptables || echo iptables
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || echo debian-archive-keyring
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
}

# Installs from the distribution what is missing; says first what that is.
ensure_packages() {
    local -a packages
    mapfile -t packages < <(missing_packages "$@")
    [ "${#packages[@]}" -gt 0 ] || return 0
    say "missing here: ${packages[*]}"
    has apt-get || die "found no apt-get; wanted Debian 12 or Ubuntu 24.04; install these yourself: ${packages[*]}"
    say "installing them from the distribution"
    as_root apt-get update -qq || die "apt-get update failed; the machine needs its distribution's mirror"
    # The list again: without package lists apt could not tell what the distribution has.
    mapfile -t packages < <(missing_packages "$@")
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq --yes --no-install-recommends "${packages[@]}" >"$([ -t 2 ] && echo /dev/stderr || echo /dev/null)" ||
        die "apt-get could not install: ${packages[*]}"
    mapfile -t packages < <(missing_packages "$@")
    [ "${#packages[@]}" = 0 ] || die "still missing after apt-get install: ${packages[*]}"
}

# Makes .venv from requirements.lock, or brings it up to date when that or the project file has changed.
ensure_venv() {
    local python wanted
    # With the folder's name: an environment that was moved or copied has the old one in it.
    wanted=$(sha256sum requirements.lock pyproject.toml && pwd)
    if [ "$(cat "$STAMP" 2>/dev/null)" = "$wanted" ] && "$VENV/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    # Half an environment, or one whose Python is gone, is begun anew.
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        python=$(find_python) || die "found no Python ≥ 3.11 with venv; wanted one; apt-get install python3-venv"
        rm -rf "$VENV"
        "$python" -m venv "$VENV"
    fi
    say "installing the Python packages of requirements.lock into $VENV"
    rm -f "$STAMP"
    local -a pip=("$VENV/bin/python" -m pip install --no-input --disable-pip-version-check)
    [ -t 2 ] || pip+=(--quiet) # on a terminal pip shows what it fetches
    "${pip[@]}" --require-hashes -r requirements.lock || die "pip could not install requirements.lock"
    "${pip[@]}" --no-deps --no-build-isolation -e . || die "pip could not install sparkstack itself"
    printf '%s\n' "$wanted" >"$STAMP"
}
