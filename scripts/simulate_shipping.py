"""Estimate how often a report calls one of several settings proven faster than lossless, although none is.

    python scripts/simulate_shipping.py [runs=8000] [settings=1,3,9,20] [texts=8,30] [out=results/statistics]

Writes shipping.json and shipping.md. Each run times equally many texts with lossless decoding and with every setting, all with the
same distribution of seconds per token: lengths of 60 to 200 tokens, texts that differ in difficulty by 20 %, and timings that
differ by 10 %. As in a report, a setting is proven faster by the intervals of `sdbench/metrics/stats/`, both in tokens per second
and in the time of an answer, and by Holm's method over all settings.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from sdbench.metrics import gain, stats
from sdbench.metrics.markup import markdown
from sdbench.metrics.recommend import proven_faster
from sdbench.metrics.safety import ALPHA, Comparison
from sdbench.metrics.stats import Estimate
from sdbench.metrics.weigh import Gain, Weighed
from sdbench.types import Metric
from sdbench.words import exit_on_mistake, parse_words

DEFAULTS = {"runs": "8000", "settings": "1,3,9,20", "texts": "8,30", "out": "results/statistics"}
SAFE = Estimate(0.0, -0.1, 0.1, 150)
IN_WORDS = dict(enumerate(("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")))


def shipped_by_mistake(*, runs: int, settings: int, n: int = 8, seed: int = 0) -> float:
    """Return the share of runs that prove any of several settings faster although none is, timed on the same n texts."""
    rng, wrong = np.random.default_rng(seed), 0
    tests = [Comparison(str(i), "ensemble", f"w={i}", 5, SAFE, 0.0, -0.1, 0.0) for i in range(settings)]
    sweep = ("m", "t", "m on t", Metric("rougeL", "points"))
    for _ in range(runs):
        tokens, hard = rng.integers(60, 200, n), rng.lognormal(0, 0.2, n)
        seconds = tokens[:, None] * hard[:, None] * rng.lognormal(0, 0.1, (n, settings + 1))
        gains = {}
        for i in range(settings):
            rows = np.stack([tokens, seconds[:, i], tokens, seconds[:, -1]], 1).astype(np.float64)
            over = {"exact": stats.rates_interval(rows, gain.RATES)}
            gains[str(i)] = Gain(over, "exact", None, {"exact": stats.rates_interval(rows[:, [1, 3]], gain.TIMES)})
        wrong += bool(proven_faster(Weighed(*sweep, gains=gains), tests))
    return wrong / runs


def page_of(shares: Mapping[int, Mapping[int, float]], runs: int) -> str:
    """Return the page of {texts timed: {settings: share of runs}}."""
    error, fewest = math.sqrt(ALPHA * (1 - ALPHA) / runs), min(shares)
    counts = list(shares[fewest])
    rows = [[str(n), *(f"{share:.2%}" for share in by_count.values())] for n, by_count in shares.items()]
    return (
        "# How often a setting that is no faster is shipped\n\n"
        f"Written by `python scripts/simulate_shipping.py runs={runs} settings={','.join(map(str, counts))} "
        f"texts={','.join(map(str, shares))}`.\n"
        f"Share of {runs:,} runs that prove one of several settings faster, by the number of timed texts.\n"
        f"The nominal share is {ALPHA:.1%}, with a standard error of {error:.2%}. With {IN_WORDS.get(fewest, fewest)} texts of "
        "different lengths, Student's\n"
        f"limits of a ratio of sums err up to {max(shares[fewest].values()) / ALPHA:.2f} times as often as their level says.\n\n"
        f"{markdown(['texts timed', *(f'{count} settings' for count in counts)], rows)}"
    )


def main(words: Sequence[str]) -> None:
    with exit_on_mistake("simulate_shipping", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
        runs = int(options["runs"])
        counts, texts = ([int(x) for x in options[name].split(",")] for name in ("settings", "texts"))
    shares = {n: {count: shipped_by_mistake(runs=runs, settings=count, n=n) for count in counts} for n in texts}
    out = Path(options["out"])
    out.mkdir(parents=True, exist_ok=True)
    tree = {"runs": runs, "alpha": ALPHA, "shipped": shares}
    (out / "shipping.json").write_text(json.dumps(tree, indent=1) + "\n")
    (out / "shipping.md").write_text(page_of(shares, runs))


if __name__ == "__main__":
    main(sys.argv[1:])
