"""The heads that ship: small, of the pairs that ship beside them, loaded by name, trained within a quarter of an hour."""

import json
import time
from pathlib import Path

import pytest

from sdbench import embedded
from sdbench.records import read
from sdbench.run import main
from sdbench.verify import Diversed, Head, Judge

ROOT = Path(embedded.__file__).parent / "heads"
NAMES = sorted(str(card.parent.relative_to(ROOT)) for card in ROOT.glob("*/*/head.json"))
RULES = {"ensemble": ("diversed", "1"), "judge": ("judge", "0")}  # kind -> its rule, the temperature it is trained at


def kind_of(name: str) -> str:
    return json.loads((ROOT / name / "head.json").read_text())["kind"]


def test_all_together_take_little_room():
    assert NAMES
    assert sum(path.stat().st_size for path in ROOT.rglob("*")) <= 3e6


@pytest.mark.parametrize("name", NAMES)
def test_it_is_of_the_pair_that_ships_and_decodes_without_a_warning(name, tmp_path, capfd):
    """Beyond the pair, loading it costs a fifth of a second at most."""
    kind = kind_of(name)
    rule, temperature = RULES[kind]
    pair, task = name.split("/")
    words = [f"model={pair}", f"task={task.removesuffix('-judge')}", f"temperature={temperature}", "n=2"]
    words += [f"verifier={rule}", f"verifier.head=embedded:{name}", "max_new_tokens=12", "timing=off", "report=off"]
    assert main([*words, f"results={tmp_path}", "name=run"]) == 0
    assert "was trained at" not in capfd.readouterr().err
    generations = read(tmp_path / "run").generations
    assert len(generations[generations["verifier"] == rule]) >= 2
    began = time.process_time()
    make = Diversed if kind == "ensemble" else Judge
    assert isinstance(make(f"embedded:{name}").head, Head)  # pyright: ignore[reportArgumentType]
    assert time.process_time() - began < 0.2


@pytest.mark.parametrize("name", NAMES)
def test_its_training_took_no_longer_than_is_promised(name):
    assert json.loads((ROOT / name / "head.json").read_text())["seconds"] < 15 * 60
