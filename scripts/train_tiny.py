"""Train a tiny pair from nothing.

    python scripts/train_tiny.py pair=llama-tiny out=trained/llama-tiny [role=target] [start=FOLDER] [seed=N]

`start` is a folder with target/ as the plain parts of its recipe have left it: training then begins with the first part in a voice.
`seed` takes other first weights and other rows than the pair's own, under the same tokenizer.
Starts one process per core (two at most), or one on a GPU; run it again to resume.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.train.make import ROLES, make, pair_of
from sdbench.train.ranks import place, start

DEFAULTS = {"pair": "llama-tiny", "out": "", "role": "target,draft", "start": "", "seed": ""}


def main(arguments: list[str]) -> int:
    options = DEFAULTS | dict(a.split("=", 1) for a in arguments if "=" in a)
    unknown = set(options) - set(DEFAULTS)
    if unknown or any("=" not in a for a in arguments):
        raise ValueError(f"options are {', '.join(f'{k}=' for k in DEFAULTS)}, got {' '.join(arguments)}")
    out = Path(options["out"] or f"trained/{options['pair']}")
    if "SDBENCH_RANK" not in os.environ:
        return start(Path(__file__), arguments, out)
    with place(out) as here:
        make(
            pair_of(options["pair"]),
            out,
            here,
            [role for role in ROLES if role in options["role"].split(",")],
            Path(options["start"]) if options["start"] else None,
            int(options["seed"]) if options["seed"] else None,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
