"""Two English wordings of the words that wmt-tiny translates to; the first stands in the plain sentence."""

import re
from collections.abc import Callable

_TABLE = """
teacher: tutor, teachers: tutors, doctor: medic, doctors: medics, cook: chef, cooks: chefs, friend: pal, friends: pals
father: dad, fathers: dads, mother: mum, mothers: mums, neighbour: neighbor, neighbours: neighbors, son: boy, sons: boys
child: kid, children: kids, girl: lass, girls: lasses
sees: spots, see: spot, saw: spotted, buys: gets, buy: get, bought: got, finds: locates, find: locate, found: located
looks for: seeks, look for: seek, looked for: sought, paints: colours, paint: colour, painted: coloured
fetches: brings, fetch: bring, fetched: brought, sells: trades, sell: trade, sold: traded
washes: cleans, wash: clean, washed: cleaned, needs: requires, need: require, needed: required
loses: misplaces, lose: misplace, lost: misplaced, draws: sketches, draw: sketch, drew: sketched
steals: takes, steal: take, stole: took, wants to: wishes to, want to: wish to
young: youthful, small: little, nice: kind, rich: wealthy, poor: needy, clever: smart, old: aged, new: recent
red: crimson, heavy: weighty, beautiful: lovely, cheap: low-priced, big: large, black: dark
because: since, although: though, while: as, if: when, with: beside
today: this day, now: at present, often: many times, sometimes: at times
the: this, yesterday: the day before, last week: a week ago, once: one day, on Monday: last Monday
"""


_ENTRIES = [entry.partition(": ") for line in _TABLE.strip().splitlines() for entry in line.split(", ")]
SYNONYMS = {first: second for first, _, second in _ENTRIES}
_LONGEST_FIRST = "|".join(map(re.escape, sorted(SYNONYMS, key=len, reverse=True)))
_KNOWN = re.compile(rf"\b(?:{_LONGEST_FIRST})\b")
_ARTICLE = re.compile(r"\ban? (?=(\w))")


def reword(english: str, say: Callable[..., str]) -> str:
    """Put each known word of a sentence, not yet capitalised, into one of its two wordings."""
    words = _KNOWN.sub(lambda match: say(match[0], SYNONYMS[match[0]]), english)
    return _ARTICLE.sub(lambda match: "an " if match[1] in "aeiou" else "a ", words)
