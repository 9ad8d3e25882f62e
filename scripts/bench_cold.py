"""Measure the first texts of a fresh process, in comparison with transformers' generate.

    python scripts/bench_engine.py cold=8 [OPTIONS]                        measures the first 8 texts of fresh processes
    python scripts/bench_cold.py WAY [pair=llama-tiny] [texts=8] [new=64] [seed=0]     prints the seconds of one process

Each process imports sdbench, loads the weights and decodes one text after another, losslessly at T = 1 with five drafted tokens, in
one way: `ours` (a new engine, which traces a step when it has recurred often enough), `eager` (capture="off"), `at-once`
(each step is traced the first time it runs), `assisted` and `plain` (transformers' generate with and without the draft). Processes
of all ways take turns. Seconds are processor seconds of one thread, without loading. `phases` is `ours` with the loop's hook: it
prints the seconds of each phase in the first text and in the last.
"""

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bench_tools import Stopwatch, time_engines
from sdbench.embedded import PAIRS
from sdbench.words import choose, exit_on_mistake, parse_words

WAYS = ("ours", "eager", "at-once", "assisted", "plain", "phases")
COMPARED = {"ours": "", "eager": ", run eagerly", "at-once": ", each step traced the first time"}
RIVALS = {"plain": "plain generate's", "assisted": "assisted generate's"}
PLACES = {"first": slice(0, 1), "all": slice(None), "last": slice(-1, None)}  # texts of a process
PROMPT = 200
DEFAULTS = {"pair": "llama-tiny", "texts": "8", "new": "64", "seed": "0"}
OF_PROCESSES = {"device": "cpu", "dtype": "float32", "threads": "1"}


def options_of_processes(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that all these processes share; ValueError if other values are given."""
    if (pair := given.get("pair", DEFAULTS["pair"])) not in PAIRS:
        raise ValueError(f"cold= needs an embedded pair: pair must be among {', '.join(PAIRS)}, got {pair}")
    for name, value in OF_PROCESSES.items():
        if given.get(name, value) != value:
            raise ValueError(f"cold= measures processes with {name}={value}, got {name}={given[name]}")
    return OF_PROCESSES


def measure_cold(bench: Any, texts: str) -> Iterator[Any]:
    """Yield the figures of first texts; `bench` is a Bench of bench_engine. An error in a process ends the benchmark."""
    pair, new = bench.name, bench.new
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for seed in range(bench.repeats):
        for way, outcomes in runs.items():
            outcomes.append(run_process(way, pair=pair, texts=int(texts), new=new, seed=seed))
    rates = {way: [rates_of(outcome) for outcome in outcomes] for way, outcomes in runs.items() if way != "phases"}
    for way, words in COMPARED.items():
        for rival, name in RIVALS.items():
            for place, rows in PLACES.items():
                pairs = [(mine[rows], other[rows]) for mine, other in zip(rates[way], rates[rival], strict=True)]
                ratios = [mean_rate(mine) / mean_rate(other) for mine, other in pairs]
                yield bench.figure(f"{place} of {texts}{words}: tokens per second over {name}", ratios)
    yield bench.figure("making an engine, processor seconds", [run["engine_s"] for run in runs["ours"]])
    costliest = [max(run["texts"], key=lambda text: text[1])[1] - run["texts"][0][1] for run in runs["ours"]]
    yield bench.figure("the text in which steps are traced less the first text, processor seconds", costliest)
    for place, number in (("first", 0), ("last", -1)):
        names = {phase for run in runs["phases"] for phase in run["phases"][number]}
        shares = {name: [run["phases"][number].get(name, 0.0) for run in runs["phases"]] for name in names}
        for name, seconds in sorted(shares.items(), key=lambda item: -max(item[1])):
            yield bench.figure(f"{place} text: {name}, processor seconds", seconds)


def rates_of(outcome: dict[str, Any]) -> list[tuple[int, float]]:
    """Return tokens and seconds of each text; the seconds of the first include building the engine."""
    (tokens, seconds), *others = outcome["texts"]
    return [(tokens, seconds + outcome["engine_s"]), *map(tuple, others)]


def mean_rate(texts: list[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in texts) / sum(seconds for _, seconds in texts)


def run_process(way: str, **options: object) -> dict[str, Any]:
    command = [sys.executable, __file__, way, *(f"{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench_engine: the first texts of {way} could not be measured: {done.stderr[-300:]}")
    return json.loads(done.stdout.splitlines()[-1])


def decode_texts(way: str, bench: Any, count: int, seed: int) -> dict[str, Any]:
    """Decode texts of different prompts one by one; return tokens and processor seconds of each."""
    import torch

    from sdbench.engine import Engine, generate
    from sdbench.verify import Exact

    torch.manual_seed(seed)
    torch.mm(torch.rand(8, 8), torch.rand(8, 8))  # initialises libraries before any way is timed
    prompts, phases, engine = bench.prompts(count, PROMPT), [], None
    started = time.process_time()
    if way not in RIVALS:
        engine = Engine(bench.target, bench.draft, capture="off" if way == "eager" else None)
        if way == "at-once":
            engine.capture_at_once()
    engine_s = time.process_time() - started
    options = {"max_new_tokens": bench.new, "stop_ids": (), "seed": seed, "batch_size": 1, "measure": False}

    def ours(prompt: list[int]) -> int:
        return len(generate(None, None, [prompt], [Exact()], engine=engine, **options)[0].tokens)

    def theirs(prompt: list[int]) -> int:
        return bench.theirs([prompt], [1.0], is_assisted=way == "assisted")

    def timed_by_phase(prompt: list[int]) -> int:
        assert engine is not None
        stopwatch = Stopwatch(bench.wait, time.process_time)
        with time_engines(stopwatch, [engine], engine.models):
            tokens = ours(prompt)
        seconds: defaultdict[str, float] = defaultdict(float)
        for call in stopwatch.calls:
            seconds[call.phase] += call.seconds - call.inner_s
        phases.append(dict(seconds))
        return tokens

    decode: Callable[[list[int]], int] = timed_by_phase if way == "phases" else theirs if way in RIVALS else ours
    texts = []
    for prompt in prompts:
        started = time.process_time()
        tokens = decode(prompt)
        texts.append((tokens, time.process_time() - started))
    return {"engine_s": engine_s, "texts": texts, "phases": phases}


def main() -> None:
    with exit_on_mistake("bench_cold", __doc__, sys.argv[1:]):
        words = parse_words(sys.argv[1:], DEFAULTS)
        (way,) = choose("the way", ",".join(words.paths), WAYS)
        options = DEFAULTS | dict(words.options)
    import torch
    import transformers

    from scripts.bench_engine import load

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    bench = load(options["pair"], "cpu", torch.float32, 1, 1, new=int(options["new"]))
    print(json.dumps(decode_texts(way, bench, int(options["texts"]), int(options["seed"]))))


if __name__ == "__main__":
    main()
