"""The rounds of one text from the counts that a server reports by step, cut as the engine cuts."""

from collections.abc import Sequence
from typing import NamedTuple

from sdbench.types import EngineError, Origin


class CountedRounds(NamedTuple):
    """As in `types.Generation`; origins are None where steps without drafts lie somewhere between the others."""

    drafted: tuple[int, ...]
    examined: tuple[int, ...]
    accepted: tuple[int, ...]
    origins: tuple[Origin, ...] | None


def without_drafts(num_tokens: int) -> CountedRounds:
    """A model without drafts: each token is a round."""
    none = (0,) * num_tokens
    return CountedRounds(none, none, none, ("bonus",) * num_tokens)


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
