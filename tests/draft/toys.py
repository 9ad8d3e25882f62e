"""Tokenizers of words for tiny random models: id n is the word t<n>, unless another order is given."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast


def word_tokenizer(count: int, order: Sequence[int] | None = None) -> Any:
    """A tokenizer whose id order[n] is the word t<n>."""
    ids = range(count) if order is None else order
    backend = Tokenizer(WordLevel({f"t{n}": int(id) for n, id in enumerate(ids)}, unk_token="t0"))
    backend.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def words_of(ids: Sequence[int]) -> str:
    return " ".join(f"t{id}" for id in ids)
