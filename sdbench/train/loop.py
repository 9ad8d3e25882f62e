"""The training loop: bf16 working copies of fp32 weights, a gradient summed over ranks, exact resumption."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # its usual name
from transformers import PreTrainedTokenizerFast

from sdbench.train.data import Micro, Stream
from sdbench.train.forward import Net, Weights
from sdbench.train.optimiser import Optimiser
from sdbench.train.pairs import Pair, Role
from sdbench.train.place import Place
from sdbench.train.weights import initial, save

CHECKPOINT_EVERY = 250
REPORT_EVERY = 50


@dataclass(slots=True)
class Trained:
    """Final weights, the answer loss reported last, and tokens read."""

    weights: Weights
    loss: float
    tokens: int


def fit(pair: Pair, role: Role, tokenizer: PreTrainedTokenizerFast, out: Path, place: Place, until: int = 0) -> Trained:
    """Train one model of a pair, from `out/<role>.ckpt` if it is there, to step `until` (default: the recipe's end)."""
    net, recipe = Net(pair.family, pair.shape(role)), pair.recipe(role)
    stream = Stream(pair, recipe, tokenizer)
    optimiser = Optimiser(recipe, place)
    weights = {k: w.to(place.device) for k, w in initial(net, pair.vocabulary, pair.seed).items()}
    checkpoint = out / f"{role}.ckpt"
    first, tokens = _resume(checkpoint, weights, optimiser, place)
    last = min(until or recipe.steps, recipe.steps)
    progress = Progress(f"{role}", recipe.steps, tokens, is_shown=place.rank == 0)
    loss = torch.zeros((), device=place.device)
    for step in range(first, last):
        micros = stream.step(step, place.rank, place.world, place.micros)
        grads, share = gradient(net, weights, micros, place.device)
        place.add_up(list(grads.values()))
        optimiser.step(weights, grads, step)
        loss.lerp_(share * place.world, 1.0 if step == first else 0.05)  # ranks have much the same share
        progress.step(step, loss, sum(int((m.tokens > 0).sum()) for m in micros) * place.world)
        if place.rank == 0 and ((step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == last):
            _store(checkpoint, weights, optimiser, step + 1, progress.tokens)
            if step + 1 < recipe.steps:
                save(net, weights, out / f"{role}-partial")
    if place.rank == 0 and last == recipe.steps:
        save(net, weights, out / role)
        tokenizer.save_pretrained(out / role)
    return Trained(weights, float(loss), progress.tokens)


def gradient(net: Net, weights: Weights, micros: list[Micro], device: str) -> tuple[Weights, Tensor]:
    """Gradients summed over micro-batches, and this rank's share of the weighted loss."""
    work = {kind: w.to(torch.bfloat16).requires_grad_() for kind, w in weights.items()}
    total = torch.zeros((), device=device)
    for micro in micros:
        hidden = net.hidden(work, micro.tokens.to(device))
        logits = F.linear(hidden.flatten(0, 1)[micro.positions.to(device)], work["head"]).float()
        losses = F.cross_entropy(logits, micro.labels.to(device), reduction="none")
        loss = losses @ micro.weights.to(device)
        loss.backward()
        total += loss.detach()
    return {kind: w.grad for kind, w in work.items() if w.grad is not None}, total


def _resume(path: Path, weights: Weights, optimiser: Optimiser, place: Place) -> tuple[int, int]:
    """Load weights and moments in place; the next step and the tokens read so far."""
    if not path.exists():
        return 0, 0
    state = torch.load(path, map_location=place.device, weights_only=True)
    weights.update(state["weights"])
    optimiser.first, optimiser.second = state["first"], state["second"]
    return state["step"], state["tokens"]


def _store(path: Path, weights: Weights, optimiser: Optimiser, step: int, tokens: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    state = {"weights": weights, "first": optimiser.first, "second": optimiser.second, "step": step, "tokens": tokens}
    torch.save(state, part)
    os.replace(part, path)  # a kill leaves the old checkpoint or the new one, nothing torn


@dataclass(slots=True)
class Progress:
    """One line every fifty steps: step, loss, tokens, tokens a second, minutes left."""

    name: str
    steps: int
    tokens: int
    is_shown: bool
    started: float = 0.0
    seen: int = 0

    def step(self, step: int, loss: Tensor, tokens: int) -> None:
        self.started = self.started or time.monotonic()
        self.tokens += tokens
        self.seen += 1
        if self.is_shown and ((step + 1) % REPORT_EVERY == 0 or step + 1 == self.steps):
            elapsed = time.monotonic() - self.started
            left = elapsed / self.seen * (self.steps - step - 1) / 60
            print(
                f"{self.name} step {step + 1}/{self.steps} loss {float(loss):.4f} "
                f"tokens {self.tokens / 1e6:.2f}M {elapsed / self.seen * 1e3:.0f} ms/step {left:.1f} min left",
                flush=True,
            )
