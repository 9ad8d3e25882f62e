"""Runs on a pair of GGUF files, whose dequantised copy is made before."""

from pathlib import Path

import pytest

import sdbench
from sdbench import embedded
from sdbench.cli import main
from sdbench.lm import gguf as room

pytest.importorskip("gguf")
from gguf_files import write

PAIR = Path(str(embedded.__file__)).parent / "llama-tiny"


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[str]:
    """The words of a pair of files."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("files")
    for role, kind in (("target", "Q8_0"), ("draft", "F16")):
        model = AutoModelForCausalLM.from_pretrained(PAIR / role)
        write(folder / f"{role}.gguf", model, kind=kind, tokenizer=PAIR / "target")
    return [f"model.{role}={folder}/{role}.gguf" for role in ("target", "draft")] + ["model.name=files"]


def test_prefetch_makes_the_copy_that_a_run_reads(pair, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(room, "CACHE", tmp_path / "cache")
    monkeypatch.setattr("sdbench.lm.digests.CACHE", tmp_path / "hashes")
    words = [*pair, "dtype=bfloat16", "n=1", "w=0.5", "max_new_tokens=4", "timing=off", "report=off"]
    words.append(f"results={tmp_path}/results")
    assert main(["--prefetch", *words]) == 0
    assert len(list((tmp_path / "cache").glob("*/bfloat16/model.safetensors"))) == 2
    assert not (tmp_path / "results/files-gsm8k-tiny").exists()
    monkeypatch.setattr(room.GGUFFile, "_dequantise", None)  # a run that dequantised would fail
    assert main(words) == 0, capsys.readouterr().err
    assert len(sdbench.read(tmp_path / "results/files-gsm8k-tiny").generations) == 4
