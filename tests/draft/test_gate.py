"""The confidence gate: estimates by hand, lossless as a length policy, and what it keeps unjudged as a lossy control."""

import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sdbench
from sdbench.audit.command import AuditOptions
from sdbench.audit.native import audit
from sdbench.audit.pairs import PROMPTS as SHORT
from sdbench.audit.pairs import STOP, random_pair
from sdbench.audit.source import Sampling
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.cli import compose_run, main
from sdbench.config import Component, ConfigError
from sdbench.draft import ModelDrafter, check
from sdbench.draft.gate import Gate
from sdbench.prepare import progress
from sdbench.prepare.heads import drafting_of, warn_of_foreign_drafter_heads
from sdbench.prepare.refuse import refuse_drafter_options
from sdbench.prepare.rules import build_parts
from sdbench.types import DraftBlock, DraftSetup, Evidence
from sdbench.verify import Block, Ensemble, Exact, Sure
from tests.draft.heads import gate, write_gate, write_heads
from tests.engine.models import PROMPTS, pair, tiny

OPTIONS: dict[str, Any] = {"num_draft": 5, "max_new_tokens": 24, "stop_ids": ()}
LAW = torch.tensor([[[0.5, 0.3, 0.2, 0.0, 0.0]]], dtype=torch.float64)


def block_of(token: int, law: torch.Tensor = LAW, **more: Any) -> DraftBlock:
    return DraftBlock(torch.tensor([[token]]), law, torch.ones(1).long(), **more)


def test_an_estimate_is_the_logistic_of_the_features_whichever_token_was_drafted():
    entropy = -sum(x * math.log(x) for x in (0.5, 0.3, 0.2))
    for token, chance in enumerate((0.5, 0.3, 0.2, 1e-6)):
        features = (math.log(chance), math.log(entropy), math.log(0.8), 2)
        parts = zip(features, (2.0, -0.5, -0.3, -0.2), (-1.0, 0.0, -0.5, 1.0), (1.0, 0.5, 0.5, 1.5), strict=True)
        score = 1 + sum(weight * (x - shift) / scale for x, weight, shift, scale in parts)
        for drafted in range(3):
            estimates = gate().estimates(block_of(drafted), 2, 5, of_all=True)
            assert float(estimates[0, 0, token]) == pytest.approx(1 / (1 + math.exp(-score)), rel=1e-9)
            assert float(gate().estimates(block_of(drafted), 2, 5)) == float(estimates[0, 0, drafted])


def test_at_temperature_0_it_reads_the_un_tempered_law_or_one_hot():
    ids = torch.tensor([[1]])
    untempered = gate().estimates(block_of(1, ids, logits=LAW.clamp_min(1e-30).log()), 0, 5)
    torch.testing.assert_close(untempered, gate().estimates(block_of(1), 0, 5))
    one_hot = gate().estimates(block_of(1, ids), 0, 5)
    torch.testing.assert_close(one_hot, gate().estimates(block_of(1, torch.eye(5)[None, 1:2].double()), 0, 5))


@pytest.fixture(scope="module")
def models() -> Any:
    return pair("llama")


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> str:
    return write_gate(tmp_path_factory.mktemp("gate"), bias=2.0)


def decode(models: Any, rules: Any, head: str, threshold: float = 0.5, drafter: str = "model", **more: Any) -> Any:
    engine = sdbench.Engine(*models, capture="off")
    length = {"length": "gate", "length_head": head, "length_threshold": threshold}
    built = engine.drafter(drafter, engine.warp(more.get("temperature", 1.0)), length)
    return sdbench.generate(None, None, PROMPTS, rules, engine=engine, drafter=built, **{**OPTIONS, **more})


