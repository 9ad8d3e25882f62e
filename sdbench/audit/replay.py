"""A violated claim can be looked at again: what was run, and the cell that deviates most."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdbench.audit.audit import Report
from sdbench.config import ConfigError, show


def write_replays(report: Report, folder: Path, argv: Sequence[str]) -> list[Path]:
    """A file for each violated claim."""
    paths = []
    for row in report.rows:
        if row.verdict != "violated":
            continue
        from sdbench.audit.table import finite

        tree = finite(json.loads(json.dumps({"argv": list(argv), "row": asdict(row)}, default=float)))
        path = folder / f"replay-{re.sub(r'[^A-Za-z0-9.=-]+', '_', f'{row.setting}-{row.claim}')}.json"
        path.write_text(json.dumps(tree, indent=1) + "\n")
        paths.append(path)
    return paths


def replay(file: str) -> int:
    """Runs the same command with this claim alone, and prints its most deviating cell."""
    from sdbench.audit.command import CODES

    try:
        tree: Any = json.loads(Path(file).read_text())
        argv, row = tree["argv"], tree["row"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"replay={show(file)} is no replay file of the audit") from None
    report = again(argv, row["claim"])
    same = [one for one in report.rows if one.setting == row["setting"] and one.claim == row["claim"]]
    for one in same:
        from sdbench.audit.table import sentence

        print(f"{one.verdict}: {one.setting}, {one.claim}: {sentence(one) if one.cell else 'nothing deviates'}")
        if "Traceback" in one.note:
            print(one.note, file=sys.stderr)
    if not same:
        raise ConfigError(f"replay={show(file)}: the command no longer tests {row['claim']} of {row['setting']}")
    return CODES[same[0].verdict]


def again(argv: Sequence[str], claim: str) -> Report:
    from sdbench.audit.build import command

    given = command(argv)
    if "generations" in given.own:
        from sdbench.audit.generations import audit_file as run
    elif given.own.get("backend") == "transformers":
        from sdbench.audit.transformers_backend import audit_mode as run
    else:
        from sdbench.audit.own import audit_own as run
    return run(given)[1]
