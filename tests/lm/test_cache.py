"""Keys and values per row: scattered where the plan says, copied for rows that share a prompt, moved, grown with the texts."""

import pytest
import torch

import sdbench
from sdbench.lm import cache as room
from sdbench.lm.cache import RaggedCache, RaggedLayer
from sdbench.lm.model import LM
from sdbench.lm.plan import CAUSAL, CURRENT, Plan
from sdbench.verify import Ensemble, Exact
from tests.engine.models import tiny

ROWS, CAPACITY, HEADS, WIDTH = 3, 7, 2, 4


def states(batch, steps, start=0.0):
    size = batch * HEADS * steps * WIDTH
    return start + torch.arange(size, dtype=torch.float64).reshape(batch, HEADS, steps, WIDTH)


def plan(positions, length=CAPACITY):
    lm = object.__new__(LM)
    lm.limit, lm.layer_masks, lm.kernel = None, {0: CAUSAL}, None
    lm._levels = torch.tensor(0.0).double(), torch.tensor(-torch.inf).double()
    return lm.plan(torch.tensor(positions), RaggedCache(1, ROWS, CAPACITY), length)


def update(cache, where, keys, values):
    token = CURRENT.set(where)
    try:
        return cache.update(keys, values, 0)
    finally:
        CURRENT.reset(token)


def test_rows_are_written_at_their_own_positions_and_read_compactly():
    cache = RaggedCache(1, ROWS, CAPACITY)
    keys, values = states(2, 2), states(2, 2, 1000)
    seen_keys, seen_values = update(cache, plan([[0, 1], [4, 5]]), keys, values)
    assert seen_keys.shape == (2, HEADS, CAPACITY, WIDTH)
    for row, places in enumerate(([0, 1], [4, 5])):
        assert torch.equal(seen_keys[row][:, places], keys[row])
        assert torch.equal(seen_values[row][:, places], values[row])
    assert (seen_keys[0, :, 2:] == 0).all()
    assert (seen_keys[1, :, :4] == 0).all()


def test_padding_before_a_text_and_past_the_end_goes_to_the_scratch_slot():
    cache = RaggedCache(1, ROWS, CAPACITY)
    update(cache, plan([[-1, 0], [CAPACITY, CAPACITY]]), states(2, 2, 1), states(2, 2, 1))
    store = cache.ragged[0].stores[0]
    assert (store[0, 1:CAPACITY] == 0).all()
    assert (store[1, :CAPACITY] == 0).all()
    assert (store[:2, CAPACITY] != 0).all()
    assert (store[2] == 0).all()


def test_a_rollback_is_a_shorter_length():
    """What a refused draft wrote is overwritten before it is seen."""
    cache = RaggedCache(1, ROWS, CAPACITY)
    update(cache, plan([[0, 1, 2]]), states(1, 3), states(1, 3))
    again = states(1, 2, 500)
    keys, _ = update(cache, plan([[1, 2]]), again, again)
    assert torch.equal(keys[0, :, 1:3], again[0])
    assert torch.equal(keys[0, :, :1], states(1, 3)[0, :, :1])


def test_a_prefix_starts_any_number_of_rows_and_moves_take_only_the_text():
    model, text = LM(tiny("llama")), torch.tensor([5, 6, 7, 8])
    with torch.inference_mode():
        prefix, cache = model.prefill_all([text])[0], model.cache(ROWS, CAPACITY)
        for row in (0, 2):
            cache.write(row, prefix)
        cache.move(2, 1, 3)
    assert prefix.length == 4
    for layer, (keys, values) in zip(cache.ragged, prefix.layers, strict=True):
        for store, state in zip(layer.stores, (keys, values), strict=True):
            assert torch.equal(store[0, :4], state)
            assert torch.equal(store[2, :4], state)
            assert torch.equal(store[1, :3], state[:3])
            assert (store[1, 3:] == 0).all()


def bytes_of(cache: RaggedCache) -> int:
    return sum(store.nbytes for layer in cache.ragged for store in layer.stores)


def test_room_is_made_as_texts_grow_and_not_for_a_budget_that_no_text_uses(monkeypatch):
    monkeypatch.setattr(room, "ROOM", 16)
    model = LM(tiny("llama"), capture="off")
    cache = model.cache(2, 10_000)
    with torch.inference_mode():
        cache.write(0, model.prefill_all([torch.tensor([5, 6])])[0])
        row_of_a_slot = 2 * 2 * 2 * 8 * 8  # layers · (keys, values) · heads of 4 · width · bytes
        assert bytes_of(cache) == 2 * 17 * row_of_a_slot
        before = cache.read(0, 2)
        for length, slots in ((16, 16), (17, 32), (33, 48), (49, 80), (10_000, 10_000)):
            cache.reserve(length)
            assert bytes_of(cache) == 2 * (slots + 1) * row_of_a_slot
    for old, new in zip(before.layers, cache.read(0, 2).layers, strict=True):
        assert torch.equal(old[0], new[0])
        assert torch.equal(old[1], new[1])