class Watching(Sure):
    """Asserts that the last token of a block is judged, and no other."""

    __slots__ = ()

    def __call__(self, evidence: Evidence, u: Any, state: Any = None) -> Any:
        draft = evidence.draft
        slots = torch.arange(draft.tokens.shape[1])
        if len(slots):
            is_offered = slots < draft.lengths[:, None]
            assert torch.equal(draft.is_sure & is_offered, slots < draft.lengths[:, None] - 1)
        verdict = Sure.__call__(self, evidence, u, state)
        assert bool((verdict.accepted >= draft.lengths - 1).all())
        return verdict


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_the_rule_that_keeps_what_is_sure_judges_the_last_token_alone(models, head, temperature):
    decoded = decode(models, [Watching(Exact())], head, temperature=temperature, batch_size=3)
    assert sum(g.origins.count("sure") for g in decoded) > 10
    drafted = {k for g in decoded for k in g.drafted}
    assert len(drafted) > 2, "blocks end where the gate doubts"


def test_at_temperature_0_a_wrong_token_that_is_kept_unjudged_is_a_bias_of_1():
    draft = DraftBlock(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    sure = torch.zeros(1, 3, 5).bool()
    sure[0, 0, 1] = sure[0, 1, 2] = True
    evidence = Evidence(torch.tensor([[1, 4, 4, 0]]), replace(draft, sure=sure), is_greedy=True)
    measures = Sure(Exact()).measure(evidence)
    assert measures.expected.tolist() == [[1, 1, 0]]
    assert measures.bias.tolist() == [[0, 1, 0]], "what is judged is the target's own"


@pytest.mark.parametrize("drafter", ["model", "suffix"])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_at_threshold_1_nothing_is_sure(models, head, temperature, drafter):
    for rule in (Exact(), Ensemble(w=0.7)):
        options: dict[str, Any] = {"threshold": 1.0, "temperature": temperature, "drafter": drafter}
        plain, spared = (decode(models, [r], head, **options) for r in (rule, Sure(rule)))
        assert [(g.tokens, g.origins) for g in plain] == [(g.tokens, g.origins) for g in spared]
        assert not any("sure" in g.origins for g in spared)


@dataclass(frozen=True, slots=True)
class Claimed(Sure):
    """`Sure` that claims to be lossless: so it is at threshold 1, and not below."""

    def is_lossless(self) -> torch.Tensor:
        return torch.tensor([True])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "sampling", "threshold", "verdict"),
    [
        ([Exact(), Block(), Ensemble(w=0.7)], Sampling(1.0), 0.5, "sound"),
        ([Exact(), Ensemble(w=0.7), Sure(Exact())], Sampling(0.0), 0.5, "sound"),
        ([Exact(), Claimed(Exact())], Sampling(1.0, top_p=0.8), 1.0, "sound"),
        ([Claimed(Exact())], Sampling(1.0), 0.5, "violated"),
    ],
    ids=["T=1", "T=0", "threshold 1, top_p", "threshold 0.5 is not lossless"],
)
def test_the_audit(head, rules, sampling, threshold, verdict):
    settings = [AuditedRule(f"{type(rule).__name__} {number}", rule) for number, rule in enumerate(rules)]
    options: dict[str, Any] = {"length": "gate", "length_head": head, "length_threshold": threshold}
    subject = Subject(
        settings, *random_pair(), SHORT, sampling, drafter="model", drafter_options=options, budget=4, num_draft=3,
        stops=(STOP,),
    )  # fmt: skip
    assert audit(subject, AuditOptions(tv=0.3)).verdict == verdict


@pytest.mark.slow
def test_the_audit_of_what_is_sure_tests_all_but_the_law_that_it_cannot_know(head):
    settings = [AuditedRule("exact", Exact()), AuditedRule("sure", Sure(Exact()))]
    options: dict[str, Any] = {"length": "gate", "length_head": head}
    subject = Subject(
        settings, *random_pair(), SHORT, Sampling(1.0), drafter="model", drafter_options=options, budget=4, num_draft=3,
        stops=(STOP,),
    )  # fmt: skip
    claims = ("q", "invariance", "greedy", "counters")
    assert audit(subject, AuditOptions(tv=0.3, claims=claims)).verdict == "sound"


