"""What the theory predicts, to be compared with measurements.

For the static ensemble acceptance = 1 − w·E[TV] and bias = (1 − w)·E[TV] at the positions that the rule visited; for every
token-wise rule acceptance <= 1 − TV(p,q) + TV(out,p). From a lossless run's recorded p and q the accepted tokens per round at
any other w follow at the *contexts of the lossless run*: a prediction, not a measurement.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sdbench.metrics.cells import BASELINES, table_of
from sdbench.metrics.columns import WEIGHT, spread, spread_names
from sdbench.metrics.stats import Array, ratio_interval
from sdbench.records import Results

CONTEXTS = "contexts of the lossless run"
LABELS = ("model", "task", "drafter", "num_draft", "temperature")
LAW_COLUMNS = (
    *("model", "task", "verifier", WEIGHT, "drafter", "num_draft", "n"),
    *("acceptance", "acceptance_expected", "bias", "tv", "cell"),
)


def has_law(cells: pd.DataFrame) -> pd.Series:
    """Return whether the laws of the ensemble of probabilities hold for a cell: not for another rule with a knob called w."""
    is_mixed = (cells["verifier"] == "ensemble") & ~cells["knobs"].fillna("").astype(str).str.contains("mix=logit")
    return is_mixed | (cells["verifier"] == "lossless")


def laws(summary: pd.DataFrame) -> pd.DataFrame:
    """Return one row per swept cell: measured acceptance and bias, the ensemble's theory, and the token-wise bound.

    A greedy rule records no bias, and the theory does not hold for it.
    """
    is_swept = ~summary["verifier"].isin(set(BASELINES) - {"lossless"})
    frame = summary.loc[is_swept & summary["tv"].notna(), list(LAW_COLUMNS)].copy()
    weight = frame[WEIGHT].where(frame["verifier"] != "lossless", 1.0).where(has_law(summary).loc[frame.index])
    weight = weight.where(frame["bias"].notna())
    frame["acceptance_law"] = 1 - weight * frame["tv"]
    frame["bias_law"] = (1 - weight) * frame["tv"]
    frame["acceptance_bound"] = 1 - frame["tv"] + frame["bias"]
    return frame.reset_index(drop=True)


def predict(results: Results, ws: ArrayLike | None = None, *, resamples: int = 1_000, seed: int = 0) -> pd.DataFrame:
    """Return acceptance and accepted tokens per round for every w from the p and q of each sampled lossless run."""
    grid = np.linspace(0, 1, 21) if ws is None else np.asarray(ws, dtype=np.float64)
    cells = table_of(results.cells)
    lossless = cells[(cells["verifier"] == "lossless") | (cells["is_lossless"] & ~cells["verifier"].isin(BASELINES))]
    lossless = lossless[(lossless["num_draft"] > 0) & (lossless["temperature"] > 0)]  # greedy readings accept otherwise
    lossless = lossless.drop_duplicates(["sweep", "drafter", "num_draft"])
    options = {"resamples": resamples, "seed": seed}
    rows = []
    for key, cell in lossless.iterrows():
        tokens = results.tokens[(results.tokens["cell"] == key) & results.tokens["p"].notna()]
        if tokens.empty:
            continue
        blocks = results.rounds[results.rounds["cell"] == key].merge(tokens[["example", "sample"]])
        p, q = (np.concatenate([np.asarray(values) for values in tokens[name]]) for name in ("p", "q"))
        codes, examples = pd.factorize(blocks["example"], sort=True)
        for w in grid:
            accepted, examined = expected_counts(p, q, blocks["drafted"].to_numpy(), float(w))
            sums = [np.bincount(codes, values, len(examples)) for values in (accepted, examined)]
            num_rounds = np.bincount(codes, minlength=len(examples))
            row = {**{name: cell[name] for name in LABELS}, "cell": key, WEIGHT: float(w), "n": len(examples)}
            for name, den, most in (("acceptance", sums[1], 1), ("accepted_per_round", num_rounds, cell["num_draft"])):
                row |= spread(name, ratio_interval(sums[0], den, bounds=(0, most), **options))  # type: ignore[arg-type]
            rows.append(row)
    names = spread_names(("acceptance", "accepted_per_round"))
    return pd.DataFrame(rows, columns=[*LABELS, "cell", WEIGHT, "n", *names]).assign(label=CONTEXTS)


def expected_counts(p: Array, q: Array, drafted: NDArray[np.int64], w: float) -> tuple[Array, Array]:
    """Return for each block accepted Σᵢ ∏ⱼ≤ᵢ aⱼ and examined Σᵢ ∏ⱼ<ᵢ aⱼ, aⱼ = min(1, 1 − w + w·p/q); p, q flat over blocks."""
    keep = np.minimum(1, 1 - w + w * p / np.maximum(q, 1e-300))
    rounds = np.repeat(np.arange(len(drafted)), drafted)
    slot = np.arange(len(keep)) - np.repeat(np.cumsum(drafted) - drafted, drafted)
    table = np.zeros((len(drafted), int(drafted.max(initial=0)) + 1))
    table[rounds, slot + 1] = keep
    table[:, 0] = 1.0
    reached = np.cumprod(table, axis=1)  # [R,K+1]: the chance that slot k+1 is examined
    is_drafted = np.arange(table.shape[1] - 1) < drafted[:, None]
    return reached[:, 1:].sum(1), (reached[:, :-1] * is_drafted).sum(1)
