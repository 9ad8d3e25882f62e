"""The pairs that ship: real models in ordinary folders, of the shapes and by the recipes that the package states."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from scripts.tiny.data import texts
from scripts.tiny.make import pair_of, tokenizer_of
from scripts.tiny.pairs import TASKS
from sdbench import embedded
from sdbench.embedded import PAIRS, ROLES

CLASSES = {"llama-tiny": "LlamaForCausalLM", "qwen-tiny": "Qwen3ForCausalLM", "gemma-tiny": "Gemma3ForCausalLM"}


@cache
def tokenizer(pair: str):
    return AutoTokenizer.from_pretrained(embedded.path(pair, "target"))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("role", ROLES)
def test_each_loads_as_a_model_of_its_class_in_bf16(pair, role):
    model = AutoModelForCausalLM.from_pretrained(embedded.path(pair, role), dtype="auto")
    assert type(model).__name__ == CLASSES[pair]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert 1000 <= model.config.vocab_size <= 2000
    shape = model.config.num_hidden_layers, model.config.hidden_size
    assert shape == ((18, 128) if role == "target" else (2, 96))


@pytest.mark.parametrize("pair", PAIRS)
def test_target_and_draft_share_a_tokenizer_with_a_chat_template_that_no_other_pair_has(pair):
    files = [(embedded.path(pair, role) / "tokenizer.json").read_bytes() for role in ROLES]
    assert files[0] == files[1]
    others = {(embedded.path(other, "target") / "tokenizer.json").read_bytes() for other in PAIRS if other != pair}
    assert files[0] not in others
    chat = [{"role": "user", "content": "Hello"}]
    assert tokenizer(pair).apply_chat_template(chat, tokenize=False, add_generation_prompt=True).endswith("assistant:")


def test_sliding_windows_are_shorter_than_the_prompts():
    config = AutoConfig.from_pretrained(embedded.path("gemma-tiny", "target"))
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    for task in TASKS:
        lengths = [len(tokenizer("gemma-tiny")(row.prompt)["input_ids"]) for row in texts(task, "test", 500)]
        assert min(lengths) > config.sliding_window, task


@pytest.mark.parametrize("pair", PAIRS)
def test_each_has_a_card(pair):
    card = (Path(embedded.__file__).parent / pair / "README.md").read_text()
    assert f"`{CLASSES[pair]}`" in card
    assert f"scripts/train_tiny.py pair={pair}" in card


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_todays_recipe_and_rows_make_its_tokenizer(pair, tmp_path):
    tokenizer_of(pair_of(pair)).save_pretrained(tmp_path)
    shipped = embedded.path(pair, "target") / "tokenizer.json"
    assert (tmp_path / "tokenizer.json").read_bytes() == shipped.read_bytes()


@pytest.mark.parametrize("pair", PAIRS)
def test_what_it_took_is_that_of_its_recipe_and_less_than_75_minutes(pair):
    took = json.loads((Path(embedded.__file__).parent / pair / "training.json").read_text())
    assert {role: took[role]["steps"] for role in ROLES} == {role: pair_of(pair).recipe(role).steps for role in ROLES}
    plain = took["target"]["before"]  # the weights that it began with, tuned by the parts in a voice
    assert plain["steps"] == took["target"]["began_at_step"] == pair_of(pair).target_recipe.plain_steps
    assert all(took[role]["device"] == "cpu" for role in ROLES)
    assert plain["seconds"] + sum(took[role]["seconds"] for role in ROLES) < 75 * 60


def test_all_that_ships_is_at_most_40_mb():
    folder = Path(embedded.__file__).parent
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.suffix != ".pyc") <= 40e6
