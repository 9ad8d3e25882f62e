"""The tokenizer inside a GGUF file, as transformers builds it, and why its ids would not be those of the model.

transformers splits byte-level texts as GPT-2 does wherever it does not know the split that a file names, and gives a special token
that it respells a new id. Not covered: normalisers, which no file names, and tokens that are added without a role.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError
from sdbench.errors import first_line

if TYPE_CHECKING:
    from gguf import GGUFReader

BYTE_LEVEL, GPT2 = "gpt2", "gpt-2"  # a kind of vocabulary, and its split
# Splits as GPT-2's with each digit by itself, which transformers reads as GPT-2's: ids differ in digits after several blanks.
DIGITS = frozenset(("smollm", "starcoder", "refact"))
SAMPLE = "It's x =  12\n\n    DON'T  123,4567;\n\tfoo_bar()\r\n  2"  # is split differently by most splits
CONTROL = 3  # the type of control tokens
# Names of end-of-text and end-of-turn tokens, as in llama.cpp: a file lists one or two ids, often not all.
ENDS = frozenset(
    ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<EOT>")
)


def value_of(reader: GGUFReader, key: str, *, required: bool = False) -> Any:
    """Return the value of a key; None, or KeyError, if the file does not have it."""
    field = reader.get_field(key)
    if field is None and required:
        raise KeyError(f"no {key}")
    return None if field is None else field.contents()


def stop_ids(reader: GGUFReader) -> list[int]:
    """Return the ids that end a text: those of the file, then its control tokens with a known name."""
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    ids = [int(index) for key in keys if (index := value_of(reader, key)) is not None]
    tokens, types = (value_of(reader, f"tokenizer.ggml.{name}") or [] for name in ("tokens", "token_type"))
    named = enumerate(zip(tokens, types, strict=False))
    return list(dict.fromkeys([*ids, *(index for index, (token, kind) in named if kind == CONTROL and token in ENDS)]))


def write_tokenizer(id: str, path: Path, reader: GGUFReader, folder: Path) -> str:
    """Write the tokenizer of a file into a folder that holds its configuration. Return why its ids are not the model's, or ""."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    model, split = (value_of(reader, f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if model in (None, "none", "no_vocab"):
        return "has no tokenizer inside"
    if model == BYTE_LEVEL and split not in {GPT2, *DIGITS, *_splits_of_transformers()}:
        return f"splits texts as {split} (tokenizer.ggml.pre), which this transformers does not read from GGUF"
    has_digits = model == BYTE_LEVEL and split in DIGITS
    # The class of an architecture may have a split of its own, also where tokenizer.json has another.
    kind: Any = PreTrainedTokenizerFast if has_digits else AutoTokenizer
    try:
        with _alone(path) as alone:
            tokenizer = kind.from_pretrained(alone, gguf_file=path.name)
        if has_digits:
            parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
        tokenizer.save_pretrained(folder)
        saved: Any = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # tokenizers raises no narrower class
        sentence = f"the tokenizer inside {id} cannot be read ({first_line(error)}): convert the model again"
        raise ConfigError(sentence) from error
    if model == BYTE_LEVEL and _parts_of_sample(saved) != _parts_of_sample(tokenizer):
        return f"splits texts as {split} (tokenizer.ggml.pre), which transformers does not do for its architecture"
    return _why_misread(reader, saved)


def _splits_of_transformers() -> Collection[str]:
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # an older version
        return ()
    return GGUF_PRE_TOKENIZER_SPLITS


def _parts_of_sample(tokenizer: Any) -> list[str]:
    return [part for part, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(SAMPLE)]


def _why_misread(reader: GGUFReader, tokenizer: Any) -> str:
    """Return a clause about a special token of the file that the tokenizer reads as other ids, or ""."""
    tokens = value_of(reader, "tokenizer.ggml.tokens")
    for name in ("bos", "eos", "eot"):
        index = value_of(reader, f"tokenizer.ggml.{name}_token_id")
        if index is None:
            continue
        ids = tokenizer(tokens[index], add_special_tokens=False)["input_ids"] if index < len(tokens) else []
        if ids != [index]:
            return f"names id {index} as its {name} token, which transformers reads as {ids}"
    return ""


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """Yield a folder that holds this file only: a tokenizer.json beside it would replace the tokenizer inside."""
    with TemporaryDirectory(prefix="sdbench-") as folder:
        Path(folder, path.name).symlink_to(path.absolute())
        yield Path(folder)
