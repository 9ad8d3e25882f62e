"""Rules through the command: what cannot be is one sentence and code 2 before weights are read; what can decodes."""

import pytest
from watched import sdbench

from sdbench import read
from sdbench.cli import main

SLIPS = [
    (("verifier=asd", "temperature=1"), "verifier=asd works at temperature 0 only, got temperature=1"),
    (("verifier=mentored", "temperature=0"), "verifier=mentored needs a temperature above 0, got temperature=0"),
    (("verifier=fly", "verifier.window=5"), "verifier=fly takes a num_draft of at least 6, got num_draft=5"),
    (("verifier=within",), "verifier=within: begin=<think> is 5 tokens of this tokenizer; a marker must be one"),
    (("verifier=within", "verifier.begin=Answer", "verifier.end=Answer"), "begin and end of Within must differ"),
    (("verifier=coin", "verifier.rule._target_=sdbench.verify.Block"), "verifier sdbench.verify.Block cannot be built"),
]


@pytest.mark.parametrize(
    ("words", "says"), SLIPS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_what_a_rule_cannot_do_is_one_sentence_and_code_2(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*words, "n=2"]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert (out, err.count("\n")) == ("", 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_rule_within_a_rule_is_swept_from_the_command_line_and_keyed_by_both(tmp_path):
    words = ["verifier=coin", "verifier.rule.delta=[0.1,0.3]", "n=2", "max_new_tokens=8", "timing=off", "report=off"]
    done = sdbench(words, cwd=tmp_path)
    assert done.code == 0, done.err
    cells = read(tmp_path / "results" / "llama-tiny-gsm8k-tiny").cells
    coins = cells[cells["verifier"] == "coin"]
    assert sorted(coins["knob_rule.delta"]) == [0.1, 0.3]
    assert set(coins["knob_rule._target_"]) == {"sdbench.verify.Typical"}
    assert {content["versions"]["verifier"] for content in coins["content"]} == {"1 of 1"}
