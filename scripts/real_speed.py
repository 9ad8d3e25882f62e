"""results/real/speed.md: the engine's speed with a real pair, against transformers' generate and against its own model forwards.

    python scripts/real_speed.py TARGET DRAFT data=humaneval.jsonl [dtype=bfloat16] [threads=1] [repeats=3] [sweep=8] [new=24]
        [context=4000] [out=results/real] [parts=generate,forwards,rounds,nucleus,recorded,tracing,context,packed]

TARGET and DRAFT are GGUF files or folders. The texts are successive pieces of 128 tokens of HumanEval's prompts. Part `forwards`
divides the time of whole calls without measures by that of their model forwards, repeated without the engine; `rounds` divides the
time of rounds, without measures and with all measures of a run, by that of the forwards in them, and `nucleus` does so at T = 1
with top_p = 0.95. `recorded` compares steps that are traced (the default of narrow models) with steps that run eagerly (the default
at this size), and `tracing` has the CPU-seconds of tracing them; `context` compares pieces of 4,000 tokens with pieces of 500, and
`packed` packed weights (model.packed=true) with plain weights. The ways that are compared take turns in one process, on a machine
where nothing else runs; a figure is the median of ratios, with their smallest and largest, after a warm-up. `out` gets speed.csv
and speed.md; figures of other parts in them are kept.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
import torch
import transformers

from scripts.bench_context import SHORT
from scripts.bench_engine import FEW_WS, HEAD, WS, Bench, Figure, over_bare
from scripts.bench_tools import Call, Stopwatch, time_engines
from scripts.real_pair import pair_of
from sdbench import generate, tasks
from sdbench.engine import Engine
from sdbench.lm.load import find, load_model, load_tokenizer
from sdbench.prepare.pair import folder_of
from sdbench.verify import Exact
from sdbench.words import choose, exit_on_mistake, number, parse_words

DEFAULTS = {
    "parts": "generate,forwards,rounds,nucleus,recorded,tracing,context,packed",
    "dtype": "bfloat16",
    "threads": "1",
    "repeats": "3",
    "sweep": "8",
    "new": "24",
    "context": "4000",
    "out": "results/real",
}
PROMPT = 128
GREEDY: dict[str, Any] = {"temperature": 0}
Setting = tuple[str, list[list[int]], dict[str, Any]]  # a name, texts and options of a call
LAWS: dict[str, dict[str, Any]] = {"T = 0": GREEDY, "T = 1": {}}
NUCLEUS: dict[str, dict[str, Any]] = {"T = 1, top_p = 0.95": {"top_p": 0.95}}
ROUNDS = {"a token of the target alone": 0, "a lossless round of 5 drafts": 5}


def over_generate(bench: Bench) -> Iterator[Figure]:
    """Yield tokens per second divided by those of transformers' loop. Batch 1 is not measured here: a latency pass with
    `timing.assisted=true` compares it, over more texts.
    """
    many, few = bench.prompts(bench.sweep, PROMPT), bench.prompts(2, PROMPT)
    yield bench.rival(
        f"sweep, 10 w × {bench.sweep} prompts of {PROMPT}, T = 1: tokens/s over assisted generate's",
        lambda: bench.ours(many, WS),
        lambda: bench.theirs(few, FEW_WS),
    )


def settings(bench: Bench, measure: bool, laws: Mapping[str, dict[str, Any]] = LAWS) -> Iterator[Setting]:
    """Yield name, texts and options of calls with all measures of a run, or with none: one text and 32, at each law."""
    single, texts = bench.prompts(1, PROMPT), bench.prompts(32, PROMPT // 2)
    kind = "all measures" if measure else "no measures"
    for law, more in laws.items():
        yield f"batch 1, {kind}, {law}", single, {"batch_size": 1, "measure": measure, **more}
        yield f"batch 32, {kind}, {law}", texts, {"measure": measure, **more}


def over_forwards(bench: Bench) -> Iterator[Figure]:
    """Yield the time of a call, which runs eagerly at this size, divided by that of its bare model forwards."""
    for name, texts, more in settings(bench, measure=False):
        yield from over_bare(bench, name, texts, ways=[""], **more)


def over_its_forwards(bench: Bench, calls: Iterable[Setting]) -> Iterator[Figure]:
    """Yield the time of rounds divided by that of the model forwards in them, in the same calls.

    Prompts are read outside rounds. Unlike `over_forwards` this needs no second run, during which the machine's speed may change.
    """
    for name, texts, options in calls:
        more: dict[str, Any] = options | {"capture": "off"}
        bench.ours(texts, [0.5], **more)
        ratios, count, engine = [], 0, bench.engine("off")
        for _ in range(bench.repeats):
            with time_engines(Stopwatch(bench.wait), [engine], engine.models) as stopwatch:
                bench.ours(texts, [0.5], **more)
            rounds = rounds_of(stopwatch.calls)
            count += len(rounds)
            ratios.append(sum(whole for whole, _ in rounds) / sum(models for _, models in rounds))
        yield bench.figure(f"{name}: a round over the forwards in it", ratios, f"{count} rounds")


def rounds_of(calls: Iterable[Call]) -> list[tuple[float, float]]:
    """Return for each round its seconds and those of the models in it. In `calls`, a call follows the calls within it."""
    rounds, models_s = [], 0.0
    for call in calls:
        if call.phase == "round":
            rounds.append((call.seconds, models_s))
        if call.phase in ("round", "admit"):
            models_s = 0.0
        elif call.phase.endswith(" model"):
            models_s += call.seconds
    return rounds


def recorded_over_eager(bench: Bench) -> Iterator[Figure]:
    """Yield tokens per second with traced steps divided by those without. The warm-up traces the steps."""
    for name, texts, more in settings(bench, measure=False):
        recorded, eager = (partial(bench.ours, texts, [0.5], mode, **more) for mode in ("trace", "off"))
        yield bench.rival(f"{name}: tokens/s with recorded steps over those without", recorded, eager)


def cost_of_tracing(bench: Bench) -> Iterator[Figure]:
    """Yield the CPU-seconds that the first call of an engine takes more than the second, because it traces its steps."""
    for name, texts, more in settings(bench, measure=False, laws={"T = 0": GREEDY}):
        seconds = []
        for _ in range(bench.repeats):
            bench.engines.pop("trace", None)  # a new engine has no traces
            first, second = (cpu_seconds(partial(bench.ours, texts, [0.5], "trace", **more)) for _ in range(2))
            seconds.append(first - second)
        yield bench.figure(f"{name}: CPU-seconds of tracing the steps of a call", seconds)


def cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def costs(engine: Engine, texts: list[list[int]], num_draft: int, new: int) -> tuple[float, float]:
    """Return the seconds of a prefill and of a round, for texts decoded losslessly at T = 0 in one batch.

    Timing is split into parts, so that no round reads a prompt.
    """
    options: dict[str, Any] = {
        "num_draft": num_draft,
        "max_new_tokens": new,
        "stop_ids": (),
        "timing": "split",
        **GREEDY,
    }
    decoded = generate(None, None, texts, [Exact()], engine=engine, batch_size=len(texts), measure=False, **options)
    times = [generation.timing for generation in decoded if generation.timing is not None]
    longest = max(times, key=lambda timing: timing.decode_s)
    return sum(timing.prefill_s for timing in times) / len(texts), longest.decode_s / len(longest.rounds_s)


def long_over_short(bench: Bench, length: int) -> Iterator[Figure]:
    """Yield the time of a round after a long prompt divided by that after a short one, without prefills."""
    turns, engine = bench.warm_ups + bench.repeats, bench.engine(None)
    pairs = list(zip(bench.prompts(turns, length), bench.prompts(turns, SHORT), strict=True))
    for name, num_draft in ROUNDS.items():
        ratios = [
            costs(engine, [long], num_draft, bench.new)[1] / costs(engine, [short], num_draft, bench.new)[1]
            for long, short in pairs
        ]
        title = f"{name}, batch 1, T = 0: time at {length:,} tokens of context over {SHORT}"
        yield bench.figure(title, ratios[bench.warm_ups :])


def packed_over_plain(bench: Bench) -> Iterator[Figure]:
    """Yield the time of a prefill and of a round with packed weights divided by that with plain weights."""
    plain, packed = (Engine(bench.target, bench.draft, capture="off", packed=packed) for packed in (False, True))
    turns = bench.warm_ups + bench.repeats
    for num_rows in (1, 16):
        texts = bench.prompts(turns * num_rows, PROMPT)
        batches = [texts[i : i + num_rows] for i in range(0, len(texts), num_rows)]
        title = f"batch {num_rows}, T = 0: time with packed weights over that without"
        prefills: list[float] = []
        for name, num_draft in ROUNDS.items():
            pairs = [[costs(engine, batch, num_draft, bench.new) for engine in (packed, plain)] for batch in batches]
            prefills, rounds = ([a[i] / b[i] for a, b in pairs[bench.warm_ups :]] for i in range(2))
            yield bench.figure(f"{name}, {title}", rounds)
        yield bench.figure(f"the prompts of both models, {PROMPT} tokens each, {title}", prefills)


def load(target: str, draft: str, data: str, given: dict[str, str]) -> Bench:
    """Return the pair with HumanEval's prompts as its corpus."""
    checkpoint = find(target, folder_of(target))
    models = [
        load_model(found, device="cpu", dtype=given["dtype"]) for found in (checkpoint, find(draft, folder_of(draft)))
    ]
    tokenizer = load_tokenizer(checkpoint)
    read = [f"{example.prompt.text}\n" for example in tasks.load("humaneval", data=data).examples()]
    corpus = list(chain.from_iterable(tokenizer(text, add_special_tokens=False)["input_ids"] for text in read))
    threads, repeats, sweep, new = (int(given[name]) for name in ("threads", "repeats", "sweep", "new"))
    return Bench(models[0], models[1], "cpu", threads, repeats, sweep, new, corpus, warm_ups=1)


