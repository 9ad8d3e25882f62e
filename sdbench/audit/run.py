"""Run an audit: print its table and its line, write its files, return the exit code of its verdict."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.audit.command import HELP, AuditCommand, parse_audit
from sdbench.config import ConfigError, show
from sdbench.hub import HubError
from sdbench.subcommand import Compose, Exit, Subcommand

if TYPE_CHECKING:
    from sdbench.audit.report import AuditReport


def backend_of(given: AuditCommand) -> Callable[[AuditCommand], AuditReport]:
    """Return the function that draws and tests the texts; only its module is imported."""
    if "generations" in given.values:
        from sdbench.audit.generations import audit_file as run
    elif given.values.get("backend") == "transformers":
        from sdbench.audit.transformers_backend import audit_generate as run
    else:
        from sdbench.audit.native import audit_engine as run
    return run


def digest_of_command(given: AuditCommand) -> str:
    """Return a digest that distinguishes this command from others of the same name; the order of its words does not count."""
    from sdbench.files import digest_of

    return digest_of("\n".join(sorted(given.argv)), digits=6)


def run_audit(given: AuditCommand) -> int:
    from sdbench.audit.report import EXIT_CODES, line_of, print_table, write_json
    from sdbench.prepare.provenance import environment

    begun = time.perf_counter()
    report = backend_of(given)(given)
    report.seconds["whole"] = round(time.perf_counter() - begun, 3)
    folder = Path(
        given.values.get("out") or Path("results") / "audit-runs" / f"{report.name}-{digest_of_command(given)}"
    )
    provenance = {
        "command": shlex.join(["python", "-m", "sdbench.audit", *given.argv]),
        "environment": environment(report.device),
    }
    tree = {"verdict": report.verdict, "tv": given.options.tv, "texts": report.texts}
    tree |= {"rows": [asdict(row) for row in report.rows]}
    write_json(folder / "audit.json", {**tree, "seconds": report.seconds, "provenance": provenance})
    print_table(report)
    for row in report.rows:
        if row.verdict == "violated":
            file = folder / f"replay-{re.sub(r'[^A-Za-z0-9.=-]+', '_', f'{row.setting}-{row.claim}')}.json"
            write_json(file, {"argv": list(given.argv), "row": asdict(row)})
            print(f"replay: python -m sdbench.audit replay={file}", file=sys.stderr)
    print(line_of(report, folder / "audit.json"))
    return EXIT_CODES[report.verdict]


def replay(file: str, compose: Compose) -> int:
    """Run a recorded command again, print the most deviating cell of the claim, and return the exit code of its verdict."""
    from sdbench.audit.report import EXIT_CODES

    try:
        tree: Any = json.loads(Path(file).read_text())
        argv, key = tuple(map(str, tree["argv"])), (tree["row"]["setting"], tree["row"]["claim"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"replay={show(file)} is not a replay file of the audit") from None
    given = parse_audit(argv, compose)
    rows = [row for row in backend_of(given)(given).rows if (row.setting, row.claim) == key]
    if not rows:
        raise ConfigError(f"replay={show(file)}: the command no longer tests {key[1]} of {key[0]}")
    for row in rows:
        print(f"{row.verdict}: {row.setting}, {row.claim}: {row.sentence}")
        if "Traceback" in row.note:
            print(row.note, file=sys.stderr)
    return EXIT_CODES[rows[0].verdict]


def run(words: Sequence[str], compose: Compose) -> int:
    given = parse_audit(words, compose)
    return replay(given.values["replay"], compose) if "replay" in given.values else run_audit(given)


COMMAND = Subcommand(
    "sdbench.audit",
    lambda _: HELP,
    run,
    mistakes=(ConfigError, HubError),
    fault=Exit.FAULT,
    interrupted="interrupted; run the same command again",
)
