"""scripts/bench_engine.py refuses what it would not measure, in one sentence and before it reads weights."""

import pytest
import torch
from transformers import GenerationConfig

from scripts import bench_context
from scripts.bench_cold import options_of_processes
from scripts.bench_engine import Bench, load, main
from scripts.bench_rules import names_of
from sdbench.config import config_dir
from sdbench.engine import generate


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("threads=2", "cold= measures processes with threads=1, got threads=2"),
        ("device=cuda", "cold= measures processes with device=cpu, got device=cuda"),
        ("dtype=bfloat16", "cold= measures processes with dtype=float32, got dtype=bfloat16"),
        (
            "pair=tiny-shape",
            "cold= needs an embedded pair: pair must be among llama-tiny, qwen-tiny, gemma-tiny, got tiny-shape",
        ),
    ],
)
def test_first_texts_are_those_of_one_kind_of_process(option, reason, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["cold=8", option])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"bench_engine: {reason}\n"


def test_first_texts_have_one_thread_by_default():
    assert options_of_processes({"pair": "qwen-tiny", "repeats": "5"})["threads"] == "1"
    assert options_of_processes({"threads": "1", "device": "cpu"})["threads"] == "1"


def test_an_unknown_rule_among_known_ones_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["rules=exact,typcial"])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("bench_engine: rules must be among ")
    assert message.endswith(", got typcial\n")
    assert names_of("typical,exact") == ["exact", "typical"]
    assert names_of("all") == sorted(path.stem for path in (config_dir() / "verifier").glob("*.yaml"))


def test_an_unknown_head_among_known_ones_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["heads=8b,gema"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "bench_engine: heads must be among 8b, gemma, got gema\n"


@pytest.mark.parametrize("length", ["500", "8001", "long"])
def test_a_context_that_is_not_measured_is_refused(length, capsys):
    with pytest.raises(SystemExit) as ended:
        main([f"context={length}"])
    assert ended.value.code == 2
    message = f"bench_engine: context must be a whole number above 500 and at most 8000, got {length}\n"
    assert capsys.readouterr().err == message


@pytest.mark.slow
def test_the_time_of_a_round_after_a_long_text_is_that_of_equal_work(monkeypatch):
    decoded = []

    def kept(*words, **options):
        texts = generate(*words, **options)
        decoded.append((words[3][0].w, texts))
        return texts

    monkeypatch.setattr(bench_context, "generate", kept)
    bench = load("tiny-shape", "cpu", torch.float32, 1, 1, new=13)
    names = [figure.name for figure in bench_context.measure_context(bench, "600")]
    assert names[:2] == [
        f"time a {what} at 600 tokens of context over 500" for what in ("token", "round in which all drafts are kept")
    ]
    rounds = [text for w, texts in decoded if w == 0 for text in texts]
    assert len(rounds) == 4 * (4 + 2), "four rows, two warm-ups and a turn of both lengths"
    assert {text.accepted for text in rounds} == {(5, 5, 0)}, "13 tokens"


class Folder(torch.nn.Module):
    """A model whose folder asks for other sampling than temperature 1; it keeps the options of each call."""

    def __init__(self):
        super().__init__()
        self.generation_config = GenerationConfig(temperature=0.5, top_p=0.8, repetition_penalty=1.1, do_sample=True)
        self.calls = []

    def generate(self, ids, assistant_model=None, **options):
        self.calls.append((self.generation_config, assistant_model and assistant_model.generation_config))
        return torch.cat([ids, ids], dim=1)


@pytest.mark.parametrize("is_assisted", [True, False])
def test_transformers_loop_samples_as_ours_does_whatever_a_folder_asks_for(is_assisted):
    target, draft = Folder(), Folder()
    before = [model.generation_config for model in (target, draft)]
    bench = Bench(target, draft, "cpu", 1, 1, 1, 3, [])
    assert bench.theirs([[1, 2, 3]], [0.5, 1.0], is_assisted=is_assisted) == 6
    for given, assistant in target.calls:
        assert given == GenerationConfig()
        assert (assistant is not None) == is_assisted
        if assistant is not None:
            assert (assistant.temperature, assistant.top_p, assistant.repetition_penalty) == (None, None, None)
            assert (assistant.num_assistant_tokens, assistant.num_assistant_tokens_schedule) == (5, "constant")
    assert [model.generation_config for model in (target, draft)] == before
