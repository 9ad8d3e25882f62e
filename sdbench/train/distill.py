"""Distil a draft towards its target, on texts sampled by the draft or, for a pruned target, by the target.

The target is not trained.

The losses compare the target's distribution p of a token with the draft's q: forward KL(p‖q), reverse KL(q‖p), TV(p, q), and
overlap −log Σ min(p, q) (arXiv:2602.23881). With TV = 1 − Σ min(p, q), d(overlap) = dTV / Σ min(p, q); so the gradient of overlap
does not vanish where that of TV is small. They read log p and log q, since a probability of 1e-40 is 0 in float32.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from sdbench.files import replace_on_success
from sdbench.train.answers import Answers, Text
from sdbench.train.held_out import MeasuredTrainer
from sdbench.train.recipes import DistillationRecipe, PrunedRecipe
from sdbench.train.setup import group_by
from sdbench.train.trainer import WarmAdamW
from sdbench.types import DraftSetup

AnyDistillation = TypeVar("AnyDistillation", bound=DistillationRecipe)
BATCH = 8  # texts per backward pass

LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "forward_kl": lambda log_p, log_q: (log_p.exp() * (log_p - log_q)).sum(-1),
    "reverse_kl": lambda log_p, log_q: (log_q.exp() * (log_q - log_p)).sum(-1),
    "tv": lambda log_p, log_q: (log_p.exp() - log_q.exp()).abs().sum(-1) / 2,
    "overlap": lambda log_p, log_q: -torch.minimum(log_p, log_q).logsumexp(-1),
}  # of finite log p and log q [..., V], as of `Warp.log_law`


class Distillation(MeasuredTrainer[AnyDistillation]):
    """Trains from the pair's draft."""

    name, checkpoint_every, report_every = "draft", 20, 10
    role: ClassVar[Literal["draft", "target"]] = (
        "draft"  # the model that samples the texts, and whose precision the result has
    )

    def __post_init__(self) -> None:
        self.draft = self.first_draft()
        stored = getattr(self.setup.pair_info.configs[self.role], "dtype", None) or torch.float32
        self.dtype = stored if isinstance(stored, torch.dtype) else getattr(torch, str(stored))
        self.draft.requires_grad_(True)
        self.answers = Answers(self.setup, self.role, self.recipe.seed)
        self.optimiser = WarmAdamW(dict(self.draft.named_parameters()), self.recipe.rate)

    def first_draft(self) -> Any:
        """Return the model to train, before the first step."""
        return self.setup.pair.draft

    @property
    def checkpoint(self) -> Path:
        """Return the path of the checkpoint. It is beside the folder `out`, which must not exist before the end of the training."""
        return self.out.with_name(f"{self.out.name}.ckpt")

    @property
    def num_held_out(self) -> int:
        """Return how many rows there are beyond those that are trained on, at most those that the recipe asks for."""
        return max(len(self.setup.prompts.ids) - self.recipe.num_rows, 0)

    def step(self, step: int) -> float:
        recipe = self.recipe
        once = bool(getattr(recipe, "once", False))  # a draft's own answers change as it is trained
        texts = self.answers.of_step(self.training_keys, step, recipe.prompts, once=once)
        count, total = sum(len(text) for _, text in texts), 0.0
        for group in group_by(texts, BATCH):
            log_p, log_q = self._log_laws(group)
            loss = LOSSES[recipe.loss](log_p, log_q).sum() / count
            loss.backward()
            total += float(loss.detach())
        self.optimiser.step(step)
        return total

    def agreement_over(self, texts: Sequence[Text]) -> list[float]:
        total, count = 0.0, sum(len(text) for _, text in texts)
        for group in group_by(texts, BATCH):
            total += float(torch.minimum(*self._log_laws(group)).exp().double().sum())
        return [total / count]

    def _log_laws(self, texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
        """Return log p and log q [N,V] of all N tokens of these (prompt, text) pairs."""
        ids = torch.zeros(
            len(texts), max(len(p) + len(t) for p, t in texts), dtype=torch.long, device=self.draft.device
        )
        for row, (prompt, text) in enumerate(texts):
            ids[row, : len(prompt) + len(text)] = torch.tensor([*prompt, *text])
        row = torch.cat([torch.full((len(text),), i) for i, (_, text) in enumerate(texts)])
        position = torch.cat([torch.arange(len(text)) + len(prompt) - 1 for prompt, text in texts])
        warp, first = self.setup.decoder.warp, int(position.min())  # logits of most prompts are not computed
        options = {"use_cache": False, "logits_to_keep": ids.shape[1] - first}
        with torch.no_grad():
            log_p = warp.log_law(self.setup.pair.target(ids, **options).logits[row, position - first])
        return log_p, warp.log_law(self.draft(ids, **options).logits[row, position - first])

    def save(self) -> None:
        """Write a Hugging Face folder with the tokenizer, in the precision of the original weights."""
        self.draft.requires_grad_(False)
        last = self.rows[-20:]
        metadata = {**self.metadata(), "last": round(sum(last) / len(last), 4), "agreement": self.agreement()}
        with replace_on_success(self.out, self.out.with_name(f".{self.out.name}.part")) as part:
            self.draft.to(self.dtype).save_pretrained(part)
            self.setup.pair_info.tokenizer.save_pretrained(part)
            self.write_course(part, metadata)
            (part / "distilled.json").write_text(json.dumps(metadata, indent=1) + "\n")


class Healing(Distillation[PrunedRecipe]):
    """Trains from a copy of the target without the layers that `drafter=pruned` leaves out, on texts of the target."""

    name = "pruned"
    role = "target"

    def first_draft(self) -> Any:
        from sdbench.draft.pruned import PrunedDrafter

        decoder = self.setup.decoder
        setup = DraftSetup(decoder.engine.target, decoder.warp)
        return copy.deepcopy(PrunedDrafter.build(setup, self.recipe.keep_layers or None).model.model)
