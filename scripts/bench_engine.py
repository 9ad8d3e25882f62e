"""How fast the engine is: against transformers' own generate in the same run, and against the bare model forwards.

    python scripts/bench_engine.py [pair=tiny-shape|llama-8b-shape|FOLDER] [device=cpu] [dtype=float32] [threads=1] [out=F.json]

Everything compared is interleaved in one process; a figure is a median of ratios with their smallest and largest. FOLDER holds
target/ and draft/. Random pairs draft like strangers (low acceptance): tokens/s are then those of the worst case, ratios are fair.
"""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from sdbench.engine import generate
from sdbench.lm import LM
from sdbench.verify import Ensemble

WS = [round(0.1 * i, 1) for i in range(1, 11)]
SHAPES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "tiny-shape": (
        {
            "num_hidden_layers": 12,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_attention_heads": 4,
            "vocab_size": 1024,
        },
        {
            "num_hidden_layers": 1,
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_attention_heads": 3,
            "vocab_size": 1024,
        },
    ),
    "llama-8b-shape": (
        {
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "vocab_size": 128256,
        },
        {
            "num_hidden_layers": 16,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "vocab_size": 128256,
        },
    ),
}


@dataclass(frozen=True)
class Figure:
    """A ratio measured `n` times."""

    name: str
    threads: int
    median: float
    low: float
    high: float
    n: int
    note: str = ""


def load(name: str, device: str, dtype: torch.dtype) -> tuple[Any, Any]:
    library: Any = transformers  # its annotations of constructors and of .to() do not fit their use
    if name not in SHAPES:
        load_one = library.AutoModelForCausalLM.from_pretrained
        target, draft = (load_one(Path(name) / role, dtype=dtype).to(device).eval() for role in ("target", "draft"))
        return target, draft
    models = []
    for seed, shape in enumerate(SHAPES[name]):
        torch.manual_seed(seed)
        heads = max(1, shape["num_attention_heads"] // (4 if shape["vocab_size"] > 2000 else 2))
        options: Any = {**shape, "num_key_value_heads": heads, "max_position_embeddings": 8192, "eos_token_id": None}
        with torch.device(device):
            models.append(library.LlamaForCausalLM(library.LlamaConfig(**options)).to(dtype).eval())
    return models[0], models[1]


def prompts(count: int, length: int, vocab: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, vocab, (count, length), generator=generator).tolist()


def ours(pair: tuple[Any, Any], texts: list[list[int]], ws: list[float], new: int, **more: Any) -> int:
    found = generate(*pair, texts, [Ensemble(w=w) for w in ws], max_new_tokens=new, stop_ids=(), **more)
    return sum(len(g.tokens) for g in found)


def theirs(pair: tuple[Any, Any], texts: list[list[int]], ws: list[float], new: int) -> int:
    target, draft = pair
    options = draft.generation_config
    options.num_assistant_tokens, options.num_assistant_tokens_schedule = 5, "constant"
    options.assistant_confidence_threshold = 0
    total = 0
    for text in texts:
        for w in ws:
            weight = {"assistant_ensemble_weight": w} if 0 < w < 1 else {}
            ids = target.generate(
                torch.tensor([text], device=target.device),
                assistant_model=draft,
                max_new_tokens=new,
                do_sample=True,
                top_k=0,
                eos_token_id=None,
                **weight,
            )
            total += ids.shape[1] - len(text)
    return total


def seconds(device: str, work: Callable[[], int]) -> tuple[int, float]:
    wait: Callable[[], Any] = torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)
    wait()
    started = time.perf_counter()
    tokens = work()
    wait()
    return tokens, time.perf_counter() - started


def rival(name: str, device: str, a: Callable[[], int], b: Callable[[], int], repeats: int, threads: int) -> Figure:
    """Tokens/s of a over tokens/s of b, taking turns; the first turn is a warm-up."""
    ratios, note = [], ""
    for repeat in range(repeats + 1):
        (mine, mine_s), (other, other_s) = seconds(device, a), seconds(device, b)
        if repeat:
            ratios.append(mine / mine_s / (other / other_s))
        note = f"{mine / mine_s:.0f} against {other / other_s:.0f} tokens/s"
    return figure(name, threads, ratios, note)


def figure(name: str, threads: int, values: list[float], note: str = "") -> Figure:
    return Figure(name, threads, statistics.median(values), min(values), max(values), len(values), note)


