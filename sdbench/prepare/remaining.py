"""How long the rest of a run takes, estimated from the rounds so far, the lengths of texts, and the batch streams still to come."""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sdbench.prepare.lengths import LogLengths, expected_longest, likely_lengths, mean_rest

AGES = 16  # most different ages of texts in progress
FEW_ROUNDS = 8  # with fewer rounds of a stream its pace is the guess from the stream before
GUESSED_ROUNDS = 0.5  # weight of the guess of a row's seconds, in rounds with no row or twice the mean number of rows


@dataclass(frozen=True)
class TextStream:
    """A batch stream: its number of texts, and the costs of a round, of each of its rows and of a prompt, in target passes.

    Only the ratios of these costs between streams are used. `tokens`: tokens per row and round; None if they depend on acceptance.
    """

    count: int
    round_cost: float = 1.0
    row_cost: float = 1.0
    prompt_cost: float = 1.0
    tokens: float | None = None


class Pace(NamedTuple):
    """Seconds of a round with n rows, `round_s` + n · `row_s`, in which each row writes `tokens`."""

    round_s: float
    row_s: float
    tokens: float

    def seconds(self, rounds: float, tokens: float) -> float:
        """Return the seconds to write `tokens` tokens in all rows together, of which `rounds` follow one after another."""
        return (self.round_s * rounds + self.row_s * tokens) / self.tokens


@dataclass
class RoundTimes:
    """The rounds of a stream so far, as sums for a fit of seconds over rows by least squares."""

    number: int = 0
    rows: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    products: float = 0.0
    tokens: int = 0

    def add(self, rows: int, seconds: float, tokens: int) -> None:
        self.number += 1
        self.rows += rows
        self.squares += rows * rows
        self.seconds += seconds
        self.products += rows * seconds
        self.tokens += tokens

    def pace(self, guess: Pace | None = None) -> Pace:
        """Return the pace that fits the rounds best. If all rounds had the same number of rows, a fit cannot separate `round_s`
        from `row_s`; the rows' share of a round's seconds is then that of `guess`, or half.
        """
        rows, number = max(self.rows, 1), max(self.number, 1)
        mean = rows / number
        share = 0.5 if guess is None else guess.row_s * mean / max(guess.round_s + guess.row_s * mean, 1e-9)
        weight = GUESSED_ROUNDS * mean * mean
        spread, common = self.squares - rows * mean, self.products - mean * self.seconds
        row_s = (common + weight * share * self.seconds / rows) / (spread + weight)
        row_s = min(max(row_s, 0), self.seconds / rows)
        return Pace((self.seconds - row_s * rows) / number, row_s, max(self.tokens, 1) / rows)


