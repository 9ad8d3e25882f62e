"""The tokenizer inside a GGUF file has the ids of tokenizer.json, or the file is refused with a request for another tokenizer."""

import json
import re
import shutil
from pathlib import Path

import pytest

from sdbench import embedded
from sdbench.cli import main
from sdbench.config import ConfigError, Model
from sdbench.lm import gguf as room
from sdbench.lm.load import find, load_tokenizer, tokenizer_key
from sdbench.prepare import pair as pairs
from sdbench.prepare.pair_info import PairInfo

gguf = pytest.importorskip("gguf")
import gguf_files  # noqa: E402
from gguf_files import tiny, write  # noqa: E402

TOKENIZER = embedded.path("llama-tiny", "target")
OTHER = embedded.path("qwen-tiny", "target")  # with as many pieces


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(room, "CACHE", tmp_path / "cache")
    monkeypatch.setattr("sdbench.lm.digests.CACHE", tmp_path / "hashes")


@pytest.mark.parametrize(
    ("family", "pre"), [("llama", "smollm"), ("llama", "refact"), ("starcoder2", "starcoder")]
)  # of the last the class of its architecture has a split of its own
def test_digits_after_blanks_have_the_ids_of_tokenizer_json(family, pre, tmp_path):
    checkpoint = find(str(write(tmp_path / "x.gguf", tiny(family, layers=1), tokenizer=TOKENIZER, pre=pre)))
    ours, theirs = load_tokenizer(checkpoint), load_tokenizer(find(str(TOKENIZER)))
    for text in ("x =  1", "def f():\n    12 + 3\n\n   7", "it's  3.5", "Tom has 12 apples."):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text


@pytest.mark.parametrize(("family", "pre"), [("llama", "gpt-2"), ("llama", "llama-bpe"), ("qwen2", "qwen2")])
def test_splits_that_transformers_reads_are_accepted(family, pre, tmp_path):
    path = write(tmp_path / "x.gguf", tiny(family, layers=1), tokenizer=TOKENIZER, pre=pre)
    assert find(str(path)).gguf.tokenizer_fault == ""


UNREAD = "(tokenizer.ggml.pre), which this transformers does not read from GGUF"
UNUSED = "(tokenizer.ggml.pre), which transformers does not do for its architecture"


@pytest.mark.parametrize(
    ("family", "pre", "words"),
    [
        ("llama", "stablelm2", f"splits texts as stablelm2 {UNREAD}"),
        ("llama", "default", f"splits texts as default {UNREAD}"),
        ("qwen2", "llama-bpe", f"splits texts as llama-bpe {UNUSED}"),
    ],
)
def test_a_file_that_would_be_split_differently_needs_a_tokenizer(family, pre, words, tmp_path, capsys):
    is_refused(write(tmp_path / "x.gguf", tiny(family, layers=1), tokenizer=TOKENIZER, pre=pre), words, capsys)


def respell(folder: Path, old: str, new: str) -> Path:
    """Copy the tokenizer, with another text of one token in its vocabulary."""
    copy_tokenizer(TOKENIZER, folder)
    rules = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = rules["model"]["vocab"]
    vocabulary[new] = vocabulary.pop(old)
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    return folder


def test_a_file_with_a_special_token_of_another_id_needs_a_tokenizer(tmp_path, capsys):
    """As those of DeepSeek's distilled Qwen models: the token is outside the alphabet of bytes."""
    folder = respell(tmp_path / "tokenizer", "<s>", "<｜begin▁of▁sentence｜>")
    path = write(tmp_path / "x.gguf", tiny("llama", layers=1), tokenizer=folder, pre="qwen2")
    is_refused(path, "names id 1 as its bos token, which transformers reads as [10", capsys)


