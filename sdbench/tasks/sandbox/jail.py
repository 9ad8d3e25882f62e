"""What stands between a program and the machine: runs in a child interpreter (`python -I -S jail.py`), stdlib only.

The orders come as JSON through a pipe; the program runs; only after its last line has run does the nonce go back.
The program runs in a second thread whose lowest frame is its own, under C functions alone: walking frames, patching
builtins or leaving early reaches neither the nonce nor the list that tells this thread that the end was reached.
Numbers are the kernel's (Linux, x86_64 and aarch64): landlock(7), seccomp(2), prctl(2).
"""

import _thread
import ctypes
import gc
import json
import operator
import os
import platform
import resource
import struct
import sys
import time
import types
from functools import partial

FAILED, OUT_OF_MEMORY, REFUSED = 3, 4, 5  # exit codes: an exception, a MemoryError, the jail could not be closed
STEPS = 3  # begin, the program, its end
SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVS, SIGKILL = 1, 4, 22, 38, 9
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
LIBC = ctypes.CDLL(None, use_errno=True)


def limit(memory: int, output: int, cpu_s: int) -> None:
    """Limits of one process; NPROC binds ordinary users only, the filter below forbids forks to everybody."""
    wanted = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: output,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
    }
    for name, value in wanted.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def renounce() -> None:
    """No new privileges, no core, no tracing, and no life after the parent's."""
    check(LIBC.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    check(LIBC.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0), "pdeathsig")
    check(LIBC.prctl(SET_DUMPABLE, 0, 0, 0, 0), "dumpable")


def landlock(readable: list[str], writable: list[str]) -> None:
    """Files: read below `readable`, write below `writable`, nothing else; no TCP from ABI 4, no signals out from 6."""
    abi = check(LIBC.syscall(CREATE_RULESET, None, 0, 1), "landlock")
    handled = (1 << {1: 13, 2: 14}.get(abi, 15 if abi < 5 else 16)) - 1
    words = struct.pack("QQQ", handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    words = words[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = check(LIBC.syscall(CREATE_RULESET, words, len(words), 0), "landlock_create_ruleset")
    read_only, file_rights = 0b1101, 0b1100000000000111
    for paths, rights in ((readable, read_only), (writable, handled & ~1)):
        for path in filter(os.path.exists, paths):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = rights & handled if os.path.isdir(path) else rights & handled & file_rights
            check(LIBC.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, place), 0), "landlock_add_rule")
            os.close(place)
    check(LIBC.syscall(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


# socket connect bind listen socketpair; fork vfork; execve execveat; ptrace; kill tkill tgkill; setpgid setsid;
# io_uring; process_vm_*; unshare setns mount umount2 chroot pivot_root; perf_event_open bpf; keyctl add_key
# request_key; pidfd_*; prlimit64
DENIED = {
    "x86_64": (
        *(41, 42, 49, 50, 53, 57, 58, 59, 322, 101, 62, 200, 234, 109, 112, 425, 426, 427, 310, 311),
        *(272, 308, 165, 166, 161, 155, 298, 321, 250, 248, 249, 424, 434, 438, 302),
    ),
    "aarch64": (
        *(198, 203, 200, 201, 199, 221, 281, 117, 129, 130, 131, 154, 157, 425, 426, 427, 270, 271),
        *(97, 268, 40, 39, 51, 41, 241, 280, 219, 217, 218, 424, 434, 438, 261),
    ),
}
CLONE = {"x86_64": 56, "aarch64": 220}
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE3, CLONE_THREAD = 435, 0x10000


def seccomp() -> None:
    """Refuse system calls that reach other processes or the network, or make processes; threads may be made."""
    machine = platform.machine()
    if machine not in DENIED:
        raise OSError(0, f"no system-call filter for {machine}")
    load, equal, at_least, has_bits, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    eperm, enosys, allow, kill = 0x50001, 0x50026, 0x7FFF0000, 0x80000000
    code = [(load, 0, 0, 4), (equal, 1, 0, AUDIT[machine]), (answer, 0, 0, kill), (load, 0, 0, 0)]
    if machine == "x86_64":
        code += [(at_least, 0, 1, 0x40000000), (answer, 0, 0, kill)]  # the x32 table numbers calls anew
    code += [(equal, 0, 1, CLONE3), (answer, 0, 0, enosys)]
    for number in DENIED[machine]:
        code += [(equal, 0, 1, number), (answer, 0, 0, eperm)]
    code += [(equal, 0, 3, CLONE[machine]), (load, 0, 0, 16)]
    code += [(has_bits, 1, 0, CLONE_THREAD), (answer, 0, 0, eperm)]
    code += [(answer, 0, 0, allow)]
    packed = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    check(LIBC.prctl(SET_SECCOMP, 2, program, 0, 0), "seccomp")


def close(orders: dict) -> None:
    """Everything this backend promises, or an OSError before the program starts."""
    limit(orders["memory"], orders["output"], orders["cpu_s"])
    if orders["is_filtered"]:
        renounce()
        landlock(orders["readable"], [orders["work"], "/dev/null", "/dev/urandom", "/dev/zero"])
        seccomp()


def run(code: types.CodeType, space: dict) -> tuple[list, type | None]:
    """Run to the end in another thread: ([what each C call gave], exception). No Python frame lies below its own."""
    finished: list = []
    caught: list[type] = []
    sys.unraisablehook = lambda report: (caught.append(report.exc_type), sys.__unraisablehook__(report))[0]
    begun, over = _thread.allocate_lock(), _thread.allocate_lock()
    begun.acquire()
    over.acquire()
    calls = map(operator.call, (begun.release, partial(exec, code, space), over.release))
    threads = _thread._count()
    for module, name in ((sys, "_current_frames"), (sys, "_current_exceptions"), (gc, "get_objects")):
        if hasattr(module, name):
            delattr(module, name)
    for name in ("get_referrers", "get_referents", "freeze"):
        delattr(gc, name)
    _thread.start_new_thread(finished.extend, (calls,))
    begun.acquire()
    while not over.acquire(timeout=0.005):
        if _thread._count() <= threads:  # it ended without reaching the release
            break
    # The list is complete only when `extend` has returned, a moment after the release.
    give_up = time.monotonic() + 1
    while len(finished) < STEPS and _thread._count() > threads and time.monotonic() < give_up:
        time.sleep(0)
    return finished, caught[0] if caught else None


def main() -> None:
    order_fd, answer_fd = int(sys.argv[1]), int(sys.argv[2])
    with os.fdopen(order_fd) as pipe:
        orders = json.load(pipe)
    sys.argv[:] = ["program.py"]
    nonce, write, leave = bytes.fromhex(orders.pop("nonce")), os.write, os._exit
    with open(os.path.join(orders["work"], "program.py"), encoding="utf-8") as file:
        source = file.read()
    try:
        close(orders)
    except OSError as error:
        write(2, f"jail: {error}\n".encode())
        leave(REFUSED)
    try:
        code = compile(source, "program.py", "exec")
    except MemoryError:
        leave(OUT_OF_MEMORY)
    except (SyntaxError, ValueError, RecursionError) as error:
        write(2, f"{type(error).__name__}: {error}\n".encode())
        leave(FAILED)
    finished, caught = run(code, {"__name__": "__main__", "__builtins__": __builtins__})
    if len(finished) == STEPS:
        write(answer_fd, nonce)
        leave(0)
    leave(OUT_OF_MEMORY if caught is MemoryError else FAILED)


if __name__ == "__main__":
    main()
