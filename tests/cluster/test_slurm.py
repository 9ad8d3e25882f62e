"""A sweep on a real single-node Slurm: a job killed, one preempted, one failing; then again, and nothing is missing."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.records.equality import assert_same_records

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "scripts" / "slurm_local.sh"
sys.path.insert(0, str(ROOT / "tests" / "run"))

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") is None,
        reason="slurmctld is not installed: apt-get install -y --no-install-recommends slurm-wlm munge",
    ),
]

TASKS = ("gsm8k-tiny", "wmt-tiny", "xsum-tiny", "late")
LAUNCHER = [
    *("hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=20"),
    *("hydra.launcher.signal_delay_s=20",),
]


@pytest.fixture
def slurm(tmp_path):
    """Environment variables of a throw-away cluster."""
    state = {**os.environ, "SLURM_LOCAL_STATE": str(tmp_path / "slurm"), "SLURM_LOCAL_CPUS": "4"}
    subprocess.run(["bash", str(SLURM), "start"], env=state, check=True, timeout=120)
    lines = subprocess.run(["bash", str(SLURM), "env"], env=state, check=True, capture_output=True, text=True).stdout
    shown = subprocess.run(
        ["bash", "-c", f"{lines}\nenv -0"], env=state, check=True, capture_output=True, text=True
    ).stdout
    yield dict(entry.split("=", 1) for entry in shown.split("\0") if "=" in entry)
    subprocess.run(["bash", str(SLURM), "stop"], env=state, check=False, timeout=120)


@pytest.fixture
def configs(tmp_path):
    """Two micro pairs, and a task whose data are not there yet."""
    from tests.cli.micro import save_pair

    folder = tmp_path / "conf"
    (folder / "model").mkdir(parents=True)
    (folder / "task").mkdir()
    pair = save_pair(tmp_path / "micro")
    for name in ("one", "two"):
        text = f"defaults: [llama-tiny, _self_]\nname: {name}\ntarget: {pair}/target\ndraft: {pair}/draft\n"
        (folder / "model" / f"{name}.yaml").write_text(text)
    late = f"defaults: [gsm8k-tiny, _self_]\nname: late\ndata: {tmp_path}/late.jsonl\n"
    (folder / "task" / "late.yaml").write_text(late)
    return folder


def sweep(configs: Path, results: Path, *more: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    words = ["-m", "--config-dir", str(configs), "model=one,two", f"task={','.join(TASKS)}", f"results={results}"]
    words += ["w=[0.3,0.7]", "n=20", "max_new_tokens=48", "timing=off", "dtype=float64", "device=cpu", *more]
    command = [sys.executable, "-m", "sdbench", *words]
    env = {**(env or os.environ), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def queue(env: dict[str, str], *options: str) -> dict[str, str]:
    """Waiting and running jobs: place in the array -> id. A place stops being known when another of its array is requeued."""
    command = ["squeue", "-h", "-r", "-o", "%K %A", *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())  # pyright: ignore[reportArgumentType]


def facts(env: dict[str, str], job: str) -> dict[str, str]:
    """What Slurm knows of a job."""
    done = subprocess.run(["scontrol", "-o", "show", "job", job], env=env, capture_output=True, text=True, check=True)
    return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)


def until(condition, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def signal_at_work(env: dict[str, str], results: Path, victims: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Sends each job (its place in the array -> its folder, a signal) the signal once it has begun; place -> id.

    One after the other, the requeued last: for a while Slurm does not find the ids of an array one of which is requeued.
    """
    ids: dict[str, str] = {}

    def are_running() -> bool:
        ids.update(queue(env, "--states=RUNNING"))
        return set(victims) <= set(ids)

    until(are_running, 600, "the jobs to run")
    for place, (name, signal) in victims.items():
        until(lambda name=name: list((results / name / "records").glob("run-*")), 600, f"{name} to begin")
        command = ["scancel", "--signal", signal, ids[place]]
        # A job that has just begun, or begun again, cannot be signalled for some seconds: Slurm says "try again later".
        until(lambda command=command: subprocess.run(command, env=env).returncode == 0, 120, "Slurm to take the signal")
    return ids


def write_late(folder: Path) -> None:
    import json

    from sdbench import embedded

    rows = embedded.rows("gsm8k-tiny", "test", 40)
    (folder / "late.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_each_task_of_an_array_has_a_name_of_its_own(tmp_path, slurm):
    """The last one has the id of the whole array."""
    lines = ["import os, time", "from sdbench.passes.slurm import name_batch_job"]
    lines += ["time.sleep(int(os.environ['SLURM_ARRAY_TASK_ID']))"]  # the last one is named last
    lines += ["name_batch_job('sdbench-' + os.environ['SLURM_ARRAY_TASK_ID'])", "time.sleep(60)"]
    (tmp_path / "task.py").write_text("\n".join(lines))
    script = f"#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} {tmp_path}/task.py\n"
    options = ["--array=0-1", "--ntasks=1", "--output=/dev/null", "--parsable"]
    done = subprocess.run(["sbatch", *options], input=script, env=slurm, capture_output=True, text=True, check=True)

    def names() -> list[str]:
        shown = subprocess.run(["squeue", "-h", "-r", "-o", "%K %j"], env=slurm, capture_output=True, text=True)
        return sorted(shown.stdout.splitlines())

    until(lambda: "1 sdbench-1" in names(), 60, "the last task to be named")
    assert names() == ["0 sdbench-0", "1 sdbench-1"]
    subprocess.run(["scancel", done.stdout.strip()], env=slurm, check=True)


@pytest.mark.timeout(3000)
def test_a_sweep_with_a_killed_a_preempted_and_a_failing_job_completes_on_resubmission(tmp_path, configs, slurm):
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    first = sweep(configs, broken, *LAUNCHER, env=slurm)
    ids = signal_at_work(slurm, broken, {"1": ("one-wmt-tiny", "KILL"), "2": ("one-xsum-tiny", "USR2")})
    output = first.communicate(timeout=1200)[0]
    assert first.returncode == 1, output
    until(lambda: not queue(slurm), 1200, "the queue to empty")
    assert facts(slurm, ids["1"])["JobState"] != "COMPLETED"
    assert facts(slurm, ids["1"])["JobName"] == "sdbench-one-wmt-tiny"
    # It may fail as it begins again: Slurm has been seen to repeat the signal before submitit listens.
    assert int(facts(slurm, ids["2"])["Restarts"]) >= 1
    assert not (broken / "two-late").exists(), "its rows are not there yet"
    write_late(tmp_path)
    second = sweep(configs, broken, *LAUNCHER, env=slurm)
    output = second.communicate(timeout=1200)[0]
    assert second.returncode == 0, output
    local = sweep(configs, whole)
    output = local.communicate(timeout=1200)[0]
    assert local.returncode == 0, output
    names = sorted(path.name for path in whole.iterdir() if not path.name.startswith("."))
    assert len(names) == 8
    for name in names:
        assert_same_records(broken / name, whole / name)
