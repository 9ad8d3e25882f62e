"""How a command ends: done, with failed cells, without room, interrupted. What was finished is kept, and one sentence says so."""

import os
import re
import resource
import shlex
import signal
import subprocess
import sys

import pytest
import torch
from nursery import wait_for_a_part

from sdbench.cli import main
from sdbench.config import ConfigError
from sdbench.engine.loop import BatchRun
from sdbench.records import StoreError, read
from tests.records.equality import assert_same_records

NAME = "micro-gsm8k-tiny"
pytestmark = pytest.mark.usefixtures("no_figures")


def start(words: list[str], **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sdbench", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, **options)


BROKEN = """
from dataclasses import dataclass
from sdbench.verify import Exact

@dataclass(frozen=True)
class Broken(Exact):
    level: float = 0.5

    def __call__(self, evidence, u, state=None):
        if float(__import__("torch").as_tensor(self.level).max()) > 0.7:
            raise RuntimeError("this level is broken")
        return super().__call__(evidence, u, state)
"""
BROKEN_YAML = "name: broken\n_target_: broken_rule.Broken\nlevel: [0.5, 0.9]\nknobs:\n  level: {low: 0, high: 1}\n"


def test_a_failing_cell_is_named_and_the_others_are_kept(words, tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_rule.py").write_text(BROKEN)
    (tmp_path / "conf" / "verifier").mkdir(parents=True)
    (tmp_path / "conf" / "verifier" / "broken.yaml").write_text(BROKEN_YAML)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = [word for word in words(tmp_path / "results", n=2) if not word.startswith("w=")]
    assert main([*given, "verifier=broken", "--config-dir", str(tmp_path / "conf")]) == 1
    message = capsys.readouterr().err
    assert "failed: broken" in message
    assert "this level is broken" in message
    frame = read(tmp_path / "results" / NAME).generations
    assert frame.groupby("verifier").size().to_dict() == {"broken": 2, "draft": 2, "lossless": 2, "target": 2}


def spoil(monkeypatch, examples: set[str] | None) -> list[int]:
    """Make the target's laws of these examples NaN (None: of all). Returns a list that gets the number of rows of each round."""
    score, rounds = BatchRun._score, []

    def with_nan(self, batch, draft):
        rounds.append(len(batch.rows))
        evidence, ids = score(self, batch, draft)
        for slot, row in enumerate(batch.rows):
            if examples is None or row.request.key in examples:
                evidence.p[slot] = torch.nan
        return evidence, ids

    monkeypatch.setattr(BatchRun, "_score", with_nan)
    return rounds


def test_a_prompt_with_nan_logits_fails_by_its_id_and_the_others_are_decoded(words, tmp_path, monkeypatch):
    """Its batch ends with it. The others were neither decoded then nor by the same command again."""
    given = words(tmp_path, w=0.3, n=6)
    with monkeypatch.context() as patch:
        spoil(patch, {"2"})
        assert main(given) == 1
    results = read(tmp_path / NAME)
    assert results.generations.groupby("cell").size().to_dict() == dict.fromkeys(results.cells["cell"], 5)
    failures = {problem.name: problem.message for problem in results.problems}
    assert set(failures) == {f"{cell}, example 2" for cell in results.cells["cell"]}
    assert all("logits are NaN at prompt 2: " in message for message in failures.values())
    assert main(given) == 0
    assert len(read(tmp_path / NAME).generations) == 6 * len(results.cells)


def test_a_model_with_nan_logits_everywhere_fails_after_a_few_prompts(words, tmp_path, monkeypatch):
    rounds = spoil(monkeypatch, None)
    assert main(words(tmp_path, w=0.3, n=8)) == 1
    results = read(tmp_path / NAME)
    assert results.generations.empty
    assert set(results.cells["cell"]) <= {problem.name for problem in results.problems}
    assert len(rounds) <= 3 + len(results.cells) * 5, "a round for each of three streams, then five attempts a cell"


def test_a_place_that_cannot_be_written_is_one_sentence(words, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(words(tmp_path / "file")) == 1
    message = [line for line in capsys.readouterr().err.splitlines() if "cannot write" in line]
    assert len(message) == 1


def test_a_report_that_cannot_be_written_is_one_sentence_too(words, tmp_path, capsys):
    (tmp_path / NAME / "summary.csv").mkdir(parents=True)
    assert main(words(tmp_path, n=1, w=0.3, max_new_tokens=4)) == 1
    message = [line for line in capsys.readouterr().err.splitlines() if "cannot write" in line]
    assert len(message) == 1
    assert len(read(tmp_path / NAME).generations) == 4


def test_a_run_with_force_that_ends_early_names_a_command_that_goes_on(words, tmp_path, capsys, monkeypatch):
    """The same words would decode everything once more."""
    given = [*words(tmp_path, n=2, max_new_tokens=4), "force=true"]
    assert main(given) == 0

    def ends(error: BaseException) -> str:
        def end(*_: object) -> None:
            raise error

        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr("sdbench.passes.finish.finish", end)  # all texts are there
            main(given)
        return capsys.readouterr().err.splitlines()[-1]

    message = ends(StoreError("the disk is full; the same command goes on"))
    assert message.endswith("the same command goes on (without force=true, which decodes everything once more)")
    assert (
        ends(ConfigError("the server is busy"))
        == "sdbench: continue without force=true, which decodes everything once more"
    )
    again = ends(KeyboardInterrupt()).partition("continue with: ")[2]
    assert "force=true" not in again
    assert main(shlex.split(again)[3:]) == 0
    assert "nothing to decode" in capsys.readouterr().err


def test_a_part_that_this_command_does_not_remake_is_not_said_to_be_remade(words, tmp_path, capsys):
    assert main(words(tmp_path, n=1, w=0.3, max_new_tokens=4)) == 0
    (broken,) = (tmp_path / NAME / "records").glob("generations-*")
    broken.write_bytes(b"")
    capsys.readouterr()
    assert main(words(tmp_path, n=1, w=0.7, max_new_tokens=4)) == 0
    output = capsys.readouterr().err
    assert f"{broken.name} was damaged and was renamed to .torn-{broken.name}: run the commands" in output
    assert f"sdbench: missing: .torn-{broken.name}: " in output
    assert main(words(tmp_path, n=1, w=0.3, max_new_tokens=4)) == 0
    assert ".torn-" not in capsys.readouterr().err
    assert read(tmp_path / NAME).problems == ()


@pytest.mark.slow
def test_a_disk_that_fills_during_a_run_costs_nothing_written_and_the_same_command_goes_on(
    words, nursery, tmp_path, whole
):
    """No file may grow beyond 6 kB, as where the disk has no more room: small files are written, a part is not."""
    assert main(words(tmp_path, n=2)) == 0
    pid = nursery.start(words(tmp_path))
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (6_000, 6_000))
    code, output = nursery.ended(), nursery.said.read_text()
    assert code == 1, output
    assert "Traceback" not in output
    sentences = [line for line in output.splitlines() if "cannot write" in line]
    assert len(sentences) == 1
    assert "the same command goes on" in sentences[0]
    assert len(read(tmp_path / NAME).generations) == 2 * 5
    assert main(words(tmp_path)) == 0
    assert_same_records(tmp_path / NAME, whole)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "a closed terminal"])
