"""Output depends on (seed, key, sample, verifier) only, and the counts of a generation agree with its text."""

import dataclasses
import random
from contextlib import nullcontext

import pytest
import torch

import sdbench
from sdbench.engine import Options, Request
from sdbench.verify import Ensemble, Exact
from tests.engine.models import PROMPTS, pair
from tests.engine.shortage import runs_short

RULES = [Exact(), Ensemble(w=0.5), Ensemble(w=0.2, mix="logit")]
OPTIONS = {"num_draft": 4, "max_new_tokens": 24, "samples": 2, "seed": 7}


@pytest.fixture(scope="module")
def models():
    return pair("qwen3")


@pytest.fixture(scope="module")
def once(models):
    return sdbench.generate(*models, PROMPTS, RULES, batch_size=1, **OPTIONS)


def same(a, b):
    exact = ("tokens", "finish", "drafted", "examined", "accepted", "origins", "draft_tokens")
    assert all(getattr(a, name) == getattr(b, name) for name in exact)
    for name in ("p", "q", "tv", "expected", "bias"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("batch_size", [3, 32])
def test_the_batch_size_does_not_show(models, once, batch_size):
    for a, b in zip(once, sdbench.generate(*models, PROMPTS, RULES, batch_size=batch_size, **OPTIONS), strict=True):
        same(a, b)


def test_the_order_of_prompts_does_not_show_with_their_keys(models, once):
    order = random.Random(0).sample(range(len(PROMPTS)), len(PROMPTS))
    shuffled = sdbench.generate(*models, [PROMPTS[i] for i in order], RULES, keys=order, batch_size=5, **OPTIONS)
    by_place = {(order[g.prompt], g.verifier, g.sample): g for g in shuffled}
    for generation in once:
        same(generation, by_place[generation.prompt, generation.verifier, generation.sample])


def test_what_else_is_in_the_batch_does_not_show(models, once):
    alone = sdbench.generate(*models, PROMPTS[2:3], RULES[1:2], keys=[2], **OPTIONS)
    wanted = [g for g in once if g.prompt == 2 and g.verifier == 1]
    for a, b in zip(alone, wanted, strict=True):
        same(a, b)


def test_w_1_is_lossless_sample_by_sample(models):
    exact, ensemble = (sdbench.generate(*models, PROMPTS, [rule], **OPTIONS) for rule in (Exact(), Ensemble(w=1)))
    for a, b in zip(exact, ensemble, strict=True):
        same(a, b)


def test_sums_over_rounds_agree_with_the_text(models, once):
    for g in once:
        assert len(g.drafted) == len(g.examined) == len(g.accepted)
        assert sum(g.drafted) == len(g.draft_tokens) == len(g.p) == len(g.q)
        assert sum(g.examined) == len(g.tv) == len(g.expected) == len(g.bias)
        assert sum(g.accepted) == g.origins.count("accepted")
        assert len(g.origins) == len(g.tokens)
        assert all(d >= e >= a for d, e, a in zip(g.drafted, g.examined, g.accepted, strict=True))
        place = 0
        for number, accepted in enumerate(g.accepted):
            emitted = accepted + 1 if number + 1 < len(g.accepted) else len(g.tokens) - place
            assert g.origins[place : place + accepted] == ("accepted",) * accepted
            place += emitted
        assert place == len(g.tokens)
        assert (g.finish == "stop") == (g.tokens[-1] in (3, 4))
        assert all(d <= min(4, 24 - 1) for d in g.drafted)


def test_a_stop_is_cut_where_it_stands(models):
    free = sdbench.generate(*models, PROMPTS, RULES, stop_ids=(), **OPTIONS)
    for g in free:
        assert len(g.tokens) == OPTIONS["max_new_tokens"]
        assert g.finish == "length"
    stopped = sdbench.generate(*models, PROMPTS, RULES, stop_ids=(), should_stop=lambda ids: len(ids) == 7, **OPTIONS)
    for g, whole in zip(stopped, free, strict=True):
        assert g.tokens == whole.tokens[:7]
        assert g.finish == "stop"


def test_measures_are_laws_of_the_ensemble(models):
    w = 0.3
    for g in sdbench.generate(*models, PROMPTS, [Ensemble(w=w)], **OPTIONS):
        tv = torch.tensor(g.tv)
        assert torch.allclose(torch.tensor(g.expected), 1 - w * tv, atol=1e-12)
        assert torch.allclose(torch.tensor(g.bias), (1 - w) * tv, atol=1e-12)


def test_measure_off_changes_nothing_else(models, once):
    bare = sdbench.generate(*models, PROMPTS, RULES, measure=False, **OPTIONS)
    for a, b in zip(once, bare, strict=True):
        assert dataclasses.replace(a, p=(), q=(), tv=(), expected=(), bias=(), request=b.request) == b


def test_padded_vocabularies_are_one(models):
    target, _ = models
    _, draft = pair("qwen3", vocab=61 + 40)
    decoded = sdbench.generate(target, draft, PROMPTS, [Ensemble(w=0.0)], **OPTIONS)
    assert max(token for g in decoded for token in g.draft_tokens) < 61
    small = sdbench.generate(*models, PROMPTS[:2], [Exact()], vocab_size=50, **OPTIONS)
    assert max(token for g in small for token in g.tokens) < 50


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("capture", ["graphs", "trace"])
def test_captured_steps_give_the_same_texts(models, temperature, capture):
    """Fixed rows, slots and lengths, inputs and outputs that stay in place: a CUDA graph's conditions, rehearsed; and traces."""
    rules = [Ensemble(w=0.5), Ensemble(w=0.2, greedy="mixture"), Ensemble(w=0.2, mix="logit")]
    options = {**OPTIONS, "samples": 1, "temperature": temperature, "batch_size": 5}
    eager = sdbench.generate(*models, PROMPTS, rules, capture="off", **options)
    engine = sdbench.Engine(*models, capture=capture)
    for _ in range(2):  # the second time over the first's caches and captured steps
        for a, b in zip(eager, sdbench.generate(None, None, PROMPTS, rules, engine=engine, **options), strict=True):
            same(a, b)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("injected"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."),
        MemoryError(),
    ],
    ids=["torch", "cpu", "python"],
)
def test_memory_that_runs_out_halves_the_batch_and_loses_nothing(models, once, monkeypatch, error):
    runs_short(monkeypatch, above=6, after=2, error=error)
    with pytest.warns(ResourceWarning, match="out of memory with 12 rows; going on with 6"):
        decoded = sdbench.generate(*models, PROMPTS, RULES, batch_size=12, **OPTIONS)
    for a, b in zip(once, decoded, strict=True):
        same(a, b)


