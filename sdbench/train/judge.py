"""A judge from mined labels (as AutoJudge, arXiv:2504.20039): let one wrong draft pass, decode on, and see if the answer suffers.

At temperature 0 a text meets the draft's wrong tokens one after another. `Swap(n)` lets the n-th of them pass and decodes
losslessly before and behind it, so that all swaps of a prompt are rules of one stream and share its prefill. A swapped token is
good where the text it leads to scores no less than the lossless one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sdbench.config import ConfigError
from sdbench.files import write_whole
from sdbench.train.course import Course
from sdbench.train.steps import Steps
from sdbench.types import Evidence, Limits, Verdict
from sdbench.verify import Exact, Head, Joint, Judge
from sdbench.verify.head import refuse_features, width_of
from sdbench.verify.tokenwise import best_at, draw_bonus, keep_until_first_rejection, offered_slots

HELD_OUT = 5  # every fifth prompt is not learned from, but judged
PENALTY = 1.0  # on the squared weights of standardised features
RESAMPLES = 2000
BINS = 8


@dataclass(frozen=True, slots=True)
class Swap(Joint):
    """Exact match at temperature 0, but for the n-th wrong draft of a text, which stays. State: how many there were."""

    limits = Limits(temperature="zero")

    n: int | Tensor = 0

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor:
        return torch.zeros(len(prompts), 1, dtype=torch.int64, device=device)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        assert state is not None, "the engine hands back what init_state gave it"
        if not evidence.draft.tokens.shape[1]:
            return draw_bonus(evidence, u, state)
        wrong = (evidence.draft.tokens != evidence.p[:, :-1]) & offered_slots(evidence.draft)
        count = state + wrong.long().cumsum(1)  # [B,K], of wrong ones up to this
        passes = count - 1 == torch.as_tensor(self.n, device=u.device).reshape(-1, 1)
        verdict = keep_until_first_rejection(~wrong | passes, evidence, best_at, u)
        met = verdict.accepted.clamp_max(wrong.shape[1] - 1)[:, None]
        return replace(verdict, state=count.gather(1, met))


@dataclass(frozen=True)
class Recipe:
    """How labels are mined and a judge is fitted."""

    version: ClassVar[str] = "2"
    is_rewarded: ClassVar[bool] = True

    features: tuple[str, ...] = ("token_hidden",)
    prompts: int = 300
    swaps: int = 12  # of a prompt: its first so many wrong drafts
    at_once: int = 30  # prompts a step

    def __post_init__(self) -> None:
        refuse_features("judge", self.features)

    @property
    def rows(self) -> int:
        return self.prompts

    def refuse_temperature(self, temperature: float) -> None:
        """A swap is judged by the one text that it leads to."""
        if temperature != 0:
            raise ConfigError(f"temperature must be 0 where labels are mined, got {temperature:g}")


@dataclass(frozen=True)
class Labels:
    """Of N swapped tokens: the features, whether each was good, and whose prompt it stood in."""

    seen: Tensor  # [N,n]
    good: Tensor  # [N] bool
    prompt: Tensor  # [N]

    @classmethod
    def joined(cls, parts: Sequence[Labels]) -> Labels:
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("seen", "good", "prompt")))


@dataclass
class JudgeTraining:
    """Mines, step by step and resumably; then fits, and says how well the judge knows what it does not know."""

    course: Course
    recipe: Recipe
    out: Path

    def __post_init__(self) -> None:
        self.parts: list[Labels] = []

    def __call__(self) -> Head:
        count = -(-self.recipe.prompts // self.recipe.at_once)
        what = self.course.what(self.recipe)
        steps = Steps("labels", count, self.out / "labels.ckpt", what, checkpoint_every=1, report_every=1)
        held = steps.resume()
        if held is not None:
            self.parts = [Labels(*part) for part in held["parts"]]
        for step in steps.run(count, lambda: {"parts": [(p.seen, p.good, p.prompt) for p in self.parts]}):
            self.parts.append(self.mine(step))
            steps.report(step, lambda: f"labels {sum(len(part.good) for part in self.parts)}")
        labels = Labels.joined(self.parts)
        is_held_out = labels.prompt % HELD_OUT == 0
        self._refuse_one_kind(labels, ~is_held_out)
        weights = fitted(labels.seen[~is_held_out], labels.good[~is_held_out])
        head = Head("judge", self.recipe.features, weights)
        told = told_of(head, labels, is_held_out)
        card = {
            **self.course.card(),
            **{name: getattr(self.recipe, name) for name in ("prompts", "swaps")},
            "rule": Judge.version,
            "seconds": round(steps.seconds),
            "labels": len(labels.good),
            "held_out": told,
        }
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.out / "calibration.json", json.dumps(told, indent=1) + "\n")
        draw(told, self.out)
        head = Head("judge", self.recipe.features, weights, card)
        head.save(self.out)
        return head

    def mine(self, step: int) -> Labels:
        """The labels of some prompts."""
        recipe = self.recipe
        first = step * recipe.at_once
        keys = list(self.course.prompts.ids)[first : min(first + recipe.at_once, recipe.prompts)]
        rules = [Exact(), *(Swap(n) for n in range(recipe.swaps))]
        rollouts = self.course.roll(keys, rules, 1, 0, recipe.features)
        rows, good, prompts = [], [], []
        for number in range(len(keys)):
            base, *others = rollouts[number * len(rules) : (number + 1) * len(rules)]
            for other in others:
                place = first_difference(base.generation.tokens, other.generation.tokens)
                if place is not None:
                    rows.append(other.seen.features[other.decided_before(place)])
                    good.append(other.reward >= base.reward)
                    prompts.append(first + number)
        size = width_of(recipe.features, self.course.widths())
        return Labels(
            torch.stack(rows) if rows else torch.zeros(0, size),
            torch.tensor(good, dtype=torch.bool),
            torch.tensor(prompts, dtype=torch.long),
        )

    def _refuse_one_kind(self, labels: Labels, is_fitted: Tensor) -> None:
        good = labels.good[is_fitted]
        share = float(good.float().mean()) if len(good) else float("nan")
        if not 0 < share < 1:
            raise ConfigError(
                f"{len(good)} swaps are there to learn from, and {'none' if share != 1 else 'every one'} was good: there is "
                "nothing to tell apart; take more prompts= or another task"
            )


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The place at which b leaves a; None where it does not, or only ends earlier."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def fitted(x: Tensor, good: Tensor) -> dict[str, Tensor]:
    """Logistic regression on standardised features, by Newton's method in float64."""
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


