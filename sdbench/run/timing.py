"""The latency pass of a job: which cells go on the clock beside which baselines, and the cost of single calls."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdbench import plan
from sdbench.config import Run
from sdbench.records import CallRecord, Cell, Store, TimingRecord, read
from sdbench.run.cells import Point
from sdbench.run.latency import (
    Clocked,
    Contender,
    Unit,
    drift_sentence,
    latency_pass,
    machine,
    name_of,
    num_timed,
    spread,
    units,
)
from sdbench.run.plain import plain_generate
from sdbench.run.progress import Bar, warn

if TYPE_CHECKING:
    from sdbench.run.decode import Decoder
    from sdbench.run.quality import Asked


def time_points(run: Run, points: Sequence[Point], asked: Asked, store: Store, decoder: Decoder) -> None:
    """Times what is not yet timed on this machine: cells spread over the sweep, lossless, the target alone twice."""
    timing = run.timing
    assert timing is not None
    timed = units(list(asked.ids)[: timing.examples], timing.batch_size)
    if not timed:
        warn(f"the latency pass is left out: timing.batch_size={timing.batch_size} needs as many examples")
        return
    chosen = on_the_clock(points, timing.cells)
    plain = generate_cell(next(point.cell for point in points if point.role == "target"), run.model.attention)
    store.add_cells([plain])
    where = machine()
    wanted = [*(point.cell for point in chosen), plain]
    done = plan.timed_cells(read(store.folder), wanted, list(map(name_of, timed)), timing.repeats, machine=where)
    if len(done) == len(wanted) and not run.force:
        return
    decoder.record_at_once()
    contenders = [
        Contender(point.cell.key, Clock(decoder, point, asked), kind=(point.role, point.num_draft)) for point in chosen
    ]
    contenders.append(
        Contender(plain.key, lambda unit, _: plain_generate(decoder, [asked.ids[x] for x in unit]), has_split=False)
    )
    records: list[TimingRecord] = []
    with Bar("timing", num_timed(contenders, len(timed), timing.repeats)) as bar:
        for record in latency_pass(contenders, timed, timing.repeats, seed=run.seed, where=where):
            records.append(record)
            bar.add(tokens=record.tokens)
    store.append_timings(records)
    store.append_calls(calls(records, chosen, run, asked))
    sentence = drift_sentence(records)
    if sentence:
        warn(sentence)


def on_the_clock(points: Sequence[Point], cells: int) -> list[Point]:
    """Both baselines and, of each rule and draft length, `cells` points spread over the sweep; not those that are lossless,
    for at w = 1 the same work is on the clock already.
    """
    chosen = [point for point in points if point.cell.verifier in ("target", "lossless")]
    sweeps: dict[int, list[Point]] = {}
    for point in points:
        if point.role == "pair" and not point.cell.is_lossless:
            sweeps.setdefault(point.num_draft, []).append(point)
    for sweep in sweeps.values():
        chosen += [sweep[i] for i in spread(len(sweep), cells)]
    return chosen


def generate_cell(target: Cell, attention: str | None) -> Cell:
    """The target alone by transformers' own generate: on the clock only."""
    data = target.to_json()
    content = {**data["content"], "target_attention": attention}
    return Cell.from_json({**data, "verifier": "generate", "law": "generate/1", "content": content})


class Clock:
    """One cell on the clock: a batch through the engine, measures off."""

    def __init__(self, decoder: Decoder, point: Point, asked: Asked) -> None:
        self.decoder, self.point, self.asked = decoder, point, asked

    def __call__(self, unit: Unit, is_split: bool) -> Clocked:
        prompts = {example: self.asked.ids[example] for example in unit}
        found = self.decoder.together(self.point, prompts, is_split=is_split)
        times = [generation.timing for generation in found if generation.timing is not None]
        assert len(times) == len(unit), "the engine times what is asked to be timed"
        # Rows share their rounds: the batch took as long as its longest row, and prefills came one after another.
        longest = max(times, key=lambda timing: timing.decode_s)
        return Clocked(
            tokens=sum(len(generation.tokens) for generation in found),
            rounds=len(longest.rounds_s),
            prefill_s=sum(timing.prefill_s for timing in times),
            decode_s=longest.decode_s,
            first_token_s=sum(timing.prefill_s for timing in times) + longest.rounds_s[0],
            rounds_s=longest.rounds_s,
            draft_s=longest.draft_s,
            verify_s=longest.verify_s,
            rest_s=longest.rest_s,
        )


def calls(records: Sequence[TimingRecord], points: Sequence[Point], run: Run, asked: Asked) -> list[CallRecord]:
    """What one call costs, as medians over a pass: a drafted token, a verification (with the rest of its round),
    a token of the target alone, a prefill. The modelled speed-up of a cell is its recorded rounds at these prices.
    """
    by_cell = {point.cell.key: point for point in points}
    prices: dict[tuple[str, str, int], list[float]] = {}

    def note(model: str | None, kind: str, tokens: int, seconds: float) -> None:
        if seconds == seconds and seconds > 0:
            prices.setdefault((str(model), kind, tokens), []).append(seconds)

    for record in records:
        point = by_cell.get(record.cell)
        if point is None or not record.rounds:
            continue
        if point.role == "target" and not record.is_split:
            note(run.model.target, "target", 1, record.decode_s / record.rounds)
            if record.example in asked.ids:  # a single request: a batch's prefills are of several lengths
                note(run.model.target, "prefill", len(asked.ids[record.example]), record.prefill_s)
        elif point.role == "pair" and record.is_split:
            k = point.num_draft
            note(run.model.draft, "draft", 1, record.draft_s / (record.rounds * k))
            note(run.model.target, "verify", k + 1, (record.verify_s + record.rest_s) / record.rounds)
    first = records[0]
    return [
        CallRecord(first.pass_id, first.machine, model, kind, tokens, statistics.median(values), len(values))
        for (model, kind, tokens), values in sorted(prices.items())
    ]
