"""Attention that splits the keys of a text over the whole device. With few texts, one processor per key head reads too slowly.

PyTorch's kernels take the ragged mask as a dense tensor, which excludes its flash kernel, and none of the others splits the
keys of one text. flash-attn (2.6 or newer, installed by the user) reads the engine's cache in place and takes a length for each
row. Never run here, because no GPU was available. tests/lm/test_split_kv.py replaces the kernel by code that follows the
documentation of its arguments, and `probe.probe` compares the result with the model's laws before anything is decoded.
"""

from collections.abc import Callable

import torch
from torch import Tensor

WIDEST_HEAD = 256  # flash-attn's limit
Kernel = Callable[..., Tensor]


def kernel_for(device: torch.device, dtype: torch.dtype) -> Kernel | None:
    """Return flash-attn's kernel if it is installed and takes such tensors; None: use masks and PyTorch's kernels."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return None
    try:
        from flash_attn import flash_attn_with_kvcache  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return flash_attn_with_kvcache


def attend(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, ends: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """Attend with queries [B,H,T,D], the last tokens of texts of `ends` [B] tokens, to [B,G,L,D]; return [B,T,H,D]."""
    by_token = (states.transpose(1, 2) for states in (query, key, value))
    return kernel(*by_token, cache_seqlens=ends, softmax_scale=scale, causal=True, softcap=softcap or 0.0)
