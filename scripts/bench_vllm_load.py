"""Compare what sdbench's open loop and `vllm bench serve` report, field by field: results/benchmarks/vllm_load.{json,md}.

    python scripts/bench_vllm_load.py python=.venv-vllm/bin/python [rate=2] [n=400] [repeats=3] [ttft=50] [tpot=8]
                                      [note=SENTENCE] [out=results/benchmarks]

A vLLM server with the tiny pair, without a cache of prompts, gets the same word problems at temperature 0 in turns: from
`vllm bench serve` at Poisson times of a rate, by the seed of the turn, and from sdbench's client at the same times. Both send the
prompts as texts, although sdbench sends ids otherwise: the server tokenises a text before its first token. Fields are
defined as in `vllm bench serve`: seconds count from the sending of a request, `itl` is the time between two chunks of an answer,
and the fields with `max` are by whole seconds. Only `duration`, and with it every rate, differs: here it begins with the first
sending, in `vllm bench serve` before the wait for the first arrival. `ttft` and `tpot` are the bounds of the goodput in
milliseconds. `note` is printed on the page, for example to name other load on the machine.

There are two comparisons. "Own requests": each client sends its own requests, one client after the other, so the ratio includes
differences of the server between two runs. "Its requests": our fields, computed from the times of the requests of
`vllm bench serve` itself, so that only the definitions can differ. Goal: each field within 2 % in both, by the median over turns;
the exit status is 1 if a field is not.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from scripts.bench_vllm import open_pair, rival, rival_words
from scripts.vllm_cpu import interpreter
from sdbench.engines.served.open_loop import SentRequest, open_loop
from sdbench.metrics.markup import markdown
from sdbench.prepare.arrivals import Arrivals
from sdbench.serve.command import look
from sdbench.words import exit_on_mistake, number, parse_words

WITHIN = 0.02
PERCENTILES = (50, 90, 99)
BOUNDS = ("ttft", "tpot")  # of the goodput
LATENCIES = ("ttft", "tpot", "itl", "e2el")
FIELDS = (
    *("completed", "failed", "total_input_tokens", "total_output_tokens", "duration"),
    *("request_throughput", "request_goodput", "input_throughput", "output_throughput", "total_token_throughput"),
    *("max_concurrent_requests", "max_output_tokens_per_s"),
    *(f"{kind}_{name}_ms" for name in LATENCIES for kind in ("mean", *(f"p{percent}" for percent in PERCENTILES))),
)
DEFAULTS = {
    "python": "",
    "rate": "2",
    "n": "400",
    "repeats": "3",
    "ttft": "50",
    "tpot": "8",
    "out": "results/benchmarks",
    "note": "Nothing else was at work.",
}
PROMPTS = {  # of our requests; earlier figures do not say it
    "texts": "Both clients sent texts.",
    "ids": "Our client sent token ids, `vllm bench serve` texts, which the server tokenises before the first token.",
}
OTHERS = """\
`input_throughput` is the difference of two fields of `vllm bench serve`. Its `max_` fields count by whole seconds since the first
request, and `max_output_tokens_per_s` counts chunks; our tables have the most requests that were under way at one time
(`peak_concurrency`) instead. A chunk can hold several tokens: `itl` is per chunk on both sides, `tpot` per token. Not compared:
`median_*` (the 50th percentile), `std_*` (of the same values), `spec_decode_*` (sums over all requests that the server counts;
our quality pass has them for each text), `rtfx` (audio). Without a counterpart there: limits of percentiles and of goodput,
seconds from the planned arrival, the server's queue, saturation.
"""


def fields_of(
    sent: Sequence[SentRequest], num_input: Sequence[int], bounds_ms: Mapping[str, float]
) -> dict[str, float]:
    """Return the fields of `vllm bench serve`, computed from the requests of our open loop and the lengths of their prompts."""
    answered = [request for request in sent if not request.failure]
    first, last, begin = (
        np.array([getattr(request, name) for request in answered])
        for name in ("first_token_s", "last_token_s", "sent_s")
    )
    tokens = np.array([request.tokens for request in answered])
    seconds = float(last.max() - min(request.sent_s for request in sent))
    num_in, num_out = sum(num_input[request.number] for request in answered), int(tokens.sum())
    between = (last - first) / np.maximum(tokens - 1, 1)  # 0 for an answer of one token
    latencies = {"ttft": first - begin, "e2el": last - begin, "tpot": between[tokens > 1]}
    latencies["itl"] = np.concatenate([np.diff(request.chunks_s) for request in answered])
    is_good = np.logical_and.reduce(
        [1000 * {**latencies, "tpot": between}[name] <= bound for name, bound in bounds_ms.items()]
    )
    fields: dict[str, float] = {"completed": len(answered), "failed": len(sent) - len(answered), "duration": seconds}
    fields |= {"total_input_tokens": num_in, "total_output_tokens": num_out}
    fields |= {"request_throughput": len(answered) / seconds, "request_goodput": int(is_good.sum()) / seconds}
    fields |= {"input_throughput": num_in / seconds, "output_throughput": num_out / seconds}
    fields["total_token_throughput"] = (num_in + num_out) / seconds
    chunks = np.concatenate([request.chunks_s for request in answered]) - begin.min()
    fields["max_output_tokens_per_s"] = int(np.bincount(chunks.astype(int)).max())
    fields["max_concurrent_requests"] = most_in_a_second(begin - begin.min(), last - begin.min())
    for name, values in latencies.items():
        fields[f"mean_{name}_ms"] = 1000 * float(values.mean())
        fields |= {f"p{percent}_{name}_ms": 1000 * float(np.percentile(values, percent)) for percent in PERCENTILES}
    return {name: fields[name] for name in FIELDS}


def requests_of(detailed: Mapping[str, Any]) -> list[SentRequest]:
    """Return the requests of `vllm bench serve --save-detailed` as if our open loop had sent them."""
    begin = min(detailed["start_times"])
    columns = (detailed[name] for name in ("start_times", "ttfts", "itls", "output_lens"))
    sent = []
    for index, (start, first, gaps, tokens) in enumerate(zip(*columns, strict=True)):
        times = tuple(accumulate(gaps, initial=start - begin + first))
        more = {"tokens": tokens, "chunks_s": times}
        sent.append(SentRequest(index, start - begin, times[0], times[-1], under_way=0, started_at=0.0, **more))
    return sent


def most_in_a_second(begin: np.ndarray, end: np.ndarray) -> int:
    """Return the most requests that were under way in one second; each counts in every second that it touches."""
    seconds = np.arange(int(end.max()) + 1)
    touched = (begin.astype(int)[:, None] <= seconds) & (seconds <= end.astype(int)[:, None])
    return int(touched.sum(0).max())


def send_texts(decoder: Any) -> None:
    """Let a decoder send its prompts as texts, which the server tokenises, like those of `vllm bench serve`."""
    body, examples = decoder.body, decoder.job.prompts.examples
    decoder.body = lambda client, item: body(client, item) | {"prompt": examples[item.example].prompt.text}


def compare(
    python: str, rate: float, n: int, repeats: int, bounds_ms: Mapping[str, float], folder: Path
) -> list[dict[str, tuple[float, float, float]]]:
    """Return for each turn {field: (ours, theirs, our field computed from their requests)}."""
    turns = []
    with open_pair(python, n, folder, "engine.args.enable_prefix_caching=false") as pair:
        more = ["--request-rate", f"{rate:g}", "--percentile-metrics", ",".join(LATENCIES), "--save-detailed"]
        more += ["--metric-percentiles", ",".join(map(str, PERCENTILES))]
        more += ["--goodput", *(f"{name}:{bound:g}" for name, bound in bounds_ms.items())]
        send_texts(pair.decoder)
        num_input = [len(pair.decoder.job.prompts.ids[example]) for example in pair.examples]
        for turn in range(1 + repeats):  # the first is a warm-up
            theirs = rival([*rival_words(python, pair, n), *more, "--seed", str(turn)], folder)
            theirs["input_throughput"] = theirs["total_token_throughput"] - theirs["output_throughput"]
            begin = min(theirs["start_times"])
            times = tuple(sorted(start - begin for start in theirs["start_times"]))
            arrivals = Arrivals((rate,) * n, turn, times, tuple(pair.examples))
            ours = fields_of(open_loop(pair.decoder, pair.point.cell.key, arrivals), num_input, bounds_ms)
            again = fields_of(requests_of(theirs), theirs["input_lens"], bounds_ms)
            if turn:
                turns.append({name: (ours[name], theirs[name], again[name]) for name in FIELDS})
    return turns


def ratios_of(turns: Sequence[Mapping[str, Sequence[float]]], side: int = 0) -> dict[str, list[float]]:
    """Return our field (side 0), or our field of their requests (side 2), divided by theirs, turn by turn; 1 if both are 0."""

    def ratio(ours: float, theirs: float) -> float:
        return ours / theirs if theirs else 1.0 if not ours else math.inf

    return {name: [ratio(turn[name][side], turn[name][1]) for turn in turns] for name in FIELDS}


def is_within(ratios: Sequence[float]) -> bool:
    return abs(statistics.median(ratios) - 1) <= WITHIN


def verdict(ratios: Sequence[float]) -> str:
    return "yes" if is_within(ratios) else "no"


def page(tree: Mapping[str, Any]) -> str:
    turns, has, rows = tree["turns"], tree["installed"], []
    same = ratios_of(turns, side=2)
    for name, ratios in ratios_of(turns).items():
        ours, theirs = (statistics.median(turn[name][side] for turn in turns) for side in (0, 1))
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        row = [name, f"{ours:.4g}", f"{theirs:.4g}", f"{statistics.median(ratios):.3f}", spread, verdict(ratios)]
        rows.append([*row, f"{statistics.median(same[name]):.4f}", verdict(same[name])])
    within = f"within {WITHIN:.0%}"
    head = ("field", "ours", "`vllm bench serve`", "own requests", "in turns", within, "its requests", within)
    about = (
        f"vLLM {has['version']}, {tree['n']} requests at {tree['rate']:g} requests/s, {len(turns)} turns, {tree['cores']} "
        f"cores, load {tree['load']:.1f} at the start. {tree['note']} Goodput: "
        + ", ".join(f"{name} within {bound:g} ms" for name, bound in tree["bounds_ms"].items())
        + f". {PROMPTS[tree.get('prompts', 'ids')]} Own requests: each client's, one client after the other; "
        "its requests: our fields, computed from the times of the requests of `vllm bench serve`, so that only definitions "
        "can differ. `python scripts/bench_vllm_load.py` wrote this."
    )
    return "\n".join(["# vLLM: our open loop", "", about, "", markdown(head, rows, num_left=1), OTHERS])


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("bench_vllm_load", __doc__, words):
        given = parse_words(words, DEFAULTS)
        options = DEFAULTS | dict(given.options)
        numbers = {name: number(given, name) or float(DEFAULTS[name]) for name in ("rate", "n", "repeats", *BOUNDS)}
        for name in ("n", "repeats"):
            if not numbers[name].is_integer():
                raise ValueError(f"{name} must be a whole number of at least 1, got {given.options[name]}")
        installed = look(interpreter(options), "vllm")
    rate, n, repeats = numbers["rate"], int(numbers["n"]), int(numbers["repeats"])
    bounds_ms = {name: numbers[name] for name in BOUNDS}
    out, load = Path(options["out"]), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        turns = compare(options["python"], rate, n, repeats, bounds_ms, Path(name))
    tree = {"installed": installed, "cores": os.cpu_count(), "load": load, "rate": rate, "n": n, "turns": turns}
    tree |= {"note": options["note"], "bounds_ms": bounds_ms, "prompts": "texts"}
    out.mkdir(parents=True, exist_ok=True)
    (out / "vllm_load.json").write_text(json.dumps(tree, indent=1) + "\n")
    (out / "vllm_load.md").write_text(page(tree))
    print(page(tree))
    return int(not all(is_within(ratios) for side in (0, 2) for ratios in ratios_of(turns, side).values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
