"""The command line with pairs and data sets of a stand-in hub under the real ids: gates, faults, sizes, and a whole run."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from test_options import save_huge
from watched import sdbench

import sdbench as package

CNNDM = ["model=llama", "task=cnndm", "w=0.7", "n=2", "task.max_new_tokens=8"]


@pytest.mark.parametrize(
    ("token", "says"), [(None, "then set HF_TOKEN"), ("hf_ungranted", "has no access yet"), ("hf_dead", "refuses")]
)
def test_a_gated_pair_says_what_to_do_before_anything_heavy_is_imported(hub, tmp_path, token, says):
    done = sdbench(CNNDM, cwd=tmp_path, env=hub.env(tmp_path / "home", token))
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert says in done.err
    assert "model=llama-tiny" in done.err
    if token != "hf_dead":
        assert f"accept its licence at {hub.url}/meta-llama/Llama-3.1-8B-Instruct" in done.err
    assert not done.modules & {"torch", "transformers", "datasets", "pandas"}
    assert not (tmp_path / "results").exists()


def test_a_pair_that_does_not_fit_is_refused_without_a_byte_of_its_weights(hub, tmp_path):
    (hub.root / "models" / "org").mkdir(exist_ok=True)
    save_huge(hub.root / "models" / "org" / "huge", [1_000_000, 405_000], is_whole=False)
    words = ["model.target=org/huge", "model.draft=Qwen/Qwen3-8B", "device=cpu"]
    done = sdbench(words, cwd=tmp_path, env=hub.env(tmp_path / "home"))
    assert done.code == 2
    assert done.err.startswith("sdbench: org/huge (405 B weights in float32) and Qwen/Qwen3-8B")
    assert done.err.count("\n") == 1
    assert not list((tmp_path / "home").rglob("*.safetensors"))
    assert not done.modules & {"torch", "transformers"}


@pytest.mark.slow
def test_a_gated_pair_on_a_hub_data_set_runs_end_to_end(hub, tmp_path):
    begin = len(hub.log)
    command = [sys.executable, "-m", "sdbench", *CNNDM, "timing=off", "report=off"]
    env = hub.env(tmp_path / "home", "hf_granted")
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = package.read(tmp_path / "results" / "llama-cnndm")
    assert len(results.generations) == 2 * 4
    assert set(results.cells.verifier) == {"target", "draft", "lossless", "ensemble"}
    assert not [line for line in hub.log[begin:] if "train-" in line or "validation-" in line]


SMALL_PAIRS = """
from sdbench.cli import compose_run, main
from sdbench.prepare import pair
for name in ("qwen-coder-small", "qwen-coder", "smollm2"):
    assert main(["--plan", f"model={name}", "task=gsm8k", "task.chat=true", "device=cpu", "n=2"]) == 0
assert main(["--plan", "model=gemma-270m", "task=gsm8k", "device=cpu", "n=2"]) == 0
run = compose_run(["model=gemma-270m"])
print(sorted(pair.find(run.model, device="cpu", dtype="auto").checkpoints))
import json
import sdbench
words = ["timing=off", "report=off", "temperature=1", "w=0.5", "num_draft=3", "max_new_tokens=40"]
assert main(["model=qwen-coder", "task=gsm8k", "device=cpu", "n=4", *words]) == 0
checkpoints = pair.find(compose_run(["model=qwen-coder"]).model, device="cpu", dtype="auto").checkpoints
sizes = [json.loads((checkpoints[role].folder / "config.json").read_text())["vocab_size"] for role in ("target", "draft")]
tokens = sdbench.read("results/qwen-coder-gsm8k").tokens
largest = [max(max(ids, default=0) for ids in tokens[name].dropna()) for name in ("ids", "draft_ids")]
print(*sizes, *largest)
"""


@pytest.mark.slow
def test_the_configs_of_small_pairs_name_repositories_with_one_vocabulary(hub, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SMALL_PAIRS],
        env=hub.env(tmp_path / "home", "hf_granted"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    downloads = [line for line in done.stdout.splitlines() if line.startswith("download: ")]
    for line, (target, draft) in zip(
        downloads,
        [
            ("Qwen/Qwen2.5-Coder-1.5B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
            ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
            ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
            ("google/gemma-3-270m", ""),
        ],
        strict=True,
    ):
        assert target in line
        assert draft in line
    lines = done.stdout.splitlines()
    assert "['target']" in lines
    target_size, draft_size, *largest = map(int, lines[-1].split())
    assert target_size - draft_size == 128
    assert max(largest) < draft_size, "of 4 · 40 tokens of a random target none is padding of its alone"


CASES = """
import contextlib, io, json, os, sys, time
time.sleep = lambda seconds: None  # between one try and the next
from sdbench import cli, score
left = {}
for name, (entry, words) in json.loads(sys.argv[1]).items():
    err, out = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        code = {"run": cli.main, "score": score.COMMAND}[entry](words)
    left[name] = [code, err.getvalue(), out.getvalue()]
