"""Loading a pair: a processor that emulates a dtype is named, with what to do."""

import pytest
import torch

from sdbench.config import Model
from sdbench.lm import packed
from sdbench.prepare import pair, progress

PAIR = Model("tiny", "embedded:llama-tiny/target", "embedded:llama-tiny/draft")


@pytest.mark.parametrize(
    ("has_them", "dtype", "is_slow"),
    [(False, "bfloat16", True), (False, "float16", True), (False, "float32", False), (True, "bfloat16", False)],
)
def test_a_processor_without_instructions_for_a_dtype_is_named(monkeypatch, capsys, has_them, dtype, is_slow):
    monkeypatch.setattr(packed, "has_instructions", lambda kind: has_them or kind is torch.float32)
    monkeypatch.setattr(pair, "GIB", 2**10)
    monkeypatch.setattr(progress, "_printed", set())
    pair.load(pair.find(PAIR, device="cpu", dtype=dtype))
    message = f"warning: this processor has no instructions for {dtype}: reading prompts takes several times as"
    assert (message in capsys.readouterr().err) == is_slow


def test_small_pairs_need_no_warning(monkeypatch, capsys):
    monkeypatch.setattr(packed, "has_instructions", lambda kind: False)
    pair.load(pair.find(PAIR, device="cpu", dtype="bfloat16"))
    assert capsys.readouterr().err == ""
def test_folders_of_the_home_of_the_user_are_read_by_all_engines(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pair.folder_of("~/models/qwen") == str(tmp_path / "models" / "qwen")
    assert pair.folder_of("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


