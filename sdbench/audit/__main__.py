"""python -m sdbench.audit"""

import os
import sys


def main() -> None:
    # Spinning OpenMP threads collapse where the cores are shared (26 times slower, measured); read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from sdbench.audit.run import main

    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    main()
