"""Medusa's heads are trained: laws that belong together, agreement that rises, exact resumption, a folder that drafts."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from sdbench.card import CARD, WEIGHTS
from sdbench.cli import main
from sdbench.prepare.trained import LENGTHS, USUAL_NUM_DRAFT, target_name
from sdbench.train.answers import Answers
from sdbench.train.medusa import MedusaTraining
from sdbench.train.options import RECIPES
from tests.train.trainings import PAIR, finished, killed

WORDS = ("prompts=4", "rows=20", "max_new_tokens=24", "steps=12", "heads=3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("medusa") / "heads"
    assert main(["train", "medusa", *PAIR, *WORDS, "model.draft=null", f"out={out}"]) == 0
    return out


def test_heads_agree_with_the_target_on_held_out_prompts(trained):
    """Untrained heads guess the last token again, which hardly ever follows itself."""
    card = json.loads((trained / CARD).read_text())
    assert len(card["agreement"]) == 3
    assert card["agreement"][0] > 0.2
    assert list(card["checkpoints"]) == ["target"], "the draft of the pair does not matter"


def test_short_texts_have_places_for_the_first_heads_only():
    """Of the answers [1, 2, 6], head k has a place at each token but the last k."""
    depth, width, prompt = 5, 4, [0, 0, 0]
    answers = [[0] * count for count in (1, 2, 6)]
    training = SimpleNamespace(
        states=lambda texts: [torch.zeros(len(prompt) + len(answer), width) for _, answer in texts],
        log_law=lambda states: states.log_softmax(-1),
        weights={"weight": torch.zeros(depth, width, width), "bias": torch.zeros(depth, width)},
    )
    places = Counter()
    texts = [(prompt, answer) for answer in answers]
    for k, log_q, log_p in MedusaTraining.log_laws(training, texts, depth):  # pyright: ignore[reportArgumentType]
        assert len(log_q) == len(log_p) > 0
        places[k] += len(log_p)
    assert places == {0: 9, 1: 6, 2: 4, 3: 3, 4: 2}


@pytest.mark.slow
def test_a_training_on_answers_of_two_tokens_reports_the_heads_that_they_have_a_place_for(tmp_path):
    words = [*PAIR, *(word for word in WORDS if "max_new" not in word), "max_new_tokens=2", "model.draft=null"]
    assert main(["train", "medusa", *words, f"out={tmp_path / 'heads'}"]) == 0
    assert len(json.loads((tmp_path / "heads" / CARD).read_text())["agreement"]) == 2


@pytest.mark.slow
def test_a_run_drafts_with_them_and_is_lossless(trained, tmp_path, capsys):
    words = [
        "task=gsm8k-tiny",
        "n=6",
        "temperature=0",
        "max_new_tokens=32",
        "verifier=exact",
        "num_draft=3",
        "timing=off",
    ]
    run = ["model.draft=null", "drafter=medusa", f"drafter.head={trained}", f"results={tmp_path}", "report=off"]
    assert main(["model=llama-tiny", *words, *run]) == 0
    assert "lossless K=3 equals the target alone in 6 of 6 texts (float32)" in capsys.readouterr().out


@pytest.mark.parametrize("draft", [[], ["model.draft=null"]])
def test_those_that_ship_are_found_by_the_target(draft, tmp_path, capsys):
    words = ["model=llama-tiny", "task=gsm8k-tiny", "drafter=medusa", "n=2", "--plan", f"results={tmp_path}", *draft]
    assert main(words) == 0
    assert "medusa" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("embedded:qwen-tiny/target", "qwen-tiny"),
        ("org/Big-1.5B", "Big-1.5B"),
        ("org/repo:x.gguf", "x"),
        ("/a/b/", "b"),
    ],
)
def test_a_target_is_called_by_its_last_name(target, name):
    run = SimpleNamespace(model=SimpleNamespace(target=target))
    assert target_name(run) == name  # pyright: ignore[reportArgumentType]


def test_where_no_heads_are_the_command_that_trains_them_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["model=qwen-tiny", "task=wmt-tiny", "drafter=medusa", "n=2"]) == 2
    assert "train one with python -m sdbench.train medusa model=qwen-tiny task=wmt-tiny\n" in capsys.readouterr().err


@pytest.mark.parametrize(("num_draft", "more"), [("8", "8"), ("[3,6]", "6"), ("3", None)])
@pytest.mark.parametrize(("kind", "option"), [("medusa", "heads"), ("block", "positions"), ("mtp", None)])
def test_the_command_trains_heads_for_the_longest_block_of_the_run(
    kind, option, num_draft, more, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["model=qwen-tiny", "task=wmt-tiny", f"drafter={kind}", "n=2", f"num_draft={num_draft}"]) == 2
    end = f" {option}={more}" if option and more else ""
    assert capsys.readouterr().err.endswith(f"python -m sdbench.train {kind} model=qwen-tiny task=wmt-tiny{end}\n")


def test_the_lengths_that_need_no_option_are_the_trainings_defaults():
    defaults = {kind: RECIPES[kind.removeprefix("drafters/")].options()[name].default for kind, name in LENGTHS.items()}
    assert defaults == dict.fromkeys(LENGTHS, USUAL_NUM_DRAFT)


def test_more_drafts_than_heads_are_refused(trained, tmp_path, capsys):
    words = ["model=llama-tiny", "task=gsm8k-tiny", "n=2", "num_draft=4", f"results={tmp_path}"]
    assert main([*words, "drafter=medusa", f"drafter.head={trained}"]) == 2
    assert "drafts at most 3 tokens: give a num_draft of at most 3, got 4" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("once", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_killed_training_ends_in_the_same_heads(once, nursery, tmp_path):
    words = [*(word for word in WORDS if not word.startswith("steps=")), "steps=24", f"once={once}"]
    finished(nursery, "medusa", *words, f"out={tmp_path / 'whole'}")
    killed(nursery, "medusa", 22, *words, f"out={tmp_path / 'torn'}")
    assert not (tmp_path / "torn" / CARD).exists()
    finished(nursery, "medusa", *words, f"out={tmp_path / 'torn'}")
    whole, torn = (load_file(tmp_path / name / WEIGHTS) for name in ("whole", "torn"))
    assert all(torch.equal(whole[name], torn[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize(("once", "times"), [pytest.param(0, 3, marks=pytest.mark.slow), (1, 1)])
def test_rows_are_answered_once_if_asked_for(once, times, tmp_path, monkeypatch, capsys):
    """12 steps of 4 prompts read 16 rows three times; the 4 others are held out, and answered once in any case."""
    answered, read = Counter(), Counter()
    sample, compute_states = Answers.sample, MedusaTraining.compute_states

    def count_answers(self, keys, *rest):
        answered.update(keys)
        return sample(self, keys, *rest)

    def count_states(self, texts):
        read.update(tuple(prompt) for prompt, _ in texts)
        return compute_states(self, texts)

    monkeypatch.setattr(Answers, "sample", count_answers)
    monkeypatch.setattr(MedusaTraining, "compute_states", count_states)
    words = [*PAIR, *WORDS, "model.draft=null", f"once={once}", f"out={tmp_path / 'heads'}"]
    assert main(["train", "medusa", *words]) == 0
    assert sorted(answered.values()) == [1] * 4 + [times] * 16
    assert len(read) == 20
    assert max(read.values()) == 1 or not once
    printed = capsys.readouterr()
    assert ("the target's states of 20 answers take up to" in printed.out) == bool(once)
    titles = [line.partition(" in ")[0] for line in printed.err.splitlines()]
    assert titles == [*["answers: 16/16"] * once, "held-out answers: 4/4"]


@pytest.mark.slow
def test_a_checkpoint_without_answers_resumes_and_samples_the_same_again(tmp_path):
    words = [*PAIR, *(word for word in WORDS if "steps" not in word), "once=1"]
    assert main(["train", "medusa", *words, "steps=6", f"out={tmp_path / 'whole'}"]) == 0
    assert main(["train", "medusa", *words, "steps=3", f"out={tmp_path / 'old'}"]) == 0
    checkpoint = tmp_path / "old/medusa.ckpt"
    state = torch.load(checkpoint, weights_only=True)
    assert len(state.pop("answers")) == 16
    torch.save(state, checkpoint)
    assert main(["train", "medusa", *words, "steps=6", f"out={tmp_path / 'old'}"]) == 0
    whole, old = (load_file(tmp_path / name / WEIGHTS) for name in ("whole", "old"))
    assert all(torch.equal(whole[name], old[name]) for name in whole)


def test_another_value_of_once_is_refused(capsys):
    assert main(["train", "medusa", *PAIR, "once=2"]) == 2
    assert "once must be 0 or 1, got 2" in capsys.readouterr().err
