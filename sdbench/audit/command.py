"""The command itself: what it prints, what it writes, how it ends."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdbench.config import ConfigError, show
from sdbench.hub import HubError
from sdbench.passes.faults import report_fault

SOUND, VIOLATED, BAD_CONFIG, TOO_FEW, FAULT, INTERRUPTED = 0, 1, 2, 3, 4, 130
CODES = {"sound": SOUND, "violated": VIOLATED, "too few": TOO_FEW}
HELP = """\
sdbench.audit: does it emit the law it claims? Every claim of a rule, a drafter or an engine, as a test with known power.

  python -m sdbench.audit [KEY=VALUE ...] [--config-dir DIR]

  python -m sdbench.audit                                          our default rule and drafter on a tiny random pair
  python -m sdbench.audit verifier=typical model=llama-tiny temperature=0.7 top_p=0.9
  python -m sdbench.audit verifier._target_=mine.Rule drafter._target_=mine.Drafter
  python -m sdbench.audit backend=transformers mode=assistant      or ensemble, universal, lookup, early_exit
  python -m sdbench.audit generations=theirs.jsonl model=llama-tiny   texts that another engine sampled

Options of its own; all others are those of python -m sdbench --help
  model=NAME      a trained pair; without it a random pair of 4 ids, whose texts are enumerated
  backend=NAME    sdbench, or transformers: its own generate, in mode=, on a pair that the mode makes           (sdbench)
  generations=F   one JSON object a line: {"prompt": text or ids, "tokens": ids} or "completion": text; of one law, sampled
                  independently, several for each prompt
  tv=X            the total variation that is to be found with probability .95                                  (0.05)
  samples=N       the most texts of a prompt and setting, in place of what tv needs
  claims=[A,B]    of law, losslessness, q, acceptance, prefixes, pit, knob, invariance, greedy, counters         (all)
  out=DIR         where audit.json and replay files go                                             (results/audit-runs/NAME)
  replay=FILE     decodes again what a violated claim was found in, and shows the first deviating cell

Of a rule whose knobs are not named, the strict end and the middle of its sweep are audited; the temperature is 1 unless another
is named.
Exit codes: 0 sound, 1 a claim is violated, 2 bad configuration, 3 not enough samples to tell, 4 a fault of
the audit itself, which is no verdict. docs/audit.md says how to read it.
"""


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return SOUND
    try:
        return _main(list(argv))
    except (ConfigError, HubError) as error:
        print(f"sdbench.audit: {error}", file=sys.stderr)
        return BAD_CONFIG
    except KeyboardInterrupt:
        print("sdbench.audit: interrupted; run the same command again", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the net: whatever it is, it is one sentence and a file
        report_fault(error, None)
        return FAULT


def _main(argv: list[str]) -> int:
    from sdbench.audit.build import command

    given = command(argv)
    if "replay" in given.own:
        from sdbench.audit.replay import replay

        return replay(given.own["replay"])
    backend = given.own.get("backend", "sdbench")
    if backend not in ("sdbench", "transformers"):
        raise ConfigError(f"backend cannot be {show(backend)} (choices: sdbench, transformers)")
    if "mode" in given.own and backend != "transformers":
        raise ConfigError("mode= is of backend=transformers: write both")
    begun = time.perf_counter()
    if "generations" in given.own:
        from sdbench.audit.generations import audit_file as run
    elif backend == "transformers":
        from sdbench.audit.transformers_backend import audit_mode as run
    else:
        from sdbench.audit.own import audit_own as run
    name, report, device = run(given)
    report.seconds["whole"] = round(time.perf_counter() - begun, 3)
    return finish(argv, given.own, name, report, device)


def finish(argv: Sequence[str], own: Any, name: str, report: Any, device: Any) -> int:
    """The table, the files, the line."""
    from sdbench.audit import table
    from sdbench.audit.replay import write_replays
    from sdbench.prepare.provenance import environment

    folder = Path(own.get("out") or Path("results") / "audit-runs" / name)
    words = shlex.join(["python", "-m", "sdbench.audit", *argv])
    file = folder / "audit.json"
    table.write(report, file, {"command": words, "environment": environment(device)})
    table.show(report, f"sdbench.audit: {name}")
    for path in write_replays(report, folder, argv):
        print(f"replay: python -m sdbench.audit replay={path}", file=sys.stderr)
    print(table.line(report, file))
    return CODES[report.verdict]
