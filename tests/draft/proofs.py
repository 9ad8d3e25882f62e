"""What a drafter has to show, whichever it is: greedy texts; over the target's own layers also their independence and its law."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import sdbench
from sdbench.verify import Ensemble, Exact
from tests.engine.models import FAMILIES, PROMPTS, pair, tiny
from tests.engine.test_invariance import same

LAYERS, NEW = 4, 24  # texts outgrow the sliding window of 12
EXACT = [Exact()]
OPTIONS: dict[str, Any] = {"num_draft": 4, "max_new_tokens": NEW, "stop_ids": ()}
REPEATING = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [9, 9, 9, 9], [11, 12], *PROMPTS]  # something to look up
# Seventeen drafters in five families and three batches. What differs between families is in the engine, whose own tests have
# all of them: here the quick tests have one, the slow ones one with windows, and the long ones the others.
SET_OF = {"gemma3": pytest.mark.slow}
by_slow_family = pytest.mark.parametrize(
    "family",
    [name if name == "llama" else pytest.param(name, marks=SET_OF.get(name, pytest.mark.long)) for name in FAMILIES],
)
by_batch = pytest.mark.parametrize(
    ("batch_size", "capture"),
    [(1, "off"), (32, "graphs"), pytest.param(3, "trace", marks=pytest.mark.slow)],
)


@cache
def models_of(family: str) -> tuple[Any, Any]:
    """A target of this family and its draft."""
    return pair(family, attention="eager" if family == "gemma2" else "sdpa")


@cache
def greedy_texts(family: str) -> list[list[int]]:
    """What `generate` of transformers continues REPEATING with, by the target alone."""
    return texts_alone(models_of(family)[0], REPEATING)


def texts_alone(target: Any, prompts: Sequence[list[int]]) -> list[list[int]]:
    """The greedy texts of `generate` after these prompts."""
    greedy = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None}
    return [target.generate(torch.tensor([p]), **greedy)[0, len(p) :].tolist() for p in prompts]


def assert_drafts_change_no_text(family: str, engine: sdbench.Engine, drafter: Any, batch_size: int) -> None:
    """Lossless texts at T = 0 equal those of `generate`: of ragged prompts, more than there are rows, in captured steps."""
    times = 1 + batch_size // len(REPEATING)
    options = {**OPTIONS, "temperature": 0.0, "batch_size": batch_size}
    decoded = sdbench.generate(None, None, REPEATING * times, EXACT, engine=engine, drafter=drafter, **options)
    assert [list(g.tokens) for g in decoded] == greedy_texts(family) * times
    assert sum(sum(g.drafted) for g in decoded) > 0, "something was drafted"
    for model in engine.models:
        assert model.mode == engine.capture, "no step was refused"
    if engine.capture != "off":
        assert engine.target._kept.steps._steps, "captured steps were used"


def target_of(family: str, quiet: slice, **options: Any) -> Any:
    """A random target whose layers in `quiet` change little, so that it drafts well without them."""
    model = tiny(family, layers=LAYERS, attention="eager" if family == "gemma2" else "sdpa", **options)
    for layer in model.model.layers[quiet]:
        layer.self_attn.o_proj.weight.data.mul_(0.2)
        layer.mlp.down_proj.weight.data.mul_(0.2)
        for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
            if family.startswith("gemma"):
                getattr(layer, name).weight.data.fill_(-0.8)
    return model


def repeating_target() -> Any:
    """A target that says its last token again."""
    target = target_of("llama", slice(0, LAYERS))
    for layer in target.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    target.lm_head.weight.data[:] = torch.nn.functional.normalize(target.model.embed_tokens.weight.data)
    return target


def decode(target: Any, name: str, knobs: Any, rules: Any = EXACT, capture: Any = "off", **options: Any) -> Any:
    """Decode PROMPTS with the drafter of this name and knobs in a new engine."""
    engine = sdbench.Engine(target, capture=capture)
    engine.capture_at_once()
    warp = engine.warp(options.get("temperature", 1.0), None, options.get("top_p"))
    options = {**OPTIONS, "engine": engine, "drafter": engine.drafter(name, warp, knobs), **options}
    return sdbench.generate(None, None, options.pop("prompts", PROMPTS), rules, **options)


def assert_greedy_is_the_target(
    target: Any, name: str, settings: Sequence[tuple[Any, int, Any]], least: int = 50
) -> None:
    """Lossless texts at T = 0 equal those of `generate`, at each (knobs, batch size, capture)."""
    alone, num_accepted = texts_alone(target, PROMPTS), 0
    for knobs, batch_size, capture in settings:
        decoded = decode(target, name, knobs, temperature=0.0, batch_size=batch_size, capture=capture)
        assert [list(g.tokens) for g in decoded] == alone, (knobs, batch_size, capture)
        num_accepted += sum(sum(g.accepted) for g in decoded)
    assert num_accepted >= least, "a draft that is never right proves little"


def assert_texts_stand_alone(target: Any, name: str, knobs: Any, temperature: float, capture: Any) -> None:
    """Texts do not depend on the batch size, on captured steps, on the order of prompts or on what is decoded beside them."""
    rules = [Exact(), Ensemble(w=0.5), Ensemble(w=0.2, mix="logit")]
    once = decode(target, name, knobs, rules, temperature=temperature, batch_size=1)
    again = decode(target, name, knobs, rules, capture, temperature=temperature, batch_size=5)
    for a, b in zip(once, again, strict=True):
        same(a, b)
    order = [2, 0, 3, 1]
    prompts = [PROMPTS[i] for i in order]
    shuffled = decode(target, name, knobs, rules, temperature=temperature, batch_size=5, prompts=prompts, keys=order)
    texts = {(order[g.prompt], g.verifier): g for g in shuffled}
    for g in once:
        same(g, replace(texts[g.prompt, g.verifier], prompt=g.prompt))


def assert_q_is_the_law_of(model: Any, target: Any, decoded: Any, top_p: float | None) -> None:
    """The recorded q and p of every drafted token are those of `model` and of the target, read by transformers' own means."""
    warp = sdbench.Engine(target).warp(1.0, None, top_p)
    for g in decoded:
        text, at, drafted = [*PROMPTS[g.prompt], *g.tokens], len(PROMPTS[g.prompt]), 0
        for width, accepted in zip(g.drafted, g.accepted, strict=True):
            ids = torch.tensor([text[:at] + list(g.draft_tokens[drafted : drafted + width])])
            for each, values in ((model, g.q), (target, g.p)):
                law = warp.law(warp.logits(each(ids).logits[0, at - 1 : -1]))
                wanted = law.gather(1, ids[0, at:, None])[:, 0]
                assert values[drafted : drafted + width] == pytest.approx(wanted.tolist(), abs=1e-9)
            at, drafted = at + accepted + 1, drafted + width
