"""The user's mistakes are sentences that name option, rule and value, before anything is decoded."""

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

import sdbench
from sdbench.verify import Ensemble, Exact
from tests.engine.models import pair, tiny


@pytest.fixture(scope="module")
def models():
    return pair("llama")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_draft": -1}, "num_draft must be at least 0, got -1"),
        ({"samples": 2, "temperature": 0}, "samples must be 1 at temperature 0"),
        ({"prompts": [[1], []]}, "prompt 1 is"),
        ({"prompts": [[1, 99]]}, "prompts must be ids from 0 to 60"),
        ({"max_new_tokens": 300}, "max_new_tokens=300 after the 3 tokens of prompt 0 exceeds the 256 positions"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"keys": [1, 2]}, "keys must be one per prompt"),
        ({"vocab_size": 62}, "vocab_size must be between 1 and 61"),
        ({"timing": "all"}, "timing must be"),
    ],
)
def test_bad_options(models, options, sentence):
    prompts = options.pop("prompts", [[1, 2, 3]])
    with pytest.raises(ValueError, match=sentence):
        sdbench.generate(*models, prompts, [Exact()], **options)


@pytest.mark.parametrize("w", [-0.1, 1.5, float("nan")])
def test_w_outside_its_range(w):
    with pytest.raises(ValueError, match=r"w of Ensemble must be in \[0, 1\]"):
        Ensemble(w=w)


def test_vocabularies_that_do_not_match(models):
    with pytest.raises(ValueError, match="have 61 and 400 ids"):
        sdbench.generate(models[0], tiny("llama", vocab=400), [[1]], [Exact()])


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("broken", ["target", "draft"])
def test_nan_logits_are_an_error_at_the_first_step(temperature, broken):
    target, draft = pair("llama")
    sick = target if broken == "target" else draft
    sick.get_output_embeddings().weight.data[7] = torch.nan
    with pytest.raises(ValueError, match=f"the {broken} model's logits are NaN"):
        sdbench.generate(target, draft, [[1, 2, 3]], [Exact()], temperature=temperature)


def test_a_model_with_recurrent_state_is_refused_by_name():
    mamba = MambaForCausalLM(MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(ValueError, match="mamba"):
        sdbench.generate(mamba, None, [[1]], [Exact()])
