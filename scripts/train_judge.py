"""Train a judge for a pair and a task: mine labels by letting one wrong draft pass at a time, and fit a logistic head.

    python scripts/train_judge.py model=llama-tiny task=gsm8k-tiny [out=FOLDER] [prompts=N] [swaps=N] [features=[token_hidden]]
                                  [reward=METRIC]

Every other word is one of python -m sdbench. Labels come from the train split, at temperature 0. The folder (default:
results/judges/MODEL-TASK) gets the head, its card, and a reliability figure from prompts that were not learned from; run the same
command again to go on after an interruption. Then: python -m sdbench model=... task=... verifier=judge verifier.head=FOLDER
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.train.command import main

if __name__ == "__main__":
    sys.exit(main("judge", sys.argv[1:], __doc__ or ""))