@pytest.mark.slow
def test_what_is_emitted_is_q_where_the_gate_is_sure_and_the_rule_elsewhere(head):
    """The first of two slots, V = 4: frequencies and the measured bias, against the law worked out from p, q and the gate."""
    target, draft = random_pair()
    text = torch.tensor([SHORT[0]])
    with torch.no_grad():
        p, q = (model(text).logits[0, -1].softmax(-1) for model in (target, draft))
    estimates = Gate.load(head).estimates(block_of(0, q[None, None]), 0, 4, of_all=True)[0, 0]
    threshold = float(estimates.median()) + 1e-6  # so that some tokens are sure
    a = torch.where(estimates > threshold, 1, (p / q).clamp_max(1))
    assert 0 < int((estimates > threshold).sum()) < 4
    excess = (p - q).clamp_min(0)
    out = q * a + (1 - (q * a).sum()) * excess / excess.sum()
    engine, count = sdbench.Engine(target, draft, capture="off"), 8000
    length = {"length": "gate", "length_head": head, "length_threshold": threshold}
    drafter = engine.drafter("model", engine.warp(1.0), length)
    options: dict[str, Any] = {"num_draft": 2, "max_new_tokens": 3, "stop_ids": (), "samples": count}
    decoded: Any = sdbench.generate(None, None, [SHORT[0]], [Sure(Exact())], engine=engine, drafter=drafter, **options)
    shares = torch.tensor([g.tokens[0] for g in decoded]).bincount(minlength=4) / count
    assert (shares - out).abs().max() < 4 * 0.5 / count**0.5
    torch.testing.assert_close(torch.tensor(decoded[0].bias[0]).double(), (out - p).abs().sum() / 2)
    assert (out - p).abs().sum() / 2 > 0.05, "a bias that could not be seen proves nothing"


PARTS = {"checkpoint": "sha256:0", "draft_checkpoint": "sha256:1", "tokenizer_key": "0"}


@pytest.mark.parametrize(
    ("known", "card", "sentence"),
    [
        ({}, {}, None),
        ({"checkpoint": "sha256:9"}, {}, "a gate of toy, whose target is sha256:0; this run's target is sha256:9: train a gate"),
        ({"draft_checkpoint": "sha256:9"}, {}, "whose draft is sha256:1; this run's draft is sha256:9: train a gate"),
        ({"draft_checkpoint": None}, {}, None),
        ({"tokenizer_key": "9"}, {}, "a gate of toy, whose tokenizer differs from this target's: train a gate"),
        ({}, {"drafter": "other.Drafter"}, "a gate of toy for other.Drafter: train a gate for sdbench.draft.model.ModelDrafter"),
        ({"drafting": {"low": 0.3}}, {}, None),
        ({"drafting": {"draft_quantization": None}}, {"drafting": {"draft_quantization": None, "since": None}}, None),
        ({"drafting": {"low": 0.3}}, {"drafting": {"low": 0.2}}, "of toy with low=0.2, and this run has low=0.3: train a gate"),
        (
            {"drafting": {"target_quantization": None}},
            {"drafting": {"target_quantization": "int8"}},
            "a gate of toy with target_quantization=int8, and this run has target_quantization=null: train a gate",
        ),
        ({"drafting": {"target_quantization": "int8"}}, {"drafting": {}}, None),  # of earlier versions
        (
            {"drafting": {"draft_quantization": "int8"}},
            {"drafting": {}},
            "a gate of toy with draft_quantization=null, and this run has draft_quantization=int8: train a gate",
        ),
    ],
)  # fmt: skip
def test_a_gate_of_other_models_or_another_drafter_is_refused(tmp_path, known, card, sentence):
    folder = write_gate(tmp_path, **card)
    setup = DraftSetup(None, None, **{**PARTS, **known})

    def refuse() -> None:
        check(ModelDrafter, {"length": "gate", "length_head": folder}, setup, [5])

    if sentence is None:
        refuse()
    else:
        with pytest.raises(ValueError, match=sentence):
            refuse()


