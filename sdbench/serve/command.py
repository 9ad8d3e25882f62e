"""The command line that starts a server, and what is installed in its environment."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from sdbench.config import ConfigError, show

# Runs in the server's interpreter: prints the installed version and commit without importing the package.
LOOK = """
import importlib.metadata as m, importlib.util as u, json, pathlib, re, sys
sys.path = [p for p in sys.path if p]  # finds installed packages, not those in the current folder
spec = u.find_spec("MODULE")
names = m.packages_distributions().get("MODULE", ["MODULE"]) if spec else []
texts = [p.read_text() for p in pathlib.Path(spec.origin).parent.glob("_version.py")] if spec and spec.origin else []
commits = [f for t in texts for f in re.findall(r"commit_id(?:__)?[^=\\n]*= *['\\"]([^'\\"]+)", t)]
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({"there": spec is not None, "version": next(filter(None, map(version, names)), None),
    "commit": next(iter(commits), None), "python": sys.version.split()[0], "torch": version("torch"),
    "transformers": version("transformers")}))
"""
LOOK_S = 120


def flags(args: Mapping[str, Any]) -> list[str]:
    """Return options as flags: {tensor_parallel_size: 8} becomes --tensor-parallel-size 8.

    true becomes the flag alone, false its --no- form; null is left out.
    """
    words: list[str] = []
    for name, value in args.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping):
            words += [f"--{flag}", json.dumps(dict(value), sort_keys=True)]
        elif value is not None:
            words += [f"--{flag}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return words


INSTALLED_BY = "name the interpreter of an environment where it is installed (scripts/vllm_env makes one)"


def look(python: str, module: str, advice: str = INSTALLED_BY) -> dict[str, Any]:
    """Return the version of a server's package in an interpreter; raise ConfigError if one of the two is missing."""
    option = f"engine.python={show(python)}"
    try:
        words = [python, "-c", LOOK.replace("MODULE", module)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LOOK_S, check=True)
        facts = json.loads(done.stdout.splitlines()[-1])
    except FileNotFoundError:
        raise ConfigError(f"{option} is not a program: name the interpreter that has {module}") from None
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ConfigError(f"{option} is not a Python that can list its packages ({type(error).__name__})") from None
    if not facts["there"]:
        raise ConfigError(f"{option} has no {module}: {advice}")
    return facts


def look_at_llama_server(binary: str | None) -> dict[str, Any]:
    """Return path, version and commit of a llama-server, by default the one on PATH; raise ConfigError if there is none."""
    path = shutil.which(binary or "llama-server")
    if path is None:
        raise ConfigError(
            "llama-server is not on PATH: give engine.binary=PATH (scripts/llamacpp_env builds one)"
            if binary is None
            else f"engine.binary={show(binary)} is not a program: name a llama-server (scripts/llamacpp_env builds one)"
        )
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"engine.binary={show(path)} does not run ({type(error).__name__})") from None
    # Either "version: 0.6.0-dev (build 11434, commit 515e85511)" or, from older builds, "version: 5142 (80f19b4)".
    match = re.search(r"version: .*?(\d+)(?: \(|, commit )(\w+)\)", done.stdout + done.stderr)
    if match is None:
        raise ConfigError(f"engine.binary={show(path)} prints no version: name a llama-server of llama.cpp")
    return {"binary": path, "version": f"b{match[1]}", "commit": match[2]}


def port_of(host: str, wanted: int | None) -> int:
    """Return the wanted port, or any free port for None; raise ConfigError if the wanted one is taken."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, wanted or 0))
        except OSError as error:
            raise ConfigError(
                f"engine.port={wanted} of {host} cannot be used ({error.strerror}): "
                "give another, or engine.port=null for any free port"
            ) from None
        return int(listener.getsockname()[1])


def words_of(python: str, module: str, args: Mapping[str, Any], speculative: Mapping[str, Any] | None) -> Sequence[str]:
    """Return the command `python -m MODULE` with its flags and the options of speculative decoding."""
    return [python, "-m", module, *flags(args), *flags({"speculative_config": speculative})]
