"""decisions.csv of results/real with the speeds of a task's latency part, whose records are another folder's.

A sweep of w is decoded without a latency pass, so its records alone say of a safe setting only that its speed was not measured. The
decision is made again by `sdbench.metrics.recommend.decide`, from the committed loss of that setting and the committed speeds.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from scripts.real_readme import timed_name
from sdbench.metrics.columns import estimate_of, spread
from sdbench.metrics.recommend import decide
from sdbench.metrics.safety import Comparison
from sdbench.metrics.stats import NAN, Estimate
from sdbench.metrics.text import setting_of
from sdbench.metrics.weigh import Gain, Weighed
from sdbench.types import Metric


def speed_of(row: dict[str, Any], name: str) -> Estimate:
    """Return a measured ratio of a row of summary.csv."""
    return replace(estimate_of(row, name), n=int(row["num_timed"]))


def gain_of(row: dict[str, Any], lossless: list[dict[str, Any]], best: str) -> Gain:
    """Return the speed of a setting over the best lossless one and over the target alone; the time of an answer only over lossless
    with as many drafts.
    """
    alike = [base["cell"] for base in lossless if base["num_draft"] == row["num_draft"]]
    sooner = {base: speed_of(row, "sooner") for base in alike}
    return Gain({best: speed_of(row, "speedup_over_lossless")}, best, speed_of(row, "speedup"), sooner)


def decide_again(row: dict[str, Any], summary: pd.DataFrame, latency: pd.DataFrame) -> dict[str, Any]:
    """Return a row of decisions.csv with its setting decided by the speeds of `latency`; unchanged if it was not timed there, or if
    it would be shipped: that its answers come sooner than the target's own is not in these tables.
    """
    names = {timed_name(cell): cell for cell in summary[summary["num_draft"] > 0].to_dict("records")}
    timed = {cell["cell"]: cell for cell in latency.to_dict("records")}
    cell = names.get(str(row.get("setting")))
    lossless = [each for each in timed.values() if each["verifier"] == "lossless"]
    if cell is None or cell["cell"] not in timed or not lossless:
        return row
    best = max(lossless, key=lambda each: each["tokens_per_s"])["cell"]
    gain = gain_of(timed[cell["cell"]], lossless, best)
    difference = Estimate(NAN, NAN, NAN, int(row["n"]))
    test = Comparison(
        cell["cell"],
        cell["verifier"],
        setting_of(cell),
        int(cell["num_draft"]),
        difference,
        row["change"],
        row["worst"],
    )
    weighed = Weighed(
        cell["model"],
        cell["task"],
        row["text"].partition(": ")[0],
        Metric(cell["metric"]),
        curves=((test,),),
        gains={cell["cell"]: gain},
        names={each["cell"]: timed_name(each) for each in (cell, *lossless)},
        lossless={each["cell"]: speed_of(each, "speedup") for each in lossless},
    )
    advice = decide(weighed, row["margin"])
    if advice.kind == "ship":
        return row
    sooner = {**spread("sooner", gain.sooner), "num_timed": gain.sooner.n} if gain.sooner else {}
    times = {name: sooner.get(name, NAN) for name in ("sooner", "sooner_low", "sooner_high", "num_timed")}
    return {**row, "kind": advice.kind, "text": advice.text, "is_timed": True, **times}


def redecide(out: Path) -> None:
    """Write the decisions of every sweep that has a latency part."""
    for path in sorted(out.glob("*/decisions.csv")):
        latency = path.parent.with_name(f"{path.parent.name}-latency") / "summary.csv"
        if latency.exists():
            summary, timed = pd.read_csv(path.with_name("summary.csv")), pd.read_csv(latency)
            rows = [decide_again(row, summary, timed) for row in pd.read_csv(path).to_dict("records")]
            pd.DataFrame(rows).to_csv(path, index=False, float_format="%.8g")
