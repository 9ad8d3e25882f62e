"""Options of drafters that cannot be: each is one sentence, with exit code 2, before a weight is read."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from micro import byte_tokenizer

from sdbench.cli import compose_run
from sdbench.config import ConfigError
from sdbench.prepare.refuse import refuse_broken_limits, refuse_drafter_options
from sdbench.prepare.rules import build_parts
from tests.draft.toys import word_tokenizer

pytestmark = pytest.mark.usefixtures("no_figures")
NUM_LAYERS = 6
OPTIONS = {
    ("early-exit", "exit_layer=0"): f"exit_layer must be a whole number from 1 to {NUM_LAYERS - 1}",
    ("early-exit", f"exit_layer={NUM_LAYERS}"): f"as the target has {NUM_LAYERS} layers, got {NUM_LAYERS}",
    ("early-exit", "exit_layer=1.5"): "exit_layer must be a whole number",
    ("early-exit", "exit_layer=true"): "exit_layer must be a whole number",
    ("tiers", f"exit_layer={NUM_LAYERS}"): f"as the target has {NUM_LAYERS} layers, got {NUM_LAYERS}",
    ("tiers", "low=0.9", "high=0.3"): "low must be at most high, got low=0.9 and high=0.3",
    ("tiers", "low=0"): r"low must be in \(0, 1\], got 0",
    ("tiers", "high=1.5"): r"high must be in \(0, 1\], got 1.5",
    ("tiers", "high=abc"): r"high must be in \(0, 1\], got abc",
    ("tiers", "chunk=0"): "chunk must be a whole number of at least 1, got 0",
    ("pruned", "keep_layers=0"): f"keep_layers must be a whole number from 1 to {NUM_LAYERS - 1}",
    ("pruned", "keep_layers=true"): "keep_layers must be a whole number",
    ("pruned", "calibration_texts=true"): "calibration_texts must be a whole number of at least 1, got True",
    ("lookup", "shortest=0"): "shortest must be from 1 to longest=8, got shortest=0",
    ("lookup", "shortest=1.5"): "shortest must be a whole number, got 1.5",
    ("lookup", "shortest=a"): "shortest must be a whole number, got a",
    ("lookup", "longest=null"): "longest must be a whole number, got None",
    ("suffix", "least=0"): r"least in \(0, 1\], got factor=2, least=0",
    ("suffix", "least=2"): r"least in \(0, 1\], got factor=2, least=2",
    ("suffix", "least=a"): "least must be a finite number, got a",
    ("suffix", "factor=0"): "factor must be above 0",
    ("suffix", "factor=inf"): "factor must be a finite number, got inf",
    ("hybrid", "threshold=0"): r"threshold must be in \(0, 1\], got 0",
    ("hybrid", "threshold=1.01"): r"threshold must be in \(0, 1\], got 1.01",
    ("hybrid", "threshold=true"): r"threshold must be in \(0, 1\], got True",
    ("hybrid", "shortest=9"): "shortest must be from 1 to longest=8, got shortest=9",
    ("universal", "look_behind=0"): "look_behind must be a whole number of at least 1, got 0",
    ("universal", "look_behind=true"): "look_behind must be a whole number of at least 1, got True",
    ("model", "length=confidence", "length_threshold=0"): r"length_threshold must be in \(0, 1\], got 0",
    ("model", "length=adaptive", "length_threshold=1.2"): r"length_threshold must be in \(0, 1\], got 1.2",
    ("model", "length=value", "length_price=nan"): r"length_price must be in \(0, 1\], got nan",
    ("gate",): "length=gate needs a gate: train one with python -m sdbench.train gate model=NAME task=NAME",
    (
        "gate",
        "length_head=nowhere",
    ): "length_head=nowhere has no head.json: train one with python -m sdbench.train gate",
    ("gate", "length_threshold=0"): r"length_threshold must be in \(0, 1\], got 0",
    ("lookup", "length=gate", "length_threshold=1.5"): r"length_threshold must be in \(0, 1\], got 1.5",
    (
        "lookup",
        "length=heuristic",
        "length_threshold=0.3",
    ): "length_threshold is not an option of length=heuristic: remove it",
}


def refuse(*words: str) -> None:
    """Refuse what a run of these words says of drafters, without a pair."""
    run = compose_run(words)
    parts = build_parts(run)
    refuse_broken_limits(run, parts)
    refuse_drafter_options(run, parts, target_config=SimpleNamespace(num_hidden_layers=NUM_LAYERS))


@pytest.mark.parametrize("case", OPTIONS, ids=" ".join)
def test_an_option_that_cannot_be_is_one_sentence(case):
    drafter, *options = case
    with pytest.raises(ConfigError, match=rf"^drafter={drafter}: .*{OPTIONS[case]}[^\n]*$"):
        refuse(f"drafter={drafter}", *(f"drafter.{option}" for option in options))


@pytest.mark.parametrize("length", ["heuristic", "confidence", "adaptive", "value"])
@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_a_block_too_short_for_a_policy_is_refused_wherever_it_stands(drafter, length):
    refuse(f"drafter={drafter}", f"drafter.length={length}", "num_draft=[2,4]")
    with pytest.raises(ConfigError, match=f"length={length} takes a num_draft of at least 2, got num_draft=1"):
        refuse(f"drafter={drafter}", f"drafter.length={length}", "num_draft=[1,4]")


@pytest.mark.parametrize("drafter", ["model", "hybrid", "tiers", "intersection", "universal"])
def test_a_drafter_without_its_draft_is_refused(drafter):
    with pytest.raises(ConfigError, match=f"^drafter={drafter} needs a draft model: give"):
        refuse(f"drafter={drafter}", "model.draft=null")
    with pytest.raises(ConfigError, match=f"or leave {drafter} out of the list$"):
        refuse(f"drafter=[lookup,{drafter}]", "model.draft=null")


@pytest.mark.parametrize("drafter", ["hybrid", "universal", "lookup", "early-exit"])
def test_a_rule_that_reads_states_is_refused_with_a_drafter_that_has_none(drafter):
    rule = ("verifier=diversed", "verifier.head=embedded:llama-tiny/gsm8k-tiny", "verifier.offset=1")
    refuse("drafter=model", *rule)
    with pytest.raises(ConfigError, match=f"reads the states of a draft model, and drafter={drafter} has none"):
        refuse(f"drafter={drafter}", *rule)


@pytest.fixture
def draft_of(micro_pair, tmp_path):
    """A copy of the draft with another tokenizer."""

    def make(tokenizer) -> Path:
        folder = Path(shutil.copytree(micro_pair / "draft", tmp_path / "draft"))
        for path in folder.glob("*token*"):
            path.unlink()
        tokenizer.save_pretrained(folder)
        return folder

    return make


def test_tokenizers_without_a_token_in_common(refused, draft_of):
    message = refused("drafter=intersection", **{"model.draft": draft_of(word_tokenizer(257))})
    assert "drafter=intersection: the tokenizers of target and draft have no token in common" in message


def test_a_tokenizer_that_cannot_decode_its_own_ids(refused, draft_of):
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.decoder = None  # pyright: ignore[reportAttributeAccessIssue]
    message = refused("drafter=universal", **{"model.draft": draft_of(tokenizer)})
    assert "drafter=universal: the tokenizer of the draft cannot decode its own ids" in message


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none", "does not exist: give a text file or a records folder"),
        ("empty.txt", "is empty: give a text file"),
        ("blank.txt", "is empty: give a text file"),
        ("folder", "is a folder without recorded texts: give a text file"),
    ],
)
def test_a_corpus_without_a_text(refused, tmp_path, name, sentence):
    (tmp_path / "folder").mkdir()
    for file, text in (("empty.txt", ""), ("blank.txt", "\n \n")):
        (tmp_path / file).write_text(text)
    message = refused("drafter=retrieval", f"drafter.corpus={tmp_path / name}", "model.draft=null")
    assert f"drafter=retrieval: corpus={tmp_path / name} {sentence}" in message


def test_a_corpus_of_another_tokenizer(refused, whole):
    pair = ("model=llama-tiny", "model.target=embedded:llama-tiny/target", "model.draft=null")
    message = refused("drafter=retrieval", f"drafter.corpus={whole}", *pair)
    assert f"corpus={whole} holds texts of another tokenizer: give the records of a pair with this one" in message


def test_no_corpus_is_named(refused):
    message = refused("drafter=retrieval", "model.draft=null")
    assert "corpus must name a text file or a records folder, got None: give drafter.corpus=PATH" in message
