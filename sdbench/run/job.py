"""One job: one pair, one task, its whole sweep; from a checked run to records, a summary and a report."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, Run
from sdbench.hub import HubError
from sdbench.records import SchemaError, Store, StoreError
from sdbench.records.parts import cannot_write
from sdbench.run.progress import warn

if TYPE_CHECKING:
    from sdbench.run.pair import Found
    from sdbench.tasks.base import DataTask

PACKAGE = Path(__file__).parents[1]
DONE, FAILED, BAD_CONFIG, INTERRUPTED = 0, 1, 2, 130
W_MEANS = "the weight of the target in v = w p + (1 - w) q: w = 1 is lossless, w = 0 keeps every drafted token"


def run_job(run: Run, words: Sequence[str]) -> int:
    """Runs it and says how it went; `words` is the command line, to be repeated after an interruption."""
    try:
        with engine_warnings():
            return _run(run, words)
    except (ConfigError, SchemaError) as error:
        print(f"sdbench: {error}", file=sys.stderr)
        return BAD_CONFIG
    except (StoreError, HubError) as error:
        print(f"sdbench: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        again = shlex.join(["python", "-m", "sdbench", *words])
        print(f"sdbench: interrupted; what was finished is in {run.folder}; go on with: {again}", file=sys.stderr)
        return INTERRUPTED


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
    except (ValueError, OSError, TypeError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ConfigError(f"task={run.task.name}: {lines[0]}") from None
    return task


def _run(run: Run, words: Sequence[str]) -> int:
    from sdbench.run import pair as pairs
    from sdbench.run.scoring import Scorers

    found = pairs.find(run.model, device=run.device, dtype=run.dtype)
    task = build_task(run)
    scorers = Scorers(task)
    try:
        failed = _passes(run, task, found, scorers, words)
    finally:
        scorers.close()
    return FAILED if failed else DONE


def _passes(run: Run, task: DataTask, found: Found, scorers: Any, words: Sequence[str]) -> dict[str, str]:
    from sdbench.run import pair as pairs
    from sdbench.run.cells import points
    from sdbench.run.decode import Decoder
    from sdbench.run.finish import finish
    from sdbench.run.quality import Asked, Failures, QualityPass
    from sdbench.run.timing import time_points

    print(f"sdbench: {run.model.name} on {run.task.name}, {len(task.ids)} examples, to {run.folder}", file=sys.stderr)
    pair = pairs.load(found)
    made = points(run, task, pair)
    asked = Asked.make(task, pair, run)
    with Store.open(run.folder, config=config_of(run, words), provenance=provenance(run, task, pair)) as store:
        store.add_cells([point.cell for point in made])
        store.add_vocabulary(run.model.name, pair.tokenizer_key(), pair.token_texts)
        store.add_examples(made[0].cell.asked, asked.ids, lambda key: asked.texts(key, task, pair))
        if run.force:
            store.force([point.cell.key for point in made], token=batch_job())
        decoder = Decoder.make(run, pair, task, max(map(len, asked.ids.values()), default=0))
        by_key = {point.cell.key: point for point in made}
        failed = QualityPass(run, pair, by_key, asked, store, scorers, decoder, Failures(store))()
        if run.timing is not None and run.shard.index == 0:
            time_points(run, [point for key, point in by_key.items() if key not in failed], asked, store, decoder)
        store.compact()
    try:
        finish(run, made, failed)
    except OSError as error:
        raise StoreError(cannot_write(run.folder, error)) from error
    return failed


def batch_job() -> str | None:
    """What names this Slurm job when it is requeued, and its whole array; None outside one, and in an interactive shell of
    one, where the same command twice means twice.
    """
    if os.environ.get("ENVIRONMENT") != "BATCH":
        return None
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    return job and f"{os.environ.get('SLURM_CLUSTER_NAME', 'slurm')} {job}"


def config_of(run: Run, words: Sequence[str]) -> dict[str, Any]:
    """The resolved configuration as plain data, and the command."""
    plain = dataclasses.asdict(run)
    plain["results"] = str(run.results)
    return {**plain, "command": shlex.join(["python", "-m", "sdbench", *words])}


def provenance(run: Run, task: DataTask, pair: Any) -> dict[str, Any]:
    """What ran, on what."""
    from sdbench.run.environment import environment

    return {
        **environment(pair.target.device),
        "checkpoints": dict(pair.checkpoints),
        "numerics": dict(pair.numerics),
        "task": {**task.describe(), **task.environment()},
        "w": W_MEANS,
    }
