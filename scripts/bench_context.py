"""Measure what a long text before the answer costs: time after 4,000 tokens divided by that after 500; bench_engine.py calls this.

The models have the pair's shape, random weights and room for long texts. Texts are decoded four at a time with five drafts a round,
at T = 1 and w = 0.5: the time of a token then depends on how many drafts are kept at each length. With w = 0 all are kept, so that
each round has four rows and emits six tokens at either length: the ratio of its times is that of the work. Prompts are not timed.
"""

from collections.abc import Iterator
from typing import Any

from scripts.bench_tools import target_s
from sdbench.engine import generate
from sdbench.verify import Ensemble

SHORT, MOST = 500, 8000
ROWS, NUM_DRAFT, WARM_UPS = 4, 5, 2


def length_of(word: str) -> int:
    """Return the length that `context=` names; ValueError for one that is not measured."""
    if not word.isdecimal() or not SHORT < int(word) <= MOST:
        raise ValueError(f"context must be a whole number above {SHORT} and at most {MOST}, got {word}")
    return int(word)


def measure_context(bench: Any, word: str) -> Iterator[Any]:
    """Yield the figures of a long context; `bench` is a Bench of bench_engine."""
    length, bench = length_of(word), bench.stretched()
    end = f"at {length:,} tokens of context over {SHORT}"

    def seconds(length: int, w: float, *, is_round: bool = False) -> float:
        """Return the seconds of a token, or of a round."""
        options: dict[str, Any] = {
            "num_draft": NUM_DRAFT,
            "max_new_tokens": bench.new,
            "stop_ids": (),
            "measure": False,
        }
        options["timing"] = "split"  # with this setting no round reads a prompt
        texts = bench.prompts(ROWS, length)
        decoded = generate(None, None, texts, [Ensemble(w=w)], engine=bench.engine(None), **options)
        longest = max((g.timing for g in decoded if g.timing), key=lambda timing: timing.decode_s)
        return longest.decode_s / (len(longest.rounds_s) if is_round else sum(len(g.tokens) for g in decoded))

    for w in (0.5, 0.0):
        for each in (SHORT, length) * WARM_UPS:
            seconds(each, w)
    ratios = [seconds(length, 0.5) / seconds(SHORT, 0.5) for _ in range(bench.repeats)]
    yield bench.figure(f"time a token {end}", ratios, f"batch {ROWS}")
    ratios = [seconds(length, 0, is_round=True) / seconds(SHORT, 0, is_round=True) for _ in range(bench.repeats)]
    yield bench.figure(f"time a round in which all drafts are kept {end}", ratios, f"batch {ROWS}")
    calls = [[target_s(bench, ROWS, NUM_DRAFT + 1, each) for each in (length, SHORT, 0)] for _ in range(bench.repeats)]
    note = f"{ROWS} rows of {NUM_DRAFT + 1} tokens"
    yield bench.figure(f"a call of the target {end}", [long / short for long, short, _ in calls], note)
    yield bench.figure(
        f"a call of the target at {length:,} tokens of context: share of its time that one without context does not take",
        [1 - none / long for long, _, none in calls],
        note,
    )
