"""results/drafters/tiers.md: three tiers against the best setting of two tiers that is no worse in quality.

    python scripts/tiers_speeds.py [n=200] [timed=32] [repeats=2] [temperature=0] [records=results] [out=results/drafters]

Two tiers are llama-tiny's draft model and target, with the lossless rule, the ensemble at several w and typical acceptance. Three
tiers are `drafter=tiers` at several thresholds with `verifier=sure`, where the target does not judge tokens of which the slim
verifier is sure. All solve word problems of gsm8k-tiny and are timed at batch 1; nothing else may run on the machine. For each
setting of three tiers the script takes the fastest setting of two tiers that solves at least as many problems, and reports the
ratio of the speed-ups with an interval over texts. Records are kept in `records`: after an interruption the same command continues.
`out` gets tiers.csv and tiers.md.
"""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd

import sdbench
from scripts.drafter_tables import shown
from scripts.healing_tables import PAIR, sdbench_command
from sdbench.metrics import quality, speed
from sdbench.metrics.cells import metric_of, table_of
from sdbench.metrics.columns import spread
from sdbench.metrics.markup import markdown
from sdbench.metrics.stats.intervals import rates_interval
from sdbench.metrics.summary import summarise
from sdbench.records import Results
from sdbench.words import exit_on_mistake, parse_words

