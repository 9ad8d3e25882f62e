"""Run one job: one pair, one task and its whole sweep, from a checked run to records, a summary and a report."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from traceback import clear_frames
from typing import TYPE_CHECKING

from sdbench.config import ConfigError, Run
from sdbench.errors import WITHOUT_FORCE, is_from_submitit, without_force
from sdbench.hub import HubError
from sdbench.passes.slurm import batch_job, name_batch_job
from sdbench.prepare.progress import engine_warnings, warn
from sdbench.records import Cell, SchemaError, Store, StoreError
from sdbench.records.parts import cannot_write
from sdbench.records.processes import kernel_boot
from sdbench.records.snapshot import read_cells
from sdbench.subcommand import Exit, ends_as_ctrl_c, report_fault
from sdbench.types import EngineError

if TYPE_CHECKING:
    from sdbench.engines.job import Job, Models
    from sdbench.passes.scoring import Scorers

WAIT_S = 1.0
PROMPTS_COMPARED = 64  # of those stored, evenly spread


def run_job(run: Run, words: Sequence[str], *, launch: str | None = None) -> int:
    """Run the job and return its exit code. `words` is the command line, to be printed after an interruption. `launch`: the id of
    the job's multirun; with `force`, the multirun and its requeues decode the cells that its jobs share only once.
    """
    forced: list[str] = []  # keys of cells, filled once the records request that they are decoded again
    try:
        with engine_warnings(), ends_as_ctrl_c():
            return _run(run, words, launch or batch_job(), forced)
    except (ConfigError, HubError, SchemaError) as error:
        hint = f"\nsdbench: continue {WITHOUT_FORCE}" if forced else ""
        print(f"sdbench: {error}{hint}", file=sys.stderr)
        return Exit.BAD_CONFIG
    except (StoreError, EngineError) as error:
        hint = f" ({WITHOUT_FORCE})" if forced else ""
        print(f"sdbench: {error}{hint}", file=sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:
        command = shlex.join(["python", "-m", "sdbench", *words])
        again = without_force(command) if forced else command
        print(f"sdbench: interrupted; what was finished is in {run.folder}; continue with: {again}", file=sys.stderr)
        return Exit.INTERRUPTED
    except Exception as error:
        if is_from_submitit(error):
            raise
        report_fault(error, run.folder)
        return Exit.FAILED


def _run(run: Run, words: Sequence[str], launch: str | None, forced: list[str]) -> int:
    from sdbench.engines.job import prepare
    from sdbench.passes.scoring import Scorers

    job = prepare(run, words)
    scorers = Scorers(job.task)
    try:
        failed = _passes(job, scorers, launch, forced)
    finally:
        scorers.close()
    return Exit.FAILED if failed else Exit.DONE


def _passes(job: Job, scorers: Scorers, launch: str | None, forced: list[str]) -> dict[str, str]:
    from sdbench.engines.job import Models
    from sdbench.passes.finish import finish
    from sdbench.passes.near_ties import measure_near_ties
    from sdbench.passes.quality import QualityPass
    from sdbench.prepare.provenance import config_of, provenance

    run, task, pair_info, planned = job.run, job.task, job.pair_info, job.planned
    prompts = job.prompts
    name_batch_job(f"sdbench-{run.model.name}-{run.task.name}")
    print(f"sdbench: {run.model.name} on {run.task.name}, {len(task.ids)} examples, to {run.folder}", file=sys.stderr)
    config = config_of(run, job.words)
    refuse_missing_margins(run)
    refuse_another_name(run, [point.cell for point in planned])
    with Store.open(run.folder, config=config, provenance=provenance(run, task, pair_info, planned)) as store:
        refuse_other_prompts(store.prompts(planned[0].cell.asked), job)
        store.add_cells([point.cell for point in planned])
        store.add_subset(task.ids)
        store.add_vocabulary(run.model.name, pair_info.tokenizer_key, pair_info.token_texts)
        store.add_examples(planned[0].cell.asked, prompts.ids, lambda key: prompts.texts(key, task, pair_info))
        if run.force:
            store.force([point.cell.key for point in planned], token=launch)
            forced += [point.cell.key for point in planned]
        with closing(Models(job, store)) as models:
            failed = QualityPass(job, store, scorers, models)()
            faults: list[Exception] = []
            if run.shard.index == 0:
                faults += _faults_of(
                    partial(measure_near_ties, job, store, models),
                    "it could not be measured where lossless texts part from the target's, for the reason below",
                )
            if run.shard.index == 0 and run.timing is not None:
                faults += _faults_of(
                    partial(_time, job, store, models, failed),
                    "the latency pass has failed, for the reason below; what was decoded is reported; timing=off leaves the "
                    "pass out",
                )
        for name in store.compact():
            warn(
                f"{name} was damaged and was renamed to .torn-{name}: run the commands that wrote its records again to restore them"
            )
    try:
        finish(run, planned, failed, config)
    except OSError as error:
        raise StoreError(cannot_write(run.folder, error)) from error
    for fault in faults[:-1]:
        report_fault(fault, run.folder)
    if faults:
        raise faults[-1]
    return failed


def _faults_of(work: Callable[[], None], sentence: str) -> list[Exception]:
    """Do work that follows the quality pass; if it fails, warn with `sentence` and return the error. The last such error is raised
    after summary and page are written.
    """
    try:
        work()
    except Exception as error:
        if is_from_submitit(error):
            raise
        warn(sentence)
        clear_frames(error.__traceback__)  # they hold tensors whose memory the next step may need
        return [error]
    return []


def _time(job: Job, store: Store, models: Models, failed: Mapping[str, str]) -> None:
    """Run the latency pass over the cells that have not failed. It first waits for any other process that times this folder on
    this machine, whichever accelerators that process uses.
    """
    if any(point.role == "target" and point.cell.key in failed for point in job.planned):
        warn("the latency pass is left out: speeds are compared with the target alone, which has failed")
        return
    unit = f"timing on {kernel_boot()}"  # also by a process in another container
    if not store.claims.take(unit):
        warn("another process is timing this folder on this machine: waiting for it, since two would slow each other")
        while not store.claims.take(unit):
            time.sleep(WAIT_S)
    try:
        timed = [point for point in job.planned if point.cell.key not in failed]
        if (plan := job.engine.plan_timing(job, timed, store)) is not None:
            models.decoder.time(plan)
    finally:
        store.claims.release(unit)


def refuse_missing_margins(run: Run) -> None:
    """Raise if the margins have no value for a task that the folder already holds: the decision at the end needs all of them."""
    from sdbench.metrics.weigh import margin_of

    if not isinstance(run.margin, Mapping):
        return
    for task in sorted({cell.task for cell in read_cells(run.folder / "records").values()}):
        try:
            margin_of(run.margin, task)
        except ValueError as error:
            raise ConfigError(f"{error}, or use another name=NAME: {run.folder} holds this task too") from None


def refuse_another_name(run: Run, cells: Sequence[Cell]) -> None:
    """Raise if the folder holds any of these cells under another name of the pair: the other cells of the run would not be
    compared with it.
    """
    held = read_cells(run.folder / "records")
    names = {held[cell.key].model for cell in cells if cell.key in held}
    if others := sorted(names - {run.model.name}):
        same_name = f"model.name={others[0]} (drafts are told apart by their weights) or " if len(names) == 1 else ""
        raise ConfigError(
            f"{run.folder} holds settings of this run under the pair's name {others[0]}, not {run.model.name}: "
            f"use {same_name}another name=NAME"
        )


def refuse_other_prompts(held: Mapping[str, str], job: Job) -> None:
    """Raise if a stored prompt differs from the prompt made now. The cell's key should already differ; this is a second check."""
    ids = job.prompts.ids
    known = [key for key in ids if key in held]
    for key in known[:: max(1, len(known) // PROMPTS_COMPARED)]:
        if held[key] != job.pair_info.prompt(ids[key]):
            raise ConfigError(
                f"example {key} of {job.run.folder} was recorded with another prompt than this version makes from the same data, "
                "task and tokenizer: use a new name=NAME (the old records stay readable)"
            )
