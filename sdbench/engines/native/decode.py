"""Decode the points of a sweep with the package's engine: models, drafters, stops, batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, Run
from sdbench.engines.native.memory import MemoryGuard
from sdbench.engines.stops import stopper
from sdbench.errors import first_line, is_out_of_memory
from sdbench.plan import Work, WorkItem
from sdbench.prepare.progress import warn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sdbench.engine import Engine, Options
    from sdbench.engine.loop import Claim, Watch
    from sdbench.engines.job import Job
    from sdbench.engines.latency import LatencyPlan
    from sdbench.prepare.cells import Point
    from sdbench.prepare.pair import LoadedPair
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.rules import Parts
    from sdbench.probs import Warp
    from sdbench.records import Store
    from sdbench.types import Drafter, Generation

ROWS_ON_CPU = 64
MOST_ROWS = 512
SHARE_OF_FREE = 0.6  # of free memory, for keys, values and distributions; activations need the rest


@dataclass(frozen=True)
class Decoder:
    """Decodes one pair with the options that all cells of a job share. `store` receives the timings."""

    job: Job
    pair: LoadedPair
    store: Store | None
    drafters: dict[str, Drafter] = field(default_factory=dict)  # the drafters that were built
    before_timing: list[dict[str, Mapping[str, float]]] = field(default_factory=list)  # their counts then

    @cached_property
    def batch_size(self) -> int:
        return self.job.run.batch_size or rows_that_fit(self.job.run, self.pair, self.job.longest)

    def keep_batch_size(self, num_rows: int) -> None:
        """Decode as many texts together as an interrupted training did: batches of other shapes round differently."""
        if self.job.run.batch_size not in (None, num_rows):
            warn(f"batch_size={self.job.run.batch_size} is ignored: the training began with batch_size={num_rows}")
        vars(self)["batch_size"] = num_rows  # of the cached property

    def time(self, plan: LatencyPlan) -> None:
        from sdbench.engines.native import timing

        self.before_timing.append(self.drafter_counts())
        for model in self.engine.models:
            for lm in (model, *model.pruned.values()):
                lm.known = None  # during timing each prompt is read in full
        try:
            timing.time_plan(self, plan)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            warn(
                f"the latency pass has stopped: out of memory ({first_line(error)}); use a smaller timing.batch_size, or timing=off"
            )

    def close(self) -> None:
        """Record what drafters have counted in the quality pass. The models need no closing; they end with the process."""
        if self.store is not None:
            for name, counts in [*self.before_timing, self.drafter_counts()][0].items():
                self.store.add_drafter({"name": name, "counts": counts})

    def drafter_counts(self) -> dict[str, Mapping[str, float]]:
        """Return the counts of each drafter that has `counts`."""
        return {
            name: dict(counts) for name, drafter in self.drafters.items() if (counts := getattr(drafter, "counts", {}))
        }

    @cached_property
    def engine(self) -> Engine:
        """The pair's models with their caches, kept while the job runs."""
        return engine_of(self.job.pair_info, self.job.parts, self.pair)

    @cached_property
    def should_stop(self) -> Callable[[Sequence[int]], bool] | None:
        """A test of whether the newest tokens complete a stop string of the task; None without stop strings."""
        return stopper(self.job.pair_info.text, self.job.task.stop)

    def stages(self) -> list[list[str]]:
        """Return a single stage: all cells of an example share its prefill."""
        return [[point.cell.key for point in self.job.planned]]

    def stop_ids(self, role: str) -> tuple[int, ...]:
        """Return the ids that end a text of the model that writes it."""
        return self.job.pair_info.ends("draft" if role == "draft" else "target", self.job.task.stop)

    def options(
        self,
        role: str,
        *,
        batch_size: int,
        is_measured: bool = True,
        timing: bool | str = False,
        watch: Watch | None = None,
    ) -> Options:
        """Return the options that all requests of a stream share."""
        from sdbench.engine import Options

        return Options(
            warp=self.warp,
            max_new_tokens=self.job.task.max_new_tokens,
            stop_ids=frozenset(self.stop_ids(role)),
            should_stop=self.should_stop,
            seed=self.job.run.seed,
            batch_size=batch_size,
            is_measured=is_measured,
            timing=timing,
            watch=watch,
        )

    @cached_property
    def warp(self) -> Warp:
        """How both models sample: temperature, top-k, top-p, and the ids that the tokenizer knows and both models have."""
        run = self.job.run
        return self.engine.warp(run.temperature, run.top_k, run.top_p)

    def drafter(self, point: Point) -> Drafter | None:
        """Return the drafter of a point's cell, built once; None for one model alone."""
        if point.drafter is None:
            return None
        name, options = point.drafter.name, point.drafter.component.options
        if name not in self.drafters:
            self.drafters[name] = self.engine.drafter(point.drafter.kind, self.warp, options)
        return self.drafters[name]

    def stream(self, work: Work, watch: Watch | None = None) -> Iterator[tuple[WorkItem, Generation]]:
        """Decode the items that can be claimed, and yield each when it ends. They share models and drafter, but may differ in
        rule and draft length.
        """
        from sdbench.lm.known import KnownPrefixes

        for lm in self.engine.models:  # prefixes stay valid, because no weight changes, unlike in a training
            lm.known = lm.known or KnownPrefixes()
        if watch is not None:
            watch(0, 0)  # the time until here was spent on reading weights
        items, numbers = work.items, {item: number for number, item in enumerate(work.items)}
        options = self.options(self.job.points[items[0].cell].role, batch_size=self.batch_size, watch=watch)
        for generation in self._decode(items, options, lambda: [numbers[item] for item in work.claim()]):
            yield items[generation.request], generation

    def time_batch(self, point: Point, examples: Sequence[str], *, is_split: bool) -> list[Generation]:
        """Decode examples as one timed batch, without measures."""
        timing = "split" if is_split else True
        options = self.options(point.role, batch_size=len(examples), is_measured=False, timing=timing)
        return list(self._decode([WorkItem(point.cell.key, example, 0) for example in examples], options))

    def _decode(self, items: Sequence[WorkItem], options: Options, claim: Claim | None = None) -> Iterator[Generation]:
        from sdbench.engine import Request

        points, ids = self.job.points, self.job.prompts.ids
        cells, examples = (list(dict.fromkeys(getattr(item, name) for item in items)) for name in ("cell", "example"))
        rule = {cell: index for index, cell in enumerate(cells)}
        prompt = {example: index for index, example in enumerate(examples)}
        requests = [
            Request(prompt[x.example], rule[x.cell], x.sample, x.example, points[x.cell].num_draft) for x in items
        ]
        first, rules = points[cells[0]], [points[cell].rule for cell in cells]
        prompts = [ids[example] for example in examples]
        return self.engine.stream(prompts, rules, requests, options, self.drafter(first), role=first.role, claim=claim)

    def rehearse(self, point: Point, prompts: Sequence[list[int]], batch_size: int) -> None:
        """Capture the steps of this point for all prompts that will be timed."""
        from sdbench.engine import Request

        options = self.options(point.role, batch_size=batch_size, is_measured=False, timing=True)
        request, drafter = Request(0, 0, 0, "", point.num_draft), self.drafter(point)
        self.engine.rehearse(prompts, request, point.rule, options, drafter, role=point.role)


