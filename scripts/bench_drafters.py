"""The cost of drafters beyond calls of models: text handling, a look-up in a long text, drafts of heads compared with calls of the
target and of a layer, a round of early exit compared with its formula, and memory.

    python scripts/bench_engine.py drafters=all|NAME,NAME [OPTIONS]    measures them
    python scripts/bench_drafters.py NAME|alone [device=cpu]           prints the peak bytes with one drafter, as the former does

The drafters are those of configs/drafter with the options of their files. A drafter that needs a tokenizer or a gate which does not
ship for this pair is left out, with a message; a head that does not ship is random, which changes no shape of a step
(bench_heads.py). With one thread, tokenizers and models wait least for each other.
"""

import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bench_heads import HEADS, draft_prices, goal, head_price, random_head
from scripts.bench_tools import (
    Stopwatch,
    forget_peak,
    peaks_over,
    print_peak,
    random_llama,
    resident_bytes,
    target_s,
    time_engines,
)
from sdbench import embedded
from sdbench.config import config_dir
from sdbench.draft import NoDraft, class_of
from sdbench.draft import corpus as corpora
from sdbench.draft.early_exit import exit_of
from sdbench.draft.length import GrownContext
from sdbench.draft.lookup import TextDrafter
from sdbench.engine import Engine, generate
from sdbench.engines.latency import peak_memory
from sdbench.lm.capture import Mode
from sdbench.lm.load import find, load_model, load_tokenizer
from sdbench.lm.model import LM
from sdbench.prepare.pair import folder_of
from sdbench.types import DRAFTER_NEEDS, needs_of
from sdbench.verify import Exact
from tests.draft.toys import word_tokenizer, words_of

EMBEDDED = Path(str(embedded.__file__)).parent
NUM_DRAFT, WARM_UPS = 5, 2
EXIT_TURNS = 3  # turns of early exit for each repeat, because calls of the target alone differ most from turn to turn
SIZES = (1, 32)  # of batches
TEXT_SHARES = {1: 0.15, 32: 0.1}  # goals by batch size: the largest share of a round
PROMPT, LONG, FULL = 64, 8000, 4000  # tokens of the texts: for rounds, for look-ups, and for memory
FULL_ROWS = 4
CORPUS_BYTES = 100_000_000
ROUNDS, EMITTED = 40, 3  # rounds of look-ups, and the tokens that each adds to a text
OTHER_DRAFT = "embedded:qwen-tiny/draft"  # its tokenizer differs from llama-tiny's
ALONE = "alone"
OF_MEMORY = ("early-exit", "lookup", "retrieval", "suffix")
VOCAB, CORPUS = 1000, 200_000  # tokens of the tokenizer and of the corpus whose memory is measured


def drafters_of(names: str) -> list[str]:
    """Return the names of drafters, for `all` or a list."""
    known = sorted(path.stem for path in (config_dir() / "drafter").glob("*.yaml"))
    wanted = known if names == "all" else names.split(",")
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"bench_engine: drafters={unknown[0]} names no file of configs/drafter")
    return wanted


def built_of(bench: Any, name: str, capture: Mode | None = "off") -> tuple[Engine, Any] | None:
    """Return an engine and the drafter of this name; None if the pair lacks something that the drafter needs."""
    kind, options = class_of(name)
    needs, options = needs_of(kind, DRAFTER_NEEDS), dict(options)
    tokenizer, draft, draft_tokenizer = bench.tokenizer, bench.draft if "draft" in needs else None, None
    if tokenizer is None and {"tokenizer", "draft_tokenizer"} & needs:
        return None
    if "draft_tokenizer" in needs:
        other = find(OTHER_DRAFT, folder_of(OTHER_DRAFT))
        draft = load_model(other, device=bench.device, dtype=str(bench.target.dtype).removeprefix("torch."))
        draft_tokenizer = load_tokenizer(other)
    if "corpus" in options and tokenizer is not None:
        options["corpus"] = str(Path(mkdtemp()) / "corpus.txt")
        Path(options["corpus"]).write_text(tokenizer.decode(bench.corpus))
    engine = Engine(bench.target, draft, tokenizer, draft_tokenizer=draft_tokenizer, capture=capture)
    engine.capture_at_once()  # before the drafter is built, so that its models inherit the setting
    if "length_head" in options:
        options["length_head"] = EMBEDDED / f"gates/{kind.__name__}/{bench.name}/gsm8k-tiny-T1"
        if not options["length_head"].is_dir():
            return None
    if "head" in options:
        options["head"] = head_of(bench, name)
        if options["head"] is None:
            return engine, random_head(engine, name, NUM_DRAFT)
    return engine, engine.drafter(name, engine.warp(1.0), options)


