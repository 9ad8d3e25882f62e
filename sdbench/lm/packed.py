"""Linear layers on a CPU with weights in oneDNN's own layout.

PyTorch stores a weight [O,I] row by row. oneDNN multiplies faster by a weight in its own blocked layout, so these layers keep a
copy in that layout (docs/guide.md has the speed-up). The weights themselves stay. Those that are mapped from a file (lm/mapped.py)
take no memory as long as only the copies are read.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from sdbench.lm.fingerprint import fingerprint_of
from sdbench.lm.mapped import release, unchanged_files

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NAMES = "bfloat16, float16 or float32"
CLOSE = 1e-4  # how far two products of one row may be apart, relative to their length; at least four roundings


def reorder(weight: Tensor) -> Any:
    """Return a copy of a weight in oneDNN's layout, which only oneDNN's product can read."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


class PackedWeight:
    """The packed copy of one weight. It is made again if the weight is another tensor, has moved, or was changed in place."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.clear()

    def clear(self) -> None:
        self._state: tuple[int, int] | None = None
        self._copy: Any = None

    def of(self, weight: Tensor) -> Any:
        self.update(weight)
        return self._copy

    def update(self, weight: Tensor) -> bool:
        """Make the copy if it is not that of this weight as it is now, and return whether it was made."""
        state = weight.data_ptr(), 0 if weight.is_inference() else weight._version
        if weight is self.weight and state == self._state:
            return False
        self._copy = None  # frees the memory first
        self._copy = reorder(weight.detach())
        self.weight, self._state = weight, state
        return True


class PackedWeights:
    """The packed copies of the weights of several models, which may share weights. A copy lives as long as layers that use it."""

    def __init__(self) -> None:
        self._copies: WeakValueDictionary[int, PackedWeight] = WeakValueDictionary()

    def layers_of(self, model: nn.Module) -> "PackedLayers":
        """Pack the weights of all plain linear layers of a model; ValueError if this machine or model cannot use them."""
        refuse_unpackable(model)
        linears = [m for m in model.modules() if type(m) is nn.Linear]
        return PackedLayers(linears, [self._copy_of(linear.weight) for linear in linears])

    def _copy_of(self, weight: Tensor) -> PackedWeight:
        copy = self._copies.get(id(weight))
        if copy is None or copy.weight is not weight:  # another weight had this id before
            copy = self._copies[id(weight)] = PackedWeight(weight)
        return copy


class PackedLayers:
    """Linear layers of one model, none by default, and the copies of their weights."""

    def __init__(self, linears: Sequence[nn.Linear] = (), copies: Sequence[PackedWeight] = ()) -> None:
        self._pairs = list(zip(linears, copies, strict=True))
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
        """Make the copies, or make them again after a change of a weight that `PackedWeight` does not see (lm/fingerprint.py).

        The memory of weights that are mapped from a file is given back, so nothing may write to the weights meanwhile. ValueError
        if a layer's own product with its weight is another one than that with the copy.
        """
        if not self._pairs:
            return
        files = unchanged_files()
        now = fingerprint_of([linear.weight for linear, _ in self._pairs], files)
        if now == self._holds_for:
            return
        if self._holds_for is not None:
            for _, copy in self._pairs:
                copy.clear()
        for linear, copy in self._pairs:
            if copy.update(linear.weight):
                _refuse_another_product(linear, copy)
            release(linear.weight, files)
        self._holds_for = now


def _product(linear: nn.Linear, copy: PackedWeight, x: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, copy.of(linear.weight), linear.bias, "none", [], "")
    return y


@torch.no_grad()
def _refuse_another_product(linear: nn.Linear, copy: PackedWeight) -> None:
    """Raise ValueError if the product of one row differs from that of the layer's class by more than rounding explains."""
    x = torch.arange(1, linear.in_features + 1, dtype=torch.float32).cos().to(linear.weight.dtype)[None]
    theirs, ours = type(linear).forward(linear, x).float(), _product(linear, copy, x).float()
    if (theirs - ours).norm() > max(CLOSE, 4 * torch.finfo(x.dtype).eps) * theirs.norm():  # false where weights are NaN
        size = f"{linear.in_features} to {linear.out_features} features"
        raise ValueError(
            f"packed weights give another product than a linear layer of the model ({size}): its class may have been changed; use "
            "packed=false"
        )


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
