"""What is wrong is said before a weight is read, in one sentence and with exit code 2; what nobody expected, in one and a file."""

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import torch
from micro import byte_tokenizer
from transformers import AutoConfig

from sdbench.cli import compose, main
from sdbench.engines import job
from sdbench.engines.job import Models
from sdbench.lm import digests

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def draft(micro_pair, tmp_path) -> Path:
    return Path(shutil.copytree(micro_pair / "draft", tmp_path / "draft"))


def test_two_tokenizers_of_equal_size_are_compared_token_by_token(refused, draft):
    tree = json.loads((draft / "tokenizer.json").read_text())
    vocab = tree["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (draft / "tokenizer.json").write_text(json.dumps(tree))
    message = refused(**{"model.draft": draft})
    assert "different tokenizers" in message
    assert "2 of 257 ids" in message


STEPS = ("with_trained", "kind_of", "build_parts", "build_task", "refuse", "points")


def test_a_command_is_composed_once_and_prepared_in_steps_that_happen_once(words, tmp_path, monkeypatch, capsys):
    seen: list[str] = []

    def counted(name: str, function):
        def call(*args, **options):
            seen.append(name)
            return function(*args, **options)

        return call

    monkeypatch.setattr(compose.Hydra, "compose_config", counted("compose", compose.Hydra.compose_config))
    for name in STEPS:
        monkeypatch.setattr(job, name, counted(name, getattr(job, name)))
    assert main(["--plan", *words(tmp_path / "results", n=1)]) == 0
    assert seen == ["compose", *STEPS]


def test_a_plan_of_recorded_texts_reads_no_weights(words, whole, tmp_path, monkeypatch, capsys):
    """On another machine no hash is kept: those of a 70B take minutes."""
    shutil.copytree(whole, tmp_path / "results" / whole.name)
    read: list[Path] = []
    honest = digests.digest_of_file

    def counted(path, **options):
        read.append(path)
        return honest(path, **options)

    monkeypatch.setattr(digests, "digest_of_file", counted)
    monkeypatch.setattr(digests, "CACHE", tmp_path / "hashes")
    monkeypatch.setattr(digests, "LARGE", 0)
    plan = ["--plan", *words(tmp_path / "results")]
    assert main(plan) == 0
    printed = capsys.readouterr().out
    assert (
        "\nheld: not known, because the weights have not been hashed on this machine; the first run hashes them\n"
        in printed
    )
    assert "\n  lossless K=5\n" in printed
    assert "missing" not in printed
    assert not read
    assert main(words(tmp_path / "results")) == 0
    assert read, "a run hashes them"
    read.clear()
    capsys.readouterr()
    assert main(plan) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\n  all +held +20   missing +0\n", printed), printed
    assert not read


def test_a_draft_without_a_tokenizer_is_refused(refused, draft):
    for path in draft.glob("tokenizer*"):
        path.unlink()
    message = refused(**{"model.draft": draft})
    assert "has no tokenizer, so nothing shows that its ids are those of" in message
    assert "copy the tokenizer's files" in message


@pytest.mark.parametrize("rows", [100, 250, 9000])
def test_a_draft_with_other_ids_is_refused(refused, draft, rows):
    config = AutoConfig.from_pretrained(draft)
    config.vocab_size = rows
    config.save_pretrained(draft)
    assert f"has {rows} ids" in refused(**{"model.draft": draft})


@pytest.mark.parametrize("role", ["target", "draft"])
def test_int8_of_a_model_with_experts_is_refused(role, refused, micro_pair, tmp_path):
    folder, sizes = shutil.copytree(micro_pair / role, tmp_path / role), {"hidden_size": 32, "num_hidden_layers": 1}
    AutoConfig.for_model("mixtral", vocab_size=257, **sizes, num_attention_heads=2).save_pretrained(folder)
    option = "model.quantization" if role == "target" else "model.draft_quantization"
    message = refused(**{f"model.{role}": folder, option: "int8"})
    assert f"{folder} keeps the weights of its experts in model.layers.0.mlp.experts.gate_up_proj" in message


def test_a_missing_chat_template_is_refused_with_a_way_out(refused):
    assert "has no chat template: use task.chat=false" in refused("task.chat=true")


def with_template(folder: Path, text: str) -> Path:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = text
    tokenizer.save_pretrained(folder)
    return folder


def test_a_template_that_refuses_the_prompts_and_options_that_it_does_not_read(refused, micro_pair, tmp_path):
    target = with_template(
        Path(shutil.copytree(micro_pair / "target", tmp_path / "target")),
        "{% if strict %}{{ raise_exception('only the user speaks') }}{% endif %}"
        "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    )
    given = {"model.target": target}
    assert "refuses the prompts" in refused("task.chat=true", "model.chat_options.strict=true", **given)
    message = refused("task.chat=true", "model.chat_options.x=1", **given)
    assert "model.chat_options.x is not used by the chat template" in message
    assert "strict" in message


@pytest.mark.slow
def test_shots_lengths_and_the_attention_of_plain_generate(refused, tmp_path):
    assert "shots must be at most" in refused("task.shots=100000")
    assert "leaves no room for a prompt" in refused(max_new_tokens=4096)
    assert "model.attention=flash_attention_2 is not available" in refused(
        "model.attention=flash_attention_2", timing="on"
    )


def test_an_exit_layer_outside_the_target(refused):
    message = refused("drafter=early-exit", "drafter.exit_layer=99")
    assert "drafter=early-exit: exit_layer must be a whole number from 1 to" in message


def test_layers_and_calibration_of_a_pruned_draft(refused, tmp_path):
    message = refused("drafter=pruned", "drafter.keep_layers=99")
    assert "drafter=pruned: keep_layers must be a whole number from 1 to" in message
    message = refused("drafter=pruned", "drafter.calibration=none.txt")
    assert "drafter=pruned: calibration=none.txt cannot be read as text" in message
    (tmp_path / "blank.txt").write_text("\n \n")
    message = refused("drafter=pruned", f"drafter.calibration={tmp_path / 'blank.txt'}")
    assert "blank.txt is empty: give a file with one text per line" in message


def test_a_tracker_that_would_refuse_at_the_end_refuses_at_the_start(refused, monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setattr("sdbench.trackers.find_spec", lambda name: object())
    assert "you are not logged in" in refused("tracker=wandb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "no server answers at" in refused("tracker=mlflow", f"tracker.uri=http://127.0.0.1:{port}")


SPELLINGS = {
    ("timing=off", "timing.examples=20"): "remove one of the two",
    ("w==5",): "write w=5, with one equals sign",
    ("w=[0.5",): "a bracket is not closed, ] is missing",
    ("name=émile",): "in quotes, as 'name=\"émile\"'",
}


@pytest.mark.parametrize("words_", SPELLINGS, ids=" ".join)
def test_a_syntax_error_of_an_override_has_our_own_message(words_, capsys):
    assert main([*words_, "--cfg"]) == 2
    message = capsys.readouterr().err
    assert SPELLINGS[words_] in message
    assert message.count("\n") == 1
    assert "expecting" not in message


def test_any_other_exception_is_one_sentence_and_a_file(words, tmp_path, capsys, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("nobody expected it\nnor this")

    monkeypatch.setattr("sdbench.engines.job.points", broken)
    assert main(words(tmp_path, n=1)) == 1
    message = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "".join(message)
    assert message[-1].startswith("sdbench: ZeroDivisionError: nobody expected it; the traceback is in ")
    text = Path(message[-1].rpartition(" in ")[2]).read_text()
    assert "nor this" in text
    monkeypatch.setattr("sdbench.cli.compose.Composer.jobs", broken)
    assert main(["n=1"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
            "about 2.00 GiB were missing",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes."),
            "1.00 GiB",
        ),
        (MemoryError(), "out of memory while loading"),
    ],
    ids=["device", "host", "python"],
)
def test_out_of_memory_while_loading_says_how_much_was_missing(words, tmp_path, capsys, monkeypatch, error, says):
    def full(*_, **__):
        raise error

    monkeypatch.setattr("sdbench.prepare.pair.load", full)
    assert main(words(tmp_path, n=1)) == 2
    message = capsys.readouterr().err
    assert says in message
    assert "Traceback" not in message


def test_a_command_with_nothing_missing_reads_no_weights(words, whole, capsys, monkeypatch):
    monkeypatch.setattr(Models, "decoder", property(lambda self: pytest.fail("weights are read")))
    assert main(words(whole.parent)) == 0
    assert "nothing to decode" in capsys.readouterr().err
