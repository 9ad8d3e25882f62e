"""An index of earlier occurrences of the ending of a growing text: zlib's hash chains over tokens, about 20 bytes per token."""

from array import array
from collections.abc import Iterator, Sequence

MIX = 0x9E3779B1  # Knuth's multiplier, 2^32 over the golden ratio


class TextIndex:
    """A text with an index of the earlier occurrences of its ending. A copy does not index the text again.

    A position is the number of tokens before it; 0 means none. `newest[h]` is the last position whose `shortest` preceding
    tokens hash to h, and `before[i]` the last position before i + 1 with the same hash. Collisions are removed by comparing
    tokens.
    """

    def __init__(self, shortest: int, tokens: Sequence[int] = ()) -> None:
        self.shortest = shortest
        self.tokens, self.before, self.newest = array("i"), array("i"), array("i", bytes(4 * 64))
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def copy(self) -> "TextIndex":
        """Return an independent copy."""
        copied = TextIndex(self.shortest)
        copied.tokens, copied.before, copied.newest = self.tokens[:], self.before[:], self.newest[:]
        return copied

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        if len(self) + len(tokens) > len(self.newest):
            size = 1 << (len(self) + len(tokens)).bit_length()
            old, self.newest, self.before = self.tokens, array("i", bytes(4 * size)), array("i")
            self.tokens = array("i")
            tokens = [*old, *tokens]
        for token in tokens:
            self.tokens.append(token)
            slot = self._slot()
            self.before.append(self.newest[slot])
            self.newest[slot] = len(self.tokens)

    def shrink(self, count: int) -> None:
        """Remove the last tokens."""
        for _ in range(count):
            self.newest[self._slot()] = self.before.pop()
            self.tokens.pop()

    def _slot(self) -> int:
        value = 0
        for token in self.tokens[-self.shortest :]:
            value = (value * MIX + token + 1) & 0xFFFFFFFF
        return (value * MIX >> 15) & (len(self.newest) - 1)

    def earlier(self, longest: int) -> Iterator[tuple[int, int]]:
        """Yield (position, length) of each earlier occurrence of the text's ending, latest first.

        `length` is the number of tokens that agree, from `shortest`, counted up to `longest`.
        """
        tokens, end = self.tokens, len(self.tokens)
        position = self.before[-1] if end else 0
        while position:
            length, most = 0, min(longest, position)
            while length < most and tokens[position - 1 - length] == tokens[end - 1 - length]:
                length += 1
            if length >= self.shortest:
                yield position, length
            position = self.before[position - 1]

    def longest_earlier(self, longest: int) -> tuple[list[int], int]:
        """Return the positions of the earlier occurrences that agree longest, latest first, and this length (0: none)."""
        tokens, before = self.tokens, self.before
        ending = tokens[: -longest - 1 : -1]
        positions: list[int] = []
        agreed, position = self.shortest, before[-1] if tokens else 0
        while position:
            # For most occurrences one comparison shows that they agree less.
            if position >= agreed and tokens[position - agreed] == ending[agreed - 1]:
                length, most = 0, min(len(ending), position)
                while length < most and tokens[position - 1 - length] == ending[length]:
                    length += 1
                if length > agreed:
                    positions, agreed = [position], length
                elif length == agreed:
                    positions.append(position)
            position = before[position - 1]
        return positions, agreed if positions else 0


def count_common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
