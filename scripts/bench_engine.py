"""Measure the speed of the engine: against transformers' generate in the same run, against its bare model forwards, and
against the limits of the machine's arithmetic and memory.

    python scripts/bench_engine.py [pair=llama-tiny|tiny-shape|llama-8b-shape|FOLDER] [device=cpu] [dtype=float32]
                                   [threads=1,2] [repeats=3] [sweep=40] [new=64] [out=FOLDER]
                                   [rules=all|NAME,NAME] [drafters=all|NAME,NAME] [heads=all|NAME,NAME] [cold=N]
                                   [context=N]

rules= measures verification rules compared with Exact instead (bench_rules.py): out= then gets rules-PAIR-DEVICE-DTYPE. drafters=
measures drafters instead (bench_drafters.py): out= gets drafters-PAIR-DEVICE-DTYPE. heads= measures large output heads only, which
are part of the measurements of the engine too: out= gets heads-PAIR-DEVICE-DTYPE. cold= measures the first N texts of fresh
processes instead (bench_cold.py, an embedded pair in float32 on one thread of the CPU): out= gets cold-PAIR-DEVICE-DTYPE. context=
measures tokens and rounds after N tokens of context only (bench_context.py): out= gets context-PAIR-DEVICE-DTYPE.
The ways that are compared take turns in one process; a figure is the median of their ratios, with the smallest and the largest. An
embedded pair reads word problems of gsm8k-tiny one after another; a FOLDER (with target/ and draft/) and a random pair read random
ids. The drafts of random pairs are hardly ever kept, so their tokens/s are a worst case, but ratios are still comparable. out= gets
engine-PAIR-DEVICE-DTYPE.json and .md. (Over 300 lines: a function for each figure, measured in the same process.)
"""

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bench_cold import measure_cold, options_of_processes
from scripts.bench_context import length_of, measure_context
from scripts.bench_drafters import measure_drafters
from scripts.bench_rules import measure_rules, names_of
from scripts.bench_tools import Stopwatch, hook_models, time_engines
from sdbench import tasks
from sdbench.engine import Engine, generate
from sdbench.engines.native.plain import as_from_pretrained, drafting, without_defaults
from sdbench.lm.capture import Mode
from sdbench.lm.model import LM
from sdbench.prepare.provenance import environment
from sdbench.verify import Ensemble
from sdbench.words import choose, exit_on_mistake, parse_words

LIBRARY: Any = transformers  # the type annotations of its constructors and of .to() are too strict for correct calls
EMBEDDED = Path(__file__).parents[1] / "sdbench" / "embedded"
WS = [round(0.1 * i, 1) for i in range(1, 11)]
FEW_WS = [0.2, 0.5, 0.8]
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    ", run eagerly": {"capture": "off"},
}  # of a call, as it runs by default and eagerly
PROMPT = 200
LONG = 4000
WARM_UPS = 2
CALLS = 50
NAMES = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
# Widths and vocabularies, by a name in heads= and its name in a figure.
HEADS = {"8b": ("an 8B", 4096, 128_256), "gemma": ("Gemma 3 270M", 640, 262_144)}
HEAD_ROWS, HEAD_STEPS = 12, 8
SHAPES = {
    "tiny-shape": ((12, 128, 384, 4, 2, 1024), (1, 96, 256, 3, 1, 1024)),
    "llama-8b-shape": ((32, 4096, 14336, 32, 8, 128256), (16, 2048, 8192, 32, 8, 128256)),
}


@dataclass(frozen=True)
class Figure:
    """A ratio that was measured `n` times."""

    name: str
    threads: int
    median: float
    low: float
    high: float
    n: int
    note: str = ""

    @property
    def row(self) -> str:
        return f"| {self.name} | {self.threads} | {self.median:.3g} | {self.low:.3g} | {self.high:.3g} | {self.n} | {self.note} |"


