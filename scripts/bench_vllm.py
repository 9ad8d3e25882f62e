"""Compare the cost of sdbench's client and plug-in with vLLM's own client and sampler: results/benchmarks/vllm.{json,md}.

    python scripts/bench_vllm.py python=.venv-vllm/bin/python [repeats=7] [n=64] [note=SENTENCE] [out=results/benchmarks]

*client*: tokens/s of `n` word problems at temperature 0 in a closed loop of eight requests, by the loop of the latency pass divided
by those of `vllm bench serve`, with the same server, in turns. *step*: seconds of a step of a batch of eight with the plug-in's
ensemble divided by those with vLLM's own sampler, in turns (vllm_steps.py). Goals: at least .98 for *client*, at most 1.10 for
*step*. Starts are not counted. `note` is printed on the page, for example to name other load on the machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.vllm_cpu import CPU, SERVER, interpreter
from sdbench import embedded
from sdbench.cli.compose import Composer
from sdbench.engines.job import prepare
from sdbench.engines.served.servers import OpenServer
from sdbench.engines.served.timing import Ask, closed_loop
from sdbench.prepare.cells import Point
from sdbench.prepare.provenance import config_of, provenance
from sdbench.records import Store
from sdbench.serve.command import look
from sdbench.words import exit_on_mistake, number, parse_words

ROOT = Path(__file__).parents[1]
PAIR, TASK, AT_ONCE = "llama-tiny", "gsm8k-tiny", 8
# The code of `vllm bench serve`. The command itself needs package metadata with the name "vllm", which the CPU build does not have.
RIVAL = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
DEFAULTS = {"python": "", "repeats": "7", "n": "64", "out": "results/benchmarks", "note": "Nothing else was at work."}


@dataclass(frozen=True)
class OpenPair:
    """A running vLLM server with the pair, and the requests that are sent to it."""

    decoder: Any
    point: Point
    examples: list[str]
    texts: Path  # one line per prompt
    stops: dict[str, Any]
    server: OpenServer


@contextmanager
def open_pair(python: str, n: int, folder: Path, *extra: str) -> Iterator[OpenPair]:
    """Start the server; write its prompts to `folder`, as texts and as ids."""
    words = [f"model={PAIR}", f"task={TASK}", f"n={n}", "temperature=0", "verifier=exact", "engine=vllm"]
    words += [f"engine.python={python}", f"results={folder}", f"batch_size={AT_ONCE}", *SERVER, *extra]
    run = Composer().run(words)
    job = prepare(run, words)
    prompts = job.prompts
    examples = list(prompts.ids)
    point = next(one for one in job.planned if one.cell.verifier == "lossless")
    texts = folder / "prompts.jsonl"
    lines = [json.dumps({"prompt": prompts.examples[key].prompt.text}) for key in examples]
    texts.write_text("\n".join(lines) + "\n")
    (folder / "ids.json").write_text(json.dumps(list(prompts.ids.values())))
    with Store.open(
        run.folder, config=config_of(run, words), provenance=provenance(run, job.task, job.pair_info, job.planned)
    ) as store:
        decoder: Any = job.engine.open(job, store)
        try:
            server = decoder.servers.at(decoder.setting(point.cell.key))
            stops = {"stop": list(job.task.stop), "stop_token_ids": list(decoder.stop_ids(point.role))}
            yield OpenPair(decoder, point, examples, texts, stops, server)
        finally:
            decoder.close()


def client_ratios(python: str, n: int, repeats: int, folder: Path) -> dict[str, Any]:
    """Return pairs of tokens/s: (ours, theirs) of each turn."""
    pairs: list[tuple[float, float]] = []
    counts: list[tuple[int, int]] = []
    with open_pair(python, n, folder) as pair:
        own = [*rival_words(python, pair, n), "--max-concurrency", str(AT_ONCE)]
        for turn in range(1 + repeats):  # the first is a warm-up
            measured: dict[str, tuple[float, int]] = {}
            for name in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
                if name == "theirs":
                    tree = rival(own, folder)
                    measured[name] = tree["output_throughput"], tree["total_output_tokens"]
                    continue
                done = closed_loop(
                    pair.decoder, pair.point.cell.key, [Ask(example, 0) for example in pair.examples], AT_ONCE
                )
                count = sum(len(one.answer.ids) for one in done)
                block_s = max(one.end for one in done) - min(one.begin for one in done)
                measured[name] = count / block_s, count
            if turn:
                pairs.append((measured["ours"][0], measured["theirs"][0]))
                counts.append((measured["ours"][1], measured["theirs"][1]))
    return {"pairs": pairs, "tokens": counts, "server_started_s": pair.server.facts["started_s"]}


def rival_words(python: str, pair: OpenPair, n: int) -> list[str]:
    """Return options for the same prompts, lengths and stops, with greedy decoding."""
    url, most = pair.server.client.url, pair.decoder.job.task.max_new_tokens
    return [
        *(python, "-c", RIVAL, "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"),
        *("--model", str(embedded.path(PAIR, "target")), "--dataset-name", "custom", "--dataset-path", str(pair.texts)),
        *("--custom-output-len", str(most), "--num-prompts", str(n)),
        *("--skip-chat-template", "--disable-shuffle", "--disable-tqdm", "--temperature", "0"),
        *("--extra-body", json.dumps(pair.stops), "--save-result", "--result-filename", "rival.json"),
    ]


def rival(words: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run `vllm bench serve`; return its results."""
    done = subprocess.run(
        [*words, "--result-dir", str(folder)], check=False, capture_output=True, text=True, env={**os.environ, **CPU}
    )
    if done.returncode:
        raise RuntimeError(f"vllm bench serve ended with code {done.returncode}: {done.stderr[-2000:]}")
    tree = json.loads((folder / "rival.json").read_text())
    if tree["failed"]:
        raise RuntimeError(f"{tree['failed']} requests of vllm bench serve failed")
    return tree


