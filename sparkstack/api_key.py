"""The endpoint's API key: where the controller reads it, what it may be, and what may be known of it."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from sparkstack.errors import Problem, SparkstackError

VARIABLES = ("VLLM_API_KEY", "LLAMA_API_KEY")
"""Where engines look for it: vLLM, and llama.cpp's server."""
ENV_FILE, KEY_FILE = "api.env", "api.key"
"""Below the secrets' folder of every host, root's alone: for the container, and for who asks the endpoint."""
INSIDE = "/run/sparkstack/api.key"
"""The key's file in containers of engines that read one."""
REMEDY = "make one, say with `openssl rand -hex 24`"
_KEY = re.compile(r"[\x21-\x7e]{8,512}")
_MEANS_ELSE = {
    "#": "a '#' at its beginning, which is a comment in a file of keys (Atlas)",
    ",": "a ',' in it, which parts several keys (llama.cpp): each part alone would open the endpoint",
}
"""Signs that some engine reads as something else than a part of one key."""


def read(file: str | None, variable: str | None, environment: Mapping[str, str]) -> str | None:
    """The key that a site declares by a file of the controller or by a variable of `environment`; None where
    it declares none.

    Errors: SparkstackError where both are declared, it is not there, or it is no key. Never with the key.
    """
    if file is None and variable is None:
        return None
    if file is not None and variable is not None:
        raise SparkstackError(
            Problem("group_data", "api_key_file and api_key_env", "one of the two", "set the other to None")
        )
    if file is not None:
        path = Path(file).expanduser()
        where, remedy = "api_key_file", "correct group_data"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            found = (error.strerror or str(error)).lower()
            raise SparkstackError(
                Problem(where, f"{path}: {found}", "a file with the key", remedy)
            ) from None
        except UnicodeDecodeError:
            text = "\n"
    else:
        where, remedy = "api_key_env", f"export {variable}, or correct group_data"
        text = environment.get(str(variable), "")
        if not text:
            raise SparkstackError(Problem(where, f"no variable {variable}", "one with the key", remedy))
    key = text.removesuffix("\n").removesuffix("\r")
    if not _KEY.fullmatch(key):
        found = f"{len(key)} characters, or some that are none of ASCII's"
        wanted = "8 to 512 printable characters without blanks"
        raise SparkstackError(Problem(where, found, wanted, REMEDY))
    for sign, found in _MEANS_ELSE.items():
        if key.startswith(sign) or (sign == "," and sign in key):
            # Whatever the engine of this recipe: the next one gets the same key.
            wanted = "one that is one key to every engine"
            raise SparkstackError(Problem(where, f"a key with {found}", wanted, REMEDY))
    return key


@functools.cache
def mark(key: str) -> str:
    """12 hex digits that differ when the key does. Slow to make, since releases show it: nobody shall try
    out words of a dictionary against it."""
    return hashlib.scrypt(key.encode(), salt=b"sparkstack api key", n=2**14, r=8, p=1, dklen=6).hex()


def env_file(key: str) -> str:
    """What the container gets by `--env-file`."""
    return "".join(f"{name}={key}\n" for name in VARIABLES)
