"""`--plan` shows what a command would do without reading weights; `--prefetch` downloads the files and stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sdbench import plan
from sdbench.config import NATIVE, ConfigError, Run
from sdbench.hub import HubError
from sdbench.records import Results, SchemaError, read

if TYPE_CHECKING:
    from sdbench.engines.job import Job

GIB = 2**30
ROWS = 64  # assumed number of rows for the estimate of memory; an accelerator with more memory takes more


def show(what: str, run: Run) -> None:
    """Run --plan or --prefetch. Errors and warnings are shown as in a run."""
    from sdbench.prepare.progress import engine_warnings

    try:
        with engine_warnings():
            {"plan": show_plan, "prefetch": prefetch}[what](run)
    except (SchemaError, HubError) as error:
        raise ConfigError(str(error)) from error


def show_plan(run: Run) -> None:
    """Print the generations that are held and missing, downloads, memory and hours."""
    from sdbench.engines.job import prepare
    from sdbench.passes.job import refuse_another_name, refuse_missing_margins
    from sdbench.passes.table import names_of_cells

    has_records = (run.folder / "records").is_dir()
    job = prepare(run, (), may_hash=False, is_read=False)
    cells = [point.cell for point in job.planned]
    refuse_missing_margins(run)
    refuse_another_name(run, cells)
    num_texts = len(job.prompts.ids) * run.samples  # of each cell
    results = read(run.folder) if has_records else None
    held = set() if results is None or run.force else results.held()
    todo = Counter(item.cell for item in plan.missing(cells, list(job.prompts.ids), run.samples, held))
    names = names_of_cells(cells)
    print(f"{run.folder}: {len(cells)} cells x {len(job.prompts.ids)} examples x {run.samples} samples")
    if job.pair_info.is_hashed or not held:
        for key, name in names.items():
            print(f"  {name:<48} held {num_texts - todo[key]:>7,}   missing {todo[key]:>7,}")
        print(f"  {'all':<48} held {num_texts * len(cells) - todo.total():>7,}   missing {todo.total():>7,}")
    else:  # keys of cells contain the hashes
        for name in names.values():
            print(f"  {name}")
        print("held: not known, because the weights have not been hashed on this machine; the first run hashes them")
    print(f"download: {_download(job)}")
    print(f"memory: {_memory(job, num_texts * len(cells))}")
    if why := _why_too_large(job):
        print(f"does not fit here: {why}")
    print(f"time: {_hours(results, todo, is_timed=run.timing is not None)}")


def prefetch(run: Run) -> None:
    """Download the models and the data, and dequantise GGUF files for the native engine."""
    from sdbench.engines.job import prepare
    from sdbench.lm.load import download, weights_folder

    job = prepare(run, (), is_read=False)
    metadata = job.pair_info.metadata
    for checkpoint in metadata.checkpoints.values():
        download(checkpoint)
    is_native = run.engine.name == NATIVE.name  # a server reads GGUF files as they are
    gguf = [checkpoint for checkpoint in metadata.checkpoints.values() if is_native and checkpoint.gguf is not None]
    for checkpoint in gguf:
        weights_folder(checkpoint, metadata.dtype)
    print(f"sdbench: {run.model.name} and the data of {run.task.name} are on this machine")
    if gguf:
        copies = " and ".join(f"{checkpoint.id} in {metadata.dtype or checkpoint.dtype}" for checkpoint in gguf)
        print(
            f"sdbench: dequantised {copies}, for device={metadata.device}: "
            "for a run on another device or in another dtype give device= or dtype="
        )


def _download(job: Job) -> str:
    from sdbench.lm.load import is_here

    needed = [checkpoint for checkpoint in job.pair_info.metadata.checkpoints.values() if not is_here(checkpoint)]
    if not needed:
        return "nothing"
    sizes = [f"{checkpoint.id} ({checkpoint.stored_bytes / GIB:.1f} GiB)" for checkpoint in needed]
    return " and ".join(sizes)


def _memory(job: Job, num_texts: int) -> str:
    from sdbench.engines.native.memory import peak_of
    from sdbench.lm.load import free_bytes
    from sdbench.prepare.pair import is_available

    run, device = job.run, job.pair_info.metadata.device
    rows = min(run.batch_size or ROWS, num_texts)
    peak = peak_of(job, rows)
    if is_available(device):
        free = free_bytes(device, is_spread=run.model.device_map is not None)
        there = "" if free is None else f", {free / GIB:.1f} GiB free on {device}"
    else:
        there = f", and {device} is not on this machine"
    return (
        f"{peak.weights / GIB:.2f} GiB of weights + {peak.cache / GIB:.2f} of keys and values + {peak.laws / GIB:.2f} of "
        f"distributions, for {rows} rows{there}"
    )


def _why_too_large(job: Job) -> str | None:
    """Return a sentence if the weights are read by this process and do not fit here."""
    from sdbench.prepare.pair import is_available

    metadata = job.pair_info.metadata
    is_known = job.run.engine.name == NATIVE.name and is_available(metadata.device)
    return metadata.why_too_large() if is_known else None


def _hours(results: Results | None, todo: Mapping[str, int], *, is_timed: bool = True) -> str:
    """Estimate hours from the latency passes in the records, one text at a time. This is an upper bound, since batches share
    calls.
    """
    if not sum(todo.values()):
        return "nothing to decode"
    timings = None if results is None else results.timings
    if timings is None or timings.empty:
        return f"not known; run with n=4{'' if is_timed else ' and without timing=off'} first to measure it"
    whole = timings[~timings["is_split"].astype(bool)]
    each_s = (whole["prefill_s"] + whole["decode_s"]).groupby(whole["cell"]).mean()
    usual_s = float(each_s.mean())
    seconds = sum(count * float(each_s.get(key, usual_s)) for key, count in todo.items())
    return f"at most {seconds / 3600:.2f} h on a machine like that of the latency pass, one text at a time; batches take less"
