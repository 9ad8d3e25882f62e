"""The latency pass of a job: the cells and baselines that are timed, and the cost of single calls."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sdbench.config import Run
from sdbench.engines.latency import (
    LatencyPlan,
    Measured,
    machine,
    other_versions,
    points_to_time,
    timings_to_continue,
    warn_of_another_machine,
    warn_of_newer_pass,
)
from sdbench.engines.native.plain import time_generate
from sdbench.engines.native.trials import (
    ExampleGroup,
    TimedCell,
    latency_pass,
    name_of,
    num_timed,
    outlier_sentence,
    trials_of,
    units,
    warm_up,
)
from sdbench.prepare.cells import Point
from sdbench.prepare.pair import threads_of
from sdbench.prepare.progress import Bar, warn
from sdbench.records import CallRecord, Cell, Results, Store, read
from sdbench.records.parts import new_stem
from sdbench.types import needs_of

if TYPE_CHECKING:
    from sdbench.engines.job import Job
    from sdbench.engines.native.decode import Decoder
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.prompts import Prompts


def plan_timing(job: Job, points: Sequence[Point], store: Store) -> LatencyPlan | None:
    """Plan what is not yet timed on this machine: cells of the sweep, lossless, the target alone, and transformers' `generate`."""
    from sdbench.metrics.recommend import timed_settings

    run, timing = job.run, job.run.timing
    assert timing is not None
    groups = units(list(job.prompts.ids)[: timing.examples], timing.batch_size)
    if not groups:
        warn(f"the latency pass is left out: timing.batch_size={timing.batch_size} needs at least as many examples")
        return None
    results = read(store.folder)
    chosen = points_to_time(points, timing.cells, timed_settings(results, run.margin))
    if timing.assisted and not any(point.cell.verifier == "lossless" for point in points):
        warn("assisted generation is not timed: no lossless cell is left to compare it with")
    cells = [*(point.cell.key for point in chosen), *(cell.key for cell in library_cells(points, run))]
    plan = LatencyPlan(new_stem(), machine_of(job.pair_info), chosen, trials_of(groups, timing.repeats))
    plan = continue_pass(plan, results, cells, list(map(name_of, groups)))
    if plan.todo or plan.pass_id not in set(results.calls["pass_id"]):  # a killed pass may lack the costs of calls
        return plan
    warn_of_newer_pass(results, cells, plan.machine, list(map(name_of, groups)))
    return None


def continue_pass(plan: LatencyPlan, results: Results, cells: Sequence[str], examples: Sequence[str]) -> LatencyPlan:
    """Return the rest of the newest pass on this machine that timed all these cells on some of these examples. Return the plan
    unchanged if there is none, or if other versions began it, because speed-ups are computed within one pass. Batches of
    another size have other names. A pass that also timed other cells is used only if it is complete: further trials and costs
    of calls would lack those cells.
    """
    from sdbench.metrics.cells import OF_TRANSFORMERS

    frame = timings_to_continue(results.timings, results, cells)
    frame = frame[frame["machine"] == plan.machine]
    for pass_id in sorted(set(frame["pass_id"]), reverse=True):  # an id begins with the time
        rows = frame[frame["pass_id"] == pass_id]
        names = set(rows["example"])
        if set(rows["cell"]) == set(cells) and (names <= set(examples) or names >= set(examples)):
            num_cells = rows.groupby(["example", "repeat", "is_split"])["cell"].nunique().to_dict()
            num_split = rows.loc[~rows["verifier"].isin(OF_TRANSFORMERS), "cell"].nunique()  # `generate` has no split
            needed = {False: len(set(cells)), True: num_split}
            todo = [trial for trial in plan.todo if num_cells.get(trial.key, 0) < needed[trial.is_split]]
            is_unfinished = todo or pass_id not in set(results.calls["pass_id"])
            if is_unfinished and set(results.timings.loc[results.timings["pass_id"] == pass_id, "cell"]) > set(cells):
                continue
            if todo and (versions := other_versions(results, pass_id)):
                warn(f"the latency pass of these records was begun with {versions}: a new one begins")
                return plan
            return replace(plan, pass_id=pass_id, todo=todo)
    warn_of_another_machine(results, cells, plan.machine)
    return plan


