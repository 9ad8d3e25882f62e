"""Distil a pair's draft: its weights are trained towards the target's laws on texts that it samples itself.

    python scripts/distill_draft.py model=llama-tiny task=gsm8k-tiny [loss=forward_kl|reverse_kl|tv|overlap] [out=FOLDER]
                                    [steps=N] [prompts=N] [rate=X] [seed=N] [rows=N]

Every other word is one of python -m sdbench. The folder (default: results/drafts/MODEL-TASK-LOSS) is an ordinary model; run the
same command again to go on after an interruption. Then: python -m sdbench model=... model.draft=FOLDER task=...
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.train.command import main

if __name__ == "__main__":
    sys.exit(main("distil", sys.argv[1:], __doc__ or ""))
