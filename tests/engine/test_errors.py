"""The user's mistakes are sentences that name option, rule and value, before anything is decoded."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

import sdbench
from sdbench.engine.engine import refuse_foreign_ids
from sdbench.verify import Cactus, Contrastive, Ensemble, Exact, Lossy
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
        ({"prompts": [1, 2, 3]}, "prompts must be a list of lists of token ids, but prompt 0 is 1"),
        ({"prompts": ["abc"]}, "prompts must be a list of lists of token ids, but prompt 0 is 'abc'"),
        ({"prompts": "abc"}, "prompts must be a list, got 'abc'"),
        ({"prompts": [[1, 2.5]]}, "prompts must be whole numbers, token ids, but prompt 0 has 2.5"),
        ({"prompts": [[1, -7, 5]]}, "prompts must be ids from 0 to 60, but prompt 0 has -7"),
        ({"stop_ids": 2}, "stop_ids must be a list of token ids, but it is 2"),
        ({"stop_ids": [61]}, "stop_ids must be ids from 0 to 60, but it has 61"),
        ({"num_draft": 2.5}, "num_draft must be a whole number, got 2.5"),
        ({"samples": True}, "samples must be"),
        ({"verifiers": Exact()}, r"verifiers must be a list of rules, such as \[Exact\(\)\], got Exact"),
        ({"verifiers": [Exact]}, "verifiers must be rules, such as Exact.., but one is Exact"),
        ({"verifiers": []}, "verifiers must name at least one rule"),
        ({"verifiers": [Ensemble(w=torch.tensor(0.5))]}, "w of Ensemble must be a number, got a tensor"),
        ({"temperature": 1e-320}, "temperature must be 0, or at least"),
    ],
)
def test_bad_options(models, options, sentence):
    given = {"prompts": [[1, 2, 3]], "verifiers": [Exact()], **options}
    with pytest.raises(ValueError, match=sentence):
        sdbench.generate(*models, **given)


def test_keys_are_the_numbers_and_strings_they_are_and_samples_at_temperature_0_are_for_rules_that_draw(models):
    import numpy as np

    options = {"max_new_tokens": 8, "stop_ids": ()}
    numbers = sdbench.generate(*models, [[1, 2], [3, 4]], [Exact()], keys=np.arange(2), **options)  # type: ignore[arg-type]
    assert numbers == sdbench.generate(*models, [[1, 2], [3, 4]], [Exact()], **options)
    texts = {}
    for kind in (list, np.array):
        names = kind(["a", "b"])
        texts[kind] = sdbench.generate(*models, [[1, 2], [3, 4]], [Exact()], keys=names, **options)
    assert texts[list] == texts[np.array]
    drawn = sdbench.generate(
        *models, [[1, 2]], [Ensemble(w=0.3, greedy="mixture")], samples=8, temperature=0, num_draft=3, **options
    )
    assert len({g.tokens for g in drawn}) > 1


@pytest.mark.parametrize("w", [-0.1, 1.5, float("nan")])
def test_w_outside_its_range(w):
    with pytest.raises(ValueError, match=r"w of Ensemble must be a number in \[0, 1\]"):
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


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("token", [-1, 61 + 7])
def test_a_token_of_a_rule_from_outside_that_is_no_id_is_refused_by_the_rules_name(models, token, temperature):
    """It is not recorded, read as another id, or taken for NaN logits, for which the id is 61."""

    class Wrong(Exact):
        def __call__(self, evidence, u, state=None):
            return replace(Exact.__call__(self, evidence, u, state), next_token=torch.full((len(u),), token))

    with pytest.raises(ValueError, match=f"^Wrong emitted the token {token}, which is not a token id$"):
        sdbench.generate(*models, [[1, 2, 3]], [Exact(), Wrong()], temperature=temperature)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_put_into_training_mode_after_its_engine_was_built_is_named(role):
    """As after an epoch of a training loop: its dropout would change the laws."""
    engine = sdbench.Engine(*pair("llama"))
    getattr(engine, f"{role}_model").train()
    options = {"engine": engine, "max_new_tokens": 2}
    with pytest.raises(ValueError, match=f"^{role} model of type 'llama' is in training mode: call model.eval"):
        sdbench.generate(None, None, [[1, 2, 3]], [Exact()], **options)
    getattr(engine, f"{role}_model").eval()
    assert sdbench.generate(None, None, [[1, 2, 3]], [Exact()], **options)


def test_a_model_with_recurrent_state_is_refused_by_name():
    mamba = MambaForCausalLM(MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(ValueError, match="mamba"):
        sdbench.generate(mamba, None, [[1]], [Exact()])


def test_a_prompt_with_an_id_that_the_pair_does_not_share_is_named():
    """A target may have markers that its draft lacks: their embedding would be read beyond its end."""
    with pytest.raises(ValueError, match=r"^prompt 1 has the token id 9, and only ids below 9 are used by all models"):
        refuse_foreign_ids([[1, 8], [9, 2], [30]], [0, 1], 9)
    refuse_foreign_ids([[1, 8], [30]], [0], 9)


@pytest.mark.parametrize("keys", [[1.5, 2.5], 5])
def test_keys_that_are_none_are_one_sentence(keys):
    models = pair("llama")
    with pytest.raises(ValueError, match=r"^keys must be a list of whole numbers or texts, got"):
        sdbench.generate(*models, [[1, 2], [3]], [Exact()], keys=keys, max_new_tokens=2)


@pytest.mark.parametrize(
    "rule",
    [lambda: Lossy(alpha=0.1, beta=math.inf), lambda: Contrastive(alpha=0.1, beta=math.inf), lambda: Cactus(math.inf)],
)
def test_a_knob_without_a_limit_is_refused_and_no_law_of_nan(rule):
    with pytest.raises(ValueError, match=r"must be a number in .0, 10\]"):
        rule()
