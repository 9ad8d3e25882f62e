"""Train a judge from mined labels, as AutoJudge (arXiv:2504.20039): accept one wrong draft token, decode on, and compare scores.

At temperature 0, a wrong draft token is one that the lossless rule rejects. `Swap(n)` accepts the n-th wrong token of a text and
decodes losslessly before and after it, so all swaps of a prompt are decoded in one stream and share its prefill. The label of a
swapped token is good if the score of its text is at least that of the lossless text. A text that differs from the lossless one
before its swapped token has no label.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdbench.config import ConfigError
from sdbench.files import write_whole
from sdbench.metrics.stats import Estimate
from sdbench.train.recipes import JudgeRecipe
from sdbench.train.recorder import num_decided
from sdbench.train.setup import Rollout, group_by
from sdbench.train.trainer import Trainer
from sdbench.types import Evidence, Limits, Verdict
from sdbench.verify import Exact, Head, Joint, Judge
from sdbench.verify.head import width_of
from sdbench.verify.tokenwise import best_at, draw_bonus, keep_until_first_rejection, offered_slots

HELD_OUT = 5  # every fifth prompt is held out
PENALTY = 1.0  # on the squared weights of standardised features
RESAMPLES = 2000
BINS = 8


@dataclass(frozen=True, slots=True)
class Swap(Joint):
    """Exact match at temperature 0, except that the n-th wrong draft of a text is accepted. The state counts wrong drafts."""

    limits = Limits(temperature="zero")

    n: int | Tensor = 0

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor:
        return torch.zeros(len(prompts), 1, dtype=torch.int64, device=device)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        assert state is not None, "the engine passes the state that init_state returned"
        if not evidence.draft.tokens.shape[1]:
            return draw_bonus(evidence, u, state)
        wrong = (evidence.draft.tokens != evidence.p[:, :-1]) & offered_slots(evidence.draft)
        count = state + wrong.long().cumsum(1)  # [B,K], number of wrong drafts up to and including this slot
        passes = count - 1 == torch.as_tensor(self.n, device=u.device).reshape(-1, 1)
        verdict = keep_until_first_rejection(~wrong | passes, evidence, best_at, u)
        last = verdict.accepted.clamp_max(wrong.shape[1] - 1)[:, None]
        return replace(verdict, state=count.gather(1, last))


@dataclass(frozen=True)
class Labels:
    """N labelled tokens: features, whether the token is good, number of the prompt."""

    features: Tensor  # [N,n]
    good: Tensor  # [N] bool
    prompt: Tensor  # [N]

    def __getitem__(self, rows: Tensor) -> "Labels":
        return Labels(self.features[rows], self.good[rows], self.prompt[rows])


class JudgeTraining(Trainer[JudgeRecipe]):
    """Mines labels in steps, then fits a judge and measures its calibration on held-out prompts."""

    name, checkpoint_every, report_every = "labels", 1, 1

    def progress(self) -> str:
        return f"labels {sum(len(good) for _, good, _ in self.rows)}"

    def step(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Mine the labels of some prompts."""
        recipe = self.recipe
        first = step * recipe.at_once
        keys = list(self.setup.prompts.ids)[first : min(first + recipe.at_once, recipe.prompts)]
        rules = [Exact(), *(Swap(n) for n in range(recipe.swaps))]
        rollouts = self.setup.roll_out(keys, rules, 1, 0, recipe.features)
        rows, good, prompts = [], [], []
        for number, (lossless, *swapped) in enumerate(group_by(rollouts, len(rules)), first):
            for rollout in swapped:
                row = swapped_row(lossless, rollout)
                if row is not None:
                    rows.append(rollout.recording.features[row])
                    good.append(rollout.reward >= lossless.reward)
                    prompts.append(number)
        size = width_of(recipe.features, self.setup.widths())
        features = torch.stack(rows) if rows else torch.zeros(0, size)
        return features, torch.tensor(good, dtype=torch.bool), torch.tensor(prompts, dtype=torch.long)

    def save(self) -> None:
        labels = Labels(*map(torch.cat, zip(*self.rows, strict=True)))
        is_held_out = labels.prompt % HELD_OUT == 0
        weights = fit_judge(labels[~is_held_out])
        calibration = calibrate(Head("judge", self.recipe.features, weights).score, labels[is_held_out])
        facts = {
            **self.setup.quantizations(),
            "rule": Judge.version,
            "labels": len(labels.good),
            "held_out": calibration,
        }
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.out / "calibration.json", json.dumps(calibration, indent=1) + "\n")
        draw(calibration, self.out)
        Head("judge", self.recipe.features, weights, {**self.metadata(), **facts}).save(self.out)


