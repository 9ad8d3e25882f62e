"""llama.cpp's server with the embedded llama pair as GGUF files of float32, by the program of `scripts/llamacpp_env`:
SDBENCH_LLAMACPP names it, or .venv-llamacpp has it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pyarrow.parquet as pq
import pytest
from processes import free_port, gone
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


@pytest.fixture(scope="module")
def running(greedy) -> Iterator[list[str]]:
    """The servers of the run above, started again by hand with the same words: the engine's options that name them."""
    (entry,) = greedy[1].provenance.values()
    with ExitStack() as stack:
        urls = {}
        for facts in entry["servers"]:
            words, port = list(facts["command"]), free_port()
            words[words.index("--port") + 1] = str(port)
            process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
            role = facts["setting"] if facts["setting"] in ("target", "draft") else "pair"
            urls[role] = f"http://127.0.0.1:{port}"
        for url in urls.values():
            wait_until_healthy(url)
        named = [f"engine.urls.{role}={url}" for role, url in urls.items() if role != "pair"]
        yield ["engine=http", "engine.dialect=llamacpp", "batch_size=4", f"engine.url={urls['pair']}", *named]


def test_servers_that_run_already_give_the_same_texts(greedy, running, pair_words, tmp_path):
    results = run(tmp_path, *pair_words, "n=20", "temperature=0", "num_draft=3", *running)
    for verifier in ("target", "draft", "lossless"):
        assert by_example(results, verifier) == by_example(greedy[1], verifier)


@pytest.mark.parametrize(
    "option", [{"speculative.n_max": 1}, {"speculative.n_min": 4}, {"speculative.p_min": 1}], ids=str
)
def test_options_of_speculation_in_a_request_change_nothing(option, greedy, running):
    """What configs/engine/llamacpp.yaml says. If this fails with another build, that build takes them."""
    (url,) = (word.partition("=")[2] for word in running if word.startswith("engine.url="))
    prompt = ids_of_prompt(greedy[0], str(greedy[0].examples["example"].iloc[0]))
    body = {"prompt": prompt, "n_predict": 32, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    plain, given = (post(f"{url}/completion", body | more) for more in ({}, option))
    counts = given["timings"]
    num_rounds = counts["predicted_n"] - counts["draft_n_accepted"]  # at most: the first token has no draft
    assert counts["draft_n"] > num_rounds, "drafts of more than one token"
    for name in ("draft_n", "draft_n_accepted", "predicted_n"):
        assert counts[name] == plain["timings"][name]
    assert given["tokens"] == plain["tokens"]


@pytest.mark.parametrize("victim", ["harness", "server"])
def test_a_kill_in_an_open_loop_loses_no_rate_that_was_whole(victim, running, pair_words, tmp_path):
    """Without the harness the servers of `running` go on; the server that is killed is one that sdbench started."""
    load = ["timing.rate=[8,2]", "timing.requests=24", "timing.examples=4"]
    engine = running if victim == "harness" else engine_words("engine.retries=1", "engine.slots=4", "batch_size=4")
    words = (*pair_words, "n=4", "temperature=0", "num_draft=3", "max_new_tokens=8", *engine, *load)
    command = [word for word in command_line(tmp_path, *words) if word != "timing=off"]
    folder = tmp_path / "tiny-gsm8k-tiny"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=ENV, stdout=log, stderr=log)
    until = time.monotonic() + 240
    while not (folder / "records").is_dir() or read(folder).open_loads.empty:
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < until, "no rate was whole in four minutes"
        time.sleep(0.2)
    if victim == "harness":
        process.kill()
    else:
        pids = servers_of(tmp_path)
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    code = process.wait(120)
    assert code == (-signal.SIGKILL if victim == "harness" else 1), (tmp_path / "log").read_text()
    if victim == "server":
        assert gone(pids)
        assert "(SIGKILL)" in (tmp_path / "log").read_text()
    held = read(folder).open_loads
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    frame = read(folder).open_loads
    assert 0 < len(held) < len(frame)
    assert set(frame.groupby(["cell", "rate"]).size()) == {24}, "every rate is whole, and none is there twice"
    assert frame.groupby("cell")["rate"].nunique().eq(2).all()
    whole = held.merge(frame, on=["cell", "rate", "arrival_s", "sent_s", "last_token_s"])
    assert len(whole) == len(held), "what was whole was kept"
    assert (frame["failure"] == "").all()
    assert (frame["first_token_s"] > frame["sent_s"]).all()


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return json.loads(answer.read())


def wait_until_healthy(url: str) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            with urlopen(f"{url}/health") as answer:
                if answer.status == 200:
                    return
        except OSError:  # not listening yet, or 503 while it loads
            assert time.monotonic() < until, f"{url} did not start"
        time.sleep(0.1)


def servers_of(folder: Path) -> list[int]:
    """llama-servers of this run that have answered more than the request which looks at them."""
    logs = [path for path in folder.glob("*/servers/*.log") if path.read_text().count("release:") > 2]
    ports = [path.stem.rpartition("-")[2] for path in logs]
    listing = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=1) for line in listing.splitlines()]
    named = [f"--port {port} " for port in ports]
    return [int(pid) for pid, line in rows if line.startswith(str(BINARY)) and any(port in line for port in named)]


def test_the_server_answers_with_the_fields_of_the_recording(tmp_path):
    """The quick tests read answers of build 11434; another build that sends other fields wants a new recording."""
    import recording

    ours, theirs = (
        recording.fields_of(exchanges) for exchanges in (recording.record(BINARY, tmp_path), recording.read())
    )
    assert ours == theirs
