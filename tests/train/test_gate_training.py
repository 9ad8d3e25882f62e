"""A gate is fitted: what is recorded is what the texts say, calibration by hand, exact resumption, a folder that a run takes."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sdbench.card import CARD, WEIGHTS
from sdbench.cli import main
from sdbench.engine import Engine, Options, Request
from sdbench.prepare.versions import files_of
from sdbench.train.gate import DraftRecorder, Drafts, GateTraining, by_length, error_of
from sdbench.train.recipes import GateRecipe
from sdbench.train.steps import Steps
from sdbench.verify import Exact
from tests.draft.heads import GATE, gate
from tests.engine.models import PROMPTS, pair
from tests.engine.shortage import runs_short
from tests.train.trainings import PAIR, finished, killed

WORDS = ("prompts=10", "max_new_tokens=24")


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_what_is_recorded_is_what_the_draft_and_the_text_say(temperature):
    target, draft = pair("llama")
    engine = Engine(target, draft)
    recorder, warp = DraftRecorder(GATE, num_ids=61), engine.warp(temperature)
    requests = [Request(n, n, 0, str(n), 4) for n in range(len(PROMPTS))]
    rules = [recorder.wrap(Exact(), n) for n in range(len(PROMPTS))]
    options = Options(warp, 24, frozenset(range(0, 61, 8)), seed=5, batch_size=3)
    made: list[Any] = sorted(
        engine.stream(PROMPTS, rules, requests, options, engine.drafter("model", warp)), key=lambda g: g.request
    )
    drafts = Drafts(*map(torch.cat, zip(*(block.parts() for block in recorder.blocks(made)), strict=True)))
    for number, generation in enumerate(made):
        own = drafts[drafts.prompt == number]
        assert len(own.slot) == sum(generation.drafted)
        assert int(own.is_kept.sum()) == sum(generation.accepted)
        assert int(own.is_examined.sum()) == sum(generation.examined)
        assert int((own.slot == 0).sum()) == sum(count > 0 for count in generation.drafted)
        place, row = len(PROMPTS[number]), 0
        text = torch.tensor([[*PROMPTS[number], *generation.tokens]])
        with torch.no_grad():
            law = draft(text).logits[0].softmax(-1)
        for drafted, kept in zip(generation.drafted, generation.accepted, strict=True):
            for slot in range(min(drafted, kept + 1)):
                q = law[place + slot - 1]
                best = q.topk(2).values
                expected = [q[generation.draft_tokens[row + slot]], torch.special.entr(q).sum(), 1 - best[0] + best[1]]
                seen = own.features[row + slot]
                torch.testing.assert_close(seen[:3], torch.stack(expected).log().double(), atol=1e-5, rtol=1e-5)
                assert seen[3] == slot
            place, row = place + kept + 1, row + drafted


def test_texts_that_begin_again_after_a_shortage_count_once(monkeypatch):
    target, draft = pair("llama")

    def count() -> int:
        engine = Engine(target, draft)
        recorder, warp = DraftRecorder(GATE, num_ids=61), engine.warp(1.0)
        requests = [Request(n, n, 0, str(n), 4) for n in range(len(PROMPTS))]
        rules = [recorder.wrap(Exact(), n) for n in range(len(PROMPTS))]
        stream = engine.stream(
            PROMPTS, rules, requests, Options(warp, 24, frozenset(), seed=5), engine.drafter("model", warp)
        )
        made: list[Any] = sorted(stream, key=lambda g: g.request)
        blocks = list(recorder.blocks(made))
        assert sum(len(block.slot) for block in blocks) == sum(sum(g.drafted) for g in made)
        return len(recorder.rounds)

    whole = count()
    runs_short(monkeypatch, above=2, after=3)
    with pytest.warns(ResourceWarning, match="out of memory"):
        assert count() > whole, "rounds were lost and drafted again"


def test_a_step_without_drafts_joins_those_with_some():
    def decode(keys: Any, rules: Any, samples: int, seed: int, recorder: DraftRecorder) -> Any:
        recorder.first_round = dict.fromkeys(range(len(keys)), 0)
        return [SimpleNamespace(prompt=n, drafted=(0,), examined=(0,), accepted=(0,)) for n in range(len(keys))]

    setup = SimpleNamespace(
        prompts=SimpleNamespace(ids={"a": [5], "b": [6]}),
        decoder=SimpleNamespace(warp=SimpleNamespace(vocab_size=61)),
        decode=decode,
    )
    training: Any = SimpleNamespace(recipe=GateRecipe(prompts=2), setup=setup)
    columns, other = GateTraining.step(training, 0), drafts_of("+-")
    assert [len(column) for column in columns] == [0] * 5
    both = Drafts(*map(torch.cat, zip(columns, other.parts(), strict=True)))
    assert all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(both.parts(), other.parts(), strict=True))


def drafts_of(*blocks: str) -> Drafts:
    """Blocks of kept (+) and refused (-) drafts, each of a prompt of its own; q(x) = 1 throughout."""
    slot = torch.tensor([n for block in blocks for n in range(len(block))])
    is_kept = torch.tensor([mark == "+" for block in blocks for mark in block])
    prompt = torch.tensor([n for n, block in enumerate(blocks) for _ in block])
    features = torch.stack([torch.zeros(len(slot)), *[torch.full((len(slot),), -9.0)] * 2, slot.float()], -1).double()
    return Drafts(features, slot, is_kept, torch.ones_like(is_kept), prompt)


def test_errors_by_length_are_those_of_the_first_drafts_of_each_block():
    drafts = drafts_of("++", "+-", "-", "+++")
    rows = {row["drafts"]: row for row in by_length(gate(), drafts) if row["above"] == 0}
    assert {k: (row["n"], row["good"]) for k, row in rows.items()} == {1: (4, 0.75), 2: (3, 0.6667), 3: (1, 1.0)}
    estimates = gate().score(drafts.features[-3:]).sigmoid()
    assert rows[3]["said"] == pytest.approx(float(estimates.prod()), abs=1e-4)


def test_the_expected_calibration_error_is_weighted_by_tokens():
    bins = [{"n": 30, "said": 0.2, "good": 0.3}, {"n": 10, "said": 0.9, "good": 0.7}]
    assert error_of({"labels": 40, "bins": bins}) == pytest.approx((30 * 0.1 + 10 * 0.2) / 40)


@pytest.mark.slow
def test_a_training_gives_a_folder_that_a_run_takes(tmp_path, capsys, monkeypatch):
    out = tmp_path / "gate"
    assert main(["train", "gate", *PAIR, *WORDS, "drafter=gate", f"out={out}"]) == 0, (
        "its own length policy is left out"
    )
    card = json.loads((out / CARD).read_text())
    assert card["drafter"] == "sdbench.draft.model.ModelDrafter"
    assert set(card["checkpoints"]) == {"target", "draft"}
    assert card["drafting"] == {"draft_quantization": None, "target_quantization": None}
    calibration = json.loads((out / "calibration.json").read_text())
    assert calibration["prompts"] == 2
    assert 0 <= calibration["ece"] <= 1
    assert {"calibration.pdf", "calibration.svg", "calibration.png"} <= {path.name for path in out.iterdir()}
    digests = files_of({"length_head": str(out)}, prefix="drafter")
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "seconds", 999.0)
        assert main(["train", "gate", *PAIR, *WORDS, "drafter=gate", f"out={out}"]) == 0
    assert files_of({"length_head": str(out)}, prefix="drafter") == digests
    words = [*PAIR, "n=4", "temperature=0", "max_new_tokens=24", "verifier=exact", "timing=off", "report=off"]
    run = [f"drafter.length_head={out}", f"results={tmp_path}", "name=run"]
    assert main([*words, "drafter=gate", *run]) == 0
    output = capsys.readouterr()
    assert "lossless K=5 equals the target alone in 4 of 4 texts (float32)" in output.out
    assert "length_head was trained with temperature=1.0, but this run has temperature=0.0" in output.err


@pytest.mark.slow
def test_a_gate_of_a_drafter_without_a_draft_model_names_the_target_alone(tmp_path):
    words = ["drafter=lookup", "model.draft=null", f"out={tmp_path / 'gate'}"]
    assert main(["train", "gate", *PAIR, "prompts=20", "max_new_tokens=48", *words]) == 0
    card = json.loads((tmp_path / "gate" / CARD).read_text())
    assert set(card["checkpoints"]) == {"target"}
    assert card["drafter"] == "sdbench.draft.lookup.PromptLookup"
    assert card["drafting"] == {"shortest": 2, "longest": 8, "target_quantization": None}


@pytest.mark.slow
def test_a_resumed_training_decodes_as_many_texts_together_as_before(tmp_path, monkeypatch):
    words = ["train", "gate", *PAIR, "prompts=40", "max_new_tokens=8", f"out={tmp_path / 'gate'}"]
    stream, step, seen = Engine.stream, GateTraining.step, []

    def record(
        self: Engine, prompts: Any, rules: Any, requests: Any, options: Options, *more: Any, **named: Any
    ) -> Any:
        seen.append((len(prompts), options.batch_size))
        return stream(self, prompts, rules, requests, options, *more, **named)

    def die(self: GateTraining, number: int) -> Any:
        if number == 1:
            raise SystemExit(9)
        return step(self, number)

    monkeypatch.setattr(Engine, "stream", record)
    monkeypatch.setattr("sdbench.engines.native.decode.rows_that_fit", lambda *_: 64)
    with monkeypatch.context() as patch:
        patch.setattr(GateTraining, "step", die)
        with pytest.raises(SystemExit):
            main(words)
    monkeypatch.setattr("sdbench.engines.native.decode.rows_that_fit", lambda *_: 5)
    assert main(words) == 0
    assert seen == [(30, 64), (10, 64)]


@pytest.mark.long  # test_ensemble.py kills a training in the slow set
def test_a_killed_training_ends_in_the_same_gate(nursery, tmp_path):
    words = ("prompts=60", "max_new_tokens=32")
    finished(nursery, "gate", *words, f"out={tmp_path / 'whole'}")
    killed(nursery, "gate", 1, *words, f"out={tmp_path / 'torn'}")
    assert not (tmp_path / "torn" / CARD).exists()
    finished(nursery, "gate", *words, f"out={tmp_path / 'torn'}")
    whole, torn = (load_file(tmp_path / name / WEIGHTS) for name in ("whole", "torn"))
    assert all(torch.equal(whole[name], torn[name]) for name in whole)
