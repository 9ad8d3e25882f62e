"""Propose, score, judge, commit: the decode loop over one continuous batch."""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sdbench import noise
from sdbench.engine.batch import Batch
from sdbench.engine.clock import Clock, Mode, timing
from sdbench.engine.log import Log, ShouldStop
from sdbench.engine.queue import Prefixes, Queue
from sdbench.engine.request import Request
from sdbench.lm import LM, RaggedCache
from sdbench.probs import Warp
from sdbench.types import DraftBlock, Drafter, Evidence, Feedback, Generation, Measures, Verdict
from sdbench.verify.families import family


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a stream is decoded: everything that its requests share."""

    warp: Warp
    max_new_tokens: int = 128
    stop_ids: frozenset[int] = frozenset()
    should_stop: ShouldStop | None = None
    seed: int = 0
    batch_size: int = 32
    measure: bool = True
    clock: Mode = "off"

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")


class Stream:
    """One pass over a list of requests. Rows of the batch may differ in rule, knobs, num_draft and sample."""

    def __init__(self, target: LM, drafter: Drafter | None, requests: Sequence[Request], decoding: Decoding) -> None:
        self.target, self.drafter, self.requests, self.decoding = target, drafter, requests, decoding
        self.queue, self.prefixes = Queue(requests), Prefixes(target, drafter)
        self.clock = Clock(target.device, decoding.clock)
        num_draft = max((request.num_draft for request in requests), default=0)
        longest = max((len(request.ids) for request in requests), default=0)
        self.capacity = longest + decoding.max_new_tokens + num_draft + 2
        self.needs = frozenset[str]().union(*(request.rule.needs for request in requests))
        if not decoding.warp.is_greedy:
            self.needs -= {"raw"} if not any(_reads_raw_sampled(r.rule) for r in requests) else set()
        self.batch_size = min(decoding.batch_size, max(1, len(requests)))
        self.feedback: Feedback | None = None

    def __iter__(self) -> Iterator[Generation]:
        """Generations as they finish."""
        while len(self.queue):
            batch, cache = self._open()
            try:
                self._fill(batch, cache)
                while batch.logs:
                    self._round(batch, cache)
                    yield from self._refill(batch, cache)
            except torch.OutOfMemoryError as error:
                if self.batch_size == 1:
                    raise
                error.__traceback__ = None  # frames hold the tensors that did not fit
                self._shrink(batch)

    def _open(self) -> tuple[Batch, RaggedCache]:
        batch = Batch(self.batch_size, self.capacity, self.decoding.seed, self.target.device)
        if self.drafter is not None:
            self.drafter.open(self.batch_size, self.capacity)
        return batch, self.target.cache(self.batch_size, self.capacity)

    @torch.inference_mode()
    def _round(self, batch: Batch, cache: RaggedCache) -> None:
        """Rows that draft less than others, or nothing, take part with what they have: missing drafts have no mass."""
        self.clock.start()
        wanted = [log.num_draft for log in batch.logs]
        k = max(wanted)
        lengths = torch.tensor(wanted, device=batch.device)
        draft = self._propose(batch, k, lengths)
        self.clock.lap("draft")
        evidence = self._score(batch, cache, draft)
        self.clock.lap("verify")
        verdict, measures = self._judge(batch, evidence, batch.uniforms(k, noise.VERIFY))
        batch.commit(draft.tokens, verdict)
        if self.drafter is not None and "feedback" in self.drafter.needs:
            self.feedback = Feedback(evidence, verdict)
        self._log(batch, wanted, draft, verdict, measures)
        self.clock.stop()
        if self.clock.mode != "off":
            for log in batch.logs:
                log.laps.append(self.clock.laps)

    def _propose(self, batch: Batch, k: int, lengths: Tensor) -> DraftBlock:
        if not k or self.drafter is None:
            nothing = torch.empty(len(lengths), 0, dtype=torch.int64, device=batch.device)
            return DraftBlock(nothing, nothing, lengths)
        return self.drafter.draft(batch, k, lengths, batch.uniforms(k, noise.DRAFT), self.feedback, self.needs)

    def _score(self, batch: Batch, cache: RaggedCache, draft: DraftBlock) -> Evidence:
        """The target's laws at each drafted position and one beyond."""
        warp, last = self.decoding.warp, batch.lengths[:, None] - 1
        num_slots = draft.tokens.shape[1]
        ids = torch.cat((batch.tokens.gather(1, last), draft.tokens), 1).clamp_min_(0)
        plan = self.target.plan(last + torch.arange(num_slots + 1, device=ids.device), cache, batch.longest + num_slots)
        logits = warp.logits(self.target.forward(ids, plan, cache))
        return Evidence(warp.law(logits), draft, warp.is_greedy, logits if "raw" in self.needs else None)

    def _judge(self, batch: Batch, evidence: Evidence, u: Tensor) -> tuple[Verdict, list[Measures] | None]:
        """A call for each family; its rows are a view of the batch wherever they stand together."""
        groups, has_draft = batch.groups(), bool(evidence.draft.tokens.shape[1])
        measures = [] if self.decoding.measure and has_draft else None
        parts = []
        for group in groups:
            mine = evidence if len(groups) == 1 else evidence.rows(group.index)
            parts.append(group.rule(mine, u if len(groups) == 1 else u[group.index], batch.state(group)))
            batch.keep_state(group, parts[-1].state)
            if measures is not None:
                measures.append(group.rule.measure(mine))
        if len(groups) == 1:
            return parts[0], measures
        accepted, next_token = torch.empty_like(evidence.draft.lengths), torch.empty_like(evidence.draft.lengths)
        for group, part in zip(groups, parts, strict=True):
            accepted[group.index], next_token[group.index] = part.accepted, part.next_token
        return Verdict(accepted, next_token), measures

    def _log(
        self, batch: Batch, wanted: list[int], draft: DraftBlock, verdict: Verdict, measures: list[Measures] | None
    ) -> None:
        """Everything that leaves the device in a round leaves it here."""
        tokens, accepted, next_token = draft.tokens.tolist(), verdict.accepted.tolist(), verdict.next_token.tolist()
        if min(next_token) < 0 or (draft.tokens.numel() and min(map(min, tokens)) < 0):
            raise ValueError(_nan(batch, tokens, wanted))
        floats: dict[int, list[list[float]]] = {}
        for group, part in zip(batch.groups(), measures or [], strict=False):
            columns = torch.stack([x.double() for x in (part.p, part.q, part.tv, part.expected, part.bias)], 1)
            floats.update(zip(group.rows, columns.tolist(), strict=True))
        stop_ids, should_stop = self.decoding.stop_ids, self.decoding.should_stop
        for row, log in enumerate(batch.logs):
            log.add(
                tokens[row][: wanted[row]], accepted[row], next_token[row], floats.get(row), stop_ids, should_stop
            )

    def _fill(self, batch: Batch, cache: RaggedCache) -> None:
        """The first rows, those of a family side by side."""
        for place in self.queue.first(self.batch_size):
            self._admit(batch, cache, len(batch.logs), place)

    def _refill(self, batch: Batch, cache: RaggedCache) -> Iterator[Generation]:
        """Finished rows go out and their places are taken at once; without a queue the batch closes up."""
        done = [row for row, log in enumerate(batch.logs) if log.finish is not None]
        for row in reversed(done):
            log = batch.logs[row]
            generation = log.generation(timing(log.prefill_s, log.laps, self.clock.mode))
            place = self.queue.next(family(log.request.rule))
            if place is not None:
                try:
                    self._admit(batch, cache, row, place)
                except torch.OutOfMemoryError:
                    self._retire(batch, cache, row)
                    yield generation
                    raise
            else:
                self._retire(batch, cache, row)
            yield generation

    @torch.inference_mode()
    def _retire(self, batch: Batch, cache: RaggedCache, row: int) -> None:
        last = batch.close(row)
        if last != row:
            cache.move(last, row, self.capacity)
            if self.drafter is not None:
                self.drafter.move(last, row)

    @torch.inference_mode()
    def _admit(self, batch: Batch, cache: RaggedCache, row: int, place: int) -> None:
        request = self.requests[place]
        log = Log(request, place, self.decoding.max_new_tokens)
        try:
            self.clock.start()
            shared = self.prefixes.get(request)
            cache.write(row, shared.target)
            if shared.draft is not None and self.drafter is not None and request.num_draft:
                self.drafter.admit(row, shared.draft)
            log.prefill_s = self.clock.stop()
        except torch.OutOfMemoryError:
            self.queue.again(place)
            raise
        if self.queue.leave(place):
            self.prefixes.drop(request)
        batch.put(row, log, shared.prompt)

    def _shrink(self, batch: Batch) -> None:
        """Start the unfinished rows anew in half the batch: noise is a function, so they come out the same."""
        self.batch_size = max(1, self.batch_size // 2)
        for log in batch.logs:
            if log.finish is None:
                self.queue.give_back(log.place)
        batch.logs.clear()
        self.prefixes.clear()
        self.feedback = None
        warnings.warn(f"out of memory: going on with batch_size={self.batch_size}", RuntimeWarning, stacklevel=2)
        gc.collect()
        if self.target.device.type not in ("cpu", "meta"):
            getattr(torch, self.target.device.type).empty_cache()


Progress = Callable[[Generation], None]


def _reads_raw_sampled(rule: object) -> bool:
    """Whether a rule reads un-tempered laws when sampling too; those with a greedy form alone do not."""
    return getattr(rule, "reads_raw_sampled", True)


def _nan(batch: Batch, tokens: list[list[int]], wanted: list[int]) -> str:
    """Whose logits are no numbers."""
    rows = [row for row, k in enumerate(wanted) if any(token < 0 for token in tokens[row][:k])]
    role, row = ("draft", rows[0]) if rows else ("target", 0)
    request = batch.logs[row].request
    return f"the {role} model's logits are NaN (prompt {request.prompt}, key {request.key!r}, rule {request.rule})"
