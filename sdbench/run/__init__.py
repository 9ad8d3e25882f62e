"""The composition root: everything is put together here, and Hydra is known nowhere else. Light to import."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sdbench.config import ConfigError
from sdbench.run.job import BAD_CONFIG, DONE, FAILED, INTERRUPTED, run_job
from sdbench.run.track import tracker_of


def main(argv: Sequence[str]) -> int:
    """Runs a command line; 0 all done, 1 some cells failed, 2 bad configuration, 130 interrupted."""
    try:
        return _main(argv)
    except ConfigError as error:
        print(f"sdbench: {error}", file=sys.stderr)
        return BAD_CONFIG
    except KeyboardInterrupt:
        return INTERRUPTED


def _main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        from sdbench.run.help import text

        print(text())
        return DONE
    from sdbench.run.compose import Composer, parse

    command = parse(argv)
    if command.show == "version":
        from sdbench import __version__

        print(f"sdbench {__version__}")
        return DONE
    composer = Composer(command.config_dir)
    jobs = composer.jobs(command)
    runs = [composer.run(job) for job in jobs]
    if command.show == "config":
        print(composer.yaml(jobs))
        return DONE
    for run in runs:
        tracker_of(run)  # a missing library is said before anything is decoded
    if len(jobs) == 1 and not command.is_multirun:
        return run_job(runs[0], argv)
    codes = composer.launch(jobs, command)
    return next((code for code in (INTERRUPTED, FAILED, BAD_CONFIG) if code in codes), DONE)
