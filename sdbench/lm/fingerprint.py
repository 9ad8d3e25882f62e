"""A fingerprint of a model for captured steps and stored answers: equal until something changes that affects logits.

Weights and buffers count by identity, version and a sample of their values. The sample is needed because a change through
`.data`, as `parameter.data.mul_(2)` or a merged adapter, leaves the version unchanged. Not detected: a change through `.data` of
a few elements outside the sample, and a change inside a dictionary or a list of objects. Weights in files that are mapped into
memory and were not written to (lm/mapped.py) need no sample: the state of their file counts.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from sdbench.lm.mapped import MappedFile, file_of

ENGINES_OWN = "_attn_implementation_internal"  # set and reset by the engine around every forward pass
SAMPLE = 256
PLAIN = (int, float, str, bool, type(None))
USUAL = frozenset(vars(nn.Module()))  # attributes of every module
TENSORS = ("_parameters", "_buffers")
HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith("_hooks"))


class Same:
    """An object by identity: equal only to the same object while that is alive, so a new object at an old address differs."""

    __slots__ = ("_ref",)

    def __init__(self, value: Any) -> None:
        self._ref = ref(value)

    def __eq__(self, other: object) -> bool:
        mine = self._ref()
        return mine is not None and isinstance(other, Same) and mine is other._ref()

    def __hash__(self) -> int:
        return hash(Same)


def fingerprint(model: nn.Module, files: Collection[MappedFile] = ()) -> Hashable:
    """Return the fingerprint: of the weights, buffers, plain attributes, hooks and replaced forwards, and of the configuration.

    files: those of `mapped.unchanged_files`, whose weights are not sampled, since that would read them into memory.
    """
    modules = list(model.modules())
    configs = {id(config): config for module in modules if (config := vars(module).get("config")) is not None}
    written = [str({k: v for k, v in vars(config).items() if k != ENGINES_OWN}) for config in configs.values()]
    tensors = [x for module in modules for name in TENSORS for x in vars(module)[name].values() if x is not None]
    return (*written, _contents(tensors, files), *(part for module in modules for part in _parts(module)))


def fingerprint_of(tensors: Sequence[Tensor], files: Collection[MappedFile] = ()) -> Hashable:
    """Return the fingerprint of weights alone."""
    return _contents(tensors, files), *(_tensor("", tensor) for tensor in tensors)


def _contents(tensors: Sequence[Tensor], files: Collection[MappedFile]) -> Hashable:
    """Return the states of the files that hold some of these tensors, and a sample of the others."""
    held = [(tensor, file_of(tensor, files) if files else None) for tensor in tensors]
    states = {file: file.state for file in dict.fromkeys(file for _, file in held if file is not None)}
    return tuple(states.values()), sample_of(tensor for tensor, file in held if file is None)


def sample_of(tensors: Iterable[Tensor]) -> tuple[bytes, ...]:
    """Return up to SAMPLE evenly spread values of each tensor as bytes, with one copy to the host per device and dtype."""
    parts: dict[Hashable, list[Tensor]] = {}
    for x in tensors:
        if x.device.type != "meta":
            flat = x.detach().flatten() if x.is_contiguous() else x.detach().reshape(-1)
            parts.setdefault((x.device, x.dtype), []).append(flat[:: max(1, -(-flat.numel() // SAMPLE))])
    return tuple(torch.cat(values).contiguous().view(torch.uint8).cpu().numpy().tobytes() for values in parts.values())


def _parts(module: nn.Module) -> Iterator[Hashable]:
    values = vars(module)
    yield Same(module)
    yield values["training"]
    for name in TENSORS:
        for key, tensor in values[name].items():
            yield None if tensor is None else _tensor(key, tensor)
    for name in HOOKS:
        if values[name]:
            yield name, *((key, id(hook)) for key, hook in values[name].items())
    for name, value in values.items():
        if name not in USUAL:
            yield _value(name, value)


def _tensor(name: str, tensor: Tensor) -> Hashable:
    # Tensors created in inference mode have no version. A change could not be detected, so they never compare equal.
    return name, Same(tensor), tensor.data_ptr(), object() if tensor.is_inference() else tensor._version


def _value(name: str, value: Any) -> Hashable:
    if isinstance(value, PLAIN):
        return name, value
    if isinstance(value, Tensor):
        return _tensor(name, value)
    if isinstance(value, dict | list | set | frozenset | tuple):
        parts = (*value, *value.values()) if isinstance(value, dict) else tuple(value)
        if all(isinstance(part, PLAIN) for part in parts):
            return name, parts
    try:
        return name, Same(value)
    except TypeError:  # weak references are not supported: a dictionary or a list of other objects
        return name, id(value)
