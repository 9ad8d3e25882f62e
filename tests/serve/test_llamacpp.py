"""engine=http engine.dialect=llamacpp and engine=llamacpp against a stand-in that answers as build 11434 of llama.cpp's server."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from llamacpp_standin import PROMPT_MS, TOKEN_MS, LlamaCppStandIn
from processes import free_port, gone, noted
from standin import Text, decoded

from sdbench.cli import main
from sdbench.records import read

pytestmark = pytest.mark.usefixtures("no_figures")
NAME, ROOT = "micro-gsm8k-tiny", Path(__file__).parents[2]
# The program `sdbench`, but each text is scored and on disk before the next one is read from the server's answers.
PROMPT_WRITER = """
import sys
from sdbench.cli import main
from sdbench.passes.scoring import Scorers

put = Scorers.put
def put_and_write(self, record, example, store, failed):
    put(self, record, example, store, failed)
    self.drain(store, failed)

Scorers.put = put_and_write
sys.exit(main(sys.argv[1:]))
"""


def engine_words(server, target=None) -> list[str]:
    named = [] if target is None else [f"engine.urls.target={target.url}"]
    return ["engine=http", "engine.dialect=llamacpp", f"engine.url={server.url}", "engine.wait_s=0.01", *named]


def texts(folder: Path) -> dict[tuple[str, str], str]:
    return {(row.verifier, row.example): row.text for row in read(folder).generations.itertuples()}


def test_rounds_follow_from_the_sums_of_each_chunk(served_words, llamacpp, tmp_path):
    server = llamacpp()
    assert main([*served_words(tmp_path), *engine_words(server)]) == 0
    results = read(tmp_path / NAME)
    frame = results.generations
    assert (frame["accepted"] + frame["replaced"] + frame["bonus"] == frame["tokens"]).all()
    assert (results.rounds["drafted"] <= 3).all()
    assert frame[["tv_sum", "expected_sum", "bias_sum"]].isna().all().all()
    (entry,) = results.provenance.values()
    facts = entry["servers"][0]
    assert (facts["version"], facts["counts"]) == ("b11434-515e85511", "steps")
    body = server.seen[-1]
    law = {"top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1, "samplers": ["temperature", "top_k", "top_p"]}
    assert {name: body[name] for name in law} == law
    assert (body["cache_prompt"], body["return_tokens"], body["temperature"]) == (False, True, 0)
    assert all(isinstance(token, int) for token in body["prompt"])
    assert "return_token_ids" not in body


def test_texts_whose_rounds_are_unknown_leave_their_cell_its_pooled_acceptance(
    served_words, llamacpp, tmp_path, capsys
):
    """Token 6 begins a step, and a stream that leaves it out does not tell where: one such text emptied the whole cell."""
    kept = [3, 1, 2, 3, 0, 3, 3]
    server = llamacpp(lambda body: Text([5] * body["max_tokens"], kept, [3] * 7), left_out=(5,))
    assert main([*served_words(tmp_path), *engine_words(server)]) == 0
    results = read(tmp_path / NAME)
    assert results.generations["accepted"].isna().all()
    row = pd.read_csv(tmp_path / NAME / "summary.csv").set_index("verifier").loc["lossless"]
    assert row["pooled_block_acceptance"] == pytest.approx(sum(kept) / 21)
    assert row["pooled_from"] == "requests"
    assert row["pooled_texts"] == len(results.generations)
    assert "acceptance is pooled over each cell, from the sums with each text" in capsys.readouterr().err
    server.left_out = ()
    assert main([*served_words(tmp_path / "whole"), *engine_words(server)]) == 0
    row = pd.read_csv(tmp_path / "whole" / NAME / "summary.csv").set_index("verifier").loc["lossless"]
    assert row["block_acceptance"] == pytest.approx(sum(kept) / 21)
    assert "pooled" not in capsys.readouterr().err


@pytest.mark.parametrize("slots", [1, 3])
def test_no_more_requests_are_sent_at_a_time_than_a_server_has_slots(slots, served_words, llamacpp, tmp_path):
    """They waited in its queue, on a slow one for longer than a client waits for an answer."""
    server = llamacpp(slots=slots, step_s=0.01)
    assert main([*served_words(tmp_path, n=6), *engine_words(server)]) == 0
    assert server.most_under_way == slots


def test_a_first_answer_of_one_token_does_not_tell_whether_a_server_speculates(served_words, llamacpp, tmp_path):
    """A server draws the first token without a draft. It was refused as one that does not speculate."""
    server = llamacpp()
    usual = server.maker
    server.maker = lambda body: Text([5]) if body["max_tokens"] == 8 else usual(body)
    assert main([*served_words(tmp_path), *engine_words(server)]) == 0
    assert read(tmp_path / NAME).generations["drafted"].gt(0).all()


def test_a_server_that_does_not_answer_the_first_requests_is_named(refused, llamacpp, monkeypatch):
    async def hang_up(self, request):
        request.transport.close()
        return web.Response()

    monkeypatch.setattr(LlamaCppStandIn, "_models", hang_up)
    server = llamacpp()
    assert f"the server at {server.url} did not answer sdbench's first requests: " in refused(*engine_words(server))


def test_a_round_ends_with_the_chunk_of_its_last_token(served_words, llamacpp, tmp_path):
    """Each token has its own chunk: three of four gaps between chunks are within a round."""
    server = llamacpp(lambda body: Text([5] * body["max_tokens"], [3] * 6, [3] * 6), step_s=0.02)
    words = [word for word in served_words(tmp_path, report="off", n=2) if word != "timing=off"]
    assert main([*words, *engine_words(server), "timing.examples=2", "timing.repeats=1"]) == 0
    timings = read(tmp_path / NAME).timings
    assert timings["rounds"].tolist() == [7, 7]
    assert timings["round_p50_s"].between(0.01, 0.2).all()
    assert (timings["round_p50_s"] <= timings["decode_s"] / 3).all(), "half of six rounds take no less"


def test_greedy_texts_are_those_of_the_target_alone(served_words, llamacpp, pair_engine, tmp_path):
    server, target = llamacpp(decoded(pair_engine, 3)), llamacpp(decoded(pair_engine, 0))
    assert main([*served_words(tmp_path), *engine_words(server, target)]) == 0
    written = texts(tmp_path / NAME)
    assert len(written) == 6
    assert all(text == written["target", example] for (_, example), text in written.items())


@pytest.mark.slow
def test_ids_that_a_stream_leaves_out_are_asked_for_whole(served_words, llamacpp, tmp_path):
    """The tokens of a character but its last one: counted, and not sent. The same request without a stream has them."""
    whole, gaps = llamacpp(), llamacpp(left_out=(0, 3, 4, 23))
    for name, server in (("whole", whole), ("gaps", gaps)):
        assert main([*served_words(tmp_path / name), *engine_words(server)]) == 0
    assert texts(tmp_path / "whole" / NAME) == texts(tmp_path / "gaps" / NAME)
    assert {body["stream"] for body in gaps.seen} == {True, False}
    assert {body["stream"] for body in whole.seen} == {True}


def test_a_server_that_writes_another_text_when_asked_again_is_no_answer(served_words, llamacpp, tmp_path, capsys):
    count = iter(range(1000))
    server = llamacpp(lambda body: Text([5 + next(count) % 7] * 8, [3, 2], [3, 3]), left_out=(2,))
    assert main([*served_words(tmp_path), *engine_words(server), "engine.retries=1"]) == 2
    assert "omits token ids, and the repeated request gave a different text" in capsys.readouterr().err


def test_a_text_whose_repetition_differs_among_other_requests_is_sent_again_alone(served_words, llamacpp, tmp_path):
    """Rounding differed with the requests that were decoded together, each time, and the run ended."""
    server = llamacpp(slots=4, left_out=(2,))
    usual, repeated = server.maker, {}

    def rounded(body) -> Text:
        text = usual(body)
        if body["stream"] or body["max_tokens"] != 24:  # a stream, or the first look
            return Text([5, *text.ids[1:]], text.accepted, text.drafted)
        under_way = repeated.setdefault(tuple(body["prompt"]), [])
        under_way.append(server.under_way)
        return Text([6 if len(under_way) == 1 else 5, *text.ids[1:]], text.accepted, text.drafted)

    server.maker = rounded
    assert main([*served_words(tmp_path, n=8), *engine_words(server), "engine.retries=0"]) == 0
    assert len(texts(tmp_path / NAME)) == len(repeated) == 8
    assert [again for _, again in repeated.values()] == [1] * 8, "nobody else is answered meanwhile"


def test_a_chunk_that_comes_twice_adds_no_token_to_a_text(served_words, llamacpp, tmp_path):
    whole, twice = llamacpp(), llamacpp()
    twice.faults = ["", "twice"]
    for name, server in (("whole", whole), ("twice", twice)):
        assert main([*served_words(tmp_path / name), *engine_words(server)]) == 0
    assert texts(tmp_path / "whole" / NAME) == texts(tmp_path / "twice" / NAME)
    assert len(twice.seen) == len(whole.seen) + 1


def test_a_text_that_is_refused_is_not_in_the_pooled_acceptance(served_words, llamacpp, tmp_path):
    """The same command decoded it again, and it was counted twice."""
    server, refused = llamacpp(), iter([False, False, True])
    usual = server.maker

    def made(body) -> Text:
        text = usual(body)
        is_refused = body["max_tokens"] == 24 and next(refused, False)
        return Text([10**6] * 24, text.accepted, text.drafted) if is_refused else text

    usual_text = server._text
    server._text = lambda ids, fault: "?" if 10**6 in ids else usual_text(ids, fault)
    server.maker = made
    words = [*served_words(tmp_path), *engine_words(server)]
    assert main(words) == 1
    assert main(words) == 0
    results = read(tmp_path / NAME)
    assert results.pooled["texts"].sum() == len(results.generations) == 3


def test_another_server_at_the_port_of_one_that_died_is_not_taken_for_it(
    llamacpp_words, llamacpp, tmp_path, monkeypatch, capsys
):
    """It answered the repeated requests, and its texts were recorded."""
    port = free_port()
    monkeypatch.setenv("STANDIN_DIES_AFTER", "2")  # one request looks at it, one text
    words = [*llamacpp_words, "batch_size=1", f"engine.port={port}", "engine.slots=1", "engine.wait_s=4"]
    others = []

    def replace() -> None:
        is_up, end = False, time.monotonic() + 60
        while time.monotonic() < end:
            with socket.socket() as probe:
                was_up, is_up = is_up, probe.connect_ex(("127.0.0.1", port)) == 0
            if was_up and not is_up:
                others.append(llamacpp(port=port))
                return
            time.sleep(0.005)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        assert main(words) == 1
    finally:
        thread.join()
    assert others[0].seen, "it answered the repeated request"
    assert "ended with code 17; its log" in capsys.readouterr().err
    assert len(read(tmp_path / "results" / "tiny-gsm8k-tiny").generations) == 1


def test_users_of_a_closed_loop_do_not_ask_for_ids_that_a_stream_leaves_out(served_words, llamacpp, tmp_path, capsys):
    """They are asked for at the end of a block, one at a time; where the text then is another, all tokens count."""
    server, busy = llamacpp(left_out=(2,)), []
    usual = server.maker
    assert main([*served_words(tmp_path), *engine_words(server)]) == 0

    def same(body) -> Text:
        time.sleep(0.01)
        busy.append((body["stream"], server.under_way))
        return usual(body)

    def other(body) -> Text:
        text = usual(body)
        is_repeated = not body["stream"] and body["max_tokens"] == 24  # of a text, not of the first look
        return Text([6 if is_repeated else 5, *text.ids[1:]], text.accepted, text.drafted)

    words = [word for word in served_words(tmp_path, report="off") if word != "timing=off"]
    words += [*engine_words(server), "timing.examples=2"]
    server.maker = same
    assert main([*words, "engine.concurrency=3"]) == 0
    repeated = [under_way for is_stream, under_way in busy if not is_stream]
    assert len(repeated) > 9
    assert repeated[1:] == [1] * (len(repeated) - 1), "nobody else is answered meanwhile"
    assert "lack some token ids" not in capsys.readouterr().err
    server.maker = other
    assert main([*words, "engine.concurrency=4", "engine.retries=0"]) == 0
    assert "12 of 12 timed texts lack some token ids, and repeating" in capsys.readouterr().err
    loads = read(tmp_path / NAME).loads
    assert loads.groupby("concurrency")["tokens"].unique().map(len).tolist() == [1, 1, 1]
    assert loads["held_s"].notna().all(), "no block was disturbed"
    assert loads["server_first_token_s"].to_numpy() == pytest.approx(PROMPT_MS / 1000)
    assert loads["server_decode_s"].to_numpy() == pytest.approx(loads["tokens"] * TOKEN_MS / 1000)
    assert loads["server_queue_s"].isna().all(), "it does not report its queue"


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (
            ["timing.rate=2"],
            "llama.cpp answers 1 request at a time while requests arrive at a rate, and the others wait",
        ),
        (["timing.rate=2", "engine.concurrency=[1,4]"], "llama.cpp answers 4 requests at a time while requests arrive"),
        (["timing.rate=2", "engine.slots=1"], ""),
        (["timing.examples=2"], ""),
    ],
)
def test_the_number_of_slots_is_named_if_requests_arrive_at_a_rate(words, warning, llamacpp_words, capsys):
    plain = [word for word in llamacpp_words if word != "timing=off"]
    assert main(["--plan", *plain, *words]) == 0
    output = capsys.readouterr().err
    assert warning in output
    assert ("at a time while requests arrive" in output) == bool(warning)


@pytest.mark.parametrize(("levels", "num_warnings"), [("[1,3]", 1), ("[1]", 0)])
def test_more_users_than_slots_are_a_warning(levels, num_warnings, served_words, llamacpp, tmp_path, capsys):
    words = [word for word in served_words(tmp_path, n=2, report="off") if word != "timing=off"]
    words += [*engine_words(llamacpp(), llamacpp(num_draft=0)), "timing.examples=2", f"engine.concurrency={levels}"]
    assert main(words) == 0
    warning = "the server answers 1 request at a time: at engine.concurrency=3 the others wait for a slot"
    assert capsys.readouterr().err.count(warning) == num_warnings


def test_prefetch_dequantises_nothing_that_no_run_reads(llamacpp_words, monkeypatch, capsys):
    monkeypatch.setattr("sdbench.lm.gguf.GGUFFile.weights", None)
    assert main(["--prefetch", *llamacpp_words]) == 0
    output = capsys.readouterr().out
    assert "are on this machine" in output
    assert "dequantised" not in output


def rows_of(folder: Path) -> list[tuple[str, str, int]]:
    """What the parts on disk hold, doubles and all."""
    parts = [
        pq.read_table(part, columns=["cell", "example", "sample"])
        for part in folder.glob("records/generations-*.parquet")
    ]
    return [(row["cell"], row["example"], row["sample"]) for part in parts for row in part.to_pylist()]


@pytest.mark.slow
def test_a_harness_that_is_killed_in_the_middle_goes_on_by_the_same_command(served_words, llamacpp, tmp_path):
    """The server answers four requests, of which two must come to the disk, and then no more until the kill."""
    folder, is_killed = tmp_path / NAME, False

    def hold(body) -> Text:
        while len(server.seen) > 4 and not is_killed:
            time.sleep(0.01)
        return Text([5] * 8, [1, 2, 1], [3, 3, 3])

    server = llamacpp(hold)
    words = [*served_words(tmp_path, n=8, batch_size=1, report="off"), *engine_words(server)]
    command, env = [sys.executable, "-c", PROMPT_WRITER, *words], {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 240
    while len(rows_of(folder)) < 2:
        assert process.poll() is None
        assert time.monotonic() < until, "no texts in four minutes"
        time.sleep(0.02)
    process.kill()
    assert process.wait(60) < 0
    is_killed = True
    held, seen = rows_of(folder), len(server.seen)
    assert 2 <= len(set(held)) == len(held) <= 4
    assert main(words) == 0
    rows = rows_of(folder)
    assert set(held) < set(rows)
    assert len(set(rows)) == len(rows) == 8
    assert len(read(folder).generations) == 8
    assert len(server.seen) < seen + 8, "what was there is not asked for again"


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["harness", "server"])
def test_a_loop_in_which_something_is_killed_is_sent_again_as_a_whole(victim, llamacpp_words, tmp_path):
    """The second loop takes some three seconds, and the kill comes when it has had answers for one."""
    note, folder = tmp_path / "pids", tmp_path / "results" / "tiny-gsm8k-tiny"
    words = [word for word in llamacpp_words if word != "timing=off"]
    words += ["timing.rate=[40,5]", "timing.requests=16", "timing.examples=2", "engine.slots=4", "report=off"]
    words += ["engine.retries=1", "engine.wait_s=0.01", "engine.grace_s=0.2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "STANDIN_CHILD": str(note)}
    command = [sys.executable, "-m", "sdbench", *words]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while not list(folder.glob("records/open_loads-*")):
        assert process.poll() is None
        assert time.monotonic() < until, "no loop was whole in four minutes"
        time.sleep(0.02)
    time.sleep(1)
    pids = noted(note)
    os.kill(process.pid if victim == "harness" else pids[0], signal.SIGKILL)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == (-signal.SIGKILL if victim == "harness" else 1)
    if victim == "server":
        assert "ended with code 137 (SIGKILL)" in message
        assert "run the same command again to continue" in message
    assert gone(pids)
    held = read(folder).open_loads
    assert held["rate"].tolist() == [40] * 16, "the other loop, with the answers that it had, was not recorded"
    assert main(words) == 0
    frame = read(folder).open_loads
    assert frame.groupby(["cell", "rate"]).size().tolist() == [16] * 4
    assert frame["failure"].eq("").all()
    assert frame["pass_id"].nunique() == 1
    assert len(held.merge(frame, on=["cell", "rate", "sent_s", "last_token_s"])) == 16, "what was whole was kept"


@pytest.fixture
def refused(served_words, tmp_path, capsys):
    """The sentence of a command that ends with code 2 before a text is decoded."""

    def run(*words: str, **options: object) -> str:
        capsys.readouterr()
        assert main([*served_words(tmp_path / "results", **options), *words]) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sdbench: ")]
        sentences = [line for line in lines if "left out" not in line and " examples, to " not in line]
        assert len(sentences) == 1, lines
        assert not list((tmp_path / "results").rglob("generations-*"))
        return sentences[0]

    return run


def test_a_server_without_speculation(refused, llamacpp):
    assert "(version b11434-515e85511) counts no drafts: it does not speculate" in refused(
        *engine_words(llamacpp(num_draft=0))
    )


def test_a_server_of_another_draft_length(refused, llamacpp):
    sentence = refused(*engine_words(llamacpp(num_draft=5)))
    assert "drafts 5 tokens a step: write num_draft=5, or start it with spec_draft_n_max=3" in sentence


def test_a_running_server_with_a_p_min(refused, llamacpp):
    """Its acceptance was stored with the key of a server without one."""
    server = llamacpp(lambda body: Text([5] * 8, [3, 1, 1], [3, 1, 3]))
    assert "ends some drafts before num_draft=3 tokens" in refused(*engine_words(server))


def test_a_slot_that_is_too_short_for_an_answer(refused, llamacpp):
    sentence = refused(*engine_words(llamacpp(context=40)))
    assert "takes texts of 40 tokens, and this run needs" in sentence
    assert "(ctx_size, which the slots share), or lower max_new_tokens" in sentence


def test_a_server_that_wants_a_key_for_everything_but_the_list_of_models(refused, llamacpp):
    assert "wants a key: engine.headers.Authorization=" in refused(*engine_words(llamacpp(api_key="sesame")))


URL = "engine.url=http://127.0.0.1:9"
HTTP = ("engine=http", "engine.dialect=llamacpp", URL)


@pytest.mark.parametrize(
    ("words", "options", "sentence"),
    [
        (
            HTTP,
            {"verifier": "ensemble", "w": 0.5},
            "verifier=ensemble is not a rule that this server has (choices: lossless)",
        ),
        (HTTP, {"verifier": "block"}, "verifier=block is not a rule that this server has"),
        ((*HTTP, "engine.plugin=true"), {}, "engine.plugin=true is for vLLM"),
        (
            ("engine=http", "engine.dialect=lamacpp", URL),
            {},
            "engine.dialect=lamacpp is not a known server (did you mean",
        ),
        (("engine=llamacpp", "engine.binary=/no/such"), {}, "engine.binary=/no/such is not a program"),
        (("engine=llamacpp", "engine.binary=/bin/true"), {}, "engine.binary=/bin/true prints no version"),
        (
            ("engine=llamacpp", URL),
            {},
            "engine.url is an option of engine=http: engine=llamacpp starts its servers itself",
        ),
        (("engine=llamacpp", "engine.slots=0"), {}, "engine.slots must be a whole number"),
        (
            ("engine=llamacpp", "engine.args.parallel=2"),
            {},
            "sdbench sets engine.args.parallel itself, from engine.slots",
        ),
        (
            ("engine=llamacpp", "engine.args.api_key=sesame"),
            {},
            "engine.args.api_key would be shown by records, page and tracker: set LLAMA_API_KEY in the shell",
        ),
        (
            ("engine=llamacpp", "+engine.args.draft-max=2"),
            {},
            "sdbench sets engine.args.draft-max itself, from num_draft=",
        ),
        (
            ("engine=llamacpp", "engine.args.spec_draft_p_min=0.75"),
            {},
            "engine.args.spec_draft_p_min is an option of drafting: write engine.speculative.spec_draft_p_min",
        ),
        (
            ("engine=llamacpp", "+engine.args.draft-p-min=0.75"),
            {},
            "engine.args.draft-p-min is an option of drafting: write engine.speculative.spec_draft_p_min",
        ),
        (
            ("engine=llamacpp", "engine.speculative.draft_p_min=0.75"),
            {},
            "engine.speculative.draft_p_min is another way to write engine.speculative.spec_draft_p_min",
        ),
        (
            ("engine=llamacpp", "+engine.speculative.spec_draft_n_max=2"),
            {},
            "sdbench sets engine.speculative.spec_draft_n_max itself, from num_draft=",
        ),
        (
            ("engine=llamacpp", "engine.request.speculative.n_max=2"),
            {},
            "the server ignores engine.request.speculative: remove it, and set options of drafting when the server starts",
        ),
        (
            ("engine=llamacpp", "engine.request={speculative.p_min: 0.9}"),
            {},
            "the server ignores engine.request.speculative.p_min",
        ),
        (("engine=llamacpp", "engine.binary=3"), {}, "engine.binary must be a text, got 3"),
        (("engine=llamacpp", "engine.args.rope_scale=inf"), {}, "engine.args.rope_scale must be finite, got inf"),
        (("engine=llamacpp", "engine.env.GGML_DEBUG=true"), {}, "engine.env.GGML_DEBUG must be a text or a number"),
        (("engine=http", URL, "engine.request=abc"), {}, "engine.request must be options by name"),
        (("engine=http", URL, "engine.headers=abc"), {}, "engine.headers must be options by name"),
        (("engine=vllm", "engine.python=3.11"), {}, "engine.python must be a text, got 3.11"),
    ],
    ids=str,
)
def test_bad_input_is_a_sentence(words, options, sentence, refused):
    assert sentence in refused(*words, **options)


def test_no_binary_on_path(refused, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "llama-server is not on PATH: give engine.binary=PATH" in refused("engine=llamacpp")


def test_models_that_are_no_gguf_files(refused, llama_binary):
    assert "engine=llamacpp loads .gguf files, and model.target=" in refused(
        "engine=llamacpp", f"engine.binary={llama_binary}"
    )


@pytest.mark.slow
def test_one_server_for_each_setting_with_its_command_line_in_the_provenance(llamacpp_words, gguf_pair, tmp_path):
    ends = [f"engine.speculative.spec_draft_{name}" for name in ("p_min=0.5", "n_min=2")]
    assert main([*llamacpp_words, "engine.args.threads=1", "engine.at_once=3", "engine.slots=2", *ends]) == 0
    results = read(tmp_path / "results" / "tiny-gsm8k-tiny")
    assert set(results.cells["verifier"]) == {"lossless", "target", "draft"}
    assert len(results.generations) == 6
    (entry,) = results.provenance.values()
    commands = {facts["setting"].split(" ")[0]: " ".join(facts["command"]) for facts in entry["servers"]}
    assert set(commands) == {"num_draft=3", "target", "draft"}
    drafting = f"--spec-draft-model {gguf_pair['draft']} --spec-draft-n-max 3 --spec-type draft-simple"
    assert drafting in commands["num_draft=3"]
    assert commands["num_draft=3"].endswith("--spec-draft-p-min 0.5 --spec-draft-n-min 2")
    assert f"--model {gguf_pair['draft']}" in commands["draft"]
    assert not any("--spec" in commands[role] for role in ("target", "draft"))
    assert all("--parallel 2 --ctx-size" in command and "--threads 1" in command for command in commands.values())
    assert (entry["servers"][0]["installed"]["version"], entry["servers"][0]["counts"]) == ("b11434", "steps")


def test_texts_of_another_build_in_the_same_folder_are_a_warning(llamacpp_words, llama_binary, tmp_path, capsys):
    """Texts of two builds stand in one row, and nothing said so."""
    assert main(llamacpp_words) == 0
    assert main([*llamacpp_words, "n=3"]) == 0
    assert "were written by" not in capsys.readouterr().err
    other = tmp_path / "other-llama-server"
    other.write_text(llama_binary.read_text())
    other.chmod(0o755)
    assert main([*llamacpp_words, "n=4", f"engine.binary={other}"]) == 0
    warning = capsys.readouterr().err
    assert f"were written by b11434 515e85511 {llama_binary}, and this server is b11434 515e85511 {other}" in warning


@pytest.mark.slow
def test_a_p_min_that_leaves_no_draft_is_measured_with_a_warning(llamacpp_words, tmp_path, capsys, monkeypatch):
    """Every token is then the target's; a server without a p-min that drafts nothing is refused."""
    monkeypatch.setenv("STANDIN_DRAFTS", "0")
    assert main(llamacpp_words) == 2
    assert "it does not speculate, or was started without" in capsys.readouterr().err
    assert main([*llamacpp_words, "engine.speculative.spec_draft_p_min=0.99"]) == 0
    assert "drafts nothing in its first 8 tokens: spec_draft_p_min" in capsys.readouterr().err
    frame = read(tmp_path / "results" / "tiny-gsm8k-tiny").generations
    lossless = frame[frame["verifier"] == "lossless"]
    assert len(lossless) == 2
    assert lossless[["drafted", "examined", "accepted"]].eq(0).all().all()
    assert lossless["bonus"].eq(lossless["tokens"]).all()


@pytest.mark.slow
def test_a_draft_of_another_vocabulary_a_missing_file_and_an_argument_that_it_does_not_know(
    llamacpp_words, gguf_pair, capsys
):
    def sentence(*words: str) -> str:
        keys = {word.partition("=")[0] for word in words}
        kept = [word for word in llamacpp_words if word.partition("=")[0] not in keys]
        assert main([*kept, *words]) == 2
        return capsys.readouterr().err

    for words, reason in (
        (f"model.draft={gguf_pair['other']}", "have different tokenizers"),
        ("model.draft=/no/such.gguf", "/no/such.gguf does not exist"),
    ):
        lines = sentence(words).splitlines()
        (line,) = (line for line in lines if not line.endswith("for the first time; it is kept"))
        assert line.startswith("sdbench: ")
        assert reason in line
    refusal = sentence("engine.args.refuse_to_start=true")
    assert "ended with code 1 before it was ready" in refusal
    assert "invalid argument: --refuse-to-start" in refusal
