"""A child process confines itself: rlimits, no_new_privs, capabilities, Landlock, seccomp; ctypes only."""

import ctypes
import fcntl
import mmap
import os
import random
import resource
import struct
import sys
import sysconfig
from collections.abc import Sequence

from . import syscalls

PDEATHSIG, NO_NEW_PRIVS, SECCOMP, SUBREAPER = 1, 38, 22, 36
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CAPSET = {"x86_64": 126, "aarch64": 91}
READ_ANY = 1 << 2  # CAP_DAC_READ_SEARCH: root may still read files of other users, within Landlock
READ, OF_FILES = 0b1101, 0b1100000000000111  # execute, read_file, read_dir; the rights that a rule on a file may name
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many file rights each Landlock ABI has; 16 from ABI 5

libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """A raw system call, or OSError."""
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} (system call {number})")
    return result


def control(option: int, value: int, *rest: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), *(ctypes.c_ulong(r) for r in (*rest, 0, 0, 0)[:3])):
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} (prctl {option})")


def limit(memory: int, file_size: int, cpu_s: int) -> None:
    """Set soft and hard limits. RLIMIT_NPROC would count all of the user's processes; the seccomp filter forbids new ones."""
    wanted = {"AS": memory, "FSIZE": file_size, "CPU": cpu_s, "CORE": 0, "NOFILE": 64, "STACK": 8 << 20}
    for name, value in wanted.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))


def high(descriptor: int) -> int:
    """Return a copy of a descriptor, numbered above those that the child will use and closed on exec."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)


def landlock_version() -> int:
    """Return the ABI version of Landlock in this kernel, 0 without Landlock."""
    return max(libc.syscall(CREATE_RULESET, None, 0, 1), 0)


def readable() -> list[str]:
    """Return the paths that an interpreter must read to start and to import its standard library."""
    paths = {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime"}
    paths |= {"/usr/share/zoneinfo", "/dev/null", "/dev/zero", "/dev/urandom", os.path.realpath(sys.executable)}
    paths |= {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.base_prefix}/lib"}
    with open("/proc/self/maps") as maps:  # shared libraries may be anywhere
        mapped = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    return sorted(path for path in paths | mapped if os.path.exists(path))


class Confinement:
    """A worker builds it once; `enter` is called in each child and ends by exec."""

    def __init__(
        self,
        work: str,
        argv: list[str],
        environment: dict[str, str],
        *,
        landlock: bool,
        packages: Sequence[str] = (),  # folders to read beside the standard library
    ) -> None:
        self.page = self._map_path(argv[0])
        self.argv, self.environment = _strings(argv), _strings([f"{k}={v}" for k, v in environment.items()])
        code = syscalls.build(self.page)
        self.code = ctypes.create_string_buffer(code, len(code))
        self.filter = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(self.code))
        self.ruleset = self._rules(work, packages) if landlock else None

    @staticmethod
    def _map_path(path: str) -> int:
        """Map a page that holds the path, at a random address even where address randomisation is off."""
        libc.mmap.restype = ctypes.c_void_p
        hint = random.SystemRandom().randrange(0x1000_0000, 0x5000_0000) << 16
        arguments = ctypes.c_void_p(hint), ctypes.c_size_t(mmap.PAGESIZE)
        address = libc.mmap(*arguments, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "no page for the interpreter's path")
        ctypes.memmove(address, os.fsencode(path) + b"\0", len(os.fsencode(path)) + 1)
        return address

    @staticmethod
    def _rules(work: str, packages: Sequence[str]) -> int:
        version = landlock_version()
        rights = (1 << RIGHTS.get(version, 16)) - 1
        network, scope = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
        size = 8 if version < 4 else 16 if version < 6 else 24
        ruleset = call(CREATE_RULESET, struct.pack("QQQ", rights, network, scope)[:size], ctypes.c_size_t(size), 0)
        writable = [(work, rights & ~1), ("/dev/null", rights & ~1)]
        for path, allowed in [*((path, READ) for path in (*readable(), *packages)), *writable]:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed &= rights if os.path.isdir(path) else rights & OF_FILES
            call(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, descriptor), 0)
            os.close(descriptor)
        return high(ruleset)

    def enter(self) -> None:
        """Confine this process irrevocably and exec the interpreter; raise if that fails."""
        control(NO_NEW_PRIVS, 1)
        keep = READ_ANY & _capabilities()
        call(CAPSET[os.uname().machine], struct.pack("Ii", 0x20080522, 0), struct.pack("6I", keep, keep, 0, 0, 0, 0))
        if self.ruleset is not None:
            call(RESTRICT_SELF, self.ruleset, 0)
        if libc.prctl(SECCOMP, 2, self.filter, 0, 0):
            raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} (seccomp)")
        libc.execve(ctypes.c_void_p(self.page), self.argv, self.environment)
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} (execve)")


def _capabilities() -> int:
    """Return the capabilities that may be kept, the low 32 bits."""
    with open("/proc/self/status") as status:
        return next((int(line.split()[1], 16) & 0xFFFFFFFF for line in status if line.startswith("CapPrm")), 0)


def _strings(values: list[str]) -> ctypes.Array:
    return (ctypes.c_char_p * (len(values) + 1))(*(os.fsencode(value) for value in values), None)
