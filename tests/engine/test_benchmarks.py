"""The committed figures of the engine are what was promised; `scripts/bench_engine.py` makes them anew.

Read from a file that one run on a quiet machine wrote: a test that timed anything itself would fail on a busy one.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scripts import bench_engine
from scripts.bench_engine import page_of
from scripts.bench_heads import OF_LAYERS
from sdbench.config import config_dir

pytestmark = pytest.mark.results

RECORD = Path(__file__).parents[2] / "results" / "benchmarks" / "engine-llama-tiny-cpu-float32.json"
SWEEP = "sweep, 10 w × 40 prompts of 200: tokens/s over generate's"
LEAST = {SWEEP: 8, "batch 1: tokens/s over generate's": 1.5}
MOST = {
    "batch 32, no measures: over bare forwards": 1.15,
    "batch 32, all measures: over bare forwards": 1.3,
    "batch 1, no measures: over bare forwards": 1.15,
    "one draft call over one target call, batch 1": 0.16,
}


def figure(name: str, threads: int, record: str = RECORD.name) -> float:
    rows = json.loads(RECORD.with_name(record).read_text())["figures"]
    (only,) = [row for row in rows if row["name"] == name and row["threads"] == threads]
    return only["median"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", LEAST)
def test_the_engine_is_faster_than_generate(name, threads):
    assert figure(name, threads) >= LEAST[name]


def test_the_guides_time_of_a_token_after_a_long_text_is_that_of_the_record():
    record = json.loads(RECORD.read_text())
    rows = [row for row in record["figures"] if row["name"] == "time a token at 4,000 tokens of context over 500"]
    assert [(row["threads"], row["n"], row["note"]) for row in rows] == [(1, 5, "batch 4"), (2, 5, "batch 4")]
    times = [f"{row[end]:.2f}" for row in rows for end in ("median", "low", "high")]
    wanted = (
        "a token costs {} times as much after 4,000 tokens as after 500 with one thread (smallest of five {}, largest {}) "
        "and {} times with two ({}, {}): w = 0.5 with a batch of 4 on an AMD EPYC"
    )
    assert record["about"]["device"]["name"] == "AMD EPYC"
    assert wanted.format(*times) in " ".join((RECORD.parents[2] / "docs" / "guide.md").read_text().split())


def test_the_readme_says_by_how_much_the_tiny_pair_misses_the_goal_for_long_texts():
    rows = json.loads(RECORD.read_text())["figures"]
    name = "time a token at 4,000 tokens of context over 500"
    (row,) = [row for row in rows if row["name"] == name and row["threads"] == 1]
    assert row["median"] > 1.5, "the goal"
    wanted = (
        "One goal was missed: with one thread a token after 4,000 tokens was to take at most 1.5 times as long as after 500. With "
        f"llama-tiny it takes {row['median']:.2f} times as long (smallest of five {row['low']:.2f}, largest {row['high']:.2f}), "
        f"{row['median'] / 1.5:.1f} times the goal."
    )
    assert wanted in " ".join((RECORD.parents[1] / "README.md").read_text().split())


def products_of(config: LlamaConfig) -> tuple[int, int]:
    """Multiplications of a token after 4,000 tokens: with the weights, and in attention (scores, and the sum of values)."""
    with torch.device("meta"):
        layers = [layer for layer in LlamaForCausalLM(config).modules() if isinstance(layer, torch.nn.Linear)]
    width = config.num_attention_heads * config.head_dim
    return sum(layer.weight.numel() for layer in layers), 2 * 4000 * width * config.num_hidden_layers


def test_the_guides_counts_of_operations_are_those_of_the_models():
    tiny = products_of(LlamaConfig.from_pretrained(RECORD.parents[2] / "sdbench/embedded/llama-tiny/target"))
    large = products_of(
        LlamaConfig(**dict(zip(bench_engine.NAMES, bench_engine.SHAPES["llama-8b-shape"][0], strict=True)))
    )
    assert round(tiny[1] / tiny[0]) == 5
    assert round(large[0] / large[1]) == 7
    times = [(weights + attention) / (weights + attention / 8) for weights, attention in (tiny, large)]
    guide = " ".join((RECORD.parents[2] / "docs" / "guide.md").read_text().split())
    assert (
        "at 4,000 tokens attention needs five times as many operations as the weights in llama-tiny, but one seventh as many as "
        "the weights in an 8B Llama. Counting operations, a token after 4,000 tokens costs "
        f"{times[0]:.1f} times as much as one after 500 on llama-tiny, and {times[1]:.1f} times on the 8B model."
    ) in guide
    readme = " ".join((RECORD.parents[1] / "README.md").read_text().split())
    assert f"Counting operations, it would be {times[0]:.1f} times for the target, because of attention" in readme


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MOST)
def test_the_engine_is_close_to_its_models(name, threads):
    assert figure(name, threads) <= MOST[name]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("head", ["an 8B", "Gemma 3 270M"])
@pytest.mark.parametrize("group", ["engine-llama-tiny-cpu-float32", "heads-llama-tiny-cpu-bfloat16"])
def test_a_forward_costs_little_more_than_the_product_of_a_large_head(group, head, threads):
    """While the head's weights were copied for each row, 12 rows of one with 151,936 ids took 27.9 s in bfloat16, not .06."""
    assert figure(f"forward with the head of {head} over the head's product", threads, f"{group}.json") <= 1.5