def auc(score: np.ndarray, good: np.ndarray) -> float:
    """The chance that a good one scores above a bad one, ties half."""
    from scipy.stats import rankdata

    ranks, count = rankdata(score), int(good.sum())
    rest = len(good) - count
    return float((ranks[good].sum() - count * (count + 1) / 2) / (count * rest)) if count and rest else float("nan")


def told_of(head: Head, labels: Labels, rows: Tensor) -> dict[str, Any]:
    """AUC with an interval by prompt, and a table of what was said and what came of it, over rows that were not learned from."""
    said = torch.sigmoid(head.score(labels.seen[rows])).double().numpy()
    good, prompt = labels.good[rows].numpy(), labels.prompt[rows].numpy()
    rng = np.random.default_rng(0)
    groups = [np.flatnonzero(prompt == one) for one in np.unique(prompt)]
    drawn = []
    for _ in range(RESAMPLES if groups else 0):
        index = np.concatenate([groups[i] for i in rng.integers(0, len(groups), len(groups))])
        drawn.append(auc(said[index], good[index]))
    kept = [value for value in drawn if value == value]
    area = auc(said, good)  # NaN where all are of one kind
    low, high = (float(x) for x in np.quantile(kept, (0.025, 0.975))) if kept else (area, area)
    told = dict(zip(("auc", "low", "high"), (round(x, 4) if x == x else None for x in (area, low, high)), strict=True))
    edges = np.linspace(0, 1, BINS + 1)
    which = np.clip(np.digitize(said, edges) - 1, 0, BINS - 1)
    bins = [
        {
            "from": round(float(edges[b]), 4),
            "n": int((which == b).sum()),
            "said": round(float(said[which == b].mean()), 4),
            "good": round(float(good[which == b].mean()), 4),
        }
        for b in range(BINS)
        if (which == b).any()
    ]
    return {
        "prompts": len(groups),
        "labels": len(good),
        "good": round(float(good.mean()), 4) if len(good) else None,
        **told,
        "bins": bins,
    }


def draw(told: dict[str, Any], folder: Path) -> None:
    """The reliability figure."""
    from sdbench.report.figures.style import BLUE, GREY, panels, save, styled

    with styled():
        figure, (axis,) = panels()
        axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
        said, good = [one["said"] for one in told["bins"]], [one["good"] for one in told["bins"]]
        axis.plot(said, good, color=BLUE, marker="o")
        for one in told["bins"]:
            axis.annotate(
                f"{one['n']}", (one["said"], one["good"]), textcoords="offset points", xytext=(4, -8), fontsize=6
            )
        axis.set_xlabel("what the judge says")
        axis.set_ylabel("share of good tokens")
        axis.set_title(
            f"AUC {told['auc']:.2f} [{told['low']:.2f}, {told['high']:.2f}], {told['labels']} tokens held out"
        )
        save(figure, folder, "calibration")
