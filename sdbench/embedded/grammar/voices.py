"""The wording of answers: an answer has slots with several wordings, and a voice chooses among them.

A grammar function draws the facts of an answer from one random stream and a voice draws the wordings from another, so that
wording and facts are independent. The target's voice prefers the first wording of a slot, with a probability that differs from
slot to slot. The draft's voice clearly prefers the second wording; in some slots of a long text it prefers the first, like the
target but more strongly. The neutral voice, of references, has no preference. Two models of one family then disagree mostly
about wording, where the larger one is uncertain.
"""

from sdbench.embedded.grammar.draw import Draw

VOICES = ("target", "draft", "neutral")
# The target's probability of the first wording, by the number of the slot in its text. Given the draft's preference, the likeliest
# token of w·p + (1 − w)·q changes at a different w for each of them: from w = .79 for .60 to w = .58 for .78.
LEANS = (0.55, 0.68, 0.60, 0.74, 0.57, 0.70, 0.63, 0.78, 0.56, 0.66, 0.61, 0.72)
DRAFT_LEAN = 0.88  # the draft's probability of its preferred wording
AGREED = range(8, 1000, 4)  # the slots in which the draft prefers the target's wording
THIRD = 0.08  # the probability of a third wording in the voices of target and draft


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
