"""Quantised weights: by bitsandbytes or torchao while a checkpoint is read, or by the engine afterwards (int8)."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sdbench.config import ConfigError

INT8 = "int8"  # by lm/int8.py: read in full, then quantised
QUANTIZED = {  # bytes per weight, with scales; packages needed
    INT8: (1.1, []),  # after quantisation; while it is read, a checkpoint takes its full size
    "bnb-int8": (1.1, ["bitsandbytes"]),
    "bnb-nf4": (0.6, ["bitsandbytes"]),
    "torchao-int8": (1.1, ["torchao"]),
    "torchao-int4": (0.6, ["torchao", "mslk"]),
}


def require_packages(quantization: str | None, device_map: str | None) -> None:
    """Raise if a package that these options need is missing; none is imported."""
    needed = QUANTIZED[quantization][1] if quantization else []
    needed = [*needed, "accelerate"] if needed or device_map else []
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        option = f"quantization={quantization}" if quantization else f"device_map={device_map}"
        raise ConfigError(f"{option} needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def quantization_config(name: str) -> Any:
    """Return transformers' configuration of bitsandbytes (bnb-int8, bnb-nf4) or torchao (torchao-int8, torchao-int4)."""
    import torch
    import transformers

    require_packages(name, None)
    if name.startswith("torchao"):
        kind = {"torchao-int8": "Int8WeightOnlyConfig", "torchao-int4": "Int4WeightOnlyConfig"}[name]
        return transformers.TorchAoConfig(getattr(import_module("torchao.quantization"), kind)())
    nf4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    options: dict[str, Any] = {"load_in_8bit": True} if name == "bnb-int8" else nf4
    return transformers.BitsAndBytesConfig(**options)
