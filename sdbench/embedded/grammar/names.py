"""Invented names of two syllables and more, such as "Dolu Hakes" of "Malaburg".

A tiny model does not learn to copy members of a closed class of single tokens: all are equally likely in their slot, so
their embeddings collapse to one. These names are built from syllables, so that no vocabulary of about 1,000 entries can hold
them; names of several tokens are copied. Endings follow from the vowel before them: they add length, not choice.
"""

from sdbench.embedded.grammar.draw import Draw, words

# Without syllables and pairs that would give offensive words.
_SKIPPED = frozenset(words("fu ga gi gu ho ku mo ni pe pu se ti"))
_UNWANTED = frozenset(words("bite dike fage fago hate japa jude kike kora lude nude rude sado sata suka"))
INITIALS = tuple("bdfghjklmnprstvwz")
SYLLABLES = tuple(c + v for c in "bdfghklmnprstv" for v in "aeiou" if c + v not in _SKIPPED)
_CODA = {"a": "n", "e": "r", "i": "s", "o": "n", "u": "r"}
_TOWN = {"a": "burg", "e": "ford", "i": "ton", "o": "ville", "u": "wick"}


class Namer:
    """Names of one row. No initial and no later syllable comes twice in a row: each piece of a name tells the next."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._initials = iter(draw.shuffle(INITIALS))
        self._later = iter(draw.sample(SYLLABLES, 30))

    def first_name(self) -> str:
        initial = next(self._initials)
        first = initial + self._draw.pick([v for v in "aeiou" if initial + v not in _SKIPPED])
        second = next(s for s in self._later if s != first and first + s not in _UNWANTED)
        return (first + second).capitalize()

    def surname(self) -> str:
        return (name := self.first_name()) + _CODA[name[-1]]

    def person(self) -> str:
        return f"{self.first_name()} {self.surname()}"

    def city(self) -> str:
        return (name := self.first_name()) + _TOWN[name[-1]]
