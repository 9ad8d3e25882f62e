"""A pair: what is refused before weights are read, and a processor that emulates a dtype is named, with what to do."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sdbench import embedded
from sdbench.cli import main
from sdbench.config import ConfigError, Model
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


def test_folders_of_the_home_of_the_user_are_read_by_all_engines(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pair.folder_of("~/models/qwen") == str(tmp_path / "models" / "qwen")
    assert pair.folder_of("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


def test_small_pairs_need_no_warning(monkeypatch, capsys):
    monkeypatch.setattr(packed, "has_instructions", lambda kind: False)
    pair.load(pair.find(PAIR, device="cpu", dtype="bfloat16"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("kind", ["embedded", "folder", "gguf"])
def test_a_revision_of_a_model_on_this_machine_is_refused(role, kind, tmp_path):
    (tmp_path / "x.gguf").touch()
    names = {
        "embedded": PAIR.target,
        "folder": str(embedded.path("llama-tiny", "target")),
        "gguf": f"{tmp_path}/x.gguf",
    }
    model = replace(PAIR, **{role: names[kind], f"{role}_revision": "v1"})
    sentence = f"model.{role}_revision=v1 is for models of the hub, and model.{role}={names[kind]} is on this machine: remove it"
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        pair.find(model, device="cpu", dtype="float32")


def test_a_revision_of_no_draft_is_refused():
    tree = {"name": "tiny", "target": PAIR.target, "draft": None, "draft_revision": "v1"}
    with pytest.raises(ConfigError, match=r"^model\.draft_revision=v1 needs a draft: give model\.draft=ID"):
        Model.check(tree)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_with_an_adapter_beside_its_weights_is_refused(role, tmp_path, capsys):
    """transformers applies it if peft is installed and ignores it otherwise, under the same identity."""
    folders = {
        name: Path(shutil.copytree(embedded.path("llama-tiny", name), tmp_path / name)) for name in ("target", "draft")
    }
    (folders[role] / "adapter_config.json").write_text("{}")
    words = [f"model.{name}={folder}" for name, folder in folders.items()]
    assert main([*words, "n=1", f"results={tmp_path}/results"]) == 2
    sentence = (
        f"{folders[role]} has an adapter beside its weights (adapter_config.json): merge the adapter into the weights"
    )
    assert sentence in capsys.readouterr().err
