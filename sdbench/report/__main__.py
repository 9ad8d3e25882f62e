"""python -m sdbench.report results/NAME [results/OTHER …]"""

import sys

from sdbench.records import SchemaError
from sdbench.report import build


def main(arguments: list[str]) -> int:
    if not arguments or any(word in ("-h", "--help") for word in arguments):
        print(
            "usage: python -m sdbench.report results/NAME [results/OTHER …]",
            file=sys.stderr if not arguments else sys.stdout,
        )
        return 0 if arguments else 2
    try:
        print(build(arguments[0], arguments[1:]))
    except (ValueError, SchemaError) as error:
        print(f"sdbench.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
