"""A micro pair, its tokenizer as a server has it, and stand-ins that answer with the pair's own engine."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def served_pair(tmp_path_factory) -> Path:
    from tests.cli.micro import save_pair

    return save_pair(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def raw_tokenizer(served_pair):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(served_pair / "target" / "tokenizer.json"))


@pytest.fixture(scope="session")
def pair_engine(served_pair):
    """The pair in float64, as the native runs of these tests have it."""
    import torch
    from transformers import AutoModelForCausalLM

    from sdbench.engine import Engine

    models = [
        AutoModelForCausalLM.from_pretrained(served_pair / role, dtype=torch.float64) for role in ("target", "draft")
    ]
    return Engine(*models)


@pytest.fixture(scope="session")
def served_words(served_pair) -> Callable[..., list[str]]:
    """The words of a run of this pair; the engine's are added."""

    def make(results: Path, **options: object) -> list[str]:
        given = {"verifier": "exact", "n": 3, "max_new_tokens": 24, "timing": "off", "temperature": 0, "num_draft": 3}
        pair = [f"model.target={served_pair}/target", f"model.draft={served_pair}/draft", "model.name=micro"]
        return [*pair, f"results={results}", *(f"{key}={value}" for key, value in {**given, **options}.items())]

    return make


@pytest.fixture
def no_figures(monkeypatch):
    from tests.cli.conftest import no_drawing

    monkeypatch.setattr("sdbench.report.write", no_drawing)


@pytest.fixture
def standin(served_pair, raw_tokenizer):
    """A running stand-in that speculates; its answers are a hash's unless a maker is given."""
    from standin import StandIn, hashed

    running = []

    def start(maker=None, *, role: str = "target", num_draft: int = 3, **options: object) -> StandIn:
        maker = maker or hashed(num_draft, "12 + 30 = 42 and\n", lambda text: raw_tokenizer.encode(text).ids)
        server = StandIn(maker, raw_tokenizer, str(served_pair / role), **options)  # type: ignore[arg-type]
        running.append(server.__enter__())
        return server

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture
def llamacpp(served_pair, raw_tokenizer):
    """A running stand-in of llama.cpp's kind."""
    from llamacpp_standin import LlamaCppStandIn
    from standin import hashed

    running = []

    def start(maker=None, *, num_draft: int = 3, **options: object) -> LlamaCppStandIn:
        maker = maker or hashed(num_draft, "12 + 30 = 42 and\n", lambda text: raw_tokenizer.encode(text).ids)
        server = LlamaCppStandIn(maker, raw_tokenizer, str(served_pair / "target"), **options)  # type: ignore[arg-type]
        running.append(server.__enter__())
        return server

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture(scope="session")
def vllm_python(tmp_path_factory) -> Path:
    from processes import environment_with_vllm

    return environment_with_vllm(tmp_path_factory.mktemp("environment"))


@pytest.fixture
def llama_binary(tmp_path, served_pair, monkeypatch) -> Path:
    """A program that answers as llama-server."""
    monkeypatch.setenv("STANDIN_TOKENIZER", str(served_pair / "target" / "tokenizer.json"))
    program = tmp_path / "llama-server"
    script = Path(__file__).with_name("llamacpp_standin.py")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def gguf_pair(tmp_path_factory) -> dict[str, Path]:
    """The embedded llama pair as GGUF files, and a draft whose tokenizer is another pair's."""
    pytest.importorskip("gguf")
    from tests.serve.gguf_pair import other_draft, pair_files

    folder = tmp_path_factory.mktemp("gguf")
    return {**pair_files(folder), "other": other_draft(folder)}


@pytest.fixture
def llamacpp_words(gguf_pair, llama_binary, tmp_path, monkeypatch):
    """The words of a run of engine=llamacpp."""
    from sdbench.embedded import __file__ as embedded

    monkeypatch.setenv(
        "STANDIN_TOKENIZER", str(Path(str(embedded)).parent / "llama-tiny" / "target" / "tokenizer.json")
    )
    given = [
        "model.name=tiny",
        "n=2",
        "max_new_tokens=12",
        "timing=off",
        "temperature=0",
        "num_draft=3",
        "verifier=exact",
    ]
    pair = [f"model.target={gguf_pair['target']}", f"model.draft={gguf_pair['draft']}", f"results={tmp_path}/results"]
    return [*pair, *given, "engine=llamacpp", f"engine.binary={llama_binary}", "engine.start_s=120", "engine.grace_s=2"]


@pytest.fixture(autouse=True)
def unsaid(monkeypatch):
    """Warnings are said once a process, and each test is a process of its own here."""
    monkeypatch.setattr("sdbench.prepare.progress._printed", set())
