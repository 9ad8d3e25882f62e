"""Copies of a GGUF file's weights: checked before they are read, on the disk before they have their name, leftovers removed."""

import os
import time
from pathlib import Path

import pytest
import torch

from sdbench import embedded
from sdbench.lm import gguf as room
from sdbench.lm.load import find, load_model

pytest.importorskip("gguf")
from gguf_files import tiny, write

TOKENIZER = embedded.path("llama-tiny", "target")
DAY_S = 86_400


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "CACHE", tmp_path / "cache")
    monkeypatch.setattr("sdbench.lm.digests.CACHE", tmp_path / "hashes")
    return find(str(write(tmp_path / "tiny.gguf", tiny("llama", layers=2), kind="Q8_0", tokenizer=TOKENIZER)))


def logits(checkpoint) -> torch.Tensor:
    with torch.no_grad():
        return load_model(checkpoint, device="cpu", dtype="float32")(input_ids=torch.arange(20)[None] * 5).logits


@pytest.mark.parametrize("part", [None, 0, 0.001, 0.5, 0.999])
def test_a_damaged_copy_is_made_again(checkpoint, part, capsys):
    before = logits(checkpoint)
    copy = checkpoint.gguf.weights("float32") / "model.safetensors"
    data = copy.read_bytes()
    copy.unlink()
    if part is not None:
        copy.write_bytes(data[: int(part * len(data))])
    capsys.readouterr()
    line = f"sdbench: the copy of {checkpoint.id} in float32 is damaged: it is written again\n"
    for count in (1, 0):
        assert torch.equal(logits(checkpoint), before)
        assert capsys.readouterr().err.count(line) == count
    assert copy.read_bytes() == data
    assert not list(copy.parent.parent.glob(".*")), "nothing of the old one stays"


def test_a_copy_is_on_the_disk_before_it_has_its_name(checkpoint, monkeypatch):
    events: list[int | Path] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: events.append(os.fstat(file).st_ino) or fsync(file))
    monkeypatch.setattr(os, "replace", lambda part, path: events.append(path) or replace(part, path))
    folder = checkpoint.gguf.weights("float32")
    before = events[: events.index(folder)]
    assert {path.stat().st_ino for path in (folder, *folder.iterdir())} <= set(before)


def test_what_killed_processes_left_is_removed_after_a_day(checkpoint):
    folder = checkpoint.gguf.weights("float32")
    parts = {name: folder.with_name(f".bfloat16.{name}.part") for name in ("old", "written", "new")}
    old = time.time() - DAY_S - 60
    for name, part in parts.items():
        part.mkdir()
        (part / "model.safetensors").touch()
        for path in {"old": [part / "model.safetensors", part], "written": [part]}.get(name, []):
            os.utime(path, (old, old))
    checkpoint.gguf.weights("float32")
    assert {name for name, part in parts.items() if part.exists()} == {"written", "new"}
