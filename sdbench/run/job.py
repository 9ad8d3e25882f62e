"""One job: one pair, one task, its whole sweep; from a checked run to records, a summary and a report."""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, Run
from sdbench.hub import HubError
from sdbench.records import SchemaError, Store, StoreError
from sdbench.records.parts import cannot_write
from sdbench.run.faults import report_fault, sigterm_as_ctrl_c
from sdbench.run.progress import warn
from sdbench.run.slurm import batch_job, name_batch_job
from sdbench.types import EngineError

if TYPE_CHECKING:
    from sdbench.run.cells import Point
    from sdbench.run.engines import EngineDecoder, EngineKind
    from sdbench.run.outline import Outline
    from sdbench.run.parts import Parts
    from sdbench.run.quality import Prompts
    from sdbench.run.scoring import Scorers
    from sdbench.tasks.base import DataTask

PACKAGE = Path(__file__).parents[1]
DONE, FAILED, BAD_CONFIG, INTERRUPTED = 0, 1, 2, 130
PROMPTS_COMPARED = 64  # of those stored, evenly spread
W_MEANS = "the weight of the target in v = w p + (1 - w) q: w = 1 is lossless, w = 0 keeps every drafted token"


def run_job(run: Run, words: Sequence[str]) -> int:
    """Runs it and says how it went; `words` is the command line, to be repeated after an interruption."""
    try:
        with engine_warnings(), sigterm_as_ctrl_c():
            return _run(run, words)
    except (ConfigError, HubError, SchemaError) as error:
        print(f"sdbench: {error}", file=sys.stderr)
        return BAD_CONFIG
    except (StoreError, EngineError) as error:
        print(f"sdbench: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        again = shlex.join(["python", "-m", "sdbench", *words])
        print(f"sdbench: interrupted; what was finished is in {run.folder}; go on with: {again}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if _is_a_launchers(error):
            raise
        report_fault(error, run.folder)
        return FAILED


def _is_a_launchers(error: Exception) -> bool:
    """What submitit raises inside a job that is to be requeued or has timed out: its own business."""
    return type(error).__module__.partition(".")[0] == "submitit"


@contextmanager
def engine_warnings() -> Iterator[None]:
    """The package's own warnings as lines of ours; those of libraries stay as they are."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def say(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
            is_ours = Path(filename).is_relative_to(PACKAGE)
            warn(str(message)) if is_ours else show(message, category, filename, *rest)

        warnings.showwarning = say
        warnings.filterwarnings("always", module=r"sdbench\.")
        yield


def build_task(run: Run) -> DataTask:
    """The task with the run's n and length; its complaints are the user's."""
    from sdbench import tasks

    options = {**run.task.options, "n": run.n}
    if run.max_new_tokens is not None:
        options["max_new_tokens"] = run.max_new_tokens
    try:
        task = tasks.build(str(run.task.target), name=run.task.name, **options)
        _ = task.ids, task.environment()  # rows are there, and a sandbox holds where code is to run
    except (ConfigError, HubError):
        raise
    except (ValueError, OSError, TypeError, RuntimeError, ImportError, AttributeError, LookupError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ConfigError(f"task={run.task.name}: {lines[0]}") from None
    return task


def _run(run: Run, words: Sequence[str]) -> int:
    from sdbench.run.scoring import Scorers

    job = prepare(run, words)
    scorers = Scorers(job.task)
    try:
        failed = _passes(job, scorers)
    finally:
        scorers.close()
    return FAILED if failed else DONE


def prepare(run: Run, words: Sequence[str]) -> Job:
    """All that can be known and refused before a weight is read."""
    from sdbench.run.cells import points
    from sdbench.run.engines import kind_of
    from sdbench.run.heads import check_heads
    from sdbench.run.outline import Outline
    from sdbench.run.parts import build_parts, with_markers
    from sdbench.run.preflight import check_pair, check_prompts
    from sdbench.run.trained import check_draft, with_trained

    run = with_trained(run)
    engine = kind_of(run)
    metadata = engine.find(run)
    parts = build_parts(run)
    outline = Outline.make(metadata)
    parts = with_markers(parts, lambda text: outline.tokenizer(text, add_special_tokens=False)["input_ids"])
    check_pair(run, outline, parts)
    task = build_task(run)
    check_heads(run, outline, parts, task.protocol)
    check_draft(run, outline)
    check_prompts(run, task, outline)
    planned = tuple(engine.points(run, points(run, task, outline, parts)))
    return Job(run, words, task, outline, parts, engine, planned)


@dataclass(frozen=True)
class Job:
    """What is known of a job before weights are read."""

    run: Run
    words: Sequence[str]
    task: DataTask
    outline: Outline
    parts: Parts
    engine: EngineKind
    planned: tuple[Point, ...]  # the cells that this engine can make


class Models:
    """A job's engine, opened when a pass first wants it: where nothing is missing, no weights are read and no server is asked."""

    def __init__(self, job: Job, prompts: Prompts, store: Store) -> None:
        self.job, self.prompts, self.store = job, prompts, store

    def read(self) -> None:
        """Opens it if nobody has."""
        _ = self.decoder

    @cached_property
    def decoder(self) -> EngineDecoder:
        return self.job.engine.open(self.job, self.prompts, self.store)

    def close(self) -> None:
        """Whatever was opened ends."""
        if "decoder" in self.__dict__:
            self.decoder.close()


def _passes(job: Job, scorers: Scorers) -> dict[str, str]:
    from sdbench.run.finish import finish
    from sdbench.run.quality import Failures, Prompts, QualityPass

    run, task, outline, planned = job.run, job.task, job.outline, job.planned
    prompts = Prompts.make(task, outline, run)
    name_batch_job(f"sdbench-{run.model.name}-{run.task.name}")
    print(f"sdbench: {run.model.name} on {run.task.name}, {len(task.ids)} examples, to {run.folder}", file=sys.stderr)
    with Store.open(run.folder, config=config_of(run, job.words), provenance=provenance(job, planned)) as store:
        refuse_other_prompts(store.prompts(planned[0].cell.asked), prompts, outline, run)
        store.add_cells([point.cell for point in planned])
        store.add_vocabulary(run.model.name, outline.tokenizer_key, outline.token_texts)
        store.add_examples(planned[0].cell.asked, prompts.ids, lambda key: prompts.texts(key, task, outline))
        if run.force:
            store.force([point.cell.key for point in planned], token=batch_job())
        by_key = {point.cell.key: point for point in planned}
        with closing(Models(job, prompts, store)) as models:
            failed = QualityPass(run, outline, by_key, prompts, store, scorers, models, Failures(store))()
            if run.timing is not None and run.shard.index == 0:
                job.engine.time(run, [point for key, point in by_key.items() if key not in failed], prompts, models)
        for name in store.compact():
            warn(
                f"{name} could not be read: what this command needs of it is there again, and the file is now .torn-{name}"
            )
    try:
        finish(run, planned, failed)
    except OSError as error:
        raise StoreError(cannot_write(run.folder, error)) from error
    return failed


def refuse_other_prompts(held: Mapping[str, str], prompts: Prompts, outline: Outline, run: Run) -> None:
    """The key holds all that decides a prompt; where it misses something, a stored prompt differs, and no answer to it is taken."""
    known = [key for key in prompts.ids if key in held]
    for key in known[:: max(1, len(known) // PROMPTS_COMPARED)]:
        if held[key] != outline.prompt(prompts.ids[key]):
            raise ConfigError(
                f"example {key} of {run.folder} was asked with another prompt than this sdbench makes of the same data, task and "
                "tokenizer: its answers stay readable, and another name=NAME begins anew"
            )


def config_of(run: Run, words: Sequence[str]) -> dict[str, Any]:
    """The resolved configuration as plain data, and the command."""
    plain = _plain(dataclasses.asdict(run))
    return {**plain, "command": shlex.join(["python", "-m", "sdbench", *words])}


def _plain(value: Any) -> Any:
    """JSON's own types; an infinite end of a knob as a word."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    is_word = isinstance(value, Path) or (isinstance(value, float) and not math.isfinite(value))
    return str(value) if is_word else value


def provenance(job: Job, planned: Sequence[Point]) -> dict[str, Any]:
    """What ran, on what."""
    import torch

    from sdbench.run.environment import environment

    return {
        **environment(torch.device(job.outline.metadata.device)),
        "checkpoints": dict(job.outline.checkpoints),
        "numerics": job.outline.numerics,
        "task": {**job.task.describe(), **job.task.environment()},
        "dataset_commit": job.task.dataset_commit,
        "planned": {
            "cells": [point.cell.key for point in planned],
            "examples": len(job.task.ids),
            "samples": job.run.samples,
        },
        "w": W_MEANS,
    }
