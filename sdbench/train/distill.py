"""A draft that comes nearer to its target: distilled on what it writes itself, its weights trained, the target frozen.

Losses of a token's laws p (target) and q (draft): forward KL(p‖q), reverse KL(q‖p), TV(p, q), and overlap −log Σ min(p, q)
(arXiv:2602.23881), whose gradient stays where that of TV is small: TV = 1 − Σ min(p, q), and d(overlap) = dTV / Σ min(p, q).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.config import ConfigError, nearest
from sdbench.files import replace_on_success
from sdbench.train.course import Course
from sdbench.train.steps import Steps

CLIP = 1.0
WARM_UP = 10
TINY = 1e-12

LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "forward_kl": lambda p, q: (torch.xlogy(p, p) - p * q.clamp_min(TINY).log()).sum(-1),
    "reverse_kl": lambda p, q: (torch.xlogy(q, q) - q * p.clamp_min(TINY).log()).sum(-1),
    "tv": lambda p, q: (p - q).abs().sum(-1) / 2,
    "overlap": lambda p, q: -torch.minimum(p, q).sum(-1).clamp_min(TINY).log(),
}


@dataclass(frozen=True)
class Recipe:
    """How a draft is distilled."""

    version: ClassVar[str] = "1"
    is_rewarded: ClassVar[bool] = False

    loss: str = "forward_kl"
    steps: int = 200
    prompts: int = 32  # a step, each answered once by the draft as it is then
    rate: float = 5e-4
    seed: int = 0
    rows: int = 2000

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"loss cannot be {self.loss} {nearest(self.loss, LOSSES)}")

    def refuse_temperature(self, temperature: float) -> None:
        """On-policy texts are samples."""
        if temperature == 0:
            raise ConfigError("temperature must be above 0: a draft is distilled on texts that it samples")


@dataclass
class Distillation:
    """Steps from the pair's own draft; a function of the pair and the recipe."""

    course: Course
    recipe: Recipe
    out: Path

    def __post_init__(self) -> None:
        self.draft: Any = self.course.pair.draft
        stored = getattr(self.course.pair_info.configs["draft"], "dtype", None) or torch.float32
        self.kept = stored if isinstance(stored, torch.dtype) else getattr(torch, str(stored))
        self.draft.requires_grad_(True)
        self.weights = dict(self.draft.named_parameters())
        self.optimiser = torch.optim.AdamW(list(self.weights.values()), lr=self.recipe.rate, weight_decay=0.0)

    def __call__(self) -> Path:
        steps = Steps(
            "draft",
            self.recipe.steps,
            self.out.with_name(f"{self.out.name}.ckpt"),
            self.course.what(self.recipe),
            checkpoint_every=20,
            report_every=10,
        )
        held = steps.resume()
        losses: list[float] = []
        if held is not None:
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.copy_(held["weights"][name])
            self.optimiser.load_state_dict(held["optimiser"])
            losses = held["losses"]
        state = lambda: {  # noqa: E731 - read once, where it stands
            "weights": {name: weight.detach().clone() for name, weight in self.weights.items()},
            "optimiser": self.optimiser.state_dict(),
            "losses": losses,
        }
        for step in steps.run(self.recipe.steps, state):
            losses.append(self._step(step))
            steps.report(step, lambda: f"{self.recipe.loss} {losses[-1]:.4f}")
        self._save(steps, losses)
        return self.out

    def _step(self, step: int) -> float:
        from sdbench.engine import Request
        from sdbench.verify import Exact

        recipe, decoder = self.recipe, self.course.decoder
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.rate * min(1.0, (step + 1) / WARM_UP)
        keys = self.course.keys(step, recipe.prompts)
        ids = [self.course.prompts.ids[key] for key in keys]
        options = replace(
            decoder.options("draft", batch_size=decoder.batch_size, is_measured=False),
            seed=recipe.seed * 1_000_003 + step,
        )
        requests = [Request(place, 0, 0, key, 0) for place, key in enumerate(keys)]
        made = decoder.engine.stream(ids, [Exact()], requests, options, None, role="draft")
        texts = [list(g.tokens) for g in sorted(made, key=lambda g: g.request)]
        self.optimiser.zero_grad()
        count, total = sum(map(len, texts)), 0.0
        for first in range(0, len(texts), 8):
            loss = self._loss(ids[first : first + 8], texts[first : first + 8]) / count
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(list(self.weights.values()), CLIP)
        self.optimiser.step()
        return total

    def _loss(self, prompts: list[list[int]], texts: list[list[int]]) -> Tensor:
        """The sum over all tokens of some texts."""
        length = max(len(p) + len(t) for p, t in zip(prompts, texts, strict=True))
        ids = torch.zeros(len(texts), length, dtype=torch.long, device=self.draft.device)
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            ids[row, : len(prompt) + len(text)] = torch.tensor([*prompt, *text])
        row = torch.cat([torch.full((len(text),), i) for i, text in enumerate(texts)])
        place = torch.cat(
            [torch.arange(len(text)) + len(prompt) - 1 for prompt, text in zip(prompts, texts, strict=True)]
        )
        warp = self.course.decoder.warp
        with torch.no_grad():
            p = warp.law(warp.logits(self.course.pair.target(ids, use_cache=False).logits[row, place]))
        q = warp.law(warp.logits(self.draft(ids, use_cache=False).logits[row, place]))
        return LOSSES[self.recipe.loss](p, q).sum()

    def _save(self, steps: Steps, losses: list[float]) -> None:
        """An ordinary folder, in the precision that the draft came in, with the tokenizer beside it."""
        self.draft.requires_grad_(False)
        recipe = self.recipe
        card = {
            **self.course.card(),
            **{name: getattr(recipe, name) for name in ("loss", "steps", "prompts", "rate", "seed")},
            "seconds": round(steps.seconds),
            "last": round(sum(losses[-20:]) / len(losses[-20:]), 4),
        }
        with replace_on_success(self.out, self.out.with_name(f".{self.out.name}.part")) as part:
            self.draft.to(self.kept).save_pretrained(part)
            self.course.pair_info.tokenizer.save_pretrained(part)
            (part / "distilled.json").write_text(json.dumps(card, indent=1) + "\n")
