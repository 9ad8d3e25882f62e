"""transformers' generate is timed on the calls that its tokens took, and writes the texts of the run's own settings."""

from types import SimpleNamespace
from typing import Any

import pytest

from sdbench.engines.native import plain
from sdbench.engines.native.trials import PromptTimes
from tests.engine.models import tiny

PROMPT = [5, 6, 7, 8]


@pytest.fixture
def decoder() -> Any:
    run, task = SimpleNamespace(temperature=0.0, seed=0), SimpleNamespace(max_new_tokens=8)
    return SimpleNamespace(
        pair=SimpleNamespace(target=tiny("llama"), draft=tiny("llama")),
        job=SimpleNamespace(run=run, task=task),
        stop_ids=lambda role: (),
        should_stop=None,
    )


@pytest.mark.parametrize("first_s", [10.0, 0.5])
def test_every_call_is_timed_and_the_first_is_known_to_read_the_prompt(first_s, decoder, monkeypatch):
    readings = iter([0.0, *(first_s + number for number in range(8))])
    monkeypatch.setattr(plain, "time", SimpleNamespace(perf_counter=lambda: next(readings)))
    measured = plain.time_generate(decoder, [PROMPT])
    assert (measured.tokens, measured.rounds, measured.rounds_s) == (8, 8, (first_s, *(1.0,) * 7))
    assert (measured.prefill_s, measured.decode_s, measured.first_token_s) == (0, first_s + 7, first_s)
    assert measured.reads_prompt
    apart = PromptTimes().apart("cell", measured)
    assert apart.decode_s == 7 + min(1, first_s), "a call like the others is decoding"
    assert apart.prefill_s + apart.decode_s == first_s + 7
    assert apart.first_token_s == first_s


@pytest.mark.parametrize("num_draft", [0, 3])
def test_a_repetition_penalty_of_the_checkpoint_is_left_out(num_draft, decoder, monkeypatch):
    model, texts = decoder.pair.target, []
    generate = model.generate

    def kept(*arguments, **options):
        texts.append(generate(*arguments, **options))
        return texts[-1]

    monkeypatch.setattr(model, "generate", kept)
    for penalty in (1.0, 50.0):
        model.generation_config.repetition_penalty = penalty
        plain.time_generate(decoder, [PROMPT], num_draft)
        assert model.generation_config.repetition_penalty == penalty
    assert texts[0].tolist() == texts[1].tolist()
    assert texts[0].tolist() != model.generate(texts[0][:, :4], max_new_tokens=8, do_sample=False).tolist(), (
        "it matters"
    )