def machine_of(pair_info: PairInfo) -> str:
    """Return the machine's name with the device, its map if the model is spread, and on a CPU the number of threads."""
    device = pair_info.metadata.device
    threads = f" {threads_of(pair_info)} threads" if device == "cpu" else ""
    device_map = pair_info.metadata.model.device_map
    spread = "" if device_map is None else f" device_map={device_map}"
    return f"{machine()} {device}{threads}{spread}"


def time_plan(decoder: Decoder, plan: LatencyPlan) -> None:
    """Time the trials of a plan, then derive the cost of single calls from the whole pass."""
    run, prompts, store = decoder.job.run, decoder.job.prompts, decoder.store
    assert run.timing is not None
    assert store is not None, "a job that is timed has a store"
    groups = units(list(prompts.ids)[: run.timing.examples], run.timing.batch_size)
    library = library_cells(plan.points, run)
    store.add_cells(library)
    decoder.engine.capture_at_once()
    timed = [TimedCell(point.cell.key, partial(time_together, decoder, point)) for point in plan.points]
    timed += [
        TimedCell(
            cell.key,
            lambda unit, _, k=cell.num_draft: time_generate(decoder, [prompts.ids[x] for x in unit], k),
            has_split=False,
        )
        for cell in library
    ]
    rehearse(decoder, plan.points, groups)
    prompt_times = warm_up(timed, groups)
    before = decoder.drafter_counts()
    if not plan.todo:  # a kill came before the costs of calls: drafters that handle texts have counted nothing
        translates = {name for name, counts in before.items() if "text_s" in counts}
        names = [point.drafter.name if point.drafter else "" for point in plan.points]
        warm_up([cell for cell, name in zip(timed, names, strict=False) if name in translates], groups)
    with Bar("timing", num_timed(timed, plan.todo)) as bar:
        for block in latency_pass(timed, plan, run.seed, prompt_times):
            store.append(block)
            for record in block:
                bar.add(tokens=record.tokens)
    timings = read(store.folder).timings
    timings = timings[timings["pass_id"] == plan.pass_id].sort_values("started_at")  # includes those of earlier jobs
    records: list[Any] = list(timings.itertuples(index=False))
    texts = text_calls(plan, run, before, decoder.drafter_counts())
    store.append([*calls(records, plan.points, run, prompts), *texts])  # at once: no pass has a part of them
    if sentence := outlier_sentence(records):
        warn(sentence)


def rehearse(decoder: Decoder, chosen: Sequence[Point], groups: Sequence[ExampleGroup]) -> None:
    """Capture all steps before timing, the longest blocks first, because shorter ones fit into their KV caches."""
    kinds = {(point.stream, point.num_draft, needs_of(point.rule)): point for point in chosen}
    ids = [decoder.job.prompts.ids[example] for group in groups for example in group]
    with Bar("capturing steps", len(kinds)) as bar:  # takes minutes for many drafters and rows
        for point in sorted(kinds.values(), key=lambda point: -point.num_draft):
            decoder.rehearse(point, ids, len(groups[0]))
            bar.add()


def library_cells(points: Sequence[Point], run: Run) -> list[Cell]:
    """Return transformers' generate as timed cells: the target alone, and assisted generation if `timing.assisted`."""
    assert run.timing is not None
    kinds = {"generate": "target"} | ({"assisted": "lossless"} if run.timing.assisted else {})
    cells = []
    for name, model in kinds.items():
        timed = [point.cell for point in points if point.cell.verifier == model]
        if not timed:  # lossless decoding failed; plan_timing warns of it
            continue
        # a drafter with the draft model, if there is one
        data = min(timed, key=lambda cell: ("draft" not in cell.checkpoints, cell.num_draft)).to_json()
        content = {**data["content"], "target_attention": run.model.attention}
        data |= {"verifier": name, "law": f"{name}/3", "content": content, "also": {}}  # no setting shares its texts
        cells.append(Cell.from_json(data))
    return cells