def step_pairs(python: str, repeats: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return pairs of seconds (the plug-in's, vLLM's) for each setting."""
    paths = [str(embedded.path(PAIR, role)) for role in ("target", "draft")]
    words = [python, str(ROOT / "scripts" / "vllm_steps.py"), *paths, str(folder / "ids.json"), str(repeats)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env={**os.environ, **CPU})
    if done.returncode:
        raise RuntimeError(f"vllm_steps.py ended with code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def spread(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return median and range of the ratios first/second, turn by turn."""
    ratios = [first / second for first, second in pairs]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def page(tree: Mapping[str, Any]) -> str:
    client, has = tree["client"], tree["installed"]
    mine, other = (statistics.median(column) for column in zip(*client["pairs"], strict=True))
    rows = [
        "| what | median | smallest | largest | here, vLLM's own | n |",
        "|---|---|---|---|---|---|",
        row(
            "client: tokens/s over those of `vllm bench serve`",
            client["ratio"],
            f"{mine:.0f}, {other:.0f} tokens/s",
            client["pairs"],
        ),
    ]
    for name, step in tree["steps"].items():
        ours, own = (1000 * statistics.median(column) for column in zip(*step["pairs"], strict=True))
        rows.append(
            row(
                f"step, {name}: seconds over those of vLLM's sampler",
                step["ratio"],
                f"{ours:.1f}, {own:.1f} ms",
                step["pairs"],
            )
        )
    about = (
        f"vLLM {has['version']}'s CPU build (torch {has['torch']}), {PAIR} in float32, {tree['cores']} cores, load "
        f"{tree['load']:.1f} at the start. {tree['note']}"
    )
    how = (
        f"The client decodes {tree['n']} word problems at temperature 0, eight at a time. A step is one of a batch of eight whose "
        "rows have eight w between 1 and .2; both sides use the plug-in's corrected `expand_batch_to_tokens`. The server was "
        f"ready after {client['server_started_s']:.0f} s, which are not counted. Written by `python -m scripts.bench_vllm`."
    )
    return "\n".join(["# vLLM: our client and our plug-in", "", about, "", *rows, "", how, ""])


def row(name: str, ratio: Mapping[str, float], values: str, pairs: Sequence[Any]) -> str:
    return f"| {name} | {ratio['median']:.3f} | {ratio['low']:.3f} | {ratio['high']:.3f} | {values} | {len(pairs)} |"


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("bench_vllm", __doc__, words):
        given = parse_words(words, DEFAULTS)
        options = DEFAULTS | dict(given.options)
        n, repeats = (int(number(given, name) or int(DEFAULTS[name])) for name in ("n", "repeats"))
        installed = look(interpreter(options), "vllm")
    out, load = Path(options["out"]), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        client = client_ratios(options["python"], n, repeats, Path(name))
        steps = step_pairs(options["python"], repeats, Path(name))
    tree = {"installed": installed, "cores": os.cpu_count(), "load": load, "n": n, "note": options["note"]}
    tree["client"] = {**client, "ratio": spread(client["pairs"])}
    tree["steps"] = {name: {"pairs": pairs, "ratio": spread(pairs)} for name, pairs in steps.items()}
    out.mkdir(parents=True, exist_ok=True)
    (out / "vllm.json").write_text(json.dumps(tree, indent=1) + "\n")
    (out / "vllm.md").write_text(page(tree))
    print(page(tree))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
