"""python -m sdbench"""

import os
import sys


def main(*command: str) -> None:
    """Run the console script; `command` is the subcommand of an alias such as python -m sdbench.report."""
    # Set before torch is loaded, which reads it. If cores are shared, OpenMP threads that spin are very slow (26 times, measured).
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from sdbench.cli import main as front_door

    sys.exit(front_door([*command, *sys.argv[1:]]))


if __name__ == "__main__":
    main()
