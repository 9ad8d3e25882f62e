"""vLLM's CPU build with the embedded llama pair: run where SDBENCH_VLLM names the python of `scripts/vllm_env`.

Four servers start one after another; a comparison of more texts is what `scripts/vllm_tables.py` makes.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from transformers import AutoModelForCausalLM, AutoTokenizer

from sdbench import embedded
from sdbench.metrics.divergence import common_prefix
from sdbench.records import Results, read
from sdbench.run.servers import PLUGIN_ENV
from sdbench.serve.command import port_of, words_of
from sdbench.serve.process import Server

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("SDBENCH_VLLM")
N = 20
NEAR_TIE = 1e-3  # in logits: float32, and sums in another order
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None,
        reason="SDBENCH_VLLM names no python with vLLM: scripts/vllm_env makes one, of 3.5 GB and with other pins",
    ),
]
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}


def command(results: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **CPU, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    size = [] if any(word.startswith("n=") for word in words) else [f"n={N}"]
    given = ["model=llama-tiny", "task=gsm8k-tiny", "timing=off", "report=off", f"results={results}", *size, *words]
    return subprocess.run(
        [sys.executable, "-m", "sdbench", *given], env=env, capture_output=True, text=True, check=False
    )


def run(results: Path, *words: str) -> Results:
    done = command(results, *words)
    assert done.returncode == 0, done.stderr
    return read(results / "llama-tiny-gsm8k-tiny")


def served(*words: str) -> list[str]:
    args = ["engine.args.max_model_len=512", "engine.args.enforce_eager=true", "engine.args.dtype=float32"]
    return ["engine=vllm", f"engine.python={PYTHON}", *args, *words]


@pytest.fixture(scope="module")
def greedy(tmp_path_factory) -> tuple[Results, Results]:
    words = ("temperature=0", "verifier=exact")
    ours = run(tmp_path_factory.mktemp("native"), *words)
    return ours, run(tmp_path_factory.mktemp("vllm"), *words, *served())


def servers() -> set[int]:
    """Processes of that interpreter; vLLM gives its workers names of their own."""
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    pairs = [line.split(maxsplit=1) for line in listing.splitlines()[1:]]
    return {int(pid) for pid, args in pairs if args.startswith((str(PYTHON), "VLLM::"))}


@pytest.fixture(scope="module", autouse=True)
def before():
    """The processes that there were; at the end there are no others."""
    there = servers()
    yield there
    assert servers() <= there


def by_example(results: Results, verifier: str) -> dict[str, list[int]]:
    """The ids of each text."""
    cells = results.cells.query("verifier == @verifier")["cell"]
    frame = results.tokens[results.tokens["cell"].isin(cells)]
    return {str(row.example): [int(token) for token in row.ids] for row in frame.itertuples()}


def ids_of_prompt(results: Results, example: str) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(embedded.path("llama-tiny", "target"))
    prompts = results.examples.drop_duplicates("example").set_index("example")["prompt"]
    return list(tokenizer(prompts[example])["input_ids"])


@cache
def model_of(role: str):
    return AutoModelForCausalLM.from_pretrained(embedded.path("llama-tiny", role), dtype=torch.float32)


def logits(role: str, ids: Sequence[int]) -> torch.Tensor:
    """[V] of the next token, by transformers' own forward."""
    with torch.no_grad():
        return model_of(role)(torch.tensor([list(ids)])).logits[0, -1].double()


def law(role: str, ids: Sequence[int]) -> np.ndarray:
    return logits(role, ids).softmax(-1).numpy()


@pytest.mark.parametrize(("verifier", "role"), [("target", "target"), ("draft", "draft"), ("lossless", "target")])
def test_greedy_texts_are_our_own_up_to_near_ties(greedy, verifier, role):
    ours, theirs = (by_example(one, verifier) for one in greedy)
    assert set(ours) == set(theirs)
    for example in (one for one in ours if ours[one] != theirs[one]):
        place = common_prefix(np.array(ours[example]), np.array(theirs[example]))
        first, second = logits(role, [*ids_of_prompt(greedy[0], example), *ours[example][:place]]).topk(2).values
        assert first - second < NEAR_TIE, (example, place)


def test_steps_reconcile_with_the_texts(greedy):
    _, results = greedy
    frame = results.generations
    assert (frame["accepted"] + frame["replaced"] + frame["bonus"] == frame["tokens"]).all()
    pairs = frame[frame["verifier"] == "lossless"]
    own = greedy[0].generations.query("verifier == 'lossless'")
    rates = [part["accepted"].sum() / part["examined"].sum() for part in (pairs, own)]
    assert abs(rates[0] - rates[1]) < 0.03


def test_no_process_of_a_run_is_left(before, greedy):
    assert servers() <= before


