"""Longest common subsequences on bit vectors: what rouge_score computes cell by cell, some five times faster.

After Hyyrö 2004 (bit-parallel LCS-length computation revisited): the zeros among the low j bits of rows[i] count the
LCS of the first i reference and the first j candidate tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Tokens = Sequence[str]


def lcs_rows(reference: Tokens, candidate: Tokens) -> list[int]:
    """len(reference) + 1 bit vectors of len(candidate) bits."""
    places: dict[str, int] = {}
    for place, token in enumerate(candidate):
        places[token] = places.get(token, 0) | 1 << place
    full = (1 << len(candidate)) - 1
    row, rows = full, [full]
    for token in reference:
        matched = row & places.get(token, 0)
        row = ((row + matched) | (row - matched)) & full
        rows.append(row)
    return rows


def lcs_length(reference: Tokens, candidate: Tokens) -> int:
    return len(candidate) - lcs_rows(reference, candidate)[-1].bit_count()


def lcs_places(reference: Tokens, candidate: Tokens) -> set[int]:
    """Reference positions of the one longest subsequence that rouge_score's backtracking finds."""
    rows = lcs_rows(reference, candidate)
    i, j, places = len(reference), len(candidate), set[int]()
    while i > 0 and j > 0:
        if reference[i - 1] == candidate[j - 1]:
            i, j = i - 1, j - 1
            places.add(i)
            continue
        before, above = (1 << (j - 1)) - 1, (1 << j) - 1
        if (j - 1) - (rows[i] & before).bit_count() > j - (rows[i - 1] & above).bit_count():
            j -= 1
        else:
            i -= 1
    return places


def summary_hits(reference: Sequence[Tokens], candidate: Sequence[Tokens]) -> int:
    """Tokens of the union of a reference sentence's subsequences over all candidate sentences, none counted twice."""
    left_reference = Counter(token for sentence in reference for token in sentence)
    left_candidate = Counter(token for sentence in candidate for token in sentence)
    hits = 0
    for sentence in reference:
        for place in sorted(set[int]().union(*(lcs_places(sentence, other) for other in candidate))):
            token = sentence[place]
            if left_candidate[token] > 0 and left_reference[token] > 0:
                hits += 1
                left_candidate[token] -= 1
                left_reference[token] -= 1
    return hits
