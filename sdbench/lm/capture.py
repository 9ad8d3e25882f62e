"""Steps whose shapes recur: run eagerly, traced, compiled, or captured as CUDA graphs and replayed.

On a CPU, half the time of a narrow model is Python overhead. TorchScript's tracer removes it: tracing takes a fraction of a
second, keeps the operations and their order, and needs neither a compiler nor changes to the model. (TorchScript is deprecated
in favour of torch.compile, which needs a C++ compiler and takes minutes.)

A step is a function of a KV length and of tensors, over one cache; everything else on which it depends is in its name. Its
inputs decide where it writes keys and values, so running it twice has the same effect as running it once. Captured steps refer
to their cache's memory and exist as long as it does. A trace serves every KV length, because the tracer records the end of a
slice as a variable; a graph serves only one.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sdbench.errors import first_line, is_out_of_memory
from sdbench.lm.rope import frequencies_depend_on_length

Mode = Literal["off", "trace", "graphs", "compile"]
CapturedStep = Callable[..., tuple[Tensor, ...]]  # of a KV length, which is a tensor in a trace, and of tensors

PATIENCE = 64  # calls of a step before it is traced by default; they cost about as much as tracing it
NARROW = 512  # models with smaller hidden sizes spend their CPU time in Python and waiting for threads
WARM_UP = 2  # runs before a capture, so that the set-up of libraries is not captured
# Largest deviation of a captured step from the eager step, relative to the largest value of a row; ids must be equal.
AGREE = {torch.float64: 1e-9, torch.float32: 1e-3}
AGREE_IF_HALF = 0.03


def mode_of(capture: Mode | None, model: PreTrainedModel, *, is_packed: bool = False) -> Mode:
    """Return the mode in which a model runs. None: graphs on one CUDA device, traces of a narrow model on the CPU, otherwise
    off. With packed weights steps run eagerly, since a trace cannot contain them.

    A model on several devices runs eagerly, and so does, except in a trace, a model on a GPU whose rotary frequencies depend on
    the length. There is a warning if another mode was requested.
    """
    if capture not in (None, *get_args(Mode)):
        raise ValueError(f"capture must be {', '.join(map(repr, get_args(Mode)))} or None, got {capture!r}")
    if is_packed and capture not in (None, "off"):
        raise ValueError(f"packed weights need steps that run eagerly: use capture='off', got {capture!r}")
    need = None
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        need = "a model on one device"
    elif capture != "trace" and frequencies_depend_on_length(model.config) and model.device.type == "cuda":
        need = (
            "rotary frequencies that do not depend on the length"  # the model reads them from the device in every call
        )
    if need is None:
        return capture or default_mode(model.config, model.device.type, is_packed=is_packed)
    if capture not in (None, "off"):
        warnings.warn(f"capture={capture} needs {need}: its steps run eagerly", stacklevel=4)
    return "off"


def default_mode(config: Any, device: str, *, is_packed: bool = False) -> Mode:
    """Return the default mode for a model with this configuration on one device of this kind."""
    if device == "cuda" and frequencies_depend_on_length(config):
        return "off"
    is_narrow = config.get_text_config().hidden_size < NARROW
    defaults: dict[str, Mode] = {"cuda": "graphs", "cpu": "trace" if is_narrow and not is_packed else "off"}
    return defaults.get(device, "off")


class CapturedSteps:
    """The steps captured so far over one cache, by name and shapes. `holds_for`: the fingerprint at their capture."""

    def __init__(self, mode: Mode = "off", holds_for: Hashable = None) -> None:
        self.mode: Mode = mode
        self.holds_for = holds_for
        self.patience = 1  # calls of a step until it is captured
        self._calls: Counter[Hashable] = Counter()
        self._steps: dict[Hashable, CapturedStep] = {}  # each for one KV length
        self._traces: dict[Hashable, CapturedStep] = {}
        self._checked: set[tuple[Hashable, int]] = set()  # names and KV lengths at which a trace agreed with its step
        self._pool: Any = None  # memory that the graphs of one cache share, since they never run at once

    def renew(self) -> "CapturedSteps":
        """Return a copy without captured steps, for a cache whose memory has moved."""
        steps = CapturedSteps(self.mode, self.holds_for)
        steps.patience = self.patience
        return steps

    def __call__(self, step: CapturedStep, name: Hashable, length: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run step(length, *inputs). The results are not overwritten by later steps."""
        if not isinstance(length, int):
            raise TypeError(f"a step is called with a KV length before its tensors, got {type(length).__name__}")
        if self.mode == "off":
            return step(length, *inputs)
        kind = name, tuple((x.shape, x.dtype) for x in inputs)
        if (kind, length) not in self._steps:
            self._calls[kind] += 1
            if self._calls[kind] < self.patience:
                return step(length, *inputs)
            self._steps[kind, length] = self._capture_step(step, kind, length, inputs)
        return self._steps[kind, length](*inputs)

    def _capture_step(
        self, step: CapturedStep, kind: tuple[Hashable, Hashable], length: int, inputs: tuple[Tensor, ...]
    ) -> CapturedStep:
        eager = partial(step, length)
        if self.mode == "compile":
            return torch.compile(eager, dynamic=False)
        stream = torch.cuda.current_stream() if inputs[0].is_cuda else None
        try:
            if self.mode == "trace":
                is_new = kind not in self._traces
                if is_new:
                    self._traces[kind] = trace_step(step, length, inputs)
                trace = partial(self._traces[kind], torch.tensor(length))
                name, _ = kind
                if is_new or (name, length) not in self._checked:  # the model's code might depend on the length
                    _check(eager(*inputs), trace(*inputs))
                    self._checked.add((name, length))
                return trace
            graph = GraphStep(eager, inputs, self._pool)
        except RuntimeError as error:  # a step that waits for the device, or has shapes that depend on values
            if is_out_of_memory(error):
                raise
            if stream is not None:
                torch.cuda.set_stream(stream)  # a failed capture leaves its stream current
            if type(error).__module__.partition(".")[0] not in ("builtins", "torch"):
                raise  # for example by a signal handler, to end a job
            way = "traced" if self.mode == "trace" else "captured as a CUDA graph"
            warnings.warn(f"a step cannot be {way}, so all of them run eagerly: {first_line(error)}", stacklevel=4)
            self.mode = "off"
            self._steps.clear()
            self._traces.clear()
            return eager
        if graph.graph is not None:
            self._pool = graph.graph.pool()
        return graph


