"""Rules with heads through the command: keyed by what the head is, refused for another pair, warned of for another task."""

import shlex
import shutil

import pytest
import torch

from sdbench import embedded, read
from sdbench.cli import compose_run, main
from sdbench.config import ConfigError, Model
from sdbench.prepare import pair, progress
from sdbench.prepare.heads import warn_of_foreign_drafter_heads
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.rules import build_parts
from sdbench.prepare.trained import with_trained
from sdbench.train.options import parse_recipe
from sdbench.train.setup import run_of
from sdbench.verify import Head

WORDS = (
    "verifier=diversed",
    "verifier.offset=[0]",
    "n=3",
    "temperature=1",
    "max_new_tokens=12",
    "timing=off",
    "report=off",
)


@pytest.fixture
def sdbench(tmp_path, capfd, monkeypatch):
    """The command in this process, below a folder of its own; its code and what it says."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capfd.readouterr()
        return main(list(words)), capfd.readouterr().err

    return run


@pytest.fixture(scope="module")
def pair_info():
    name = "llama-tiny"
    model = Model(name=name, target=f"embedded:{name}/target", draft=f"embedded:{name}/draft")
    return PairInfo.read(pair.find(model, device="cpu", dtype="auto"))


def saved(folder, pair_info, seed=0, **card):
    widths = sum(int(pair_info.configs[role].hidden_size) for role in ("draft", "target"))
    weight = torch.randn(1, widths, generator=torch.Generator().manual_seed(seed)) / widths**0.5
    told = {"model": "llama-tiny", "checkpoints": pair_info.checkpoints, "tokenizer": pair_info.tokenizer_key}
    told |= {"task": "gsm8k-tiny", "temperature": 1.0} | card
    features = ("draft_hidden", "target_hidden")
    Head("ensemble", features, {"weight": weight, "bias": torch.zeros(1)}, told).save(folder)
    return folder


@pytest.mark.slow
def test_a_head_is_what_it_says_wherever_it_lies_and_another_one_is_another_cell(sdbench, pair_info, tmp_path):
    head = saved(tmp_path / "head", pair_info)
    code, err = sdbench(*WORDS, f"verifier.head={head}")
    assert code == 0, err
    assert "warning" not in err
    shutil.copytree(head, tmp_path / "copy")
    assert "nothing to decode" in sdbench(*WORDS, f"verifier.head={tmp_path / 'copy'}")[1]
    saved(tmp_path / "copy", pair_info, seed=1)
    assert "nothing to decode" not in sdbench(*WORDS, f"verifier.head={tmp_path / 'copy'}")[1]
    cells = read(tmp_path / "results" / "llama-tiny-gsm8k-tiny").cells
    heads = cells[cells["verifier"] == "diversed"]["knob_head"]
    assert len(set(heads)) == len(heads) == 2
    assert all(text.startswith("gsm8k-tiny@") for text in heads)
    held = [content["heads"]["head"] for content in cells[cells["verifier"] == "diversed"]["content"]]
    assert all((one["task"], one["temperature"]) == ("gsm8k-tiny", 1.0) for one in held)
    assert len({one["digest"] for one in held}) == 2


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        ({"checkpoints": {"target": "sha:other"}}, "whose target is sha:other, and model=llama-tiny has"),
        ({"tokenizer": "another"}, "whose tokenizer differs from that of model=llama-tiny"),
        (
            {"target_quantization": "int8", "draft_quantization": None},
            "trained with model.quantization=int8, and this run has model.quantization=null: train one with",
        ),
        (
            {"target_quantization": None, "draft_quantization": "int8"},
            "trained with model.draft_quantization=int8, and this run has model.draft_quantization=null: train one with",
        ),
    ],
)
def test_a_head_of_another_pair_is_one_sentence_before_weights_are_read(card, sentence, sdbench, pair_info, tmp_path):
    head = saved(tmp_path / "head", pair_info, **card)
    code, err = sdbench(*WORDS, f"verifier.head={head}")
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_head_for_states_of_another_width_is_one_sentence(sdbench, pair_info, tmp_path):
    head = saved(tmp_path / "head", pair_info)
    wide = Head.load(str(head), "ensemble")
    weights = {"weight": torch.zeros(1, 7), "bias": torch.zeros(1)}
    Head("ensemble", wide.features, weights, wide.card).save(tmp_path / "narrow")
    code, err = sdbench(*WORDS, f"verifier.head={tmp_path / 'narrow'}")
    assert code == 2
    assert "with 7 features, and this pair gives" in err


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        ({"task": "wmt-tiny"}, "verifier.head was trained with task=wmt-tiny, but this run has task=gsm8k-tiny"),
        ({"temperature": 0.5}, "verifier.head was trained with temperature=0.5, but this run has temperature=1.0"),
        ({"protocol": "cot"}, "verifier.head was trained with protocol=cot, but this run has protocol=lm-eval"),
    ],
)
def test_another_task_or_temperature_is_a_warning(card, sentence, sdbench, pair_info, tmp_path):
    head = saved(tmp_path / "head", pair_info, **card)
    code, err = sdbench(*WORDS, f"verifier.head={head}")
    assert code == 0, err
    assert sentence in err


@pytest.mark.slow
def test_of_several_rules_the_one_whose_head_it_is_is_named(sdbench, pair_info, tmp_path):
    head = saved(tmp_path / "head", pair_info, task="wmt-tiny")
    words = [
        "verifier=[ensemble,diversed]",
        "w=[0.5]",
        "verifier.diversed.offset=[0,1]",
        f"verifier.diversed.head={head}",
    ]
    code, err = sdbench(*words, *WORDS[2:])
    assert code == 0, err
    assert err.count("verifier.diversed.head was trained with task=wmt-tiny") == 1


def test_without_a_head_the_training_is_named(sdbench):
    code, err = sdbench("verifier=diversed")
    assert code == 2
    assert "a head is needed: train one with python -m sdbench.train ensemble" in err
    assert "then give verifier.head=FOLDER or verifier.head=trained:TASK" in err
    code, err = sdbench("verifier=diversed", "verifier.head=trained:gsm8k-tiny", "--plan")
    assert code == 0, err


@pytest.mark.slow
def test_a_training_that_has_not_ended_is_passed_over_aloud(sdbench, tmp_path):
    """Between two runs the training of one's own was begun anew: the head that ships is taken, and that is said."""
    words = ("model=llama-tiny", "task=gsm8k-tiny", "verifier.head=trained:gsm8k-tiny", *WORDS)
    code, message = sdbench(*words)
    assert code == 0
    assert "has no head.json" not in message
    folder = tmp_path / "results/heads/llama-tiny-gsm8k-tiny"
    folder.mkdir(parents=True)
    (folder / "head.ckpt").touch()
    code, message = sdbench(*words)
    assert code == 0
    assert "the training in results/heads/llama-tiny-gsm8k-tiny is not finished (no head.json)" in message


