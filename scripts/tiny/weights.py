"""Weights stacked by kind: their initial values, and how they are written as an ordinary Hugging Face folder."""

import math
import re
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from scripts.tiny.forward import Net, Weights
from scripts.tiny.pairs import GEMMA_POST_GAIN, Family, hf_config

QK_GAIN = 1.5
_LAYER = re.compile(r"model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.weight")


def initial(net: Net, vocabulary: int, seed: int) -> Weights:
    """Return initial fp32 weights. Embeddings have unit scale: their distances are large compared with the change in a step."""
    g = torch.Generator().manual_seed(seed)
    s = net.shape
    sizes = {
        "q_proj": (s.heads * s.head_dim, s.width),
        "k_proj": (s.kv_heads * s.head_dim, s.width),
        "v_proj": (s.kv_heads * s.head_dim, s.width),
        "o_proj": (s.width, s.heads * s.head_dim),
        "gate_proj": (s.feed_forward, s.width),
        "up_proj": (s.feed_forward, s.width),
        "down_proj": (s.width, s.feed_forward),
    }
    weights = {k: torch.randn(s.layers, *mn, generator=g) / math.sqrt(mn[1]) for k, mn in sizes.items()}
    if net.family != "gemma":  # Gemma norms the block's output, so the scale of these weights does not matter
        for kind in ("o_proj", "down_proj"):
            weights[kind] *= 1 / math.sqrt(2 * s.layers)
    if net.family != "llama":
        weights["q_norm"] = torch.full((s.layers, s.head_dim), QK_GAIN)
    weights["embed"] = torch.randn(vocabulary, s.width, generator=g)
    if net.family == "gemma":  # it multiplies the embedding by sqrt(width)
        weights["embed"] /= math.sqrt(s.width)
    weights["head"] = torch.randn(vocabulary, s.width, generator=g) * 0.02
    return weights


def grown(weights: Weights, layers: int) -> Weights:
    """Return the weights of a deeper model that computes the same function.

    New layers copy the two layers before them, but add nothing to the stream yet. They are added in pairs, so that in Gemma every
    second layer still has a sliding window.
    """
    before = weights["o_proj"].shape[0]
    every = before // ((layers - before) // 2)
    origin = [i for last in range(every, before + 1, every) for i in (*range(last - every, last), last - 2, last - 1)]
    is_new = torch.tensor([i % (every + 2) >= every for i in range(layers)])
    stacks = {kind: w[origin] for kind, w in weights.items() if kind not in ("embed", "head")}
    for kind in ("o_proj", "down_proj"):
        stacks[kind][is_new] = 0
    return weights | stacks


def to_model(net: Net, weights: Weights, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return the family's HF model with these weights."""
    vocabulary = weights["embed"].shape[0]
    model = AutoModelForCausalLM.from_config(hf_config(net.family, net.shape, vocabulary))
    state = {name: _tensor(name, like, net.family, weights) for name, like in model.state_dict().items()}
    model.load_state_dict(state)
    return model.to(dtype).eval()


def _tensor(name: str, like: Tensor, family: Family, weights: Weights) -> Tensor:
    if name == "model.embed_tokens.weight":
        return weights["embed"]
    if name == "lm_head.weight":
        return weights["head"]
    match = _LAYER.fullmatch(name)
    if match and match[2] in weights:
        stored = weights[match[2]][int(match[1])]
        return stored - 1 if family == "gemma" and match[2] == "q_norm" else stored
    gain = GEMMA_POST_GAIN if "post_attention" in name or "post_feedforward" in name else 1.0
    if family == "gemma":  # stores gain − 1
        return torch.full_like(like, gain - 1)
    return torch.ones_like(like)


def save(net: Net, weights: Weights, folder: Path) -> None:
    """Write the model with `save_pretrained`, in bf16."""
    cpu = {kind: tensor.detach().float().cpu() for kind, tensor in weights.items()}
    to_model(net, cpu, torch.bfloat16).save_pretrained(folder)


def load(net: Net, folder: Path) -> Weights:
    """Return in fp32 the weights that `save` wrote."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    layers: dict[str, dict[int, Tensor]] = {}
    weights: Weights = {}
    for name, tensor in model.state_dict().items():
        if name == "model.embed_tokens.weight":
            weights["embed"] = tensor
        elif name == "lm_head.weight":
            weights["head"] = tensor
        elif (match := _LAYER.fullmatch(name)) and (match[2].endswith("_proj") or match[2] == "q_norm"):
            gain = 1 if net.family == "gemma" and match[2] == "q_norm" else 0  # Gemma stores gain − 1
            layers.setdefault(match[2], {})[int(match[1])] = tensor + gain
    for kind, stack in layers.items():
        weights[kind] = torch.stack([stack[i] for i in range(net.shape.layers)])
    return weights
