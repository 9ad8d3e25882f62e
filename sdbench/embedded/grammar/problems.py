r"""Word problems in the fields of GSM8K: two people, a few events, the question is about one of them.

A row of gsm8k-tiny:

    question  Mira has 4 boxes of 7 pens. Tolu has 23 pens. Mira buys 9 more. Tolu loses 5. How many pens does Mira
              have now?
    answer    Mira has 4 * 7 = 28 pens.\nThen Mira has 28 + 9 = 37.\n#### 37

The word that opens a later line is free. The numbers stay below 100; only the asked person's events are worked out.
"""

from sdbench.embedded.grammar.draw import Draw
from sdbench.embedded.grammar.names import Namer

# Each item has a container of its own, see news.py for the reason.
ITEMS = (
    ("pens", "boxes"),
    ("apples", "bags"),
    ("books", "shelves"),
    ("cards", "packs"),
    ("shells", "jars"),
    ("eggs", "baskets"),
    ("coins", "purses"),
    ("roses", "vases"),
    ("stamps", "albums"),
    ("plums", "crates"),
)
GAINS = ("buys {n} more", "finds {n} more", "gets {n} more", "wins {n} more")
LOSSES = ("sells {n}", "loses {n}", "gives away {n}", "uses {n}")
OPENERS = ("Then", "Next", "Now")


class Holder:
    """One person's sentences in order, and the lines that work them out."""

    def __init__(self, draw: Draw, name: str, item: str, container: str, num_steps: int) -> None:
        self.sentences: list[str] = []
        self.lines: list[str] = []
        is_product = draw.chance(0.5)
        if is_product:
            groups, size = draw.between(2, 9), draw.between(2, 9)
            self.count = groups * size
            self.sentences.append(f"{name} has {groups} {container} of {size} {item}.")
            self.lines.append(f"{name} has {groups} * {size} = {self.count} {item}.")
        else:
            self.count = draw.between(16, 80)
            self.sentences.append(f"{name} has {self.count} {item}.")
            self.lines.append(f"{name} has {self.count} {item}.")
        for _ in range(num_steps - is_product):
            self._event(draw, name)

    def _event(self, draw: Draw, name: str) -> None:
        n = draw.between(2, 15)
        is_gain = self.count < n or (self.count + n < 100 and draw.chance(0.5))
        after = self.count + n if is_gain else self.count - n
        self.sentences.append(f"{name} {draw.one(GAINS if is_gain else LOSSES).format(n=n)}.")
        self.lines.append(f"{draw.one(OPENERS)} {name} has {self.count} {'+' if is_gain else '-'} {n} = {after}.")
        self.count = after


def problem(draw: Draw, index: int) -> dict:
    """One row of gsm8k-tiny."""
    namer = Namer(draw)
    item, container = draw.one(ITEMS)
    asked_name, other_name = namer.given(), namer.given()
    asked = Holder(draw, asked_name, item, container, draw.between(2, 3))
    other = Holder(draw, other_name, item, container, draw.between(1, 2))
    question = " ".join(_interleaved(draw, asked.sentences, other.sentences))
    question += f" How many {item} does {asked_name} have now?"
    return {"question": question, "answer": "\n".join([*asked.lines, f"#### {asked.count}"])}


def _interleaved(draw: Draw, first: list[str], second: list[str]) -> list[str]:
    """Both lists merged at random, each in its own order."""
    turns = draw.shuffled([0] * len(first) + [1] * len(second))
    sources = (iter(first), iter(second))
    return [next(sources[turn]) for turn in turns]
