"""The old name of python -m sdbench.train judge, with the same options."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.train.command import main

if __name__ == "__main__":
    sys.exit(main(["judge", *sys.argv[1:]]))
