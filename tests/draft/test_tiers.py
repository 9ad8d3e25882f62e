"""Three tiers: texts, the law of a token, what is sure and spared, where blocks end, audits, records."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from lxml import html

import sdbench
from sdbench.audit.command import AuditOptions
from sdbench.audit.laws import draft_afresh
from sdbench.audit.native import audit
from sdbench.audit.pairs import PROMPTS as SHORT
from sdbench.audit.pairs import STOP, random_pair
from sdbench.audit.source import Sampling
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.cli import main
from sdbench.draft import slim
from sdbench.draft.slim import mix
from sdbench.probs import draw, rest_of
from sdbench.types import Evidence
from sdbench.verify import Block, Ensemble, Exact, Sure, Typical, Within
from tests.draft.proofs import target_of
from tests.draft.test_early_exit import Sharing
from tests.engine.models import PROMPTS, by_family, tiny
from tests.engine.test_invariance import same
from tests.records.equality import assert_same_records
from tests.report.pages import unpacked

NEW = 24  # texts outgrow the sliding window of 12
OPTIONS: dict[str, Any] = {"num_draft": 5, "max_new_tokens": NEW, "stop_ids": ()}
RULES = [Exact(), Ensemble(w=0.5), Sure(Exact()), Sure(Typical(eps=0.3, delta=0.2))]


def pair_of(family: str) -> tuple[Any, Any]:
    """A target whose last layers change little, and a draft with its embeddings and its first layer."""
    attention = "eager" if family == "gemma2" else "sdpa"
    target, draft = target_of(family, slice(2, 4)), tiny(family, layers=1, attention=attention)
    draft.load_state_dict(
        {**draft.state_dict(), **{k: v for k, v in target.state_dict().items() if k in draft.state_dict()}}
    )
    return target, draft


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return pair_of("llama")


def count_sure(decoded: Any) -> int:
    """How many tokens of these texts were kept without being judged."""
    return sum(g.origins.count("sure") for g in decoded)


def decode(
    models: Any, rules: Any, capture: Any = "off", prompts: Any = PROMPTS, keys: Any = None, **options: Any
) -> Any:
    knobs = {name: options.pop(name) for name in ("exit_layer", "low", "high", "chunk") if name in options}
    engine = sdbench.Engine(*models, capture=capture)
    engine.capture_at_once()
    warp = engine.warp(options.get("temperature", 1.0), None, options.get("top_p"))
    drafter = engine.drafter("tiers", warp, {"exit_layer": 2, "low": 0.3, "high": 0.8, "chunk": 2, **knobs})
    return sdbench.generate(
        None, None, prompts, rules, engine=engine, drafter=drafter, keys=keys, **{**OPTIONS, **options}
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_laws_of_models_in_bfloat16_are_in_float32(monkeypatch, temperature):
    """The draft's logits are kept in its dtype, in which its law would be rounded to three digits."""
    dtypes = set()

    def watched(q, s, *limits):
        dtypes.update((q.dtype, s.dtype))
        return mix(q, s, *limits)

    monkeypatch.setattr(slim, "mix", watched)
    models = [model.to(torch.bfloat16) for model in pair_of("llama")]
    decode(models, [Ensemble(w=0.5)], "off", temperature=temperature)
    assert dtypes == {torch.float32}


@by_family
def test_greedy_exact_is_the_target_token_for_token(family):
    models = pair_of(family)
    alone = [
        models[0]
        .generate(torch.tensor([p]), do_sample=False, max_new_tokens=NEW, eos_token_id=None)[0, len(p) :]
        .tolist()
        for p in PROMPTS
    ]
    for exit_layer, chunk, high, batch_size, capture in (
        (1, 4, 0.8, 3, "off"),
        (2, 2, 1.0, 1, "off"),
        (3, 9, 0.5, 32, "trace"),
    ):
        knobs = {"exit_layer": exit_layer, "chunk": chunk, "high": high}
        decoded = decode(models, [Exact()], capture, temperature=0.0, batch_size=batch_size, **knobs)
        assert [list(g.tokens) for g in decoded] == alone, (exit_layer, batch_size, capture)
        assert sum(sum(g.accepted) for g in decoded) > 5, "a draft that is never right proves little"


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_texts_do_not_depend_on_batches_chunks_captures_order_or_neighbours(models, temperature):
    once = decode(models, RULES, temperature=temperature, batch_size=1)
    assert count_sure(once) > 10
    for capture, batch_size, chunk in (("off", 3, 1), ("trace", 5, 2), ("graphs", 32, 9)):
        again = decode(models, RULES, capture, temperature=temperature, batch_size=batch_size, chunk=chunk)
        for a, b in zip(once, again, strict=True):
            same(a, b)
    order = [2, 0, 3, 1]
    shuffled = decode(
        models, RULES, prompts=[PROMPTS[i] for i in order], keys=order, temperature=temperature, batch_size=5
    )
    texts = {(order[g.prompt], g.verifier): g for g in shuffled}
    for g in once:
        same(g, replace(texts[g.prompt, g.verifier], prompt=g.prompt))


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("rule", [Exact(), Ensemble(w=0.7)])
def test_where_nothing_is_sure_the_rule_is_the_rule(models, temperature, rule):
    """At low = high = 1, and with every drafter that is never sure."""
    options: dict[str, Any] = {"temperature": temperature, "low": 1.0, "high": 1.0}
    plain, spared = (decode(models, [r], **options) for r in (rule, Sure(rule)))
    assert [g.tokens for g in plain] == [g.tokens for g in spared]
    assert [g.origins for g in plain] == [g.origins for g in spared]
    assert not count_sure(spared)


