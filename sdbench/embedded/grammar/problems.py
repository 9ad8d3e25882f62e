r"""Word problems in the fields of GSM8K: what two people have and do with it; the question is about one of them.

A row of gsm8k-tiny:

    question  Mira has 4 boxes of 7 pens. Tolu has 23 pens. Mira buys 9 more. Tolu loses 5. How many pens does Mira
              have now?
    answer    Mira has 4 * 7 = 28 pens.\nThen Mira has 28 + 9 = 37.\n#### 37

The word that opens the second line is free. The numbers stay below 100; only the asked person's are worked out. With
more events a person, models of this size take another event's number or stop early in a quarter to a half of the rows.
"""

from collections.abc import Sequence

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

    def __init__(self, draw: Draw, name: str, item: str, container: str) -> None:
        if draw.chance(0.5):
            groups, size = draw.between(2, 9), draw.between(2, 9)
            start, had, line = groups * size, f"{groups} {container} of {size}", f"{groups} * {size} = {groups * size}"
        else:
            start = draw.between(16, 80)
            had = line = str(start)
        n = draw.between(2, 15)
        is_gain = start < n or (start + n < 100 and draw.chance(0.5))
        self.count = start + n if is_gain else start - n
        self.sentences = [f"{name} has {had} {item}.", f"{name} {draw.one(GAINS if is_gain else LOSSES).format(n=n)}."]
        self.lines = [
            f"{name} has {line} {item}.",
            f"{draw.one(OPENERS)} {name} has {start} {'+' if is_gain else '-'} {n} = {self.count}.",
        ]


def problem(draw: Draw, index: int) -> dict:
    """One row of gsm8k-tiny."""
    namer = Namer(draw)
    item, container = draw.one(ITEMS)
    asked_name, other_name = namer.given(), namer.given()
    asked, other = Holder(draw, asked_name, item, container), Holder(draw, other_name, item, container)
    question = " ".join(interleaved(draw, [asked.sentences, other.sentences]))
    question += f" How many {item} does {asked_name} have now?"
    return {"question": question, "answer": "\n".join([*asked.lines, f"#### {asked.count}"])}


def interleaved(draw: Draw, stories: Sequence[Sequence[str]]) -> list[str]:
    """All stories merged at random, each in its own order."""
    turns = draw.shuffled([i for i, story in enumerate(stories) for _ in story])
    sources = [iter(story) for story in stories]
    return [next(sources[turn]) for turn in turns]
