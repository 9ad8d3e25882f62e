"""Processes of a test: whether they run, what they noted, and an interpreter that has a package vllm."""

import shutil
import socket
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def is_alive(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    try:
        return path.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def gone(pids: list[int], within_s: float = 60) -> bool:
    end = time.monotonic() + within_s
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    return not any(map(is_alive, pids))


def noted(path: Path, within_s: float = 240) -> list[int]:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if path.is_file() and len(path.read_text().split()) == 2:
            return [int(word) for word in path.read_text().split()]
        time.sleep(0.1)
    raise AssertionError("the server never started")


def environment_with_vllm(folder: Path) -> Path:
    """An interpreter in whose environment `-m vllm.entrypoints.openai.api_server` is the stand-in."""
    package = folder / "site" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for parent in (package, package.parent, package.parent.parent):
        (parent / "__init__.py").write_text("")
    (package.parents[1] / "_version.py").write_text("__commit_id__ = commit_id = 'g1234567'\n")
    script = f"import runpy\nrunpy.run_path({str(HERE / 'standin.py')!r}, run_name='__main__')\n"
    (package / "api_server.py").write_text(script)
    benchmarks = folder / "site" / "vllm" / "benchmarks"
    benchmarks.mkdir()
    (benchmarks / "__init__.py").write_text("")
    shutil.copy(HERE / "bench_serve_standin.py", benchmarks / "serve.py")
    info = folder / "site" / "vllm-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    (info / "top_level.txt").write_text("vllm\n")
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/site exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program
