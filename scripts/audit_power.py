"""How often each planted fault is caught by the audit at default settings: results/audit/power.{json,md}.

    python -m scripts.audit_power [runs=300] [workers=2] [out=results/audit]    # run again, it goes on with what is missing

A run decodes with the fault in place, at a seed of its own. Of the claims of the default audit those are looked at that show the
fault (results/audit/faults.md): all that are drawn by samples, so that each is held to the threshold of the default, or one that
leaves nothing to chance, whose verdict does not hang on the others. 300 of 300 shows a power of .99 with 95 % confidence.

Faults that emitted texts alone betray with that power, by the simulations of audit_family_error, are not decoded.
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

from sdbench.audit.audit import Options
from sdbench.audit.own import audit
from sdbench.audit.pairs import random_pair
from sdbench.words import number, parsed, reading
from tests.audit.faults import FAULTS

SAMPLED = ("law", "losslessness", "acceptance", "q")
EXACT = {  # what shows a fault and leaves nothing to chance
    "q from before top-p": ("q",),  # the recorded q is among what is said of q
    "q from before top-k": ("q",),
    "temperature twice in the target": ("q",),
    "state not moved with its row": ("greedy",),
    "a window one short": ("q",),
    "rows swapped in a mixed batch": ("greedy",),
}
FEW = 20  # texts of a prompt where samples are not what tells
CHUNK = 25
POWER = 0.99
DEFAULTS = {"runs": "300", "workers": "2", "out": "results/audit"}


@cache
def models() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return random_pair()


def caught(number_of_fault: int, seeds: range) -> tuple[int, list[int]]:
    """How many of these seeds are caught, and the texts that were drawn in each."""
    fault, found, texts = FAULTS[number_of_fault], 0, []
    pair = models()
    options = Options(claims=EXACT[fault.name], samples=FEW) if fault.name in EXACT else Options(claims=SAMPLED)
    for seed in seeds:
        with fault.patch():
            report = audit(fault.subject(pair, seed), options)
        found += report.verdict == "violated"
        texts.append(report.texts)
    return found, texts


def least_power(found: int, runs: int) -> float:
    """The power above which 95 % of confidence lie (Clopper and Pearson)."""
    return float(beta.ppf(0.05, found, runs - found + 1)) if found else 0.0


def simulated(out: Path) -> set[str]:
    """Faults that are found with the power that is asked for, in simulations."""
    place = out / "family_error.json"
    lines = json.loads(place.read_text())["power"] if place.exists() else []
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
            " ".join((__doc__ or "").split("\n\n")[2].split()) + " `python -m scripts.audit_power` wrote this.",
            "",
            "| fault | claims looked at | caught | power, at least |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main(argv: Sequence[str]) -> int:
    with reading("audit_power", __doc__, argv):
        given = parsed(argv, DEFAULTS)
        runs, workers = (int(number(given, name) or int(DEFAULTS[name])) for name in ("runs", "workers"))
    out, begun = Path(given.options.get("out", DEFAULTS["out"])), time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    place, lines = out / "power.json", dict[str, dict[str, Any]]()
    if place.exists():
        lines = {line["fault"]: line for line in json.loads(place.read_text())["faults"]}
    done = simulated(out)
    parts = [range(first, min(first + CHUNK, runs + 1)) for first in range(1, runs + 1, CHUNK)]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for fault, one in enumerate(FAULTS):
            if one.name in done or lines.get(one.name, {}).get("runs", 0) >= runs:
                continue
            found = list(pool.map(caught, [fault] * len(parts), parts))
            number_caught, texts = sum(count for count, _ in found), sorted(text for _, some in found for text in some)
            lines[one.name] = {
                "fault": one.name,
                "claims": list(EXACT.get(one.name, SAMPLED)),
                "runs": runs,
                "caught": number_caught,
                "least_power": round(least_power(number_caught, runs), 4),
                "median_texts": texts[runs // 2],
            }
            print(
                f"{one.name}: {number_caught} of {runs}, {time.perf_counter() - begun:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            place.write_text(json.dumps({"faults": list(lines.values())}, indent=1) + "\n")
            place.with_suffix(".md").write_text(page(list(lines.values())))
    return int(any(least_power(line["caught"], line["runs"]) < POWER for line in lines.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
