"""The command line. Only this package imports Hydra, and importing the package itself is fast.

python -m sdbench [run] …
python -m sdbench report|score|audit|train|runs …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sdbench.imports import import_object

if TYPE_CHECKING:
    from sdbench.config import Run

COMMANDS: Mapping[str, str] = {
    "run": "sdbench.cli.run.COMMAND",
    "report": "sdbench.report.command.COMMAND",
    "score": "sdbench.score.COMMAND",
    "audit": "sdbench.audit.run.COMMAND",
    "train": "sdbench.train.command.COMMAND",
    "runs": "sdbench.runs.COMMAND",
}


def main(words: Sequence[str]) -> int:
    """Run a command line and return its exit code. Without the name of a subcommand it is a run."""
    name, rest = (words[0], words[1:]) if words and words[0] in COMMANDS else ("run", words)
    return import_object(COMMANDS[name])(rest, compose_run)


def compose_run(words: Sequence[str]) -> Run:
    """Compose the run that KEY=VALUE words describe. ConfigError if they describe several runs, or ask for anything else."""
    from sdbench.cli.compose import compose_one

    return compose_one(words)
