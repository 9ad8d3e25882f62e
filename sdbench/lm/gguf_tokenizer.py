"""The tokenizer inside a GGUF file, as transformers builds it, and why its ids would not be those of the model.

transformers splits byte-level texts as GPT-2 does wherever it does not know the split that a file names, gives a special token
that it respells a new id, never sets `ignore_merges`, and adds special tokens of its own such as <|endoftext|>, with ids beyond
the file's. Not covered: normalisers, which no file names, and tokens that are added without a role.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
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
# Splits with which llama.cpp reads a word of the vocabulary as one token even where no merges lead to it (`ignore_merges` in its
# src/llama-vocab.cpp), as the tokenizer.json of Llama 3 does.
WHOLE_WORDS = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken")
)
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
    tokens = value_of(reader, "tokenizer.ggml.tokens")
    # The class of an architecture may have a split of its own, also where tokenizer.json has another.
    kind: Any = PreTrainedTokenizerFast if has_digits else AutoTokenizer
    try:
        with _alone(path) as alone:
            # The file's own value of add_bos_token counts before this one.
            tokenizer = kind.from_pretrained(alone, gguf_file=path.name, add_bos_token=split in WHOLE_WORDS)
        if has_digits:
            parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
        if model == BYTE_LEVEL:
            tokenizer.backend_tokenizer.model.ignore_merges = split in WHOLE_WORDS
        for name, token in tokenizer.special_tokens_map.items():
            if token not in tokens:  # a default of its class, which would be added again
                setattr(tokenizer, name, None)
        tokenizer.save_pretrained(folder)
        _remove_added(folder / "tokenizer.json", len(tokens))
        saved: Any = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # tokenizers raises no narrower class
        sentence = f"the tokenizer inside {id} cannot be read ({first_line(error)}): convert the model again"
        raise ConfigError(sentence) from error
    if model == BYTE_LEVEL and _rules_of(saved) != _rules_of(tokenizer):
        return f"splits texts as {split} (tokenizer.ggml.pre), which transformers does not do for its architecture"
    return _why_misread(reader, tokens, saved)


def _splits_of_transformers() -> Collection[str]:
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # an older version
        return ()
    return GGUF_PRE_TOKENIZER_SPLITS


def _rules_of(tokenizer: Any) -> tuple[list[str], bool]:
    """Return how the tokenizer splits the sample, and whether it reads a word of the vocabulary as one token without merges."""
    backend = tokenizer.backend_tokenizer
    return [part for part, _ in backend.pre_tokenizer.pre_tokenize_str(SAMPLE)], backend.model.ignore_merges


def _remove_added(path: Path, num_ids: int) -> None:
    """Remove the added tokens of a tokenizer.json whose ids the model does not have: their texts are ordinary ones."""
    rules = json.loads(path.read_text("utf-8"))
    rules["added_tokens"] = [token for token in rules["added_tokens"] if token["id"] < num_ids]
    path.write_text(json.dumps(rules, ensure_ascii=False), "utf-8")


def _why_misread(reader: GGUFReader, tokens: Sequence[str], tokenizer: Any) -> str:
    """Return a clause about a special token that the tokenizer reads as ids other than the file's, or ""."""
    for name in ("bos", "eos", "eot"):
        index = value_of(reader, f"tokenizer.ggml.{name}_token_id")
        if index is None:
            continue
        ids = tokenizer(tokens[index], add_special_tokens=False)["input_ids"] if index < len(tokens) else []
        if ids != [index]:
            return f"names id {index} as its {name} token, which transformers reads as {ids}"
    added = {index: token for token, index in tokenizer.get_vocab().items() if index >= len(tokens)}
    if added:
        return f"has {len(tokens)} tokens, and transformers adds {added[min(added)]} with id {min(added)}"
    return ""


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """Yield a folder that holds this file only: a tokenizer.json beside it would replace the tokenizer inside."""
    with TemporaryDirectory(prefix="sdbench-") as folder:
        Path(folder, path.name).symlink_to(path.absolute())
        yield Path(folder)
