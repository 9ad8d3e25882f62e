"""The rounds of a text, from the counts that a server reports for each step. As in our engine, counts end where the text ends."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from sdbench.types import EngineError, Generation, Origin


class CountedRounds(NamedTuple):
    """The columns of the same names in `types.Generation`. `origins` is None if the order of steps is not known."""

    drafted: tuple[int, ...]
    examined: tuple[int, ...]
    accepted: tuple[int, ...]
    origins: tuple[Origin, ...] | None


def steps_of(sums: Sequence[tuple[int, int, int]]) -> dict[str, list[int]] | None:
    """Return the steps after the first token, including steps without drafts, or None if the sums do not determine them.

    `sums` are running sums of tokens, drafted and accepted drafts after each token that was sent. They do not determine the steps
    if tokens were not sent, because each of those may have been a step too.
    """
    steps: list[tuple[int, int]] = []
    last, left = (1, 0, 0), 0  # left: how many tokens of the last step are still to come
    for tokens, drafted, accepted in sums:
        new = tokens - last[0]
        if new <= 0:
            continue
        if drafted > last[1]:  # the newest token is the first token of a step with drafts
            if new - 1 != left:
                return None
            steps.append((accepted - last[2], drafted - last[1]))
            left = accepted - last[2]
        else:
            steps += [(0, 0)] * (new - left)
            left = max(0, left - new)
        last = tokens, drafted, accepted
    if sums and last[1:] != tuple(sums[-1][1:]):
        return None
    return {"accepted": [kept for kept, _ in steps], "drafted": [offered for _, offered in steps]}


def without_drafts(num_tokens: int) -> CountedRounds:
    """Return the rounds of a model without drafts: each token is a round."""
    none = (0,) * num_tokens
    return CountedRounds(none, none, none, ("bonus",) * num_tokens)


def steps_within(
    num_tokens: int, num_sent: int, accepted: Sequence[int], drafted: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the steps that begin within the first `num_tokens` of `num_sent` tokens, or None if the order of steps is unknown.

    A server that does not look for the stop string itself sends more tokens than the text has. The order is unknown if there were
    steps without drafts, which are not reported.
    """
    if num_tokens == num_sent:
        return accepted, drafted
    cut_rounds(num_sent, accepted, drafted, is_stopped=True)  # raises EngineError if the counts do not fit this text
    if 1 + sum(accepted) + len(accepted) < num_sent:
        return None
    begins = accumulate((kept + 1 for kept in accepted), initial=1)
    size = sum(begin < num_tokens for begin, _ in zip(begins, accepted, strict=False))
    return accepted[:size], drafted[:size]


def cut_rounds(num_tokens: int, accepted: Sequence[int], drafted: Sequence[int], *, is_stopped: bool) -> CountedRounds:
    """Return the rounds of a text: the prefill, which draws the first token, then the steps with drafts in their order.

    A server counts its last step in full, including tokens after the end of the text; these are not counted here. Drafts after
    the end count as drafted if the text reached its length limit, not if it was stopped. A server does not report steps
    without drafts: each token that no reported step explains is one such step.
    """
    if len(accepted) != len(drafted) or any(not 0 <= a <= d for a, d in zip(accepted, drafted, strict=False)):
        raise EngineError(
            f"the server reports impossible counts by step: {list(accepted)[:20]} accepted of {list(drafted)[:20]} drafted tokens"
        )
    if not num_tokens:
        return CountedRounds((), (), (), ())
    sums = 1 + sum(accepted) + len(accepted)
    beyond = sums - num_tokens
    if beyond > (accepted[-1] if accepted else 0):
        raise EngineError(
            f"the server's steps emit {sums} tokens, but its text has {num_tokens}: its counts do not belong to this text"
        )
    unreported = max(0, -beyond)
    rounds: list[tuple[int, int, int]] = [(0, 0, 0)]
    origins: list[Origin] = ["bonus"]
    for step, (kept, offered) in enumerate(zip(accepted, drafted, strict=True), start=1):
        emitted = kept + 1 - (max(0, beyond) if step == len(accepted) else 0)
        is_end = step == len(accepted) and not unreported
        length = min(offered, emitted) if is_end and is_stopped else offered
        rounds.append((length, min(emitted, length), min(emitted, kept)))
        last: Origin = "replacement" if kept < offered else "bonus"
        block: list[Origin] = [*["accepted"] * kept, last]  # pyright: ignore[reportAssignmentType]
        origins += block[:emitted]
    rounds += [(0, 0, 0)] * unreported
    offered, examined, taken = (tuple(column) for column in zip(*rounds, strict=True))
    return CountedRounds(offered, examined, taken, None if unreported else tuple(origins))


def round_seconds(generation: Generation, chunks: Sequence[tuple[float, int]]) -> tuple[float, ...]:
    """Return the seconds of each round of a text sent in chunks of (time, number of tokens); empty if its rounds are unknown.

    A round ends with the chunk of its last token, since a server may send every token in its own chunk. Rounds that end in the
    first chunk belong to the prefill. Where the order of the rounds is unknown, chunks count as rounds if there are as many.
    """
    accepted = generation.accepted
    if not accepted or (generation.origins is None and len(accepted) != len(chunks)):
        return ()
    sizes = [size for _, size in chunks] if generation.origins is None else [kept + 1 for kept in accepted]
    times = [when for when, size in chunks for _ in range(size)]  # of each token
    ends = [times[min(end, len(generation.tokens)) - 1] for end in accumulate(sizes)]
    return tuple(after - before for before, after in pairwise([times[0], *(end for end in ends if end > times[0])]))
