"""Keys and values per row: scattered where the plan says, copied for rows that share a prompt, moved, never zeroed or grown."""

import torch

from sdbench.lm.cache import RaggedCache
from sdbench.lm.model import LM
from sdbench.lm.plan import CAUSAL, CURRENT, Plan
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


def test_bytes_of_a_row_are_those_of_its_compact_heads():
    model = LM(tiny("llama"), capture="off")
    cache = model.cache(2, 9)
    with torch.inference_mode():
        cache.write(0, model.prefill_all([torch.tensor([5, 6])])[0])
    assert cache.num_bytes() == 2 * 2 * 10 * 2 * 8 * 8  # layers · (keys, values) · slots · heads of 4 · width · bytes


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