print("\\n" + json.dumps(left))
"""
MODEL, DATA = ["model=qwen", "task=gsm8k-tiny"], ["model=llama-tiny", "task=gsm8k"]
SCORE = ["task=gsm8k", f"predictions={os.devnull}"]
ONLINE = {  # name: (who, what it is told, exit code, words of the one sentence)
    "model revision": ("run", [*MODEL, "model.target_revision=nope"], 2, "Qwen/Qwen3-8B has no revision nope"),
    "data revision": ("run", [*DATA, "task.revision=nope"], 2, "openai/gsm8k has no revision nope"),
    "score, revision": ("score", [*SCORE, "revision=nope"], 2, "openai/gsm8k has no revision nope"),
    "unknown model": ("run", [*MODEL, "model.target=Qwen/Qwen3-9B"], 2, "there is no model Qwen/Qwen3-9B"),
    "unknown data": ("run", [*DATA, "task.dataset=openai/gsm9k"], 2, "there is no dataset openai/gsm9k"),
    "busy": ("run", [*MODEL, "model.target=Qwen/Qwen3-0.6B"], 2, "the hub limits your requests (429)"),
    "broken": ("run", [*DATA[:1], "task=wmt14"], 2, "the hub fails (500) for wmt/wmt14"),
    "score, broken": ("score", ["task=wmt14", f"predictions={os.devnull}"], 2, "the hub fails (500) for wmt/wmt14"),
}
CUT_OFF = {
    "model": ("run", MODEL, 2, "Qwen/Qwen3-8B is not in the cache and"),
    "data": ("run", DATA, 2, "openai/gsm8k is not in the cache and"),
    "score": ("score", SCORE, 2, "openai/gsm8k is not in the cache and"),
}


def fail(method: str, path: str, count: int) -> int | None:
    return 429 if "Qwen3-0.6B" in path else 500 if "wmt14" in path else None


def run_cases(cases, env, place):
    """What each case left: exit code, stderr, stdout; all in one process, since the imports take longest."""
    asked = json.dumps({name: case[:2] for name, case in cases.items()})
    done = subprocess.run(
        [sys.executable, "-c", CASES, asked], env=env, cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def is_one_sentence(left, code, words):
    got, err, out = left
    assert (got, out) == (code, ""), err
    retries = "thrown while requesting", "Retrying in"  # the client's own words while it tries again
    lines = [line for line in err.splitlines() if line and not any(words in line for words in retries)]
    assert len(lines) == 1, err
    assert lines[0].startswith(("sdbench: ", "sdbench.score: "))
    assert words in lines[0]
    assert (
        lines[0].count("task.data=rows.jsonl") + lines[0].count("model=llama-tiny") + lines[0].count("/commits/") == 1
    )


@pytest.fixture(scope="module")
def online(hub, tmp_path_factory):
    hub.fail = fail
    place = tmp_path_factory.mktemp("online")
    yield run_cases(ONLINE, hub.env(place), place)
    hub.fail = None


@pytest.mark.parametrize("case", ONLINE)
def test_a_fault_of_the_hub_is_one_sentence_of_the_command(online, case):
    is_one_sentence(online[case], *ONLINE[case][2:])


DEAD = {  # none of them answers: the discard port, where nobody listens, and a name that the standard keeps for no host
    "offline": {"HF_HUB_OFFLINE": "1"},
    "dead endpoint": {"HF_ENDPOINT": "http://127.0.0.1:9"},
    "unknown name": {"HF_ENDPOINT": "http://hub.invalid"},
}


@pytest.fixture(
    scope="module",
    params=["offline", *(pytest.param(name, marks=pytest.mark.slow) for name in DEAD if name != "offline")],
)
def cut_off(request, hub, tmp_path_factory):
    place = tmp_path_factory.mktemp("cut_off")
    return run_cases(CUT_OFF, hub.env(place, **DEAD[request.param]), place)


@pytest.mark.parametrize("case", CUT_OFF)
def test_without_the_hub_and_a_cache_it_is_one_sentence_too(cut_off, case):
    is_one_sentence(cut_off[case], *CUT_OFF[case][2:])
    assert cut_off[case][1].count("\n") == 1, "nothing of the libraries' own"


@pytest.mark.slow
@pytest.mark.parametrize("name", DEAD)
def test_without_the_hub_and_a_cache_a_command_ends_within_five_seconds(hub, tmp_path, name):
    """Waiting counts, and the command's own work, not what a busy machine makes of it."""
    begin, before = time.monotonic(), os.times()
    done = sdbench(MODEL, cwd=tmp_path, env=hub.env(tmp_path / "home", **DEAD[name]))
    wall_s, after = time.monotonic() - begin, os.times()
    work_s = after.children_user + after.children_system - before.children_user - before.children_system
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert work_s < 5
    assert wall_s < 5 or wall_s - work_s < 4.5


