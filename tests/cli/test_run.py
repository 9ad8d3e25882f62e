"""The whole command on a micro pair: what is missing is computed, nothing else, whatever happened before."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from scripts.tiny.pairs import MAX_LENGTH
from sdbench import tasks
from sdbench.cli import main
from sdbench.engines.native import timing
from sdbench.lm.capture import CapturedSteps
from sdbench.records import read
from sdbench.records.claims import Claims
from sdbench.records.processes import kernel_boot
from tests.records.equality import assert_same_records

SUMMARY = [
    *("model", "task", "verifier", "w", "num_draft", "temperature", "n", "acceptance", "acceptance_low"),
    *("acceptance_high", "acceptance_expected", "block_acceptance", "tokens_per_round", "bias", "metric", "quality"),
    *("quality_low", "quality_high", "tokens_per_s", "speedup", "speedup_low", "speedup_high"),
]
NAME = "micro-gsm8k-tiny"


def command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "sdbench", *words]


def test_a_run_leaves_a_summary_of_every_cell_and_baseline(whole):
    frame = pd.read_csv(whole / "summary.csv")
    assert set(SUMMARY) <= set(frame.columns)
    assert sorted(frame["verifier"]) == ["draft", "ensemble", "ensemble", "lossless", "target"]
    assert set(frame["n"]) == {4}
    assert frame.loc[frame["verifier"].isin(["target", "draft"]), "w"].isna().all()
    drafted = frame[frame["verifier"].isin(["ensemble", "lossless"])]
    assert drafted["acceptance"].between(0, 1).all()


def test_records_say_what_ran(whole):
    results = read(whole)
    entry = next(iter(results.provenance.values()))  # other tests may have run the same command again
    assert entry["checkpoints"]["target"].startswith("sha256:")
    assert "weight of the target" in entry["w"]
    assert entry["versions"]["torch"]
    assert {"accelerate", "bitsandbytes", "torchao", "flash-attn"} <= set(entry["versions"])
    assert set(entry["planned"]["cells"]) == set(results.cells["cell"])
    assert entry["dataset_commit"] is None, "no rows of the hub"
    assert results.config["command"].startswith("python -m sdbench ")


def test_token_texts_join_to_the_texts(whole):
    results = read(whole)
    assert list(results.vocabulary) == ["micro"]
    for ids, text in zip(results.tokens["ids"], results.generations["text"], strict=True):
        pieces = "".join(results.vocabulary["micro"][i] for i in ids).removesuffix("<|end|>")
        assert ascii_of(pieces) == ascii_of(text)  # a token is a byte here: other letters are several


def test_records_hold_what_was_asked(whole):
    results = read(whole)
    assert set(results.cells["asked"]) == set(results.examples["asked"])
    assert set(results.examples["example"]) == set(results.generations["example"])
    assert results.examples["prompt"].str.contains("Question").all()
    assert results.examples["reference"].str.contains("####").all()


def ascii_of(text: str) -> str:
    return "".join(char for char in text if char.isascii())


def test_the_page_and_the_recommendation_stand_at_the_end(whole, words, capsys):
    assert main(words(whole.parent)) == 0
    output = capsys.readouterr().out
    assert "report.html" in output
    assert "n is too small" in output
    assert (whole / "report.html").is_file()


def parts(folder: Path) -> set[str]:
    return {path.name for path in (folder / "records").glob("generations-*")}


@pytest.mark.slow
def test_running_again_computes_nothing_and_says_so(whole, words, no_figures, capsys):
    before = parts(whole)
    assert main(words(whole.parent)) == 0
    assert parts(whole) == before
    assert "nothing to decode: the records hold all of it" in capsys.readouterr().err


def num_decoded(folder: Path) -> int:
    """Generations ever written, those that a reader would drop as duplicates included."""
    return sum(len(pq.read_table(path)) for path in (folder / "records").glob("generations-*"))


def test_raising_n_adding_a_w_and_a_sample_decodes_what_is_missing_and_nothing_else(words, tmp_path, no_figures):
    steps = [
        ({"n": 2, "w": "0.3"}, 2 * 4),
        ({"n": 3, "w": "0.3"}, 1 * 4),
        ({"n": 3, "w": "[0.3,0.7]"}, 3),
        ({"n": 3, "samples": 2}, 3 * 5),
        ({"n": 2, "w": "0.3"}, 0),
    ]
    total = 0
    for options, num_new in steps:
        assert main(words(tmp_path / "steps", **options)) == 0
        total += num_new
        assert num_decoded(tmp_path / "steps" / NAME) == total
    assert main(words(tmp_path / "once", n=3, samples=2)) == 0
    assert_same_records(tmp_path / "steps" / NAME, tmp_path / "once" / NAME)


@pytest.mark.slow
def test_shards_in_any_batch_make_the_whole(words, tmp_path, whole, no_figures):
    for index in range(3):
        assert main(words(tmp_path, shard=f"{index}/3", batch_size=index + 1)) == 0
    assert_same_records(tmp_path / NAME, whole)


@pytest.mark.slow
def test_force_computes_again_and_changes_nothing(words, tmp_path, no_figures):
    assert main(words(tmp_path / "a", n=2)) == 0
    before = parts(tmp_path / "a" / NAME)
    assert main(words(tmp_path / "b", n=2)) == 0
    assert main(words(tmp_path / "a", n=2, force="true")) == 0
    assert parts(tmp_path / "a" / NAME) != before
    assert_same_records(tmp_path / "a" / NAME, tmp_path / "b" / NAME)


@pytest.mark.slow
def test_force_in_a_slurm_job_that_is_requeued_goes_on_instead_of_beginning_again(
    words, tmp_path, monkeypatch, no_figures
):
    def run(job: str) -> set[str]:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        assert main(words(tmp_path, n=1, w=0.3, force="true")) == 0
        return parts(tmp_path / NAME)

    monkeypatch.setenv("ENVIRONMENT", "BATCH")
    first = run("7")
    assert run("7") == first
    another = run("8")
    assert another != first
    monkeypatch.delenv("ENVIRONMENT")  # a shell inside a job: the same command twice means twice
    assert run("8") != another


def untimed(given: list[str]) -> list[str]:
    return [word for word in given if word != "timing=off"]


def test_a_latency_pass_times_baselines_and_prices_calls(words, tmp_path, no_figures):
    given = untimed(words(tmp_path, w="[0.3,1]", n=2, **{"timing.examples": 2, "timing.repeats": 2}))
    assert main(given) == 0
    results = read(tmp_path / NAME)
    timed = results.timings[~results.timings["is_split"]]
    assert set(timed["verifier"]) == {"target", "generate", "lossless", "ensemble"}
    assert set(timed["w"].dropna()) == {0.3}, "w=1 is lossless, which is on the clock already"
    assert timed.groupby("cell").size().eq(4).all()
    assert timed["pass_id"].nunique() == 1
    assert {"draft", "verify", "target", "prefill"} <= set(results.calls["kind"])
    frame = pd.read_csv(tmp_path / NAME / "summary.csv")
    assert frame.loc[frame["verifier"] == "lossless", "speedup"].notna().all()
    before = len(results.timings)
    assert main(given) == 0
    assert len(read(tmp_path / NAME).timings) == before


def test_a_requeued_job_with_force_goes_on_with_its_latency_pass(words, tmp_path, monkeypatch):
    options = {"timing.examples": 2, "timing.cells": 1, "report": "off"}
    given = untimed(words(tmp_path, n=2, w=0.3, max_new_tokens=4, force="true", **options))

    def cut(*args):
        yield next(whole_pass(*args))
        raise KeyboardInterrupt

    def passes(job: str, code: int) -> list[int]:
        """The number of timed examples of each pass."""
        monkeypatch.setenv("SLURM_JOB_ID", job)
        assert main(given) == code
        return read(tmp_path / NAME).timings.groupby("pass_id")["example"].nunique().tolist()

    monkeypatch.setenv("ENVIRONMENT", "BATCH")
    monkeypatch.setattr("sdbench.passes.job.name_batch_job", lambda _: None)
    whole_pass = timing.latency_pass
    with monkeypatch.context() as patch:
        patch.setattr(timing, "latency_pass", cut)
        assert passes("7", 130) == [1]
    assert passes("7", 0) == [2]
    assert passes("8", 0) == [2, 2], "another job decodes again"


@pytest.mark.slow
def test_assisted_generation_is_timed_in_the_same_pass(words, tmp_path, no_figures, capsys):
    options = {"timing.examples": 2, "timing.cells": 1, "timing.assisted": "true"}
    given = untimed(words(tmp_path, w=0.3, n=2, temperature=0, **options))
    assert main(given) == 0
    results = read(tmp_path / NAME)
    timed = results.timings[~results.timings["is_split"]]
    assert set(timed["verifier"]) == {"target", "generate", "assisted", "lossless", "ensemble"}
    assert timed["pass_id"].nunique() == 1
    sums = timed.groupby("verifier")[["tokens", "rounds"]].sum()
    assert sums.loc["assisted", "tokens"] == sums.loc["generate", "tokens"] == sums.loc["lossless", "tokens"]
    assert sums.loc["assisted", "rounds"] < sums.loc["generate", "rounds"], "several tokens a round"
    assert "deprecated" not in capsys.readouterr().err
    frame = pd.read_csv(tmp_path / NAME / "summary.csv").set_index("verifier")
    assert frame.at["assisted", "speedup"] > 0
    assert frame.at["assisted", "num_draft"] == 5
    count = len(results.timings)
    assert main(given) == 0
    assert len(read(tmp_path / NAME).timings) == count, "nothing is timed twice"
    calls = results.calls
    assert len(calls)
    paths = list((tmp_path / NAME / "records").glob("calls-*"))
    assert paths
    for path in paths:
        path.unlink()  # as if a kill had come before they were written
    assert main(given) == 0
    again = read(tmp_path / NAME)
    assert len(again.timings) == count
    assert again.calls["seconds"].tolist() == calls["seconds"].tolist()


@pytest.mark.slow
def test_of_two_processes_on_a_folder_one_waits_until_the_other_has_timed(
    words, tmp_path, no_figures, capsys, monkeypatch
):
    """Also if the two use different accelerators: each loads the host of the other."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    given = untimed(words(tmp_path, w=0.3, n=2, temperature=0, **{"timing.examples": 2}))
    other = Claims(tmp_path / NAME / "claims")

    def end_of_the_other(seconds):
        assert read(tmp_path / NAME).timings.empty
        other.release(unit)

    unit = f"timing on {kernel_boot()}"
    monkeypatch.setattr("sdbench.passes.job.time", SimpleNamespace(sleep=end_of_the_other))
    try:
        assert other.take(unit)
        assert main(given) == 0
    finally:
        other.close()
    assert "another process is timing this folder on this machine: waiting" in capsys.readouterr().err
    assert len(read(tmp_path / NAME).timings)