def trace_step(step: CapturedStep, length: int, inputs: tuple[Tensor, ...]) -> CapturedStep:
    """Trace a step: the same operations without Python. Shapes become constants, except the KV length, its first input."""

    def plain(*inputs: Tensor) -> tuple[Tensor, ...]:  # the tracer needs a name, which a partial does not have
        return step(*inputs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace: Any = torch.jit.trace(plain, (torch.tensor(length), *inputs), check_trace=False)
    # What a model computes from shapes only (one operation in four) is constant too, and is folded.
    torch._C._jit_pass_peephole(trace.graph, False)
    torch._C._jit_pass_constant_propagation(trace.graph)
    # TorchScript keeps every traced function until the process ends, and with it the graph, its weights and its cache. So the
    # function is built from a copy of the graph, and the original graph is emptied.
    function = torch._C.CompilationUnit().create_function("step", trace.graph.copy(), True)
    for _ in list(trace.graph.outputs()):
        trace.graph.eraseOutput(0)
    for node in reversed(list(trace.graph.nodes())):
        node.destroy()
    return function


class GraphStep:
    """One step at fixed shapes, as a CUDA graph. Without CUDA the step itself runs, also between fixed inputs and outputs."""

    def __init__(self, step: CapturedStep, inputs: tuple[Tensor, ...], pool: Any) -> None:
        self.inputs = tuple(x.clone() for x in inputs)
        self.graph: Any = None
        self.step = step  # kept with its graph, which reads tensors that the step may own
        if inputs[0].device.type != "cuda":
            self.outputs = tuple(x.clone() for x in step(*self.inputs))
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            expected = [step(*self.inputs) for _ in range(WARM_UP)][-1]
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = step(*self.inputs)
        graph.replay()
        _check(expected, self.outputs)
        self.graph = graph

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        torch._foreach_copy_(self.inputs, inputs)  # pyright: ignore[reportPrivateImportUsage]
        if self.graph is not None:
            self.graph.replay()
        else:
            torch._foreach_copy_(self.outputs, self.step(*self.inputs))  # pyright: ignore[reportPrivateImportUsage]
        # Copies: the next replay, of this step or another that shares its memory, overwrites the outputs.
        return tuple(x.clone() for x in self.outputs)


def _check(expected: tuple[Tensor, ...], captured: tuple[Tensor, ...]) -> None:
    """Raise RuntimeError if a captured step returns other ids than the eager step, or values that differ beyond rounding."""
    for a, b in zip(expected, captured, strict=True):
        if not a.is_floating_point():
            is_equal = torch.equal(a, b)
        else:
            largest = a.abs().nan_to_num(0, posinf=0).amax(-1, keepdim=True)
            near = (a - b).abs() <= AGREE.get(a.dtype, AGREE_IF_HALF) * largest
            is_equal = bool((near | (a == b) | (a.isnan() & b.isnan())).all())
        if not is_equal:
            raise RuntimeError("the captured step gives different values")
