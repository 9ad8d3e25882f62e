"""python -m sdbench"""

import os
import sys


def main(*command: str) -> None:
    """The console script; `command` names a subcommand for the aliases such as python -m sdbench.report."""
    # Spinning OpenMP threads collapse where the cores are shared (26 times slower, measured); read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from sdbench.cli import main as front_door

    sys.exit(front_door([*command, *sys.argv[1:]]))


if __name__ == "__main__":
    main()
