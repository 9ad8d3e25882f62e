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

from raw_calls import tried

TIMEOUT_S = 1.0


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
        "chmod_outside": f"import os\nos.chmod({str(home / 'secret')!r}, 0o777)",
        "utime_outside": f"import os\nos.utime({str(home / 'secret')!r}, (1, 1))",
        "truncate_outside": f"import os\nos.truncate({str(home / 'secret')!r}, 0)",
        "chmod_the_library": "import os\nos.fchmod(os.open(os.__file__, os.O_RDONLY), 0o644)",
        "limit_the_parent": f"import resource as r\nr.prlimit({me}, r.RLIMIT_CPU, (10**6, 10**6))",
        "slow_the_parent": f"import os\nos.setpriority(os.PRIO_PROCESS, {me}, 19)",
        "pin_the_parent": f"import os\nos.sched_setaffinity({me}, [0])",
        "own_the_signal": f"import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, {me})",
        "kill_the_worker": "import os\nos.kill(os.getppid(), 9)",
        "worker_environ": "import os\nprint('SEC' 'RET' + str(open(f'/proc/{os.getppid()}/environ').read()))",
        "many_files": "i = 0\nwhile True:\n    open(str(i), 'wb').write(b'x' * (8 << 20)); i += 1",
        "deep_tree": "import os\nfor i in range(3000):\n    os.mkdir('d'); os.chdir('d')\nassert 0",
        "locked_tree": "import os\nos.mkdir('a'); os.mkdir('a/b', 0); os.umask(0o777); os.mkdir('c')\nassert 0",
        "named_pipe": "import os\nos.mkfifo('pipe')",
        "memory_file": "import os\nos.memfd_create('x')",
        "threads_without_end": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
        "full_report": "import os\nfor i in range(99): os.write(4, b'x' * 65536)\nassert 0",
        "memory_file_run": "import os\nf = os.memfd_create('x')\nos.write(f, b'#!/bin/true')\nos.execve(f, ['x'], {})",
        "fork_hooks": "import os\nos.register_at_fork(after_in_child=lambda: os._exit(0))\nos.fork()",
        "shared_folder": "open('/dev/shm/left', 'w').write('x')",
        "shared_memory": "from multiprocessing.shared_memory import SharedMemory\nSharedMemory(create=True, size=9)",
        "inherited_files": (
            "import os\nfor n in range(5, 64):\n    try: os.fstat(n)\n    except OSError: continue\n"
            "    print('SEC' 'RET', n)\nassert 0"
        ),
        "own_folder_gone": "import os\nos.rmdir(os.getcwd())",
        "own_folder_moved": "import os\nos.rename(os.getcwd(), os.getcwd() + 'x')",
        "links_for_the_worker": (
            f"import os\nos.symlink({str(home)!r}, 'd')\nos.symlink({str(home / 'secret')!r}, 'f')\n"
            "os.mkdir('a', 0)\nos.symlink('..', 'b')\nassert 0"
        ),
        "unlinked_files": (
            "import os\nheld = []\nwhile True:\n    held.append(open('x', 'wb'))\n    os.unlink('x')\n"
            "    held[-1].write(b'x' * (8 << 20)); held[-1].flush()"
        ),
        "unlinked_maps": (
            "import mmap, os\nheld = []\nwhile True:\n    with open('x', 'w+b') as f:\n"
            "        f.write(b'x' * (8 << 20)); f.flush(); held.append(mmap.mmap(f.fileno(), 0))\n    os.unlink('x')"
        ),
        "stop_itself": "import signal\nsignal.raise_signal(signal.SIGSTOP)",
        "nice": "import os\nos.nice(-5)",
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
        "import os\ntry: 1 / 0\nexcept ZeroDivisionError as e: frame = e.__traceback__.tb_frame.f_back\n"
        "for value in frame.f_locals.values():\n    if isinstance(value, bytes): os.write(4, value)\nassert 0"
    ),
    "listed_objects": "import gc\nfor x in gc.get_objects():\n    if isinstance(x, list): x.extend([None] * 3)\nassert 0",
    "other_threads": "import sys\nfor f in sys._current_frames().values(): print(f.f_locals['nonce'])\nassert 0",
    "main_module": "import __main__\n__main__.STEPS = 0\nassert 0",
    "traced_to_the_end": (
        "import sys\ndef jump(frame, event, arg):\n    if event == 'line': frame.f_lineno = 9\n    return jump\n"
        "sys._getframe().f_trace = jump\nsys.settrace(jump)\nassert 0\nassert 0\nx = 1"
    ),
    "profiled": "import sys\nsys.setprofile(lambda f, e, a: print(f.f_locals))\nassert 0",
    "stack_by_gc": (
        "import gc, sys, os\nfor x in gc.get_referents(sys._getframe(1)):\n"
        "    if isinstance(x, bytes): os.write(4, x)\nos._exit(0)"
    ),
    "gc_made_anew": "import sys\ndel sys.modules['gc']\nimport gc\nfor x in gc.get_objects(): pass\nimport os\nos._exit(0)",
    "cleared_hooks": (
        "import gc, sys\nfor x in gc.get_objects():\n"
        "    if isinstance(x, list) and any(getattr(y, '__name__', '') == 'hook' for y in x): x.clear()\n"
        "def jump(frame, event, arg):\n    if event == 'line': frame.f_lineno = 12\n    return jump\n"
        "sys._getframe().f_trace = jump\nsys.settrace(jump)\nassert 0\nassert 0\nx = 1"
    ),
    "thawed_hooks": (
        "import gc\ngc.unfreeze()\nfor x in gc.get_objects():\n    if isinstance(x, list): x.clear()\nimport os\nassert 0"
    ),
    "thawed_by_another_collector": (
        "import _imp\nfrom importlib.machinery import BuiltinImporter, ModuleSpec\n"
        "gc = _imp.create_builtin(ModuleSpec('gc', BuiltinImporter))\ngc.unfreeze()\n"
        "for x in gc.get_objects():\n    if isinstance(x, list): x.clear()\nassert 0"
    ),
    "real_settrace": "import sys\nsys.settrace.__closure__[0].cell_contents(lambda *a: None)\nassert 0",
    "ctypes_by_hand": "import sys\nsys.modules.pop('_ctypes', 0)\nfrom _ctypes import dlopen\nassert 0",
    "ctypes_renamed": (
        "from importlib.machinery import ExtensionFileLoader as L, ModuleSpec as S\nimport _imp, sysconfig, glob\n"
        "path = glob.glob(sysconfig.get_path('platstdlib') + '/lib-dynload/_ctypes.*')[0]\n"
        "spec = S('x._ctypes', L('x._ctypes', path), origin=path)\n_imp.create_dynamic(spec)\nassert 0"
    ),
    "ctypes_by_subclasses": (
        "seen = [object]\nfor k in seen:\n    seen += [s for s in type.__subclasses__(k) if s not in seen]\n"
        "assert any('CFuncPtr' in k.__name__ for k in seen)"
    ),
    "frames_bytes": (
        "import os, sys\nframe = sys._getframe()\nwhile frame:\n"
        "    for value in [*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts]:\n"
        "        for v in value if isinstance(value, (list, tuple)) else [value]:\n"
        "            if isinstance(v, bytes): os.write(4, v)\n    frame = frame.f_back\nos._exit(0)"
    ),
    "frames_as_callables": (
        "import sys, os\nframe = sys._getframe(1)\nframe.f_locals['run'] = frame.f_locals['leave'] = lambda *a: None\n"
        "frame.f_locals['tests'] = compile('', '', 'exec')\nassert 0"
    ),
    "read_again": (
        "import os\nfor fd in range(64):\n    try:\n        os.lseek(fd, 0, 0); os.write(4, os.read(fd, 16))\n"
        "    except OSError: pass\nos._exit(0)"
    ),
    "signal_handler": (
        "import signal, os\ndef see(n, frame):\n    for v in frame.f_locals.values():\n"
        "        if isinstance(v, bytes): os.write(4, v)\n"
        "signal.signal(signal.SIGALRM, see)\nsignal.setitimer(signal.ITIMER_REAL, .01, .01)\nwhile True: __import__('gc')"
    ),
    "subinterpreter": "import _xxsubinterpreters as s\ns.run_string(s.create(), 'import os; os._exit(0)')",
    "raises_in_str": "class E(Exception):\n    def __str__(self): import os; os.write(4, b'x' * 16); os._exit(0)\nraise E",
    "audited": "import sys\nsys.addaudithook(lambda e, a: print(a))\nassert 0",
    "hidden_module_again": "import sys\nsys.modules.pop('_testcapi', 0)\nimport _testcapi",
    "patched_posix": (
        "import marshal, os, posix, sys\nposix.write = os.write = lambda *a: None\nposix._exit = os._exit = print\n"
        "marshal.loads = lambda b: ['', '']\nassert 0"
    ),
    "patched_modules": "import sys, types\nfor name in list(sys.modules): sys.modules[name] = types.ModuleType(name)\nassert 0",
    "swapped_report": "import os\nr, w = os.pipe()\nos.dup2(w, 4)\nassert 0",
    "closed_report": "import os\nos.close(4)\nassert 0",
    "guesses_from_a_thread": (
        "import os, threading, time\n"
        "threading.Thread(target=lambda: [os.write(4, os.urandom(16)) for _ in range(99)], daemon=True).start()\n"
        "time.sleep(.05)\nassert 0"
    ),
    "wakeup_descriptor": (
        "import os, signal\nos.set_blocking(4, False)\nsignal.set_wakeup_fd(4)\n"
        "signal.signal(signal.SIGALRM, print)\nsignal.setitimer(signal.ITIMER_REAL, .01)\nwhile True: pass"
    ),
    "collector_callback": (
        "import gc, os, sys\ndef see(*_):\n    f = sys._getframe()\n    while f:\n"
        "        for v in f.f_locals.values():\n            if isinstance(v, bytes): os.write(4, v)\n        f = f.f_back\n"
        "gc.callbacks.append(see)\ngc.collect()\nassert 0"
    ),
    "last_words": ("import os\nclass D:\n    def __del__(self): os._exit(0)\nd = D()\nd.me = d\nraise SystemExit"),
    "hooks_of_import": (
        "import builtins, sys\nbuiltins.__import__ = lambda *a: sys\nsys.meta_path.clear()\nsys.path_hooks.clear()\nassert 0"
    ),
    "thread_ends_first": "import threading\nthreading.Thread(target=lambda: None).start()\nraise SystemExit",
}


