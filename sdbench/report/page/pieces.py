"""Split a generation into its tokens for the page: the text of each, its origin, and p, q, TV at its position.

Arrays per token come from the records; nothing is decoded here. T emitted tokens, D drafted positions, E examined ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

PART = "\ufffd"  # a tokenizer's text for bytes that are not a whole character
ORIGINS = "arbs"  # accepted, replaced, bonus, sure, in the order of the records' codes
TINY = -1  # above 0, but less than half of 1/1000


def split(text: str, tokens: Sequence[str]) -> tuple[list[str], list[int]] | None:
    """Return the part of `text` of each token, and the tokens without text (end marks); None if they do not fit.

    The bytes of one character may be several tokens: the last of them gets the character, the others an empty text.
    """
    for end in range(len(tokens), max(len(tokens) - 2, 0), -1):  # nearly always all of them, or all but an end mark
        joined = "".join(tokens[:end])
        if text in (joined, joined.removeprefix(" ")):  # decoding may drop a leading space
            first = tokens[0][len(joined) - len(text) :]
            return [first, *tokens[1:end], *[""] * (len(tokens) - end)], [*range(end, len(tokens))]
    pieces, marks, at, index = [], [], 0, 0
    while index < len(tokens):
        token = tokens[index]
        if PART in token and not text.startswith(token, at):
            end = next((i for i in range(index, len(tokens)) if PART not in tokens[i]), len(tokens))
            stretch = text[at : _next(text, at, tokens, end)]
            pieces += [*[""] * (end - index - 1), stretch]
            at, index = at + len(stretch), end
            continue
        if at == 0 and not any(pieces) and not text.startswith(token) and text.startswith(token.removeprefix(" ")):
            token = token.removeprefix(" ")
        if token and text.startswith(token, at):
            at += len(token)
        else:
            marks.append(index)
            token = ""
        pieces.append(token)
        index += 1
    return (pieces, marks) if "".join(pieces) == text else None


def _next(text: str, at: int, tokens: Sequence[str], end: int) -> int:
    """Return where the first token from `end` on that has text begins, at least one character later."""
    for token in tokens[end:]:
        if token and PART not in token and (start := text.find(token, at + 1)) >= 0:
            return start
    return len(text)


def positions(origin: ArrayLike, lengths: ArrayLike) -> NDArray[np.int64]:
    """Return [T]: each token's index among the drafted (or examined: `lengths` [R] per round) positions; −1 for a bonus."""
    codes, lengths = np.asarray(origin, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
    is_last = (codes == 1) | (codes == 2)  # a replacement or a bonus ends its round
    rounds = np.cumsum(is_last) - is_last
    starts = np.concatenate([[0], np.flatnonzero(is_last) + 1])
    slots = np.arange(len(codes)) - starts[rounds]
    first = np.cumsum(lengths) - lengths
    return np.where(codes == 2, -1, first[rounds] + slots) if len(codes) else codes


def thousandths(values: ArrayLike) -> list[int]:
    """Return probabilities as integer thousandths; 0 only for 0."""
    exact = np.asarray(values, dtype=np.float64)
    whole = np.rint(exact * 1000).astype(np.int64)
    return np.where((whole == 0) & (exact > 0), TINY, whole).tolist()


def colour_tokens(
    text: str, row: Mapping[str, Any], rounds: Mapping[str, Any], vocabulary: Sequence[str]
) -> dict[str, Any]:
    """Return what the page needs to colour a text; {} if its tokens do not join to it.

    `pieces` [T], `marks` {index: name} of tokens without text, `origins` one letter per token; for tokens other than bonus ones
    `p`, `q`, `tv` in thousandths; for replacements `refused`, the rejected draft. What an engine does not report is missing.
    """
    if not isinstance(row["origin"], Iterable):
        return {}
    tokens = _texts_of(row["ids"], vocabulary)
    parts = split(text, tokens)
    if parts is None:
        return {}
    pieces, marks = parts
    origin = np.asarray(row["origin"], dtype=np.int64)
    drafted, examined = positions(origin, rounds["drafted"]), positions(origin, rounds["examined"])
    is_judged = origin != 2
    shown: dict[str, Any] = {"pieces": pieces, "origins": "".join(ORIGINS[code] for code in origin)}
    if marks:
        shown["marks"] = {str(index): tokens[index] for index in marks}
    if isinstance(row["draft_ids"], Iterable):
        shown["refused"] = _texts_of(np.asarray(row["draft_ids"], dtype=np.int64)[drafted[origin == 1]], vocabulary)
    for name, where in (("p", drafted), ("q", drafted), ("tv", examined)):
        values = row[name]
        if values is not None and len(values):
            shown[name] = thousandths(np.asarray(values, dtype=np.float64)[where[is_judged]])
    return shown


def _texts_of(ids: Iterable[int], vocabulary: Sequence[str]) -> list[str]:
    """Return the text of each id; an unused id (padding of the embedding matrix) has none."""
    return [str(vocabulary[index]) if index < len(vocabulary) else "" for index in ids]
