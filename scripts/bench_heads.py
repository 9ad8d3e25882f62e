"""The time of drafts by heads and layers that read a target's states, as ratios in one run; bench_drafters.py calls this.

A head that does not ship for a pair is random; its drafts take as long as those of a trained head.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scripts.bench_tools import Stopwatch, target_s, time_engines
from sdbench.draft import class_of
from sdbench.draft.block import MASK
from sdbench.engine import Engine, generate
from sdbench.lm.model import LM
from sdbench.lm.state_model import initial_weights
from sdbench.probs import draw
from sdbench.verify import Exact

NUM_DRAFT, PROMPT, WARM_UPS = 5, 64, 2
CALLS = 50  # calls of a layer for a median
OF_CALL, OF_CALL_ON_GPU, OF_LAYERS = 0.15, 0.12, 1.2  # goals
HEADS = {  # drafter: goals of the largest time of its draft on a CPU, in target calls and in NUM_DRAFT calls of a layer
    "medusa": (OF_CALL, None),
    "mtp": (None, OF_LAYERS),
    "eagle": (None, OF_LAYERS),
    "eagle3": (None, OF_LAYERS),
    "block": (None, None),
}


def random_head(engine: Engine, name: str, num_draft: int) -> Any:
    """Return an untrained drafter of this kind: its layers are copies of the target's last."""
    kind, _ = class_of(name)
    target, generator = engine.target, torch.Generator().manual_seed(0)
    width = target.config.hidden_size

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * width**-0.5

    if name == "medusa":
        weights = {"weight": noise(num_draft, width, width), "bias": noise(num_draft, width)}
    else:
        num_layers = 2 if name == "block" else None
        weights = initial_weights(target, norms=name != "eagle", joins=name == "eagle3", num_layers=num_layers)
        weights |= {MASK: noise(num_draft - 1, width)} if name == "block" else {}
    return kind(target, engine.warp(1.0), weights)


def draft_prices(bench: Any, name: str, engine: Engine, drafter: Any, note: str = "") -> Iterator[Any]:
    """Yield the time of a draft at batch 1 with captured steps, divided by a target call on one token and by calls of a layer."""
    of_call, of_layers = HEADS[name]
    of_call = OF_CALL_ON_GPU if bench.device.startswith("cuda") else of_call
    length = PROMPT + bench.new // 2
    calls: list[float] = []
    layers: list[float] = []
    layer_s = layer_timer(bench, length)
    for turn in range(-WARM_UPS, bench.repeats):
        spent_s, one_layer_s = draft_s(bench, engine, drafter), layer_s()
        if turn >= 0:
            calls.append(spent_s / target_s(bench, 1, 1, length))
            layers.append(spent_s / (NUM_DRAFT * one_layer_s))
    what = f"{name}: a draft of {NUM_DRAFT} tokens at batch 1"
    yield bench.figure(f"{what} over a target call", calls, joined(goal(of_call), note))
    yield bench.figure(f"{what} over {NUM_DRAFT} calls of a layer", layers, joined(goal(of_layers), note))


def head_price(bench: Any) -> Any:
    """Return the time of the target's head and of drawing a token, divided by a call of a layer; each drafted token needs both."""
    length = PROMPT + bench.new // 2
    head_s, layer_s = head_timer(bench, length), layer_timer(bench, length)
    ratios = [head_s() / layer_s() for _ in range(-WARM_UPS, bench.repeats)][WARM_UPS:]
    return bench.figure("the target's head and drawing a token at batch 1 over a call of a layer", ratios)


def goal(most: float | None) -> str:
    return "" if most is None else f"goal: at most {most:g}"


def joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def draft_s(bench: Any, engine: Engine, drafter: Any) -> float:
    """Return the median seconds of drafting in a round at batch 1."""
    more: dict[str, Any] = {"num_draft": NUM_DRAFT, "max_new_tokens": bench.new, "stop_ids": (), "measure": False}
    with time_engines(Stopwatch(bench.wait), [engine]) as watch:
        texts = bench.prompts(1, PROMPT)
        generate(None, None, texts, [Exact()], batch_size=1, engine=engine, drafter=drafter, **more)
    return statistics.median(call.seconds for call in watch.calls if call.phase == "draft")


def head_timer(bench: Any, length: int) -> Callable[[], float]:
    """Return a function that measures the seconds of the target's head on one state and of drawing a token from its law."""
    engine = Engine(bench.target)
    lm, warp = engine.target, engine.warp(1.0)
    lm.patience = 1
    cache = lm.cache(1, length + 1)
    states, u = torch.randn(1, 1, lm.config.hidden_size, device=lm.device), torch.full((1,), 0.5, device=lm.device)
    states, kv_length = states.to(bench.target.dtype), lm.kv_length(length + 1, cache)
    lm.head.requires_grad_(False)  # as in the models that a run loads; otherwise it could not be traced

    def step(length: int, states: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        return (draw(warp.law(lm.read_out(states)[:, 0]), u),)

    def call() -> int:
        return len(cache.steps(step, "head", kv_length, states, u))

    def measure() -> float:
        with torch.inference_mode():
            return statistics.median(bench.seconds(call)[1] for _ in range(CALLS))

    return measure


def layer_timer(bench: Any, length: int) -> Callable[[], float]:
    """Return a function that measures the seconds of a call of one of the target's layers on one token after texts of `length`.

    It times the target's first layer, and its first NUM_DRAFT + 1 layers, captured as the steps of a round are. Their difference
    contains neither the embedding nor the norm, and each layer reads its own weights and cache, as in a call of the target.
    """
    lm = LM(bench.target)
    lm.patience = 1
    cache = lm.cache(1, length + 1)
    ids, positions = (torch.tensor([[x]], device=lm.device) for x in (5, length))
    kv_length = lm.kv_length(length + 1, cache)
    counts = 1, min(1 + NUM_DRAFT, lm.config.num_hidden_layers - 1)

    def step(count: int, length: int, ids: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        return (lm.begin(ids, lm.plan(positions, cache, length), cache, count),)

    def call(count: int) -> int:
        return len(cache.steps(partial(step, count), ("layers", count), kv_length, ids, positions))

    def measure() -> float:
        with torch.inference_mode():
            pairs = [[bench.seconds(partial(call, count))[1] for count in counts] for _ in range(CALLS)]
        few, many = (statistics.median(times) for times in zip(*pairs, strict=True))
        return (many - few) / (counts[1] - counts[0])

    return measure
