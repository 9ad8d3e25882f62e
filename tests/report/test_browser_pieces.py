"""Tokens join to the text they were cut from, and each finds its own p, q and TV."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdbench.report.page.pieces import colour_tokens, positions, split, thousandths

LETTERS = st.text(st.characters(exclude_characters="\ufffd", exclude_categories=("Cs",)), min_size=1, max_size=4)


@given(st.lists(LETTERS, max_size=20))
def test_whole_tokens_join_to_the_text(tokens):
    assert split("".join(tokens), tokens) == (tokens, [])


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
def test_tokens_of_a_byte_each_join_to_the_text(text):
    tokens = [bytes([byte]).decode(errors="replace") for byte in text.encode()]
    pieces, marks = split(text, tokens)
    assert "".join(pieces) == text
    assert len(pieces) == len(tokens)
    assert not marks


def test_the_last_byte_of_a_letter_shows_it():
    assert split("aß!", ["a", "\ufffd", "\ufffd", "!"]) == (["a", "", "ß", "!"], [])


def test_an_end_mark_leaves_no_text():
    assert split("a b", ["a", " b", "<|end|>"]) == (["a", " b", ""], [2])


def test_the_space_that_decoding_drops_is_dropped():
    assert split("a b", [" a", " b"]) == (["a", " b"], [])


@pytest.mark.parametrize("tokens", [["a", "x"], ["x", "a b"[:1]], []])
def test_tokens_of_another_text_are_refused(tokens):
    assert split("a b", tokens) is None


def test_tokens_find_their_positions():
    # Round 1: three drafted, one kept, then a replacement; round 2: two drafted, both kept, a bonus; round 3: none.
    origin = [0, 1, 0, 0, 2, 2]
    assert positions(origin, [3, 2, 0]).tolist() == [0, 1, 3, 4, -1, -1]
    assert positions(origin, [2, 2, 0]).tolist() == [0, 1, 2, 3, -1, -1]
    assert positions([], []).tolist() == []


def test_thousandths_tell_none_from_little():
    assert thousandths([0.0, 1e-9, 0.0005001, 0.25, 1.0]) == [0, -1, 1, 250, 1000]


def test_a_replacement_shows_the_draft_that_was_refused():
    row = {"ids": [0, 1, 2], "origin": np.array([0, 1, 2]), "draft_ids": [0, 3, 3]}
    row |= {"p": [0.5, 0.1, 0.9], "q": [0.4, 0.7, 0.9], "tv": np.array([0.2, 0.6])}
    rounds = {"drafted": [3, 0], "examined": [2, 0]}
    shown = colour_tokens("the cat", row, rounds, ["the", " cat", "<|end|>", " dog"])
    assert shown == {
        "pieces": ["the", " cat", ""],
        "origins": "arb",
        "marks": {"2": "<|end|>"},
        "refused": [" dog"],
        "p": [500, 100],
        "q": [400, 700],
        "tv": [200, 600],
    }


def test_a_text_without_measures_has_origins_alone():
    row = {"ids": [0], "origin": [2], "draft_ids": [], "p": None, "q": None, "tv": None}
    shown = colour_tokens("a", row, {"drafted": [0], "examined": [0]}, ["a"])
    assert shown == {"pieces": ["a"], "origins": "b", "refused": []}


def test_a_text_that_its_tokens_do_not_make_stays_whole():
    assert colour_tokens("other", {"ids": [0], "origin": [0]}, {}, ["a"]) == {}
