"""results/drafters/exits.md: drafting with the target's first layers, for the shipped target and for one trained for early exits.

    python scripts/exit_tables.py [layers=2,4,6] [temperatures=0,1] [steps=600] [n=100] [records=results] [out=results/drafters]

`python scripts/train_tiny.py exits=STEPS` trains llama-tiny's target further with losses at every second layer, as LayerSkip does.
Both targets then solve word problems of gsm8k-tiny with `drafter=early-exit`, which exits after each number of `layers`, with the
lossless rule and the ensemble at w = 0.7. Results of training and decoding are kept in `records`: after an interruption the same
command continues. `out` gets exits.csv and exits.md.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

import sdbench
from scripts.healing_tables import MEASURES, PAIR, measures_in, sdbench_command
from sdbench.metrics.markup import markdown
from sdbench.metrics.summary import summarise
from sdbench.words import exit_on_mistake, parse_words

DEFAULTS = {
    "layers": "2,4,6",
    "temperatures": "0,1",
    "steps": "600",
    "n": "100",
    "records": "results",
    "out": "results/drafters",
}
COLUMNS = ["is_trained", "layers", "temperature", "verifier", "n"]
COLUMNS += [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
HEAD = ["target", "layers", "T", "rule", "acceptance", "tokens per round", "solved (%)"]


def train(steps: str, folder: Path) -> None:
    """Train the target unless it exists."""
    if not (folder / "training.json").exists():
        script = Path(__file__).parent / "train_tiny.py"
        subprocess.run([sys.executable, str(script), "pair=llama-tiny", f"exits={steps}", f"out={folder}"], check=True)


def records_name(temperature: str, layers: str, trained_steps: str | None) -> str:
    """Return the name of the records' folder for one target; each training has a separate folder."""
    return f"exits-T{temperature}-{layers}" + (f"-trained-{trained_steps}" if trained_steps else "")


def rows_of(run: Path, layers: str, is_trained: bool) -> pd.DataFrame:
    """Return a row for each rule of a run."""
    summary = summarise(sdbench.read(run))
    return summary[summary["drafter"].notna()].assign(layers=layers, is_trained=is_trained).reindex(columns=COLUMNS)


def text_of(table: pd.DataFrame, steps: int, seconds: int) -> str:
    rows = [
        [
            "trained" if row["is_trained"] else "shipped",
            row["layers"],
            f"{row['temperature']:g}",
            row["verifier"],
            *measures_in(row),
        ]
        for _, row in table.iterrows()
    ]
    about = (
        "llama-tiny's target drafts with its first layers, of 18, on gsm8k-tiny: as it ships, and trained further for "
        f"{steps} steps with losses at every second layer ({seconds / 60:.0f} minutes on a busy machine). n = "
        f"{table['n'].min():g}, five drafted tokens, the ensemble at w = 0.7. Written by `python scripts/exit_tables.py`."
    )
    return f"# Early exit, with and without training\n\n{about}\n\n{markdown(HEAD, rows).rstrip()}\n"


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("exit_tables", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
    records, out, layers = Path(options["records"]), Path(options["out"]), options["layers"].split(",")
    folder = records / "exits" / f"llama-tiny-{options['steps']}"
    train(options["steps"], folder)
    frames = []
    for temperature, count, is_trained in product(options["temperatures"].split(","), layers, (False, True)):
        name = records_name(temperature, count, options["steps"] if is_trained else None)
        target = [f"model.target={(folder / 'target').resolve()}"] if is_trained else []
        drafter = ["drafter=early-exit", f"drafter.exit_layer={count}", "model.draft=null"]
        given = [f"temperature={temperature}", f"n={options['n']}", "w=0.7", "timing=off", "report=off"]
        sdbench_command(*PAIR, *target, *drafter, *given, f"results={records}", f"name={name}")
        frames.append(rows_of(records / name, count, is_trained))
    table = pd.concat(frames)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "exits.csv", index=False, float_format="%.6g")
    took = json.loads((folder / "training.json").read_text())["target"]
    (out / "exits.md").write_text(text_of(table, took["steps"], took["seconds"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
