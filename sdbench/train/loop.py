"""The training loop: bf16 working copies of fp32 weights, a gradient summed over ranks, exact resumption."""

from dataclasses import asdict, dataclass
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
from sdbench.train.steps import Steps
from sdbench.train.weights import grown, initial, load, save

CHECKPOINT_EVERY = 250


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
    what = {"pair": pair.family, "role": role, "seed": pair.seed, "begins": begin, **_recipe(pair, role)}
    steps = Steps(role, recipe.steps, out / f"{role}.ckpt", what, place.rank == 0, CHECKPOINT_EVERY, first=begin)
    loss, tokens = torch.zeros((), device=place.device), 0
    held = steps.resume(place.device)
    if held is not None:
        weights.update(held["weights"])
        optimiser.first, optimiser.second = held["first"], held["second"]
        loss, tokens = held["loss"], held["tokens"]
    optimiser.begun = recipe.plain_steps if recipe.plain_layers and steps.first > recipe.plain_steps else begin
    state = lambda: {  # noqa: E731 - read where it stands, as training has left it
        "weights": weights,
        "first": optimiser.first,
        "second": optimiser.second,
        "loss": loss,
        "tokens": tokens,
    }
    last = min(until or recipe.steps, recipe.steps)
    for step in steps.run(last, state):
        net = Net(pair.family, pair.shape_at(role, step))
        if len(weights["o_proj"]) < net.shape.layers:
            weights, optimiser = grown(weights, net.shape.layers), Optimiser(recipe, place, step)
        micros = stream.step(step, place.rank, place.world, place.micros)
        grads, share = gradient(net, weights, micros, place.device)
        place.add_up(list(grads.values()))
        optimiser.step(weights, grads, step)
        loss.lerp_(share * place.world, 0.05 if loss else 1.0)  # ranks have much the same share
        tokens += sum(int((m.tokens > 0).sum()) for m in micros) * place.world
        steps.report(step, lambda read=tokens: f"loss {float(loss):.4f} tokens {read / 1e6:.2f}M")
        if steps.is_due(step, last) and step + 1 < recipe.steps:
            save(net, weights, out / f"{role}-partial")
    if place.rank == 0 and last == recipe.steps:
        save(net, weights | {"head": recipe.sureness * weights["head"]}, out / role)
        tokenizer.save_pretrained(out / role)
    return Trained(weights, float(loss), tokens, steps.seconds)


def _recipe(pair: Pair, role: Role) -> dict[str, object]:
    """What decides the steps of a recipe, its parts one by one: one may follow later."""
    recipe = asdict(pair.recipe(role))
    parts = {f"part {number}": part for number, part in enumerate(recipe.pop("parts"), 1)}
    return {"shape": asdict(pair.shape(role)), "vocabulary": pair.vocabulary, **recipe, **parts}


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
