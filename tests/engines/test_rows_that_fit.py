"""How many rows a batch of the native engine has: what free memory holds of caches and distributions."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from sdbench.config import Component
from sdbench.engines.native import memory
from sdbench.engines.native.decode import ROWS_ON_CPU, rows_that_fit
from sdbench.lm.memory import ModelShape, peak_bytes

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def pair_of(vocab_size: int) -> Any:
    config = LlamaConfig(vocab_size=vocab_size, **SIZES)
    model = SimpleNamespace(config=config, dtype=torch.float32, device=torch.device("cpu"))
    return SimpleNamespace(target=model, draft=model)


def run_of(num_draft: int = 5, temperature: float = 1.0, drafters: tuple[Component, ...] = ()) -> Any:
    return SimpleNamespace(
        num_draft=(2, num_draft),
        temperature=temperature,
        top_p=None,
        drafters=drafters,
        model=SimpleNamespace(packed=None),
    )


@pytest.mark.parametrize("free_gib", [0.001, 0.05, 1, 4, 100])
def test_caches_and_distributions_of_all_rows_fit_on_a_cpu(free_gib, monkeypatch):
    free, pair = int(free_gib * 2**30), pair_of(150_000)
    monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device: free)
    rows, shape = rows_that_fit(run_of(), pair, 500), ModelShape.of(pair.target.config, 0, 4, "trace")

    def room(count: int) -> float:
        given: Any = {"length": 500, "num_draft": 5, "temperature": 1.0, "keeps_logits": True}
        return peak_bytes(shape, shape, num_rows=count, **given).total

    assert 1 <= rows <= ROWS_ON_CPU
    assert rows == 1 or room(rows) <= 0.6 * free
    assert rows == ROWS_ON_CPU or room(rows + 1) > 0.6 * free


def test_a_small_vocabulary_leaves_room_for_more_rows(monkeypatch):
    monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device: 2**30)
    assert rows_that_fit(run_of(), pair_of(150_000), 500) < rows_that_fit(run_of(), pair_of(1000), 500) == ROWS_ON_CPU
    assert rows_that_fit(run_of(10), pair_of(150_000), 500) < rows_that_fit(run_of(2), pair_of(150_000), 500)
    assert rows_that_fit(run_of(), pair_of(1000), 100_000) < ROWS_ON_CPU


def test_slots_of_captured_steps_are_counted(monkeypatch):
    """On a CUDA device, and for narrow models on a CPU, a cache has a multiple of 512 slots."""
    monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device: 2**27)
    rows = [rows_that_fit(run_of(), pair_of(100), length) for length in (520, 1000, 1030)]
    assert rows[0] == rows[1] > rows[2]
    device, run, pair = torch.device("cuda"), run_of(), pair_of(150_000)
    pair.target.device = device
    on_gpu = rows_that_fit(run, pair, 506)
    monkeypatch.setattr("sdbench.lm.capture.default_mode", lambda *_, **__: "off")
    assert on_gpu < rows_that_fit(run, pair, 506), "graphs keep their distributions"


def test_a_cache_of_the_drafters_is_counted(monkeypatch):
    monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device: 2**30)
    pruned = Component("pruned", "sdbench.draft.pruned.PrunedDrafter", {"keep_layers": 1})
    lookup = Component("lookup", "sdbench.draft.lookup.PromptLookup", {"length": "adaptive"})
    mtp = Component("mtp", "sdbench.draft.mtp.MTP", {"head": None})
    pair = pair_of(1000)
    rows = {name: rows_that_fit(run_of(drafters=drafters), pair, 20_000) for name, drafters in
            {"none": (), "lookup": (lookup,), "mtp": (mtp,), "both": (lookup, pruned)}.items()}  # fmt: skip
    assert rows["mtp"] == rows["both"] < rows["lookup"] == rows["none"], "one of two layers"


def test_little_memory_is_raised_once_in_a_while_and_not_for_a_single_row(monkeypatch):
    free = [2**40]
    monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device: free[-1])
    guard = memory.MemoryGuard()
    free.append(memory.LOW_BYTES - 1)
    guard("round", 1)
    guard("score", 4)
    with pytest.raises(torch.OutOfMemoryError, match="the system has 511 MiB left"):
        guard("round", 4)
    guard("round", 4)  # what was freed shows a moment later


def test_a_machine_with_little_memory_from_the_start_is_not_low(monkeypatch):
    monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device: memory.LOW_BYTES // 2)
    memory.MemoryGuard()("round", 4)
