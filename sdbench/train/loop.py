"""The training loop: bf16 working copies of fp32 weights, a gradient summed over ranks, exact resumption."""

import os
import time
from dataclasses import dataclass, field
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
from sdbench.train.weights import grown, initial, load, save

CHECKPOINT_EVERY = 250
REPORT_EVERY = 50


@dataclass(slots=True)
class Trained:
    """Final weights, the answer loss reported last, tokens read, and seconds on the clock, earlier parts included."""

    weights: Weights
    loss: float
    tokens: int
    seconds: float


def fit(
    pair: Pair,
    role: Role,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    place: Place,
    until: int = 0,
    start: Path | None = None,
) -> Trained:
    """Train one model of a pair, from `out/<role>.ckpt` if it is there, to step `until` (default: the recipe's end).

    `start` is a Hugging Face folder with the weights behind the recipe's plain parts; None: from nothing.
    """
    recipe = pair.recipe(role)
    stream = Stream(pair, recipe, tokenizer)
    begin = recipe.plain_steps if start else 0
    optimiser = Optimiser(recipe, place, begin)
    net = Net(pair.family, pair.shape_at(role, 0))
    begun = load(net, start) if start else initial(net, pair.vocabulary, pair.seed)
    weights = {k: w.to(place.device) for k, w in begun.items()}
    checkpoint = out / f"{role}.ckpt"
    progress = Progress(f"{role}", recipe.steps, is_shown=place.rank == 0)
    first, loss = _resume(checkpoint, weights, optimiser, place, progress, begin)
    optimiser.begun = recipe.plain_steps if recipe.plain_layers and first > recipe.plain_steps else begin
    last = min(until or recipe.steps, recipe.steps)
    for step in range(first, last):
        net = Net(pair.family, pair.shape_at(role, step))
        if len(weights["o_proj"]) < net.shape.layers:
            weights, optimiser = grown(weights, net.shape.layers), Optimiser(recipe, place, step)
        micros = stream.step(step, place.rank, place.world, place.micros)
        grads, share = gradient(net, weights, micros, place.device)
        place.add_up(list(grads.values()))
        optimiser.step(weights, grads, step)
        loss.lerp_(share * place.world, 0.05 if loss else 1.0)  # ranks have much the same share
        progress.step(step, loss, sum(int((m.tokens > 0).sum()) for m in micros) * place.world)
        if place.rank == 0 and ((step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == last):
            _store(checkpoint, weights, optimiser, step + 1, loss, progress)
            if step + 1 < recipe.steps:
                save(net, weights, out / f"{role}-partial")
    if place.rank == 0 and last == recipe.steps:
        save(net, weights | {"head": recipe.sureness * weights["head"]}, out / role)
        tokenizer.save_pretrained(out / role)
    return Trained(weights, float(loss), progress.tokens, progress.seconds)


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


def _resume(
    path: Path, weights: Weights, optimiser: Optimiser, place: Place, progress: "Progress", first: int
) -> tuple[int, Tensor]:
    """Load weights, moments, tokens and seconds in place; the next step, and the loss so far."""
    if not path.exists():
        return first, torch.zeros((), device=place.device)
    state = torch.load(path, map_location=place.device, weights_only=True)
    weights.update(state["weights"])
    optimiser.first, optimiser.second = state["first"], state["second"]
    progress.tokens, progress.before_s = state["tokens"], state["seconds"]
    return state["step"], state["loss"]


def _store(path: Path, weights: Weights, optimiser: Optimiser, step: int, loss: Tensor, progress: "Progress") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    state = {"weights": weights, "first": optimiser.first, "second": optimiser.second, "step": step, "loss": loss}
    torch.save(state | {"tokens": progress.tokens, "seconds": progress.seconds}, part)
    os.replace(part, path)  # a kill leaves the old checkpoint or the new one, nothing torn


@dataclass(slots=True)
class Progress:
    """One line every fifty steps: step, loss, tokens, tokens a second, minutes left."""

    name: str
    steps: int
    is_shown: bool
    tokens: int = 0
    before_s: float = 0.0  # until the checkpoint that this goes on from
    seen: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.before_s + time.monotonic() - self.began

    def step(self, step: int, loss: Tensor, tokens: int) -> None:
        self.tokens += tokens
        self.seen += 1
        if self.is_shown and ((step + 1) % REPORT_EVERY == 0 or step + 1 == self.steps):
            step_s = (time.monotonic() - self.began) / self.seen
            print(
                f"{self.name} step {step + 1}/{self.steps} loss {float(loss):.4f} tokens {self.tokens / 1e6:.2f}M "
                f"{step_s * 1e3:.0f} ms/step {step_s * (self.steps - step - 1) / 60:.1f} min left",
                flush=True,
            )
