"""What the model for lm-evaluation-harness does without the extra: kept answers, measures, the refusal of another version."""

import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from sdbench.config import ConfigError
from sdbench.config.checks import require_lm_eval
from sdbench.lm_eval.kept import KeptAnswers
from sdbench.lm_eval.measures import counts_of, measures_of
from sdbench.types import Generation


def generation(accepted, examined, tokens):
    """A text of one round."""
    fields = dict.fromkeys(Generation.__dataclass_fields__)
    values = {"tokens": (7,) * tokens, "drafted": (5,), "examined": (examined,), "accepted": (accepted,)}
    return Generation(**{**fields, **values, "tv": (0.5,) * examined})


def test_a_kept_answer_is_there_for_the_next_process(tmp_path):
    path = tmp_path / "out" / "answers.db"
    KeptAnswers(path).write("a", {"text": "yes", "counts": {"tv_sum": float("nan")}})
    again = KeptAnswers(path)
    again.write("b", {"text": "no"})
    answers = again.read(["a", "b", "c"])
    assert {key: answer["text"] for key, answer in answers.items()} == {"a": "yes", "b": "no"}
    assert sqlite3.connect(path).execute("SELECT COUNT(*) FROM answers").fetchone() == (2,)


@pytest.mark.parametrize("content", [b"no database, but words " * 50, None])
def test_a_file_that_cannot_hold_answers_is_one_sentence(tmp_path, content):
    path = tmp_path / "file"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^keep=\S+file cannot store answers \(.+\): give a new file$"):
        KeptAnswers(path)


def test_measures_are_ratios_of_sums_over_texts_whenever_they_were_decoded():
    counts = [
        {**counts_of(generation(3, 4, 4), 0.5, "a"), "example": 0, "is_prompt_cut": True},
        {**counts_of(generation(1, 4, 2), 0.25, "a"), "example": 1, "is_prompt_cut": False},
    ]
    measures = measures_of({"task": counts}, 5)["task"]
    assert measures["acceptance"]["value"] == 4 / 8
    assert measures["tokens_per_round"]["value"] == 3
    assert measures["prompts_cut"] == 1
    assert (measures["n"], measures["tokens"], measures["seconds"], measures["tokens_per_s"]) == (2, 6, 0.75, 8)


def test_several_answers_of_a_document_are_no_more_documents():
    """A task with `repeats` asks for several answers a document: intervals are over documents."""
    numbers = [(drafted % 4 + 1, 5, drafted % 5) for drafted in range(12)]
    once = [
        {**counts_of(generation(*each), 0.5, "a"), "example": index, "is_prompt_cut": False}
        for index, each in enumerate(numbers)
    ]
    thrice = [each for each in once for _ in range(3)]
    first, again = (measures_of({"task": each}, 5)["task"] for each in (once, thrice))
    assert again["n"] == 3 * first["n"]
    assert again["acceptance"] == pytest.approx(first["acceptance"])


def long_generation(num_rounds, tokens):
    whole = generation(1, 2, tokens)
    return replace(whole, drafted=(5,) * num_rounds, examined=(2,) * num_rounds, accepted=(1,) * num_rounds)


def test_tasks_that_are_decoded_together_share_the_seconds_of_a_batch_by_rounds():
    """The time since the previous text ended charges a short text as much as a long one."""
    long, short = long_generation(30, 60), long_generation(10, 20)
    texts = {"example": 0, "is_prompt_cut": False}
    counts = {
        "long": [{**counts_of(long, 0.0, "a"), **texts}, {**counts_of(long, 4.0, "b"), **texts}],
        "short": [{**counts_of(short, 8.0, "a"), **texts}],
    }
    measures = measures_of(counts, 5)
    assert {task: each["seconds"] for task, each in measures.items()} == {"long": 10.0, "short": 2.0}
    assert {task: each["tokens_per_s"] for task, each in measures.items()} == {"long": 12.0, "short": 10.0}


def test_answers_that_name_no_batch_keep_their_seconds():
    """As those that an earlier version stored."""
    counts = {**counts_of(generation(1, 2, 4), 3.0, "a"), "example": 0, "is_prompt_cut": False}
    old = {name: value for name, value in counts.items() if name != "batch"}
    for texts in ([old], [old, counts], [old, {**counts, "seconds": 1.0}]):
        assert measures_of({"task": texts}, 5)["task"]["seconds"] == sum(each["seconds"] for each in texts)


def test_seconds_have_an_interval_over_batches():
    """Of texts that take 1 s each, whichever text of a batch ends when."""
    text = {**counts_of(generation(1, 2, 4), 0.0, "a"), "example": 0, "is_prompt_cut": False}
    paces = [0.9, 1.1, 1.0, 0.8, 1.2]
    batches = [{**text, "batch": str(n), "seconds": s} for n, pace in enumerate(paces) for s in (3 * pace, 0.0, 0.0)]
    measures = measures_of({"task": batches}, 5)["task"]
    assert (measures["seconds"], measures["tokens_per_s"]) == pytest.approx((15, 4))
    reach = 2.776 * np.std(paces, ddof=1) / 5**0.5  # Student's t with 4 degrees of freedom
    assert measures["seconds_low"] == pytest.approx(15 * (1 - reach), rel=0.03)
    assert measures["seconds_high"] == pytest.approx(15 * (1 + reach), rel=0.03)
    assert measures["tokens_per_s_low"] == pytest.approx(60 / measures["seconds_high"])
    assert measures["tokens_per_s_high"] == pytest.approx(60 / measures["seconds_low"])


@pytest.mark.parametrize("batches", [["a", "a", "a"], ["a", None, "b"], [None] * 3, None])
def test_seconds_of_a_single_batch_or_of_unknown_ones_have_no_interval(batches):
    text = {**counts_of(generation(1, 2, 4), 2.0, "a"), "example": 0, "is_prompt_cut": False}
    texts = [{**text, "batch": batch} for batch in batches or "abc"]
    if batches is None:
        texts = [{name: value for name, value in text.items() if name != "batch"} for text in texts]
    measures = measures_of({"task": texts}, 5)["task"]
    assert (measures["seconds"], measures["tokens_per_s"]) == (6, 2)
    assert {measures[f"{name}_{end}"] for name in ("seconds", "tokens_per_s") for end in ("low", "high")} == {None}


def test_a_version_that_lacks_something_is_refused_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "old_harness").mkdir()
    (tmp_path / "old_harness" / "__init__.py").write_text("class Task:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sdbench.config.checks.version", lambda name: "0.3.0")
    require_lm_eval(["old_harness:", "old_harness:Task"])
    for path, name in (("old_harness:Task.score", "old_harness.Task.score"), ("old_harness.api:x", "old_harness.api")):
        with pytest.raises(
            ConfigError, match=rf"^lm_eval 0.3.0 has no {name}, which sdbench uses: install lm-eval 0.4.13"
        ):
            require_lm_eval([path])
    with pytest.raises(ModuleNotFoundError, match="no_harness"):
        require_lm_eval(["no_harness:x"])
