"""python -m sdbench.train"""

import sys

from sdbench.train.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
