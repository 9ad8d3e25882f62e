"""What a server counts of its steps becomes the rounds that our own engine would have written."""

import pytest

from sdbench.serve.rounds import CountedRounds, cut_rounds, round_seconds, steps_of, without_drafts
from sdbench.types import EngineError, Generation


def test_the_first_token_has_no_draft_and_steps_follow():
    counts = cut_rounds(7, [2, 0, 1], [3, 3, 1], is_stopped=False)
    assert counts.drafted == (0, 3, 3, 1)
    assert counts.accepted == (0, 2, 0, 1)
    assert counts.examined == (0, 3, 1, 1)
    assert counts.origins == ("bonus", "accepted", "accepted", "replacement", "replacement", "accepted", "bonus")


def test_what_a_server_counts_past_the_end_of_a_text_counts_nowhere():
    whole = cut_rounds(5, [3], [3], is_stopped=True)
    assert (whole.drafted, whole.examined, whole.accepted) == ((0, 3), (0, 3), (0, 3))
    cut = cut_rounds(3, [3], [3], is_stopped=True)
    assert (cut.drafted, cut.examined, cut.accepted) == ((0, 2), (0, 2), (0, 2))
    assert cut.origins == ("bonus", "accepted", "accepted")
    out_of_room = cut_rounds(3, [3], [3], is_stopped=False)
    assert (out_of_room.drafted, out_of_room.examined, out_of_room.accepted) == ((0, 3), (0, 2), (0, 2))


def test_our_own_engine_cuts_in_the_same_way():
    """`engine.row.Decoding.commit` on the same rounds, of which the first has no draft."""
    from sdbench.engine.row import Decoding, Request

    for end in range(2, 9):
        row = Decoding(0, Request(0, 0, 0, 0, 3), 0, num_prompt=1, num_prefilled=0, budget=100)
        text, place = [9, 1, 1, 2, 2, 1, 1, 1, 3], 1
        text[end] = 7
        row.commit(0, 0, 9, [], [], None, frozenset({7}), None)
        steps = []
        for kept in (2, 0, 3):
            if row.is_stopped:
                break
            steps.append(kept)
            block = text[place : place + kept + 1]
            row.commit(3, kept, block[-1], [*block[:-1], 0, 0, 0][:3], [0] * 3, None, frozenset({7}), None)
            place += kept + 1
        counts = cut_rounds(len(row.tokens), steps, [3] * len(steps), is_stopped=row.is_stopped)
        assert counts.drafted == tuple(row.drafted), end
        assert counts.examined == tuple(row.examined), end
        assert counts.accepted == tuple(row.accepted), end
        assert counts.origins == tuple(row.origins), end


def test_steps_without_drafts_are_rounds_at_an_unknown_place():
    counts = cut_rounds(6, [2], [3], is_stopped=False)
    assert counts.drafted == (0, 3, 0, 0)
    assert sum(counts.accepted) + len(counts.accepted) == 6
    assert counts.origins is None


@pytest.mark.parametrize(
    ("num_tokens", "accepted", "drafted"), [(9, [4], [3]), (5, [1], [3, 3]), (2, [0, 0, 1], [3, 3, 3]), (3, [-1], [2])]
)
def test_counts_that_are_not_this_texts_are_refused(num_tokens, accepted, drafted):
    with pytest.raises(EngineError):
        cut_rounds(num_tokens, accepted, drafted, is_stopped=True)


def test_a_text_without_tokens_has_no_rounds():
    assert cut_rounds(0, [], [], is_stopped=True).drafted == ()


def test_alone_every_token_is_a_round():
    assert without_drafts(2).origins == ("bonus", "bonus")
    assert without_drafts(2).drafted == (0, 0)


STEPS = [
    ([(1, 0, 0), (2, 3, 2), (3, 3, 2), (4, 3, 2), (5, 5, 2), (6, 5, 2), (6, 5, 2)], ([2, 0, 0], [3, 2, 0])),
    ([(1, 0, 0), (4, 3, 2), (5, 3, 2), (5, 3, 2)], None),  # two tokens before it: steps of their own, or of this one
    ([(1, 0, 0), (2, 3, 2), (4, 3, 2), (5, 6, 2)], ([2, 0], [3, 3])),  # what is not sent belongs to a known step
    ([(1, 0, 0), (2, 0, 0), (2, 3, 1)], None),  # sums that no token explains
    ([(1, 0, 0), (1, 0, 0)], ([], [])),
]


@pytest.mark.parametrize(("sums", "steps"), STEPS)
def test_steps_follow_from_the_sums_after_each_token(sums, steps):
    assert steps_of(sums) == (None if steps is None else {"accepted": steps[0], "drafted": steps[1]})


def generation_of(num_tokens: int, counts: CountedRounds | None) -> Generation:
    rounds = dict.fromkeys(CountedRounds._fields) if counts is None else counts._asdict()
    return Generation(0, 0, 0, (5,) * num_tokens, "stop", **rounds, draft_tokens=None)


def test_seconds_of_rounds_are_the_same_however_their_tokens_are_sent():
    counts = cut_rounds(6, [2, 0, 1], [3, 3, 1], is_stopped=True)  # its last round is cut to one token
    whole, single = [(1.0, 1), (3.0, 3), (7.0, 1), (8.0, 2)], [(1.0, 1), *[(3.0, 1)] * 3, (7.0, 1), *[(8.0, 1)] * 2]
    for chunks in (whole, single):
        assert round_seconds(generation_of(6, counts), chunks) == (2, 4, 1)
    assert round_seconds(generation_of(6, counts), [(3.0, 4), *whole[2:]]) == (4, 1), "the first chunk is the prefill"
    assert round_seconds(generation_of(3, without_drafts(3)), single[:3]) == (2, 0)


def test_of_rounds_that_are_unknown_there_are_no_seconds():
    chunks = [(1.0, 1), (3.0, 1), (4.0, 3)]
    assert round_seconds(generation_of(5, None), chunks) == ()
    unordered = cut_rounds(5, [2], [3], is_stopped=False)  # a step without drafts came before or after it
    assert unordered.origins is None
    assert round_seconds(generation_of(5, unordered), chunks) == (2, 1), "a chunk for each round"
    assert round_seconds(generation_of(5, unordered), [(float(n), 1) for n in range(5)]) == ()