def head_of(bench: Any, name: str) -> Path | None:
    """Return the folder of the head that ships for this pair; None without one."""
    folder = EMBEDDED / f"drafters/{name}/{bench.name}/gsm8k-tiny"
    return folder if bench.name and folder.is_dir() else None


def measure_drafters(bench: Any, names: str) -> Iterator[Any]:
    """Yield the figures of drafters; `bench` is a Bench of bench_engine."""
    wanted = drafters_of(names)
    notes = {name: "a random head" for name in wanted if name in HEADS and head_of(bench, name) is None}
    for name in wanted:
        built = built_of(bench, name)
        if built is None:
            print(f"bench_engine: {name} is left out: this pair has no tokenizer or no gate for it", file=sys.stderr)
            continue
        for size in SIZES:
            yield from overhead(bench, name, *built, size, notes.get(name, ""))
    for name in wanted:
        if (built := built_of(bench, name)) and isinstance(built[1], TextDrafter):
            for size in SIZES:
                yield from look_up(bench, name, built[1], size)
    if "retrieval" in wanted and bench.tokenizer is not None:
        yield from corpus_times(bench)
    for name in (name for name in wanted if name in HEADS):
        if built := built_of(bench, name, None):
            yield from draft_prices(bench, name, *built, notes.get(name, ""))
    if any(name in HEADS for name in wanted):
        yield head_price(bench)
    if "early-exit" in wanted:
        yield from early_exit(bench)
    yield from memory(bench, [name for name in OF_MEMORY if name in wanted])


def overhead(bench: Any, name: str, engine: Engine, drafter: Any, size: int, note: str = "") -> Iterator[Any]:
    """Yield the share of a round's time that drafting and observing take, without calls of models, run eagerly. For a drafter that
    measures it, also yield the share that decoding and encoding text takes.
    """
    shares: list[float] = []
    of_text: list[float] = []
    counts = getattr(drafter, "counts", {})
    for turn in range(-WARM_UPS, bench.repeats):
        before_s = counts.get("text_s", 0.0)
        watch = decode(bench, engine, drafter, size)
        if turn >= 0:
            spent = sum(call.seconds - call.inner_s for call in watch.calls if call.phase in ("draft", "observe"))
            shares.append(spent / watch.seconds("round"))
            of_text.append((counts.get("text_s", 0.0) - before_s) / watch.seconds("round"))
    yield bench.figure(f"{name}: beyond model calls, share of a round at batch {size}", shares, note)
    if "text_s" in counts:
        yield bench.figure(
            f"{name}: text handling, share of a round at batch {size}", of_text, goal(TEXT_SHARES.get(size))
        )


def decode(bench: Any, engine: Engine, drafter: Any, size: int) -> Stopwatch:
    """Decode `size` texts at once with a drafter; return the seconds of phases, of observing and of calls of models."""
    models = [*engine.models, *engine.target.pruned.values()]  # these draft over the target's weights
    with time_engines(Stopwatch(bench.wait), [engine], models) as watch:
        generate_texts(bench, engine, drafter, size)
    return watch


def generate_texts(bench: Any, engine: Engine, drafter: Any, size: int) -> None:
    texts = bench.prompts(size, PROMPT)
    more: dict[str, Any] = {"num_draft": NUM_DRAFT, "max_new_tokens": bench.new, "stop_ids": (), "measure": False}
    more["timing"] = "split"  # with this setting no round reads a prompt
    generate(None, None, texts, [Exact()], batch_size=size, engine=engine, drafter=drafter, **more)


def look_up(bench: Any, name: str, drafter: Any, size: int) -> Iterator[Any]:
    """Yield the time of a look-up in a long text per row: in milliseconds, and divided by a target call on one token after it."""
    texts = torch.tensor(bench.prompts(size, LONG), device=bench.device)
    new = ROUNDS * EMITTED
    tokens = torch.cat((texts, texts[:, :new]), 1)
    wanted, u = torch.full((size,), NUM_DRAFT), torch.rand(size, NUM_DRAFT)
    drafter.open(size, LONG + new + NUM_DRAFT, None)
    for row, text in enumerate(texts):
        drafter.admit(row, drafter.prefill(text, None))
    rows_s = []
    for done in range(0, new, EMITTED):
        context = GrownContext(tokens, torch.full((size,), LONG + done, device=bench.device), LONG + done)

        def draft(context: GrownContext = context) -> int:
            return len(drafter.draft(context, NUM_DRAFT, wanted, u, frozenset()).lengths)

        rows_s.append(bench.seconds(draft)[1] / size)
    drafter.close()
    at = f"at {LONG:,} tokens and batch {size}"
    yield bench.figure(f"{name}: milliseconds of a look-up a row {at}", [1e3 * s for s in rows_s[1:]])
    call_s = target_s(bench.stretched(), size, 1, LONG)
    yield bench.figure(f"{name}: look-ups over a target call {at}", [size * s / call_s for s in rows_s[1:]])


