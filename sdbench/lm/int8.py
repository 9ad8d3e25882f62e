"""int8 weights with a scale for each output, quantised in memory. A text does not depend on the other texts of its batch.

torch's dynamic int8 is not used: it also quantises activations, with one scale per batch, so a text would depend on the others.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sdbench.config import ConfigError

LARGEST = 127
MULTIPLE = 32  # both sizes of a weight must be multiples of this, or the kernel reads past the end
# When torch's int8 kernel is faster on a CPU than converting the weights (measured with sizes of 576 to 4,864). In float32 it is a
# plain loop. In bfloat16 its time grows with the rows, so that 1,000 rows take ten times as long as with converted weights.
KERNEL_TYPE = torch.bfloat16
KERNEL_ROWS = 16


class Int8Linear(nn.Module):
    """A linear layer whose weight is an int8 [O,I] times a scale [O]. Activations keep their dtype."""

    values: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(1).double().clamp_min(torch.finfo(weight.dtype).tiny) / LARGEST
        values = (weight.double() / scale[:, None]).round().clamp(-LARGEST, LARGEST)
        self.register_buffer("values", values.to(torch.int8))
        self.register_buffer("scale", scale.to(weight.dtype))
        self.bias = linear.bias
        is_whole = not any(size % MULTIPLE for size in weight.shape)
        self.has_kernel = is_whole and weight.device.type == "cpu" and weight.dtype == KERNEL_TYPE

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if self.has_kernel and x.dtype == self.scale.dtype and len(rows) <= KERNEL_ROWS:
            y = torch.ops.aten._weight_int8pack_mm(rows, self.values, self.scale).view(*x.shape[:-1], -1)
        else:
            y = nn.functional.linear(x, self.values.to(x.dtype)) * self.scale
        return y if self.bias is None else y + self.bias


def refuse_experts(model: Any, name: str) -> None:
    """Raise a ConfigError for experts: transformers keeps the weights of all of a layer in one parameter, not in linear layers."""
    first = next((label for label, weight in model.named_parameters() if weight.ndim > 2), None)
    if first is not None:
        raise ConfigError(
            f"{name} keeps the weights of its experts in {first}, which quantization=int8 does not quantise: remove it"
        )


def refuse_experts_of(config: Any, model_class: Any, name: str) -> None:
    """Raise as `refuse_experts` does for the model of a configuration, whose weights are not needed."""
    if model_class is not None and model_class._can_set_experts_implementation():
        with torch.device("meta"):
            refuse_experts(model_class(config), name)


def quantize_layers(model: Any, name: str = "the model") -> Any:
    """Replace a model's linear layers, except the head; a ConfigError if it has none, or has experts."""
    refuse_experts(model, name)
    head = model.get_output_embeddings()
    linears = [
        (module, label, child)
        for module in model.modules()
        for label, child in module.named_children()
        if type(child) is nn.Linear and child is not head
    ]
    if not linears:
        raise ConfigError(f"{name} has no linear layer that quantization=int8 could quantise: remove it")
    for module, label, child in linears:
        setattr(module, label, Int8Linear(child))
    return model