def test_a_timed_batch_is_not_halved(models, monkeypatch):
    """Its seconds would stand under a batch size that it no longer has."""
    runs_short(monkeypatch, above=6, after=2)
    with pytest.raises(torch.OutOfMemoryError):
        sdbench.generate(*models, PROMPTS, RULES, batch_size=12, timing=True, **OPTIONS)


def test_texts_that_are_restarted_are_counted_once(models, monkeypatch):
    runs_short(monkeypatch, above=6, after=2)
    engine = sdbench.Engine(*models)
    counts: list[tuple[int, int]] = []
    requests = [Request(n, 0, sample, str(n), 4) for n in range(len(PROMPTS)) for sample in range(2)]
    options = Options(engine.warp(1.0), 24, batch_size=12, watch=lambda *added: counts.append(added))
    with pytest.warns(ResourceWarning, match="going on with 4"):
        decoded = list(engine.stream(PROMPTS, [Exact()], requests, options, engine.drafter("model", options.warp)))
    assert tuple(map(sum, zip(*counts, strict=True))) == (len(requests), sum(len(g.tokens) for g in decoded))


@pytest.mark.parametrize("size", [1, 5])
def test_a_batch_is_filled_from_the_next_share_before_it_runs_out(models, size):
    """Requests claimed a few at a time are decoded in as many rounds as all at once, and to the same texts."""
    engine = sdbench.Engine(*models)
    requests = [Request(n, 0, sample, str(n), 4) for n in range(len(PROMPTS)) for sample in range(3)]
    options = Options(engine.warp(1.0), 24, seed=7, batch_size=4)

    def decode(claim=None):
        phases = []
        engine.hook = lambda phase, _: phases.append(phase) or nullcontext()
        drafter = engine.drafter("model", options.warp)
        decoded = list(engine.stream(PROMPTS, [Exact()], requests, options, drafter, claim=claim))
        return sorted(decoded, key=lambda g: g.request), phases.count("round")

    shares = iter([range(n, min(n + size, len(requests))) for n in range(0, len(requests), size)])
    whole, part = decode(), decode(lambda: next(shares, ()))
    assert part[1] == whole[1]
    assert [g.request for g in part[0]] == list(range(len(requests)))
    for a, b in zip(whole[0], part[0], strict=True):
        same(a, b)


def test_what_is_not_claimed_is_not_decoded(models):
    engine = sdbench.Engine(*models)
    requests = [Request(n, 0, 0, str(n), 4) for n in range(4)]
    shares = iter([[2], []])
    options = Options(engine.warp(1.0), 24, batch_size=4)
    drafter = engine.drafter("model", options.warp)
    claimed = engine.stream(PROMPTS, [Exact()], requests, options, drafter, claim=lambda: next(shares))
    assert [g.request for g in claimed] == [2]
