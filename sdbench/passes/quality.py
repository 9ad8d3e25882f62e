"""The quality pass: decode what is missing in one batch stream, score texts as they finish, and write them at once."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdbench import plan
from sdbench.config import ConfigError
from sdbench.errors import FAILURES_OF_A_CELL, OF_CODE, PromptError, is_from_submitit, sentence_of_failure
from sdbench.passes.scoring import Scorers
from sdbench.plan import Work, WorkItem
from sdbench.prepare.cells import Point
from sdbench.prepare.progress import Bar
from sdbench.prepare.remaining import TextStream
from sdbench.records import GenerationRecord, Rounds, Store
from sdbench.subcommand import report_fault

if TYPE_CHECKING:
    from sdbench.engines.job import Job, Models
    from sdbench.types import Generation

ORIGIN = {"accepted": 0, "replacement": 1, "bonus": 2, "sure": 3}
ROWS_A_SHARE = 2048  # most generations claimed at a time
ROWS_AT_LEAST = 64  # fewest, while there are enough
FEW_FAILED = 4  # so many prompts of a cell may fail before it has a text


@dataclass
class QualityPass:
    """The quality pass of a job. `failed` maps failed cells to their first error."""

    job: Job
    store: Store
    scorers: Scorers
    models: Models
    failed: dict[str, str] = field(default_factory=dict)
    num_failed: Counter[str] = field(default_factory=Counter)  # how many prompts of each cell failed
    stream_of: dict[str, int] = field(default_factory=dict)  # the number of each cell's batch stream

    def fail(self, cell: str, example: str | None, message: str) -> None:
        """Record that a cell, or one example of it, failed."""
        self.store.append_failure(cell, message, example=example)
        self.failed.setdefault(cell, message)

    def __call__(self) -> dict[str, str]:
        """Decode what is missing and return the failed cells with their reasons. Finished texts are always written."""
        cells = [point.cell for point in self.job.planned]
        todo = plan.missing(cells, list(self.job.prompts.ids), self.job.run.samples, self.store.held())
        if not todo:
            print("sdbench: nothing to decode: the records hold all of it", file=sys.stderr)
        else:
            self.scorers.start()
            _ = self.models.decoder  # opened here, so that its errors count for the run and not for a cell
        stages = [
            [item for item in todo if item.cell in stage]
            for stage in map(set, self.models.decoder.stages() if todo else ())
        ]
        groups = [items for stage in stages for items in by_stream(stage, self.job.points)]
        self.stream_of |= {item.cell: number for number, items in enumerate(groups) for item in items}
        streams = [self._text_stream(items) for items in groups]
        with Bar("decoding", len(todo), longest=self.job.task.max_new_tokens, streams=streams) as bar:
            try:
                for stage in stages:
                    self._stage(stage, bar)
            finally:
                self.scorers.drain(self.store, self.fail)
        return self.failed

    def _text_stream(self, items: Sequence[WorkItem]) -> TextStream:
        """Return an estimate of a batch stream's duration; a draft call costs bytes of the draft over bytes of the target."""
        point, metadata = self.job.points[items[0].cell], self.job.pair_info.metadata
        target, draft = (
            metadata.read_bytes_of(role) if role in metadata.checkpoints else 0 for role in ("target", "draft")
        )
        share = draft / target if draft and target else 1.0
        prompts = len({item.example for item in items}) / len(items)  # to read a text: cells and samples share them
        if point.role != "pair":
            cost = share if point.role == "draft" else 1.0
            return TextStream(len(items), cost, cost, cost * prompts, tokens=1.0)
        k = statistics.fmean(self.job.points[item.cell].num_draft for item in items)
        share = share if point.drafter is not None and point.drafter.needs_draft else 0.0
        return TextStream(len(items), k * share + 1, k * share + k + 1, (share + 1) * prompts)

    def _stage(self, todo: Sequence[WorkItem], bar: Bar) -> None:
        """Decode stream by stream. Other jobs may work on the same folder; texts that they claimed are checked again at the end."""
        works = [self._work(items) for items in by_stream(todo, self.job.points)]
        while works:
            works = [left for work in works for left in self._stream(work, bar)]

    def _work(self, items: Sequence[WorkItem]) -> Work:
        rows = len({item.cell for item in items}) * self.job.run.samples  # rows for each prompt
        prompts, fewest = max(1, ROWS_A_SHARE // rows), max(1, ROWS_AT_LEAST // rows)
        return Work(items, plan.share(self.store, items, prompts=prompts, fewest=fewest))

    def _stream(self, work: Work, bar: Bar) -> list[Work]:
        """Decode what this job can claim, and return what is left to decode. If that fails, each cell is left by itself, and a
        single cell without the prompt at fault, so that only cells and prompts at fault fail.
        """
        try:
            self._decode(work, bar)
        except ConfigError:  # a server that cannot be started is an error of the run, not of a cell
            raise
        except FAILURES_OF_A_CELL as error:
            if is_from_submitit(error):  # the job has reached its time limit too often
                raise
            if isinstance(error, OF_CODE):
                report_fault(error, self.job.run.folder)
            cells = sorted({item.cell for item in work.items})
            if len(cells) == 1 and not isinstance(error, PromptError):
                self.fail(cells[0], None, sentence_of_failure(error))
                return []
            self.scorers.drain(self.store, self.fail)
            held = self.store.held()
            left = [item for item in work.items if item not in held]
            if len(cells) == 1 and isinstance(error, PromptError):
                self._fail_prompt(cells[0], error, num_texts=sum(cell == cells[0] for cell, *_ in held))
            parts = [[item for item in left if item.cell == cell] for cell in cells]
            return [self._work(part) for part in parts if part]
        return [] if work.is_done else [work]

    def _fail_prompt(self, cell: str, error: PromptError, *, num_texts: int) -> None:
        """Record that a prompt of a cell failed, so that it is not decoded again, or if more prompts failed than the cell has
        texts, that the cell failed: its model may give NaN for every prompt.
        """
        self.num_failed[cell] += 1
        may_continue = self.num_failed[cell] <= max(FEW_FAILED, num_texts)
        self.fail(cell, str(error.key) if may_continue else None, sentence_of_failure(error))

    def _decode(self, work: Work, bar: Bar) -> None:
        held = self.store.held()
        bar.remaining.begin(self.stream_of[work.items[0].cell], sum(item not in held for item in work.items))
        try:
            for item, generation in self.models.decoder.stream(work, bar.watch):
                bar.add(
                    tokens=len(generation.tokens),
                    examined=sum(generation.examined or ()),
                    accepted=sum(generation.accepted or ()),
                )
                example = self.job.prompts.examples[item.example]
                self.scorers.put(self._record(item, generation), example, self.store, self.fail)
        finally:
            bar.remaining.end()
        self.scorers.drain(self.store, self.fail)

    def _record(self, item: WorkItem, generation: Generation) -> GenerationRecord:
        """Convert the engine's lists into a record; a measure that is NaN throughout becomes None."""
        ids = generation.tokens
        is_end = bool(ids) and ids[-1] in self.models.decoder.stop_ids(self.job.points[item.cell].role)
        return GenerationRecord(
            cell=item.cell,
            example=item.example,
            sample=item.sample,
            prompt_tokens=len(self.job.prompts.ids[item.example]),
            text=self.job.pair_info.text(ids),
            finish="eos" if is_end else generation.finish,
            ids=ids,
            origin=None if generation.origins is None else [ORIGIN[origin] for origin in generation.origins],
            rounds=_rounds(generation),
            draft_ids=generation.draft_tokens,
            p=_none_if_nan(generation.p),
            q=_none_if_nan(generation.q),
            tv=_none_if_nan(generation.tv),
            expected=_none_if_nan(generation.expected),
            bias=_none_if_nan(generation.bias),
            flags={"is_prompt_cut": self.job.prompts.examples[item.example].is_prompt_cut},
        )


def by_stream(items: Sequence[WorkItem], points: Mapping[str, Point]) -> Iterator[list[WorkItem]]:
    """Group items by batch stream: the same models and drafter."""
    streams: dict[tuple[str, str], list[WorkItem]] = {}
    for item in items:
        streams.setdefault(points[item.cell].stream, []).append(item)
    return iter(streams.values())


def _rounds(generation: Generation) -> Rounds | None:
    drafted, examined, accepted = generation.drafted, generation.examined, generation.accepted
    return None if drafted is None or examined is None or accepted is None else Rounds(drafted, examined, accepted)


def _none_if_nan(values: Sequence[float] | None) -> Sequence[float] | None:
    """Return measures, or None for those with a NaN, which the rule does not define."""
    return None if values is None or any(value != value for value in values) else values