def test_assisted_generation_needs_one_text_at_a_time_and_a_draft(words, tmp_path, capsys):
    for more, says in (
        ({"timing.batch_size": 2}, "needs timing.batch_size=1"),
        ({"model.draft": "null", "drafter": "lookup"}, "needs engine=native and a draft model"),
        ({"drafter": "lookup"}, "add drafter=model, or remove it"),
    ):
        assert main(untimed(words(tmp_path, n=2, **{"timing.assisted": "true", **more}))) == 2
        assert says in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_timed_is_what_was_decoded_alone_and_in_batches(words, tmp_path, no_figures, monkeypatch):
    """The clock changes no text: tokens are those of the quality pass, summed over the examples of a batch. No step is
    captured on it.
    """
    late: list[object] = []
    honest, warm_up = CapturedSteps._capture_step, timing.warm_up

    def watched(*given: object) -> object:
        learned = warm_up(*given)  # type: ignore[arg-type]
        monkeypatch.setattr(
            CapturedSteps, "_capture_step", lambda self, *args: late.append(args) or honest(self, *args)
        )
        return learned

    monkeypatch.setattr(timing, "warm_up", watched)
    for size in (1, 2):
        monkeypatch.setattr(CapturedSteps, "_capture_step", honest)
        assert main(untimed(words(tmp_path, w=0.3, **{"timing.examples": 4, "timing.batch_size": size}))) == 0
    assert not late
    results = read(tmp_path / NAME)
    tokens = results.generations.set_index(["cell", "example"])["tokens"]
    for row in results.timings.itertuples():
        if row.verifier == "generate":  # its coins are transformers' own
            assert 0 < row.tokens <= 24 * len(row.example.split("+"))
        else:
            assert row.tokens == sum(tokens[row.cell, example] for example in row.example.split("+"))
    assert results.timings.groupby("pass_id")["example"].nunique().tolist() == [4, 2]