@dataclass(frozen=True)
class Bench:
    """A pair on a device, and how often to measure."""

    target: Any
    draft: Any
    device: str
    threads: int
    repeats: int
    sweep: int  # prompts
    new: int  # tokens of a text
    corpus: list[int] = field(repr=False)
    name: str = ""  # of an embedded pair
    tokenizer: Any = field(default=None, repr=False)  # of an embedded pair
    engines: dict[Mode | None, Engine] = field(default_factory=dict, repr=False)
    warm_ups: int = WARM_UPS

    def engine(self, capture: Mode | None) -> Engine:
        """Return the engine that all calls share, as in a run."""
        if capture not in self.engines:
            self.engines[capture] = Engine(self.target, self.draft, capture=capture)
        return self.engines[capture]

    @contextmanager
    def timed(self) -> Iterator[Stopwatch]:
        """Time the phases of the loop in all engines, including those built before."""
        with time_engines(Stopwatch(self.wait), [self.engine(capture) for capture in (None, "off")]) as stopwatch:
            yield stopwatch

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """Return `count` texts of `length` ids, each from another part of the corpus."""
        step = (len(self.corpus) - length) // count
        return [self.corpus[i * step : i * step + length] for i in range(count)]

    def ours(self, texts: list[list[int]], ws: list[float], capture: Mode | None = None, **more: Any) -> int:
        rules, engine = [Ensemble(w=w) for w in ws], self.engine(capture)
        texts_out = generate(None, None, texts, rules, max_new_tokens=self.new, stop_ids=(), engine=engine, **more)
        return sum(len(g.tokens) for g in texts_out)

    def theirs(
        self, texts: list[list[int]], ws: list[float], *, is_assisted: bool = True, is_sampled: bool = True
    ) -> int:
        """Decode by transformers' loop. Sampling options of the folder's generation_config.json are removed, as ours reads none."""
        total, num_draft = 0, 5 if is_assisted else 0
        with (
            without_defaults(self.target),
            without_defaults(self.draft),
            as_from_pretrained(self.target, self.draft),
            drafting(self.draft, num_draft) as assistant,
        ):
            for text in texts:
                ids = torch.tensor([text], device=self.device)
                for w in ws:
                    weight = {"assistant_ensemble_weight": w} if w < 1 else {}
                    out = self.target.generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        max_new_tokens=self.new,
                        do_sample=is_sampled,
                        top_k=0,
                        eos_token_id=None,
                        **weight,
                        **assistant,
                    )
                    total += out.shape[1] - len(text)
        return total

    def seconds(self, work: Callable[[], int]) -> tuple[int, float]:
        self.wait()
        started = time.perf_counter()
        count = work()
        self.wait()
        return count, time.perf_counter() - started

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def stretched(self) -> "Bench":
        """Return a model of the same shape with random weights and a long context."""
        return stretched(self)

    def figure(self, name: str, values: list[float], note: str = "") -> Figure:
        return Figure(name, self.threads, statistics.median(values), min(values), max(values), len(values), note)

    def rival(self, name: str, a: Callable[[], int], b: Callable[[], int]) -> Figure:
        """Return tokens/s of a divided by tokens/s of b, in turns. The first turns are warm-ups, which also capture steps."""
        ratios, note = [], ""
        for turn in range(-self.warm_ups, self.repeats):
            (mine, mine_s), (other, other_s) = self.seconds(a), self.seconds(b)
            if turn >= 0:
                ratios.append(mine / mine_s / (other / other_s))
            note = f"{mine / mine_s:,.0f} against {other / other_s:,.0f} tokens/s"
        return self.figure(name, ratios, note)


