"""Run an audit: print its table and its one line, write its files, return the exit code of its verdict."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sdbench.audit.command import HELP, AuditCommand, parse_audit
from sdbench.config import ConfigError
from sdbench.hub import HubError
from sdbench.passes.faults import report_fault


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return 0
    try:
        return run_audit(parse_audit(argv))
    except (ConfigError, HubError) as error:
        print(f"sdbench.audit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sdbench.audit: interrupted; run the same command again", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - the net: whatever it is, it is one sentence and a file
        report_fault(error, None)
        return 4


def run_audit(given: AuditCommand) -> int:
    from sdbench.audit import table
    from sdbench.audit.backends import backend_of
    from sdbench.audit.replay import replay, write_replays
    from sdbench.audit.report import EXIT_CODES
    from sdbench.prepare.provenance import environment

    if "replay" in given.values:
        return replay(given.values["replay"])
    begun = time.perf_counter()
    done = backend_of(given)(given)
    report = done.report
    report.seconds["whole"] = round(time.perf_counter() - begun, 3)
    folder = Path(given.values.get("out") or Path("results") / "audit-runs" / done.name)
    words = shlex.join(["python", "-m", "sdbench.audit", *given.argv])
    file = folder / "audit.json"
    table.write_json(report, file, {"command": words, "environment": environment(done.device)})
    table.print_table(report, f"sdbench.audit: {done.name}")
    for path in write_replays(report, folder, given.argv):
        print(f"replay: python -m sdbench.audit replay={path}", file=sys.stderr)
    print(table.line_of(report, file))
    return EXIT_CODES[report.verdict]
