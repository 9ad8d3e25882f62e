"""Compare the cost of rules with Exact: rounds of mixed batches, each rule's share of a round, memory with a large vocabulary.

    python scripts/bench_engine.py rules=all|NAME,NAME [OPTIONS]    measures them
    python scripts/bench_rules.py RULE [device=cpu]                 prints the peak bytes of one rule

The rules are those of configs/verifier, each at the middle of its sweep.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.bench_tools import Stopwatch, forget_peak, peaks_over, print_peak, random_llama, resident_bytes
from sdbench.config import config_dir
from sdbench.config.sweep import RuleSweep
from sdbench.engine import generate
from sdbench.engines.latency import peak_memory
from sdbench.prepare.rules import rule_of
from sdbench.train.options import RECIPES
from sdbench.types import Limits
from sdbench.verify import Ensemble, Exact
from sdbench.verify.head import SHIP, linear, width_of
from sdbench.words import choose

NEW, NUM_DRAFT, WARM_UPS = 48, 5, 2
FOUR = ("exact", "ensemble", "lenience", "typical")
MARKERS = (5, 6)  # ids that begin and end a span
VOCAB, BATCH = 128_256, 8
EXACT = Exact()


Widths = dict[str, int]  # of the states of draft and target


def widths_of(target: Any, draft: Any) -> Widths:
    return {f"{role}_hidden": int(model.config.hidden_size) for role, model in (("target", target), ("draft", draft))}


def names_of(names: str) -> list[str]:
    """Return the names of rules, for `all` or a list; ValueError for an unknown one."""
    known = sorted(path.stem for path in (config_dir() / "verifier").glob("*.yaml"))
    return known if names == "all" else sorted(choose("rules", names, known))


def rules_of(names: str, temperature: float, widths: Widths) -> dict[str, Any]:
    """Return {name: rule} for `all` or a list: the rules that work at this temperature and draft length, with untrained heads."""
    folder = config_dir() / "verifier"
    trees = {name: yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in names_of(names)}
    rules = {name: middle(tree, widths) for name, tree in trees.items()}
    return {name: rule for name, rule in rules.items() if works(rule, temperature)}


def middle(tree: dict[str, Any], widths: Widths) -> Any:
    sweep = RuleSweep.check(tree, None)
    setting = dict(sweep.settings[len(sweep.settings) // 2])
    texts = [knob.name for knob in sweep.knobs if knob.is_text and not knob.trained]
    setting |= dict(zip(texts, MARKERS, strict=False))
    for knob in sweep.knobs:
        if kind := next((kind for kind, folder in SHIP.items() if folder == knob.trained), None):
            recipe: Any = RECIPES[kind]()
            setting[knob.name] = linear(kind, recipe.features, width_of(recipe.features, widths))
    return rule_of(sweep.target, setting)


def works(rule: Any, temperature: float) -> bool:
    limits = getattr(rule, "limits", Limits())
    options: dict[str, Any] = {"temperature": temperature, "num_draft": NUM_DRAFT, "calls_sure": False}
    return limits.broken_by("", has_draft_model=True, has_logits=True, **options) is None


def measure_rules(bench: Any, names: str) -> Iterator[Any]:
    """Yield the figures of rules; `bench` is a Bench of bench_engine."""
    widths = widths_of(bench.target, bench.draft)
    for temperature in (1.0, 0.0):
        rules = rules_of(names, temperature, widths)
        at = f"T={temperature:g}"
        texts = bench.prompts(32, 64)
        four = [rule for name, rule in rules_of(",".join(FOUR), temperature, widths).items()]
        yield mixed(bench, f"{at}: a round of 32 rows, 4 families, over Exact alone", texts, four, temperature)
        yield mixed(
            bench, f"{at}: a round of 32 rows, all rules, over Exact alone", texts, list(rules.values()), temperature
        )
        for name, rule in rules.items():
            yield own_share(bench, f"{at}: {name}, share of a round at batch 1", rule, temperature)
        if "diversed" in rules:
            for size in (32, 1):
                yield mixed(
                    bench,
                    f"{at}: a round of {size} rows, diversed over the static ensemble",
                    texts[:size],
                    [rules["diversed"]],
                    temperature,
                    Ensemble(0.5),
                )
    yield from memory(bench, names)


def mixed(
    bench: Any, name: str, texts: list[list[int]], rules: list[Any], temperature: float, other: Any = EXACT
) -> Any:
    """Return seconds per round of a batch that mixes these rules, divided by those of a batch with one rule, in turns."""
    ratios = []
    for turn in range(-WARM_UPS, bench.repeats):
        many, alone = (round_s(bench, texts, some, temperature) for some in (rules, [other]))
        if turn >= 0:
            ratios.append(many / alone)
    return bench.figure(name, ratios, f"{len({type(rule) for rule in rules})} rules")


def round_s(bench: Any, texts: list[list[int]], rules: list[Any], temperature: float) -> float:
    """Return the seconds of a round of a full batch; other rounds do not count, since they are cheaper."""
    count = min(len(texts), -(-len(texts) // len(rules)))
    calls = decode(bench, texts[:count] * 2, rules, temperature, len(texts)).calls
    times = [call.seconds for call in calls if call.phase == "round" and call.num_rows == len(texts)]
    return sum(times) / len(times)


def decode(bench: Any, texts: list[list[int]], rules: list[Any], temperature: float, batch_size: int) -> Stopwatch:
    """Decode the texts with each rule; return the seconds of its phases."""
    options: dict[str, Any] = {
        "temperature": temperature,
        "num_draft": NUM_DRAFT,
        "max_new_tokens": NEW,
        "stop_ids": (),
    }
    with bench.timed() as stopwatch:
        generate(None, None, texts, rules, measure=False, batch_size=batch_size, engine=bench.engine(None), **options)
    return stopwatch


def own_share(bench: Any, name: str, rule: Any, temperature: float) -> Any:
    """Return the share of a round's time that the rule takes, one text at a time."""
    texts, shares = bench.prompts(2, 64), []
    for turn in range(-WARM_UPS, bench.repeats):
        stopwatch = decode(bench, texts, [rule], temperature, 1)
        if turn >= 0:
            shares.append(stopwatch.seconds("verify") / stopwatch.seconds("round"))
    return bench.figure(name, shares)


def memory(bench: Any, names: str) -> Iterator[Any]:
    """Return the peak memory of each rule divided by Exact's, with V = 128,256 and batch size 8."""
    others = [name for name in rules_of(names, 1.0, widths_of(bench.target, bench.draft)) if name != "exact"]
    for name, ratio in peaks_over(__file__, "exact", others, bench.device).items():
        yield bench.figure(f"T=1: {name}, peak of memory over Exact's, V = 128,256", [ratio])


def peak_bytes(name: str, device: str) -> float:
    """Return the peak memory of one call with random models of two layers."""
    before = resident_bytes()
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    torch.manual_seed(0)
    target, draft = (random_llama(device, **sizes, num_attention_heads=4, num_key_value_heads=2) for _ in range(2))
    prompts = torch.randint(5, VOCAB, (BATCH, 32), generator=torch.Generator().manual_seed(0)).tolist()
    rule = rules_of(name, 1.0, widths_of(target, draft))[name]
    forget_peak()
    generate(target, draft, prompts, [rule], max_new_tokens=24, batch_size=BATCH, stop_ids=(), num_draft=NUM_DRAFT)
    return peak_memory() - (0 if device.startswith("cuda") else before)


if __name__ == "__main__":
    print_peak("bench_rules", __doc__, "rule", peak_bytes)