@pytest.mark.parametrize("capture", ["off", "trace"])
def test_a_run_with_a_large_budget_and_short_texts_takes_the_memory_of_short_texts(capture, monkeypatch):
    layers: list[RaggedLayer] = []
    honest = RaggedLayer.__init__
    monkeypatch.setattr(RaggedLayer, "__init__", lambda layer, *sizes: (honest(layer, *sizes), layers.append(layer))[0])
    target, draft = (tiny("llama", seed=seed, max_position_embeddings=40_000) for seed in (0, 1))
    engine = sdbench.Engine(target, draft, capture=capture)
    prompts, budget = [[5 + row, 6, 7] for row in range(4)], 20_000
    layers.clear()
    options = {"max_new_tokens": budget, "stop_ids": (), "should_stop": lambda ids: len(ids) >= 12, "num_draft": 3}
    texts = sdbench.generate(None, None, prompts, [Exact()], engine=engine, batch_size=len(prompts), **options)
    assert max(len(text.tokens) for text in texts) == 12
    of_the_batch = [layer for layer in layers if layer.num_rows == len(prompts)]
    assert len(of_the_batch) >= 2 * 2, "two layers of each model"
    row_of_a_slot = 2 * 2 * 8 * 8  # (keys, values) · heads of 4 · width · bytes, of a layer
    for layer in of_the_batch:
        assert sum(store.nbytes for store in layer.stores) <= len(prompts) * (room.ROOM + 1) * row_of_a_slot


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["off", "trace", "graphs"])
def test_texts_are_the_same_however_often_the_cache_grows(capture, monkeypatch):
    target, draft = tiny("llama", seed=0), tiny("llama", seed=1)
    prompts = [[5, 6, 7], list(range(5, 60)), [9] * 100]
    options = {"max_new_tokens": 90, "stop_ids": (), "batch_size": 4, "num_draft": 3, "capture": capture}
    grown, texts = [], {}
    honest = RaggedLayer.grow
    monkeypatch.setattr(RaggedLayer, "grow", lambda layer, slots: (honest(layer, slots), grown.append(slots)))
    for step in (512, 8):
        monkeypatch.setattr(room, "ROOM", step)
        grown.clear()
        decoded = sdbench.generate(target, draft, prompts, [Exact(), Ensemble(w=0.5)], **options)
        texts[step] = [generation.tokens for generation in decoded]
        assert (len(set(grown)) > 1) == (step == 8)
    assert texts[8] == texts[512]


def test_masks_of_a_round_are_those_of_its_steps():
    for part, (first, last) in zip(plan([[3, 4, 5], [0, 1, 2]]).split([2, 1]), ((0, 2), (2, 3)), strict=True):
        alone = plan([[3, 4, 5][first:last], [0, 1, 2][first:last]])
        assert torch.equal(part.index, alone.index)
        assert torch.equal(part.positions, alone.positions)
        assert torch.equal(part.mask(0, 2), alone.mask(0, 2))


def test_a_mask_is_0_where_the_models_own_function_sees_and_minus_infinity_elsewhere():
    mask = plan([[3, 4, 5], [0, 1, 2]]).mask(0, 1)
    slot = torch.arange(CAPACITY)
    for row, first in enumerate((3, 0)):
        for step in range(3):
            wanted = torch.where(slot <= first + step, 0.0, -torch.inf)
            assert torch.equal(mask[row, 0, step], wanted.double())


def test_kv_lengths_come_in_few_sizes_with_little_padding():
    lm, cache = object.__new__(LM), RaggedCache(1, 1, 100_000)
    lengths = [lm.kv_length(longest, cache) for longest in range(1, 20_000)]
    assert all(length >= longest for longest, length in enumerate(lengths, start=1))
    assert all(length - longest < max(64, longest / 8) for longest, length in enumerate(lengths, start=1))
    assert len(set(lengths)) < 90
    assert lm.kv_length(50, RaggedCache(1, 1, 40)) == 40


def test_plans_of_prefill_have_no_mask_tensor_where_all_is_causal(monkeypatch):
    """Two thousand tokens squared are never stored: a first chunk is causal by itself."""
    model, made = LM(tiny("llama")), []
    monkeypatch.setattr(Plan, "mask", lambda self, layer, groups: made.append(layer))
    with torch.inference_mode():
        model.prefill_all([torch.arange(40)])
    assert made == []
