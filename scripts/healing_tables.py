"""results/drafters/healed.md: targets without some of their layers as drafts, before and after training that heals them.

    python scripts/healing_tables.py [layers=3,6,9] [temperatures=0,1] [n=100] [records=results] [out=results/drafters]

For each number of layers kept: `python -m sdbench.train pruned`, then runs of the trained draft and of `drafter=pruned`, which has
the same layers untrained, on llama-tiny and gsm8k-tiny, with the lossless rule and the ensemble at w = 0.7. Results of training and
decoding stay in `records`: after an interruption the same command continues. `out` gets healed.csv and healed.md.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

import sdbench
from sdbench.metrics.columns import estimate_of
from sdbench.metrics.markup import markdown
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import format_interval
from sdbench.prepare.distilled import DRAFT_CARD
from sdbench.words import exit_on_mistake, parse_words

DEFAULTS = {"layers": "3,6,9", "temperatures": "0,1", "n": "100", "records": "results", "out": "results/drafters"}
PAIR = ("model=llama-tiny", "task=gsm8k-tiny")
MEASURES = {"acceptance": 3, "tokens_per_round": 2, "quality": 1}  # measure -> digits
COLUMNS = ["layers", "is_healed", "temperature", "verifier", "n"]
COLUMNS += [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
HEAD = ["layers", "healed", "T", "rule", "acceptance", "tokens per round", "solved (%)"]


def sdbench_command(*words: str) -> None:
    """Run a command of sdbench; all scripts of trained drafters use this function."""
    subprocess.run([sys.executable, "-m", "sdbench", *words], check=True)


def rows_of(run: Path, layers: int, is_healed: bool) -> pd.DataFrame:
    summary = summarise(sdbench.read(run))
    return summary[summary["drafter"].notna()].assign(layers=layers, is_healed=is_healed).reindex(columns=COLUMNS)


def measures_in(row: Any) -> list[str]:
    """Return the measures of a row as texts with their intervals."""
    scales = {"quality": 100}
    return [
        format_interval(estimate_of(row.to_dict(), name), digits, scale=scales.get(name, 1)) or "–"
        for name, digits in MEASURES.items()
    ]


def text_of(table: pd.DataFrame, seconds: dict[int, int]) -> str:
    rows = [
        [
            str(row["layers"]),
            "yes" if row["is_healed"] else "no",
            f"{row['temperature']:g}",
            row["verifier"],
            *measures_in(row),
        ]
        for _, row in table.iterrows()
    ]
    took = ", ".join(f"{layers} layers {spent / 60:.0f} minutes" for layers, spent in seconds.items())
    about = (
        f"Layers of llama-tiny's target that stay, of 18, as a draft for it on gsm8k-tiny: n = {table['n'].min():g}, five drafted "
        "tokens, the ensemble at w = 0.7. Written by `python scripts/healing_tables.py`. Training, 200 steps of 16 of the target's "
        f"answers on one thread of a busy machine, took: {took}."
    )
    return f"# Pruned drafts, with and without training\n\n{about}\n\n{markdown(HEAD, rows).rstrip()}\n"


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("healing_tables", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
        layers = [int(word) for word in options["layers"].split(",")]
    records, out, frames, seconds = Path(options["records"]), Path(options["out"]), [], {}
    for count in layers:
        draft = records / "drafts" / f"llama-tiny-gsm8k-tiny-pruned-{count}"
        if not draft.exists():
            sdbench_command("train", "pruned", *PAIR, f"keep_layers={count}", f"out={draft}")
        seconds[count] = json.loads((draft / DRAFT_CARD).read_text())["seconds"]
    for temperature, count, is_healed in product(options["temperatures"].split(","), layers, (False, True)):
        draft = records / "drafts" / f"llama-tiny-gsm8k-tiny-pruned-{count}"
        choice = [f"model.draft={draft.resolve()}"] if is_healed else ["drafter=pruned", f"drafter.keep_layers={count}"]
        name = f"healing-T{temperature}-{count}{'-healed' if is_healed else ''}"
        given = [f"temperature={temperature}", f"n={options['n']}", "w=0.7", "timing=off", "report=off"]
        sdbench_command(*PAIR, *choice, *given, f"results={records}", f"name={name}")
        frames.append(rows_of(records / name, count, is_healed))
    table = pd.concat(frames)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "healed.csv", index=False, float_format="%.6g")
    (out / "healed.md").write_text(text_of(table, seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