def time_together(decoder: Decoder, point: Point, unit: ExampleGroup, is_split: bool) -> Measured:
    """Time one cell: a batch through the engine, without measures."""
    generations = decoder.time_batch(point, unit, is_split=is_split)
    times = [generation.timing for generation in generations if generation.timing is not None]
    assert len(times) == len(unit), "the engine returns the time of every row"
    # Counts end where a text ends, as in the records: modelled speeds multiply recorded counts by costs that are derived here.
    # Rows share their rounds: decoding took as long as that of the longest row. Prefills ran one after another.
    drafted = [count for generation in generations for count in generation.drafted or ()]
    longest, prefill_s = max(times, key=lambda timing: timing.decode_s), sum(timing.prefill_s for timing in times)
    return Measured(
        tokens=sum(len(generation.tokens) for generation in generations),
        rounds=len(longest.rounds_s),
        prefill_s=prefill_s,
        decode_s=longest.decode_s,
        first_token_s=prefill_s + longest.rounds_s[0],
        rounds_s=longest.rounds_s,
        draft_s=longest.draft_s,
        verify_s=longest.verify_s,
        rest_s=longest.rest_s,
        drafted_per_round=statistics.fmean(drafted) if drafted else math.nan,
        reads_prompt=longest.reads_prompt,
    )


def text_calls(
    plan: LatencyPlan, run: Run, before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]]
) -> list[CallRecord]:
    """Return the mean seconds per offered token of turning ids into text and back, a part of the draft, for drafters that do so."""
    calls = []
    for name, counts in after.items():
        if "text_s" not in counts:
            continue
        blocks, offered, seconds = (
            counts[key] - before.get(name, {}).get(key, 0) for key in ("blocks", "offered", "text_s")
        )
        if offered:
            price = 1.0, seconds / offered, int(blocks)
            calls.append(CallRecord(plan.pass_id, plan.machine, str(run.model.draft), "text", *price, name))
    return calls


def calls(records: Sequence[Any], points: Sequence[Point], run: Run, prompts: Prompts) -> list[CallRecord]:
    """Return the cost of single calls, as medians over a pass: a drafted token of each drafter, a verification with the rest of
    its round for blocks of the recorded widths, a token of the target alone, a prefill. Modelled speed-ups multiply recorded
    rounds by these costs.
    """
    by_cell = {point.cell.key: point for point in points}
    prices: dict[tuple[str, str, str, int], list[tuple[float, float]]] = {}  # (tokens, seconds) by their rounded tokens

    def note(model: str, kind: str, tokens: float, seconds: float, drafter: str = "") -> None:
        if 0 < seconds < math.inf:
            prices.setdefault((model, kind, drafter, round(tokens)), []).append((tokens, seconds))

    for record in records:
        point = by_cell.get(record.cell)
        if point is None or not record.rounds:
            continue
        if point.role == "target" and not record.is_split:
            note(run.model.target, "target", 1, record.decode_s / record.rounds)
        elif point.role == "target" and record.example in prompts.ids:
            # Single requests, as prompts of a batch differ in length; split repeats, as their first round does not read the prompt.
            note(run.model.target, "prefill", len(prompts.ids[record.example]), record.prefill_s)
        elif point.drafter is not None and record.is_split and record.drafted_per_round > 0:
            model, width = run.model.draft if point.drafter.needs_draft else "", record.drafted_per_round
            note(str(model), "draft", 1, record.draft_s / (record.rounds * width), point.drafter.name)
            note(run.model.target, "verify", width + 1, (record.verify_s + record.rest_s) / record.rounds)
    first, calls = records[0], []
    for (model, kind, drafter, _), values in sorted(prices.items()):
        tokens, seconds = zip(*values, strict=True)
        price = statistics.fmean(tokens), statistics.median(seconds), len(values)
        calls.append(CallRecord(first.pass_id, first.machine, model, kind, *price, drafter))
    return calls
