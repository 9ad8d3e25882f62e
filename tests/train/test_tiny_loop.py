"""A micro pair trains, resumes exactly, and loads like any other model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import sdbench
from scripts.tiny.data import Stream, texts
from scripts.tiny.forward import Net
from scripts.tiny.loop import fit
from scripts.tiny.make import make, pair_of, tokenizer_of, train_exits
from scripts.tiny.pairs import TASKS, Pair, PairRecipe, Phase, Shape
from scripts.tiny.ranks import Rank
from scripts.tiny.weights import grown, initial, load, save
from sdbench import embedded
from sdbench.config import ConfigError
from sdbench.verify import Exact


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def micro(steps: int) -> Pair:
    shape = Shape(layers=2, width=32, heads=2, kv_heads=1, feed_forward=64)
    ends = Phase(4, rate=0.6, rows=8, voice="target")
    recipe = PairRecipe((Phase(steps - 4, copies=0.2, prompt_weight=0.1, rows=8), ends), warmup=4)
    return replace(
        pair_of("qwen-tiny"),
        target=shape,
        draft=replace(shape, layers=1),
        target_recipe=recipe,
        draft_recipe=recipe,
        vocabulary=512,
        tokenizer_rows=100,
    )


@pytest.mark.slow
def test_a_micro_pair_learns_and_loads_and_a_resumed_training_ends_in_the_same_weights(tmp_path):
    pair = micro(60)
    tokenizer = tokenizer_of(pair)
    start = fit(pair, "target", tokenizer, tmp_path / "whole", Rank(), until=2)
    whole = fit(pair, "target", tokenizer, tmp_path / "whole", Rank())
    assert whole.loss < start.loss - 1
    assert whole.seconds > start.seconds > 0
    fit(pair, "target", tokenizer, tmp_path / "torn", Rank(), until=40)
    resumed = fit(pair, "target", tokenizer, tmp_path / "torn", Rank())
    for kind, weight in whole.weights.items():
        torch.testing.assert_close(resumed.weights[kind], weight, rtol=0, atol=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole/target")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "whole/target")
    assert model.dtype == torch.bfloat16
    assert model.generate(**loaded("Question:", return_tensors="pt"), max_new_tokens=3).shape[1] > 3


@pytest.mark.slow
def test_a_phase_added_to_a_recipe_after_its_end_gives_what_a_training_from_nothing_gives(tmp_path):
    whole = micro(12)
    first = replace(whole, target_recipe=replace(whole.target_recipe, phases=whole.target_recipe.phases[:1]))
    tokenizer = tokenizer_of(whole)
    fit(first, "target", tokenizer, tmp_path / "added", Rank())
    added = fit(whole, "target", tokenizer, tmp_path / "added", Rank())
    straight = fit(whole, "target", tokenizer, tmp_path / "straight", Rank())
    for kind, weight in straight.weights.items():
        torch.testing.assert_close(added.weights[kind], weight, rtol=0, atol=0)


def test_what_a_training_took_stands_beside_it_and_stays_when_there_is_nothing_left_to_do(tmp_path):
    pair = micro(12)
    make(pair, tmp_path, Rank())
    took = json.loads((tmp_path / "training.json").read_text())
    assert list(took) == ["target", "draft"]
    assert took["target"]["steps"] == 12
    assert took["target"]["loss"] > 1
    make(pair, tmp_path, Rank())
    again = json.loads((tmp_path / "training.json").read_text())
    assert all(again[role] | {"seconds": 0} == took[role] | {"seconds": 0} for role in took)


@pytest.mark.slow
def test_losses_at_early_layers_train_a_model_whose_early_exit_is_right_more_often(tmp_path):
    shape = replace(micro(60).target, layers=4)
    acceptance = {}
    for share in (0.0, 0.5):
        pair = replace(micro(60), target=shape, target_recipe=replace(micro(60).target_recipe, exit_share=share))
        tokenizer = tokenizer_of(pair)
        fit(pair, "target", tokenizer, tmp_path / str(share), Rank())
        model = AutoModelForCausalLM.from_pretrained(tmp_path / str(share) / "target").double().eval()
        prompts = [tokenizer(text.prompt)["input_ids"] for text in texts("gsm8k", "test", 4)]
        engine = sdbench.Engine(model)
        drafter = engine.drafter("early-exit", engine.warp(0.0), {"exit_layer": 2})
        options = {"max_new_tokens": 32, "temperature": 0.0, "stop_ids": (), "engine": engine}
        decoded = sdbench.generate(None, None, prompts, [Exact()], drafter=drafter, **options)
        acceptance[share] = sum(sum(g.accepted or ()) for g in decoded) / sum(sum(g.drafted or ()) for g in decoded)
    assert acceptance[0.5] > acceptance[0.0] + 0.1, acceptance


@torch.inference_mode()
def exit_losses(folder: Path, count: int = 4) -> list[float]:
    """The mean loss on texts that nothing was trained on, behind every second layer of a checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    losses = []
    for text in texts("gsm8k", "test", count):
        ids = tokenizer(text.prompt + text.completion, return_tensors="pt")["input_ids"]
        states = torch.stack(model(ids, output_hidden_states=True).hidden_states[2:-1:2])
        logits = model.lm_head(model.model.norm(states))[:, 0, :-1]
        losses.append(-logits.log_softmax(-1).gather(-1, ids[:, 1:].expand(len(logits), -1)[..., None]).mean((1, 2)))
    return torch.stack(losses).mean(0).tolist()


