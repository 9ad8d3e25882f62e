"""Train DIVERSED's head for a pair and a task, by policy gradient on the task's own score.

    python scripts/train_ensemble.py model=llama-tiny task=gsm8k-tiny [out=FOLDER] [steps=N] [prompts=N] [samples=N] [rows=N]
                                     [price=X] [decay=X] [rate=X] [seed=N] [reward=METRIC]
                                     [features=[draft_hidden,target_hidden]] [hidden=N]

Every other word is one of python -m sdbench (temperature=, num_draft=, protocol=, device=, ...); texts are sampled, by default at
temperature 1. The folder (default: results/heads/MODEL-TASK) gets the head, its card and the curve of its training; run the same
command again to go on after an interruption. Then: python -m sdbench model=... task=... verifier=diversed verifier.head=FOLDER
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.train.command import main

if __name__ == "__main__":
    sys.exit(main("ensemble", sys.argv[1:], __doc__ or ""))
