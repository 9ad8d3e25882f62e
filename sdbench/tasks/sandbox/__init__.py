"""Run programs that a model wrote: a fresh interpreter each, confined by the kernel, with the verdict on a private channel.

A worker process forks a child for each program; the child confines itself and becomes a bare interpreter (`boot.py`)
that runs the program, then its tests, and only then can report the number that the worker gave it. `auto` takes the
first backend that passes its self-test on this machine: `bwrap` (workers inside bubblewrap, and as much of `kernel` as
this kernel supports), then `kernel` (Landlock, seccomp, no_new_privs, rlimits, no capabilities). Where neither passes,
it refuses. `rlimit` and `none` are used only when named, and `is_contained` is then False.

Covered, for Python and for native code (each line is a test, as root and as an ordinary user):
- sockets of every kind but a private pair, signals to any process, other processes' limits and priorities, ptrace;
- new processes, hence daemons, fork bombs and shells (threads work); `io_uring`, `bpf`, mounts, namespaces, keys;
- reading outside the standard library, numpy and the work folder: HOME, the parent's environment, every entry of /proc;
- writing, truncating, linking, chmod, chown and attributes outside the work folder, through symlinks or open files too;
- memory (1 GiB of address space), time, a file's size and the output's (16 MB), files in all (64 MB), core dumps;
- writing to numpy, which programs may import where this Python has it; other packages cannot be imported;
- what one program leaves behind: its process is ended, its folder is emptied, nothing else can be written.

Covered, for Python: a verdict is not forged by leaving early (`sys.exit`, `os._exit`, `atexit`), by writing to any
descriptor, by searching frames, tracebacks or the garbage collector for the number, by tracing or jumping
(`sys.settrace`, `f_lineno`), by ctypes, nor, where a `Program` keeps its tests apart, by patches of builtins.

Not covered:
- a kernel exploit, side channels, and what `stat` tells of paths outside (names, sizes), unless in bubblewrap;
- answers built to deceive: objects equal to everything, a patched module that the tests import, walking up the frames
  into the tests' own names; native code that a program brings along, or crafted bytecode, forges a verdict (no escape);
- memory read and written past the end of an array (numpy's `as_strided`), or threads and signals that run `gc.unfreeze` in the
  very moment in which `gc.get_objects` is judged, forge a verdict (no escape);
- from Python 3.13 on, a signal handler that rewrites the variables of the audit hook it interrupts forges a verdict;
- time spent waiting for a processor: it is not charged to a program, so that a loaded machine fails no honest one;
- kernels before 5.13 without bubblewrap; systems other than Linux; processors other than x86_64 and (untested) aarch64.
"""

from sdbench.tasks.sandbox.pool import BACKENDS, Outcome, Program, Sandbox, SandboxError
from sdbench.tasks.sandbox.selftest import PROVES

__all__ = ["BACKENDS", "PROVES", "Outcome", "Program", "Sandbox", "SandboxError"]
