"""Are texts right after long prompts, and long answers? Greedy texts of real checkpoints are compared with one uncached forward.

    python scripts/real_long.py TARGET [DRAFT] [prompt=4096] [tokens=8192] [texts=2] [num_draft=15] [dtype=bfloat16] \\
        [packed=false] [out=results/real]

Prompts are parts of this project's documentation. Every text has the full length. Without a DRAFT, `drafter=lookup` drafts: a
greedy text of a small model repeats itself, so most drafts are kept. With packed=true the engine multiplies by packed copies of
the weights, as with model.packed=true. Each text is then scored by transformers in one forward pass: `off_argmax` counts tokens
that are not the likeliest in it. `margin` is the largest distance of a token's logit from the best one in a text, and `explained`
the largest margin that rounding explains in this text and dtype; both are shown for the text with the largest margin − explained.
`out` gets long.csv, a row per pair and length. The exit status is 1 if a text has another length, or if that margin is larger than
explained.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
import torch
from torch import Tensor

from sdbench import Engine, generate
from sdbench.engines.latency import peak_memory
from sdbench.lm.load import find, load_model, load_tokenizer
from sdbench.lm.rounding import explained_by, logits_after
from sdbench.prepare.pair import folder_of
from sdbench.verify import Exact
from sdbench.words import choose, exit_on_mistake, parse_words

ROOT = Path(__file__).parents[1]
OPTIONS = {
    "prompt": "4096",
    "tokens": "8192",
    "texts": "2",
    "num_draft": "15",
    "dtype": "bfloat16",
    "packed": "false",
    "out": "results/real",
}
WRITTEN_EVERY_S = 30
AT_ONCE = 512  # positions whose logits are in memory at a time; rounding is measured at the last of them


def prompts_of(tokenizer: Any, count: int, length: int) -> list[list[int]]:
    """Return pieces of the documentation, each of `length` tokens."""
    ids = tokenizer("\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))))["input_ids"]
    if len(ids) < count * length:
        raise ValueError(f"texts={count} of prompt={length} need {count * length} tokens, and docs/ has {len(ids)}")
    return [ids[start : start + length] for start in range(0, count * length, length)]


@torch.inference_mode()
def reference_logits(model: Any, prompt: list[int], answer: list[int]) -> Iterator[Tensor]:
    """Yield the logits [AT_ONCE, V] that give the tokens of an answer, from one forward of transformers without a cache."""
    states = model.get_decoder()(torch.tensor([prompt + answer[:-1]]), use_cache=False).last_hidden_state[0]
    for part in states[len(prompt) - 1 :].split(AT_ONCE):
        yield model.get_output_embeddings()(part.clone()).float()


@torch.inference_mode()
def compare(engine: Engine, model: Any, prompt: list[int], answer: list[int], width: int) -> tuple[Tensor, float]:
    """Return by how much each token's logit is below the best one, and the largest difference that rounding explains."""
    below, logits = [], torch.empty(0)
    for logits, ids in zip(reference_logits(model, prompt, answer), torch.tensor(answer).split(AT_ONCE), strict=True):
        below.append(logits.amax(-1) - logits.gather(1, ids[:, None])[:, 0])
    text = torch.tensor(prompt + answer[:-1])
    prefix = engine.target.prefill_all([text[: -len(logits)]])[0]
    blocks = logits_after(engine.target, text, prefix, width)  # after the last len(logits) − 1 tokens and the last one
    moves = float((blocks - logits).abs().max())
    return torch.cat(below), explained_by(moves, float(logits.abs().max()), engine.target.dtype)


def worst_of(compared: Sequence[tuple[Tensor, float]]) -> tuple[float, float]:
    """Return margin and explained of the text with the largest difference of the two."""
    margins = [(float(below.max()), explained) for below, explained in compared]
    return max(margins, key=lambda text: text[0] - text[1])


def progress(wanted: int) -> Callable[[Sequence[int]], bool]:
    """Return a stop test that stops no text; every 30 seconds it prints how many tokens all texts have."""
    begun = written = time.perf_counter()
    tokens = 0

    def count(_: Sequence[int]) -> bool:
        nonlocal tokens, written
        tokens += 1
        if (now := time.perf_counter()) - written > WRITTEN_EVERY_S:
            written = now
            print(f"{tokens}/{wanted} tokens in {now - begun:.0f} s", file=sys.stderr, flush=True)
        return False

    return count


def measure(names: list[str], options: dict[str, str]) -> dict[str, Any]:
    """Decode long texts of a target and return what they cost and how they compare."""
    length, tokens, count, num_draft = (int(options[name]) for name in ("prompt", "tokens", "texts", "num_draft"))
    found = [find(folder_of(name)) for name in names]
    models: list[Any] = [load_model(it, device="cpu", dtype=options["dtype"]) for it in found]
    target, draft = models[0], models[1] if len(models) > 1 else None
    prompts = prompts_of(load_tokenizer(found[0]), count, length)
    engine = Engine(target, draft, capture="off", packed=options["packed"] == "true")
    begun = time.process_time()
    how: dict[str, Any] = {"num_draft": num_draft, "temperature": 0.0, "max_new_tokens": tokens, "stop_ids": ()}
    how |= {"measure": False, "should_stop": progress(count * tokens)}
    texts = generate(None, None, prompts, [Exact()], engine=engine, drafter=None if draft else "lookup", **how)
    cpu_s, peak = time.process_time() - begun, peak_memory()
    compared = [
        compare(engine, target, prompt, list(text.tokens), num_draft + 1)
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    margin, explained = worst_of(compared)
    return {
        "target": names[0].rpartition("/")[2],
        "draft": names[1].rpartition("/")[2] if draft else "lookup",
        "dtype": options["dtype"],
        "packed": engine.packed,
        "prompt": length,
        "tokens": min(len(text.tokens) for text in texts),
        "texts": count,
        "rounds": sum(len(text.accepted or ()) for text in texts),
        "cpu_s": cpu_s,
        "peak_gib": peak / 2**30,
        "off_argmax": sum(int((below > 0).sum()) for below, _ in compared),
        "margin": margin,
        "explained": explained,
    }


def main(words: list[str]) -> int:
    with exit_on_mistake("real_long", __doc__, words):
        given = parse_words(words, OPTIONS)
        options = OPTIONS | dict(given.options)
        if not 1 <= len(given.paths) <= 2:
            raise ValueError("name a target, and after it a draft or nothing")
        choose("packed", options["packed"], ("true", "false"))
        row = measure(list(given.paths), options)
    path, table = Path(options["out"], "long.csv"), pd.DataFrame([row])
    if path.is_file():  # rows of other checkpoints and lengths stay
        key = ["target", "draft", "dtype", "packed", "prompt", "tokens"]
        table = pd.concat([pd.read_csv(path), table]).drop_duplicates(key, keep="last")
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.4g")
    print(row)
    return int(row["tokens"] != int(options["tokens"]) or row["margin"] > row["explained"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
