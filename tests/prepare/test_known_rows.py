"""A run on rows that a training read from a file prints a warning, whatever was trained, and on other rows none."""

import json
import shutil

import pytest

import sdbench.tasks
from sdbench import embedded
from sdbench.card import CARD
from sdbench.cli import main
from sdbench.config import Model
from sdbench.prepare import pair, progress
from sdbench.prepare.known_rows import ROWS, rows_read
from sdbench.prepare.pair_info import PairInfo

RUN = ("model=llama-tiny", "task=gsm8k-tiny", "temperature=1", "max_new_tokens=12", "n=4", "--plan")
SHIPPED = {
    "judge": ("verifier=judge", "verifier.head", "judges/llama-tiny/gsm8k-tiny", "the head of verifier=judge"),
    "ensemble": ("verifier=diversed", "verifier.head", "heads/llama-tiny/gsm8k-tiny", "the head of verifier=diversed"),
    "medusa": ("drafter=medusa", "drafter.head", "drafters/medusa/llama-tiny/gsm8k-tiny", "the head of drafter=medusa"),
    "gate": (
        "drafter=gate",
        "drafter.length_head",
        "gates/ModelDrafter/llama-tiny/gsm8k-tiny-T1",
        "the length_head of drafter=gate",
    ),
}


@pytest.fixture
def rows(tmp_path):
    """Two files of rows without a row in common, and one that has a row of the first among those of the second."""
    texts = [json.dumps(row) for row in embedded.rows("gsm8k-tiny", "train", 12, seed=3)]
    parts = {"trained": texts[:6], "new": texts[6:10], "mixed": [*texts[6:9], texts[2]]}
    for name, lines in parts.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def planned(capfd, *words):
    progress._printed.clear()
    capfd.readouterr()
    code = main([*RUN, *words])
    err = capfd.readouterr().err
    assert code == 0, err
    return [line for line in err.splitlines() if "rows of this run" in line]


def card_of(rows):
    return rows_read(sdbench.tasks.load("gsm8k-tiny", split="train", data=str(rows / "trained.jsonl"), n=6))


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_head_that_was_trained_on_rows_of_the_run_is_warned_of(kind, rows, capfd):
    choice, option, folder, name = SHIPPED[kind]
    shutil.copytree(embedded.__path__[0] + f"/{folder}", rows / "head")
    card = json.loads((rows / "head" / CARD).read_text())
    (rows / "head" / CARD).write_text(json.dumps({**card, **card_of(rows)}))
    more = [choice, f"{option}={rows / 'head'}", f"results={rows}"]
    (warning,) = planned(capfd, *more, f"task.data={rows / 'mixed.jsonl'}")
    assert f"{name} was trained on rows of trained.jsonl, and 1 of the 4 rows of this run are among them" in warning
    assert not planned(capfd, *more, f"task.data={rows / 'new.jsonl'}")
    assert not planned(capfd, *more)


def test_a_draft_that_was_distilled_on_rows_of_the_run_is_warned_of(rows, capfd):
    draft = rows / "draft"
    shutil.copytree(embedded.path("llama-tiny", "draft"), draft)
    model = Model(name="llama-tiny", target="embedded:llama-tiny/target", draft=None)
    checkpoints = PairInfo.read(pair.find(model, device="cpu", dtype="auto")).checkpoints
    card = {"model": "llama-tiny", "task": "gsm8k-tiny", "temperature": 1.0, "loss": "tv", "steps": 1, "seed": 0}
    (draft / "distilled.json").write_text(json.dumps({**card, "checkpoints": dict(checkpoints), **card_of(rows)}))
    more = [f"model.draft={draft}", f"results={rows}"]
    (warning,) = planned(capfd, *more, f"task.data={rows / 'trained.jsonl'}")
    assert "the draft was trained on rows of trained.jsonl, and 4 of the 4 rows of this run are among them" in warning
    assert not planned(capfd, *more)


@pytest.mark.slow
def test_a_training_on_a_file_writes_its_rows_and_one_on_the_train_split_none(rows):
    words = ["train", "gate", *RUN[:2], "prompts=5", "max_new_tokens=12"]
    assert main([*words, f"task.data={rows / 'trained.jsonl'}", f"out={rows / 'of-file'}"]) == 0
    card = json.loads((rows / "of-file" / CARD).read_text())
    assert card["data"] == "trained.jsonl"
    assert len(card[ROWS].split()) == 5
    assert set(card[ROWS].split()) < set(card_of(rows)[ROWS].split())
    assert main([*words, f"out={rows / 'of-split'}"]) == 0
    assert ROWS not in json.loads((rows / "of-split" / CARD).read_text())
