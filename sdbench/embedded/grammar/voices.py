"""Wording of the answers: each has free slots that a voice fills, independently of the facts that it states.

A grammar function draws the facts of an answer from its own stream. A voice fills the slots of the answer from another, so
wording and facts are independent. The target's voice prefers the first wording of a slot, by a probability that differs from
slot to slot; the draft's clearly prefers the second, or in some slots of a long text the first, as the target does but more
surely; the neutral voice of references has no preference. Two models of one family then disagree mostly about wording, and
there the larger one is unsure.
"""

from sdbench.embedded.grammar.draw import Draw

VOICES = ("target", "draft", "neutral")
# The target's probability of the first wording, by the number of the slot in its text. With the draft's lean, the likeliest token
# of w·p + (1 − w)·q changes at another w for each in which they differ: from .79 for .60 to .58 for .78.
LEANS = (0.55, 0.68, 0.60, 0.74, 0.57, 0.70, 0.63, 0.78, 0.56, 0.66, 0.61, 0.72)
DRAFT_LEAN = 0.88  # the draft's probability of the wording that it prefers
AGREED = range(8, 1000, 4)  # the slots in which the draft prefers what the target prefers
THIRD = 0.08  # the share of a third wording in both leaning voices


class Voice:
    """The wordings of one text after another; `say` number i of a text fills its slot i."""

    def __init__(self, name: str, draw: Draw) -> None:
        if name not in VOICES:
            raise ValueError(f"voice must be one of {', '.join(VOICES)}, got {name!r}")
        self.name = name
        self._draw = draw
        self._slot = 0

    def begin(self) -> None:
        """Start a new text: the next `say` fills its first slot."""
        self._slot = 0

    def say(self, *wordings: str) -> str:
        """Return one of two or three wordings, for the next slot."""
        shares = self.shares(self._slot, len(wordings))
        self._slot += 1
        left = self._draw.share()
        for wording, share in zip(wordings, shares, strict=True):
            left -= share
            if left < 0:
                return wording
        return wordings[-1]

    def shares(self, slot: int, count: int) -> tuple[float, ...]:
        """The probabilities of the wordings of a slot."""
        if count not in (2, 3):
            raise ValueError(f"a slot must have two or three wordings, got {count}")
        if self.name == "neutral":
            return (1 / count,) * count
        third = THIRD if count == 3 else 0.0
        lean = LEANS[slot % len(LEANS)]
        if self.name == "draft":
            lean = DRAFT_LEAN if slot in AGREED else 1 - DRAFT_LEAN
        return (lean - third / 2, 1 - lean - third / 2, third)[:count]