@pytest.mark.slow
def test_a_hub_that_hangs_up_is_asked_a_few_times_and_no_more(hub, tmp_path):
    """With an empty cache: what fails on the way is not tried again and again."""
    callers: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=hang_up, args=(server, callers), daemon=True).start()
        broken = hub.env(tmp_path, HF_ENDPOINT=f"http://127.0.0.1:{server.getsockname()[1]}")
        for name, outcome in run_cases(CUT_OFF, broken, tmp_path).items():
            is_one_sentence(outcome, *CUT_OFF[name][2:])
            assert outcome[1].count("\n") == 1
    assert len(callers) <= 1 + 2 * len(CUT_OFF), (
        "one look whether the hub is there, then two requests of a case at most"
    )


WARM = """
import json, sys, warnings
from sdbench import tasks
from sdbench.lm.load import download, find
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    revision = json.loads(sys.argv[1])
    checkpoint = find("Qwen/Qwen3-8B", revision=revision.get("model"))
    download(checkpoint)
    task = tasks.load("gsm8k", revision=revision.get("data"))
    rows = len(task.rows)
said = [str(warning.message) for warning in caught]
print("\\n" + json.dumps([checkpoint.identity(), task.dataset_commit, rows, said]))
"""


def loaded(env, **revision):
    command = [sys.executable, "-c", WARM, json.dumps(revision)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_a_filled_cache_serves_without_a_network_and_says_which_commit(hub, tmp_path):
    model, data = hub.repo("models", "Qwen/Qwen3-8B").commit, hub.repo("datasets", "openai/gsm8k").commit
    whole = [f"Qwen/Qwen3-8B@{model}", data, 8]
    assert loaded(hub.env(tmp_path)) == [*whole, []]
    for name, dead in DEAD.items():
        *left, message = loaded(hub.env(tmp_path, **dead))
        assert left == whole, name
        if name == "offline":
            assert not message
        else:
            where = f"{dead['HF_ENDPOINT']} cannot be reached"
            assert f"{where}: Qwen/Qwen3-8B is taken from the cache, commit {model}" in message
            assert f"{where}: openai/gsm8k is taken from the cache, commit {data}" in message


@pytest.mark.slow
def test_a_commit_that_the_cache_holds_is_used_without_a_request(hub, tmp_path):
    env = hub.env(tmp_path)
    model, data, *_ = loaded(env)
    pinned = {"model": model.partition("@")[2], "data": data}
    assert loaded(env, **pinned)[:2] == [model, data]
    begin = len(hub.log)
    assert loaded(env, **pinned) == [model, data, 8, []]
    assert hub.log[begin:] == []


@pytest.mark.slow
def test_a_transport_that_breaks_on_the_way_falls_back_to_the_cache(hub, tmp_path):
    env = hub.env(tmp_path)
    model, data, *_ = loaded(env)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and never answers: closed at once below
        server.listen()
        closing = threading.Thread(target=hang_up, args=(server,), daemon=True)
        closing.start()
        broken = {**env, "HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}"}
        left = loaded(broken)
    assert left[:3] == [model, data, 8]
    assert any(f"commit {data}" in words for words in left[3])


def hang_up(server, callers=None):
    while True:
        try:
            connection, caller = server.accept()
        except OSError:
            return
        connection.close()
        if callers is not None:
            callers.append(caller)