def engine_of(pair_info: PairInfo, parts: Parts, pair: LoadedPair) -> Engine:
    """Build an engine over a pair's models. It never emits ids that the tokenizer does not use."""
    from sdbench.engine import Engine

    tokenizer, draft_tokenizer = pair_info.tokenizer, pair_info.draft_tokenizer if parts.translates else None
    more: dict[str, Any] = {"draft_tokenizer": draft_tokenizer, "tokenizer_key": pair_info.tokenizer_key}
    more["packed"] = bool(pair_info.metadata.model.packed)
    try:
        engine = Engine(pair.target, pair.draft, tokenizer, **more)
    except ValueError as error:  # a model that the engine cannot decode with
        raise ConfigError(" ".join(str(error).split())) from error
    if pair.target.device.type == "cpu":
        engine.hook = MemoryGuard()
    head: Any = pair.target.get_output_embeddings()
    used = pair_info.num_ids(int(head.weight.shape[0]))
    engine.vocab_size = min(engine.vocab_size or used, used)
    beyond = sorted(i for i in engine.target.stop_ids if i >= engine.vocab_size)
    # An id that the target never emits, since its tokenizer or its head lacks it, is harmless beside others.
    if beyond and (beyond[0] < used or len(beyond) == len(engine.target.stop_ids)):
        raise ConfigError(
            f"the target ends its texts with id {beyond[0]}, which the draft lacks (the pair shares only ids below "
            f"{engine.vocab_size}): give a draft that has this id"
        )
    return engine


def rows_that_fit(run: Run, pair: LoadedPair, length: int) -> int:
    """Return a batch size for which keys, values and distributions fit into free memory; the engine halves it if necessary."""
    import torch

    from sdbench.draft import cache_share
    from sdbench.lm.capture import mode_of
    from sdbench.lm.load import free_bytes
    from sdbench.lm.memory import ModelShape, peak_bytes

    device, num_draft = pair.target.device, max(run.num_draft)
    most, free = ROWS_ON_CPU if device.type == "cpu" else MOST_ROWS, free_bytes(str(device))
    if free is None:
        return most

    def shape_of(model: PreTrainedModel) -> ModelShape:
        mode = mode_of(None, model, is_packed=bool(run.model.packed))
        return ModelShape.of(model.config, 0, model.dtype.itemsize, mode)

    target, draft = shape_of(pair.target), None if pair.draft is None else shape_of(pair.draft)
    shape: Any = {"length": length, "num_draft": num_draft, "temperature": run.temperature, "top_p": run.top_p}
    shape |= {"num_cores": torch.get_num_threads(), "is_cpu": device.type == "cpu"}
    shape["cache_share"] = cache_share(run.drafters, pair.target.config.get_text_config())
    least, next_more = (peak_bytes(target, draft, num_rows=rows, keeps_logits=True, **shape) for rows in (1, 2))
    more = (SHARE_OF_FREE * free - least.total) / (next_more.total - least.total)
    return max(1, min(most, 1 + int(more)))


def rows_to_score(run: Run, pair: LoadedPair, length: int) -> int:
    """Return a batch size for which the logits of all positions fit too, in the target's dtype and in float32."""
    from sdbench.lm.load import free_bytes

    rows, free = rows_that_fit(run, pair, length), free_bytes(str(pair.target.device))
    if free is None:
        return rows
    each = length * pair.target.config.get_text_config().vocab_size * (pair.target.dtype.itemsize + 4)
    return max(1, min(rows, int(SHARE_OF_FREE * free / each)))
