"""Do near-ties explain the lossless texts that differ from the target's? Reads the records of a run at T = 0, and its target.

    python scripts/real_near_ties.py FOLDER TARGET [dtype=bfloat16] [out=near_ties.csv]

For each text that differs: its first different token, the difference of the target's logits of the two tokens there in float32
(`gap`), and how much logits of this text change in the run's dtype between a block of tokens and single tokens (`rounding`). A gap
of at most twice `rounding` is explained by it; the exit status is 1 if a gap is larger. The run may have several lossless settings,
and may be of another engine. No text is written.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd
import torch

import sdbench
from sdbench.lm.load import find, load_model, load_tokenizer
from sdbench.lm.model import LM
from sdbench.lm.rounding import rounding_of
from sdbench.metrics.divergence import common_prefix
from sdbench.words import exit_on_mistake, parse_words

BEHIND = 48  # number of tokens on which rounding is measured
DEFAULTS = {"out": "near_ties.csv", "dtype": "bfloat16"}
COLUMNS = ["example", "num_draft", "token", "rounding", "gap", "gap_of_best_two"]


def differing(folder: Path) -> pd.DataFrame:
    """Return the target's and the lossless ids of each text that differs, with its prompt, for all lossless settings."""
    results = sdbench.read(folder)
    keys = ["example", "sample"]
    by_cell = {
        (row.verifier, row.num_draft, row.cell): results.tokens[results.tokens["cell"] == row.cell].set_index(keys)[
            "ids"
        ]
        for row in results.cells.itertuples()
        if row.verifier in ("target", "lossless")
    }
    (target,) = (texts for (verifier, _, _), texts in by_cell.items() if verifier == "target")
    settings = []
    for (verifier, num_draft, _), texts in by_cell.items():
        if verifier == "lossless":
            both = pd.concat([target, texts], axis=1, join="inner", keys=["target", "lossless"])
            differs = [not np.array_equal(row.target, row.lossless) for row in both.itertuples()]
            settings.append(both[differs].reset_index().assign(num_draft=num_draft))
    return pd.concat(settings, ignore_index=True).merge(results.examples[["example", "prompt"]], on="example")


def main(words: list[str]) -> int:
    with exit_on_mistake("real_near_ties", __doc__, words):
        given = parse_words(words, DEFAULTS)
        if len(given.paths) != 2:
            raise ValueError("name the folder of a run and its target")
    options = DEFAULTS | dict(given.options)
    texts, checkpoint = differing(Path(given.paths[0])), find(given.paths[1])
    tokenizer: Any = load_tokenizer(checkpoint)
    rows: list[dict[str, Any]] = []
    passes = ((False, options["dtype"]), (True, "float32")) if len(texts) else ()
    for is_reference, dtype in passes:
        model: Any = load_model(checkpoint, device="cpu", dtype=dtype)
        lm = LM(model, capture="off")
        for number, text in enumerate(texts.itertuples()):
            prompt, target, lossless = (
                list(map(int, ids)) for ids in (tokenizer(text.prompt)["input_ids"], text.target, text.lossless)
            )
            at = common_prefix(np.asarray(target), np.asarray(lossless))
            if is_reference:
                with torch.inference_mode():
                    logits = model(torch.tensor([[*prompt, *target[:at]]]), logits_to_keep=1).logits[0, -1]
                best = logits.topk(2).values
                rows[number] |= {
                    "gap": abs(float(logits[target[at]] - logits[lossless[at]]))
                    if at < min(len(target), len(lossless))
                    else None,
                    "gap_of_best_two": float(best[0] - best[1]),
                }
                continue
            whole = torch.tensor([*prompt, *target][: len(prompt) + BEHIND])
            rounding = rounding_of(lm, whole, len(prompt))
            rows.append({"example": text.example, "num_draft": text.num_draft, "token": at + 1, "rounding": rounding})
        del model, lm
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["is_rounding"] = table["gap"] <= 2 * table["rounding"]
    table.to_csv(options["out"], index=False, float_format="%.4g")
    print(table.to_string() if len(table) else "no text differs")
    return int(not table["is_rounding"].all())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