def over_bare(
    bench: Bench, name: str, texts: list[list[int]], *, ways: Sequence[str] = (*WAYS,), **more: Any
) -> Iterator[Figure]:
    """Return the wall time of a call divided by that of its model forwards, which are repeated on the same caches with the same
    masks.

    The bare forwards run eagerly; the call is measured in each of these ways.
    """
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    count = 0
    for _ in range(3 * bench.warm_ups):
        bench.ours(texts, [0.5], **more)
    for _ in range(bench.repeats):
        calls: list[Callable[[], Any]] = []
        with hook_models(bench.engine("off").models, partial(record, calls)):
            bench.ours(texts, [0.5], capture="off", **more)

        def replay(calls: list[Callable[[], Any]] = calls) -> int:
            with torch.inference_mode():
                for call in calls:
                    call()
            return len(calls)

        wholes = {way: bench.seconds(partial(bench.ours, texts, [0.5], **WAYS[way], **more))[1] for way in ways}
        count, bare_s = bench.seconds(replay)
        for way, whole_s in wholes.items():
            ratios[way].append(whole_s / bare_s)
    for way, values in ratios.items():
        yield bench.figure(f"{name}: over bare forwards{way}", values, f"{count} forwards")


def record(calls: list[Callable[[], Any]], lm: LM, inputs: torch.Tensor, call: Callable[[], Any]) -> Any:
    """Store the inputs of a forward pass, with the masks, which the first layer that needs them builds."""
    calls.append(call)
    return nullcontext()


PARTS = {  # phases of the loop, without the model forwards in them
    "draft": "drafting beside it",
    "score": "target's law beside its forward",
    "verify": "rule",
    "measure": "measures",
    "commit": "bookkeeping on the host",
    "observe": "bookkeeping on the host",
    "admit": "admission",
    "round": "rest of a round",
}


def where_it_goes(bench: Bench, name: str, texts: list[list[int]], **more: Any) -> list[Figure]:
    """Return the share of the wall time that each part takes, excluding the parts that it calls, run eagerly."""
    more["capture"] = "off"
    bench.ours(texts, [0.5], **more)
    engine = bench.engine("off")
    with time_engines(Stopwatch(bench.wait), [engine], engine.models) as stopwatch:
        _, whole_s = bench.seconds(lambda: bench.ours(texts, [0.5], **more))
    spent: dict[str, float] = defaultdict(float)
    for call in stopwatch.calls:
        spent[PARTS.get(call.phase, call.phase)] += call.seconds - call.inner_s
    spent["outside rounds"] = whole_s - sum(spent.values())
    return [
        Figure(f"{name}: {part}, share of the time", bench.threads, s / whole_s, s / whole_s, s / whole_s, 1)
        for part, s in sorted(spent.items(), key=lambda item: -item[1])
    ]


def over_machine(bench: Bench, name: str, texts: list[list[int]], **more: Any) -> Figure:
    """Return wall time divided by the least time that this machine needs: for each call, its arithmetic or reading its weights,
    whichever takes longer.

    The speed of the machine is measured here, by a product of large matrices, and by a sum over as many bytes as the target has.
    Like the weights, these bytes may be in the processor's cache.
    """
    calls: list[tuple[LM, int]] = []

    def count(lm: LM, ids: torch.Tensor, call: Callable[[], Any]) -> Any:
        calls.append((lm, ids.numel()))
        return nullcontext()

    with hook_models(bench.engine("off").models, count):
        bench.ours(texts, [0.5], capture="off", **more)
    sizes = {id(lm): sum(p.numel() for p in lm.model.parameters()) - lm.head.weight.numel() for lm, _ in calls}
    flops_s, bytes_s = best(bench, max(sizes.values()))
    width = bench.target.dtype.itemsize
    least_s = sum(max(2 * sizes[id(lm)] * n / flops_s, sizes[id(lm)] * width / bytes_s) for lm, n in calls)
    turns = range(3 * WARM_UPS + bench.repeats)
    ratios = [bench.seconds(lambda: bench.ours(texts, [0.5], **more))[1] / least_s for _ in turns][-bench.repeats :]
    note = f"{flops_s / 1e9:,.0f} Gflop/s, {bytes_s / 1e9:,.0f} GB/s"
    return bench.figure(f"{name}: over arithmetic and bytes", ratios, note)


