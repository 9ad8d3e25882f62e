"""The command line of a server that is started, from the options of a run."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from sdbench.config import ConfigError, show

# In that interpreter: what is installed and from which commit, without importing it.
LOOK = """
import importlib.metadata as m, importlib.util as u, json, pathlib, re, sys
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
    """Return {tensor_parallel_size: 8} as --tensor-parallel-size 8: true is the flag only, false its --no- form, null nothing."""
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


def look(python: str, module: str) -> dict[str, Any]:
    """Return what an interpreter has of a server's package; a ConfigError if it is not an interpreter, or has no such package."""
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
        raise ConfigError(
            f"{option} has no {module}: name the interpreter of an environment where it is installed "
            "(scripts/vllm_env makes one)"
        )
    return facts


def look_at_llama_server(binary: str | None) -> dict[str, Any]:
    """Return path, version and commit of a llama-server, null being the one on PATH; a ConfigError where it is none."""
    path = shutil.which(binary or "llama-server")
    if path is None:
        raise ConfigError(
            "there is no llama-server on PATH: write engine.binary=PATH (scripts/llamacpp_env builds one)"
            if binary is None
            else f"engine.binary={show(binary)} is not a program: name a llama-server (scripts/llamacpp_env builds one)"
        )
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"engine.binary={show(path)} does not run ({type(error).__name__})") from None
    # version: 0.6.0-dev (build 11434, commit 515e85511), and before that version: 5142 (80f19b4)
    match = re.search(r"version: .*?(\d+)(?: \(|, commit )(\w+)\)", done.stdout + done.stderr)
    if match is None:
        raise ConfigError(f"engine.binary={show(path)} prints no version: name a llama-server of llama.cpp")
    return {"binary": path, "version": f"b{match[1]}", "commit": match[2]}


def port_of(host: str, wanted: int | None) -> int:
    """Return the wanted port if it is free; for None any free port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, wanted or 0))
        except OSError as error:
            raise ConfigError(
                f"engine.port={wanted} of {host} cannot be used ({error.strerror}): "
                "write another, or engine.port=null for one that is free"
            ) from None
        return int(listener.getsockname()[1])


def words_of(python: str, module: str, args: Mapping[str, Any], speculative: Mapping[str, Any] | None) -> Sequence[str]:
    """Return python -m MODULE, its flags, and the options of speculation."""
    return [python, "-m", module, *flags(args), *flags({"speculative_config": speculative})]
