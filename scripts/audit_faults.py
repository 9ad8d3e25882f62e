"""Samples until each planted fault is caught, at three seeds: results/audit/faults.{json,md}.

python -m scripts.audit_faults [out=results/audit] [seeds=3]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdbench.audit.own import audit
from sdbench.audit.pairs import random_pair
from tests.audit.faults import FAULTS, HONEST


def main(argv: Sequence[str]) -> int:
    given = dict(word.split("=", 1) for word in argv)
    out, seeds = Path(given.get("out", "results/audit")), int(given.get("seeds", 3))
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
        own = [line for line in lines if line["fault"] == name]
        caught = sum(line["verdict"] == "violated" for line in own)
        texts = ", ".join(f"{line['texts']:,}" for line in own)
        claims = ", ".join(sorted(set.intersection(*(set(line["claims"]) for line in own)))) or "–"
        rows.append(f"| {name} | {caught} of {len(own)} | {texts} | {claims} |")
    return "\n".join(
        [
            "# Planted faults",
            "",
            f"Each fault is a wrapper from outside (`tests/audit/faults.py`), audited at default settings with {seeds} seeds. "
            "Texts are "
            "those drawn of all settings until the last of them was refuted or the power was reached; claims are those violated at "
            "every seed. `python -m scripts.audit_faults` wrote this.",
            "",
            "| fault | caught | texts drawn | violated claims |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
