"""`vllm bench serve` for tests: prompts of a file at the times of a rate, streamed, and the fields that it saves."""

import argparse
import asyncio
import json
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

NUMBERS = {"--num-prompts": int, "--custom-output-len": int, "--request-rate": float, "--seed": int}
TEXTS = ("base-url", "endpoint", "model", "dataset-path", "extra-body", "result-dir", "result-filename")
OTHERS = ("backend", "dataset-name", "temperature", "percentile-metrics", "metric-percentiles")
FLAGS = ("skip-chat-template", "disable-shuffle", "disable-tqdm", "save-result", "save-detailed")


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    for name, kind in NUMBERS.items():
        parser.add_argument(name, type=kind)
    for name in (*TEXTS, *OTHERS):
        parser.add_argument(f"--{name}")
    parser.add_argument("--goodput", nargs="+")
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")


async def ask(session: aiohttp.ClientSession, given: argparse.Namespace, prompt: str, wait_s: float) -> dict[str, Any]:
    await asyncio.sleep(wait_s)
    body = {"model": given.model, "prompt": prompt, "max_tokens": given.custom_output_len, "stream": True}
    body |= json.loads(given.extra_body)
    start, times, tokens = time.perf_counter(), [], 0
    async with session.post(given.base_url + given.endpoint, json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                times += [time.perf_counter()] if chunk["choices"] else []
                tokens = chunk.get("usage", {}).get("completion_tokens", tokens)
    return {"start": start, "first": times[0], "last": times[-1], "tokens": tokens, "times": times}


async def bench(given: argparse.Namespace) -> list[dict[str, Any]]:
    lines = Path(given.dataset_path).read_text().splitlines()[: given.num_prompts]
    luck, wait_s, waits = random.Random(given.seed), 0.0, []
    for _ in lines:
        wait_s += luck.expovariate(given.request_rate)
        waits.append(wait_s)
    async with aiohttp.ClientSession() as session:
        prompts = (json.loads(line)["prompt"] for line in lines)
        return await asyncio.gather(*(ask(session, given, *pair) for pair in zip(prompts, waits, strict=True)))


def main(given: argparse.Namespace) -> None:
    answers = asyncio.run(bench(given))
    seconds = max(answer["last"] for answer in answers) - min(answer["start"] for answer in answers)
    tokens = sum(answer["tokens"] for answer in answers)
    tree: dict[str, Any] = {"failed": 0, "completed": len(answers), "total_output_tokens": tokens}
    tree |= {"request_throughput": len(answers) / seconds, "output_throughput": tokens / seconds, "duration": seconds}
    tree |= {"total_input_tokens": 100 * len(answers), "max_concurrent_requests": 8, "max_output_tokens_per_s": 20.0}
    tree["total_token_throughput"] = (100 * len(answers) + tokens) / seconds
    bounds = dict(bound.split(":") for bound in given.goodput)
    assert set(bounds) == {"ttft", "tpot"}
    tree["request_goodput"] = len(answers) / seconds
    values = {
        "itl": [later - time for answer in answers for time, later in pairwise(answer["times"])],
        "ttft": [answer["first"] - answer["start"] for answer in answers],
        "e2el": [answer["last"] - answer["start"] for answer in answers],
        "tpot": [(answer["last"] - answer["first"]) / max(answer["tokens"] - 1, 1) for answer in answers],
    }
    for name, column in values.items():
        ordered = sorted(column)
        tree[f"mean_{name}_ms"] = 1000 * sum(ordered) / len(ordered)
        tree |= {f"p{p}_{name}_ms": 1000 * ordered[int(p / 100 * (len(ordered) - 1))] for p in (50, 90, 99)}
    tree["start_times"] = [answer["start"] for answer in answers]
    tree["ttfts"], tree["output_lens"] = values["ttft"], [answer["tokens"] for answer in answers]
    tree["itls"] = [[later - time for time, later in pairwise(answer["times"])] for answer in answers]
    tree["input_lens"] = [100] * len(answers)
    (Path(given.result_dir) / given.result_filename).write_text(json.dumps(tree))
