"""Manners on a cluster: plans without weights, files fetched first, pages drawn where records change, runs that say how far."""

import os
import subprocess
import sys

import pandas as pd
import pytest
from hydra.types import RunMode

from sdbench import runs
from sdbench.cli import main
from sdbench.cli.command import LISTED
from sdbench.cli.compose import Composer
from sdbench.cli.launch import name_of_job
from sdbench.cli.plan import _hours
from sdbench.engines.job import Models
from sdbench.lm import digests
from sdbench.passes.slurm import name_batch_job
from sdbench.records import Store, read
from sdbench.report.build import Report, WorkedOut
from tests.records.synthetic import write_synthetic

NAME = "micro-gsm8k-tiny"


@pytest.fixture
def no_weights(monkeypatch):
    monkeypatch.setattr(Models, "decoder", property(lambda self: pytest.fail("weights are read")))
    monkeypatch.setattr("sdbench.prepare.pair.load", lambda *_: pytest.fail("weights are read"))


def test_a_plan_names_what_is_held_and_missing_and_reads_no_weights(words, whole, tmp_path, no_weights, capsys):
    assert main([*words(tmp_path, n=3, samples=2), "--plan"]) == 0
    output = capsys.readouterr().out
    assert "5 cells x 3 examples x 2 samples" in output
    assert "held       0   missing      30" in output
    assert "download: nothing" in output
    assert "GiB of weights" in output
    assert "time: not known" in output
    assert not list(tmp_path.iterdir())
    assert main([*words(whole.parent, n=6), "--plan"]) == 0
    output = capsys.readouterr().out
    assert "held      20   missing      10" in output
    assert "lossless K=5" in output
    assert main([*words(whole.parent, n=6), "force=true", "--plan"]) == 0
    assert "held       0   missing      30" in capsys.readouterr().out, "force=true decodes again what is held"


def test_a_listing_whose_reader_has_left_ends_without_a_word():
    """As `--list verifier | head -1` does where head is done first."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "sdbench", "--list", "verifier"], stdout=writer, stderr=-1, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_prefetch_brings_the_files_and_stops(words, tmp_path, no_weights, capsys):
    assert main([*words(tmp_path, n=1), "--prefetch"]) == 0
    assert "are on this machine" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_login_node_without_memory_or_device_plans_and_prefetches(words, tmp_path, no_weights, monkeypatch, capsys):
    """Only the machine that decodes must hold the weights and have the device."""
    monkeypatch.setattr("sdbench.lm.load.free_system_bytes", lambda: 2**10)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ways = {
        "cpu": ("need about 0.0 GiB and cpu has 0.0 GiB free", "does not fit here: "),
        "cuda": (
            "device=cuda is not available on this machine",
            "distributions, for 5 rows, and cuda is not on this machine",
        ),
        "cuda:3": ("device=cuda:3 is not available on this machine", "for 5 rows, and cuda:3 is not on this machine"),
    }
    for device, (refusal, line) in ways.items():
        options = words(tmp_path, n=1, device=device)
        assert main(options) == 2
        assert refusal in capsys.readouterr().err
        assert main([*options, "--prefetch"]) == 0
        assert main([*options, "--plan"]) == 0
        output = capsys.readouterr().out
        assert "are on this machine" in output
        assert line in output
        assert (refusal in output) == (device == "cpu")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("group", LISTED)
def test_the_files_of_a_group_are_listed_with_a_line_each(group, capsys):
    assert main(["--list", group]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines if not line.startswith("none"))


def test_an_unknown_group_is_one_sentence(capsys):
    assert main(["--list", "modle"]) == 2
    assert "did you mean model?" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_is_drawn_where_records_have_changed_and_left_out_where_asked(words, tmp_path, monkeypatch, capsys):
    drawn = []

    def write(worked_out: WorkedOut) -> Report:
        drawn.append(worked_out.home)
        (worked_out.home / "report.html").write_text("a page")
        return Report(worked_out.home / "report.html", (), ())

    monkeypatch.setattr("sdbench.report.write", write)
    given = {"w": 0.3, "max_new_tokens": 4}
    assert main([*words(tmp_path, n=1, **given), "report=off"]) == 0
    assert not drawn
    assert "report:" not in capsys.readouterr().out
    for options, num_drawn in (({"n": 1}, 1), ({"n": 1}, 1), ({"n": 2}, 2), ({"n": 2}, 2), ({"n": 2, "margin": 2}, 3)):
        assert main(words(tmp_path, **options, **given)) == 0
        assert len(drawn) == num_drawn


@pytest.mark.slow
def test_of_two_jobs_that_end_together_the_page_of_both_remains(words, tmp_path, monkeypatch):
    """The second job decodes, draws its page and ends while the first one draws."""
    drawn = []

    def write(worked_out: WorkedOut) -> Report:
        drawn.append(sorted(worked_out.summaries[0]["w"].dropna()))
        if len(drawn) == 1:
            assert main(words(tmp_path, n=1, w=0.7, max_new_tokens=4)) == 0
        page = worked_out.home / "report.html"
        page.write_text("a page")
        worked_out.summaries[0].to_csv(worked_out.home / "summary.csv", index=False)
        return Report(page, (), ())

    monkeypatch.setattr("sdbench.report.write", write)
    assert main(words(tmp_path, n=1, w=0.3, max_new_tokens=4)) == 0
    assert drawn == [[0.3], [0.3, 0.7], [0.3, 0.7]]
    (folder,) = tmp_path.iterdir()
    assert set(pd.read_csv(folder / "summary.csv")["w"].dropna()) == {0.3, 0.7}
    assert main(words(tmp_path, n=1, w=0.3, max_new_tokens=4)) == 0
    assert len(drawn) == 3, "the page shows what the records hold"


@pytest.mark.slow
def test_a_plan_hashes_no_weights_where_nothing_is_held_and_a_run_does_once(
    words, tmp_path, monkeypatch, capsys, no_figures
):
    hashed, digest_of_file = [], digests.digest_of_file
    monkeypatch.setattr(digests, "LARGE", 10_000)
    monkeypatch.setattr(digests, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(
        digests, "digest_of_file", lambda path, **o: hashed.append(path.name) or digest_of_file(path, **o)
    )
    given = words(tmp_path, n=1, w=0.3)
    assert main([*given, "--plan"]) == 0
    assert "model.safetensors" not in hashed
    for _ in range(2):
        assert main(given) == 0
        assert hashed.count("model.safetensors") == 2, "target and draft, once"
    capsys.readouterr()
    assert main([*given, "--plan"]) == 0
    assert "held       4   missing       0" in capsys.readouterr().out
    assert hashed.count("model.safetensors") == 2


def test_runs_say_how_far_they_are_and_who_is_at_work(whole, words, tmp_path, capsys, no_figures):
    assert runs.COMMAND([str(whole.parent)]) == 0
    line = capsys.readouterr().out
    assert line.startswith(NAME)
    assert "held       20   missing        0   failed   0   at work: nobody" in line
    with Store.open(tmp_path / "mine", provenance={"planned": {"cells": ["a", "b"], "examples": 3, "samples": 2}}):
        assert runs.COMMAND([str(tmp_path)]) == 0
        line = capsys.readouterr().out
    assert "held        0   missing       12" in line
    assert line.strip().endswith(str(os.getpid()))
    assert runs.COMMAND([str(tmp_path / "nothing")]) == 2
    assert "there is no results folder" in capsys.readouterr().err


def test_a_cancelled_job_is_named_by_its_pair_and_task():
    lines = [["model=a", "task=x"], ["model=b", "task=x"]]
    error = RuntimeError("Job 17_1 (task: 0) with path /a/b\nhas not produced any output (state: CANCELLED)")
    assert name_of_job(error, lines) == ": model=b task=x"
    assert name_of_job(RuntimeError("Job 17 (task: 0) has"), lines[:1]) == ": model=a task=x"
    assert name_of_job(RuntimeError("no room"), lines) == ""
    assert name_of_job(RuntimeError("Job 4711 (task: 0) with path"), lines) == "", (
        "the number of a process on this machine"
    )


@pytest.mark.parametrize(("code", "says"), [(0, ""), (1, "Slurm does not name this job sdbench-a-x: no such job")])
def test_a_batch_job_gets_the_name_of_its_pair_and_task(tmp_path, monkeypatch, capsys, code, says):
    """On a real Slurm in tests/cluster; here a program of the same name notes what it is told."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/told\necho no such job >&2\nexit {code}\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("ENVIRONMENT", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    name_batch_job("sdbench-a-x")
    assert not (tmp_path / "told").exists(), "no batch job, no name"
    monkeypatch.setenv("ENVIRONMENT", "BATCH")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    name_batch_job("sdbench-a-x")
    assert (tmp_path / "told").read_text().split() == ["update", "JobId=17", "JobName=sdbench-a-x"]
    assert says in capsys.readouterr().err
    for array, wanted in (("17", "17_3"), ("12", "17")):  # one task has the id of the whole array, the others their own
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", array)
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
        name_batch_job("sdbench-a-x")
        assert (tmp_path / "told").read_text().split() == ["update", f"JobId={wanted}", "JobName=sdbench-a-x"]