def test_what_is_left_of_a_uniform_is_uniform_whatever_the_token():
    law = torch.tensor([0.1, 0.0, 0.55, 0.35])
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    tokens = draw(law.expand(4000, -1), u)
    rest = rest_of(law.expand(4000, -1), u, tokens)
    for token in (0, 2, 3):
        part = rest[tokens == token].sort().values
        assert (part - (torch.arange(len(part)) + 0.5) / len(part)).abs().max() < 0.01


@pytest.mark.parametrize(("low", "high"), [(0.3, 0.8), (0.05, 1.0), (1.0, 1.0), (0.5, 0.5)])
@torch.no_grad()
def test_q_is_the_law_of_what_is_offered_and_what_is_sure_is_above_high(low, high):
    """A grid of uniforms for the first two slots: so many rows get each token as its q says, whatever became of the first."""
    count, models = 400, random_pair()
    engine = sdbench.Engine(*models, capture="off")
    drafter: Any = engine.drafter("tiers", engine.warp(1.0), {"exit_layer": 1, "low": low, "high": high, "chunk": 2})
    text = torch.tensor(SHORT[0])
    place = torch.arange(count, dtype=torch.float64)
    u = torch.stack(((place + 0.5) / count, (place * 0.6180339887) % 1), 1)
    no_text = torch.zeros(count, 0, dtype=torch.int64)
    block = draft_afresh(drafter, engine.target, text, no_text, u, frozenset({"sure"}))
    assert draft_afresh(drafter, engine.target, text, no_text, u).sure is None, "no rule needs it"
    plan = engine.target.plan(torch.arange(len(text))[None], cache := engine.target.cache(1, 64), 64)
    slim = engine.target.forward_exit(text[None], plan, cache, 1)[0][0, -1].softmax(-1)
    own = models[1](text[None]).logits[0, -1].softmax(-1)
    a = (slim / own).clamp_max(1)
    if block.sure is None:
        assert high == 1
    else:
        assert torch.equal(block.sure[0, 0], a > high)
    torch.testing.assert_close(block.q[0, 0], mix(own, slim, low, high)[1])
    share = block.tokens[:, 0].bincount(minlength=4) / count
    assert (share - block.q[0, 0]).abs().max() < 5e-3
    stopped = a[block.tokens[:, 0]] < low
    assert torch.equal(block.lengths == 1, stopped), "the block ends behind the first token below low, and there alone"
    for first in range(4):
        rows = (block.tokens[:, 0] == first) & ~stopped
        if rows.sum() > 100:
            share = block.tokens[rows, 1].bincount(minlength=4) / rows.sum()
            assert (share - block.q[rows][0, 1]).abs().max() < 0.06


