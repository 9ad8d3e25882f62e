"""Train DIVERSED's head by policy gradient on the reward of the texts decoded with it, plus acceptance at a price.

The objective is the published one, with the sign that raises acceptance: E[R] + λ·E[1 − TV(q, v)], v = w·p + (1 − w)·q. The
reward of a text is credited to the tokens at drafted positions, whose distribution v depends on w; bonus tokens come from the
target alone. λ is the reward that one unit of acceptance is worth.
"""

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sdbench.config import ConfigError
from sdbench.engines.latency import peak_memory
from sdbench.files import replace_on_success
from sdbench.train.recipes import EnsembleRecipe
from sdbench.train.setup import Rollout, group_by
from sdbench.train.trainer import Trainer, WarmAdamW
from sdbench.verify.head import Head, linear, width_of
from sdbench.verify.learned import Diversed

COLLAPSED = 0.02  # training stops if the mean weight of the head is this close to 0 or 1


@dataclass(frozen=True)
class TokenBatch:
    """Tokens whose distribution depends on w: features, probabilities, and their text's advantage over others of its prompt."""

    features: Tensor  # [N,n]
    p: Tensor  # [N] of the token
    q: Tensor
    tv: Tensor
    advantage: Tensor  # [N]
    num_texts: int

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], samples: int) -> "TokenBatch":
        """Return the tokens of `samples` rollouts of each prompt."""
        recordings = [rollout.recording for rollout in rollouts]
        counts = torch.tensor([len(recording.p) for recording in recordings])
        features, p, q, tv = (
            torch.cat([getattr(r, name) for r in recordings]) for name in ("features", "p", "q", "tv")
        )
        advantage = torch.tensor(advantages([rollout.reward for rollout in rollouts], samples))
        return cls(features, p, q, tv, advantage.repeat_interleave(counts), len(rollouts))


class EnsembleTraining(Trainer[EnsembleRecipe]):
    """Trains a head, starting with w = 1/2 everywhere."""

    name, checkpoint_every, report_every = "head", 10, 5

    def __post_init__(self) -> None:
        recipe = self.recipe
        head = linear("ensemble", recipe.features, width_of(recipe.features, self.setup.widths()), hidden=recipe.hidden)
        weights = {name: tensor.clone().requires_grad_() for name, tensor in head.weights.items()}
        self.fixed: dict[str, Tensor] = {}  # shift and scale of the features, from the first step
        self.optimiser = WarmAdamW(weights, recipe.rate, recipe.decay)
        self.rolling_s = 0.0  # seconds of rollouts
        self.decoding_bytes = 0.0  # peak memory after the first rollouts

    def state(self) -> dict[str, Any]:
        state = super().state()
        weights = state["weights"] | {name: tensor.clone() for name, tensor in self.fixed.items()}
        return {**state, "weights": weights, "rolling_s": self.rolling_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.fixed = {name: state["weights"][name] for name in ("shift", "scale")}
        self.rolling_s = state["rolling_s"]

    def progress(self) -> str:
        return " ".join(f"{name} {value:.3f}" for name, value in self.rows[-1].items() if name != "step")

    def step(self, step: int) -> dict[str, float]:
        recipe = self.recipe
        rule = Diversed(self._head())
        keys, seed = self.setup.keys_of(step, recipe.prompts), recipe.seed * 1_000_003 + step
        began = time.monotonic()
        rollouts = self.setup.roll_out(keys, [rule], recipe.samples, seed, recipe.features)
        self.rolling_s += time.monotonic() - began
        self.decoding_bytes = self.decoding_bytes or peak_memory()
        batch = TokenBatch.of(rollouts, recipe.samples)
        if not len(batch.p):
            raise ConfigError(
                f"no text of step {step + 1} has a draft, from which a head learns: give another out= with more prompts="
            )
        if not self.fixed:
            self.fixed = {"shift": batch.features.mean(0), "scale": batch.features.std(0).clamp_min(1e-3)}
        score = Head("ensemble", recipe.features, self.optimiser.weights | self.fixed).score(batch.features)
        loss, w = objective(score, batch, recipe.price)
        loss.backward()
        self.optimiser.step(step)
        w = w.detach()
        row = {
            "step": step + 1,
            "reward": sum(rollout.reward for rollout in rollouts) / len(rollouts),
            "acceptance": float((1 - w * batch.tv).mean()),
            "weight": float(w.mean()),
            "spread": float(w.std()),
        }
        self._write_curve([*self.rows, row])
        if not COLLAPSED <= row["weight"] <= 1 - COLLAPSED:
            raise ConfigError(
                f"the head has collapsed at step {step + 1}, its mean weight is {row['weight']:.3f}: "
                f"use a {'higher' if row['weight'] > 0.5 else 'lower'} price= than {recipe.price:g}"
            )
        return row

    def _head(self, card: Mapping[str, Any] | None = None) -> Head:
        return Head("ensemble", self.recipe.features, self.state()["weights"], card or {})

    def save(self) -> None:
        self._write_curve(self.rows)  # without steps of an interrupted run that came after its last checkpoint
        last, measures = self.rows[-20:], ("reward", "acceptance", "weight", "spread")
        metadata = {
            **self.metadata(),
            **self.setup.quantizations(),
            "rule": Diversed.version,
            "rollouts": round(self.rolling_s / self.steps.seconds, 3),
            "memory": round(peak_memory() / self.decoding_bytes, 3) if self.decoding_bytes else None,
            "last": {name: round(sum(row[name] for row in last) / len(last), 4) for name in measures},
        }
        self._head(metadata).save(self.out)

    def _write_curve(self, rows: Sequence[dict[str, float]]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with replace_on_success(self.out / "curve.csv") as part, open(part, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def advantages(rewards: Sequence[float], samples: int) -> list[float]:
    """Return the reward of each text minus the mean over the other texts of its prompt."""
    out: list[float] = []
    for group in group_by(rewards, samples):
        total = sum(group)
        out += [reward - (total - reward) / (samples - 1) for reward in group]
    return out


def objective(score: Tensor, batch: TokenBatch, price: float) -> tuple[Tensor, Tensor]:
    """Return the loss −(E[A·Σ log v] + λ·mean(1 − w·TV)), and w [N]."""
    w = torch.sigmoid(score)
    log_v = torch.log((w * batch.p + (1 - w) * batch.q).clamp_min(1e-12))
    gain = (batch.advantage * log_v).sum() / batch.num_texts
    return -(gain + price * (1 - w * batch.tv).mean()), w
