"""Nothing gets out of the sandbox, nobody passes without reaching the end, and each end has its own name."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sdbench.tasks import sandbox as package
from sdbench.tasks.sandbox import PROVES, Program, Sandbox, SandboxError, pool

HERE = Path(__file__).parent
ORDINARY = "/usr/bin/python3"  # an interpreter that every user may execute


@pytest.fixture
def open_folder():
    """A folder that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def attack(
    open_folder: Path, backend: str, *, interpreter: str = sys.executable, user: str | None = None
) -> dict[str, str]:
    """Runs attacks.py in its own process, beside a copy of the package that the user may read."""
    shutil.copytree(Path(package.__file__).parent, open_folder / "sandbox")
    for path in (open_folder / "sandbox").glob("*.py"):
        path.write_text(path.read_text().replace("sdbench.tasks.sandbox", "sandbox"))
    for name in ("attacks.py", "raw_calls.py"):
        shutil.copy(HERE / name, open_folder)
    subprocess.run(["chmod", "-R", "a+rX", str(open_folder)], check=True)
    done = subprocess.run(
        [interpreter, str(open_folder / "attacks.py"), backend],
        capture_output=True,
        text=True,
        check=False,
        cwd=open_folder,
        user=user,
        group=user and "nogroup",
        extra_groups=[] if user else None,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent" if user else os.environ.get("HOME", "/")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def closed(statuses: dict[str, str]) -> None:
    assert set(PROVES) <= set(statuses["proved"].split())
    leaks = {name: status for name, status in statuses.items() if status.startswith("OPEN")}
    assert not leaks, leaks
    assert statuses["memory"] == "memory"
    assert statuses["deaf_loop"] == "timeout"


def test_no_attack_gets_out_of_the_kernel_backend(open_folder):
    closed(attack(open_folder, "kernel"))


needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None,
    reason="bubblewrap is not installed (scripts/system_packages does it): sdbench then uses the kernel backend, attacked above",
)


@pytest.mark.slow
@needs_bwrap
def test_no_attack_gets_out_of_kernel_and_bubblewrap(open_folder):
    closed(attack(open_folder, "bwrap"))


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() == 0 and not Path(ORDINARY).exists(),
    reason=f"root's own interpreter may stand where nobody else may go, and there is no {ORDINARY} instead",
)
def test_no_attack_of_an_ordinary_user_gets_out(open_folder):
    is_root = os.geteuid() == 0
    closed(attack(open_folder, "kernel", **({"interpreter": ORDINARY, "user": "nobody"} if is_root else {})))


@pytest.fixture(scope="module")
def jail():
    sandbox = Sandbox("kernel")
    yield sandbox
    sandbox.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("assert sorted([2, 1]) == [1, 2]", "passed"),
        ("assert False", "failed"),
        ("def (", "failed"),
        ("x = [0] * (1 << 28)", "memory"),
        ("while True: pass", "timeout"),
        ("import os\nos.abort()", "crash"),
        ("import ctypes", "failed"),
        ("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()", "passed"),
        ("import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and f(n - 1)\nf(10_000)", "passed"),
        ("print('\\ud800')", "failed"),
    ],
)
def test_each_end_has_its_own_name(jail, program, status):
    outcome = jail.run([program])[0]
    assert outcome.status == status, outcome


def test_a_signal_without_a_name_is_a_crash_and_ends_no_worker():
    sandbox = Sandbox("rlimit")
    try:
        outcome = sandbox.run(["import os\nos.kill(os.getpid(), 40)"])[0]
    finally:
        sandbox.close()
    assert (outcome.status, outcome.detail) == ("crash", "signal 40")


def test_the_last_output_of_a_program_is_kept(jail):
    assert "ValueError: why" in jail.run(["raise ValueError('why')"])[0].detail


def test_many_programs_pass_every_time(jail):
    assert {outcome.status for outcome in jail.run(["assert 1"] * 60)} == {"passed"}


@pytest.mark.parametrize(
    "program",
    [
        "import os\nf = []\nwhile True:\n    f.append(open('x', 'wb')); os.unlink('x'); f[-1].write(b'x' * (9 << 20))",
        "i = 0\nwhile True:\n    open(str(i), 'wb').write(b'x' * (9 << 20)); i += 1",
    ],
)
def test_files_count_together_with_a_name_and_without(jail, program):
    assert jail.run([program])[0].detail == f"wrote more than {pool.DISK_BYTES} bytes"