@pytest.fixture(scope="module")
def plugin_words(tmp_path_factory):
    """The words of a run against one server that has the plug-in."""
    port = port_of("127.0.0.1", None)
    args = {
        "model": embedded.path("llama-tiny", "target"),
        "port": port,
        "max_model_len": 512,
        "enforce_eager": True,
        "dtype": "float32",
        "per_request_spec_decode_metrics": "detailed",
    }
    speculative = {
        "method": "draft_model",
        "model": str(embedded.path("llama-tiny", "draft")),
        "num_speculative_tokens": 5,
        "draft_sample_method": "probabilistic",
    }
    words = words_of(str(PYTHON), "vllm.entrypoints.openai.api_server", args, speculative)
    url, log = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("plugin") / "log"
    env = {**CPU, **PLUGIN_ENV, "OMP_NUM_THREADS": "1"}
    server = Server.start(words, url, log, env=env, grace_s=20)
    try:
        server.wait_until_ready("/health", 900)
        yield ["engine=http", "engine.plugin=true", f"engine.url={url}"]
    finally:
        server.close()


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_plugins_ensemble_is_our_own(temperature, plugin_words, tmp_path):
    words = (f"temperature={temperature}", "w=[0,0.5,1]", "verifier.greedy=mixture")
    ours, theirs = run(tmp_path / "native", *words), run(tmp_path / "vllm", *words, *plugin_words)
    rates = []
    for results in (ours, theirs):
        frame = results.generations.query("verifier == 'ensemble'").groupby("w")[["accepted", "examined"]].sum()
        rates.append(frame["accepted"] / frame["examined"])
    assert (rates[0] - rates[1]).abs().max() < 0.06, "n = 20: six points"
    assert rates[1][0.0] == 1
    exact = [one.generations.query("verifier == 'lossless'")["strict"].mean() for one in (ours, theirs)]
    assert min(exact) > 0.6, "vLLM's own sampler wrote garbage on a CPU: none was right"


def test_a_long_queue_of_prompts_with_seeds_is_answered(plugin_words, tmp_path):
    """More prompts at once than one step reads: on a CPU that ended the engine."""
    results = run(tmp_path, "temperature=1", "n=64", "max_new_tokens=8", "verifier=exact", *plugin_words)
    assert len(results.generations) == 64


def test_the_law_of_the_second_token_is_the_rules(plugin_words, tmp_path):
    """Texts of two tokens: the first is the target's, the second w p + (1 − w) q. Held to w = 1, those of w = 0.5 are found out."""
    results = run(tmp_path, "temperature=1", "n=1", "samples=500", "max_new_tokens=2", "w=[0,0.5,1]", *plugin_words)
    ids = tuple(ids_of_prompt(results, str(results.examples["example"].iloc[0])))
    cells = results.cells.query("verifier == 'ensemble'").set_index("w")["cell"]
    own = {w: results.tokens[results.tokens["cell"] == cells[w]]["ids"] for w in (0.0, 0.5, 1.0)}
    pairs = {w: [(int(first), int(second)) for first, second in rows] for w, rows in own.items()}
    for w, seen in pairs.items():
        assert len(seen) == 500
        assert fit(seen, pair_law(ids, w)) > 1e-4
    assert fit(pairs[0.5], pair_law(ids, 1.0)) < 1e-6


@cache
def pair_law(ids: tuple[int, ...], w: float) -> dict[tuple[int, int], float]:
    """Every pair that may follow, with its probability."""
    first = law("target", ids)
    pairs = {}
    for token in np.nonzero(first > 1e-4)[0].tolist():
        p, q = (law(role, (*ids, token)) for role in ("target", "draft"))
        pairs |= {(token, other): value for other, value in enumerate(first[token] * (w * p + (1 - w) * q))}
    return pairs


def fit(pairs: Sequence[tuple[int, ...]], expected: Mapping[tuple[int, int], float]) -> float:
    """The p of a chi-squared test; pairs expected fewer than five times are one cell."""
    seen, count = Counter(pairs), len(pairs)
    cells = [(seen[pair], share * count) for pair, share in expected.items() if share * count >= 5]
    counts, shares = (np.array(column, float) for column in zip(*cells, strict=True))
    counts, shares = np.append(counts, count - counts.sum()), np.append(shares, count - shares.sum())
    return float(chi2.sf(((counts - shares) ** 2 / shares).sum(), len(counts) - 1))


def test_sampling_without_the_plugin_is_refused(tmp_path):
    done = command(tmp_path, "temperature=1", "verifier=exact", *served())
    assert done.returncode == 2
    assert "on a CPU writes garbage where it speculates at temperature=1 (vllm#55005)" in done.stderr
