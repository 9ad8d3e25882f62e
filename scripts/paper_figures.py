"""The DIVERSED paper's tables and figures from records, next to the published numbers.

    python scripts/paper_figures.py results/NAME [results/OTHER …] [--out figures]

A folder that contains results folders stands for all of them. Only records are read; neither a model nor torch is loaded. The
experiments `experiment=diversed-…` create the records.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.paper.build import build_paper
from sdbench.records import SchemaError
from sdbench.words import parse_words

USAGE = "usage: python scripts/paper_figures.py results/NAME [results/OTHER …] [--out figures]"


def main(words: Sequence[str]) -> int:
    if {"-h", "--help"} & set(words):
        print(f"{__doc__}".strip())
        return 0
    try:
        given = parse_words(words, {"out": "figures"})
        if not given.paths:
            raise ValueError(f"name a results folder; {USAGE}")
        for path in build_paper(given.paths, given.options.get("out", "figures")):
            print(path)
    except (ValueError, SchemaError, OSError) as error:
        print(f"paper_figures: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
