"""A model's decoder layers, and forward passes through some of them, which leave the model and its configuration unchanged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def decoder_layers(model: nn.Module, count: int) -> list[nn.Module]:
    """Return the layers that write to a cache, in order; empty unless they form one ModuleList of `count` layers."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            layers = list(module)
            if all(_indices(layer) == {number} for number, layer in enumerate(layers)):
                return layers
    return []


def _indices(layer: nn.Module) -> set[Any]:
    return {vars(module).get("layer_idx") for module in layer.modules()} - {None}


@contextmanager
def bypass(layers: Sequence[nn.Module], *states: Tensor) -> Iterator[list[Tensor]]:
    """Let these layers return `states` instead of running, or their input if no states are given.

    Yields the list of their inputs. A layer's `forward` is replaced, and restored even after an exception. The list of layers
    and num_hidden_layers do not change, so each layer keeps its mask, its positions and its slots in the cache.
    """
    given: list[Tensor] = []

    def hand_on(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        given.append(hidden_states)
        return states[0] if states else hidden_states

    before = [vars(layer).get("forward") for layer in layers]  # may be set by a library such as accelerate
    try:
        for layer in layers:
            layer.forward = hand_on
        yield given
    finally:
        for layer, forward in zip(layers, before, strict=True):
            vars(layer).pop("forward", None)
            if forward is not None:
                layer.forward = forward


def last_states(states: Tensor, count: int) -> Tensor:
    """Return the states [B,count,d] of the last `count` tokens (0: of all tokens), for a model's head."""
    return contiguous(states[:, -count:])


def contiguous(states: Tensor) -> Tensor:
    """Return a copy of states [...,d] whose strides are all those of a contiguous tensor, for a model's head.

    With a slice, matmul would copy the head's weight for each row (docs/notes/head_copy.md). `Tensor.contiguous` does not help
    for a single row, because it returns the slice unchanged.
    """
    return states.reshape(-1, states.shape[-1]).clone(memory_format=torch.contiguous_format).view(states.shape)


def low_and_middle(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the two layers whose states EAGLE-3 reads besides the last (arXiv:2503.01840, section 3.1)."""
    return [layers[min(1, len(layers) - 1)], layers[len(layers) // 2]]


@contextmanager
def output_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list to which the states that the layer returns are added while the context is active."""
    outputs: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        outputs.append(output if isinstance(output, Tensor) else output[0])

    hook = layer.register_forward_hook(keep)
    try:
        yield outputs
    finally:
        hook.remove()
