"""A confidence gate (PIPO, arXiv:2605.27255): a small head that estimates during drafting whether the target will keep a token.

It reads the draft's distribution alone, so no model runs for it. PIPO's gate reads the states of a model trained for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sdbench.card import read_trained
from sdbench.config import show
from sdbench.probs import at, clamp_nan_ids, dense, in_float32, is_ids
from sdbench.types import DraftBlock, DraftSetup

KIND = "gate"  # name of its kind in cards, in trainings and among length policies
DRAFTING = "drafting"  # key in its card: `DraftSetup.drafting` at its training
CHANCE, SLOT = "draft_chance", "slot"
LEAST = 1e-6  # smaller values are raised to this before a logarithm
SHAPES = ("weight", "shift", "scale")


@dataclass(frozen=True, eq=False)
class Gate:
    """σ(weight·(x − shift)/scale + bias) of the features x [n] of a drafted token; weights are float64, [n] and [1]."""

    features: tuple[str, ...]
    weights: Mapping[str, Tensor]
    card: Mapping[str, Any]

    @classmethod
    def load(cls, head: str | None) -> "Gate":
        """Load the gate of a folder. ValueError if there is none or it is damaged."""
        advice = f"train one with python -m sdbench.train {KIND} model=NAME task=NAME, then drafter.length_head=FOLDER"
        if head is None:
            raise ValueError(f"length={KIND} needs a gate: {advice}")
        try:
            card, weights = read_trained(Path(head), KIND, f"length={KIND}")
        except FileNotFoundError as error:
            raise ValueError(f"length_head={head} has no {Path(error.filename).name}: {advice}") from None
        except OSError as error:
            raise ValueError(f"length_head={head} cannot be read: {error.strerror}") from None
        features = tuple(card.get("features", ()))
        refuse_features(features)
        shapes = {name: tuple(x.shape) for name, x in weights.items()}
        if shapes != {**dict.fromkeys(SHAPES, (len(features),)), "bias": (1,)}:
            raise ValueError(f"length_head={head} is damaged: its tensors have the shapes {shapes}; train it again")
        return cls(features, weights, card)

    @cached_property
    def slopes(self) -> Tensor:
        """The weights [n] for features that are neither shifted nor scaled."""
        return self.weights["weight"] / self.weights["scale"]

    @cached_property
    def offset(self) -> Tensor:
        """The logit [1] of the estimate where all features are 0."""
        return self.weights["bias"] - (self.slopes * self.weights["shift"]).sum(-1)

    def score(self, x: Tensor) -> Tensor:
        """Return the logit [...] of the estimate for features [...,n] in float64."""
        return x @ self.slopes.to(x.device) + self.offset.to(x.device)

    def estimates(self, block: DraftBlock, first: int, num_ids: int, *, of_all: bool = False) -> Tensor:
        """Return the estimated probability that the target keeps the drafted tokens [B,K].

        of_all: return it for every token [B,K,V], as if that token had been drafted. `first` is how many tokens were drafted
        before these slots.
        """
        law = law_of(block, num_ids)
        x = features_of(self.features, block.tokens, law, first)
        score = self.score(x)
        if not of_all:
            return score.sigmoid()
        score = score[..., None].expand(law.shape)
        if CHANCE in self.features:  # the only feature that depends on the token itself
            index = self.features.index(CHANCE)
            score = score + self.slopes[index].to(law.device) * (_log(law) - x[..., index, None])
        return score.sigmoid()

    def check(self, setup: DraftSetup, drafter: str) -> None:
        """Raise ValueError if it was trained for other models, another `drafter` (the path of a class) or other options of it."""
        trained = f"length_head is a gate of {self.card.get('model', 'another pair')}"
        if self.card["drafter"] != drafter:
            raise ValueError(f"{trained} for {self.card['drafter']}: train a gate for {drafter}")
        for role, identity in self.card["checkpoints"].items():
            known = {"target": setup.checkpoint, "draft": setup.draft_checkpoint}[role]
            if known not in (None, identity):
                raise ValueError(
                    f"{trained}, whose {role} is {identity}; this run's {role} is {known}: train a gate for this pair"
                )
        if setup.tokenizer_key not in (None, self.card["tokenizer"]):
            raise ValueError(f"{trained}, whose tokenizer differs from this target's: train a gate for this pair")
        before, now = self.card.get(DRAFTING), setup.drafting
        if before is None or now is None:  # cards of earlier versions lack it
            return
        for name in sorted({*before, *now}):
            is_known = name in before or name != "target_quantization"  # which cards of earlier versions lack
            if is_known and before.get(name) != now.get(name):
                values = [f"{name}={show(options.get(name))}" for options in (before, now)]
                raise ValueError(f"{trained} with {values[0]}, and this run has {values[1]}: train a gate for this run")


def law_of(block: DraftBlock, num_ids: int) -> Tensor:
    """Return the laws [B,K,V] from which a block's tokens were drawn; at temperature 0 un-tempered if the drafter has logits."""
    if is_ids(block.q) and block.logits is not None:
        return in_float32(block.logits).softmax(-1)
    return dense(clamp_nan_ids(block.q, num_ids) if is_ids(block.q) else block.q, num_ids)


def _log(x: Tensor) -> Tensor:
    return x.double().clamp_min(LEAST).log()


def _entropy(law: Tensor) -> Tensor:
    return torch.special.entr(law).sum(-1)


def _margin(law: Tensor) -> Tensor:
    best = law.topk(2, -1).values
    return 1 - best[..., 0] + best[..., 1]


OF_LAW = {"draft_entropy": _entropy, "draft_margin": _margin}  # their logarithms are the features
FEATURES = (CHANCE, *OF_LAW, SLOT)


def features_of(names: Sequence[str], tokens: Tensor, law: Tensor, first: int = 0) -> Tensor:
    """Return features [B,K,n] in float64 of tokens [B,K] drawn from laws [B,K,V]; `first` tokens of the block precede them.

    log q(x); the logarithms of the entropy and of 1 − (largest − second q), which tell q = .999 from q = .99; the slot.
    """
    known = {
        CHANCE: lambda: at(law, clamp_nan_ids(tokens, law.shape[-1])),
        SLOT: lambda: law.new_ones(law.shape[:2]),
        **{name: lambda make=make: make(law) for name, make in OF_LAW.items()},
    }
    x = _log(torch.stack([known[name]() for name in names], -1))
    if SLOT in names:
        x[..., names.index(SLOT)] = first + torch.arange(law.shape[1], device=law.device)
    return x


def refuse_features(names: Sequence[str]) -> None:
    """Raise ValueError for features that a gate does not have."""
    unknown = [name for name in names if name not in FEATURES]
    if unknown or not names:
        raise ValueError(f"features of a gate must be among {', '.join(FEATURES)}, got {', '.join(unknown) or 'none'}")
