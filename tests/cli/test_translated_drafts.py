"""What the records say of drafts in another tokenizer's ids, and that a run without a draft reads none."""

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
from micro import overridden

from sdbench.cli import main
from sdbench.engines.native.timing import text_calls
from sdbench.lm import load
from sdbench.records import read

NAME = "micro-gsm8k-tiny"
ASCII, END = 128, 1  # of the micro pair's ids: the other bytes are parts of characters
pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.mark.slow
def test_shared_tokens_counts_and_the_price_of_texts_are_in_the_records(words, tmp_path):
    given = words(tmp_path, n=2, w=0.3, max_new_tokens=12, drafter="[intersection,universal]", temperature=0)
    assert main(given) == 0
    results = read(tmp_path / NAME)
    (provenance,) = results.provenance.values()
    facts = [entry for entry in provenance["drafters"] if "counts" not in entry]
    shared = {"shared_tokens": ASCII + END, "target_tokens": 256 + END}
    assert facts == [{"name": name, **shared} for name in ("intersection", "universal")]
    (counted,) = (entry for entry in provenance["drafters"] if "counts" in entry)
    assert counted["name"] == "universal"
    drafter_of = results.cells.set_index("cell")["drafter"]
    rounds = results.rounds[results.rounds["cell"].map(drafter_of) == "universal"]
    finishes = results.generations.loc[results.generations["cell"].map(drafter_of) == "universal", "finish"]
    assert set(finishes) == {"length"}, "or drafts behind an end would be offered, and be no drafted position"
    assert counted["counts"]["offered"] == rounds["drafted"].sum() > 0
    assert counted["counts"]["blocks"] <= len(rounds)
    assert counted["counts"]["text_s"] > 0
    assert results.calls.empty, "there was no latency pass"

    timed = [word for word in given if word != "timing=off"]
    assert main([*timed, "timing.examples=1", "timing.repeats=1"]) == 0
    entries = [entry for run in read(tmp_path / NAME).provenance.values() for entry in run.get("drafters", ())]
    assert [entry["counts"] for entry in entries if "counts" in entry] == [counted["counts"]], "a pass has no counts"
    calls = read(tmp_path / NAME).calls
    (text,) = calls[calls["kind"] == "text"].to_dict("records")
    draft = calls[(calls["kind"] == "draft") & (calls["drafter"] == "universal")]
    assert (text["drafter"], text["tokens"]) == ("universal", 1)
    assert text["seconds"] > 0
    assert text["num_calls"] > 0
    assert len(draft) > 0

    num_timings = len(read(tmp_path / NAME).timings)
    (part,) = (tmp_path / NAME / "records").glob("calls-*")  # as a kill after the last timing leaves it
    part.unlink()
    assert main([*timed, "timing.examples=1", "timing.repeats=1"]) == 0
    again = read(tmp_path / NAME)
    assert len(again.timings) == num_timings
    assert sorted(again.calls["kind"]) == sorted(calls["kind"])


def test_a_draft_with_another_tokenizer_and_few_positions_cuts_no_prompt(words, micro_pair, tmp_path):
    """Texts that it has no room for are decoded without drafts; other drafters read them whole."""
    draft = shutil.copytree(micro_pair / "draft", tmp_path / "draft")
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    options = {"n": 2, "w": 0.3, "max_new_tokens": 8, "temperature": 0, "drafter": "[intersection,universal,lookup]"}
    assert main(overridden(words(tmp_path, **options), f"model.draft={draft}")) == 0
    results = read(tmp_path / NAME)
    assert not results.generations["is_prompt_cut"].any()
    assert (results.generations["prompt_tokens"] > 64).all()
    drafter_of = results.rounds["cell"].map(results.cells.set_index("cell")["drafter"])
    drafted = results.rounds["drafted"].groupby(drafter_of).sum()
    assert (drafted["intersection"], drafted["universal"]) == (0, 0)
    assert drafted["lookup"] > 0


def test_the_price_of_texts_is_that_of_the_pass_alone():
    def counts(blocks: int, offered: int, text_s: float) -> dict[str, float]:
        return {"blocks": blocks, "offered": offered, "lost": 0, "text_s": text_s}

    plan: Any = SimpleNamespace(pass_id="p", machine="m")
    run: Any = SimpleNamespace(model=SimpleNamespace(draft="d"))
    before, after = {"universal": counts(2, 10, 1.0)}, {"universal": counts(6, 30, 2.0), "model": {"rounds_at_0.4": 3}}
    (call,) = text_calls(plan, run, before, after)
    assert (call.kind, call.drafter, call.tokens, call.seconds, call.num_calls) == ("text", "universal", 1, 0.05, 4)
    assert text_calls(plan, run, before, before) == []
    (first,) = text_calls(plan, run, {}, before)
    assert (first.seconds, first.num_calls) == (0.1, 2)


def test_without_a_draft_no_weights_of_one_are_read(words, tmp_path, monkeypatch):
    roles, load_model = [], load.load_model

    def counted(checkpoint: Any, **options: Any) -> Any:
        roles.append(checkpoint.id)
        return load_model(checkpoint, **options)

    monkeypatch.setattr(load, "load_model", counted)
    (tmp_path / "corpus.txt").write_text("Mia has 34 cards. Mia loses 9.\n")
    more = ["model.draft=null", "drafter=[lookup,suffix,early-exit,pruned,retrieval]"]
    given = overridden(words(tmp_path, n=1, w=0.3, max_new_tokens=8), *more)
    assert main([*given, f"drafter.retrieval.corpus={tmp_path / 'corpus.txt'}"]) == 0
    assert len(roles) == 1
    assert roles[0].endswith("target")
    results = read(tmp_path / NAME)
    assert set(results.cells["drafter"].dropna()) == {"lookup", "suffix", "early-exit", "pruned", "retrieval"}
    assert "draft" not in set(results.cells["verifier"])
