"""How a thing is said: free places in the answers, worded by a voice that knows nothing of what is said.

A grammar function decides the substance of an answer from its own chance. A voice words the places of the answer from a stream
of its own, so manner and substance are independent. The target's voice prefers the first wording of a place, by a lean that differs
from place to place; the draft's clearly prefers the second, or in some places of a long text the first, as the target does but
more surely; the neutral voice of references has no preference. Two models of one family then disagree mostly about manner, and
there the larger one is unsure.
"""

from sdbench.embedded.grammar.draw import Draw

VOICES = ("target", "draft", "neutral")
# The target's probability of the first wording, by the number of the place in its text. With the draft's lean, the likeliest token
# of w·p + (1 − w)·q changes at a w of its own for each in which they differ: from .79 for .60 to .58 for .78.
LEANS = (0.55, 0.68, 0.60, 0.74, 0.57, 0.70, 0.63, 0.78, 0.56, 0.66, 0.61, 0.72)
DRAFT_LEAN = 0.88  # the draft's probability of the wording that it prefers
AGREED = range(8, 1000, 4)  # the places in which the draft prefers what the target prefers
THIRD = 0.08  # the share of a third wording in both leaning voices


class Voice:
    """The wordings of one text after another; `say` number i of a text is its place i."""

    def __init__(self, name: str, draw: Draw) -> None:
        if name not in VOICES:
            raise ValueError(f"voice must be one of {', '.join(VOICES)}, got {name!r}")
        self.name = name
        self._draw = draw
        self._place = 0

    def begin(self) -> None:
        """The next `say` is the first place of a new text."""
        self._place = 0

    def say(self, *wordings: str) -> str:
        """One of two or three wordings of the next place."""
        shares = self.shares(self._place, len(wordings))
        self._place += 1
        left = self._draw.share()
        for wording, share in zip(wordings, shares, strict=True):
            left -= share
            if left < 0:
                return wording
        return wordings[-1]

    def shares(self, place: int, count: int) -> tuple[float, ...]:
        """The probabilities of the wordings of a place."""
        if count not in (2, 3):
            raise ValueError(f"a place must have two or three wordings, got {count}")
        if self.name == "neutral":
            return (1 / count,) * count
        third = THIRD if count == 3 else 0.0
        lean = LEANS[place % len(LEANS)]
        if self.name == "draft":
            lean = DRAFT_LEAN if place in AGREED else 1 - DRAFT_LEAN
        return (lean - third / 2, 1 - lean - third / 2, third)[:count]