@pytest.mark.parametrize(
    "program", ["import ctypes", "try:\n    import _testcapi\nexcept ImportError:\n    raise OSError"]
)
def test_hidden_modules_are_missing_and_whoever_insists_tampers(jail, program):
    missing, insisted = jail.run(
        [program, f"import sys\nfor n in ('ctypes', '_testcapi'): del sys.modules[n]\n{program}"]
    )
    assert missing.detail.startswith(("ModuleNotFoundError", "OSError"))
    assert insisted.detail == "tampering: import"


@pytest.mark.parametrize(
    "program",
    [
        "import doctest\ndef f():\n    '''\n    >>> f()\n    1\n    '''\n    return 1\ndoctest.testmod()",
        "import doctest\ndef f():\n    '''\n    >>> f()\n    1\n    '''\ndoctest.run_docstring_examples(f, globals())",
        "import sys\nsys.settrace(None)\nsys.setprofile(None)",
        "import gc\nclass A: pass\na = A()\nassert any(x is a for x in gc.get_objects())",
        "import gc\ngc.collect()\ngc.disable()\ngc.enable()",
        "import collections, inspect\nassert inspect.getsource(collections.OrderedDict).startswith('class')",
        "import inspect\ndef f(): pass\ntry:\n    inspect.getsource(f)\nexcept OSError: pass",
        "import inspect\nassert inspect.stack()[0].function == '<module>'",
        "import unittest\nunittest.TextTestRunner().run(unittest.TestSuite())",
        "if __name__ == '__main__':\n    raise SystemExit(1)",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nassert A(1).x == 1",
    ],
)
def test_what_honest_programs_do_is_no_tampering(jail, program):
    assert jail.run([program])[0].status == "passed"


def test_a_real_trace_is_tampering_still(jail):
    assert jail.run(["import sys\nsys.settrace(print)"])[0].detail == "tampering: sys.settrace"


NUMPY_WRITES = """
import os, numpy
place = os.path.dirname(numpy.__file__)
for path in (place, os.path.realpath(place)):
    for name in ("left", "__init__.py"):
        try: open(os.path.join(path, name), "a").write("x")
        except OSError: continue
        raise SystemExit("written")
"""


@pytest.mark.parametrize("backend", ["kernel", pytest.param("bwrap", marks=needs_bwrap)])
def test_numpy_may_be_imported_and_not_written_and_nothing_stands_beside_it(backend):
    programs = [
        "import numpy\nassert numpy.linalg.det(numpy.eye(3)) == 1",
        NUMPY_WRITES,
        "import os, numpy\nassert set(os.listdir(os.path.dirname(os.path.dirname(numpy.__file__)))) <= {'numpy', 'numpy.libs'}",
        "import torch",
    ]
    with Sandbox(backend) as sandbox:
        *numpy, other = sandbox.run(programs)
        assert sandbox.record()["sandbox_packages"] == ["numpy"]
    assert {outcome.status for outcome in numpy} == {"passed"}, numpy
    assert other.detail.startswith("ModuleNotFoundError: No module named 'torch'")


def test_a_full_machine_turns_no_right_program_wrong():
    """A quarter of a processor: four times the program's time passes, three of them in the queue."""
    busy = [sys.executable, "-c", "while True: pass"]
    processors = {min(os.sched_getaffinity(0))}
    others = [subprocess.Popen(busy, start_new_session=True) for _ in range(3)]
    try:
        with Sandbox("kernel", timeout_s=0.6, workers=1) as sandbox:
            for pid in (sandbox._workers[0].process.pid, *(other.pid for other in others)):
                os.sched_setaffinity(pid, processors)
            program = "import time\nwhile time.process_time() < {}: pass"
            right, endless, asleep = sandbox.run(
                [program.format(0.4), program.format(99), "import time\ntime.sleep(99)"]
            )
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert (right.status, endless.status, asleep.status) == ("passed", "timeout", "timeout")


def test_auto_takes_what_is_proved():
    with Sandbox() as sandbox:
        assert set(PROVES) <= set(sandbox.proved)
        assert sandbox.backend in ("bwrap", "kernel")


