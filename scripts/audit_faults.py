"""Audit every planted fault at several seeds, and count the texts until it is caught: results/audit/faults.{json,md}.

python scripts/audit_faults.py [out=results/audit] [seeds=3]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.audit.native import audit
from sdbench.audit.pairs import random_pair
from sdbench.words import exit_on_mistake, number, parse_words
from tests.audit.faults import FAULTS, HONEST

DEFAULTS = {"out": "results/audit", "seeds": "3"}


def main(argv: Sequence[str]) -> int:
    with exit_on_mistake("audit_faults", __doc__, argv):
        given = parse_words(argv, DEFAULTS)
        seeds = int(number(given, "seeds") or int(DEFAULTS["seeds"]))
    out = Path(given.options.get("out", DEFAULTS["out"]))
    models, lines = random_pair(), []
    for fault in [*FAULTS, *HONEST]:
        for seed in range(1, seeds + 1):
            begun = time.perf_counter()
            with fault.patch():
                report = audit(fault.subject(models, seed))
            claims = sorted({row.claim for row in report.rows if row.verdict == "violated"})
            largest = max((row.statistic for row in report.rows if row.p is not None), default=0.0)
            lines.append(
                {
                    "fault": fault.name,
                    "seed": seed,
                    "verdict": report.verdict,
                    "texts": report.texts,
                    "claims": claims,
                    "largest_log_e": str(largest) if largest == float("inf") else round(float(largest), 1),
                    "seconds": round(time.perf_counter() - begun, 1),
                }
            )
            print(lines[-1], file=sys.stderr, flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "faults.json").write_text(json.dumps(lines, indent=1) + "\n")
    (out / "faults.md").write_text(page(lines, seeds))
    missed = [line for line in lines if (line["verdict"] == "violated") == line["fault"].startswith("none")]
    return int(bool(missed))


def page(lines: Sequence[dict[str, Any]], seeds: int) -> str:
    rows = []
    for name in dict.fromkeys(line["fault"] for line in lines):
        runs = [line for line in lines if line["fault"] == name]
        caught = sum(line["verdict"] == "violated" for line in runs)
        texts = ", ".join(f"{line['texts']:,}" for line in runs)
        claims = ", ".join(sorted(set.intersection(*(set(line["claims"]) for line in runs)))) or "–"
        rows.append(f"| {name} | {caught} of {len(runs)} | {texts} | {claims} |")
    return "\n".join(
        [
            "# Planted faults",
            "",
            f"Each fault wraps a rule, a drafter or the engine from outside (`tests/audit/faults.py`) and is audited with the "
            f"default options at {seeds} seeds. Texts: how many were drawn, over all settings, until every setting was refuted or "
            "the power was reached. Claims: those violated at every seed. Written by `python scripts/audit_faults.py`.",
            "",
            "| fault | caught | texts drawn | violated claims |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
