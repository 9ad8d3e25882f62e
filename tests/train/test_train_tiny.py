"""scripts/train_tiny.py refuses options that its training would ignore."""

import pytest

from scripts import train_tiny


@pytest.mark.parametrize(
    "words", [["seed=3"], ["role=draft"], ["start=x"], ["role=draft", "start=x", "seed=3"]], ids=" ".join
)
def test_a_training_with_exits_takes_no_option_that_it_ignores(words, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        train_tiny.main(["exits=3", f"out={tmp_path}/out", *words])
    assert ended.value.code == 2
    named = ", ".join(word.partition("=")[0] + "=" for word in words)
    assert f"exits= trains the shipped target of pair= further: remove {named}\n" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