@pytest.mark.parametrize("given", ["8", ""])
def test_the_script_of_a_slurm_job_passes_its_cpus_on_to_srun(given):
    """By a variable, which is not set where the user gives no number: srun refuses an empty one."""
    (words,) = Composer().compose(["hydra/launcher=slurm"], mode=RunMode.MULTIRUN).hydra.launcher.setup
    script = f"{words}\nenv | grep ^SRUN_CPUS_PER_TASK="
    env = {"PATH": os.environ["PATH"], **({"SLURM_CPUS_PER_TASK": given} if given else {})}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"SRUN_CPUS_PER_TASK={given}\n" if given else "", "")


def test_an_answer_to_another_prompt_is_not_taken(words, tmp_path, monkeypatch, capsys, no_figures):
    given = words(tmp_path, n=1, w=0.3, max_new_tokens=4)
    assert main(given) == 0
    monkeypatch.setattr("sdbench.records.Store.prompts", lambda self, asked: dict.fromkeys(["0", "1"], "another"))
    before = len(read(tmp_path / NAME).generations)
    assert main(given) == 2
    assert "was recorded with another prompt" in capsys.readouterr().err
    assert len(read(tmp_path / NAME).generations) == before


def test_a_plan_counts_the_hours_of_what_is_missing_at_the_pace_that_was_timed(tmp_path):
    results = read(write_synthetic(tmp_path / "timed", n=4, ws=(0.5,), timing_examples=2))
    timings = results.timings[~results.timings["is_split"].astype(bool)]
    cell = timings["cell"].iloc[0]
    own = timings[timings["cell"] == cell]
    wanted = 50_000 * float((own["prefill_s"] + own["decode_s"]).mean()) / 3600
    assert wanted > 0.05, "or it would be rounded away"
    assert (
        _hours(results, {cell: 50_000})
        == f"at most {wanted:.2f} h on a machine like that of the latency pass, one text at a time; batches take less"
    )
    assert _hours(results, {cell: 0}) == "nothing to decode"
    assert _hours(None, {cell: 1}) == "not known; run with n=4 first to measure it"
    assert (
        _hours(None, {cell: 1}, is_timed=False) == "not known; run with n=4 and without timing=off first to measure it"
    )
