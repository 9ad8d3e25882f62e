"""How many rows a batch of the native engine has: what free memory holds of caches and distributions."""

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig

from sdbench.engines.native import memory
from sdbench.engines.native.decode import LAWS, ROWS_ON_CPU, bytes_a_token, rows_that_fit

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def pair_of(vocab_size: int) -> SimpleNamespace:
    config = LlamaConfig(vocab_size=vocab_size, **SIZES)
    model = SimpleNamespace(config=config, dtype=torch.float32, device=torch.device("cpu"))
    return SimpleNamespace(target=model, models={"target": model, "draft": model})


@pytest.mark.parametrize("free_gib", [0.001, 0.05, 1, 4, 100])
def test_caches_and_distributions_of_all_rows_fit_on_a_cpu(free_gib, monkeypatch):
    free = int(free_gib * 2**30)
    monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device: free)
    pair = pair_of(150_000)
    rows = rows_that_fit(pair, 500, 5)
    row = 500 * 2 * bytes_a_token(pair.target) + LAWS * 6 * 150_000 * 4
    assert 1 <= rows <= ROWS_ON_CPU
    assert rows == 1 or rows * row <= 0.6 * free
    assert rows == ROWS_ON_CPU or (rows + 1) * row > 0.6 * free


def test_a_small_vocabulary_leaves_room_for_more_rows(monkeypatch):
    monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device: 2**30)
    assert rows_that_fit(pair_of(150_000), 500, 5) < rows_that_fit(pair_of(1000), 500, 5) == ROWS_ON_CPU
    assert rows_that_fit(pair_of(150_000), 500, 10) < rows_that_fit(pair_of(150_000), 500, 2)
    assert rows_that_fit(pair_of(1000), 100_000, 5) < ROWS_ON_CPU


def test_little_memory_is_raised_once_in_a_while_and_not_for_a_single_row(monkeypatch):
    monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device: memory.LOW_BYTES - 1)
    guard = memory.MemoryGuard()
    guard("round", 1)
    guard("score", 4)
    with pytest.raises(torch.OutOfMemoryError, match="the system has 511 MiB left"):
        guard("round", 4)
    guard("round", 4)  # what was freed shows a moment later