@contextmanager
def recorded(calls: list[Callable[[], Any]]) -> Iterator[None]:
    """Keep every forward as it was called, inputs and masks prepared, to be run again bare."""
    honest = LM.forward_hidden

    def recording(self: LM, ids: Any, plan: Any, cache: Any, **more: Any) -> Any:
        calls.append(lambda: honest(self, ids, plan, cache, **more))
        return honest(self, ids, plan, cache, **more)

    LM.forward_hidden = recording  # type: ignore[method-assign]
    try:
        yield
    finally:
        LM.forward_hidden = honest  # type: ignore[method-assign]


def over_bare(
    name: str,
    device: str,
    pair: tuple[Any, Any],
    texts: list[list[int]],
    new: int,
    repeats: int,
    threads: int,
    **more: Any,
) -> Figure:
    """Wall time of a whole call over the wall time of its own forwards, replayed on the same caches."""
    ratios, count = [], 0
    for repeat in range(repeats + 1):
        calls: list[Callable[[], Any]] = []
        with recorded(calls):
            ours(pair, texts, [0.5], new, **more)
        _, whole_s = seconds(device, lambda: ours(pair, texts, [0.5], new, **more))

        def replay(calls: list[Callable[[], Any]] = calls) -> int:
            with torch.inference_mode():
                for call in calls:
                    call()
            return len(calls)

        count, bare_s = seconds(device, replay)
        if repeat:
            ratios.append(whole_s / bare_s)
    return figure(name, threads, ratios, f"{count} forwards")


def measure(pair: tuple[Any, Any], device: str, threads: int, repeats: int) -> list[Figure]:
    vocab = pair[0].config.vocab_size
    short, few = prompts(40, 200, vocab), prompts(2, 200, vocab)
    one = prompts(1, 200, vocab)
    found = [
        rival(
            "sweep: 10 w x 40 prompts of 200, tokens/s over generate's",
            device,
            lambda: ours(pair, short, WS, 64),
            lambda: theirs(pair, few[:1], [0.2, 0.5, 0.8], 64),
            repeats,
            threads,
        ),
        rival(
            "batch 1: tokens/s over generate's",
            device,
            lambda: ours(pair, few, [0.2, 0.5, 0.8], 64, batch_size=1, measure=False),
            lambda: theirs(pair, few, [0.2, 0.5, 0.8], 64),
            repeats,
            threads,
        ),
        over_bare(
            "batch 32, no measures: over bare forwards",
            device,
            pair,
            prompts(32, 64, vocab),
            64,
            repeats,
            threads,
            measure=False,
        ),
        over_bare(
            "batch 32, all measures: over bare forwards", device, pair, prompts(32, 64, vocab), 64, repeats, threads
        ),
        over_bare(
            "batch 1, no measures: over bare forwards",
            device,
            pair,
            one,
            64,
            repeats,
            threads,
            batch_size=1,
            measure=False,
        ),
    ]
    found.append(
        rival(
            "seconds a token at 4,000 tokens of context over 500",
            device,
            lambda: ours(pair, prompts(4, 500, vocab), [0.5], 48, measure=False),
            lambda: ours(pair, prompts(4, 4000, vocab), [0.5], 48, measure=False),
            max(1, repeats // 2),
            threads,
        )
    )
    row = LM(pair[0]).cache(1, 1024)
    with torch.inference_mode():
        lm = LM(pair[0])
        ids = torch.tensor([[1]], device=lm.device)
        lm.forward(ids, lm.plan(torch.zeros_like(ids), row, 1), row)
    found.append(figure("target's bytes a row of 1,024 tokens", threads, [float(row.num_bytes())]))
    return found


def main(arguments: list[str]) -> None:
    options = {"pair": "tiny-shape", "device": "cpu", "dtype": "float32", "threads": "1", "repeats": "3", "out": ""}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key not in options or not equals:
            sys.exit(f"bench_engine: {argument} is not one of {', '.join(f'{k}=' for k in options)}")
        options[key] = value
    pair = load(options["pair"], options["device"], getattr(torch, options["dtype"]))
    found: list[Figure] = []
    for threads in map(int, options["threads"].split(",")):
        torch.set_num_threads(threads)
        found += measure(pair, options["device"], threads, int(options["repeats"]))
    print("| what | threads | median | smallest | largest | n | |\n|---|---|---|---|---|---|---|")
    for f in found:
        print(f"| {f.name} | {f.threads} | {f.median:.3g} | {f.low:.3g} | {f.high:.3g} | {f.n} | {f.note} |")
    if options["out"]:
        about = {**options, "machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        text = json.dumps({"about": about, "figures": [asdict(f) for f in found]}, indent=1)
        Path(options["out"]).write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