@pytest.mark.slow
def test_steps_for_early_exits_lower_the_loss_behind_each_of_them_and_the_result_loads(tmp_path):
    train_exits("llama-tiny", tmp_path, Rank(), steps=12)
    before, after = exit_losses(embedded.path("llama-tiny", "target")), exit_losses(tmp_path / "target")
    assert len(before) == len(after) == 8
    assert all(b < a for a, b in zip(before, after, strict=True)), (before, after)
    took = json.loads((tmp_path / "training.json").read_text())["target"]
    assert (took["steps"], took["exit_share"], took["started_from"]) == (12, 0.5, "embedded:llama-tiny/target")


def test_ranks_share_a_step_without_loss_or_overlap():
    pair = micro(60)
    stream = Stream(pair, pair.target_recipe, tokenizer_of(pair))
    shares = [m for rank in range(2) for m in stream.step(20, rank, 2, 2)]
    assert sum(len(m.tokens) for m in shares) == pair.target_recipe.phases[0].rows
    assert sum(float(m.weights.sum()) for m in shares) == pytest.approx(1)


def test_any_text_survives_the_tokenizer_and_digits_are_single_tokens():
    tokenizer = tokenizer_of(micro(60))
    for text in ("Grüße, 東京! 🙂\n\tx", "12345", "    return 7\n"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert len(tokenizer("12345", add_special_tokens=False)["input_ids"]) == 5
    chat = [{"role": "user", "content": "Hello"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert prompt == "<s>user: Hello\nassistant:"


@pytest.mark.parametrize("task", TASKS)
def test_no_test_prompt_is_trained_on(task):
    tested = {text.prompt for text in texts(task, "test", 500)}
    assert not tested & {text.prompt for text in texts(task, "train", 2000, seed=1_000_011)}


def test_a_wrong_pair_is_named():
    with pytest.raises(ValueError, match="pair must be one of"):
        embedded.path("llama-big", "target")


@pytest.mark.slow
def test_a_training_that_starts_from_saved_weights_begins_with_the_first_phase_in_a_voice(tmp_path):
    pair = micro(12)
    tokenizer = tokenizer_of(pair)
    plain = replace(pair, target_recipe=replace(pair.target_recipe, phases=pair.target_recipe.phases[:1]))
    before = fit(plain, "target", tokenizer, tmp_path / "plain", Rank())
    began = fit(pair, "target", tokenizer, tmp_path / "voiced", Rank(), until=8, start=tmp_path / "plain/target")
    for kind, weight in before.weights.items():  # no step yet; folders hold bf16
        torch.testing.assert_close(began.weights[kind], weight, rtol=0.01, atol=0.01)
    make(plain, tmp_path / "plain", Rank(), ["target"])
    make(pair, tmp_path / "voiced", Rank(), ["target"], start=tmp_path / "plain")
    took = json.loads((tmp_path / "voiced/training.json").read_text())["target"]
    assert (took["steps"], took["began_at_step"], took["before"]["steps"]) == (12, 8, 8)


@pytest.mark.parametrize("family", ["llama", "qwen", "gemma"])
def test_saved_weights_are_loaded_as_they_were(family, tmp_path):
    net = Net(
        family, Shape(layers=2, width=32, heads=2, kv_heads=1, feed_forward=64, window=4 if family == "gemma" else 0)
    )
    weights = {kind: tensor.bfloat16().float() for kind, tensor in initial(net, 64, seed=1).items()}
    save(net, weights, tmp_path)
    loaded = load(net, tmp_path)
    assert set(loaded) == set(weights)
    for kind, weight in weights.items():
        torch.testing.assert_close(loaded[kind], weight, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("family", ["llama", "qwen", "gemma"])
def test_a_grown_model_is_the_same_function_and_every_second_layer_stays_one(family):
    shape = Shape(layers=4, width=32, heads=2, kv_heads=1, feed_forward=64, window=4 if family == "gemma" else 0)
    weights = initial(Net(family, shape), 64, seed=1)
    more = grown(weights, 8)
    tokens = torch.randint(0, 64, (2, 20), generator=torch.Generator().manual_seed(2))
    before = Net(family, shape).hidden(weights, tokens)
    after = Net(family, replace(shape, layers=8)).hidden(more, tokens)
    torch.testing.assert_close(after, before)
    old = [i for i in range(8) if more["o_proj"][i].any()]
    assert [i % 2 for i in old] == [0, 1, 0, 1]


@pytest.mark.slow
def test_a_training_that_grows_and_is_resumed_before_or_after_it_ends_in_the_same_weights(tmp_path):
    pair = micro(12)
    shape = replace(pair.target, layers=6)
    pair = replace(pair, target=shape, target_recipe=replace(pair.target_recipe, plain_layers=4))
    tokenizer = tokenizer_of(pair)
    whole = fit(pair, "target", tokenizer, tmp_path / "whole", Rank())
    assert len(whole.weights["o_proj"]) == 6
    for until in (8, 10):
        fit(pair, "target", tokenizer, tmp_path / str(until), Rank(), until=until)
        resumed = fit(pair, "target", tokenizer, tmp_path / str(until), Rank())
        for kind, weight in whole.weights.items():
            torch.testing.assert_close(resumed.weights[kind], weight, rtol=0, atol=0)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "8/target").config.num_hidden_layers == 6


def test_rows_with_an_unread_word_are_passed_over():
    rows = texts("gsm8k", "train", 300, unread=("boxes", "buys"))
    assert len(rows) == 300
    assert not any("boxes" in row.prompt or "buys" in row.prompt for row in rows)
    assert [row for row in texts("gsm8k", "train", 2000) if row in rows] == rows


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    pair = micro(12)
    tokenizer = tokenizer_of(pair)
    fit(pair, "target", tokenizer, tmp_path, Rank(), until=2)
    first, *others = pair.target_recipe.phases
    other = replace(pair, target_recipe=replace(pair.target_recipe, phases=(replace(first, rate=0.5), *others)))
    with pytest.raises(ConfigError, match=r"belongs to a training with part 1=.*give another out=, or delete it"):
        fit(other, "target", tokenizer, tmp_path, Rank())
    with pytest.raises(ConfigError, match="and this one has seed=9"):
        fit(replace(pair, seed=9), "target", tokenizer, tmp_path, Rank())


def test_fewer_steps_than_a_checkpoint_has_are_refused(tmp_path):
    pair = micro(12)
    fit(pair, "target", tokenizer_of(pair), tmp_path, Rank(), until=4)
    with pytest.raises(ConfigError, match=r"target\.ckpt already has 4 steps, more than 3: raise steps="):
        fit(pair, "target", tokenizer_of(pair), tmp_path, Rank(), until=3)
