"""The unbiased pass@k of Chen et al. 2021 (arXiv:2107.03374), equation 1."""

from __future__ import annotations

from math import comb


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """The chance that k of the samples, drawn without putting back, hold one that passes."""
    if not 1 <= k <= num_samples:
        raise ValueError(f"k must be between 1 and the number of samples, {num_samples}, got {k}")
    return 1 - comb(num_samples - num_passed, k) / comb(num_samples, k)
