"""results/embedded/seeds.csv: a pair's draft trained from three seeds, and the knee of the quality curve of each at T = 0.

    python scripts/embedded_seeds.py [pair=llama-tiny] [tasks=cnndm-tiny,gsm8k-tiny] [seeds=11,12] [n=150]
                                     [runs=results/seeds] [out=results/embedded]

The pair's own draft is the first of the three; the others start from other weights and read other rows (some nine minutes each on
one core). Run it again after an interruption: only what is missing is trained and decoded.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

import sdbench
from scripts.tiny.make import pair_of
from sdbench import embedded
from sdbench.metrics.export import metrics_of, metrics_table
from sdbench.metrics.summary import summarise
from sdbench.words import exit_on_mistake, parse_words

WS = "w=[1,0.9,0.8,0.7,0.6,0.5,0.2,0]"
COLUMNS = ["pair", "task", "seed", "w", "n", "acceptance", "acceptance_low", "acceptance_high", "quality", "facts"]
DEFAULTS = {
    "pair": "llama-tiny",
    "tasks": "cnndm-tiny,gsm8k-tiny",
    "seeds": "11,12",
    "n": "150",
    "runs": "results/seeds",
    "out": "results/embedded",
}


def trained(pair: str, seed: str, runs: Path) -> Path:
    """Return the folder of a seed's draft; train it if it does not exist yet."""
    folder = runs / f"{pair}-{seed}"
    if not (folder / "draft" / "model.safetensors").exists():
        words = [f"pair={pair}", "role=draft", f"seed={seed}", f"out={folder}"]
        subprocess.run([sys.executable, Path(__file__).with_name("train_tiny.py"), *words], check=True)
    return folder / "draft"


def measured(pair: str, task: str, seed: str, draft: Path, n: str, runs: Path) -> pd.DataFrame:
    """Return the ensemble's cells at T = 0; decode them if they do not exist yet."""
    name = f"{pair}-{task}-{seed}"
    own = [f"model={pair}", f"model.draft={draft}", f"task={task}", f"n={n}", f"results={runs}", f"name={name}"]
    subprocess.run([sys.executable, "-m", "sdbench", *own, WS, "temperature=0", "timing=off", "report=off"], check=True)
    results = sdbench.read(runs / name)
    frame = summarise(results)
    scores = metrics_table(results, metrics_of(results))
    facts = scores[scores["metric"] == "facts"].set_index("cell")["value"]
    frame = frame[(frame["knob"] == "w") | (frame["verifier"] == "lossless")].fillna({"w": 1.0})
    # In older folders w = 1 has a separate cell.
    frame = frame.sort_values("w", ascending=False).drop_duplicates("w")
    frame = frame.assign(pair=pair, task=task, seed=seed, facts=frame["cell"].map(facts))
    return frame[[column for column in COLUMNS if column in frame]]


def main(words: Sequence[str]) -> None:
    with exit_on_mistake("embedded_seeds", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
    pair, runs, out = options["pair"], Path(options["runs"]), Path(options["out"])
    drafts = {str(pair_of(pair).seed): embedded.path(pair, "draft")}
    drafts |= {seed: trained(pair, seed, runs) for seed in options["seeds"].split(",")}
    frames = [
        measured(pair, task, seed, draft, options["n"], runs)
        for task in options["tasks"].split(",")
        for seed, draft in drafts.items()
    ]
    out.mkdir(parents=True, exist_ok=True)
    pd.concat(frames).to_csv(out / "seeds.csv", index=False)


if __name__ == "__main__":
    main(sys.argv[1:])
