"""At temperature 0 our text is transformers' own, token for token, in every family, past the sliding window."""

import pytest
import torch

import sdbench
from sdbench.verify import Ensemble, Exact
from tests.engine.models import PROMPTS, by_family, pair, tiny

WS = (0.3, 0.5, 0.7, 0.9)
NEW = 40  # longer than the sliding window of 12


def reference(target, draft, prompt, w):
    options = {} if w is None else {"assistant_model": draft, "assistant_ensemble_weight": w}
    ids = target.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW, **options)
    return ids[0, len(prompt) :].tolist()


@by_family
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_greedy_is_token_for_token_that_of_transformers(family, attention):
    if family == "gemma2" and attention == "sdpa":
        attention = "eager"  # transformers itself soft-caps in eager only
    target, draft = pair(family, attention=attention)
    rules = [Exact(), *(Ensemble(w=w) for w in WS)]
    decoded = sdbench.generate(target, draft, PROMPTS, rules, temperature=0, max_new_tokens=NEW, batch_size=7)
    for generation in decoded:
        w = (None, *WS)[generation.verifier]
        assert list(generation.tokens) == reference(target, draft, PROMPTS[generation.prompt], w), (family, w)
    assert sum(sum(g.accepted) for g in decoded) > 20, "a draft that is never right proves little"


def test_without_a_draft_it_is_plain_decoding():
    target = tiny("llama")
    decoded = sdbench.generate(target, None, PROMPTS, [Exact()], temperature=0, max_new_tokens=NEW)
    for prompt, generation in zip(PROMPTS, decoded, strict=True):
        assert list(generation.tokens) == reference(target, None, prompt, None)
        assert generation.drafted == (0,) * len(generation.tokens)
        assert set(generation.origins) <= {"bonus"}


def test_the_model_is_left_as_it_was():
    target, draft = pair("gemma3")
    before = reference(target, draft, PROMPTS[2], None)
    sdbench.generate(target, draft, PROMPTS, [Exact()], temperature=0, max_new_tokens=8)
    assert target.config._attn_implementation == "sdpa"
    assert reference(target, draft, PROMPTS[2], None) == before
