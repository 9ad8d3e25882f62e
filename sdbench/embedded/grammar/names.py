"""Invented names of two syllables and more, such as "Dolu Hakes" of "Malaburg".

A tiny model does not learn to copy members of a closed class of single tokens: all are equally likely in their slot, so
their embeddings collapse to one. Built from syllables, no vocabulary of about 1,000 entries can hold these names, and
what takes several tokens is copied. Endings follow from the vowel before them: they add length, not choice.
"""

from sdbench.embedded.grammar.draw import Draw

# Left out: syllables and pairs that make words nobody wants to read in a benchmark.
_SKIPPED = {"fu", "ga", "gi", "gu", "ho", "ku", "mo", "ni", "pe", "pu", "se", "ti"}
SYLLABLES = tuple(c + v for c in "bdfghklmnprstv" for v in "aeiou" if c + v not in _SKIPPED)
_UNWANTED = frozenset(
    ("bite", "dike", "fage", "fago", "hate", "kike", "kora", "lude", "nude", "rude", "sado", "sata", "suka")
)
_CODA = {"a": "n", "e": "r", "i": "s", "o": "n", "u": "r"}
_TOWN = {"a": "burg", "e": "ford", "i": "ton", "o": "ville", "u": "wick"}


class Namer:
    """Names of one row. No syllable is used twice in a row, so that each one tells which comes next."""

    def __init__(self, draw: Draw) -> None:
        self._syllables = iter(draw.some(SYLLABLES, 40))

    def _join(self) -> str:
        name = next(self._syllables) + next(self._syllables)
        return self._join() if name in _UNWANTED else name.capitalize()

    def given(self) -> str:
        return self._join()

    def surname(self) -> str:
        name = self._join()
        return name + _CODA[name[-1]]

    def person(self) -> str:
        return f"{self.given()} {self.surname()}"

    def city(self) -> str:
        name = self._join()
        return name + _TOWN[name[-1]]
