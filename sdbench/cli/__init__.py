"""The composition root: everything is put together here, and Hydra is known nowhere else. Light to import."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sdbench.config import ConfigError
from sdbench.passes.faults import report_fault, sigterm_as_ctrl_c
from sdbench.passes.job import BAD_CONFIG, DONE, FAILED, INTERRUPTED, run_job
from sdbench.passes.track import check_login


def main(argv: Sequence[str]) -> int:
    """Runs a command line; 0 all done, 1 some cells failed or the unexpected, 2 bad configuration, 130 interrupted."""
    try:
        with sigterm_as_ctrl_c():
            return _main(argv)
    except ConfigError as error:
        print(f"sdbench: {error}", file=sys.stderr)
        return BAD_CONFIG
    except KeyboardInterrupt:
        print("sdbench: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the net: whatever it is, it is one sentence and a file
        report_fault(error, None)
        return FAILED


def _main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        from sdbench.cli.help import text

        print(text())
        return DONE
    from sdbench.cli.command import parse
    from sdbench.cli.compose import Composer

    command = parse(argv)
    if command.show == "version":
        from sdbench import __version__

        print(f"sdbench {__version__}")
        return DONE
    if command.group is not None:
        from sdbench.cli.help import listing

        print(listing(command.group, command.config_dir))
        return DONE
    composer = Composer(command.config_dir)
    jobs = composer.jobs(command)
    runs = [composer.run(job) for job in jobs]
    if command.show == "config":
        print(composer.yaml(jobs))
        return DONE
    if command.show in ("plan", "prefetch"):
        from sdbench.cli import plan as planned

        return max((planned.SHOWN[command.show](run) for run in runs), default=DONE)
    for run in runs:
        check_login(run)  # a missing library, a missing login: said before anything is decoded
    if len(jobs) == 1 and not command.is_multirun:
        return run_job(runs[0], argv)
    codes = composer.launch(jobs, command)
    return next((code for code in (INTERRUPTED, FAILED, BAD_CONFIG) if code in codes), DONE)
