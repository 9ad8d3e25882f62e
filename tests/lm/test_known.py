"""Prompts that begin alike are read once, by every stream of a model, and no text changes."""

from typing import Any

import pytest
import torch

import sdbench
from sdbench.engine import Engine, Options, Request
from sdbench.lm.known import KnownPrefixes
from sdbench.lm.memory import KNOWN_BYTES, ModelShape, peak_bytes
from sdbench.lm.model import LM
from sdbench.verify import Ensemble, Exact
from tests.engine.models import FAMILIES, pair

SHOTS = [3 + (11 * i) % 47 for i in range(40)]
PROMPTS = [[*SHOTS, *[5 + (n + i) % 41 for i in range(3 + 4 * n)]] for n in range(5)]
RULES = [Exact(), Ensemble(w=0.4)]


@pytest.fixture
def tokens_read(monkeypatch) -> dict[str, int]:
    """How many prompt tokens each model computes, padding included."""
    count = {"target": 0, "draft": 0}
    honest = LM.forward_hidden

    def counted(self: Any, ids: Any, plan: Any, *args: Any, **options: Any) -> Any:
        count[self.role] += ids.numel() if plan.start is not None else 0
        return honest(self, ids, plan, *args, **options)

    monkeypatch.setattr(LM, "forward_hidden", counted)
    return count


def decode(engine: Engine, role: str) -> list[tuple[int, ...]]:
    options = Options(engine.warp(), 12, batch_size=4)
    num_draft = 3 if role == "pair" else 0
    requests = [Request(n, rule, 0, n, num_draft) for n in range(len(PROMPTS)) for rule in range(2 if num_draft else 1)]
    drafter = engine.drafter("model", options.warp) if num_draft else None
    role = "draft" if role == "draft" else "target"
    generations = engine.stream(PROMPTS, RULES, requests, options, drafter, role=role)
    return [g.tokens for g in sorted(generations, key=lambda g: g.request)]


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_those_of_prompts_that_are_read_in_full(family, tokens_read, monkeypatch):
    monkeypatch.setattr("sdbench.engine.prefill.CHUNK", 60)  # so that prompts come one by one
    models = pair(family, attention="eager")
    plain, keeping = Engine(*models), Engine(*models)
    roles = ("pair", "target", "draft")
    whole = [decode(plain, role) for role in roles]
    in_full = dict(tokens_read)
    for lm in keeping.models:
        lm.known = KnownPrefixes()
    tokens_read.update(target=0, draft=0)
    assert [decode(keeping, role) for role in roles] == whole
    new = sum(len(prompt) - len(SHOTS) for prompt in PROMPTS)
    assert in_full["target"] >= 2 * sum(len(prompt) - 1 for prompt in PROMPTS)
    assert tokens_read["target"] <= len(SHOTS) + new, "the shots once, and each prompt once for both streams"
    assert tokens_read["draft"] <= len(SHOTS) + new, "the drafter reads all but two tokens, and alone one more"


def test_the_oldest_go_when_there_is_no_more_room():
    model = LM(pair("llama")[0])
    one = [torch.tensor([n] * 20) for n in range(4)]
    with torch.inference_mode():
        size = model.prefill_all(one[:1])[0].nbytes
        model.known = KnownPrefixes(2 * size)
        for prompt in one:
            model.prefill_all([prompt])
    assert [model.known.longest([prompt])[0] for prompt in one] == [0, 0, 20, 20]


def test_states_of_a_prompt_are_computed_where_a_drafter_reads_them():
    model = LM(pair("llama")[0])
    model.known = KnownPrefixes()
    with torch.inference_mode():
        first, again = (model.prefill_all([torch.tensor(PROMPTS[0])], needs={"target_hidden"})[0] for _ in range(2))
    assert first.hidden is not None
    assert again.hidden is not None
    assert torch.equal(first.hidden, again.hidden)


def test_the_plan_counts_them():
    shape = ModelShape(weights=0, token=28_672, vocab_size=100, width=2)
    bare, keeping = (
        peak_bytes(shape, None, num_rows=64, length=900, num_draft=5, keeps_prompts=x) for x in (False, True)
    )
    assert keeping.cache - bare.cache == KNOWN_BYTES
    long, keeping_long = (
        peak_bytes(shape, None, num_rows=1, length=20_000, num_draft=5, keeps_prompts=x) for x in (False, True)
    )
    assert keeping_long.cache - long.cache == 20_000 * shape.token > KNOWN_BYTES, "the newest prompt, however long"


def test_they_are_freed_when_memory_runs_out():
    engine = Engine(*pair("llama"))
    prompt = torch.tensor(PROMPTS[0])
    with torch.inference_mode():
        for model in engine.models:
            model.known = KnownPrefixes(7)
            model.prefill_all([prompt])
    assert all(model.known.longest([prompt])[0] for model in engine.models)
    engine.forget()
    assert all((model.known.longest([prompt])[0], model.known.most_bytes) == (0, 7) for model in engine.models)


def test_a_call_of_the_library_keeps_nothing():
    """Whoever calls `generate` may change the weights between two calls."""
    engine = Engine(*pair("llama"))
    sdbench.generate(None, None, PROMPTS, RULES, engine=engine, max_new_tokens=4, stop_ids=())
    assert all(lm.known is None for lm in engine.models)
