#!/bin/bash
# The lab's stand-in for Miniforge's installer: same command line, a small conda that makes virtual environments.
set -euo pipefail

say_usage() {
    echo "usage: bash $0 [-b] [-u] [-p PREFIX]"
    echo "The sparkstack lab's stand-in for the Miniforge installer. Not Miniforge."
    echo "  -b         batch mode (the stand-in has no other)"
    echo "  -u         update an installation that exists"
    echo "  -p PREFIX  where to install, default ~/miniforge3"
}

prefix="${HOME:-/root}/miniforge3"
update=no
while [ $# -gt 0 ]; do
    case "$1" in
        -b) ;;
        -u) update=yes ;;
        -p) shift; prefix="${1:?-p needs a folder}" ;;
        -bu | -ub) update=yes ;;
        -h | --help) say_usage; exit 0 ;;
        --version) echo "sparkstack lab stand-in for Miniforge 0-lab"; exit 0 ;;
        *) echo "$0: found $1, which the lab's stand-in does not know; see --help" >&2; exit 2 ;;
    esac
    shift
done
if [ -e "$prefix" ] && [ "$update" = no ]; then
    echo "ERROR: File or directory already exists: '$prefix'" >&2
    echo "If you want to update an existing installation, use the -u option." >&2
    exit 1
fi
mkdir -p "$prefix/bin" "$prefix/conda-meta" "$prefix/envs"
touch "$prefix/conda-meta/history"
cat > "$prefix/bin/conda.partial" <<'CONDA'
#!/usr/bin/python3
"""conda, as the sparkstack lab's stand-in has it: environments are virtual environments of the system's Python."""

import json
import os
import pathlib
import re
import subprocess
import sys

VERSION = "0-lab (the sparkstack lab's stand-in, not conda)"
USAGE = """usage: conda env create|update [-y] [--prune] [-q] -p PREFIX -f FILE
       conda env list [--json]
       conda env remove [-y] -p PREFIX
       conda run [--no-capture-output] -p PREFIX COMMAND...
       conda --version
The sparkstack lab's stand-in for conda. Not conda."""

BASE = pathlib.Path(__file__).resolve().parent.parent
ENVIRONMENTS = BASE / "conda-meta" / "lab-environments.json"
FLAGS = {"-y", "--yes", "-q", "--quiet", "--prune", "--json", "--no-capture-output", "--live-stream"}
VALUES = {"-p": "prefix", "--prefix": "prefix", "-f": "file", "--file": "file"}


class Usage(Exception):
    pass


class Failure(Exception):
    pass


def main(words):
    if words in (["--version"], ["-V"]):
        print(f"conda {VERSION}")
        return 0
    if words in (["--help"], ["-h"]):
        print(USAGE)
        return 0
    if words[:1] == ["run"]:
        options, command = parse(words[1:], rest=True)
        return run(options, command)
    if words[:1] == ["env"] and len(words) > 1 and words[1] in COMMANDS:
        options, _ = parse(words[2:])
        return COMMANDS[words[1]](options)
    raise Usage(f"the lab's stand-in does not know: conda {' '.join(words)}")


def parse(words, rest=False):
    """({option: value}, what follows the options)."""
    options, words = {}, list(words)
    while words:
        word, equals, value = words[0].partition("=")
        if word in VALUES and (equals or len(words) > 1):
            words.pop(0)
            options[VALUES[word]] = value if equals else words.pop(0)
        elif words[0] in FLAGS:
            options[words.pop(0).lstrip("-")] = True
        elif rest and not words[0].startswith("-"):
            break
        else:
            raise Usage(f"the lab's stand-in does not know the option {words[0]}")
    return options, words


def needed(options, *names):
    missing = [name for name in names if name not in options]
    if missing:
        raise Usage(f"--{missing[0]} is needed")
    return [pathlib.Path(options[name]).absolute() for name in names]


def create(options):
    prefix, file = needed(options, "prefix", "file")
    if prefix.exists() and any(prefix.iterdir()) and not {"y", "yes"} & set(options):
        raise Failure(f"prefix already exists: {prefix}")
    return build(prefix, file, fresh=True)


