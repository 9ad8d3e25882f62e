"""The rounds of one text from the counts that a server reports by step, cut like the engine's."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from sdbench.types import EngineError, Origin


class CountedRounds(NamedTuple):
    """As in `types.Generation`; origins are None if steps without drafts lie somewhere between the others."""

    drafted: tuple[int, ...]
    examined: tuple[int, ...]
    accepted: tuple[int, ...]
    origins: tuple[Origin, ...] | None


def steps_of(sums: Sequence[tuple[int, int, int]]) -> dict[str, list[int]] | None:
    """The steps behind the first token, those without drafts too, from the sums of tokens, drafted and accepted drafts as they
    stand after each token that is sent. None where they do not follow: tokens that were not sent may be steps of their own.
    """
    steps: list[tuple[int, int]] = []
    last, left = (1, 0, 0), 0  # of the last step, how many of its tokens are to come
    for tokens, drafted, accepted in sums:
        new = tokens - last[0]
        if new <= 0:
            continue
        if drafted > last[1]:  # the newest token is the first of a step with drafts
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
    """The steps that begin within the first `num_tokens` of the `num_sent` that a server has sent: it did not look for the stop
    string. None where steps without drafts lie somewhere between the others.
    """
    if num_tokens == num_sent:
        return accepted, drafted
    cut_rounds(num_sent, accepted, drafted, is_stopped=True)  # counts that are not this text's are refused
    if 1 + sum(accepted) + len(accepted) < num_sent:
        return None
    begins = accumulate((kept + 1 for kept in accepted), initial=1)
    size = sum(begin < num_tokens for begin, _ in zip(begins, accepted, strict=False))
    return accepted[:size], drafted[:size]


def cut_rounds(num_tokens: int, accepted: Sequence[int], drafted: Sequence[int], *, is_stopped: bool) -> CountedRounds:
    """Steps with drafts in their order, behind the first token, which the prefill draws: as many as the text holds.

    A server counts its last step whole, tokens past the end of the text among them; here they count nowhere. A text that was
    stopped was not offered what lies behind its end, one that ran out of room was. Steps without drafts are not
    reported: the tokens that no step accounts for came from them.
    """
    if len(accepted) != len(drafted) or any(not 0 <= a <= d for a, d in zip(accepted, drafted, strict=False)):
        raise EngineError(
            f"a server counts {list(accepted)[:20]} accepted of {list(drafted)[:20]} drafted tokens by step"
        )
    if not num_tokens:
        return CountedRounds((), (), (), ())
    sums = 1 + sum(accepted) + len(accepted)
    beyond = sums - num_tokens
    if beyond > (accepted[-1] if accepted else 0):
        raise EngineError(
            f"a server's steps emit {sums} tokens and its text has {num_tokens}: its counts are not this text's"
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
