"""docs/examples/reference.py decodes what the engine decodes: with the same uniforms the same texts, so the same law."""

import sys

import numpy as np
import pytest
import torch

import sdbench
from sdbench import noise
from sdbench.verify import Cactus, Coin, Ensemble, Exact, Lenience, SGLang, Typical
from tests.contracts.parts import EXAMPLES
from tests.engine.models import tiny

sys.path.insert(0, str(EXAMPLES))
from reference import decode

PROMPT, NUM_DRAFT, NUM_NEW, VOCAB, SAMPLES = [3, 1, 4], 3, 9, 7, 12
RULES = [Exact(), Ensemble(w=0.4), Lenience(0.5), Typical(), SGLang(0.6, 0.8), Cactus(0.3), Coin(Typical())]


@pytest.fixture(scope="module")
def models():
    return tiny("llama", vocab=VOCAB, seed=1), tiny("llama", vocab=VOCAB, seed=2)


def law_of(model):
    def law(text):
        with torch.no_grad():
            return model(torch.tensor([text])).logits[0, -1].double().softmax(-1).tolist()

    return law


def uniforms_of(sample):
    key, slots = noise.stream_key(0, 0, sample), noise.slots(NUM_DRAFT)

    def uniforms(number):
        draw, judge = (
            noise.uniforms(key[None], np.array([number]), slots, stream)[0] for stream in (noise.DRAFT, noise.VERIFY)
        )
        return draw[:-1], judge[:-1], judge[-1]

    return uniforms


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_reference_decodes_the_texts_of_the_engine(models, rule):
    target, draft = models
    generations = sdbench.generate(
        target,
        draft,
        [PROMPT],
        [rule],
        num_draft=NUM_DRAFT,
        max_new_tokens=NUM_NEW,
        samples=SAMPLES,
        stop_ids=(),
    )
    laws = law_of(target), law_of(draft)
    for generation in generations:
        uniforms = uniforms_of(generation.sample)
        text = decode(PROMPT, *laws, rule, num_draft=NUM_DRAFT, num_new=NUM_NEW, uniforms=uniforms)
        assert tuple(text) == generation.tokens
