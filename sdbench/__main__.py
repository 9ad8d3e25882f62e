"""python -m sdbench"""

import sys


def main() -> None:
    """The console script."""
    from sdbench.run import main

    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    main()
