"""llama.cpp's server with the embedded llama pair as GGUF files of float32, by the program of `scripts/llamacpp_env`:
SDBENCH_LLAMACPP names it, or .venv-llamacpp has it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from processes import gone
from test_real_vllm import by_example, fit, ids_of_prompt, law, logits

from sdbench.metrics.divergence import common_prefix
from sdbench.records import Results, read

pytest.importorskip("gguf")
ROOT = Path(__file__).parents[2]
HERE = ROOT / ".venv-llamacpp" / "bin" / "llama-server"
BINARY = os.environ.get("SDBENCH_LLAMACPP") or (str(HERE) if HERE.exists() else None)
NEAR_TIE = 1e-2  # in logits: its caches are float16
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BINARY is None,
        reason="neither SDBENCH_LLAMACPP nor .venv-llamacpp has a llama-server: scripts/llamacpp_env builds one",
    ),
]


@pytest.fixture(scope="module")
def pair_words(tmp_path_factory) -> list[str]:
    from tests.serve.gguf_pair import pair_files

    files = pair_files(tmp_path_factory.mktemp("gguf"))
    return [
        *(f"model.{role}={path}" for role, path in files.items()),
        "model.name=tiny",
        "task=gsm8k-tiny",
        "report=off",
    ]


def engine_words(*words: str) -> list[str]:
    return ["engine=llamacpp", f"engine.binary={BINARY}", "engine.args.threads=1", *words]


def command_line(results: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "sdbench", "timing=off", "verifier=exact", f"results={results}", *words]


def run(results: Path, *words: str) -> Results:
    done = subprocess.run(command_line(results, *words), env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return read(results / "tiny-gsm8k-tiny")


@pytest.fixture(scope="module")
def greedy(pair_words, tmp_path_factory) -> tuple[Results, Results]:
    words = (*pair_words, "n=20", "temperature=0", "num_draft=3")
    ours = run(tmp_path_factory.mktemp("native"), *words)
    return ours, run(tmp_path_factory.mktemp("llamacpp"), *words, *engine_words())


@pytest.mark.parametrize(("verifier", "role"), [("target", "target"), ("draft", "draft"), ("lossless", "target")])
def test_greedy_texts_are_our_own_up_to_near_ties(greedy, verifier, role):
    ours, theirs = (by_example(results, verifier) for results in greedy)
    assert set(ours) == set(theirs)
    for example in (example for example in ours if ours[example] != theirs[example]):
        position = common_prefix(np.array(ours[example]), np.array(theirs[example]))
        first, second = logits(role, [*ids_of_prompt(greedy[0], example), *ours[example][:position]]).topk(2).values
        assert first - second < NEAR_TIE, (example, position)


def test_rounds_reconcile_with_the_texts_and_acceptance_is_that_of_the_native_engine(greedy):
    rates = []
    for results in greedy:
        pairs = results.generations.query("verifier == 'lossless'")
        assert (pairs["accepted"] + pairs["replaced"] + pairs["bonus"] == pairs["tokens"]).all()
        rates.append(pairs["accepted"].sum() / pairs["examined"].sum())
    assert abs(rates[0] - rates[1]) < 0.03
    (entry,) = greedy[1].provenance.values()
    assert all(facts["version"].startswith("b") for facts in entry["servers"])


def test_the_law_of_two_tokens_is_the_targets(pair_words, tmp_path):
    words = (*pair_words, "temperature=1", "n=1", "samples=500", "max_new_tokens=2", "num_draft=3")
    results = run(tmp_path, *words, *engine_words())
    prompt = tuple(ids_of_prompt(results, str(results.examples["example"].iloc[0])))
    first = law("target", prompt)
    expected = {
        (token, other): first[token] * share
        for token in np.nonzero(first > 1e-4)[0].tolist()
        for other, share in enumerate(law("target", (*prompt, token)))
    }
    for verifier in ("lossless", "target"):
        cells = results.cells[results.cells["verifier"] == verifier]["cell"]
        ids = results.tokens[results.tokens["cell"].isin(cells)]["ids"]
        assert len(ids) == 500
        assert fit([(int(one), int(other)) for one, other in ids], expected) > 1e-4


def test_characters_of_several_tokens_keep_their_ids(pair_words, tmp_path):
    """At this temperature any bytes come, and the stream leaves out ids in most texts."""
    words = (*pair_words, "temperature=2.5", "n=20", "max_new_tokens=32", "num_draft=3")
    frame = run(tmp_path, *words, *engine_words()).generations
    assert len(frame) == 60
    assert (frame["tokens"] > 0).all()


@pytest.mark.parametrize("victim", ["harness", "server"])
def test_what_is_killed_leaves_no_process_and_the_same_command_goes_on(victim, pair_words, tmp_path):
    words = (*pair_words, "n=40", "temperature=0", "num_draft=3", *engine_words("engine.retries=1", "batch_size=1"))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command_line(tmp_path, *words), env=ENV, stdout=log, stderr=log)
    until = time.monotonic() + 240
    while not (pids := servers_of(tmp_path)) or not list(tmp_path.glob("*/records/generations-*")):
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < until, "no text in four minutes"
        time.sleep(0.1)
    if victim == "harness":
        process.kill()
    else:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    code = process.wait(120)
    assert code == (-signal.SIGKILL if victim == "harness" else 1)
    assert gone(pids)
    held = len(read(tmp_path / "tiny-gsm8k-tiny").generations)
    results = run(tmp_path, *words)
    assert 0 < held < len(results.generations) == 40 * len(results.cells)
    parts = (tmp_path / "tiny-gsm8k-tiny" / "records").glob("generations-*")
    rows = [pq.read_table(part, columns=["example"]).num_rows for part in parts]
    assert sum(rows) == len(results.generations), "none is there twice"


def servers_of(folder: Path) -> list[int]:
    """llama-servers of this run that have answered more than the request which looks at them."""
    logs = [path for path in folder.glob("*/servers/*.log") if path.read_text().count("release:") > 2]
    ports = [path.stem.rpartition("-")[2] for path in logs]
    listing = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=1) for line in listing.splitlines()]
    named = [f"--port {port} " for port in ports]
    return [int(pid) for pid, line in rows if line.startswith(str(BINARY)) and any(port in line for port in named)]