def test_a_mixture_is_a_law_and_leaves_what_is_not_judged():
    q, s = torch.rand(2, 500, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).pow(3).unbind()
    q, s = q / q.sum(-1, keepdim=True), s / s.sum(-1, keepdim=True)
    for low, high in ((0.2, 0.9), (1.0, 1.0), (1e-9, 1.0)):
        ratio, law, redrawn = mix(q, s, low, high)
        torch.testing.assert_close(law.sum(-1), torch.ones(500).double())
        assert (law >= 0).all()
        assert ((redrawn == 0) | (ratio >= 1)).all(), "what the slim verifier draws, it would keep"
    torch.testing.assert_close(mix(q, s, 1e-9, 1.0)[1], s)  # all of it judged: the slim verifier's own law
    torch.testing.assert_close(mix(q, s, 1.0, 1.0)[1], q)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_what_is_sure_is_kept_and_the_rest_is_judged(models, temperature):
    """Each block again by `Exact`: the first draft that is not sure and that it refuses ends the round."""

    class Watching(Sure):
        __slots__ = ()

        def __call__(self, evidence: Evidence, u: Any, state: Any = None) -> Any:
            verdict = Sure.__call__(self, evidence, u, state)
            if evidence.draft.tokens.shape[1]:
                keep = Exact().keeps(evidence, u[:, :-1]) | evidence.draft.is_sure
                keep &= torch.arange(keep.shape[1]) < evidence.draft.lengths[:, None]
                assert torch.equal(verdict.accepted, keep.long().cumprod(1).sum(1))
            return verdict

    for g in decode(models, [Watching(Exact())], temperature=temperature, batch_size=3):
        assert sum(g.accepted) == g.origins.count("accepted") + g.origins.count("sure")
        assert temperature == 0 or all(b >= -1e-9 for b in g.bias)


def test_the_exact_bias_of_what_is_spared_is_that_of_the_law_that_is_emitted():
    """V = 4, one slot: keep with 1 where sure, else by the rule; enumerated."""
    p, q = torch.rand(2, 1, 2, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64).unbind()
    p, q = p / p.sum(-1, keepdim=True), (q / q.sum(-1, keepdim=True))[:, :1]
    sure = torch.tensor([[[True, False, True, False]]])
    draft = SimpleNamespace(tokens=torch.zeros(1, 1).long(), q=q, lengths=torch.ones(1).long(), sure=sure)
    measures = Sure(Ensemble(w=0.6)).measure(Evidence(p, draft))  # type: ignore[arg-type]
    a = torch.where(sure, 1, Ensemble(w=0.6).accept(p[:, :1], q))
    kept = q * a
    out = kept + (1 - kept.sum(-1, keepdim=True)) * Ensemble(w=0.6).replace(p[:, :1], q)
    torch.testing.assert_close(measures.expected, kept.sum(-1))
    torch.testing.assert_close(measures.bias, (out - p[:, :1]).abs().sum(-1) / 2)


def test_verification_goes_on_with_the_states_that_the_slim_verifier_left(models):
    """As with its layers run again: also behind a token that was redrawn. Where layers share more than states, they run again."""
    target = target_of("llama", slice(2, 4))
    Sharing(target.model.layers[0], target.model.layers[3])
    for temperature in (0.0, 1.0):
        begun = decode(models, RULES, temperature=temperature)
        engine = sdbench.Engine(*models, capture="off")
        drafter: Any = engine.drafter(
            "tiers", engine.warp(temperature), {"exit_layer": 2, "low": 0.3, "high": 0.8, "chunk": 2}
        )
        assert drafter.slim.continues
        drafter.slim.continues = False
        options = {**OPTIONS, "temperature": temperature, "engine": engine, "drafter": drafter}
        for a, b in zip(begun, sdbench.generate(None, None, PROMPTS, RULES, **options), strict=True):
            same(a, b)
        assert decode((target, models[1]), [Exact()], temperature=temperature)


@dataclass(frozen=True, slots=True)
class Claimed(Sure):
    """`Sure` that claims to be lossless: so it is at high = 1, and not below."""

    def is_lossless(self) -> torch.Tensor:
        return torch.tensor([True])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "sampling", "high", "verdict"),
    [
        ([Exact(), Block()], Sampling(1.0), 0.8, "sound"),
        (
            [Exact(), Ensemble(w=0.7)],
            Sampling(1.0),
            0.8,
            "too few",
        ),  # the distribution of lenient texts is not known
        ([Exact(), Claimed(Exact())], Sampling(1.0, top_p=0.8), 1.0, "sound"),
        ([Exact(), Claimed(Exact()), Ensemble(w=0.7)], Sampling(0.0), 1.0, "sound"),
        ([Claimed(Exact())], Sampling(1.0), 0.5, "violated"),
    ],
    ids=["T=1", "T=1, lenient", "low = high = 1, top_p", "low = high = 1, T=0", "high = 0.5 is not lossless"],
)
def test_the_audit(rules, sampling, high, verdict):
    settings = [AuditedRule(f"{type(rule).__name__} {number}", rule) for number, rule in enumerate(rules)]
    options: dict[str, Any] = {"low": min(high, 0.3) if high < 1 else 1.0, "high": high, "exit_layer": 1, "chunk": 2}
    subject = Subject(
        settings, *random_pair(), SHORT, sampling, drafter="tiers", drafter_options=options, budget=4, num_draft=3,
        stops=(STOP,),
    )  # fmt: skip
    assert audit(subject, AuditOptions(tv=0.3)).verdict == verdict


