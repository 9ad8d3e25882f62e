"""vLLM's CPU build with the embedded llama pair, by the python of `scripts/vllm_env`: SDBENCH_VLLM names it, or .venv-vllm has it.

Some ten servers start one after another; a comparison of more texts is what `scripts/vllm_tables.py` makes.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fuzz import any_knobs
from processes import gone
from scipy.stats import chi2
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.vllm_cpu import CPU
from sdbench import embedded
from sdbench.engines.served.request import PLUGIN_ENV
from sdbench.metrics.divergence import common_prefix
from sdbench.records import Results, read
from sdbench.serve.command import port_of, words_of
from sdbench.serve.process import Server

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "plugins" / "vllm"))

from sdbench_vllm.knobs import rule_of  # noqa: E402

HERE = ROOT / ".venv-vllm" / "bin" / "python"
PYTHON = os.environ.get("SDBENCH_VLLM") or (str(HERE) if HERE.exists() else None)
N = 20
NEAR_TIE = 1e-3  # in logits: float32, and sums in another order
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None,
        reason="neither SDBENCH_VLLM nor .venv-vllm has a python with vLLM: scripts/vllm_env makes one, of 3.5 GB",
    ),
]


SEEN: set[int] = set()  # servers of runs that ended
ENV = {**os.environ, **CPU, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def command_line(results: Path, *words: str) -> list[str]:
    size = [] if any(word.startswith("n=") for word in words) else [f"n={N}"]
    given = ["model=llama-tiny", "task=gsm8k-tiny", "timing=off", "report=off", f"results={results}", *size, *words]
    return [sys.executable, "-m", "sdbench", *given]


def command(results: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Its output as `stderr`; the servers that it had below it are noted."""
    args = command_line(results, *words)
    with (
        tempfile.TemporaryFile("w+") as message,
        subprocess.Popen(args, env=ENV, stdout=message, stderr=message) as process,
    ):
        while process.poll() is None:
            SEEN.update(servers(process.pid))
            time.sleep(0.5)
        message.seek(0)
        return subprocess.CompletedProcess(args, process.returncode, stderr=message.read())


def run(results: Path, *words: str) -> Results:
    done = command(results, *words)
    assert done.returncode == 0, done.stderr
    return read(results / "llama-tiny-gsm8k-tiny")


def served(*words: str) -> list[str]:
    args = ["engine.args.max_model_len=1024", "engine.args.enforce_eager=true", "engine.args.dtype=float32"]
    return ["engine=vllm", f"engine.python={PYTHON}", *args, *words]


@pytest.fixture(scope="module")
def greedy(tmp_path_factory) -> tuple[Results, Results]:
    words = ("temperature=0", "verifier=exact")
    ours = run(tmp_path_factory.mktemp("native"), *words)
    return ours, run(tmp_path_factory.mktemp("vllm"), *words, *served())


def below(pid: int) -> dict[int, str]:
    """Processes that this one started, and those that they did, with their command lines. vLLM names its workers itself."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listing.splitlines()]
    own: dict[int, str] = {}
    parents = {pid}
    while parents:
        children = {int(row[0]): row[2] for row in rows if int(row[1]) in parents and row[2] != "<defunct>"}
        own |= children
        parents = set(children)
    return own


def servers(pid: int) -> list[int]:
    """Those of them that are vLLM's."""
    return [one for one, words in below(pid).items() if words.startswith((str(PYTHON), "VLLM::"))]


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


def test_no_process_of_a_run_is_left(greedy):
    assert len(SEEN) > 3, "three servers, and the engine of each"
    assert gone(list(SEEN))


