"""The audit knows the same ids as a run: those of the tokenizer for which the models have a row."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from sdbench import embedded
from sdbench.audit.build import build
from sdbench.audit.command import parse_audit
from sdbench.cli import compose_run
from sdbench.cli import main as front_door


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, int]:
    """Return the folder of llama-tiny with a tokenizer that has an id too many, and how many ids the models have."""
    folder = tmp_path_factory.mktemp("pair")
    for role in ("target", "draft"):
        shutil.copytree(embedded.path("llama-tiny", role), folder / role)
    num_rows = json.loads((folder / "target/config.json").read_text())["vocab_size"]
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    tokenizer.add_tokens([f"<image {n}>" for n in range(num_rows - len(tokenizer) + 1)])
    assert len(tokenizer) == num_rows + 1
    for role in ("target", "draft"):
        tokenizer.save_pretrained(folder / role)
    return folder, num_rows


def test_an_id_that_only_the_tokenizer_has_stops_no_audit(pair):
    folder, num_rows = pair
    words = [f"model.target={folder}/target", f"model.draft={folder}/draft", "verifier=exact"]
    assert build(parse_audit(words, compose_run)).subject.vocab == num_rows


def test_an_id_that_only_the_tokenizer_has_is_in_no_file(pair, tmp_path, capsys):
    folder, num_rows = pair
    file = tmp_path / "theirs.jsonl"
    file.write_text("\n".join([json.dumps({"prompt": [5], "tokens": [6, num_rows]})] * 2))
    words = [f"generations={file}", f"model.target={folder}/target", "model.draft=null"]
    assert front_door(["audit", *words, "temperature=1"]) == 2
    assert f"has the token {num_rows}, but this model's ids go from 0 to {num_rows - 1}" in capsys.readouterr().err