@pytest.mark.parametrize("length", ["confidence", "heuristic"])
def test_a_length_policy_keeps_what_is_sure(models, length):
    engine = sdbench.Engine(*models, capture="off")
    drafter = engine.drafter("tiers", engine.warp(1.0), {"exit_layer": 2, "low": 0.1, "high": 0.5, "length": length})
    decoded = sdbench.generate(None, None, PROMPTS, [Sure(Exact())], engine=engine, drafter=drafter, **OPTIONS)
    assert count_sure(decoded) > 5


def words(folder: Any, n: int, *more: str) -> list[str]:
    drafter = ["drafter=tiers", "drafter.low=0.05", "drafter.high=0.3", "verifier=sure", f"results={folder}"]
    return [
        *drafter,
        "model=llama-tiny",
        "task=gsm8k-tiny",
        "max_new_tokens=12",
        "dtype=float64",
        "timing=off",
        f"n={n}",
        *more,
    ]


@pytest.mark.slow
def test_records_count_what_the_target_was_spared_and_a_run_that_goes_on_equals_a_whole_one(tmp_path):
    for n in (1, 3):
        assert main(words(tmp_path / "parts", n, "temperature=1")) == 0
    assert main(words(tmp_path / "whole", 3, "temperature=1", "report=off")) == 0
    folder = tmp_path / "parts" / "llama-tiny-gsm8k-tiny"
    assert_same_records(folder, tmp_path / "whole" / "llama-tiny-gsm8k-tiny")
    results = sdbench.read(folder)
    tokens = results.tokens.set_index(["cell", "example", "sample"])["origin"]
    texts = results.generations.set_index(["cell", "example", "sample"])
    assert (tokens.map(lambda origin: list(origin).count(3)) == texts["spared"]).all()
    assert texts[texts["verifier"] == "sure"]["spared"].sum() > 5
    assert texts[texts["verifier"] == "lossless"]["spared"].sum() == 0
    summary = pd.read_csv(folder / "summary.csv").set_index("verifier")
    assert summary["spared"]["sure"] > 0.1
    assert summary["spared"]["lossless"] == 0
    shown = Counter(text["origins"].count("s") for text in texts_on(folder / "report.html"))
    assert shown == Counter(texts["spared"]), "what was spared is coloured as such"


def texts_on(page: Path) -> list[Any]:
    """The texts in a page's browser of examples."""
    data = html.fromstring(page.read_text()).xpath("//script[@id='examples-data']/text()")[0]
    return [text for chunk in json.loads(data)["chunks"] for text in unpacked(chunk)["texts"]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["drafter.low=0.9", "drafter.high=0.5"], "low must be at most high, got low=0.9 and high=0.5"),
        (["drafter.low=0"], "low must be in (0, 1], got 0"),
        (["drafter.high=1.5"], "high must be in (0, 1], got 1.5"),
        (["drafter.chunk=0"], "chunk must be a whole number of at least 1, got 0"),
        (["drafter.exit_layer=0"], "exit_layer must be a whole number from 1 to"),
        (["drafter.exit_layer=99"], "exit_layer must be a whole number from 1 to"),
        (["model.draft=null"], "drafter=tiers needs a draft model"),
        (["drafter=model"], "verifier=sure keeps what a drafter is sure of, and drafter=model is never sure"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path, capsys, given, sentence):
    rest = [word for word in words(tmp_path, 2) if not word.startswith(tuple(g.split("=")[0] + "=" for g in given))]
    if "drafter=model" in given:
        rest = [word for word in rest if not word.startswith("drafter")]
    assert main([*rest, *given]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_a_span_around_what_is_sure_spares_it_as_the_rule_does(models, temperature):
    """Within a span that begins with the prompt and never ends, texts and origins are those of the rule inside it."""
    inner, options = Sure(Exact()), {"temperature": temperature, "prompts": [[*prompt, 7] for prompt in PROMPTS]}
    plain, inside = (decode(models, [rule], **options) for rule in (inner, Within(inner, begin=7, end=60)))
    assert count_sure(plain)
    for a, b in zip(plain, inside, strict=True):
        if 60 not in a.tokens:
            assert (a.tokens, a.origins) == (b.tokens, b.origins)