def test_a_file_with_a_padding_token_beyond_its_ids_needs_a_tokenizer(tmp_path, capsys):
    folder = respell(tmp_path / "tokenizer", "<pad>", "<｜▁pad▁｜>")
    path = write(tmp_path / "x.gguf", tiny("llama", layers=1), tokenizer=folder, pre="smollm")
    is_refused(path, "has 1024 tokens, and transformers adds <｜▁pad▁｜> with id 1024", capsys)


@pytest.mark.parametrize(
    ("family", "pre"), [("llama", "gpt-2"), ("llama", "llama-bpe"), ("qwen2", "qwen2"), ("starcoder2", "starcoder")]
)
def test_a_special_token_that_the_file_does_not_have_is_ordinary_text(family, pre, tmp_path):
    """transformers adds the one of GPT-2, with an id beyond the model's head."""
    model = tiny(family, layers=1)
    tokenizer = load_tokenizer(find(str(write(tmp_path / "x.gguf", model, tokenizer=TOKENIZER, pre=pre))))
    assert len(tokenizer) == model.config.vocab_size
    expected = load_tokenizer(find(str(TOKENIZER)))
    assert tokenizer("a<|endoftext|>b")["input_ids"] == expected("a<|endoftext|>b")["input_ids"]


def test_a_default_special_token_of_an_architectures_class_is_ordinary_text(tmp_path, monkeypatch):
    """That of Gemma adds <mask> again whenever it is loaded."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]

    def add_sentencepiece(writer: gguf.GGUFWriter, *_: object) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(pieces)
        writer.add_token_scores([0.0] * len(pieces))
        writer.add_token_types([3, 3, 3, 2] + [6] * 256)
        writer.add_unk_token_id(3)

    monkeypatch.setattr(gguf_files, "_add_tokenizer", add_sentencepiece)
    path = write(tmp_path / "x.gguf", tiny("gemma2", layers=1, vocab=len(pieces)), tokenizer=tmp_path)
    tokenizer = load_tokenizer(find(str(path)))
    assert len(tokenizer) == len(pieces)
    assert tokenizer("<mask>", add_special_tokens=False)["input_ids"] == [4 + byte for byte in b"<mask>"]


def unreachable_word(folder: Path) -> tuple[str, int]:
    """Remove the merges that lead to a word of a tokenizer's vocabulary; return the word with its id."""
    rules = json.loads((folder / "tokenizer.json").read_text())
    model = rules["model"]
    word = next(piece for piece in reversed(model["vocab"]) if piece.startswith("Ġ") and piece[1:].isalpha())
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) != word]
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    return word.replace("Ġ", " "), model["vocab"][word]


@pytest.mark.parametrize(
    ("pre", "is_whole"),
    [
        ("llama-bpe", True),
        ("tekken", True),
        ("falcon3", True),
        ("smaug-bpe", False),
        ("qwen2", False),
        ("smollm", False),
    ],
)
def test_a_word_of_the_vocabulary_without_merges_is_one_token_where_llamacpp_ignores_merges(pre, is_whole, tmp_path):
    folder = copy_tokenizer(TOKENIZER, tmp_path / "tokenizer")
    word, index = unreachable_word(folder)
    tokenizer = load_tokenizer(
        find(str(write(tmp_path / "x.gguf", tiny("llama", layers=1), tokenizer=folder, pre=pre)))
    )
    assert (tokenizer(f"12{word}", add_special_tokens=False)["input_ids"][-1] == index) == is_whole
    assert tokenizer.decode(tokenizer(f"12{word}", add_special_tokens=False)["input_ids"]) == f"12{word}"


@pytest.mark.parametrize(
    ("pre", "stated", "begins"),
    [("llama-bpe", None, True), ("tekken", None, True), ("llama-bpe", False, False), ("qwen2", None, False)],
)
def test_texts_begin_with_bos_as_in_llamacpp_where_the_file_does_not_say(pre, stated, begins, tmp_path, monkeypatch):
    """Those of Llama 3 usually do not say."""
    add = gguf.GGUFWriter.add_add_bos_token
    monkeypatch.setattr(
        gguf.GGUFWriter, "add_add_bos_token", lambda writer, _: None if stated is None else add(writer, stated)
    )
    path = write(tmp_path / "x.gguf", tiny("llama", layers=1), tokenizer=TOKENIZER, pre=pre)
    assert (load_tokenizer(find(str(path)))("a")["input_ids"][0] == 1) == begins