def test_an_interrupt_keeps_what_is_done_and_the_command_it_names_goes_on(how, words, nursery, tmp_path):
    options = {"n": 16, "max_new_tokens": 24, "report": "off"}
    pid = nursery.start(words(tmp_path / "cut", **options))
    wait_for_a_part(tmp_path / "cut" / NAME, "", pid)
    os.kill(pid, how)
    assert nursery.ended() == 130, nursery.said.read_text()
    output = nursery.said.read_text()
    assert "Traceback" not in output
    held = len(read(tmp_path / "cut" / NAME).generations)
    assert 0 < held < 5 * 16
    (again,) = re.findall("continue with: (.*)", output)
    assert main(shlex.split(again)[3:]) == 0
    assert main(words(tmp_path / "calm", **options)) == 0
    assert_same_records(tmp_path / "cut" / NAME, tmp_path / "calm" / NAME)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "a closed terminal"])
def test_the_scorers_leave_an_interrupt_to_the_command(how, words, tmp_path):
    """A terminal sends it to the whole group: before a record is there, between two, or after the last."""

    def foreground() -> None:
        signal.signal(how, signal.SIG_DFL)

    job = start(words(tmp_path, n=20), start_new_session=True, preexec_fn=foreground)
    assert job.stderr is not None
    assert "examples, to" in job.stderr.readline()
    os.killpg(job.pid, how)
    output = job.communicate(timeout=300)[1]
    assert job.returncode == 130, output
    assert "Traceback" not in output