def best(bench: Bench, size: int) -> tuple[float, float]:
    """Return flop/s and bytes/s, the best of a few measurements."""
    dtype, side = bench.target.dtype, 8192 if bench.device.startswith("cuda") else 1024
    a = torch.randn(side, side, device=bench.device, dtype=dtype)
    b = torch.randn(size, device=bench.device, dtype=dtype)
    bench.seconds(lambda: len(a @ a))
    flops = max(2 * side**3 / bench.seconds(lambda: len(a @ a))[1] for _ in range(10))
    read = max(b.nbytes / bench.seconds(lambda: b.sum().dim())[1] for _ in range(20))
    return flops, read


def draft_over_target(bench: Bench) -> Figure:
    """Return the time of a call of the draft divided by one of the target: one token after a prompt, as in a round."""

    def call_of(model: Any) -> Callable[[], int]:
        lm = LM(model)
        lm.patience = 1
        cache = lm.cache(1, PROMPT + bench.new)
        ids, positions = (torch.tensor([[x]], device=lm.device) for x in (5, PROMPT))
        kv_length = lm.kv_length(PROMPT + 1, cache)

        def step(length: int, ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (lm.forward(ids, lm.plan(positions, cache, length), cache),)

        return lambda: len([cache.steps(step, "one token", kv_length, ids, positions) for _ in range(CALLS)])

    with torch.inference_mode():
        draft, target = call_of(bench.draft), call_of(bench.target)
        ratios = [bench.seconds(draft)[1] / bench.seconds(target)[1] for _ in range(WARM_UPS + bench.repeats)]
    return bench.figure("one draft call over one target call, batch 1", ratios[WARM_UPS:], f"{CALLS} calls each")


def head_over_product(bench: Bench, name: str) -> Figure:
    """Return the time to compute the logits of one position per row, divided by the time to multiply the same number of states by
    the head's weights. The ratio is large for a head that copies its weights for each row.
    """
    (title, width, vocab), dtype = HEADS[name], bench.target.dtype
    torch.set_default_dtype(dtype)
    with torch.device(bench.device):
        options: Any = {**dict(zip(NAMES, (1, width, 64, width // 64, 1, vocab), strict=True)), "eos_token_id": None}
        lm = LM(LIBRARY.LlamaForCausalLM(LIBRARY.LlamaConfig(**options)).eval().requires_grad_(False), capture="off")
    torch.set_default_dtype(torch.float32)
    cache, ids = lm.cache(HEAD_ROWS, HEAD_STEPS), torch.ones(HEAD_ROWS, HEAD_STEPS, dtype=torch.int64, device=lm.device)
    positions = torch.arange(HEAD_STEPS, device=lm.device).expand(HEAD_ROWS, -1)
    states = torch.randn(HEAD_ROWS, width, device=lm.device, dtype=dtype)
    with torch.inference_mode():

        def forward() -> int:
            return len(lm.forward(ids, lm.plan(positions, cache, HEAD_STEPS), cache, keep=1))

        def product() -> int:
            return len(lm.head(states))

        ratios = [bench.seconds(forward)[1] / bench.seconds(product)[1] for _ in range(WARM_UPS + bench.repeats)]
    note = f"{HEAD_ROWS} rows of {HEAD_STEPS} tokens through one layer"
    return bench.figure(f"forward with the head of {title} over the head's product", ratios[WARM_UPS:], note)


def measure_heads(bench: Bench, names: str = "all") -> Iterator[Figure]:
    for name in heads_of(names):
        yield head_over_product(bench, name)


def heads_of(names: str) -> list[str]:
    """Return the names of output heads, for `all` or a list; ValueError for an unknown one."""
    return list(HEADS) if names == "all" else choose("heads", names, list(HEADS))


def stretched(bench: Bench) -> Bench:
    """Return a model of the same shape with random weights and a long context."""
    models: list[Any] = []
    for model in (bench.target, bench.draft):
        config = type(model.config).from_dict({**model.config.to_dict(), "max_position_embeddings": 3 * LONG})
        models.append(type(model)(config).to(device=bench.device, dtype=model.dtype).eval())
    vocab = models[0].config.vocab_size
    return Bench(
        models[0],
        models[1],
        bench.device,
        bench.threads,
        bench.repeats,
        bench.sweep,
        bench.new,
        random_ids(8 * LONG, vocab),
    )


def measure(bench: Bench) -> Iterator[Figure]:
    many, few, single = bench.prompts(bench.sweep, PROMPT), bench.prompts(2, PROMPT), bench.prompts(1, PROMPT)
    texts = bench.prompts(32, 64)
    alone: dict[str, Any] = {"batch_size": 1, "measure": False}
    yield bench.rival(
        f"sweep, 10 w × {bench.sweep} prompts of {PROMPT}: tokens/s over generate's",
        lambda: bench.ours(many, WS),
        lambda: bench.theirs(few, FEW_WS),
    )
    if bench.device.startswith("cuda"):
        yield bench.rival(
            "sweep at batch 128: tokens/s over generate's",
            lambda: bench.ours(many, WS, batch_size=128),
            lambda: bench.theirs(few, FEW_WS),
        )
    yield bench.rival(
        "batch 1: tokens/s over generate's",
        lambda: bench.ours(few, FEW_WS, **alone),
        lambda: bench.theirs(few, FEW_WS),
    )
    yield from over_bare(bench, "batch 32, no measures", texts, measure=False)
    yield from over_bare(bench, "batch 32, no measures, T = 0", texts, measure=False, temperature=0)
    yield from over_bare(bench, "batch 32, all measures", texts)
    yield from over_bare(bench, "batch 1, no measures", single, **alone)
    yield from over_bare(bench, "batch 1, no measures, T = 0", single, **alone, temperature=0)
    yield draft_over_target(bench)
    yield over_machine(bench, "batch 32, no measures", texts, measure=False)
    yield over_machine(bench, "batch 1, no measures", single, **alone)
    yield from where_it_goes(bench, "batch 32, all measures", texts)
    yield from where_it_goes(bench, "batch 1, no measures", single, **alone)
    yield from measure_heads(bench)
    yield from measure_context(bench, str(LONG))
    row = LM(bench.target).cache(1, 1000)
    lm = LM(bench.target)
    with torch.inference_mode():
        ids = torch.tensor([[1]], device=lm.device)
        lm.forward(ids, lm.plan(torch.zeros_like(ids), row, 1), row)
    size = sum(store.nbytes for layer in row.ragged for store in layer.stores)
    yield bench.figure("target's bytes a row of 1,000 tokens", [float(size)])


def load(
    name: str, device: str, dtype: torch.dtype, threads: int, repeats: int, sweep: int = 40, new: int = 64
) -> Bench:
    if name in SHAPES:
        models: list[Any] = []
        for seed, shape in enumerate(SHAPES[name]):
            torch.manual_seed(seed)
            options: Any = {
                **dict(zip(NAMES, shape, strict=True)),
                "max_position_embeddings": 1024,
                "eos_token_id": None,
            }
            torch.set_default_dtype(dtype)
            with torch.device(device):
                models.append(LIBRARY.LlamaForCausalLM(LIBRARY.LlamaConfig(**options)).eval())
            torch.set_default_dtype(torch.float32)
        return Bench(
            models[0], models[1], device, threads, repeats, sweep, new, random_ids(100_000, models[0].config.vocab_size)
        )
    folder = EMBEDDED / name if (EMBEDDED / name).is_dir() else Path(name)
    load_from: Any = LIBRARY.AutoModelForCausalLM.from_pretrained
    target, draft = (load_from(folder / role, dtype=dtype).to(device).eval() for role in ("target", "draft"))
    corpus, name, tokenizer = random_ids(100_000, target.config.vocab_size), "", None
    if folder.parent == EMBEDDED:
        name = folder.name
        tokenizer = LIBRARY.AutoTokenizer.from_pretrained(folder / "target")
        read = [f"{example.prompt.text} " for example in tasks.load("gsm8k-tiny", n=200).examples()]
        corpus = list(chain.from_iterable(tokenizer(text, add_special_tokens=False)["input_ids"] for text in read))
    return Bench(target, draft, device, threads, repeats, sweep, new, corpus, name, tokenizer)


def random_ids(count: int, vocab: int) -> list[int]:
    return torch.randint(3, vocab, (count,), generator=torch.Generator().manual_seed(5)).tolist()


DEFAULTS = {
    "pair": "llama-tiny",
    "device": "cpu",
    "dtype": "float32",
    "threads": "1,2",
    "repeats": "3",
    "sweep": "40",
    "new": "64",
    "out": "",
    "rules": "",
    "drafters": "",
    "heads": "",
    "cold": "",
    "context": "",
}


HEAD = "| what | threads | median | smallest | largest | n | |\n|---|---|---|---|---|---|---|"
TITLES = {
    "engine": "The speed of the engine",
    "rules": "The cost of rules",
    "drafters": "The cost of drafters",
    "heads": "The cost of large output heads",
    "cold": "The first texts of a process",
    "context": "The cost of a long context",
}


def page_of(group: str, tree: Mapping[str, Any]) -> str:
    """Return the page of the figures in a JSON file: what was run and on which machine, how to read a row, and the table."""
    about, figures = tree["about"], [Figure(**figure) for figure in tree["figures"]]
    device, threads = about["device"], ",".join(dict.fromkeys(str(figure.threads) for figure in figures))
    given = {**DEFAULTS, **about, "device": device["type"], "threads": threads, "out": ""}
    words = " ".join(f"{name}={given[name]}" for name, usual in DEFAULTS.items() if given[name] != usual)
    text = (
        f"{about['pair']} in {about['dtype']} on {device['name']}. Written by `python scripts/bench_engine.py {words}`. "
        "A row has the median of n measurements, the smallest and the largest. *a over b* is a divided by b, measured in turn."
    )
    return "\n".join([f"# {TITLES[group]}", "", text, "", HEAD, *(figure.row for figure in figures), ""])


def main(argv: Sequence[str]) -> None:
    with exit_on_mistake("bench_engine", __doc__, argv):
        words = parse_words(argv, {key: value or "X" for key, value in DEFAULTS.items()})
        if words.paths:
            raise ValueError(f"options are KEY=VALUE, got {words.paths[0]}")
        options = {**DEFAULTS, **words.options}
        group = next((name for name in ("rules", "drafters", "heads", "cold", "context") if options[name]), "engine")
        if group == "rules":
            names_of(options["rules"])
        elif group == "heads":
            heads_of(options["heads"])
        elif group == "context":
            length_of(options["context"])
        elif group == "cold":
            options |= options_of_processes(words.options)
    measures = {"rules": measure_rules, "drafters": measure_drafters, "heads": measure_heads, "cold": measure_cold}
    measures["context"] = measure_context
    transformers.logging.set_verbosity_error()
    print(HEAD)
    figures: list[Figure] = []
    for threads in map(int, options["threads"].split(",")):
        torch.set_num_threads(threads)
        dtype = getattr(torch, options["dtype"])
        counts = (int(options[name]) for name in ("repeats", "sweep", "new"))
        bench = load(options["pair"], options["device"], dtype, threads, *counts)
        for figure in measures[group](bench, options[group]) if group in measures else measure(bench):
            print(figure.row, flush=True)
            figures.append(figure)
    if options["out"]:
        stem = f"{group}-{Path(options['pair']).name}-{options['device'].partition(':')[0]}-{options['dtype']}"
        path = Path(options["out"]) / stem
        path.parent.mkdir(parents=True, exist_ok=True)
        about: dict[str, Any] = {**options, **environment(torch.device(options["device"]))}
        del about["host"], about["out"]
        tree = {"about": about, "figures": [asdict(figure) for figure in figures]}
        path.with_suffix(".json").write_text(json.dumps(tree, indent=1, ensure_ascii=False) + "\n")
        path.with_suffix(".md").write_text(page_of(group, tree))


if __name__ == "__main__":
    main(sys.argv[1:])