DEFAULTS = {
    "n": "200",
    "timed": "32",
    "repeats": "2",
    "temperature": "0",
    "records": "results",
    "out": "results/drafters",
}
TWO = ("verifier=[ensemble,typical]", "w=[0.9,0.7,0.5,0.3]", "verifier.typical.eps=0.3", "verifier.typical.delta=0.2")
LOWS, HIGHS = (0.05, 0.3), (0.5, 0.9)
MEASURES = ("quality", "tokens_per_round", "spared", "speedup")
COLUMNS = [
    "setting",
    "num_tiers",
    "n",
    "num_timed",
    *[f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")],
]
RIVAL = ["rival", *[f"{name}{end}" for name in ("ratio", "gap") for end in ("", "_low", "_high")]]
HEAD = ["setting", "solved (%)", "tokens per round", "not judged by the target (%)", "speed-up"]
RIVAL_HEAD = ["three tiers", "best of two that solves as many", "its speed over theirs", "solves more by (points)"]


def decode(options: dict[str, str], name: str, *words: str) -> Results:
    """Return the records of a run; only what is missing is decoded and timed."""
    given = [f"{key}={options[key]}" for key in ("n", "temperature")]
    given += [f"timing.examples={options['timed']}", f"timing.repeats={options['repeats']}", "timing.cells=20"]
    sdbench_command(*PAIR, *words, *given, f"results={options['records']}", f"name={name}", "report=off")
    return sdbench.read(Path(options["records"]) / name)


def settings_of(results: Results, drafter: str) -> pd.DataFrame:
    """Return a row for each setting of this drafter, with a name."""
    summary = summarise(results)
    summary = summary[summary["drafter"] == drafter]
    names = [
        f"{row['verifier']} w={row['w']:g}" if row["verifier"] == "ensemble" else str(row["verifier"])
        for _, row in summary.iterrows()
    ]
    return summary.assign(setting=names)


class Settings:
    """Settings of two and three tiers: scores by problem, and times by text together with those of the target alone."""

    def __init__(self) -> None:
        self.rows: list[pd.DataFrame] = []
        self.scores: dict[str, Any] = {}
        self.times: dict[str, pd.DataFrame] = {}
        self.metric: Any = None

    def add(self, results: Results, rows: pd.DataFrame, num_tiers: int) -> None:
        """Add the settings of a run."""
        pairs, cells = speed.against_baseline(results.timings), table_of(results.cells)
        parts = {str(key): part for key, part in results.generations.groupby("cell")}
        for _, row in rows.iterrows():
            self.metric = metric_of(cells, row["cell"])
            self.scores[row["setting"]] = quality.rows_of(parts[row["cell"]], self.metric)
            if row["cell"] in pairs:
                self.times[row["setting"]] = speed.by_example(pairs[row["cell"]])
        self.rows.append(rows.assign(num_tiers=num_tiers).reindex(columns=COLUMNS))

    def table(self) -> pd.DataFrame:
        """Return all settings; each setting of three tiers is listed with the best comparable setting of two."""
        table = pd.concat(self.rows, ignore_index=True)
        rivals = [self._rival(row, table) if row["num_tiers"] == 3 else {} for _, row in table.iterrows()]
        return table.join(pd.DataFrame(rivals, index=table.index).reindex(columns=RIVAL))

    def _rival(self, row: pd.Series, table: pd.DataFrame) -> dict[str, Any]:
        two = table[(table["num_tiers"] == 2) & (table["quality"] >= row["quality"]) & table["speedup"].notna()]
        if two.empty or row["setting"] not in self.times:
            return {}
        rival = str(two.loc[two["speedup"].idxmax(), "setting"])
        gap = quality.difference(self.scores[row["setting"]], self.scores[rival], self.metric)
        ratio = speed_over(self.times[row["setting"]], self.times[rival])
        return {"rival": rival, **spread("ratio", ratio), **spread("gap", gap)}


def speed_over(times: pd.DataFrame, rival: pd.DataFrame) -> Any:
    """Return the ratio of two speed-ups, each relative to the target alone in the same pass, with an interval over common texts."""
    names = ["tokens", "decode_s", "tokens_base", "decode_s_base"]
    both = pd.concat([times[names], rival[names]], axis=1, join="inner")
    return rates_interval(both.to_numpy(np.float64), (1, -1, -1, 1, -1, 1, 1, -1))


def text_of(table: pd.DataFrame) -> str:
    settings = [
        [
            row["setting"],
            shown(row, "quality", 1, 100),
            shown(row, "tokens_per_round", 2),
            shown(row, "spared", 1, 100) if row["num_tiers"] == 3 else "–",
            shown(row, "speedup", 2),
        ]
        for _, row in table.iterrows()
    ]
    three = table[table["num_tiers"] == 3]
    rivals = [
        [row["setting"], row["rival"], shown(row, "ratio", 2), shown(row, "gap", 1, 100)]
        for _, row in three[three["rival"].notna()].iterrows()
    ]
    timed = f"{table['num_timed'].min():g} of them timed at batch 1"
    about = (
        f"llama-tiny on gsm8k-tiny, {table['n'].min():g} problems, {timed}, five drafted tokens. Two tiers are the draft model "
        "and the target. Three are `drafter=tiers` with `verifier=sure`, at the thresholds low/high: half of the target's "
        "layers judge the draft first. Intervals are of 95 %. Written by `python scripts/tiers_speeds.py`."
    )
    return "\n".join(
        [
            "# Three tiers against two",
            "",
            about,
            "",
            markdown(HEAD, settings),
            markdown(RIVAL_HEAD, rivals).rstrip(),
            "",
        ]
    )


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("tiers_speeds", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
    settings, out = Settings(), Path(options["out"])
    two = decode(options, f"tiers-T{options['temperature']}-two", *TWO)
    settings.add(two, settings_of(two, "model"), 2)
    for low, high in product(LOWS, HIGHS):
        given = ("drafter=tiers", f"drafter.low={low}", f"drafter.high={high}", "verifier=sure")
        three = decode(options, f"tiers-T{options['temperature']}-{low}-{high}", *given)
        rows = settings_of(three, "tiers")
        settings.add(three, rows[rows["verifier"] == "sure"].assign(setting=f"tiers {low}/{high}"), 3)
    table = settings.table()
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "tiers.csv", index=False, float_format="%.6g")
    (out / "tiers.md").write_text(text_of(table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
