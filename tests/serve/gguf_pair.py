"""The embedded llama pair as GGUF files of float32."""

import json
import shutil
from pathlib import Path

from transformers import AutoModelForCausalLM

from sdbench import embedded
from tests.lm.gguf_files import write

PAIR = Path(str(embedded.__file__)).parent / "llama-tiny"


def pair_files(folder: Path) -> dict[str, Path]:
    """Role -> file."""
    return {role: _write(folder / f"{role}.gguf", role, PAIR / "target") for role in ("target", "draft")}


def other_draft(folder: Path) -> Path:
    """The draft with two tokens exchanged."""
    tokenizer = folder / "tokenizer"
    shutil.copytree(PAIR / "target", tokenizer, ignore=shutil.ignore_patterns("*.safetensors"))
    rules = json.loads((tokenizer / "tokenizer.json").read_text())
    vocabulary = rules["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[20:22]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (tokenizer / "tokenizer.json").write_text(json.dumps(rules))
    return _write(folder / "other.gguf", "draft", tokenizer)


def _write(path: Path, role: str, tokenizer: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(PAIR / role)
    return write(path, model, kind="F32", tokenizer=tokenizer)
