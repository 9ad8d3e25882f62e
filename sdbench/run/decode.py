"""Between the sweep and the engine: who decodes, with which stops, how many rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sdbench.config import Run
from sdbench.plan import Item
from sdbench.run.cells import Point

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sdbench.run.pair import Pair
    from sdbench.tasks.base import DataTask
    from sdbench.types import Generation

ROWS_ON_CPU = 64
SHARE_OF_FREE = 0.6  # of an accelerator's free memory, for keys and values; laws and activations take the rest
MOST_ROWS = 512


@dataclass(frozen=True)
class Decoder:
    """One pair with the knobs that all its cells share."""

    run: Run
    pair: Pair
    task: DataTask
    batch_size: int

    @classmethod
    def make(cls, run: Run, pair: Pair, task: DataTask, longest: int) -> Decoder:
        size = run.batch_size or rows_that_fit(pair, longest + task.max_new_tokens)
        return cls(run, pair, task, size)

    def models(self, role: str) -> tuple[PreTrainedModel, PreTrainedModel | None]:
        """Who judges and who drafts: the pair, or one model alone."""
        if role != "draft":
            return self.pair.target, self.pair.draft if role == "pair" else None
        assert self.pair.draft is not None, "a cell of the draft alone is made only where there is a draft"
        return self.pair.draft, None

    @cached_property
    def should_stop(self) -> Callable[[Sequence[int]], bool] | None:
        """Whether the newest tokens complete a stop string of the task."""
        return stopper(self.pair, self.task.stop)

    def stop_ids(self, role: str) -> tuple[int, ...]:
        """The end-of-text ids of the model whose text it is."""
        from sdbench.lm import LM

        return LM(self.models(role)[0]).stop_ids

    def options(self, point: Point, **more: Any) -> dict[str, Any]:
        """The keyword arguments of `sdbench.generate` that cells of one stream share."""
        run = self.run
        return {
            "num_draft": point.num_draft,
            "temperature": run.temperature,
            "top_k": run.top_k,
            "top_p": run.top_p,
            "max_new_tokens": self.task.max_new_tokens,
            "should_stop": self.should_stop,
            "vocab_size": self.pair.vocab_size,
            "seed": run.seed,
            "batch_size": self.batch_size,
            **more,
        }

    def stream(
        self, items: Sequence[Item], points: Mapping[str, Point], ids: Mapping[str, list[int]]
    ) -> Iterator[tuple[Item, Generation]]:
        """Items of one draft length, decoded: examples that lack the same cells and samples go together."""
        from sdbench.engine import generate

        for (cells, samples), examples in alike(items).items():
            point = points[cells[0]]
            wanted = set(items)
            generations = generate(
                *self.models(point.role),
                [ids[example] for example in examples],
                [points[cell].rule for cell in cells],
                keys=list(examples),
                samples=samples,
                **self.options(point),
            )
            for generation in generations:
                item = Item(cells[generation.verifier], examples[generation.prompt], generation.sample)
                if item in wanted:
                    yield item, generation

    def once(self, point: Point, example: str, ids: list[int], *, is_split: bool) -> Generation:
        """One request on the clock, measures off."""
        from sdbench.engine import generate

        options = self.options(point, batch_size=1, measure=False, timing="split" if is_split else True)
        return generate(*self.models(point.role), [ids], [point.rule], keys=[example], **options)[0]


def alike(items: Sequence[Item]) -> dict[tuple[tuple[str, ...], int], list[str]]:
    """(cells, samples) -> examples: the fewest full products that cover the items."""
    lacking: dict[str, dict[str, None]] = {}
    samples: dict[str, int] = {}
    for item in items:
        lacking.setdefault(item.example, {})[item.cell] = None
        samples[item.example] = max(samples.get(item.example, 0), item.sample + 1)
    groups: dict[tuple[tuple[str, ...], int], list[str]] = {}
    for example, cells in lacking.items():
        groups.setdefault((tuple(cells), samples[example]), []).append(example)
    return groups


def stopper(pair: Pair, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
    """Whether the newest tokens complete a stop string. Only the tail is read: a token is at least one byte, so no stop
    string spans more tokens than it has bytes.
    """
    if not stops:
        return None
    tail = max(len(stop.encode()) for stop in stops) + 4

    def should_stop(ids: Sequence[int]) -> bool:
        text = pair.text(ids[-tail:])
        return any(stop in text for stop in stops)

    return should_stop


def rows_that_fit(pair: Pair, length: int) -> int:
    """A batch size: what free memory holds of keys and values; the engine halves it where that was too much."""
    import torch

    if pair.target.device.type == "cpu":
        return ROWS_ON_CPU
    models = [model for model in (pair.target, pair.draft) if model is not None]
    row = sum(bytes_a_token(model) for model in models) * length
    free = torch.cuda.mem_get_info(pair.target.device)[0] if pair.target.device.type == "cuda" else 8 << 30
    return max(1, min(MOST_ROWS, int(SHARE_OF_FREE * free / row)))


def bytes_a_token(model: PreTrainedModel) -> int:
    """Keys and values of one token."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize
