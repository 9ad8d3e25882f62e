"""The seccomp filter: a list of the system calls that a program may make. Any other does not exist (ENOSYS).

An allow-list, because a list of forbidden calls had missed some: `prlimit` on the parent, `chmod` of files that
Landlock lets one only read, `fcntl(F_SETOWN)` that sends signals.
Numbers: arch/x86/entry/syscalls, include/uapi/asm-generic.
"""

import platform
import struct

# name, number on x86_64, number on aarch64 ("-": has none)
TABLE = """
read 0 63; write 1 64; close 3 57; fstat 5 80; lseek 8 62; mmap 9 222; mprotect 10 226; munmap 11 215; brk 12 214;
rt_sigaction 13 134; rt_sigprocmask 14 135; rt_sigreturn 15 139; pread64 17 67; pwrite64 18 68; readv 19 65;
writev 20 66; preadv 295 69; pwritev 296 70; newfstatat 262 79; futex 202 98; mremap 25 216; madvise 28 233;
msync 26 227; stat 4 -; lstat 6 -; access 21 -; faccessat 269 48; faccessat2 439 439; statx 332 291; statfs 137 43;
fstatfs 138 44; readlink 89 -; readlinkat 267 78; getdents64 217 61; getcwd 79 17; chdir 80 49; fchdir 81 50;
umask 95 166; dup 32 23; dup2 33 -; dup3 292 24; pipe 22 -; pipe2 293 59; close_range 436 436; eventfd2 290 19;
sendfile 40 71; poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72; epoll_create 213 -; epoll_create1 291 20;
epoll_ctl 233 21; epoll_wait 232 -; epoll_pwait 281 22; epoll_pwait2 441 441; recvfrom 45 207; shutdown 48 210;
mkdir 83 -; mkdirat 258 34; rmdir 84 -; unlink 87 -; unlinkat 263 35; rename 82 -; renameat 264 38; renameat2 316 276;
symlink 88 -; symlinkat 266 36; link 86 -; linkat 265 37; ftruncate 77 46; fsync 74 82; fdatasync 75 83;
fallocate 285 47; fadvise64 221 223; flock 73 32; copy_file_range 326 285; nanosleep 35 101; clock_nanosleep 230 115;
clock_gettime 228 113; clock_getres 229 114; gettimeofday 96 169; time 201 -; times 100 153; getitimer 36 102;
setitimer 38 103; alarm 37 -; pause 34 -; getrusage 98 165; sysinfo 99 179; uname 63 160; getrandom 318 278;
getcpu 309 168; sched_yield 24 124; sched_getaffinity 204 123; restart_syscall 219 128; rt_sigpending 127 136;
rt_sigtimedwait 128 137; rt_sigsuspend 130 133; sigaltstack 131 132; getpid 39 172; gettid 186 178; getppid 110 173;
getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177; getgroups 115 158; getresuid 118 148;
getresgid 120 150; getpgrp 111 -; getpgid 121 155; getsid 124 156; wait4 61 260; waitid 247 95;
set_tid_address 218 96; set_robust_list 273 99; rseq 334 293; membarrier 324 283; exit 60 93; exit_group 231 94;
arch_prctl 158 -
"""

FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1031, 1032)  # no F_SETOWN, F_SETSIG: they send signals; no leases, no notices
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
PRCTL = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA; not PDEATHSIG, not DUMPABLE
CLONE_THREAD, CLONE_NEW = 0x10000, 0x7E020080  # threads only, and in no new namespace
O_ACCMODE, O_TRUNC = 3, 0o1000
AF_UNIX, SOCK_STREAM, SOCK_KIND = 1, 1, 0xF

LOAD, EQUAL, ABOVE, BITS, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def build(image: int, machine: str = platform.machine()) -> bytes:
    """Return the filter for this machine; `image` is the address of the only path that execve may get."""
    if machine not in MACHINES:
        raise OSError(f"no seccomp filter for the processor {machine} (there is one for {', '.join(MACHINES)})")
    arch, column = MACHINES[machine]
    numbers = {name: given[column] for name, *given in (entry.split() for entry in TABLE.split(";"))}
    steps: list[Instruction] = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    if column == 0:  # the x32 calls have numbers of their own
        steps += [(ABOVE, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]
    for number in numbers.values():
        if number != "-":
            steps += [(EQUAL, 0, 1, int(number)), (RETURN, 0, 0, ALLOW)]
    for number, checks in _argument_checks(image):
        if number[column] is not None:
            body = [*checks, (RETURN, 0, 0, EPERM)]
            steps += [(EQUAL, 0, len(body), number[column]), *body]
    steps.append((RETURN, 0, 0, ENOSYS))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _argument_checks(image: int) -> list[tuple[tuple[int | None, int | None], list[Instruction]]]:
    """Return calls allowed for some arguments: their numbers, and steps that return ALLOW or fall through."""
    no_truncation = [(AND, 0, 0, O_ACCMODE | O_TRUNC), (EQUAL, 1, 0, O_TRUNC), (RETURN, 0, 0, ALLOW)]
    return [
        ((56, 220), [_low(0), (BITS, 0, 2, CLONE_THREAD), (BITS, 1, 0, CLONE_NEW), (RETURN, 0, 0, ALLOW)]),
        # The child's own exec: its argument is an address that the next image does not know and has not mapped.
        ((59, 221), _equals(0, image)),
        ((72, 25), _one_of(1, FCNTL)),
        ((16, 29), _one_of(1, IOCTL)),
        ((157, 167), _one_of(0, PRCTL)),
        ((302, 261), _one_of(0, (0,))),  # prlimit64 of oneself only
        ((2, None), [_low(1), *no_truncation]),  # Landlock before ABI 3 lets O_RDONLY|O_TRUNC pass
        ((257, 56), [_low(2), *no_truncation]),
        ((53, 199), [_low(0), (EQUAL, 0, 4, AF_UNIX), _low(1), (AND, 0, 0, SOCK_KIND), *_final(SOCK_STREAM)]),
        ((44, 206), _equals(4, 0)),  # sendto without an address
    ]


def _low(argument: int) -> Instruction:
    return (LOAD, 0, 0, 16 + 8 * argument)


def _high(argument: int) -> Instruction:
    return (LOAD, 0, 0, 20 + 8 * argument)


def _final(value: int) -> list[Instruction]:
    return [(EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]


def _equals(argument: int, value: int) -> list[Instruction]:
    return [_low(argument), (EQUAL, 0, 3, value & 0xFFFFFFFF), _high(argument), *_final(value >> 32)]


def _one_of(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    tests: list[Instruction] = [
        (EQUAL, len(values) - 1 - i, 0 if i < len(values) - 1 else 1, v) for i, v in enumerate(values)
    ]
    return [_low(argument), *tests, (RETURN, 0, 0, ALLOW)]
