# ruff: noqa: E501 - an attack reads best on one line
"""Programs that try to get out of the sandbox, and who of them did. Run by test_sandbox.py, as root and not:

python attacks.py BACKEND  ->  one JSON object {attack: status or "OPEN"} on stdout

Stdlib only, so that any interpreter that an ordinary user may execute can run it.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

TIMEOUT_S = 1.5


def programs(port: int, udp: int, name: str, outside: Path, home: Path) -> dict[str, str]:
    """Each raises, or cannot do harm, where the sandbox holds; what it must not do is looked at from outside."""
    me = os.getpid()
    fork = "import os, time\nif os.fork() == 0:\n    {}\n"
    return {
        "tcp": f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
        "udp": f"import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))",
        "unix_socket": f"import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{name}')",
        "write_outside": f"open({str(outside / 'mark')!r}, 'w').write('x')",
        "read_home": f"print('SEC' 'RET' + open({str(home / 'secret')!r}).read())",
        "symlink_out": f"import os\nos.symlink({str(home / 'secret')!r}, 'link')\nprint('SEC' 'RET' + open('link').read())",
        "hardlink_out": f"import os\nos.link({str(home / 'secret')!r}, 'link')\nprint('SEC' 'RET' + open('link').read())",
        "environment": "import os\nprint('SEC' 'RET' if 'SDBENCH_ATTACK' in os.environ else 'no')\nassert 0",
        "proc_environ": f"print('SEC' 'RET' + str(open('/proc/{me}/environ', 'rb').read()))",
        "proc_self_mem": "open('/proc/self/mem', 'rb')\nprint('SEC' 'RET')",
        "kill_parent": f"import os, signal\nos.kill({me}, signal.SIGUSR1)",
        "kill_group": "import os, signal\nos.killpg(0, signal.SIGUSR1)\nos.kill(-1, signal.SIGUSR1)",
        "pidfd_signal": f"import os, signal\nsignal.pidfd_send_signal(os.pidfd_open({me}), signal.SIGUSR1)",
        "deaf_loop": "import signal\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "memory": "x = bytearray(2 << 30)",
        "forks": fork.format("time.sleep(5); os._exit(0)") + "time.sleep(.1)",
        "exec_shell": "import subprocess\nprint('SEC' 'RET', subprocess.run(['/bin/sh', '-c', 'exit 0']))",
        "exec_in_place": f"import os\nos.execv('/usr/bin/touch', ['touch', {str(outside / 'mark')!r}])",
        "big_file": "f = open('big', 'wb')\nfor i in range(200): f.write(b'x' * (1 << 20))\nf.flush()",
        "big_output": "import sys\nfor i in range(200): sys.stdout.write('x' * (1 << 20))\nsys.stdout.flush()\nassert 0",
        "daemon": fork.format(
            f"os.setsid()\n    time.sleep(1)\n    open({str(outside / 'mark')!r}, 'w').write('x'); os._exit(0)"
        ),
        "raise_limits": "import resource as r\nr.setrlimit(r.RLIMIT_AS, (-1, -1))\nx = bytearray(2 << 30)",
        "chroot": "import os\nos.chroot('.')",
        "new_namespace": "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0",
        "ptrace_parent": f"import ctypes\nassert ctypes.CDLL(None).ptrace(16, {me}, 0, 0) == 0",
    }


FORGERIES = {
    "exit_0": "import sys\nsys.exit(0)",
    "hard_exit_0": "import os\nos._exit(0)",
    "said_passed": "print('passed')\nassert 0",
    "atexit": "import atexit, os\natexit.register(lambda: os._exit(0))\nassert 0",
    "patched_assert": "import builtins\nbuiltins.AssertionError = type('E', (BaseException,), {})\nassert 0",
    "patched_exit": "import os, sys\nos._exit = sys.exit = lambda code=0: None\nassert 0",
    "patched_exec": "import builtins\nbuiltins.exec = builtins.compile = lambda *a: None\nassert 0",
    "closed_hook": "import sys\nsys.unraisablehook = sys.excepthook = lambda *a: None\nassert 0",
    "guessed_answer": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'x' * 16)\n    except OSError: pass\nos._exit(0)"
    ),
    "walked_frames": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n"
        "    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
        "        if isinstance(value, list): value.extend([None] * 3)\n    frame = frame.f_back\nassert 0"
    ),
    "walked_traceback": (
        "try: 1 / 0\nexcept ZeroDivisionError as e: frame = e.__traceback__.tb_frame.f_back\nassert frame is not None"
    ),
    "listed_objects": "import gc\nfor x in gc.get_objects():\n    if isinstance(x, list): x.extend([None] * 3)\nassert 0",
    "other_threads": "import sys\nfor f in sys._current_frames().values(): print(f.f_locals['nonce'])\nassert 0",
    "main_module": "import __main__\n__main__.STEPS = 0\nassert 0",
    "thread_ends_first": "import threading\nthreading.Thread(target=lambda: None).start()\nraise SystemExit",
}


def main(backend: str) -> dict[str, str]:
    from sandbox import Sandbox

    found: dict[str, str] = {}
    hits: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))
    os.environ["SDBENCH_ATTACK"] = "secret"
    name = f"sdbench-{os.getpid()}"
    with (
        tempfile.TemporaryDirectory() as place,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as local,
    ):
        outside, home = Path(place, "outside"), Path(place, "home")
        outside.mkdir()
        home.mkdir()
        (home / "secret").write_text("SECRET")
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        local.bind(f"\0{name}")
        local.listen()
        sandbox = Sandbox(backend, timeout_s=TIMEOUT_S)
        found["backend"], found["proved"] = sandbox.backend, " ".join(sandbox.proved)
        attacks = programs(tcp.getsockname()[1], udp.getsockname()[1], name, outside, home)
        started = time.monotonic()
        outcomes = dict(zip(attacks, sandbox.run(list(attacks.values())), strict=True))
        found["seconds"] = f"{time.monotonic() - started:.1f}"
        time.sleep(1.2)  # a daemon that outlived its program would leave its mark now
        for attack, outcome in outcomes.items():
            is_open = outcome.status in ("passed", "error") or "SECRET" in outcome.detail
            found[attack] = "OPEN" if is_open else outcome.status
        with suppress(BlockingIOError):
            found["udp"] = "OPEN" if udp.recv(10) else "?"
        if hits:
            found["kill_parent"] = "OPEN"
        for mark in outside.iterdir():
            found["write_outside"] = f"OPEN {mark.name}"
        forgeries = sandbox.run(list(FORGERIES.values()))
        found |= {
            f"forged_{key}": "OPEN" if outcome.status == "passed" else outcome.status
            for key, outcome in zip(FORGERIES, forgeries, strict=True)
        }
        for number in range(20):  # nothing of one program is there for the next
            open_files = sandbox.run(
                [f"open('left{number}', 'w').write('x')\nimport os\nassert len(os.listdir()) == 3"]
            )
            found["leftovers"] = "none" if open_files[0].status == "passed" else f"OPEN {open_files[0]}"
        sandbox.close()
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