@contextmanager
def plugged(folder: Path, more: Mapping[str, object] | None = None, **speculative: object) -> Iterator[str]:
    """The address of a server with the plug-in of this source tree. `more`: arguments of the server."""
    port = port_of("127.0.0.1", None)
    args = {
        "model": embedded.path("llama-tiny", "target"),
        "port": port,
        "max_model_len": 1024,
        "enforce_eager": True,
        "dtype": "float32",
        "per_request_spec_decode_metrics": "detailed",
        "enable_per_request_metrics": True,
        **(more or {}),
    }
    speculative = {
        "method": "draft_model",
        "model": str(embedded.path("llama-tiny", "draft")),
        "num_speculative_tokens": 5,
        "draft_sample_method": "probabilistic",
        **speculative,
    }
    words = words_of(str(PYTHON), "vllm.entrypoints.openai.api_server", args, speculative)
    url, path = f"http://127.0.0.1:{port}", f"{ROOT / 'plugins' / 'vllm'}:{ROOT}"
    env = {**CPU, **PLUGIN_ENV, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    server = Server.start(words, url, folder / "log", env=env, grace_s=20)
    try:
        server.wait_until_ready("/health", 900)
        yield url
    finally:
        server.close()


@pytest.fixture(scope="module")
def plugin_words(tmp_path_factory):
    """The words of a run against one server that has the plug-in."""
    with plugged(tmp_path_factory.mktemp("plugin")) as url:
        yield ["engine=http", "engine.plugin=true", f"engine.url={url}"]


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
    drafting = results.cells.query("num_draft > 0")
    cells = drafting.set_index(drafting["w"].fillna(1.0))["cell"]  # w = 1 is the lossless cell
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


def test_the_documented_command_starts_a_server_that_the_documented_run_measures(tmp_path):
    """Both commands of docs/engines.md as they stand there, but for interpreter, port and n."""
    page = (ROOT / "docs" / "engines.md").read_text().replace("\\\n", " ")
    start, measure = (
        next(line for line in page.splitlines() if word in line)
        for word in ("python -m vllm.entrypoints", "python -m sdbench model=llama-tiny task=gsm8k-tiny 'w=[0.5,1]'")
    )
    port = port_of("127.0.0.1", None)
    words = [
        part.replace(".venv-vllm/bin/python", str(PYTHON)).replace("8000", str(port)) for part in shlex.split(start)
    ]
    env = dict(part.split("=", 1) for part in words[: words.index(str(PYTHON))])
    server = Server.start(
        words[len(env) :], f"http://127.0.0.1:{port}", tmp_path / "log", env={**ENV, **env}, grace_s=20
    )
    try:
        server.wait_until_ready("/health", 900)
        given = [part.replace("8000", str(port)) for part in shlex.split(measure)[5:]]
        results = run(tmp_path, *given, "n=5")
        assert len(results.generations) == 10, "w = 1 is the lossless rule, whose texts it shares"
        cut = ("temperature=1", "top_k=1", "n=2", "w=[0]", "name=cut")
        done = command(tmp_path, *(part for part in given if not part.startswith("w=")), *cut)
        assert done.returncode == 0, "vLLM's own cut by top_k ends its engine"
    finally:
        server.close()


GREEDY = ("ensemble", "typical", "lenience", "cascade-v2", "confidence")


@pytest.mark.parametrize("temperature", [0, 1])
def test_rules_that_read_un_tempered_laws_accept_as_in_the_native_engine(temperature, plugin_words, tmp_path):
    knobs = (
        "w=0.5",
        "verifier.lenience.lenience=0.3",
        "verifier.cascade-v2.alpha=0.5",
        "verifier.confidence.threshold=0.5",
    )
    words = (f"temperature={temperature}", f"verifier=[{','.join(GREEDY)}]", "verifier.typical.eps=0.3", *knobs)
    rates = []
    for side, more in (("native", []), ("vllm", plugin_words)):
        frame = run(tmp_path / side, *words, *more).generations.groupby("verifier")[["accepted", "examined"]].sum()
        rates.append((frame["accepted"] / frame["examined"])[list(GREEDY)])
    assert (rates[0] - rates[1]).abs().max() < 0.06, "n = 20: six points"


def post(url: str, body: Mapping[str, object]) -> tuple[int, str]:
    """Status and body of a request for a text; a server that does not answer raises."""
    data = json.dumps({"model": str(embedded.path("llama-tiny", "target")), **body}).encode()
    request = Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def answer_of(url: str, number: int, extra: Mapping[str, str] | None, *, is_greedy: bool) -> tuple[int, str]:
    """Status and body of a request of eight tokens."""
    body = {
        "prompt": f"Tom has {number % 17} apples and buys {number % 5} more.",
        "max_tokens": 8,
        "temperature": 0.0 if is_greedy else 1.0,
        "seed": number,
    }
    return post(url, body | ({"vllm_xargs": extra} if extra else {}))


SHORT = 64  # tokens of the drafter's context


def test_beyond_the_drafters_context_there_are_no_drafts_and_stop_strings_cost_no_counts(tmp_path):
    """There vLLM drafts token 0, which w = 0 kept to the end of the text; and it sends no counts of a text with a stop string."""
    extra = {"sdbench_rule": "sdbench.verify.Ensemble", "sdbench_knobs": json.dumps({"w": 0.0, "greedy": "mixture"})}
    body = {"prompt": list(range(20, 50)), "max_tokens": 100, "temperature": 0.0, "return_token_ids": True}
    body |= {"ignore_eos": True, "vllm_xargs": extra}

    def answer(**more: object) -> tuple[list[int], dict[str, list[int]]]:
        status, page = post(url, body | more)
        assert status == 200, page
        tree = json.loads(page)
        return tree["choices"][0]["token_ids"], tree["metrics"]["speculative_decoding"]

    with plugged(tmp_path, max_model_len=SHORT) as url:
        ids, counts = answer()
        assert len(ids) == 100
        assert ids.count(0) < 5
        drafted = counts["per_step_drafted"]
        assert counts["per_step_accepted"] == drafted, "w = 0 keeps every draft"
        assert SHORT - 30 - 12 <= sum(drafted) + len(drafted) <= SHORT - 30, "those of its first tokens"
        _, page = post(url, body)
        text = json.loads(page)["choices"][0]["text"]
        ids, counts = answer(stop=[text[len(text) // 3 :][:3]])
        assert len(ids) < 100, "it ended at the string"
        assert sum(counts["per_step_drafted"]) > 0


def test_only_the_drafts_whose_laws_are_lost_are_dropped(tmp_path):
    """Sixteen short prompts fit into a step of 48 tokens, their drafts do not. w = 0 keeps what is not dropped."""
    extra = {"sdbench_rule": "sdbench.verify.Ensemble", "sdbench_knobs": json.dumps({"w": 0.0})}
    body = {"max_tokens": 40, "temperature": 1.0, "ignore_eos": True, "vllm_xargs": extra}
    with plugged(tmp_path, {"max_num_batched_tokens": 48, "max_num_seqs": 16}) as url, ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(post, url, body | {"prompt": [20 + n, 40 + n], "seed": n}) for n in range(16)]
        answers = [job.result() for job in jobs]
    assert {status for status, _ in answers} == {200}
    counts = [json.loads(page)["metrics"]["speculative_decoding"] for _, page in answers]
    names = ("per_step_accepted", "per_step_drafted")
    steps = [step for each in counts for step in zip(*(each[name] for name in names), strict=True)]
    num_dropped = sum(accepted == 0 for accepted, _ in steps)
    assert all(accepted in (0, drafted) for accepted, drafted in steps)
    assert 0 < num_dropped < len(steps), "some laws were lost, and those of others were not"
    assert "Missing cached draft probabilities" not in (tmp_path / "log").read_text()


def refusal(extra: Mapping[str, str], temperature: float) -> str | None:
    """The sentence with which the plug-in refuses such a request, if it does."""
    try:
        rule_of(extra, temperature)
    except ValueError as error:
        return str(error).strip()
    return None


def test_the_server_stays_up_under_2000_requests_with_any_knobs(plugin_words):
    url = plugin_words[-1].partition("=")[2]

    def text() -> str:
        status, body = answer_of(url, 3, None, is_greedy=True)
        assert status == 200, body
        return json.loads(body)["choices"][0]["text"]

    before, asked = text(), list(any_knobs(2000))
    with ThreadPoolExecutor(16) as pool:
        jobs = [
            pool.submit(answer_of, url, number, extra, is_greedy=is_greedy)
            for number, (extra, is_greedy) in enumerate(asked)
        ]
        answers = [job.result() for job in jobs]
    taken = 0
    for (extra, is_greedy), (status, body) in zip(asked, answers, strict=True):
        says = refusal(extra, 0.0 if is_greedy else 1.0)
        assert status == (200 if says is None else 400), (extra, body)
        assert says is None or json.dumps(says)[1:-1] in body, extra
        taken += says is None
    assert 40 < taken < 1960
    assert text() == before


def test_sampling_without_the_plugin_is_refused(tmp_path):
    done = command(tmp_path, "temperature=1", "verifier=exact", *served())
    assert done.returncode == 2
    assert "on a CPU writes garbage when it speculates at temperature=1 (vllm#55005)" in done.stderr


PLUGGED = ("temperature=1", "w=[0.5,1]", "n=40", "batch_size=8", "engine.plugin=true", "engine.retries=1")


@contextmanager
def decoding(results: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run with a server of its own, with the plug-in, from whose records on it has a text; killed in the end."""
    with log.open("wb") as message:
        process = subprocess.Popen(command_line(results, *served(*PLUGGED)), env=ENV, stdout=message, stderr=message)
    until = time.monotonic() + 900
    try:
        while not list(results.glob("*/records/generations-*")):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, "no text in a quarter of an hour"
            time.sleep(0.2)
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_harness_that_is_killed_leaves_no_server_and_no_worker(tmp_path):
    with decoding(tmp_path, tmp_path / "log") as process:
        pids = servers(process.pid)
        assert len(pids) > 1, "the server and its engine"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert gone(pids)


def test_when_the_server_is_killed_the_same_command_goes_on(tmp_path):
    with decoding(tmp_path, tmp_path / "log") as process:
        pids = servers(process.pid)
        for pid in pids:
            with suppress(ProcessLookupError):  # one falls with the other
                os.kill(pid, signal.SIGKILL)
        assert process.wait(300) == 1
        output = (tmp_path / "log").read_text()
        assert gone(pids)
    assert "ended with code 137 (SIGKILL); its log" in output
    assert "run the same command again to continue" in output
    assert "Traceback" not in output
    folder = tmp_path / "llama-tiny-gsm8k-tiny"
    held = len(read(folder).generations)
    results = run(tmp_path, *served(*PLUGGED))
    assert 0 < held < len(results.generations) == 40 * len(results.cells)
    rows = [pq.read_table(part, columns=["example"]).num_rows for part in (folder / "records").glob("generations-*")]
    assert sum(rows) == len(results.generations), "none is there twice"
    assert gone(list(SEEN))
