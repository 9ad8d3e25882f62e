"""Greedy decoding equals transformers' own, token for token."""

import pytest
import torch

import sdbench
from sdbench.verify import Ensemble, Exact
from tests.engine.models import ARCHITECTURES, PAD, pair, prompts

torch.set_num_threads(1)
NEW = 24


def reference(target, ids: list[int], **options) -> list[int]:
    out = target.generate(
        torch.tensor([ids]), max_new_tokens=NEW, do_sample=False, attention_mask=torch.ones(1, len(ids)).long(), **options
    )
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_exact_is_generate(kind, attention):
    target, draft = pair(kind, attention=attention)
    texts = prompts(5)
    want = [reference(target, ids) for ids in texts]
    for model, num_draft in ((draft, 4), (None, 0)):
        got = sdbench.generate(target, model, texts, num_draft=num_draft, temperature=0, max_new_tokens=NEW, batch_size=3)
        assert [list(g.tokens) for g in got] == want


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_blend_is_assistant_ensemble_weight(kind):
    target, draft = pair(kind)
    texts = prompts(4, low=2)
    config = draft.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = 4, "constant"
    config.assistant_confidence_threshold, config.pad_token_id = 0.0, PAD
    weights = (0.3, 0.5, 0.7, 0.9)
    got = sdbench.generate(
        target, draft, texts, verifiers=[Ensemble(w=w) for w in weights], num_draft=4, temperature=0, max_new_tokens=NEW
    )
    for i, ids in enumerate(texts):
        for j, w in enumerate(weights):
            want = reference(target, ids, assistant_model=draft, assistant_ensemble_weight=w)
            assert list(got[i * len(weights) + j].tokens) == want, (i, w)


def test_rules_of_two_families_share_a_batch():
    target, draft = pair()
    texts = prompts(6)
    both = sdbench.generate(
        target, draft, texts, verifiers=[Exact(), Ensemble(w=0.3)], temperature=0, max_new_tokens=NEW, batch_size=5
    )
    for j, rule in enumerate((Exact(), Ensemble(w=0.3))):
        alone = sdbench.generate(target, draft, texts, verifiers=[rule], temperature=0, max_new_tokens=NEW)
        assert [g.tokens for g in both[j::2]] == [g.tokens for g in alone]