OTHERS = {"humaneval": "mbpp", "lm-eval:gsm8k": "gsm8k", "lm-eval:humaneval": "mbpp", "lm-eval:nq_open": "gsm8k"}
LEARNED = {
    "verifier=diversed verifier.head=trained:{}": "verifier.head=trained:{}",
    "drafter=medusa": "drafter.head=trained:{}",
    "drafter=gate": "drafter.length_head=trained:{}",
    "model.distilled=overlap": "model.draft=results/drafts/llama-{}-overlap in place of model.distilled",
}


@pytest.mark.parametrize("task", OTHERS)
@pytest.mark.parametrize("words", LEARNED)
def test_where_a_task_has_no_train_split_another_is_trained_on(words, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = compose_run(["model=llama", f"task={task}", *words.format(task.replace(":", "-")).split()])
    with pytest.raises(ConfigError, match="has no train split to train on") as error:
        with_trained(run)
    command, _, then = str(error.value).partition("python -m sdbench.train ")[2].partition(" and give ")
    kind, *options = shlex.split(command)
    recipe = parse_recipe(kind, {"loss": "overlap"} if "loss=overlap" in options else {})
    other = run_of([word for word in options if word != "loss=overlap"], recipe, compose_run).task
    assert (other.name, other.options["split"]) == (OTHERS[task], "train")
    assert then.partition(",")[0] == LEARNED[words].format(OTHERS[task])
    assert ("task.data=FILE" in then) == (task == "humaneval")


NO_TASKS = [
    ("verifier.head=trained:../x", *WORDS),
    ("drafter.head=trained:../x", "drafter=medusa", "timing=off"),
    ("drafter.length_head=trained:../x", "drafter=gate", "timing=off"),
]


@pytest.mark.parametrize("words", NO_TASKS, ids=lambda words: words[0])
def test_a_path_is_no_task(sdbench, words):
    code, message = sdbench("model=llama-tiny", "task=gsm8k-tiny", *words)
    assert code == 2
    option = words[0].partition("=")[0]
    assert f"trained:../x names no task: give trained:gsm8k-tiny, or the folder itself as {option}=FOLDER" in message


MTP = (
    "drafter=mtp",
    f"drafter.head={embedded.path('llama-tiny', 'target').parents[1] / 'drafters/mtp/llama-tiny/gsm8k-tiny'}",
)
WORSE = ": its drafts or estimates may be worse, its texts are not"
OF_TASK = f"was trained with task=gsm8k-tiny, but this run has task=cnndm-tiny{WORSE}"


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        ((*MTP, "task=gsm8k-tiny", "temperature=1"), []),
        ((*MTP, "task=gsm8k-tiny", "temperature=0"), []),  # at which no head can be trained
        ((*MTP, "task=cnndm-tiny", "temperature=0"), [f"drafter.head {OF_TASK}"]),
        (
            (*MTP, "task=cnndm-tiny", "temperature=0.5"),
            [
                f"drafter.head {OF_TASK}",
                f"drafter.head was trained with temperature=1.0, but this run has temperature=0.5{WORSE}",
            ],
        ),
        (
            ("drafter=[lookup,mtp]", MTP[1].replace(".head", ".mtp.head"), "task=cnndm-tiny", "temperature=1"),
            [f"drafter.mtp.head {OF_TASK}"],
        ),
        (("drafter=mtp", "drafter.head=checkpoint", "task=cnndm-tiny"), []),
    ],
)
def test_a_drafters_head_of_another_task_or_temperature_is_a_warning(words, sentences, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_printed", set())
    run = compose_run(words)
    warn_of_foreign_drafter_heads(run, build_parts(run))
    assert capsys.readouterr().err.splitlines() == [f"sdbench: warning: {sentence}" for sentence in sentences]
