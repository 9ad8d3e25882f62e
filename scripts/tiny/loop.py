"""The training loop: working copies of fp32 weights in bf16 where that is fast, a gradient summed over ranks, exact resumption."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # its usual name
from transformers import PreTrainedTokenizerFast

from scripts.tiny.data import Micro, Stream
from scripts.tiny.forward import Net, Weights, working_dtype
from scripts.tiny.optimiser import Optimiser
from scripts.tiny.pairs import Pair, Role
from scripts.tiny.ranks import Rank
from scripts.tiny.weights import grown, initial, load, save
from sdbench.train.steps import Steps

CHECKPOINT_EVERY = 250
EXIT_EVERY = 2  # layers


@dataclass(slots=True)
class Trained:
    """Final weights, the last reported loss of answers, tokens read, and wall-clock seconds, including earlier parts."""

    weights: Weights
    loss: float
    tokens: int
    seconds: float


def fit(
    pair: Pair,
    role: Role,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    rank: Rank,
    until: int = 0,
    start: Path | None = None,
) -> Trained:
    """Train one model of a pair, from `out/<role>.ckpt` if it is there, to step `until` (default: the recipe's end).

    `start` is a Hugging Face folder with the weights at the end of the recipe's plain phases; None: from scratch.
    """
    recipe = pair.recipe(role)
    stream = Stream(pair, recipe, tokenizer)
    begin = recipe.plain_steps if start else 0
    optimiser = Optimiser(recipe, rank, begin)
    net = Net(pair.family, pair.shape_at(role, 0))
    begun = load(net, start) if start else initial(net, pair.vocabulary, pair.seed)
    weights = {k: w.to(rank.device) for k, w in begun.items()}
    identity = {"pair": pair.family, "role": role, "seed": pair.seed, "begins": begin, **_identity(pair, role)}
    steps = Steps(role, recipe.steps, out / f"{role}.ckpt", identity, rank.index == 0, CHECKPOINT_EVERY, first=begin)
    loss, tokens = torch.zeros((), device=rank.device), 0
    stored = steps.resume(rank.device)
    if stored is not None:
        weights.update(stored["weights"])
        optimiser.first, optimiser.second = stored["first"], stored["second"]
        loss, tokens = stored["loss"], stored["tokens"]
    optimiser.begun = recipe.plain_steps if recipe.plain_layers and steps.first > recipe.plain_steps else begin
    state = lambda: {  # noqa: E731 - short, and evaluated later with the current values
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
            weights, optimiser = grown(weights, net.shape.layers), Optimiser(recipe, rank, step)
        micros = stream.step(step, rank.index, rank.world, rank.micros)
        grads, share = gradient(net, weights, micros, rank.device, recipe.exit_share)
        rank.add_up(list(grads.values()))
        optimiser.step(weights, grads, step)
        loss.lerp_(share * rank.world, 0.05 if loss else 1.0)  # the shares of the ranks are about equal
        tokens += sum(int((m.tokens > 0).sum()) for m in micros) * rank.world
        steps.report(step, lambda read=tokens: f"loss {float(loss):.4f} tokens {read / 1e6:.2f}M")
        if steps.is_due(step, last) and step + 1 < recipe.steps:
            save(net, weights, out / f"{role}-partial")
    if rank.index == 0 and last == recipe.steps:
        save(net, weights | {"head": recipe.sureness * weights["head"]}, out / role)
        tokenizer.save_pretrained(out / role)
    return Trained(weights, float(loss), tokens, steps.seconds)


def _identity(pair: Pair, role: Role) -> dict[str, object]:
    """Return everything that the steps of a recipe depend on, with a key for each phase, since phases may be added at the end."""
    recipe = asdict(pair.recipe(role))
    phases = {f"part {number}": phase for number, phase in enumerate(recipe.pop("phases"), 1)}
    return {"shape": asdict(pair.shape(role)), "vocabulary": pair.vocabulary, **recipe, **phases}


def gradient(
    net: Net, weights: Weights, micros: list[Micro], device: str, exit_share: float = 0.0
) -> tuple[Weights, Tensor]:
    """Return gradients summed over micro-batches, and this rank's share of the weighted loss after the last layer.

    The share `exit_share` of the minimised loss is the mean of the losses at every second layer, weighted by depth.
    """
    dtype = working_dtype(torch.device(device))
    work = {kind: w.to(dtype, copy=True).requires_grad_() for kind, w in weights.items()}
    total = torch.zeros((), device=device)
    for micro in micros:
        every = EXIT_EVERY if exit_share else net.shape.layers
        *exits, loss = [
            _loss(hidden, work["head"], micro, device) for hidden in net.exits(work, micro.tokens.to(device), every)
        ]
        depths = range(1, len(exits) + 1)
        early = [depth / sum(depths) * part for depth, part in zip(depths, exits, strict=True)]
        torch.stack([(1 - exit_share) * loss, *(exit_share * part for part in early)]).sum().backward()
        total += loss.detach()
    return {kind: w.grad for kind, w in work.items() if w.grad is not None}, total


def _loss(hidden: Tensor, head: Tensor, micro: Micro, device: str) -> Tensor:
    logits = F.linear(hidden.flatten(0, 1)[micro.positions.to(device)], head).float()
    losses = F.cross_entropy(logits, micro.labels.to(device), reduction="none")
    return losses @ micro.weights.to(device)
