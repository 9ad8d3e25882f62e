"""Steps whose shapes come back: run as they are, traced, compiled, or recorded as CUDA graphs and replayed.

On a CPU half the time of a narrow model is Python's; TorchScript's tracer takes it away in a fraction of a second, with the same
operations in the same order, no compiler and no change to the model. (It is marked deprecated for torch.compile, which takes a
C++ compiler and minutes.)

A step is a function of tensors over one cache: all else it depends on is in its name. It writes keys and values where its inputs
say, so running it twice is running it once. Records name their cache's memory: they live and die with it.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

Mode = Literal["off", "trace", "graphs", "compile"]
Step = Callable[..., tuple[Tensor, ...]]

PATIENCE = 64  # calls of a step before it is traced unasked: by then it has cost about what tracing costs
WARM_UP = 2  # runs before a recording: what libraries set up on first use must not be recorded
AGREE = 0.05  # of the largest value: a replay that differs more from the step itself was recorded wrongly


def mode_of(asked: Mode | None, model: PreTrainedModel) -> Mode:
    """None: graphs where the model is on one CUDA device, traces where it is on the CPU, off elsewhere.

    On several devices a model runs eagerly, and where its positions' frequencies depend on values; that is said if it was asked.
    """
    if asked not in (None, *get_args(Mode)):
        raise ValueError(f"capture must be {', '.join(map(repr, get_args(Mode)))} or None, got {asked!r}")
    why = None
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        why = "a model on one device"
    elif "'rope_type': 'dynamic'" in str(getattr(model.config, "rope_parameters", None)):
        why = "frequencies that do not depend on the length"
    if why is not None:
        if asked not in (None, "off"):
            warnings.warn(f"capture={asked} needs {why}: its steps run eagerly", stacklevel=4)
        return "off"
    ours: dict[str, Mode] = {"cuda": "graphs", "cpu": "trace"}
    return asked or ours.get(model.device.type, "off")


class Records:
    """The steps recorded so far over one cache, by name and shapes. `alike`: what they hold for."""

    def __init__(self, mode: Mode = "off", alike: Hashable = None) -> None:
        self.mode, self.alike = mode, alike
        self.patience = 1  # a step is recorded when it is called for the so-manieth time
        self._calls: Counter[Hashable] = Counter()
        self._steps: dict[Hashable, Step] = {}
        self._pool: Any = None  # memory that the graphs of one cache share: they never run at once

    def __call__(self, step: Step, name: Hashable, *inputs: Tensor) -> tuple[Tensor, ...]:
        """step(*inputs). With graphs, the result is overwritten when a step of this cache runs again."""
        if self.mode == "off":
            return step(*inputs)
        key = name, tuple((x.shape, x.dtype) for x in inputs)
        if key not in self._steps:
            self._calls[key] += 1
            if self._calls[key] < self.patience:
                return step(*inputs)
            self._steps[key] = self._recorded(step, inputs)
        return self._steps[key](*inputs)

    def _recorded(self, step: Step, inputs: tuple[Tensor, ...]) -> Step:
        if self.mode == "compile":
            return torch.compile(step, dynamic=False)
        try:
            if self.mode == "trace":
                return traced(step, inputs)
            record = Record(step, inputs, self._pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a step that waits for the device, or whose shapes depend on values
            what = "traced" if self.mode == "trace" else "recorded as a CUDA graph"
            reason = f"{error}".splitlines()[0]
            warnings.warn(f"a step cannot be {what} and runs eagerly: {reason}", stacklevel=4)
            return step
        if record.graph is not None:
            self._pool = record.graph.pool()
        return record


def traced(step: Step, inputs: tuple[Tensor, ...]) -> Step:
    """The same operations without Python in between; shapes are constants of it, as they are of its key."""

    def plain(*inputs: Tensor) -> tuple[Tensor, ...]:  # the tracer asks for a name, which a partial lacks
        return step(*inputs)

    wanted = step(*inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = torch.jit.trace(plain, inputs, check_trace=False)
    _check(wanted, found(*inputs))
    del found._torchdynamo_inline  # the step itself, and with it the model: a record must not keep either alive
    return found


class Record:
    """One step at fixed shapes: a CUDA graph. Elsewhere a rehearsal of one, whose inputs and outputs stay in place too."""

    def __init__(self, step: Step, inputs: tuple[Tensor, ...], pool: Any) -> None:
        self.inputs = tuple(x.clone() for x in inputs)
        self.graph: Any = None
        if inputs[0].device.type != "cuda":
            self.step, self.outputs = step, tuple(x.clone() for x in step(*self.inputs))
            return
        own = torch.cuda.Stream()
        own.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(own):
            wanted = [step(*self.inputs) for _ in range(WARM_UP)][-1]
        torch.cuda.current_stream().wait_stream(own)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = step(*self.inputs)
        graph.replay()
        _check(wanted, self.outputs)
        self.graph = graph

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        for mine, new in zip(self.inputs, inputs, strict=True):
            mine.copy_(new)
        if self.graph is not None:
            self.graph.replay()
        else:
            for mine, new in zip(self.outputs, self.step(*self.inputs), strict=True):
                mine.copy_(new)
        return self.outputs


def _check(wanted: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> None:
    """What a recording gives must be what the step gives, but for rounding."""
    for a, b in zip(wanted, found, strict=True):
        if a.is_floating_point() and not torch.allclose(
            a, b, rtol=0, atol=AGREE * float(a.abs().max()), equal_nan=True
        ):
            raise RuntimeError("its recording gives other values than the step itself")