def swapped_row(lossless: Rollout, swapped: Rollout) -> int | None:
    """Return the row of the swapped token in its text's recording, or None unless the texts first differ in that token.

    They may differ earlier: batches of other shapes round differently, which decides between tokens that are almost equally likely.
    """
    generation = swapped.generation
    assert generation.origins is not None, "our own engine reports them"
    position = first_difference(lossless.generation.tokens, generation.tokens)
    if position is None or generation.origins[position] != "accepted":
        return None
    row = num_decided(generation, position)
    return row if swapped.recording.p[row] == 0 else None  # p is 0 or 1 at temperature 0, and 1 for all other tokens


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first position at which b differs from a, or None if one is a prefix of the other."""
    return next((position for position, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def fit_judge(labels: Labels) -> dict[str, Tensor]:
    """Return the weights of a judge that separates good tokens from others; raise ConfigError if all labels are equal."""
    count, num_good = len(labels.good), int(labels.good.sum())
    if num_good in (0, count):
        labelled = (
            f"all {count} labels are {'positive' if num_good else 'negative'}" if count else "no token was labelled"
        )
        raise ConfigError(
            f"{labelled}, so nothing can be fitted: give another out= with more prompts=, or choose another task"
        )
    return fit_logistic(labels.features, labels.good)


def fit_logistic(x: Tensor, good: Tensor) -> dict[str, Tensor]:
    """Return the weights of a logistic regression on standardised features, fitted by Newton's method in float64."""
    x64, y = x.double(), good.double()
    shift, scale = x64.mean(0), x64.std(0).clamp_min(1e-3)
    rows = torch.cat(((x64 - shift) / scale, torch.ones(len(x64), 1, dtype=torch.float64)), 1)
    penalty = torch.full((rows.shape[1],), PENALTY, dtype=torch.float64)
    penalty[-1] = 0
    weight = torch.zeros(rows.shape[1], dtype=torch.float64)
    for _ in range(50):
        p = torch.sigmoid(rows @ weight)
        gradient = rows.T @ (p - y) + penalty * weight
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows + torch.diag(penalty + 1e-9)
        step = torch.linalg.solve(hessian, gradient)
        weight = weight - step
        if float(step.abs().max()) < 1e-10:
            break
    return {
        "weight": weight[None, :-1].float(),
        "bias": weight[-1:].float(),
        "shift": shift.float(),
        "scale": scale.float(),
    }


def auc_of(score: np.ndarray, good: np.ndarray) -> float:
    """Return the probability that a good token scores above one that is not good; ties count half, NaN if all are of one kind."""
    from scipy.stats import rankdata

    ranks, count = rankdata(score), int(good.sum())
    rest = len(good) - count
    return float((ranks[good].sum() - count * (count + 1) / 2) / (count * rest)) if count and rest else math.nan


def auc_by_prompt(score: np.ndarray, good: np.ndarray, prompt: np.ndarray) -> Estimate:
    """Return the AUC with an interval by bootstrap over prompts."""
    rng, resamples = np.random.default_rng(0), []
    groups = [np.flatnonzero(prompt == number) for number in np.unique(prompt)]
    for _ in range(RESAMPLES if groups else 0):
        index = np.concatenate([groups[i] for i in rng.integers(0, len(groups), len(groups))])
        resamples.append(auc_of(score[index], good[index]))
    value, defined = auc_of(score, good), [resample for resample in resamples if not math.isnan(resample)]
    low, high = np.quantile(defined, (0.025, 0.975)) if defined else (value, value)
    return Estimate(round(value, 4), round(float(low), 4), round(float(high), 4), len(groups))


def calibrate(score: Callable[[Tensor], Tensor], labels: Labels) -> dict[str, Any]:
    """Return the content of calibration.json: the probabilities σ(score) compared with labels that were not used in the fit.

    `good` is the share of good tokens and `said` the mean probability, overall and in eight bins of [0, 1]; null without labels.
    """
    probability = torch.sigmoid(score(labels.features)).double().numpy()
    good, prompt = labels.good.numpy(), labels.prompt.numpy()
    edges = np.linspace(0, 1, BINS + 1)
    number, bins = np.clip(np.digitize(probability, edges) - 1, 0, BINS - 1), []
    for b in np.unique(number):
        rows = number == b
        shares = {"said": round(float(probability[rows].mean()), 4), "good": round(float(good[rows].mean()), 4)}
        bins.append({"from": round(float(edges[b]), 4), "n": int(rows.sum()), **shares})
    auc = auc_by_prompt(probability, good, prompt)
    share = round(float(good.mean()), 4) if len(good) else math.nan
    numbers = {"good": share, "auc": auc.value, "low": auc.low, "high": auc.high}
    known = {name: None if math.isnan(value) else value for name, value in numbers.items()}
    return {"prompts": auc.n, "labels": len(good), **known, "bins": bins}


def draw_reliability(axis: Any, bins: Sequence[Mapping[str, Any]]) -> None:
    """Draw the share of good labels against the estimated probability, with the number of labels in each bin."""
    from sdbench.report.figures.style import BLUE, GREY

    axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    axis.plot([b["said"] for b in bins], [b["good"] for b in bins], color=BLUE, marker="o")
    for b in bins:
        axis.annotate(f"{b['n']}", (b["said"], b["good"]), textcoords="offset points", xytext=(4, -8), fontsize=6)


def draw(calibration: Mapping[str, Any], folder: Path) -> None:
    """Write the reliability figure."""
    from sdbench.report.figures.style import house_style, panels, save

    auc, low, high = (math.nan if calibration[name] is None else calibration[name] for name in ("auc", "low", "high"))
    with house_style():
        figure, (axis,) = panels()
        draw_reliability(axis, calibration["bins"])
        axis.set_xlabel("probability estimated by the judge")
        axis.set_ylabel("share of good tokens")
        axis.set_title(f"AUC {auc:.2f} [{low:.2f}, {high:.2f}], {calibration['labels']} tokens held out")
        save(figure, folder, "calibration")