def test_rlimit_and_none_are_never_chosen_and_prove_less():
    for backend in ("rlimit", "none"):
        with Sandbox(backend) as sandbox:
            assert not set(PROVES) <= set(sandbox.proved)


def test_without_a_backend_that_holds_it_refuses_and_says_what_to_do(monkeypatch):
    monkeypatch.setattr(pool, "START", "raise OSError('no such thing here')")
    with pytest.raises(
        SandboxError, match=r"no such thing here.*install bubblewrap.*task.sandbox=rlimit and task.sandbox=none"
    ):
        Sandbox()


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="sandbox must be one of auto"):
        Sandbox("docker")


def test_a_worker_that_could_not_be_restarted_is_restarted_for_the_next_program(monkeypatch):
    """It was put back as idle with closed pipes, and failed all programs that it was given from then on."""
    with Sandbox("none", workers=1) as sandbox:
        (worker,) = sandbox._workers
        start, tries = worker._start, []

        def fail_once():
            tries.append(1)
            if len(tries) == 1:
                raise SandboxError("no memory")
            return start()

        monkeypatch.setattr(worker, "_start", fail_once)
        worker.process.kill()
        with pytest.raises(SandboxError, match=r"^no memory$"):
            sandbox.run(["x = 1"])
        assert [outcome.status for outcome in sandbox.run(["x = 1", "assert 0"])] == ["passed", "failed"]
        assert len(tries) == 2


PATCHES = "import builtins, math\nbuiltins.abs = builtins.len = builtins.all = lambda *a: 0\n"


@pytest.mark.parametrize(
    ("code", "tests", "status"),
    [
        (f"{PATCHES}def f(x):\n    return x", "assert abs(f(3)) == 0", "failed"),
        (f"def f(x):\n    {PATCHES.replace(chr(10), ';')[:-1]}\n    return x", "f(1)\nassert abs(f(3)) == 0", "failed"),
        ("def f(x): return x\ndef check(c): pass", "def check(c):\n    assert c(1) == 2\ncheck(f)", "failed"),
        ("import sys\ndef f(x): sys.exit(0)", "assert f(1) == 2", "failed"),
        ("def f(x):\n    return abs(x)", "assert f(-3) == 3 and len([f(1)]) == 1", "passed"),
        ("def g(x): return x\ndef f(x): return g(x)", "assert g(f(2)) == 2", "passed"),
    ],
)
def test_tests_kept_apart_have_names_and_builtins_that_a_solution_cannot_patch(jail, code, tests, status):
    assert jail.run([Program(code, tests)])[0].status == status


def test_outcomes_are_counted_apart_and_recorded():
    with Sandbox("kernel", timeout_s=0.5, workers=1) as sandbox:
        sandbox.run(["x = 1", "assert 0", "while True: pass", "x = bytearray(2 << 30)", "import os; os.abort()"])
        record = sandbox.record()
    assert sandbox.counts == {"passed": 1, "failed": 1, "timeout": 1, "memory": 1, "crash": 1}
    assert (record["sandbox"], record["is_contained"]) == ("kernel", True)
    assert set(PROVES) <= set(record["sandbox_proved"])
    assert "seccomp" in record["sandbox_layers"]


def test_a_killed_run_takes_its_workers_and_programs_along(tmp_path):
    script = (
        "import sys\nfrom sdbench.tasks.sandbox import Sandbox\ns = Sandbox('kernel', timeout_s=60)\n"
        "s.submit('while True: pass')\nprint(s._home, flush=True)\nsys.stdin.read()"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    home = run.stdout.readline().strip()

    def leftovers() -> list[str]:
        names = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_text() + (entry / "environ").read_text()
            except OSError:
                continue
            names += [entry.name] if home in words else []
        return names

    assert leftovers()
    run.kill()
    run.communicate()
    deadline = time.monotonic() + 30
    while leftovers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not leftovers()
    shutil.rmtree(home, ignore_errors=True)


def test_programs_that_have_not_begun_are_given_up_after_an_interrupt(monkeypatch):
    jail = package.Sandbox(backend="none", timeout_s=5, workers=1)
    started = []

    def run(program):
        started.append(program)
        if len(started) == 2:
            raise KeyboardInterrupt
        time.sleep(0.05)

    monkeypatch.setattr(jail, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        jail.run([f"x = {number}" for number in range(50)])
    jail._threads.shutdown(wait=True)
    assert len(started) < 10
