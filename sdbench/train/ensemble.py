"""DIVERSED's head by policy gradient: reward of the texts that its ensemble writes, plus acceptance at a price.

The published objective, with the sign that raises acceptance: E[R] + λ·E[1 − TV(q, v)], v = w·p + (1 − w)·q. The credit for a text
goes to what w decided, the tokens at drafted positions, each of which has the law v; a bonus token is the target's own. λ is how
much reward one unit of acceptance is worth.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.config import ConfigError
from sdbench.engines.latency import peak_memory
from sdbench.files import replace_on_success
from sdbench.train.course import Course, Rollout, grouped
from sdbench.train.steps import Steps
from sdbench.verify.head import Head, linear, refuse_features, width_of
from sdbench.verify.learned import Diversed

COLLAPSED = 0.02  # a mean weight nearer to 0 or 1 than this is no head
CLIP = 1.0
WARM_UP = 10


@dataclass(frozen=True)
class Recipe:
    """How a head is trained."""

    version: ClassVar[str] = "2"
    is_rewarded: ClassVar[bool] = True

    features: tuple[str, ...] = ("draft_hidden", "target_hidden")
    hidden: int = 0  # of a hidden layer; 0: linear, as published
    steps: int = 100
    prompts: int = 8  # a step
    samples: int = 8  # of a prompt: each is judged by the mean of the others
    price: float = 0.2  # λ: reward for a unit of acceptance
    rate: float = 0.02
    decay: float = 0.01  # of the weights, each step and unit of rate
    seed: int = 0
    rows: int = 1000  # of the train split, over and over

    def __post_init__(self) -> None:
        refuse_features("ensemble", self.features)
        if self.samples < 2:
            raise ValueError(
                f"samples must be at least 2, since a text is compared with its fellows, got {self.samples}"
            )

    def refuse_temperature(self, temperature: float) -> None:
        """Texts that are all the same teach nothing."""
        if temperature == 0:
            raise ConfigError("temperature must be above 0: texts that are all the same teach nothing")


@dataclass(frozen=True)
class Batch:
    """The tokens that w decided: their features, what both sides gave them, and how much better their text was than its fellows."""

    features: Tensor  # [N,n]
    p: Tensor  # [N] of the token
    q: Tensor
    tv: Tensor
    advantage: Tensor  # [N]
    texts: int  # that they stand in

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], samples: int) -> Batch:
        """Of rollouts of one prompt after another."""
        seen = [rollout.seen for rollout in rollouts]
        counts = torch.tensor([len(one.p) for one in seen])
        features, p, q, tv = (torch.cat([getattr(one, name) for one in seen]) for name in ("features", "p", "q", "tv"))
        better = torch.tensor(left_out([rollout.reward for rollout in rollouts], samples))
        return cls(features, p, q, tv, better.repeat_interleave(counts), len(rollouts))


@dataclass
class EnsembleTraining:
    """Steps from a head that says 1/2 everywhere; a function of the pair, the recipe and nothing else."""

    course: Course
    recipe: Recipe
    out: Path
    curve: list[dict[str, float]] = field(default_factory=list)
    rolling_s: float = 0.0  # of its seconds, what rollouts took
    decoding_bytes: float = 0.0  # the peak of memory behind the first rollouts

    def __post_init__(self) -> None:
        size = width_of(self.recipe.features, self.course.widths())
        self.head = linear("ensemble", self.recipe.features, size, hidden=self.recipe.hidden)
        self.weights = {name: tensor.clone().requires_grad_() for name, tensor in self.head.weights.items()}
        self.fixed: dict[str, Tensor] = {}  # shift and scale of the features, from the first step
        self.optimiser = torch.optim.AdamW(
            list(self.weights.values()), lr=self.recipe.rate, weight_decay=self.recipe.decay
        )

    def __call__(self) -> Head:
        what = self.course.what(self.recipe)
        steps = Steps("head", self.recipe.steps, self.out / "head.ckpt", what, checkpoint_every=10, report_every=5)
        held = steps.resume()
        if held is not None:
            self._take(held)
        for step in steps.run(self.recipe.steps, self._state):
            told = self._step(step)
            self.curve.append({"step": step + 1, **told})
            steps.report(step, lambda told=told: " ".join(f"{name} {value:.3f}" for name, value in told.items()))
            self._write_curve()
            if not COLLAPSED <= told["weight"] <= 1 - COLLAPSED:
                raise ConfigError(
                    f"the head has collapsed at step {step + 1}: its mean weight is {told['weight']:.3f}; "
                    f"take {'a higher' if told['weight'] > 0.5 else 'a lower'} price than {self.recipe.price:g}"
                )
        head = Head("ensemble", self.recipe.features, self._frozen(), self._card(steps))
        head.save(self.out)
        return head

    def _card(self, steps: Steps) -> dict[str, Any]:
        recipe = self.recipe
        last = self.curve[-20:]
        mean = {
            name: sum(row[name] for row in last) / len(last) for name in ("reward", "acceptance", "weight", "spread")
        }
        return {
            **self.course.card(),
            **{
                name: getattr(recipe, name)
                for name in ("hidden", "steps", "prompts", "samples", "price", "rate", "decay", "seed")
            },
            "rule": Diversed.version,
            "seconds": round(steps.seconds),
            "rollouts": round(self.rolling_s / steps.seconds, 3),
            "memory": round(peak_memory() / self.decoding_bytes, 3) if self.decoding_bytes else None,
            "last": {name: round(value, 4) for name, value in mean.items()},
        }

    def _step(self, step: int) -> dict[str, float]:
        recipe = self.recipe
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.rate * min(1.0, (step + 1) / WARM_UP)
        head = Head("ensemble", recipe.features, self._frozen())
        keys = self.course.keys(step, recipe.prompts)
        began = time.monotonic()
        rollouts = self.course.roll(
            keys, [Diversed(head)], recipe.samples, recipe.seed * 1_000_003 + step, recipe.features
        )
        self.rolling_s += time.monotonic() - began
        self.decoding_bytes = self.decoding_bytes or peak_memory()
        batch = Batch.of(rollouts, recipe.samples)
        if not self.fixed:
            self.fixed = {"shift": batch.features.mean(0), "scale": batch.features.std(0).clamp_min(1e-3)}
        self.optimiser.zero_grad()
        score = Head("ensemble", recipe.features, self.weights | self.fixed).score(batch.features)
        loss, w = objective(score, batch, recipe.price)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.weights.values()), CLIP)
        self.optimiser.step()
        w = w.detach()
        return {
            "reward": sum(rollout.reward for rollout in rollouts) / len(rollouts),
            "acceptance": float((1 - w * batch.tv).mean()),
            "weight": float(w.mean()),
            "spread": float(w.std()),
        }

    def _frozen(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in (self.weights | self.fixed).items()}

    def _state(self) -> dict[str, Any]:
        told = {"curve": self.curve, "rolling_s": self.rolling_s}
        return {"weights": self._frozen(), "optimiser": self.optimiser.state_dict(), **told}

    def _take(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self.weights.items():
                tensor.copy_(state["weights"][name])
        self.fixed = {name: state["weights"][name] for name in ("shift", "scale")}
        self.optimiser.load_state_dict(state["optimiser"])
        self.curve, self.rolling_s = state["curve"], state["rolling_s"]

    def _write_curve(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with replace_on_success(self.out / "curve.csv") as part, open(part, "w", newline="") as file:
            writer = csv.DictWriter(file, list(self.curve[0]))
            writer.writeheader()
            writer.writerows(self.curve)


def left_out(rewards: Sequence[float], samples: int) -> list[float]:
    """How much better each text was than the mean of its prompt's others."""
    out: list[float] = []
    for group in grouped(rewards, samples):
        total = sum(group)
        out += [reward - (total - reward) / (samples - 1) for reward in group]
    return out


def objective(score: Tensor, batch: Batch, price: float) -> tuple[Tensor, Tensor]:
    """What is to be made small, −(E[A·Σ log v] + λ·mean(1 − w·TV)), and w [N]."""
    w = torch.sigmoid(score)
    log_v = torch.log((w * batch.p + (1 - w) * batch.q).clamp_min(1e-12))
    gained = (batch.advantage * log_v).sum() / batch.texts
    return -(gained + price * (1 - w * batch.tv).mean()), w
