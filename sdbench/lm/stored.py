"""The weights in the safetensors files of a checkpoint: their number by type, and their bytes in memory."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from sdbench.config import ConfigError

CODES = {"float64": ("F64", 8), "float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}  # in safetensors
WIDTHS = {name: width for name, (_, width) in CODES.items()}
NAMES = {code: name for name, (code, _) in CODES.items()}
# quant_method -> weights per stored number, for checkpoints that transformers dequantises on a CPU
DEQUANTISED_ON_CPU = {"fp8": 1, "mxfp4": 2}


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Weights by how they are loaded: floating ones are converted to a dtype, quantised ones stay as they are stored.

    transformers dequantises FP8 and MXFP4 on a device that cannot compute in them. Sizes here take this into account on a CPU,
    but not on an old GPU.
    """

    floating: int  # numbers of a floating type
    dtype: str  # the dtype of most of them
    quantized_bytes: float = 0  # bytes of all other numbers
    dequantized: int = 0  # number of weights that these become on a CPU; 0: they stay quantised there

    @property
    def stored_bytes(self) -> float:
        """The bytes of all weights in their files."""
        return self.floating * WIDTHS[self.dtype] + self.quantized_bytes

    def bytes(self, dtype: str | None, device: str) -> float:
        """Return their bytes in memory if the floating ones are loaded in a dtype (None: as they are stored)."""
        width = WIDTHS[dtype or self.dtype]
        is_dequantized = device == "cpu" and self.dequantized
        return self.floating * width + (self.dequantized * width if is_dequantized else self.quantized_bytes)


def stored_weights(counts: Mapping[str, int], folder: Path) -> StoredWeights:
    """Return the stored weights, from counts of numbers by safetensors type and the configuration in a folder."""
    floating = {name: counts[code] for code, name in NAMES.items() if code in counts}
    others = {code: count for code, count in counts.items() if code not in NAMES}
    most = max(floating, key=lambda name: floating[name], default="float32")
    method = _quantization_method(folder) if others else None
    size = sum(count * _width(code) for code, count in others.items())
    return StoredWeights(
        sum(floating.values()), most, size, DEQUANTISED_ON_CPU.get(method or "", 0) * sum(others.values())
    )


def weight_files(folder: Path) -> set[str]:
    """Return the names of a checkpoint's safetensors files: those of its index, otherwise model.safetensors."""
    index = folder / "model.safetensors.index.json"
    return set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {"model.safetensors"}


def count_weights(folder: Path) -> Counter[str] | None:
    """Count the numbers by safetensors type, from the headers of the files; None unless all files are there."""
    from safetensors import SafetensorError, safe_open

    counts: Counter[str] = Counter()
    for path in (folder / name for name in weight_files(folder)):
        if not path.is_file():
            return None
        try:
            with safe_open(path, "np") as file:
                for part in map(file.get_slice, file.keys()):
                    counts[part.get_dtype()] += prod(part.get_shape())
        except SafetensorError as error:
            reason = str(error).rpartition(": ")[2]
            raise ConfigError(f"{path} is damaged ({reason}): copy or download it again") from None
    return counts


def _width(code: str) -> float:
    """Return the bytes of a number of a type in safetensors, such as F8_E4M3, I32 or BOOL."""
    bits = re.search(r"\d+", code)
    return int(bits[0]) / 8 if bits else 1


def _quantization_method(folder: Path) -> str | None:
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise ConfigError(f"{folder / 'config.json'} is damaged ({error}): copy or download it again") from error
    return (config.get("quantization_config") or {}).get("quant_method")