def corpus_times(bench: Any) -> Iterator[Any]:
    """Yield the seconds to index a text of CORPUS_BYTES, with lines drawn from the bench's texts, and to open it again."""
    lines, draw = bench.tokenizer.decode(bench.corpus).split(". "), random.Random(0)
    with TemporaryDirectory() as folder:
        path, corpora.CACHE = Path(folder) / "corpus.txt", Path(folder) / "cache"
        with open(path, "w") as file:
            while file.tell() < CORPUS_BYTES:
                file.write(". ".join(draw.choices(lines, k=1000)) + "\n")
        name = f"{CORPUS_BYTES // 10**6} MB of text"
        times = [bench.seconds(lambda: len(corpora.IndexedCorpus.open(path, bench.tokenizer).tokens)) for _ in range(2)]
    for what, (count, seconds) in zip(("index", "open again"), times, strict=True):
        yield bench.figure(f"retrieval: seconds to {what} {name}", [seconds], f"{count:,} tokens")


def early_exit(bench: Any) -> Iterator[Any]:
    """Yield the time of a round at batch 1 divided by its formula: a target call on a block, plus E/N of a call on one token for
    each drafted token. Also yield the time divided by the formula plus the step of the rule that judges the block.
    """
    lm = LM(bench.target)
    over_calls: list[float] = []
    with_rule: list[float] = []
    layers = lm.config.num_hidden_layers
    share = exit_of(layers, None) / layers
    length = PROMPT + bench.new // 2
    engine = bench.engine(None)
    engine.capture_at_once()
    drafter = engine.drafter("early-exit", engine.warp(1.0))
    for turn in range(-WARM_UPS, EXIT_TURNS * bench.repeats):
        with bench.timed() as watch:
            generate_texts(bench, engine, drafter, 1)
        round_s, rule_s = (
            statistics.median(call.seconds for call in watch.calls if call.phase == phase)
            for phase in ("round", "verify")
        )
        calls_s = NUM_DRAFT * share * target_s(bench, 1, 1, length) + target_s(bench, 1, NUM_DRAFT + 1, length)
        if turn >= 0:
            over_calls.append(round_s / calls_s)
            with_rule.append(round_s / (calls_s + rule_s))
    note = f"E/N = {share:.2f}, K = {NUM_DRAFT}"
    yield bench.figure("early-exit: a round over its formula, batch 1", over_calls, note)
    yield bench.figure("early-exit: a round over its formula and the rule's step, batch 1", with_rule, note)


def memory(bench: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield the peak memory of each drafter after long texts, divided by that of the target alone."""
    for name, ratio in peaks_over(__file__, ALONE, names, bench.device).items():
        yield bench.figure(f"{name}: peak of memory over the target's alone at {FULL:,} tokens", [ratio])


def peak_bytes(name: str, device: str) -> float:
    """Return the peak memory of one call with a random target of eight layers. A corpus is indexed before the call for every
    drafter, because the memory that this leaves in the allocator counts as already used.
    """
    tokenizer = word_tokenizer(VOCAB)
    with TemporaryDirectory() as folder:
        corpus = indexed_corpus(Path(folder), tokenizer)
        return peak_of_call(name, device, tokenizer, {"corpus": corpus} if name == "retrieval" else {})


def peak_of_call(name: str, device: str, tokenizer: Any, options: dict[str, Any]) -> float:
    before = resident_bytes()
    sizes = {"vocab_size": VOCAB, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 2 * FULL}
    torch.manual_seed(0)
    target = random_llama(device, **sizes)
    prompts = torch.randint(5, VOCAB, (FULL_ROWS, FULL), generator=torch.Generator().manual_seed(0)).tolist()
    engine = Engine(target, tokenizer=tokenizer, capture="off")
    drafter = NoDraft() if name == ALONE else engine.drafter(name, engine.warp(1.0), options)
    forget_peak()
    more: dict[str, Any] = {"max_new_tokens": 24, "stop_ids": (), "num_draft": NUM_DRAFT, "measure": False}
    generate(None, None, prompts, [Exact()], engine=engine, drafter=drafter, batch_size=FULL_ROWS, **more)
    return peak_memory() - (0 if device.startswith("cuda") else before)


def indexed_corpus(folder: Path, tokenizer: Any) -> str:
    """Write CORPUS random words and index them; return the file."""
    corpora.CACHE, path = folder / "cache", folder / "corpus.txt"
    draw = random.Random(0)
    path.write_text("\n".join(words_of(draw.choices(range(VOCAB), k=20)) for _ in range(CORPUS // 20)))
    corpora.IndexedCorpus.open(path, tokenizer)
    return str(path)


if __name__ == "__main__":
    print_peak("bench_drafters", __doc__, "drafter", peak_bytes)
