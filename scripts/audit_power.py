"""Count how often the audit catches each planted fault at its default settings: results/audit/power.{json,md}.

    python scripts/audit_power.py [runs=300] [workers=2] [out=results/audit]    # run again to continue after an interruption

Each run decodes with the fault in place, at its own seed. It tests those claims of the default audit that show the fault
(results/audit/faults.md): all sampled claims, so that each has the threshold of the default audit, or one exact check, whose
verdict does not depend on the others. 300 of 300 shows a power of .99 with 95 % confidence.

A fault is not decoded if audit_family_error catches it with that power in its simulations, from the emitted texts and the number of
drafts that each round kept.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.audit.command import AuditOptions
from sdbench.audit.native import audit
from sdbench.audit.pairs import random_pair
from sdbench.words import exit_on_mistake, number, parse_words
from tests.audit.faults import FAULTS

SAMPLED = ("law", "losslessness", "acceptance", "q")
EXACT = {  # the exact check that shows a fault
    "q from before top-p": ("q",),  # claims=[q] includes the check of the recorded q
    "q from before top-k": ("q",),
    "temperature twice in the target": ("q",),
    "state not moved with its row": ("greedy",),
    "a window one short": ("q",),
    "rows swapped in a mixed batch": ("greedy",),
}
FEW = 20  # texts per prompt if an exact check decides
CHUNK = 25
POWER = 0.99
DEFAULTS = {"runs": "300", "workers": "2", "out": "results/audit"}


@cache
def models() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return random_pair()


def count_caught(index: int, seeds: range) -> tuple[int, list[int]]:
    """Return at how many of these seeds the fault is caught, and the texts drawn for each."""
    fault, num_caught, texts = FAULTS[index], 0, []
    pair = models()
    options = (
        AuditOptions(claims=EXACT[fault.name], samples=FEW) if fault.name in EXACT else AuditOptions(claims=SAMPLED)
    )
    for seed in seeds:
        with fault.patch():
            report = audit(fault.subject(pair, seed), options)
        num_caught += report.verdict == "violated"
        texts.append(report.texts)
    return num_caught, texts


def least_power(caught: int, runs: int) -> float:
    """Return the one-sided lower 95 % confidence limit of the power (Clopper and Pearson)."""
    return float(beta.ppf(0.05, caught, runs - caught + 1)) if caught else 0.0


def faults_caught_in_simulations(out: Path) -> set[str]:
    """Return the faults that the simulations catch with the required power."""
    path = out / "family_error.json"
    lines = json.loads(path.read_text())["power"] if path.exists() else []
    return {line["fault"] for line in lines if least_power(line["caught"], line["runs"]) >= POWER}


def page(lines: Sequence[dict[str, Any]]) -> str:
    rows = [
        f"| {one['fault']} | {', '.join(one['claims'])} | {one['caught']} of {one['runs']} | {one['least_power']:.3f} |"
        for one in lines
    ]
    return "\n".join(
        [
            "# The power of the audit",
            "",
            " ".join((__doc__ or "").split("\n\n")[2].split()) + " Written by `python scripts/audit_power.py`.",
            "",
            "| fault | claims tested | caught | power, at least |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main(argv: Sequence[str]) -> int:
    with exit_on_mistake("audit_power", __doc__, argv):
        given = parse_words(argv, DEFAULTS)
        runs, workers = (int(number(given, name) or int(DEFAULTS[name])) for name in ("runs", "workers"))
    out, begun = Path(given.options.get("out", DEFAULTS["out"])), time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    path, lines = out / "power.json", dict[str, dict[str, Any]]()
    if path.exists():
        lines = {line["fault"]: line for line in json.loads(path.read_text())["faults"]}
    done = faults_caught_in_simulations(out)
    parts = [range(first, min(first + CHUNK, runs + 1)) for first in range(1, runs + 1, CHUNK)]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for index, fault in enumerate(FAULTS):
            if fault.name in done or lines.get(fault.name, {}).get("runs", 0) >= runs:
                continue
            counts = list(pool.map(count_caught, [index] * len(parts), parts))
            num_caught, texts = sum(count for count, _ in counts), sorted(size for _, sizes in counts for size in sizes)
            lines[fault.name] = {
                "fault": fault.name,
                "claims": list(EXACT.get(fault.name, SAMPLED)),
                "runs": runs,
                "caught": num_caught,
                "least_power": round(least_power(num_caught, runs), 4),
                "median_texts": texts[runs // 2],
            }
            seconds = time.perf_counter() - begun
            print(f"{fault.name}: {num_caught} of {runs}, {seconds:.0f} s", file=sys.stderr, flush=True)
            path.write_text(json.dumps({"faults": list(lines.values())}, indent=1) + "\n")
            path.with_suffix(".md").write_text(page(list(lines.values())))
    return int(any(least_power(line["caught"], line["runs"]) < POWER for line in lines.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
