"""The tensors of a GGUF file, dequantised, with the names and layouts of a transformers model.

One tensor is in memory at a time in float32, and what dequantising takes beside it for a few of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sdbench.config import ConfigError

if TYPE_CHECKING:
    from gguf import ReaderTensor

# In names of tensors without which a model is the same: rotary frequencies of old files, and layers that predict further tokens.
UNUSED = ("rot_embd", "rope_freqs", ".nextn.")
AT_ONCE = 1 << 20  # elements that are dequantised at a time


def read_tensors(id: str, path: Path, model: Any, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the dequantised tensors of a file, with the names and layouts of a transformers model.

    ConfigError for a tensor that the model has no place for: without it another model would be decoded.
    """
    from gguf import GGUFReader
    from transformers import modeling_gguf_pytorch_utils as theirs

    reader = GGUFReader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    kinds = theirs.TENSOR_PROCESSORS
    kind = kinds.get(architecture) or kinds.get(architecture.replace("-", "_"), theirs.TensorProcessor)
    processor = kind(config=config.to_dict())
    names = theirs.get_gguf_hf_weights_map(model, processor)
    parts, merged = Counter(names.values()), {"tensors": {}}  # experts' tensors, each merged from several
    for tensor in reader.tensors:
        done = processor.process(
            weights=dequantise_rows(tensor), name=tensor.name, tensor_key_mapping=names, parsed_parameters=merged
        )
        name = names.get(done.name or str(tensor.name).removesuffix(".weight"))
        if name is None and not any(part in str(tensor.name) for part in UNUSED):
            raise ConfigError(
                f"{id} has {tensor.name}, which a {config.model_type} of transformers does not read from GGUF: give the "
                "publisher's own repository"
            )
        if name is not None and done.name is not None:
            yield name, torch.from_numpy(np.require(done.weights, requirements=["C", "W"]))
        elif name is not None:
            parts[name] -= 1
            if not parts[name]:
                yield name, merged["tensors"].pop(name)


def dequantise_rows(tensor: ReaderTensor) -> np.ndarray:
    """Return a tensor, dequantised some rows at a time."""
    from gguf import dequantize

    step = max(1, AT_ONCE * len(tensor.data) // int(tensor.n_elements))
    parts = (dequantize(tensor.data[at : at + step], tensor.tensor_type) for at in range(0, len(tensor.data), step))
    first = next(parts)
    weights = np.empty((len(tensor.data), *first.shape[1:]), first.dtype)
    weights[:step] = first
    for index, part in enumerate(parts, 1):
        weights[index * step : (index + 1) * step] = part
    return weights
