"""Compare what sdbench's open loop and `vllm bench serve` report, field by field: results/benchmarks/vllm_load.{json,md}.

    python scripts/bench_vllm_load.py python=.venv-vllm/bin/python [rate=2] [n=64] [repeats=3] [note=SENTENCE]
                                      [out=results/benchmarks]

One server of vLLM with the tiny pair, without a cache of prompts, gets the same word problems at temperature 0 in turns: from
`vllm bench serve` at Poisson times of a rate, by the seed of the turn, and from sdbench's client at the same times. Fields are
defined as there: seconds count from the sending of a request. Goal: each within 2 %, by the median over turns; the exit status
is 1 if one is not. `note` is printed on the page, for other load on the machine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
LATENCIES = ("ttft", "tpot", "e2el")
FIELDS = (
    *("completed", "total_output_tokens", "request_throughput", "output_throughput"),
    *(f"{kind}_{name}_ms" for name in LATENCIES for kind in ("mean", *(f"p{percent}" for percent in PERCENTILES))),
)
DEFAULTS = {
    "python": "",
    "rate": "2",
    "n": "64",
    "repeats": "3",
    "out": "results/benchmarks",
    "note": "Nothing else was at work.",
}


def fields_of(sent: Sequence[SentRequest]) -> dict[str, float]:
    """Return the fields of `vllm bench serve`, computed from the requests of our open loop."""
    answered = [request for request in sent if not request.failure]
    first, last, begin = (
        np.array([getattr(request, name) for request in answered])
        for name in ("first_token_s", "last_token_s", "sent_s")
    )
    tokens = np.array([request.tokens for request in answered])
    seconds = float(last.max() - min(request.sent_s for request in sent))
    latencies = {"ttft": first - begin, "e2el": last - begin}
    latencies["tpot"] = ((last - first) / np.maximum(tokens - 1, 1))[tokens > 1]
    fields: dict[str, float] = {"completed": len(answered), "total_output_tokens": int(tokens.sum())}
    fields |= {"request_throughput": len(answered) / seconds, "output_throughput": int(tokens.sum()) / seconds}
    for name, values in latencies.items():
        fields[f"mean_{name}_ms"] = 1000 * float(values.mean())
        fields |= {f"p{percent}_{name}_ms": 1000 * float(np.percentile(values, percent)) for percent in PERCENTILES}
    return {name: fields[name] for name in FIELDS}


def compare(python: str, rate: float, n: int, repeats: int, folder: Path) -> list[dict[str, tuple[float, float]]]:
    """Return {field: (ours, theirs)} for each turn."""
    turns = []
    with open_pair(python, n, folder, "engine.args.enable_prefix_caching=false") as pair:
        more = ["--request-rate", f"{rate:g}", "--percentile-metrics", ",".join(LATENCIES), "--save-detailed"]
        more += ["--metric-percentiles", ",".join(map(str, PERCENTILES))]
        for turn in range(1 + repeats):  # the first is a warm-up
            theirs = rival([*rival_words(python, pair, n), *more, "--seed", str(turn)], folder)
            begin = min(theirs["start_times"])
            times = tuple(sorted(start - begin for start in theirs["start_times"]))
            arrivals = Arrivals((rate,) * n, turn, times, tuple(pair.examples))
            ours = fields_of(open_loop(pair.decoder, pair.point.cell.key, arrivals))
            if turn:
                turns.append({name: (ours[name], theirs[name]) for name in FIELDS})
    return turns


def ratios_of(turns: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Return ours divided by theirs, turn by turn."""
    return {name: [turn[name][0] / turn[name][1] for turn in turns] for name in FIELDS}


def is_within(ratios: Sequence[float]) -> bool:
    return abs(statistics.median(ratios) - 1) <= WITHIN


def page(tree: Mapping[str, Any]) -> str:
    turns, has = tree["turns"], tree["installed"]
    rows = []
    for name, ratios in ratios_of(turns).items():
        ours, theirs = (statistics.median(turn[name][side] for turn in turns) for side in (0, 1))
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        is_equal = "yes" if is_within(ratios) else "no"
        rows.append([name, f"{ours:.4g}", f"{theirs:.4g}", f"{statistics.median(ratios):.3f}", spread, is_equal])
    head = ("field", "ours", "`vllm bench serve`", "ratio", "in turns", f"within {WITHIN:.0%}")
    about = (
        f"vLLM {has['version']}, {tree['n']} requests at {tree['rate']:g} requests/s, {len(turns)} turns, {tree['cores']} "
        f"cores, load {tree['load']:.1f} at the start. {tree['note']} `python scripts/bench_vllm_load.py` wrote this."
    )
    return "\n".join(["# vLLM: our open loop", "", about, "", markdown(head, rows, num_left=1)])


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("bench_vllm_load", __doc__, words):
        given = parse_words(words, DEFAULTS)
        options = DEFAULTS | dict(given.options)
        rate, n, repeats = (number(given, name) or float(DEFAULTS[name]) for name in ("rate", "n", "repeats"))
        installed = look(interpreter(options), "vllm")
    out, load = Path(options["out"]), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        turns = compare(options["python"], rate, int(n), int(repeats), Path(name))
    tree = {"installed": installed, "cores": os.cpu_count(), "load": load, "rate": rate, "n": int(n), "turns": turns}
    tree |= {"note": options["note"]}
    out.mkdir(parents=True, exist_ok=True)
    (out / "vllm_load.json").write_text(json.dumps(tree, indent=1) + "\n")
    (out / "vllm_load.md").write_text(page(tree))
    print(page(tree))
    return int(not all(map(is_within, ratios_of(turns).values())))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
