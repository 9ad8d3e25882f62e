"""results/drafters/gate.md: the calibration of a confidence gate, how its errors compound, and the cost of keeping tokens unjudged.

    python scripts/gate_tables.py [temperatures=0,1] [thresholds=0.5,0.9] [lengths=2,4,8] [n=100] [records=results]
                                  [out=results/drafters]

For each temperature: `python -m sdbench.train gate` on llama-tiny and gsm8k-tiny, then `drafter=gate` with that gate at each
threshold and draft length, with the lossless rule and with `verifier=sure`, which judges only the last token of a block. Results of
training and decoding stay in `records`: after an interruption the same command continues. `out` gets gate.csv, gate.md and the
figures of calibration: gate-T0.svg and so on.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

import sdbench
from scripts.healing_tables import sdbench_command
from sdbench.metrics.columns import estimate_of
from sdbench.metrics.markup import markdown
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import format_interval
from sdbench.words import exit_on_mistake, parse_words

DEFAULTS = {
    "temperatures": "0,1",
    "thresholds": "0.5,0.9",
    "lengths": "2,4,8",
    "n": "100",
    "records": "results",
    "out": "results/drafters",
}
PAIR = ("model=llama-tiny", "task=gsm8k-tiny")
MEASURES = {
    "spared": 2,
    "drafted_per_round": 2,
    "tokens_per_round": 2,
    "quality": 1,
    "difference": 1,
}
COLUMNS = ["temperature", "threshold", "num_draft", "verifier", "n"]
COLUMNS += [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
HEAD = [
    "T",
    "threshold",
    "K",
    "rule",
    "share unjudged",
    "drafted per round",
    "tokens per round",
    "solved (%)",
    "change",
]
BLOCKS = ["T", "estimates above", "first k drafts", "blocks", "product of estimates", "all kept", "95 %"]


def line_of(row: pd.Series) -> list[str]:
    """Return a setting's line of the table; shares of examples are percentages."""
    scales = {"quality": 100, "difference": 100}
    values = row.to_dict()
    measures = [
        format_interval(estimate_of(values, name), d, scale=scales.get(name, 1)) or "–" for name, d in MEASURES.items()
    ]
    return [f"{row['temperature']:g}", f"{row['threshold']:g}", f"{row['num_draft']:g}", row["verifier"], *measures]


def blocks_of(temperature: str, calibration: Mapping[str, Any]) -> list[list[str]]:
    """Return a line for each threshold and number of drafts."""
    lines = []
    for row in calibration["blocks"]:
        if row["low"] is not None:  # blocks from more than one prompt
            above = f"{row['above']:g}" if row["above"] else "any"
            shares = [f"{row['said']:.3f}", f"{row['good']:.3f}", f"[{row['low']:.3f}, {row['high']:.3f}]"]
            lines.append([temperature, above, f"{row['drafts']}", f"{row['n']}", *shares])
    return lines


def text_of(table: pd.DataFrame, calibrations: Mapping[str, Mapping[str, Any]]) -> str:
    parts = ["# A confidence gate: calibration, errors by length, and what it costs to keep tokens unjudged", ""]
    parts += [f"llama-tiny on gsm8k-tiny, n = {table['n'].min():g}. Written by `python scripts/gate_tables.py`.", ""]
    for temperature, held_out in calibrations.items():
        auc = f"{held_out['auc']:.3f} [{held_out['low']:.3f}, {held_out['high']:.3f}]"
        parts += [
            f"At T = {temperature}: AUC {auc}, expected calibration error {held_out['ece']:.3f}, on {held_out['labels']} drafts of"
        ]
        parts += [
            f"{held_out['prompts']} prompts that the gate was not fitted to.",
            "",
            f"![Calibration](gate-T{temperature}.svg)",
            "",
        ]
    parts += [
        "## Errors by length",
        "",
        "Blocks whose first k estimates all exceed a threshold: the mean product of the estimates, and",
    ]
    parts += ["the share of blocks whose first k drafts the lossless rule kept, with a 95 % interval over prompts.", ""]
    lines = [line for temperature, held_out in calibrations.items() for line in blocks_of(temperature, held_out)]
    parts += [markdown(BLOCKS, lines).rstrip(), "", "## As a length policy, and as a lossy control", ""]
    parts += [
        "`lossless` with the gate as a length policy, and `sure`, where the target judges the last token of a block alone."
    ]
    parts += ["Change: points of solved problems against `lossless` at the same threshold and K.", ""]
    return "\n".join([*parts, markdown(HEAD, [line_of(row) for _, row in table.iterrows()]).rstrip(), ""])


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("gate_tables", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
    records, out = Path(options["records"]), Path(options["out"])
    temperatures, lengths = options["temperatures"].split(","), options["lengths"]
    calibrations, frames = {}, []
    out.mkdir(parents=True, exist_ok=True)
    for temperature in temperatures:
        gate = records / "gates" / "ModelDrafter" / f"llama-tiny-gsm8k-tiny-T{temperature}"
        if not (gate / "calibration.json").exists():
            sdbench_command("train", "gate", *PAIR, f"temperature={temperature}", f"out={gate}")
        calibrations[temperature] = json.loads((gate / "calibration.json").read_text())
        shutil.copy(gate / "calibration.svg", out / f"gate-T{temperature}.svg")
        for threshold in options["thresholds"].split(","):
            name = f"gate-T{temperature}-above-{threshold}"
            run = [
                "drafter=gate",
                f"drafter.length_head={gate}",
                f"drafter.length_threshold={threshold}",
                "verifier=sure",
            ]
            run += [
                f"num_draft=[{lengths}]",
                f"temperature={temperature}",
                f"n={options['n']}",
                "timing=off",
                "report=off",
            ]
            sdbench_command(*PAIR, *run, f"results={records}", f"name={name}")
            summary = summarise(sdbench.read(records / name))
            frames.append(
                summary[summary["drafter"].notna()].assign(threshold=float(threshold)).reindex(columns=COLUMNS)
            )
    table = pd.concat(frames)
    table.to_csv(out / "gate.csv", index=False, float_format="%.6g")
    (out / "gate.md").write_text(text_of(table, calibrations))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
