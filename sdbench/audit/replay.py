"""Replay files: a violated claim can be tested again, with the cell that deviates most."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdbench.audit.backends import backend_of
from sdbench.audit.command import parse_audit
from sdbench.audit.report import EXIT_CODES, AuditReport
from sdbench.audit.table import finite, sentence_of
from sdbench.config import ConfigError, show


def write_replays(report: AuditReport, folder: Path, argv: Sequence[str]) -> list[Path]:
    """Write a file for each violated claim."""
    paths = []
    for row in report.rows:
        if row.verdict == "violated":
            tree = finite(json.loads(json.dumps({"argv": list(argv), "row": asdict(row)}, default=float)))
            paths.append(folder / f"replay-{re.sub(r'[^A-Za-z0-9.=-]+', '_', f'{row.setting}-{row.claim}')}.json")
            paths[-1].write_text(json.dumps(tree, indent=1) + "\n")
    return paths


def replay(file: str) -> int:
    """Run the recorded command again, print the most deviating cell of the claim, and return the exit code of its verdict."""
    try:
        tree: Any = json.loads(Path(file).read_text())
        argv, row = tree["argv"], tree["row"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"replay={show(file)} is not a replay file of the audit") from None
    given = parse_audit(argv)
    rows = [r for r in backend_of(given)(given).report.rows if (r.setting, r.claim) == (row["setting"], row["claim"])]
    for result in rows:
        sentence = sentence_of(result) if result.cell else "nothing deviates"
        print(f"{result.verdict}: {result.setting}, {result.claim}: {sentence}")
        if "Traceback" in result.note:
            print(result.note, file=sys.stderr)
    if not rows:
        raise ConfigError(f"replay={show(file)}: the command no longer tests {row['claim']} of {row['setting']}")
    return EXIT_CODES[rows[0].verdict]
