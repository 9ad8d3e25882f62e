"""The learned weight of a real pair: what its head reads off the target's entropy, and what results/real/README.md says of it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from sdbench.metrics.quality import difference
from sdbench.metrics.text import format_interval
from sdbench.types import Metric
from sdbench.verify.head import Head

COMMITTED = Path(__file__).parents[2] / "results/real"
BLEU = Metric("bleu", "points", stats="bleu")
pytestmark = pytest.mark.results


def prose() -> str:
    """The bullet of README.md on the learned weight, without its line breaks."""
    text = " ".join((COMMITTED / "README.md").read_text().split())
    return text.partition("learned a threshold")[2].partition("Leniency while the model reasons")[0]


def test_the_weight_falls_from_the_targets_to_the_drafts_between_1_and_2_nats():
    head = Head.load(str(COMMITTED / "wmt-head"), "ensemble")
    nats = torch.tensor([[0.5], [1.0], [1.5], [2.0]])
    shown = [f"{w:.2g}" if w < 0.5 else f"{w:.3f}" for w in torch.sigmoid(head.score(nats)).flatten().tolist()]
    assert shown == ["0.999", "0.993", "0.43", "0.0071"]
    assert "Its w is .999 at 0.5 nats, .993 at 1, .43 at 1.5 and .007 at 2" in prose()


def test_the_training_is_what_the_readme_says():
    curve = pd.read_csv(COMMITTED / "wmt-head/curve.csv")
    first, last = (part[["reward", "acceptance"]].mean().tolist() for part in (curve[:10], curve[-10:]))
    words = (
        f"reward rose from .{1000 * first[0]:.0f} to .{1000 * last[0]:.0f}, "
        f"and acceptance went from .{100 * first[1]:.0f} to .{100 * last[1]:.0f}"
    )
    assert words in prose()
    assert len(curve) == 50


Rows = Callable[[tuple[str, float]], pd.DataFrame]


def summary_and_rows(folder: str) -> tuple[pd.DataFrame, Rows]:
    """The table of a run by rule and value, and a function that returns the statistics of BLEU of each text of a setting."""
    summary = pd.read_csv(COMMITTED / folder / "summary.csv").set_index(["verifier", "value"])
    scores = pd.read_parquet(COMMITTED / folder / "scores.parquet").set_index("example")

    def rows(setting: tuple[str, float]) -> pd.DataFrame:
        stats = scores.loc[scores["cell"] == summary.loc[setting, "cell"], "stats"].sort_index()
        return pd.DataFrame(np.stack(stats.to_list()), index=stats.index)

    return summary, rows


def test_at_temperature_1_it_beats_one_number_in_bleu_as_the_readme_says():
    summary, rows = summary_and_rows("wmt-T1-learned")
    number = ("ensemble", 0.5)
    metrics = pd.read_csv(COMMITTED / "wmt-T1-learned/metrics.csv").set_index(["cell", "metric"])["value"]
    names, lossless = summary["cell"].to_dict(), summary["cell"].xs("lossless").iloc[0]
    chrf = {name: metrics[names[name], "chrf2"] for name in (("diversed", 0.0), ("diversed", -3.0), number)}
    assert f"| w = 0.5 | {summary.loc[number, 'tokens_per_round']:.2f} | – | – |" in prose()
    for setting, words in ((("diversed", 0.0), "the head, offset 0"), (("diversed", -3.0), "the head, offset −3")):
        more = difference(rows(setting), rows(number), BLEU)
        assert more.low > 0
        tokens = summary.loc[setting, "tokens_per_round"]
        shown = f"| {words} | {tokens:.2f} | {format_interval(more, 1)} | {chrf[setting] - chrf[number]:.1f} ["
        assert shown in prose()
    over_lossless = summary.loc[("diversed", 0.0), ["difference", "difference_low", "difference_high"]].astype(float)
    assert "{:.1f} points more of BLEU [{:.1f}, {:.1f}]".format(*over_lossless).replace("-", "−") in prose()
    assert f"{metrics[lossless, 'chrf2'] - chrf['diversed', 0.0]:.1f} less of chrF [" in prose()


def test_what_it_costs_beside_one_number_is_what_the_readme_says():
    summary, rows = summary_and_rows("wmt-learned")

    learned, number = ("diversed", 0.0), ("ensemble", 0.3)
    shown = format_interval(difference(rows(learned), rows(number), BLEU), 1).replace("-", "−")
    assert f"the difference of {shown.replace(' [', ' points [')} is not shown to be one" in prose()
    for setting in (learned, number, ("diversed", 3.0), ("ensemble", 0.5)):
        assert f"{summary.loc[setting, 'tokens_per_round']:.2f}" in prose()
    for setting in (learned, number, ("diversed", 3.0)):
        loss = -summary.loc[setting, ["difference", "difference_high", "difference_low"]].astype(float)
        assert all(f"{value:.1f}" in prose() for value in loss)
