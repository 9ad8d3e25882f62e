"""System calls made by their numbers, past Python and its guards: what the kernel itself lets a confined process do.

Each must answer ENOSYS or EPERM to arguments that are harmless where it is open. Stdlib only, run by attacks.py.
"""

import json
import os
import platform
import sys

from sandbox import confine

# name, number on x86_64, on aarch64 ("-": has none), the first arguments
CALLS = """
io_uring_setup 425 425; io_setup 206 0; bpf 321 280; userfaultfd 323 282; perf_event_open 298 241; seccomp 317 277;
ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; process_madvise 440 440; kcmp 312 272;
pidfd_open 434 434 PID; pidfd_getfd 438 438; pidfd_send_signal 424 424; kill 62 129 PID; kill_group 62 129 0;
tkill 200 130 PID; tgkill 234 131 PID PID; rt_sigqueueinfo 129 138 PID; rt_tgsigqueueinfo 297 240 PID PID;
fork 57 -; clone 56 220 17; clone3 435 435; execve_other 59 221 PATH; execveat 322 281; memfd_create 319 279 PATH;
memfd_secret 447 -; unshare 272 97; setns 308 268; mount 165 40; umount2 166 39; pivot_root 155 41; chroot 161 51 PATH;
move_mount 429 429; open_tree 428 428; fsopen 430 430; mount_setattr 442 442; open_by_handle_at 304 265;
name_to_handle_at 303 264; openat2 437 437; mknodat 259 33; fchmod 91 52; fchmodat 268 53; fchown 93 55;
fchownat 260 54; utimensat 280 88; setxattr 188 5; truncate 76 45 PATH; landlock_create_ruleset 444 444;
bind 49 200; connect 42 203; listen 50 201; accept 43 202; sendmsg 46 211; recvmsg 47 212; sendmmsg 307 269;
socket_inet 41 198 2 1; socket_unix 41 198 1 1; socket_netlink 41 198 16 3; socketpair_datagram 53 199 1 2;
shmget 29 194; shmat 30 196; msgget 68 186; semget 64 190; mq_open 240 180; add_key 248 217; keyctl 250 219;
setuid 105 146; setgid 106 144; setgroups 116 159; setresuid 117 147; capset 126 91; personality 135 92;
setsid 112 157; setpgid 109 154; setpriority 141 140; sched_setaffinity 203 122; sched_setscheduler 144 119;
ioprio_set 251 30; prlimit_of_another 302 261 PID; setrlimit 160 164; mlockall 151 230; remap_file_pages 216 234;
inotify_init1 294 26; fanotify_init 300 262; signalfd4 289 74; timer_create 222 107; timerfd_create 283 85;
splice 275 76; tee 276 77; vmsplice 278 75; lease 72 25 0 1024; set_owner 72 25 0 8 PID; set_signal 72 25 0 10;
seal 72 25 0 1033; type_for_the_terminal 16 29 0 0x5412; set_file_flags 16 29 0 0x40086602;
prctl_death_signal 157 167 1; prctl_dumpable 157 167 4 1; prctl_seccomp 157 167 22 2; prctl_memory_map 157 167 35;
prctl_subreaper 157 167 36 1; prctl_tracer 157 167 0x59616d61 PID; prctl_ambient 157 167 47; modify_ldt 154 -;
init_module 175 105; kexec_load 246 104; swapon 167 224; syslog 103 116; acct 163 89; quotactl 179 60;
sethostname 170 161; settimeofday 164 170; clock_settime 227 112; adjtimex 159 171; vhangup 153 58
"""

PROGRAM = """
import ctypes, json, os, sys
libc, statuses = ctypes.CDLL(None, use_errno=True), {}
for name, number, *arguments in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    values = [ctypes.c_char_p(a.encode()) if isinstance(a, str) else ctypes.c_long(a) for a in arguments]
    result = libc.syscall(number, *values, *[ctypes.c_long(0)] * (6 - len(values)))
    if name in ("fork", "clone", "clone3") and result == 0:
        os._exit(0)
    error = ctypes.get_errno()
    statuses[name] = "held" if result == -1 and error in (1, 38) else f"OPEN {result} {os.strerror(error)}"
print(json.dumps(statuses), flush=True)
"""


def calls_of(pid: int, path: str) -> list[list[object]]:
    """[name, number, arguments …] of the calls that this processor has."""
    column = {"x86_64": 1, "aarch64": 2}[platform.machine()]
    words = {"PID": pid, "PATH": path}
    rows = [entry.split() for entry in CALLS.replace("\n", " ").split(";")]
    return [
        [row[0], int(row[column]), *(words[word] if word in words else int(word, 0) for word in row[3:])]
        for row in rows
        if row[column] != "-"
    ]


def tried(work: str, secret: str) -> dict[str, str]:
    """What each call said in a process confined as programs are, native code at hand."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write_end, 1)
        os.chdir(work)
        confine.limit(1 << 30, 16 << 20, 10)
        argv = [os.path.realpath(sys.executable), "-s", "-S", "-c", PROGRAM, json.dumps(calls_of(os.getppid(), secret))]
        landlock = confine.landlock_version() > 0
        confine.Confinement(work, argv, {"PATH": "/usr/bin:/bin"}, landlock=landlock).enter()
    os.close(write_end)
    with open(read_end) as pipe:
        output = pipe.read()
    os.waitpid(child, 0)
    return json.loads(output)