def update(options):
    prefix, file = needed(options, "prefix", "file")
    return build(prefix, file, fresh=not (prefix / "conda-meta").exists())


def build(prefix, file, fresh):
    pips = wanted(file)
    if fresh:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(prefix)], check=True)
        (prefix / "conda-meta").mkdir()
        (prefix / "conda-meta" / "history").touch()
        remember(prefix, True)
    if pips:
        command = [str(prefix / "bin" / "python"), "-m", "pip", "install", *pips]
        # As conda does: relative paths and `-r` files count from the definition's folder.
        status = subprocess.run(command, cwd=file.parent).returncode
        if status != 0:
            raise Failure(f"Pip failed with status {status}")
    print(f"# environment at {prefix} (the lab's stand-in: a virtual environment)")
    return 0


def wanted(file):
    """The pip requirements of an environment.yml. Anything from conda but python and pip is an error."""
    try:
        import yaml
    except ImportError:
        raise Failure("the lab's stand-in needs python3-yaml: apt install python3-yaml")
    try:
        read = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise Failure(f"EnvironmentFileNotValid: {file}: {error}")
    pips = []
    for one in (read or {}).get("dependencies") or []:
        if isinstance(one, dict):
            pips += one.get("pip") or []
            continue
        name, version = re.match(r"([\w.-]+)\s*[=<>!~]*\s*([\d.]*)", one).groups()
        have = ".".join(map(str, sys.version_info[:2]))
        if name == "python":
            if version and "=" in one and "<" not in one and ">" not in one and version != have:
                raise Failure(f"the lab has Python {have} only; found {one!r}")
        elif name not in ("pip", "setuptools", "wheel"):
            raise Failure(f"PackagesNotFoundError: {one} (the lab's stand-in has python and pip only)")
    return pips


def environments():
    try:
        known = json.loads(ENVIRONMENTS.read_text())
    except FileNotFoundError:
        known = []
    return [one for one in known if pathlib.Path(one, "conda-meta").is_dir()]


def remember(prefix, there):
    known = [one for one in environments() if one != str(prefix)]
    partial = ENVIRONMENTS.with_suffix(".partial")
    partial.write_text(json.dumps(known + [str(prefix)] * there))
    partial.replace(ENVIRONMENTS)


def listing(options):
    found = [str(BASE), *environments()]
    if "json" in options:
        print(json.dumps({"envs": found}, indent=2))
    else:
        print("# conda environments (the lab's stand-in):\n#")
        for one in found:
            print(f"{'base' if one == str(BASE) else '':<24} {one}")
    return 0


def remove(options):
    import shutil

    (prefix,) = needed(options, "prefix")
    if not (prefix / "conda-meta").is_dir():
        raise Failure(f"EnvironmentLocationNotFound: Not a conda environment: {prefix}")
    shutil.rmtree(prefix)
    remember(prefix, False)
    return 0


def run(options, command):
    (prefix,) = needed(options, "prefix")
    if not (prefix / "conda-meta").is_dir():
        raise Failure(f"EnvironmentLocationNotFound: Not a conda environment: {prefix}")
    if not command:
        raise Usage("conda run needs a command")
    os.environ["PATH"] = f"{prefix}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}"
    os.environ["CONDA_PREFIX"] = str(prefix)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}")


COMMANDS = {"create": create, "update": update, "list": listing, "remove": remove}

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Usage as problem:
        print(f"conda: {problem}; see conda --help", file=sys.stderr)
        sys.exit(2)
    except Failure as problem:
        print(f"conda: {problem}", file=sys.stderr)
        sys.exit(1)
CONDA
chmod 0755 "$prefix/bin/conda.partial"
mv "$prefix/bin/conda.partial" "$prefix/bin/conda"
ln -sfn /usr/bin/python3 "$prefix/bin/python"
echo "installed the sparkstack lab's stand-in for Miniforge in $prefix"
