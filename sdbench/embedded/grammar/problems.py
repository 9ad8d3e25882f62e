r"""Word problems in the fields of GSM8K: what a person has, and two things that happen to it.

A row of gsm8k-tiny:

    question  Mira has 4 boxes of 7 pens. Mira buys 9 more. Mira loses 5. How many pens does Mira have now?
    answer    Mira has 4 * 7 = 28 pens.\nThen Mira has 28 + 9 = 37.\nNow Mira has 37 - 5 = 32.\n#### 32

The words that open the later lines are free; the numbers stay below 100. With a second person, or more events for some
than for others, models of this size take another's number or stop early in a quarter to a half of the rows.
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


def problem(draw: Draw, index: int) -> dict:
    """One row of gsm8k-tiny."""
    name = Namer(draw).given()
    item, container = draw.one(ITEMS)
    if draw.chance(0.5):
        groups, size = draw.between(2, 9), draw.between(2, 9)
        count = groups * size
        told, line = f"{groups} {container} of {size}", f"{groups} * {size} = {count}"
    else:
        count = draw.between(16, 80)
        told = line = str(count)
    sentences, lines = [f"{name} has {told} {item}."], [f"{name} has {line} {item}."]
    for _ in range(2):
        n = draw.between(2, 15)
        is_gain = count < n or (count + n < 100 and draw.chance(0.5))
        after = count + n if is_gain else count - n
        sentences.append(f"{name} {draw.one(GAINS if is_gain else LOSSES).format(n=n)}.")
        lines.append(f"{draw.one(OPENERS)} {name} has {count} {'+' if is_gain else '-'} {n} = {after}.")
        count = after
    question = f"{' '.join(sentences)} How many {item} does {name} have now?"
    return {"question": question, "answer": "\n".join([*lines, f"#### {count}"])}