@dataclass
class Remaining:
    """Estimates the seconds left. `longest` is the most tokens of a text."""

    streams: Sequence[TextStream]
    longest: float
    current: int = 0  # the stream that is decoded now
    done: int = 0
    begun: int = 0  # texts whose prompts were read
    written: int = 0  # tokens, including those of unfinished texts
    finished: int = 0  # tokens of finished texts
    prompts: float = 0.0  # total cost of the prompts read so far
    reading_s: float = 0.0  # seconds of reading these prompts
    most_rows: int = 1
    lengths: list[int] = field(default_factory=list)  # of the finished texts, in order
    logs: LogLengths = field(default_factory=LogLengths)  # of the finished texts
    youngest_s: float = 0.0  # seconds of rounds since the newest text was begun

    def __post_init__(self) -> None:
        self.unread = [stream.count for stream in self.streams]  # prompts that are still to be read
        self.rounds = [RoundTimes() for _ in self.streams]

    def begin(self, number: int, count: int) -> None:
        """Begin a stream, or continue it: `count` texts are left."""
        self.current = number
        self.unread[number] = count

    def end(self) -> None:
        """End the current stream. Texts that it has not read have failed, or other jobs on the folder decode them."""
        self.unread[self.current] = 0

    def finish(self, tokens: int) -> None:
        """Count one finished text."""
        self.done += 1
        self.finished += tokens
        insort(self.lengths, tokens)
        self.logs.add(tokens)

    def watch(self, texts: int, tokens: int, seconds: float) -> None:
        """Count prompts read, or the tokens of a round; numbers are negative for texts that start again."""
        self.begun += texts
        self.written += tokens
        self.unread[self.current] -= texts
        if texts < 0:  # they may start again with fewer rows than before
            self.most_rows = 1
        elif texts:
            self.prompts += texts * self.streams[self.current].prompt_cost
            self.reading_s += seconds
            self.youngest_s = 0.0
        elif tokens:
            self.youngest_s += seconds
            self.rounds[self.current].add(self.begun - self.done, seconds, tokens)
        self.most_rows = max(self.most_rows, self.begun - self.done)

    def pace(self, number: int) -> Pace:
        """Return the pace of a stream: that of the stream before, scaled by costs, refined by its own rounds once it has a few."""
        if not any(rounds.number for rounds in self.rounds[:number]):  # the first stream, or all before it failed
            return self.rounds[number].pace()
        before, then, now = self.pace(number - 1), self.streams[number - 1], self.streams[number]
        round_s, row_s = before.round_s * now.round_cost / then.round_cost, before.row_s * now.row_cost / then.row_cost
        guess = Pace(round_s, row_s, now.tokens or before.tokens)
        rounds = self.rounds[number]
        return rounds.pace(guess) if rounds.number >= FEW_ROUNDS and rounds.tokens > 0 else guess

    def prompt_s(self, number: int) -> float:
        """Return the seconds of reading a prompt of a stream, from the prompts of all streams, since many are read at once."""
        return self.reading_s / max(self.prompts, 1e-9) * self.streams[number].prompt_cost

    def left_s(self) -> float:
        """Estimate the seconds left, once a text has ended. All streams decode the same prompts, so equal lengths are assumed."""
        number = self.current
        rows, unread = max(self.begun - self.done, 0), max(self.unread[number], 0)
        ages = self._ages(rows, unread)
        lengths = self._likely_lengths(ages, rows / max(len(ages), 1))
        later = range(number + 1, len(self.streams))
        return self._stream_s(number, lengths, unread, ages, rows) + sum(
            self._stream_s(other, lengths, self.unread[other]) for other in later
        )

    def _stream_s(
        self, number: int, lengths: Sequence[float], unread: int, ages: Sequence[float] = (), rows: int = 0
    ) -> float:
        """Estimate the seconds that a stream takes for prompts not yet read and `rows` texts in progress, which have `ages`.

        The number of rounds depends on the longest of the last texts; other texts only add rows to them.
        """
        left_s = unread * self.prompt_s(number)
        if not rows:
            rows, ages = min(unread, self.most_rows), [0.0]
            unread -= rows
        mean, texts_per_age = sum(lengths) / len(lengths), rows / len(ages)
        longest = unread * mean / self.most_rows + expected_longest(lengths, ages, texts_per_age)
        tokens = unread * mean + texts_per_age * sum(mean_rest(lengths, age) for age in ages)
        return left_s + self.pace(number).seconds(longest, tokens)

    def _ages(self, rows: int, waiting: int) -> list[float]:
        """Return the number of tokens that texts in progress have so far, for at most AGES of them, evenly spread."""
        usual, count = max(self.written - self.finished, 0) / max(rows, 1), min(rows, AGES)
        pace, youngest = self.pace(self.current), 0.0
        if rows and not waiting:
            youngest = min(self.youngest_s * pace.tokens / max(pace.round_s + rows * pace.row_s, 1e-9), usual)
        return [youngest + (usual - youngest) * (2 * step + 1) / count for step in range(count)]

    def _likely_lengths(self, ages: Sequence[float], texts_per_age: float) -> list[float]:
        """Return sorted lengths: those of finished texts, and likely ones of texts in progress that these do not represent.

        In the first stream that is every text in progress. Later streams decode the same prompts, so only texts that are already
        longer than all finished ones are added: most of these repeat themselves, and twice their length is assumed.
        """
        if self.current:
            outliers = [age for age in ages if age >= self.lengths[-1]]
            likely = [min(2 * age + 1, self.longest) for age in outliers] * max(1, round(texts_per_age))
        else:
            likely = likely_lengths(self.logs.fit(ages, texts_per_age), ages, texts_per_age, self.longest)
        return sorted([*self.lengths, *likely])
