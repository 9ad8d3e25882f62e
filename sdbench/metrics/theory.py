"""What the mathematics says, beside what was measured.

For the static ensemble acceptance = 1 − w·E[TV] and bias = (1 − w)·E[TV] at the positions the rule itself visited; for
every token-wise rule acceptance <= 1 − TV(p,q) + TV(out,p). From a lossless run's recorded p and q the accepted tokens
a round of any other w follow at the *contexts of the lossless run*: a prediction, not a measurement.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sdbench.metrics.summary import BASELINES
from sdbench.records import Results

CONTEXTS = "contexts of the lossless run"


def laws(summary: pd.DataFrame) -> pd.DataFrame:
    """A row a swept cell: measured acceptance and bias, the ensemble's laws of them, and the token-wise bound."""
    rows = summary[
        ~summary["verifier"].isin([name for name in BASELINES if name != "lossless"]) & summary["tv"].notna()
    ]
    names = [
        "model",
        "task",
        "verifier",
        "w",
        "num_draft",
        "n",
        "acceptance",
        "acceptance_expected",
        "bias",
        "tv",
        "cell",
    ]
    frame = rows[names].copy()
    weight = frame["w"].where(frame["verifier"] != "lossless", 1.0)
    frame["acceptance_law"] = 1 - weight * frame["tv"]
    frame["bias_law"] = (1 - weight) * frame["tv"]
    frame["acceptance_bound"] = 1 - frame["tv"] + frame["bias"]
    return frame.reset_index(drop=True)


def predicted(results: Results, ws: ArrayLike | None = None) -> pd.DataFrame:
    """Accepted tokens and tokens a round for every w, from each lossless run's drafted p and q; a row a cell and w."""
    grid = np.linspace(0, 1, 21) if ws is None else np.asarray(ws, dtype=np.float64)
    cells = results.cells
    lossless = cells[(cells["verifier"] == "lossless") | (cells["is_lossless"] & ~cells["verifier"].isin(BASELINES))]
    lossless = lossless.drop_duplicates(["model", "task", "num_draft", "temperature"])
    tokens, rounds = results.tokens, results.rounds
    found = []
    for _, cell in lossless.iterrows():
        own = tokens[(tokens["cell"] == cell["cell"]) & tokens["p"].notna()]
        if own.empty:
            continue
        p, q = (np.concatenate([np.asarray(values) for values in own[name]]) for name in ("p", "q"))
        drafted = rounds.loc[rounds["cell"] == cell["cell"], "drafted"].to_numpy()
        for w in grid:
            accepted = expected_accepted(p, q, drafted, float(w))
            row = {name: cell[name] for name in ("model", "task", "num_draft", "temperature", "cell")}
            found.append({**row, "w": float(w), "accepted_per_round": accepted, "tokens_per_round": 1 + accepted})
    frame = pd.DataFrame(
        found,
        columns=["model", "task", "num_draft", "temperature", "cell", "w", "accepted_per_round", "tokens_per_round"],
    )
    return frame.assign(label=CONTEXTS)


def expected_accepted(p: np.ndarray, q: np.ndarray, drafted: np.ndarray, w: float) -> float:
    """Mean over blocks of Σᵢ ∏ⱼ≤ᵢ min(1, 1 − w + w·p/q), p and q flat over blocks of `drafted` tokens."""
    keep = np.minimum(1, 1 - w + w * p / np.maximum(q, 1e-300))
    rounds = np.repeat(np.arange(len(drafted)), drafted)
    slot = np.arange(len(keep)) - np.repeat(np.cumsum(drafted) - drafted, drafted)
    table = np.zeros((len(drafted), int(drafted.max(initial=0))))
    table[rounds, slot] = keep
    return float(np.cumprod(table, axis=1).sum() / max(len(drafted), 1))
