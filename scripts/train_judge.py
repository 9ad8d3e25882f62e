"""The old name of python -m sdbench.train judge, with the same options."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.__main__ import main

if __name__ == "__main__":
    main("train", "judge")
