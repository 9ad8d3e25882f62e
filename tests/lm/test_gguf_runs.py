"""Runs on a pair of GGUF files: from a copy that is made before, and killed in the middle."""

import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import sdbench
from sdbench import embedded
from sdbench.cli import main
from sdbench.lm import gguf as room

pytest.importorskip("gguf")
from gguf_files import write
from nursery import is_running

from tests.records.equality import RESUMED, assert_same_records

DTYPES = ("float32", "bfloat16")
# What a process in the nursery does first.
USE_CACHE = """
from pathlib import Path
import sdbench.lm.digests, sdbench.lm.gguf
sdbench.lm.gguf.CACHE, sdbench.lm.digests.CACHE = Path({cache!r}), Path({cache!r}, "hashes")
"""

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "dtypes", "device"),
    [([], ("float32", "float32"), "cpu"), (["device=cuda"], ("bfloat16", "float16"), "cuda")],
)
def test_prefetch_names_the_dtype_of_its_copies(words, dtypes, device, pair, tmp_path, monkeypatch, capsys):
    """On a login node without a GPU it wrote float32, and the job on a GPU dequantised again."""
    monkeypatch.setattr(room, "CACHE", tmp_path / "cache")
    monkeypatch.setattr("sdbench.lm.digests.CACHE", tmp_path / "hashes")
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    assert main(["--prefetch", *pair, "n=1", f"results={tmp_path}/results", *words]) == 0
    shown = capsys.readouterr().out
    for role, dtype in zip(("target", "draft"), dtypes, strict=True):
        assert f"{role}.gguf in {dtype}" in shown
    assert f"for device={device}: for a run on another device or in another dtype give device= or dtype=" in shown
    assert {path.parent.name for path in (tmp_path / "cache").glob("*/*/model.safetensors")} == set(dtypes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_run_in_two_dtypes_goes_on_and_a_report_has_both(pair, nursery, tmp_path, monkeypatch):
    def words(name: str, dtype: str) -> list[str]:
        options = ["n=8", "w=0.5", "max_new_tokens=32", "batch_size=1", "timing=off", "report=off"]
        return [*pair, *options, f"dtype={dtype}", f"results={tmp_path}/{name}"]

    cache = tmp_path / "cache"
    monkeypatch.setattr(room, "CACHE", cache)
    monkeypatch.setattr("sdbench.lm.digests.CACHE", cache / "hashes")
    killed, calm = (tmp_path / name / "files-gsm8k-tiny" for name in ("killed", "calm"))
    for number, dtype in enumerate(DTYPES):
        parts = len(parts_of(killed))
        pid = nursery.start(words("killed", dtype), USE_CACHE.format(cache=str(cache)))
        while len(parts_of(killed)) < parts + 2 and is_running(pid):
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        assert nursery.ended() == -signal.SIGKILL, "the kill came too late"
        held = num_texts(killed)
        assert 32 * number < held < 32 * (number + 1), "the kill came before the first text, or behind the last"
        for wanted in (32 * (number + 1) - held, 0):
            assert main(words("killed", dtype)) == 0
            assert num_texts(killed) == held + wanted, "a text was decoded again, or is missing"
            held += wanted
        assert main(words("calm", dtype)) == 0
    assert_same_records(killed, calm, tolerance=RESUMED)
    assert main(["report", str(killed)]) == 0
    page = (killed / "report.html").read_text()
    assert all(dtype in page for dtype in DTYPES)
    assert "Q8_0" in page


def parts_of(folder: Path) -> list[Path]:
    return list((folder / "records").glob("generations-*"))


def num_texts(folder: Path) -> int:
    """How many texts all parts hold, one that was written twice counted twice."""
    return sum(pq.read_metadata(part).num_rows for part in parts_of(folder))
