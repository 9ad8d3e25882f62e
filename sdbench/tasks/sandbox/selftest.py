"""The self-test of a backend: attacks that must fail, run at start-up, their effects also checked from outside."""

import os
import re
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

ATTACKS = """
import os, signal, socket
def connect(): socket.create_connection(("127.0.0.1", {port}), 1)
def datagram(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", {port}))
def write_outside(): open({outside!r}, "w").write("x")
def chmod_outside(): os.chmod({secret!r}, 0o777)
def read_outside(): open({secret!r}).read()
def read_home(): os.listdir({home!r})
def fork():
    if os.fork() == 0: os._exit(0)
def kill_parent(): os.kill(os.getppid(), 0)
def kill_run(): os.kill({run}, 0)
def parent_environ(): open("/proc/%d/environ" % os.getppid(), "rb").read()
def run_environ(): open("/proc/{run}/environ", "rb").read()
def run_proc(): open("/proc/{run}/status").read()
for name in {names}:
    try:
        globals()[name]()
    except OSError:
        print("held", name, flush=True)
    else:
        print("open", name, flush=True)
"""
BAD_VERDICTS = {  # name of a weakness: a program that must fail
    "pass_a_failing_test": "assert 1 == 2",
    "pass_by_leaving_early": "import os\nos._exit(0)\nassert False",
    "pass_by_writing_to_descriptors": """
import os
for n in range(16):
    try: os.write(n, bytes(16))
    except OSError: pass
assert False""",
}

ATTEMPTS = tuple(re.findall(r"^def (\w+)", ATTACKS, re.MULTILINE))
PROVES = (*ATTEMPTS, *BAD_VERDICTS)  # what a backend that passes proves


def examine(run: Callable[..., Any], folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (attacks that failed, attacks that succeeded) of programs that `run(code)` runs; `folder` is for this process only."""
    secret, outside, home = Path(folder, "secret"), Path(folder, "written"), os.path.expanduser("~")
    secret.write_text("a file that no program may read")
    secret.chmod(0o600)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        code = ATTACKS.format(
            port=server.getsockname()[1],
            outside=str(outside),
            secret=str(secret),
            home=home if os.path.isdir(home) else "/",
            run=os.getpid(),
            names=ATTEMPTS,
        )
        outcome = run(code)
    lines = [line.split() for line in outcome.output.splitlines()]
    proved = [name for state, name in lines if state == "held"]
    open_ways = [name for state, name in lines if state == "open"]
    if outcome.status != "passed" or not lines:
        open_ways.append(f"not be run ({outcome.status}: {outcome.detail}{outcome.output[-300:]})")
    if outside.exists() and "write_outside" not in open_ways:
        open_ways.append("write_outside")
    for hole, program in BAD_VERDICTS.items():
        (open_ways if run(program).status == "passed" else proved).append(hole)
    outside.unlink(missing_ok=True)
    return tuple(proved), tuple(open_ways)
