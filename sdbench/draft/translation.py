"""Translate the ids of one tokenizer to those of another, token by token: a shared text to one id, others to several."""

from collections.abc import Iterable, Sequence
from typing import Any

UNKNOWN = "\ufffd"  # text of an id that is only part of a character


def texts_of_ids(tokenizer: Any) -> list[str]:
    """Return the text of each id, decoded after another token, since a leading space might be lost otherwise."""
    before = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    start = str(tokenizer.decode(before, **options))
    rows = tokenizer.batch_decode([[*before, index] for index in range(len(tokenizer))], **options)
    return [str(row).removeprefix(start) for row in rows]


def shared_ids(target: Any, draft: Any) -> dict[int, int]:
    """Return {target id: draft id} for texts that are one token in both tokenizers; of ids with the same text, the first."""
    target_ids, draft_ids = (_id_of_text(texts_of_ids(tokenizer)) for tokenizer in (target, draft))
    shared = {index: draft_ids[text] for text, index in target_ids.items() if text in draft_ids}
    if not shared:
        raise ValueError("the tokenizers of target and draft have no token in common: give another draft")
    return shared


def _id_of_text(texts: Sequence[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for index, text in enumerate(texts):
        if text and UNKNOWN not in text:
            ids.setdefault(text, index)
    return ids


class Translation:
    """A map from a target's ids to a draft's. The translation of a text joins those of its tokens, so it grows with the text
    and its earlier ids never change.
    """

    def __init__(self, target: Any, draft: Any) -> None:
        self.shared = shared_ids(target, draft)
        self.begin: list[int] = list(draft("")["input_ids"])  # the ids with which the draft's texts begin
        texts, special = texts_of_ids(target), set(target.all_special_ids)
        known = self.shared.keys() | special
        left = [n for n, text in enumerate(texts) if n not in known and text]
        encoded = draft([texts[n] for n in left], add_special_tokens=False)["input_ids"] if left else []
        # Special tokens and parts of characters that the draft does not have are left out.
        self.pieces: dict[int, list[int]] = {
            **{n: list(ids) for n, ids in zip(left, encoded, strict=True) if UNKNOWN not in texts[n]},
            **{n: [index] for n, index in self.shared.items()},
        }

    def shared_below(self, num_target_ids: int, num_draft_ids: int) -> list[tuple[int, int]]:
        """Return (target id, draft id) of the shared texts that both models have, in the order of the target."""
        return [pair for pair in sorted(self.shared.items()) if pair[0] < num_target_ids and pair[1] < num_draft_ids]

    @property
    def longest(self) -> int:
        """The largest number of ids for one token."""
        return max(map(len, self.pieces.values()))

    def ids_of(self, tokens: Iterable[int]) -> list[int]:
        """Return the draft's ids for tokens of the target."""
        return [index for token in tokens for index in self.pieces.get(token, ())]

    def ids_of_whole(self, tokens: Iterable[int]) -> list[int]:
        """Return the draft's ids for a whole text, which begin with `begin`; it is not added twice."""
        ids = self.ids_of(tokens)
        return ids if ids[: len(self.begin)] == self.begin else self.begin + ids
