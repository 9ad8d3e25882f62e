"""The DIVERSED paper's tables and figures from records, beside the published numbers.

    python scripts/paper_figures.py results/NAME [results/OTHER …] [--out figures]

A folder of results folders counts for all in it. Reads records alone: no model, no torch. `experiment=` configs make the records.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.records import SchemaError
from sdbench.report.paper import build_paper

USAGE = "usage: python scripts/paper_figures.py results/NAME [results/OTHER …] [--out figures]"


def parsed(words: Sequence[str]) -> tuple[list[str], str]:
    """Folders and where to."""
    folders, out = [], "figures"
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name == "--out":
            out = value if equals else next(rest, "")
            if not out:
                raise ValueError("--out needs a folder, for example --out figures")
        elif word.startswith("-"):
            raise ValueError(f"{word} is not an option; {USAGE}")
        else:
            folders.append(word)
    if not folders:
        raise ValueError(f"name a results folder; {USAGE}")
    return folders, out


def main(words: Sequence[str]) -> int:
    if {"-h", "--help"} & set(words):
        print(f"{__doc__}".strip())
        return 0
    try:
        folders, out = parsed(words)
        for path in build_paper(folders, out):
            print(path)
    except (ValueError, SchemaError, OSError) as error:
        print(f"paper_figures: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
