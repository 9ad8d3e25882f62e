"""Linear layers on a CPU with weights in oneDNN's own layout.

PyTorch stores a weight [O,I] row by row. oneDNN multiplies faster by a weight in its own blocked layout, so these layers keep a
copy in that layout (docs/guide.md has the speed-up). The weights themselves stay. Those that are mapped from a file (lm/mapped.py)
take no memory as long as only the copies are read.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sdbench.lm.fingerprint import fingerprint
from sdbench.lm.mapped import release, unchanged_files

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NAMES = "bfloat16, float16 or float32"


def reorder(weight: Tensor) -> Any:
    """Return a copy of a weight in oneDNN's layout, which only oneDNN's product can read."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


class PackedWeight:
    """The packed copy of one weight. It is made again if the weight is another tensor, has moved, or was changed in place."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._weight: Tensor | None = None
        self._state: tuple[int, int] | None = None
        self._copy: Any = None

    def of(self, weight: Tensor) -> Any:
        state = weight.data_ptr(), 0 if weight.is_inference() else weight._version
        if weight is not self._weight or state != self._state:
            self._copy = None  # frees the memory first
            self._copy = reorder(weight.detach())
            self._weight, self._state = weight, state
        return self._copy


class PackedWeights:
    """The packed copies of the weights of several models, which may share weights."""

    def __init__(self) -> None:
        self._copies: dict[int, PackedWeight] = {}

    def layers_of(self, model: nn.Module) -> "PackedLayers":
        """Pack the weights of all plain linear layers of a model; ValueError if this machine or model cannot use them."""
        refuse_unpackable(model)
        linears = [m for m in model.modules() if type(m) is nn.Linear]
        copies = [self._copies.setdefault(id(linear.weight), PackedWeight()) for linear in linears]
        return PackedLayers(model, linears, copies)


class PackedLayers:
    """Linear layers of one model, none by default, and the copies of their weights."""

    def __init__(
        self, model: nn.Module, linears: Sequence[nn.Linear] = (), copies: Sequence[PackedWeight] = ()
    ) -> None:
        self._model, self._pairs = model, list(zip(linears, copies, strict=True))
        self._forwards: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = [
            (vars(linear), partial(_product, linear, copy)) for linear, copy in self._pairs
        ]
        self._holds_for: Hashable = None
        self.renew()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the layers multiply by their packed weights in this context, unless gradients are recorded, since such a product has
        none. Afterwards the model is unchanged. A layer whose `forward` has already been replaced keeps that `forward`.
        """
        forwards = () if torch.is_grad_enabled() else self._forwards
        replaced = [(values, forward) for values, forward in forwards if "forward" not in values]
        for values, forward in replaced:
            values["forward"] = forward
        try:
            yield
        finally:
            for values, _ in replaced:
                values.pop("forward", None)

    def renew(self) -> None:
        """Make the copies, or make them again after a change of the model that `PackedWeight` does not see (lm/fingerprint.py).

        The memory of weights that are mapped from a file is given back, so nothing may write to the weights meanwhile.
        """
        if not self._pairs:
            return
        files = unchanged_files()
        now = fingerprint(self._model, files)
        if now == self._holds_for:
            return
        if self._holds_for is not None:
            for _, copy in self._pairs:
                copy.clear()
        for linear, copy in self._pairs:
            copy.of(linear.weight)
            release(linear.weight, files)
        self._holds_for = now


def _product(linear: nn.Linear, copy: PackedWeight, x: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, copy.of(linear.weight), linear.bias, "none", [], "")
    return y


def has_instructions(dtype: torch.dtype) -> bool:
    """Return whether oneDNN has products in this dtype for this CPU."""
    ops: Any = torch.ops.mkldnn
    supported = {torch.bfloat16: ops._is_mkldnn_bf16_supported, torch.float16: ops._is_mkldnn_fp16_supported}
    return bool(supported.get(dtype, lambda: True)())


def refuse_unpackable(model: Any) -> None:
    """Raise ValueError for a model on a GPU, a dtype without such a layout, or a build of PyTorch without oneDNN."""
    dtype = model.dtype
    why = None
    if model.device.type != "cpu":
        why = f"are for models on a CPU, and this one is on {model.device.type}"
    elif not torch.backends.mkldnn.is_available():
        why = "need oneDNN, which this build of PyTorch does not have"
    elif dtype not in DTYPES:
        why = f"must be {NAMES}, got {str(dtype).removeprefix('torch.')}"
    elif not has_instructions(dtype):
        why = f"in {str(dtype).removeprefix('torch.')} need instructions that this CPU does not have"
    if why is not None:
        raise ValueError(f"packed weights {why}")