def test_the_hash_of_a_tokenizer_tells_whether_it_ignores_merges(tmp_path):
    """These two have the same split."""
    model = tiny("llama", layers=1)
    paths = [write(tmp_path / f"{pre}.gguf", model, tokenizer=TOKENIZER, pre=pre) for pre in ("llama-bpe", "smaug-bpe")]
    assert len({tokenizer_key(load_tokenizer(find(str(path)))) for path in paths}) == 2


def copy_tokenizer(source: Path, folder: Path) -> Path:
    return Path(shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors")))


def is_refused(path: Path, words: str, capsys) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{path} {words}") + ".*: give model.tokenizer=ID, ") as raised:
        find(str(path))
    assert main([f"model.target={path}", f"model.draft={path}", f"results={path.parent}", "n=2"]) == 2
    assert str(raised.value) in capsys.readouterr().err
    for keeps_tokenizer in (False, True):
        checkpoint = find(str(path), tokenizer=str(TOKENIZER), keeps_tokenizer=keeps_tokenizer)
        assert checkpoint.tokenizer_folder == TOKENIZER


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    """Two files with tokenizers of equal size and different pieces."""
    model = tiny("llama", layers=1)
    roles = {"target": TOKENIZER, "draft": OTHER}
    return {
        role: str(write(tmp_path / f"{role}.gguf", model, tokenizer=folder, pre="smollm"))
        for role, folder in roles.items()
    }


def words_of(files: dict[str, str], tmp_path: Path) -> list[str]:
    pair = [f"model.{role}={file}" for role, file in files.items()]
    return [*pair, f"model.tokenizer={TOKENIZER}", "n=2", "max_new_tokens=4", f"results={tmp_path}"]


def test_a_draft_of_another_family_is_refused_also_where_a_tokenizer_is_given(files, tmp_path, capsys):
    assert main(words_of(files, tmp_path)) == 2
    assert f"model.target={files['target']} and model.draft={files['draft']} have different tokenizers: id" in (
        capsys.readouterr().err
    )


def test_the_draft_keeps_its_tokenizer_where_it_may_differ(files, tmp_path, capsys):
    assert main([*words_of(files, tmp_path), "drafter=universal", "--plan"]) == 0, capsys.readouterr().err
    pair_info = PairInfo.read(pairs.find(Model("x", **files, tokenizer=str(TOKENIZER)), device="cpu", dtype="float32"))
    assert tokenizer_key(pair_info.draft_tokenizer) == tokenizer_key(load_tokenizer(find(files["draft"])))
    assert pair_info.draft_tokenizer.get_vocab().items() >= load_tokenizer(find(str(OTHER))).get_vocab().items()
    assert tokenizer_key(pair_info.tokenizer) == tokenizer_key(load_tokenizer(find(str(TOKENIZER))))


def test_a_draft_without_a_tokenizer_has_the_one_that_is_given(files, tmp_path):
    files["draft"] = str(write(tmp_path / "bare.gguf", tiny("llama", layers=1)))
    metadata = pairs.find(Model("x", **files, tokenizer=str(TOKENIZER)), device="cpu", dtype="float32")
    assert metadata.checkpoints["draft"].tokenizer_folder == TOKENIZER


def test_a_tokenizer_that_no_model_reads_is_refused(files, tmp_path, capsys):
    files["target"] = str(TOKENIZER)
    assert main(words_of(files, tmp_path)) == 2
    assert f"model.tokenizer={TOKENIZER} has no effect here" in capsys.readouterr().err