def held_figures(out: Path, about: str) -> dict[str, Figure]:
    """Return the figures in `out`, by name; ValueError if they are of another pair or of other options."""
    file, page = out / "speed.csv", out / "speed.md"
    if not file.exists():
        return {}
    if not page.exists() or about not in page.read_text():
        raise ValueError(f"{file} has figures of another pair, dtype or new=: give another out=")
    rows = pd.read_csv(file).fillna({"note": ""}).to_dict("records")
    return {row["name"]: Figure(**row) for row in rows}


def write(out: Path, about: str, figures: Collection[Figure]) -> None:
    """Write speed.csv and speed.md. This is called after each figure, so that a part that is stopped keeps its figures."""
    table = pd.DataFrame([asdict(figure) for figure in figures])
    table.to_csv(out / "speed.csv", index=False, float_format="%.6g")
    lines = ["# The speed of the engine with a real pair", "", about, "", HEAD, *(figure.row for figure in figures), ""]
    (out / "speed.md").write_text("\n".join(lines))


def main(words: list[str]) -> int:
    with exit_on_mistake("real_speed", __doc__, words):
        given = parse_words(words, {**DEFAULTS, "data": ""})
        if len(given.paths) != 2 or "data" not in given.options:
            raise ValueError("give TARGET, DRAFT and data=humaneval.jsonl")
        options = DEFAULTS | dict(given.options)
        parts = choose("parts", options["parts"], DEFAULTS["parts"].split(","))
        context, out = int(number(given, "context") or DEFAULTS["context"]), Path(options["out"])
        about = (
            f"{pair_of(*given.paths)} in {options['dtype']} on the CPU, {options['new']} tokens "
            "a text. *a over b* is a divided by b, measured in turn. Written by `python scripts/real_speed.py`."
        )
        figures = held_figures(out, about)
        torch.set_num_threads(int(options["threads"]))
        transformers.logging.set_verbosity_error()
        bench = load(*given.paths, options["data"], options)
        longest = min(len(bench.corpus), (bench.engine(None).target.limit or len(bench.corpus)) - bench.new)
        if "context" in parts and not SHORT < context <= longest:
            raise ValueError(
                f"context must be above {SHORT} and at most {longest}, what the model and the data have room for, got {context}"
            )
    measured = {
        "generate": over_generate(bench),
        "forwards": over_forwards(bench),
        "rounds": over_its_forwards(bench, chain(settings(bench, measure=False), settings(bench, measure=True))),
        "nucleus": over_its_forwards(bench, settings(bench, measure=True, laws=NUCLEUS)),
        "recorded": recorded_over_eager(bench),
        "tracing": cost_of_tracing(bench),
        "context": long_over_short(bench, context),
        "packed": packed_over_plain(bench),
    }
    out.mkdir(parents=True, exist_ok=True)
    print(HEAD)
    for figure in chain.from_iterable(measured[part] for part in parts):
        figures[figure.name] = figure
        print(figure.row, flush=True)
        write(out, about, figures.values())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
