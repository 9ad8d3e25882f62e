"""Drafters that read only the text: the index against a plain search, look-ups, distributions of suffix statistics."""

from collections import Counter
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdbench.draft.lookup import PromptLookup, continue_text
from sdbench.draft.suffix import SuffixDrafter, draw_token
from sdbench.draft.text_index import TextIndex
from sdbench.probs import Warp, draw

TEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def occurrences(tokens: list[int], shortest: int, longest: int) -> list[tuple[int, int]]:
    """The definition: each earlier place where at least `shortest` tokens agree with the text's ending, the latest first."""
    found = []
    for place in range(len(tokens) - 1, 0, -1):
        length = 0
        while length < min(longest, place) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= shortest:
            found.append((place, length))
    return found


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(TEXTS, max_size=4), st.integers(1, 3), st.integers(3, 6))
def test_the_index_finds_what_a_plain_search_finds(prompt, rounds, shortest, longest):
    index, tokens = TextIndex(shortest, prompt), list(prompt)
    for new in rounds:
        grown = index.copy()
        grown.extend(new)
        assert list(index.earlier(longest)) == occurrences(tokens, shortest, longest), "a copy grows apart"
        index, tokens = grown, tokens + new
    assert list(index.earlier(longest)) == occurrences(tokens, shortest, longest)


def test_an_index_takes_at_most_32_bytes_a_token():
    index = TextIndex(2, range(5000))
    arrays = (index.tokens, index.before, index.newest)
    assert sum(array.itemsize * len(array) for array in arrays) <= 32 * len(index)


@pytest.mark.parametrize(
    ("tokens", "limit", "block"),
    [
        ([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], 3, [4, 9, 1]),  # the latest of equals
        ([7, 1, 2, 3, 9, 5, 1, 2, 4, 9, 7, 1, 2], 2, [3, 9]),  # the longest, though not the latest
        ([5, 6, 5, 6], 5, [5, 6, 5, 6, 5]),  # a repetition is repeated
        ([1, 2, 3], 3, []),
        ([1, 2, 3, 1], 3, []),  # one token is too short
        ([1, 2, 3, 1, 2], 0, []),
    ],
)
def test_prompt_lookup(tokens, limit, block):
    assert continue_text(TextIndex(2, tokens), limit, longest=8) == block


def test_a_look_up_in_8000_tokens_of_text_compares_few_places():
    """Counts, not seconds: English-like text, where the commonest of 500 tokens is one in seven."""
    generator = torch.Generator().manual_seed(0)
    shares = 1 / torch.arange(1, 501)
    tokens = torch.multinomial(shares, 8000, replacement=True, generator=generator).tolist()
    compared = [sum(1 for _ in TextIndex(2, tokens[: 8000 - cut]).earlier(8)) for cut in range(20)]
    assert median(compared) < 80


def suffix(temperature: float = 1.0, **options: float) -> SuffixDrafter:
    defaults = {"shortest": 1, "longest": 16, "factor": 2.0, "least": 0.1}
    return SuffixDrafter(Warp(temperature), 10, **{**defaults, **options})  # type: ignore[arg-type]


def test_counts_follow_the_stands_that_agree_longest():
    text = TextIndex(1, [8, 1, 2, 3, 8, 1, 2, 4, 8, 1, 2, 3, 9, 1, 2, 5, 8, 1, 2])
    block = suffix().draw_block(text, 4, [0.0, 0.9, 0.0, 0.0])
    assert block[0] == (3, Counter({3: 2, 4: 1})), "5 followed a shorter agreement"
    assert block[1] == (9, Counter({9: 1, 8: 1})), "behind 3 alone"
    assert len(block) == 4


def test_a_block_is_as_long_as_the_agreement_allows():
    text = TextIndex(1, [1, 2, 3, 4, 5, 6, 7, 1])
    assert len(suffix().draw_block(text, 5, [0.5] * 5)) == 2
    assert len(suffix(factor=4).draw_block(text, 5, [0.5] * 5)) == 4
    spread = TextIndex(1, [token for after in range(1, 9) for token in (0, after)] + [0])
    assert suffix(least=0.2).draw_block(spread, 5, [0.5] * 5) == []


def test_of_equal_counts_the_lowest_id_is_drafted_at_temperature_0():
    """As `argmax` of their distribution has it: a rule that reads this distribution then keeps the draft at w = 0."""
    drafter = suffix(temperature=0.0)
    block = drafter.draw_block(TextIndex(1, [1, 3, 1, 4, 1]), 2, [0.5] * 2)
    assert [token for token, _ in block] == [3, 1], "4 follows the later occurrence"
    assert drafter._law_of([block], 2, torch.device("cpu")).argmax(-1).tolist() == [[3, 1]]


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 5), min_size=1), st.floats(0, 1, exclude_max=True))
def test_a_token_is_drawn_as_from_the_dense_distribution(counts, u):
    law = torch.zeros(1, 10, dtype=torch.float64)
    law[0, list(counts)] = torch.tensor(list(counts.values()), dtype=torch.float64)
    assert draw_token(Counter(counts), u) == int(draw(law, torch.tensor([u], dtype=torch.float64)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PromptLookup(shortest=0), "shortest must be from 1 to longest=8, got shortest=0"),
        (lambda: PromptLookup(shortest=9), "shortest must be from 1 to longest=8, got shortest=9"),
        (lambda: suffix(least=0.0), r"factor must be above 0 and least in \(0, 1\], got factor=2, least=0"),
    ],
)
def test_options_that_cannot_be(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
