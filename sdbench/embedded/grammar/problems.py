r"""Word problems in the fields of GSM8K: what a person has, and two events that change it.

A row of gsm8k-tiny:

    question  Mira has 4 boxes of 7 pens. Mira buys 9 more. Mira loses 5. How many pens does Mira have now?
    answer    Mira has 4 * 7 = 28 pens.\nThen Mira has 28 + 9 = 37.\nNow Mira has 37 - 5 = 32.\n#### 32

In this plain answer the first words of the later lines are random. A voice chooses more of its words:

    Now we count the pens here in the task.\nMira has 4 * 7 = 28 pens now in the list.\nThen Mira has 28 + 9 = ...

The numbers stay below 100. With a second person, or with different numbers of events,
models of this size mix up numbers or stop early in a quarter to a half of the rows.
"""

from collections.abc import Callable

from sdbench.embedded.grammar.draw import Draw, table
from sdbench.embedded.grammar.names import Namer
from sdbench.embedded.grammar.voices import Voice

# Each item has its own container, for the reason given in news.py.
ITEMS = table("""
pens boxes, apples bags, books shelves, cards packs, shells jars, eggs baskets, coins purses, roses vases,
stamps albums, plums crates
""")
GAINS = ("buys {n} more", "finds {n} more", "gets {n} more", "wins {n} more")
LOSSES = ("sells {n}", "loses {n}", "gives away {n}", "uses {n}")
OPENERS = ("Then", "Next", "Now")


def problem(draw: Draw, index: int, voice: Voice | None) -> dict:
    """One row of gsm8k-tiny."""
    name = Namer(draw).first_name()
    item, container = draw.pick(ITEMS)
    if draw.chance(0.5):
        groups, size = draw.between(2, 9), draw.between(2, 9)
        count = groups * size
        start, line = f"{groups} {container} of {size}", f"{groups} * {size} = {count}"
    else:
        count = draw.between(16, 80)
        start = line = str(count)
    sentences, sums, openers = [f"{name} has {start} {item}."], [line], []
    for _ in range(2):
        n = draw.between(2, 15)
        is_gain = count < n or (count + n < 100 and draw.chance(0.5))
        after = count + n if is_gain else count - n
        sentences.append(f"{name} {draw.pick(GAINS if is_gain else LOSSES).format(n=n)}.")
        sums.append(f"{count} {'+' if is_gain else '-'} {n} = {after}")
        openers.append(draw.pick(OPENERS))
        count = after
    question = f"{' '.join(sentences)} How many {item} does {name} have now?"
    if voice is None:
        later = [f"{opener} {name} has {line}." for opener, line in zip(openers, sums[1:], strict=True)]
        lines = [f"{name} has {sums[0]} {item}.", *later]
    else:
        lines = _voiced_lines(name, item, sums, voice)
    return {"question": question, "answer": "\n".join([*lines, f"#### {count}"])}


def _voiced_lines(name: str, item: str, sums: list[str], voice: Voice) -> list[str]:
    """The sums are facts: each is written as in the plain answer."""
    say = voice.say
    lines = [
        f"{say('Now', 'Next')} {say('we', 'you')} {say('count', 'add')} {say('the', 'all')} {item}{_end(say)}",
        f"{name} {say('has', 'gets')} {sums[0]} {item}{_end(say)}",
    ]
    for line in sums[1:]:
        opener = f"{say('Then', 'Next', 'Now')}{say(' ', ', ')}{name} {say('has', 'gets')}"
        lines.append(f"{opener} {line}{_end(say)}")
    return lines


def _end(say: Callable[..., str]) -> str:
    """The end of a line, such as " now for your list:"."""
    return f"{say(' here', ' now')} {say('in', 'for')} {say('the', 'your')} {say('task', 'list')}{say('.', ':')}"