def main(backend: str) -> dict[str, str]:
    from sandbox import Sandbox

    statuses: dict[str, str] = {}
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
        statuses["backend"], statuses["proved"] = sandbox.backend, " ".join(sandbox.proved)
        attacks = programs(tcp.getsockname()[1], udp.getsockname()[1], name, outside, home)
        started = time.monotonic()
        outcomes = dict(zip(attacks, sandbox.run(list(attacks.values())), strict=True))
        statuses["seconds"] = f"{time.monotonic() - started:.1f}"
        time.sleep(1.2)  # a daemon that outlived its program would leave its mark now
        for attack, outcome in outcomes.items():
            is_open = outcome.status in ("passed", "error") or "SECRET" in outcome.output + outcome.detail
            statuses[attack] = "OPEN" if is_open else outcome.status
        with suppress(BlockingIOError):
            statuses["udp"] = "OPEN" if udp.recv(10) else "?"
        if hits:
            statuses["kill_parent"] = "OPEN"
        if (home / "secret").read_text() != "SECRET" or len(list(home.iterdir())) != 1:
            statuses["links_for_the_worker"] = "OPEN"
        statuses |= {f"raw_{name}": message for name, message in tried(place, str(home / "secret")).items()}
        for mark in outside.iterdir():
            statuses["write_outside"] = f"OPEN {mark.name}"
        forgeries = sandbox.run(list(FORGERIES.values()))
        statuses |= {
            f"forged_{key}": "OPEN" if outcome.status == "passed" else outcome.status
            for key, outcome in zip(FORGERIES, forgeries, strict=True)
        }
        for number in range(20):  # nothing of one program is there for the next
            open_files = sandbox.run(
                [f"open('left{number}', 'w').write('x')\nimport os\nassert len(os.listdir()) == 1"]
            )
            statuses["leftovers"] = "none" if open_files[0].status == "passed" else f"OPEN {open_files[0]}"
        sandbox.close()
    return statuses


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
