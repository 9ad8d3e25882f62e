"""Loading a pair: a processor that emulates a dtype is named, with what to do."""

import pytest
import torch

from sdbench.config import Model
from sdbench.prepare import pair, progress

PAIR = Model("tiny", "embedded:llama-tiny/target", "embedded:llama-tiny/draft")


@pytest.mark.parametrize(
    ("processor", "dtype", "is_slow"),
    [("AVX2", "bfloat16", True), ("AVX2", "float16", True), ("AVX2", "float32", False), ("AVX512", "bfloat16", False)],
)
def test_a_processor_without_instructions_for_a_dtype_is_named(monkeypatch, capsys, processor, dtype, is_slow):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: processor)
    monkeypatch.setattr(pair, "GIB", 2**10)
    monkeypatch.setattr(progress, "_printed", set())
    pair.load(pair.find(PAIR, device="cpu", dtype=dtype))
    message = f"warning: this processor has no instructions for {dtype} (AVX2): reading prompts takes several times as"
    assert (message in capsys.readouterr().err) == is_slow


def test_small_pairs_need_no_warning(monkeypatch, capsys):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    pair.load(pair.find(PAIR, device="cpu", dtype="bfloat16"))
    assert capsys.readouterr().err == ""
