"""What the trainings refuse: one sentence each, before weights are read, and nothing is left behind."""

import errno
import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from sdbench import embedded
from sdbench.cli import compose_run
from sdbench.cli import main as front_door
from sdbench.train.command import lock, with_temperature
from sdbench.train.options import RECIPES
from sdbench.train.setup import run_of
from tests.train.trainings import PAIR


def main(words):
    return front_door(["train", *words])


ALL = ("ensemble", "judge", "draft", "medusa", "mtp", "eagle", "eagle3", "block", "gate")
ROWS_OF = [(kind, "prompts" if kind in ("judge", "gate") else "rows") for kind in ALL]
WITHOUT_DRAFTER = ("draft", "pruned", "medusa", "mtp", "eagle", "eagle3", "block")
ON_LAYERS = ("pruned", "mtp", "eagle", "eagle3", "block")
RULE = "is not a training option; a training sets the rule itself"
DRAFTER = "is not an option of this training: its texts are decoded without a drafter"
STARTS = "this training starts from the"
STATELESS = ("lookup", "suffix", "pruned", "hybrid")
HTTP = ("engine=http", "engine.url=http://localhost:1")


@pytest.mark.parametrize(
    ("kind", "words", "sentence"),
    [
        *((kind, ["features=[moon]"], f"features of {kind} heads must be among draft_hidden") for kind in ALL[:2]),
        *((kind, ["steps=many"], "steps must be a whole number, got many") for kind in ALL),
        *((kind, ["steps=0"], "steps must be at least 1, got 0") for kind in ALL),
        *((kind, ["prompts=0"], "prompts must be at least 1, got 0") for kind in ALL),
        *((kind, ["task=nope"], "task") for kind in ALL),
        *((kind, ["n=3"], f"n= is not a training option; use {option}=\n") for kind, option in ROWS_OF),
        *((kind, ["task.n=3"], f"task.n= is not a training option; use {option}=\n") for kind, option in ROWS_OF),
        *((kind, ["results=/x"], "results= is not a training option; use out=") for kind in ALL),
        *((kind, ["timing.examples=3"], "timing.examples= is not a training option; it belongs to runs") for kind in ALL),
        *((kind, ["shard=1/2"], f"shard= is not a training option; use {option}=\n") for kind, option in ROWS_OF),
        *((kind, ["task.split=test"], "task.split= is not a training option; it is train") for kind in ALL),
        *((kind, ["--plan"], "--plan is not a training option; remove it") for kind in ALL),
        *((kind, ["num_draft=[5,3]"], "a training takes one num_draft, got [5, 3]") for kind in ALL),
        *((kind, ["prompts=6", "rows=2"], "prompts=6 is more than the 2 rows available") for kind in ("ensemble", "draft")),
        *((kind, ["max_new_tokens=1"], "max_new_tokens must be at least 2") for kind in ALL),
        *((kind, ["num_draft=1,2", "-m"], "run it once for each combination") for kind in ALL),
        *((kind, [*HTTP], "a training decodes with engine=native, got engine=http") for kind in ALL),
        *((kind, ["verifier=exact"], f"verifier= {RULE}") for kind in ALL),
        ("ensemble", ["verifier.mix=logit"], f"verifier.mix= {RULE}"),
        *((kind, ["w=0.5"], f"w= {RULE}") for kind in ALL),
        *((kind, ["drafter=lookup"], f"drafter= {DRAFTER}") for kind in WITHOUT_DRAFTER),
        ("pruned", ["drafter=pruned", "drafter.keep_layers=9"], f"drafter= {DRAFTER}"),
        ("mtp", ["+drafter.head=x"], f"drafter.head= {DRAFTER}"),
        *((kind, ["model.quantization=int8"], f"{STARTS} target's weights, and model.quantization=int8") for kind in ON_LAYERS),
        ("medusa", ["model.quantization=int8"], "reads the target's states, and model.quantization=int8 changes them: remove it"),
        ("draft", ["model.draft_quantization=int8"], f"{STARTS} draft's weights, and model.draft_quantization=int8"),
        *(("ensemble", [f"drafter={name}"], f"reads the states of a draft model, and drafter={name} has") for name in STATELESS),
        ("ensemble", ["rate=0"], "rate must be at least 1e-09, got 0"),
        ("ensemble", ["rate=nan"], "rate must be a number, got nan"),
        ("ensemble", ["samples=1"], "samples must be at least 2, to compare texts of one prompt, got 1"),
        ("ensemble", ["temperature=0"], "temperature must be above 0 to sample different texts, got 0"),
        ("ensemble", ["task=wmt-tiny"], "reward=bleu of task=wmt-tiny is not a bounded score of a single text; use reward="),
        ("ensemble", ["price=inf"], "price must be a number, got inf"),
        ("ensemble", ["features=[token_hidden]"], "features of ensemble heads must be among draft_hidden, target_hidden, slot, tv"),
        ("draft", ["reward=flexible"], "reward is not an option of this training: it reads no score"),
        ("judge", ["temperature=1"], "temperature must be 0 to mine labels, got 1"),
        ("judge", ["samples=4"], "samples is not an option of this training"),
        *((kind, ["loss=hinge"], "loss cannot be hinge") for kind in ("draft", "medusa", "mtp")),
        ("gate", ["features=[moon]"], "features of a gate must be among draft_chance, draft_entropy, draft_margin, slot, got moon"),
        ("gate", ["reward=flexible"], "reward is not an option of this training: it reads no score"),
        ("gate", ["drafter=[model,lookup]"], "a training takes one drafter, got model, lookup"),
        ("medusa", ["heads=0"], "heads must be at least 1, got 0"),
        ("mtp", ["passes=0"], "passes must be at least 1, got 0"),
        ("block", ["positions=1"], "positions must be at least 2, got 1"),
        ("block", ["layers=19"], "layers must be at most 18, the layers of the target, got 19"),
        ("medusa", ["reward=flexible"], "reward is not an option of this training: it reads no score"),
        ("draft", ["temperature=0"], "temperature must be above 0 to sample different texts, got 0"),
        ("draft", ["swaps=3"], "swaps is not an option of this training"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_leaves_nothing(kind, words, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sdbench.prepare.pair.load", lambda metadata: pytest.fail("weights are read"))
    pair = PAIR if "task=" not in " ".join(words) else PAIR[:1]
    assert main([kind, *pair, *words, f"out={tmp_path / 'made'}"]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["judge", "gate"])
def test_more_prompts_than_rows_can_only_be_lowered_where_there_is_no_option_for_rows(kind, tmp_path, capsys):
    rows = [{"question": f"What is {n} plus 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = [f"task.data={tmp_path / 'rows.jsonl'}", "prompts=9", f"out={tmp_path / 'made'}"]
    with pytest.warns(UserWarning, match="fewer than n=9"):
        assert main([kind, *PAIR, *words]) == 2
    assert capsys.readouterr().err.endswith("prompts=9 is more than the 8 rows available; lower it\n")


def test_a_checkpoint_that_is_quantised_is_no_start(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sdbench.prepare.pair.load", lambda metadata: pytest.fail("weights are read"))
    shutil.copytree(embedded.path("llama-tiny", "target"), tmp_path / "target")
    path = tmp_path / "target/config.json"
    quantised = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **quantised}))
    words = [f"model.target={tmp_path / 'target'}", "model.draft=null", PAIR[1], f"out={tmp_path / 'made'}"]
    assert main(["pruned", *words]) == 2
    assert (
        f"{STARTS} target's weights, and the checkpoint of model.target has quantised ones" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("kind", "words", "temperature"),
    [
        ("gate", [], 1),
        ("judge", [], 0),
        *(("gate", [word], 0.7) for word in ("temperature=0.7", "++temperature=0.7")),
        ("gate", ["decode=low"], 0.1),
        ("gate", ["experiment=real-xsum"], 0),
        ("gate", ["experiment=real-wmt-sampled"], 1),
        ("gate", ["experiment=real-xsum", "temperature=0.5"], 0.5),
    ],
)
def test_a_training_decodes_at_the_temperature_that_its_words_or_their_experiment_set(kind, words, temperature):
    recipe = RECIPES[kind]()
    pair = [] if words and words[0].startswith("experiment") else PAIR
    assert run_of(with_temperature([*pair, *words], recipe), recipe, compose_run).temperature == temperature


@pytest.mark.parametrize("words", [["drafter=mtp", *PAIR], [*PAIR, "drafter=mtp"]])
def test_a_training_is_also_named_by_its_drafter(words, capsys):
    assert main([*words, "passes=0"]) == 2
    assert "passes must be at least 1, got 0" in capsys.readouterr().err
    assert main([*words, "--help"]) == 0
    assert "sdbench.train mtp: train a layer" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["drafter=nope", *PAIR], ["nope", *PAIR], ["nope", "drafter=mtp"]])
def test_an_unknown_training_is_one_sentence(words, capsys):
    assert main(words) == 2
    assert "the training cannot be nope" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["draft", "ensemble", pytest.param("medusa", marks=pytest.mark.long)])
@pytest.mark.slow
def test_a_checkpoint_of_another_training_is_refused(kind, tmp_path, capsys):
    short = [
        *PAIR,
        "prompts=2",
        "max_new_tokens=12",
        *(["samples=2"] if kind == "ensemble" else []),
        f"out={tmp_path / 'made'}",
    ]
    assert main([kind, *short, "steps=1"]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    if kind == "draft":
        shutil.rmtree(tmp_path / "made")
    for words, told in (
        (["seed=1", "steps=1"], "seed=0, and this one has seed=1"),
        (["num_draft=2", "steps=1"], "num_draft="),
        (["top_p=0.5", "steps=1"], "question (prompts, stops, options)="),
    ):
        assert main([kind, *short, *words]) == 2
        err = capsys.readouterr().err
        assert told in err
        assert "give another out=, or delete it" in err
    assert all(path.read_bytes() == held for path, held in before.items() if path.exists())


@pytest.mark.parametrize("size", [9, -9, None], ids=["hardly begun", "nearly whole", "older"])
def test_a_checkpoint_that_cannot_be_read_is_one_sentence(size, tmp_path, capsys):
    torch.save({"step": 1}, tmp_path / "head.ckpt")
    held = (tmp_path / "head.ckpt").read_bytes()[:size]
    (tmp_path / "head.ckpt").write_bytes(held)
    assert main(["ensemble", *PAIR, f"out={tmp_path}"]) == 2
    assert (
        "head.ckpt is damaged or of an older version: delete it to start the training again" in capsys.readouterr().err
    )
    assert (tmp_path / "head.ckpt").read_bytes() == held


@pytest.mark.slow
def test_weights_that_changed_between_two_trainings_are_another_pair(tmp_path, capsys):
    shutil.copytree(embedded.path("llama-tiny", "draft"), tmp_path / "draft")
    words = [
        *PAIR,
        f"model.draft={tmp_path / 'draft'}",
        "prompts=2",
        "samples=2",
        "max_new_tokens=12",
        f"out={tmp_path / 'head'}",
    ]
    assert main(["ensemble", *words, "steps=1"]) == 0
    weights = load_file(tmp_path / "draft/model.safetensors")
    save_file(
        {name: tensor * 1.01 for name, tensor in weights.items()},
        tmp_path / "draft/model.safetensors",
        {"format": "pt"},
    )
    assert main(["ensemble", *words, "steps=2"]) == 2
    assert "belongs to a training with checkpoints=" in capsys.readouterr().err


def test_a_folder_that_is_there_is_no_place_for_a_draft(tmp_path, capsys):
    assert main(["draft", *PAIR, f"out={tmp_path}"]) == 2
    assert f"out={tmp_path} exists already: give another out=, or delete it" in capsys.readouterr().err


def test_a_draft_goes_by_its_loss_named_or_not(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/drafts/llama-tiny-gsm8k-tiny-forward_kl").mkdir(parents=True)
    for words in ([], ["loss=forward_kl"]):
        assert main(["draft", *PAIR, *words]) == 2
        assert "out=results/drafts/llama-tiny-gsm8k-tiny-forward_kl exists already" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["file/made", "../../proc/x/made"])
def test_a_place_that_cannot_be_written_to_is_one_sentence(out, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sdbench.prepare.pair.load", lambda metadata: pytest.fail("weights are read"))
    (tmp_path / "file").touch()
    place = tmp_path / out if out.startswith("file") else "/proc/x/made"
    assert main(["ensemble", *PAIR, f"out={place}"]) == 2
    message = capsys.readouterr().err
    assert f"out={place} cannot be written to" in message
    assert message.count("\n") == 1


def test_two_trainings_cannot_write_to_one_folder(tmp_path, capsys):
    with lock(tmp_path / "made"):
        assert main(["ensemble", *PAIR, f"out={tmp_path / 'made'}"]) == 2
    assert "another training is writing to out=" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_warned_of(number, tmp_path, capsys, monkeypatch):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    if number == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(number)), lock(tmp_path / "made"):
            pass
        return
    with lock(tmp_path / "made"):
        assert (
            f"the file system of out={tmp_path / 'made'} has no locks ({os.strerror(number)})"
            in capsys.readouterr().err
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_other_rows_are_another_training(tmp_path, capsys):
    short = [*PAIR, "prompts=2", "samples=2", "rows=8", "max_new_tokens=12", f"out={tmp_path / 'made'}"]
    assert main(["ensemble", *short, "steps=1"]) == 0
    capsys.readouterr()
    assert main(["ensemble", *short, "steps=2", "task.seed=7"]) == 2
    assert "belongs to a training with rows asked=" in capsys.readouterr().err


@pytest.mark.slow
def test_a_byte_that_changed_in_a_checkpoint_is_one_sentence(tmp_path, capsys):
    short = [*PAIR, "prompts=2", "samples=2", "max_new_tokens=12", f"out={tmp_path / 'made'}"]
    assert main(["ensemble", *short, "steps=1"]) == 0
    path = tmp_path / "made/head.ckpt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    capsys.readouterr()
    assert main(["ensemble", *short, "steps=2"]) == 2
    assert "is damaged or of an older version" in capsys.readouterr().err


@pytest.mark.slow
def test_a_distillation_needs_no_score_of_a_text(tmp_path, capsys):
    """Translations have a corpus metric alone."""
    words = [
        "model=qwen-tiny",
        "task=wmt-tiny",
        "prompts=2",
        "steps=1",
        "max_new_tokens=12",
        f"out={tmp_path / 'made'}",
    ]
    assert main(["draft", *words]) == 0
    assert "reward" not in json.loads((tmp_path / "made/distilled.json").read_text())


def test_a_tiny_pair_is_trained_in_a_checkout(capsys):
    assert main(["tiny", "pair=llama-tiny"]) == 2
    assert capsys.readouterr().err.endswith("in a checkout of the repository, by python scripts/train_tiny.py\n")