COLD = RECORD.with_name("cold-llama-tiny-cpu-float32.json")


def cold(name: str) -> float:
    (only,) = [row for row in json.loads(COLD.read_text())["figures"] if row["name"] == name]
    return only["median"]


def test_what_a_cold_engine_costs_is_as_stated():
    """results/README.md: about assisted generate's speed at first, more than twice that once steps are traced."""
    rival = "tokens per second over assisted generate's"
    rates = [round(cold(f"{place} of 8: {rival}"), 2) for place in ("first", "all", "last")]
    assert rates == [1.10, 1.32, 2.55]
    assert [
        round(cold(f"{place} of 8: tokens per second over plain generate's"), 2) for place in ("first", "all", "last")
    ] == [0.83, 1.05, 1.75]
    at_once = [cold(f"{place} of 8, each step traced the first time: {rival}") for place in ("first", "all")]
    assert at_once == pytest.approx([0.45, 1.60], abs=0.005)
    assert round(cold("the text in which steps are traced less the first text, processor seconds"), 2) == 0.77
    assert round(cold("making an engine, processor seconds"), 2) == 0.05


DRAFTERS = RECORD.with_name("drafters-llama-tiny-cpu-float32.json")
NAMES = sorted(path.stem for path in (config_dir() / "drafter").glob("*.yaml"))
LOOK_UPS = ("lookup", "suffix", "retrieval")
MOST_OF_A_ROUND, MOST_OF_A_CALL, MOST_OVER_FORMULA = 0.10, 0.01, 1.1


def of_drafters(name: str) -> float:
    (only,) = [row for row in json.loads(DRAFTERS.read_text())["figures"] if row["name"] == name]
    return only["median"]


@pytest.mark.parametrize("batch_size", [1, 32])
@pytest.mark.parametrize("drafter", NAMES)
def test_a_drafter_costs_little_beyond_its_model_calls(drafter, batch_size):
    share = of_drafters(f"{drafter}: beyond model calls, share of a round at batch {batch_size}")
    assert 0 < share <= MOST_OF_A_ROUND


@pytest.mark.parametrize("batch_size", [1, 32])
@pytest.mark.parametrize("drafter", LOOK_UPS)
def test_a_look_up_in_a_long_text_costs_little(drafter, batch_size):
    text = f"at 8,000 tokens and batch {batch_size}"
    assert of_drafters(f"{drafter}: milliseconds of a look-up a row {text}") <= 0.2
    assert of_drafters(f"{drafter}: look-ups over a target call {text}") <= MOST_OF_A_CALL


def test_an_index_is_built_and_opened_in_time():
    assert of_drafters("retrieval: seconds to index 100 MB of text") < 30
    assert of_drafters("retrieval: seconds to open again 100 MB of text") < 0.5


def test_handling_text_and_the_draft_of_medusa_take_at_most_their_share():
    shares = {size: of_drafters(f"universal: text handling, share of a round at batch {size}") for size in (1, 32)}
    assert shares[1] <= 0.15
    assert shares[32] <= 0.10
    assert of_drafters("medusa: a draft of 5 tokens at batch 1 over a target call") <= 0.15


@pytest.mark.parametrize("drafter", ["early-exit", "lookup", "suffix", "retrieval"])
def test_a_drafter_without_a_model_takes_the_memory_of_the_target_alone(drafter):
    assert of_drafters(f"{drafter}: peak of memory over the target's alone at 4,000 tokens") <= 1.02


def test_a_head_that_drafts_with_a_layer_cannot_reach_its_goal_on_this_pair():
    """Each draft runs a layer, and the target's head besides; 1.2 calls of a layer were the goal."""
    assert 1 + of_drafters("the target's head and drawing a token at batch 1 over a call of a layer") > OF_LAYERS


def test_a_round_of_early_exit_is_near_its_formula():
    """One verification is a call of the target and the rule's step."""
    assert of_drafters("early-exit: a round over its formula and the rule's step, batch 1") <= MOST_OVER_FORMULA


PAGES = [
    *(f"{group}-llama-tiny-cpu-float32" for group in ("engine", "cold", "rules", "drafters")),
    "heads-llama-tiny-cpu-bfloat16",
]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_that_of_the_figures(name):
    group, path = name.partition("-")[0], RECORD.with_name(f"{name}.json")
    assert path.with_suffix(".md").read_text() == page_of(group, json.loads(path.read_text()))
