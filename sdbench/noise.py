"""Uniforms as a function of (seed, example key, sample, round, slot), with separate streams for drafter and verifier.

There is no state, so an output cannot depend on the batch, its order, a refill or a shard. Uniforms are keyed by round, not by
position in the text: joint rules read uniforms past the rejected slot, and using a uniform twice would bias the output.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

DRAW = 1 << 20  # the slot that draws the next token, independent of the number of drafted slots
DRAFT, VERIFY = 0, 1
_ROUND, _SLOT, _STREAM = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7))

Key = int | str


def stream_key(seed: int, key: Key, sample: int) -> NDArray[np.uint64]:
    """Return 128 bits [2] that identify the noise of one generation; the cells of an example share it, round by round."""
    name = f"{seed}|{type(key).__name__}|{key}|{sample}"
    return np.frombuffer(blake2b(name.encode(), digest_size=16).digest(), dtype=np.uint64)


def slots(num_draft: int) -> NDArray[np.uint64]:
    """Return [K+1]: the slot of each drafted token, then the one that draws the next token."""
    return np.array([*range(num_draft), DRAW], dtype=np.uint64)


def uniforms(
    keys: NDArray[np.uint64], rounds: Sequence[int] | NDArray[np.uint64], slots: NDArray[np.uint64], stream: int
) -> NDArray[np.float64]:
    """Return [B,S] in [0, 1) with 52 bits, for keys [B,2] in their rounds [B]."""
    with np.errstate(over="ignore"):
        where = np.asarray(rounds, dtype=np.uint64)[:, None] * _ROUND + slots * _SLOT + np.uint64(stream + 1) * _STREAM
        bits = _mix(_mix(where ^ keys[:, :1]) ^ keys[:, 1:])
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


def table(key: NDArray[np.uint64], first: int, num_rounds: int, num_draft: int) -> NDArray[np.float64]:
    """Return [R,2K+1] for the rounds first … first + R − 1 of a generation: K to draft, K to judge, one for the next token."""
    rounds = np.arange(first, first + num_rounds, dtype=np.uint64)
    where = slots(num_draft)
    parts = ((where[:-1], DRAFT), (where, VERIFY))
    return np.concatenate([uniforms(key[None], rounds, part, stream) for part, stream in parts], 1)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014; variant 13 of Stafford): every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