def test_another_draft_in_the_folder_of_a_pair_needs_the_pair_s_name(words, micro_pair, tmp_path, no_figures, capsys):
    """Both have one target, whose cell keeps its name: under two names the second pair had no target to compare with."""
    options = {"name": "x", "n": 1, "w": 0.3, "max_new_tokens": 4}
    assert main(words(tmp_path, **options)) == 0
    before = sorted((tmp_path / "x" / "records").iterdir())
    options["model.draft"] = f"{micro_pair}/target"
    capsys.readouterr()
    other = words(tmp_path, **options, **{"model.name": "other"})
    assert [main(other), main([*other, "--plan"])] == [2, 2]
    sentence, planned = [line for line in capsys.readouterr().err.splitlines() if "examples, to" not in line]
    assert planned == sentence
    assert "x holds settings of this run under the pair's name micro, not other: use model.name=micro (" in sentence
    assert sentence.endswith(" or another name=NAME")
    assert sorted((tmp_path / "x" / "records").iterdir()) == before
    assert main(words(tmp_path, **options)) == 0
    cells = read(tmp_path / "x").cells
    assert set(cells["model"]) == {"micro"}
    assert cells["checkpoint_draft"].nunique() == 2
    assert (cells["verifier"] == "target").sum() == 1


def test_an_answer_as_long_as_the_model_is_refused(words, tmp_path, capsys):
    assert main(words(tmp_path, n=1, max_new_tokens=4096)) == 2
    assert "leaves no room for a prompt: micro takes" in capsys.readouterr().err


@pytest.mark.parametrize("task", [name for name in tasks.names() if name.endswith("-tiny")])
def test_the_tiny_tasks_leave_the_tiny_pairs_room_for_their_prompts(task):
    assert tasks.load(task).max_new_tokens <= MAX_LENGTH // 2


@pytest.mark.slow
def test_other_threads_begin_a_pass_of_their_own_and_say_so(words, tmp_path, capfd):
    given = untimed(words(tmp_path, n=1, w=0.3, report="off", **{"timing.examples": 1, "timing.cells": 1}))
    before, passes = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2, 1):
            torch.set_num_threads(threads)
            assert main(given) == 0
            passes.append(set(read(tmp_path / NAME).timings["pass_id"]))
            message = capfd.readouterr().err
            assert ("a new latency pass begins" in message) == (len(passes) == 2)
            assert ("2 threads, after those of this machine" in message) == (len(passes) == 4)
    finally:
        torch.set_num_threads(before)
    assert [len(ids) for ids in passes] == [1, 2, 2, 2], "the third and fourth run find all of it timed"
