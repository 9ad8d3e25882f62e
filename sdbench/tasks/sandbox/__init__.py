"""Runs programs that a model wrote, and says what became of them.

What is covered: network, files outside the program's own folder (but the interpreter's library), the environment,
/proc, other processes, new processes, 1 GiB of memory, 16 MB of output, time, what a program leaves behind, a success
it only pretends.
What is not covered: bugs of the kernel, side channels, a program that attacks this very harness through ctypes,
answers that satisfy the tests without solving the task (an `__eq__` that is always true).

Backends: "kernel" (rlimits, no_new_privs, Landlock, a seccomp filter), "bwrap" (bubblewrap's namespaces), both,
"rlimit" (accidents only), "none". "auto" takes the strongest whose self-test proves all of PROVES, or refuses.
"""

from sdbench.tasks.sandbox.pool import BACKENDS, PROVES, Outcome, Sandbox, SandboxError

__all__ = ["BACKENDS", "PROVES", "Outcome", "Sandbox", "SandboxError"]
