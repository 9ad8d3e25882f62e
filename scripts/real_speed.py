"""results/real/speed.md: the engine's speed with a real pair, against transformers' generate and against its own model forwards.

    python scripts/real_speed.py TARGET DRAFT data=humaneval.jsonl [dtype=bfloat16] [threads=1] [repeats=3] [sweep=8] [new=24]
                                 [out=results/real]

TARGET and DRAFT are GGUF files or folders. The texts are pieces of 128 tokens of HumanEval's prompts, one after another. What is
compared takes turns in one process, on a machine where nothing else runs; a figure is the median of ratios with their smallest and
largest, after one warm-up. `out` gets speed.csv and speed.md.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
import torch
import transformers

from scripts.bench_engine import FEW_WS, HEAD, WS, Bench, Figure, over_bare
from sdbench import tasks
from sdbench.lm.load import find, load_model, load_tokenizer
from sdbench.prepare.pair import folder_of
from sdbench.words import exit_on_mistake, parse_words

DEFAULTS = {"dtype": "bfloat16", "threads": "1", "repeats": "3", "sweep": "8", "new": "24", "out": "results/real"}
PROMPT = 128


def measure(bench: Bench) -> Iterator[Figure]:
    many, few, single = bench.prompts(bench.sweep, PROMPT), bench.prompts(2, PROMPT), bench.prompts(1, PROMPT)
    alone: dict[str, Any] = {"batch_size": 1, "measure": False}
    greedy: dict[str, Any] = {"temperature": 0}
    yield bench.rival(
        "lossless, batch 1, T = 0: tokens/s over assisted generate's",
        lambda: bench.ours(few, [1.0], **alone, **greedy),
        lambda: bench.theirs(few, [1.0], is_sampled=False),
    )
    yield bench.rival(
        "lossless, batch 1, T = 0: tokens/s over plain generate's",
        lambda: bench.ours(few, [1.0], **alone, **greedy),
        lambda: bench.theirs(few, [1.0], is_sampled=False, is_assisted=False),
    )
    yield bench.rival(
        f"sweep, 10 w × {bench.sweep} prompts of {PROMPT}, T = 1: tokens/s over assisted generate's",
        lambda: bench.ours(many, WS),
        lambda: bench.theirs(few, FEW_WS),
    )
    texts = bench.prompts(32, PROMPT // 2)
    for name, more in {", T = 0": greedy, ", T = 1": {}}.items():
        yield from over_bare(bench, f"batch 1, no measures{name}", single, **alone, **more)
        yield from over_bare(bench, f"batch 32, no measures{name}", texts, measure=False, **more)


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


def main(words: list[str]) -> int:
    with exit_on_mistake("real_speed", __doc__, words):
        given = parse_words(words, {**DEFAULTS, "data": ""})
        if len(given.paths) != 2 or "data" not in given.options:
            raise ValueError("give TARGET, DRAFT and data=humaneval.jsonl")
        options = DEFAULTS | dict(given.options)
        torch.set_num_threads(int(options["threads"]))
        transformers.logging.set_verbosity_error()
        bench = load(*given.paths, options["data"], options)
    figures: list[Figure] = []
    print(HEAD)
    for figure in measure(bench):
        figures.append(figure)
        print(figure.row, flush=True)
    out = Path(options["out"])
    out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([asdict(figure) for figure in figures]).to_csv(out / "speed.csv", index=False, float_format="%.4g")
    about = (
        f"{' and '.join(Path(path).stem for path in given.paths)} in {options['dtype']} on the CPU, {options['new']} tokens a "
        "text. *a over b* is a divided by b, measured in turn. Written by `python scripts/real_speed.py`."
    )
    lines = ["# The speed of the engine with a real pair", "", about, "", HEAD, *(figure.row for figure in figures), ""]
    (out / "speed.md").write_text("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
