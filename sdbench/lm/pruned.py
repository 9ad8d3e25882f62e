"""A model without some of its layers, over the same weights, and which layers change their input least."""

import copy
from collections.abc import Sequence
from math import pi
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sdbench.lm.layers import decoder_layers
from sdbench.lm.model import LM
from sdbench.lm.probe import probe_ids
from sdbench.probs import clamp_nan_ids, draw


class PrunedLM(LM):
    """A model without its layers `dropped`: modules and configuration are separate, weights are shared."""

    def __init__(self, lm: LM, dropped: range) -> None:
        self.dropped = dropped
        super().__init__(without_layers(lm, dropped), role="draft", capture=lm.mode, packed=lm.packed)


def without_layers(lm: LM, dropped: range) -> PreTrainedModel:
    """Return a model without these layers. Every weight and buffer is the same tensor; `lm` is not changed."""
    shared: dict[int, Any] = {id(x): x for x in (*lm.model.parameters(), *lm.model.buffers())}
    pruned = copy.deepcopy(lm.model, shared)
    layers = decoder_layers(pruned, len(lm.layers))
    kept = [number for number in range(len(layers)) if number not in dropped]
    holder = next(x for x in pruned.modules() if isinstance(x, nn.ModuleList) and list(x) == layers)
    del holder[dropped.start : dropped.stop]
    for number, layer in enumerate(holder):
        for module in layer.modules():
            if "layer_idx" in vars(module):
                module.layer_idx = number  # type: ignore[assignment]
    config = pruned.config.get_text_config()
    for name, value in vars(config).items():
        if "layer" in name and isinstance(value, list) and len(value) == len(layers):  # such as layer_types
            vars(config)[name] = [value[number] for number in kept]
    config.num_hidden_layers = len(kept)
    return pruned


@torch.inference_mode()
def angular_distances(lm: LM, texts: Sequence[Tensor], count: int) -> list[float]:
    """Return for each layer the angular distance between its input and the output of `count` layers starting with it.

    d(x, y) = arccos(x·y / (|x| |y|)) / π (Gromov et al. 2024, equation 7), as a mean over all tokens of the texts [L].
    """
    sums, num_tokens = torch.zeros(len(lm.layers) - count + 1, dtype=torch.float64), 0
    for text in texts:
        states = torch.nn.functional.normalize(_states(lm, text).cpu().double(), dim=-1)
        angles = (states[:-count] * states[count:]).sum(-1).clamp(-1, 1).acos() / pi
        sums += angles.sum(-1)
        num_tokens += len(text)
    return (sums / num_tokens).tolist()


def _states(lm: LM, text: Tensor) -> Tensor:
    """Return the input of each layer and the output of the last, [N+1,L,d] of a text [L]."""
    states: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        states.append(inputs[0] if inputs else kwargs["hidden_states"])

    def keep_last(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])

    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in lm.layers]
    hooks.append(lm.layers[-1].register_forward_hook(keep_last))
    try:
        with lm.products.in_use():
            lm.model.get_decoder()(input_ids=text[None], use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    device = lm.device
    return torch.cat([x.to(device) for x in states])


@torch.inference_mode()
def sample_texts(lm: LM, count: int, length: int) -> Tensor:
    """Return texts [N,L] sampled from the model at temperature 1 with fixed noise, each starting with a different token."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(length - 1, count, generator=generator)
    texts, cache = probe_ids(lm, count)[:, None], None
    for u in noise:
        with lm.products.in_use():
            output = lm.model(input_ids=texts[:, -1:] if cache else texts, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        tokens = clamp_nan_ids(draw(output.logits[:, -1].cpu().double().softmax(-1), u.double()), lm.vocab_size)
        texts = torch.cat((texts, tokens[:, None].to(lm.device)), 1)
    return texts