PLAIN = {"draft_quantization": None, "target_quantization": None}
TIERS = ("drafter=tiers", "+drafter.length=gate")


@pytest.mark.parametrize(
    ("words", "drafting"),
    [
        (TIERS, {"exit_layer": None, "low": 0.3, "high": 0.9, "chunk": 4, **PLAIN}),
        (
            (*TIERS, "drafter.low=0.2"),
            {"exit_layer": None, "low": 0.2, "high": 0.9, "chunk": 4, **PLAIN},
        ),
        (("drafter=gate", "model.draft_quantization=int8"), {**PLAIN, "draft_quantization": "int8"}),
        (("drafter=gate", "model.quantization=int8"), {**PLAIN, "target_quantization": "int8"}),
    ],
)
def test_a_run_compares_the_options_of_its_drafter_with_those_of_the_gate(tmp_path, words, drafting):
    drafter = str(compose_run(words).drafters[0].target)
    same = write_gate(tmp_path / "same", drafter, drafting=drafting)
    other = write_gate(tmp_path / "other", drafter, drafting={**drafting, "x": 1})
    run = compose_run([*words, f"++drafter.length_head={same}"])
    refuse_drafter_options(run, build_parts(run))
    run = compose_run([*words, f"++drafter.length_head={other}"])
    with pytest.raises(ConfigError, match="with x=1, and this run has x=null: train a gate for this run"):
        refuse_drafter_options(run, build_parts(run))


def test_heads_among_the_options_of_a_drafter_count_by_their_content(tmp_path):
    target = tiny("llama")
    heads = [write_heads(tmp_path / name, target, model=name) for name in ("a", "b")]
    copy = shutil.copytree(heads[0], tmp_path / "copy")
    options = {"head": "", "length": "gate"}

    def drafting(head: object) -> dict[str, Any]:
        drafter = Component("medusa", "sdbench.draft.medusa.Medusa", {**options, "head": str(head)})
        run = replace(compose_run([]), drafters=(drafter,))
        return drafting_of(run, build_parts(run).drafters[0])

    assert drafting(heads[0]) == drafting(copy) != drafting(heads[1])
    assert set(drafting(copy)) == {"head", "target_quantization"}, "the run's draft model is not read"


def test_a_card_without_the_options_of_its_drafter_is_a_warning_where_the_run_has_some(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_printed", set())
    older = {"drafting": {"draft_quantization": None}}
    for card, words, ends in (
        ({}, [], ""),
        ({}, ["model.draft_quantization=int8"], "did not record whether draft_quantization=int8 was set"),
        (older, [], ""),
        (older, ["model.quantization=int8"], "did not record whether target_quantization=int8 was set"),
    ):
        folder = write_gate(tmp_path, **card)
        run = compose_run(["drafter=gate", f"drafter.length_head={folder}", *words])
        warn_of_foreign_drafter_heads(run, build_parts(run))
        assert (ends in capsys.readouterr().err) if ends else not capsys.readouterr().err


def test_where_no_gate_is_the_command_that_trains_it_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    int8 = "model.quantization=int8 model.draft_quantization=int8"
    assert main(["model=qwen-tiny", "task=wmt-tiny", "drafter=gate", "n=2", "temperature=0", *int8.split()]) == 2
    command = f"python -m sdbench.train gate model=qwen-tiny task=wmt-tiny drafter=gate temperature=0 {int8}"
    folder = Path("results/gates/ModelDrafter/qwen-tiny-wmt-tiny-T0")
    message = capsys.readouterr().err
    assert f"no gate was trained for model=qwen-tiny on task=wmt-tiny ({folder} has no head.json): train one" in message
    assert command in message
    assert message.count("\n") == 1


def test_a_rule_that_keeps_what_is_sure_needs_a_drafter_that_says_so(capsys):
    assert main(["drafter=model", "verifier=sure", "model=llama-tiny", "task=gsm8k-tiny", "n=2"]) == 2
    assert "drafter=model is never sure: take drafter=tiers or drafter=gate" in capsys.readouterr().err
