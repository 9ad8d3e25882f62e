"""The writer of the kill tests, a program of its own: python -m tests.records.writer FOLDER [examples] [pause_s] [gated]

With `gated` it makes a part for each line of its input, so that a fast machine gets no further than the test says.
It goes through a made-up sweep as the runner does: subtract, claim, decode, append, compact. What it makes is a
function of cell, example and sample only, so any number of kills must give the same records.
"""

import sys
import time
from pathlib import Path

from sdbench import plan
from sdbench.records import Store
from tests.records.synthetic import Shape, sweep

MODEL, TASK, WS = "llama-tiny", "gsm8k-tiny", (0.0, 0.5, 1.0)


def main(folder: str, examples: str = "12", pause_s: str = "0", gated: str = "") -> None:
    """Do what is missing, three prompts at a time, in parts of four records."""
    cells = sweep(MODEL, TASK, ws=WS, num_drafts=(4,), temperature=1.0)
    by_key = {cell.key: cell for cell in cells}
    shape = Shape(max_new_tokens=12)
    with Store.open(Path(folder), config={"n": int(examples)}, provenance={"w": "the target's weight"}) as store:
        store.add_cells(cells)
        todo = plan.missing(cells, [f"{i}" for i in range(int(examples))], 2, store.held())
        print("open", flush=True)
        for items in plan.share(store, todo, prompts=3, poll_s=0.05):
            for start in range(0, len(items), 4):
                time.sleep(float(pause_s))
                if gated:
                    sys.stdin.readline()
                batch = items[start : start + 4]
                store.append_generations([shape.decode(by_key[i.cell], i.example, i.sample) for i in batch])
                print("part", flush=True)
            if items and int(items[0].example) % 2 == 0:
                store.compact()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
