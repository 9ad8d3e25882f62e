"""Requests at a rate against a stand-in: sent at their times, recorded one by one, completed by the same command."""

import itertools
import json
import os
import resource
import threading
import time

import pytest
from standin import Text

from sdbench.cli import main
from sdbench.metrics.load import load_table
from sdbench.metrics.summary import summarise
from sdbench.records import read
from sdbench.report.figures.arrivals import goodput, open_load
from sdbench.report.frames import FRAMES
from sdbench.report.sweep import sweeps_of

pytestmark = pytest.mark.usefixtures("no_figures")
NAME = "micro-gsm8k-tiny"


@pytest.fixture
def sent_at(served_words, tmp_path):
    """Run the latency pass of a lossless cell at rates, against a server; return the exit code."""

    def run(server, *words: str) -> int:
        plain = [word for word in served_words(tmp_path, n=2) if word != "timing=off"]
        options = {"timing.examples": "2", "timing.requests": "12", "report": "off", "engine.wait_s": "0.01"}
        options |= dict(word.split("=", 1) for word in words)
        given = [f"{key}={value}" for key, value in options.items()]
        return main([*plain, "engine=http", f"engine.url={server.url}", *given])

    return run


def busy(num_tokens: int, service_s: float):
    """A server with one place: an answer takes `service_s` after all that came before."""
    lock = threading.Lock()

    def answer(body) -> Text:
        with lock:
            time.sleep(service_s)
        return Text([5] * num_tokens, [1], [3])

    return answer


def test_requests_are_sent_at_their_times_and_nobody_waits_for_an_answer(sent_at, standin, tmp_path, capsys):
    """The server holds its answers until eight requests are under way."""

    def hold(body) -> Text:
        end = time.monotonic() + 30
        while server.most_under_way < 8 and is_of_loop() and time.monotonic() < end:
            time.sleep(0.001)
        return Text([5] * 3, [1], [3])

    def is_of_loop() -> bool:
        return sum("cache_salt" in body for body in server.seen) > 2 + 1  # two looks and a warm-up

    server = standin(hold)
    assert sent_at(server, "timing.rate=[400,800]", "timing.slo={ttft: 10, tpot: 10s}") == 0
    frame = read(tmp_path / NAME).open_loads
    assert frame.groupby("rate").size().to_dict() == {400: 12, 800: 12}
    assert (frame["sent_s"] >= frame["arrival_s"]).all()
    assert (frame["first_token_s"] > frame["sent_s"]).all()
    assert (frame["last_token_s"] >= frame["first_token_s"]).all()
    assert (frame["tokens"] == 3).all()
    assert (frame["failure"] == "").all()
    gaps = [gap for (gap,) in frame["gaps_s"]]  # a token, then two at once: a gap in an answer
    assert gaps == pytest.approx(frame["last_token_s"] - frame["first_token_s"], abs=1e-6)
    assert frame["under_way"].max() > 6
    assert frame["example"].tolist()[:2] * 12 == frame["example"].tolist()
    assert frame["server_queue_s"].notna().all()
    bodies = [body for body in server.seen if "cache_salt" in body]
    assert len({body["cache_salt"] for body in bodies}) == len(bodies) == 2 + 1 + 24
    output = capsys.readouterr().out
    assert "lossless K=3 under load: " in output
    assert "goodput (ttft within 10 s, tpot within 10 s) is highest at" in output


@pytest.mark.slow
def test_another_rate_is_added_to_the_pass_and_the_same_command_sends_nothing(sent_at, standin, tmp_path):
    server = standin()
    assert sent_at(server, "timing.rate=400") == 0
    sent = len(server.seen)
    assert sent_at(server, "timing.rate=400", "timing.slo={e2el: 1}") == 0
    assert len(server.seen) == sent, "bounds decide no second"
    assert sent_at(server, "timing.rate=[400,800]") == 0
    assert len(server.seen) == sent + 2 + 12, "a look, a warm-up, and what was missing"
    assert sent_at(server, "timing.rate=[400,800]", "timing.requests=6") == 0
    frame = read(tmp_path / NAME).open_loads
    assert frame["pass_id"].nunique() == 1
    assert frame.groupby("schedule").size().tolist().count(6) == 2


@pytest.mark.slow
def test_a_pass_that_was_cut_off_is_completed_by_the_same_command(sent_at, standin, tmp_path, capsys):
    server = standin()
    assert sent_at(server, "timing.rate=400") == 0
    server.faults = ["", "", *["500"] * 12]  # after a look and a warm-up, all of the second rate
    assert sent_at(server, "timing.rate=[400,800]") == 1
    assert "answered no request of the open loop; the last failure: " in capsys.readouterr().err
    assert set(read(tmp_path / NAME).open_loads["rate"]) == {400}
    assert not server.faults
    assert sent_at(server, "timing.rate=[400,800]") == 0
    frame = read(tmp_path / NAME).open_loads
    assert frame.groupby("rate").size().to_dict() == {400: 12, 800: 12}
    assert frame["pass_id"].nunique() == 1


@pytest.mark.slow
def test_failures_are_recorded_and_not_repeated(sent_at, standin, tmp_path):
    server = standin()
    assert sent_at(server, "timing.rate=400") == 0
    server.faults = ["", "", "429", "drop", "500", "truncate", "abort", "length"]
    assert sent_at(server, "timing.rate=[400,800]") == 0
    frame = read(tmp_path / NAME).open_loads
    failed = frame[frame["failure"] != ""]
    assert len(failed) == 6
    assert (failed["rate"] == 800).all()
    assert failed["tokens"].eq(0).all()
    assert failed["last_token_s"].isna().all()
    assert failed["gaps_s"].isna().all()
    assert frame.loc[frame["failure"] == "", "gaps_s"].map(len).gt(0).all()
    for reason in ("HTTP 429", "at 2 of 24 tokens with finish_reason=abort", "a limit lower than max_new_tokens"):
        assert failed["failure"].str.contains(reason).sum() == 1


def test_a_loop_whose_server_died_behind_a_gateway_is_sent_again(sent_at, standin, tmp_path, capsys):
    """It was recorded as one of a saturated server, and never sent again."""
    server = standin()
    server.faults = [""] * (1 + 2 + 1 + 2 + 6) + [
        "gone"
    ]  # a look, two texts, a warm-up, a closed loop, half the open one
    assert sent_at(server, "timing.rate=400") == 1
    assert "no longer lists its models at /v1/models (HTTP 502); the last failure: HTTP 502" in capsys.readouterr().err
    assert read(tmp_path / NAME).open_loads.empty
    server.is_gone = False
    assert sent_at(server, "timing.rate=400") == 0
    assert read(tmp_path / NAME).open_loads["failure"].tolist() == [""] * 12


def test_a_server_that_refused_a_crowd_is_not_taken_for_one_that_ended(sent_at, standin, tmp_path):
    """While it refused every request with HTTP 429, the loop was not recorded, and every rerun ended likewise."""
    server = standin()
    server.faults = [""] * (1 + 2 + 1 + 2 + 11) + ["crowded"]  # the last request of the loop
    assert sent_at(server, "timing.rate=400") == 0
    assert server.num_refused == 0
    failures = read(tmp_path / NAME).open_loads["failure"]
    assert failures[failures != ""].tolist() == ["HTTP 429"]


@pytest.mark.slow
def test_panels_of_quality_against_goodput_are_of_the_newest_pass(sent_at, standin, tmp_path):
    server = standin(context=4096)
    assert sent_at(server, "timing.rate=[400,500]", "timing.slo={e2el: 5s}") == 0
    server.context = 8192  # another start of it
    assert sent_at(server, "timing.rate=500", "timing.slo={e2el: 5s}") == 0
    results = read(tmp_path / NAME)
    assert results.open_loads["pass_id"].nunique() == 2
    (sweep,) = sweeps_of([results], [summarise(results)])
    figure = goodput(sweep)
    assert figure is not None
    assert len(figure.axes) == 1


@pytest.mark.slow
def test_a_trace_is_sent_and_drawn_beside_a_rate(sent_at, standin, tmp_path):
    (tmp_path / "trace").write_text("".join(json.dumps({"arrival_s": 5 + i / 500}) + "\n" for i in range(14)))
    assert sent_at(standin(), f"timing.trace={tmp_path}/trace", "timing.rate=400", "timing.slo={e2el: 5s}") == 0
    results = read(tmp_path / NAME)
    (sweep,) = sweeps_of([results], [summarise(results)])
    table = FRAMES["open_load"](sweep)
    assert table[["rate", "n", "verifier"]].to_numpy().tolist() == [[400, 12, "lossless"], [500, 14, "lossless"]]
    assert table[["itl_p50_s", "itl_p50_s_low", "itl_p50_s_high"]].notna().all().all()
    assert table["goodput"].gt(0).all()
    latency, quality = open_load(sweep), goodput(sweep)
    assert latency is not None
    assert quality is not None
    assert [axis.get_title() for axis in latency.axes] == [
        *("to the first token", "between tokens", "between chunks", "whole answer")
    ]
    assert [axis.get_title(loc="left") for axis in quality.axes] == ["400 requests/s", "500 requests/s"]


@pytest.mark.slow
def test_a_figure_counts_the_rates_that_it_does_not_draw(sent_at, standin, tmp_path):
    """Of nine committed rates six were drawn, below a caption that promised all."""
    rates = list(range(400, 480, 10))
    assert sent_at(standin(), f"timing.rate={rates}", "timing.requests=2", "timing.slo={e2el: 5s}") == 0
    results = read(tmp_path / NAME)
    (sweep,) = sweeps_of([results], [summarise(results)])
    figure = goodput(sweep)
    assert figure is not None
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert len(figure.axes) == 6
    assert "2 more panels not drawn" in texts


def test_a_server_with_one_place_is_saturated(sent_at, standin, tmp_path, capsys):
    """Forty requests arrive in 100 ms and take a second of one place: a delay of the sender's is small beside it."""
    assert sent_at(standin(busy(2, 0.025)), "timing.rate=400", "timing.requests=40") == 0
    assert "lossless K=3 under load: saturated at 400 requests/s, where it serves" in capsys.readouterr().out


@pytest.mark.slow
def test_a_ramp_has_a_row_for_each_of_its_rates(sent_at, standin, tmp_path, capsys):
    """At 10 requests a second a place is mostly free; at 400 forty of them take a second of it."""
    words = ("timing.ramp=[10,400]", "timing.requests=40")
    server = standin(busy(2, 0.025))
    assert sent_at(server, *words) == 0
    results = read(tmp_path / NAME)
    frame = results.open_loads
    assert frame["schedule"].nunique() == 1
    assert frame["rate"].tolist() == [10] * 40 + [400] * 40
    assert frame["arrival_s"].is_monotonic_increasing
    (sweep,) = sweeps_of([results], [summarise(results)])
    table = FRAMES["open_load"](sweep)
    assert table["rate"].tolist() == [10, 400]
    assert "saturated at 400 requests/s" in capsys.readouterr().out
    sent = len(server.seen)
    assert sent_at(server, *words) == 0
    assert len(server.seen) == sent


def test_open_loops_are_sent_in_the_order_of_their_options(sent_at, standin, tmp_path):
    words = ("timing.rate=[900,300,700,500]", "timing.ramp=[800,750,600]", "timing.requests=6", "timing.repeats=2")
    assert sent_at(standin(), *words) == 0
    results = read(tmp_path / NAME)
    frame = results.open_loads
    assert frame["loop"].nunique() == 5
    for _, part in frame.groupby("repeat"):
        begins = part.groupby("schedule")["started_at"].min().sort_values()
        rates = [part.loc[part["schedule"] == key, "rate"].unique().tolist() for key in begins.index]
        assert rates == [[900], [300], [700], [500], [800, 750, 600]]
    (sweep,) = sweeps_of([results], [summarise(results)])
    assert FRAMES["open_load"](sweep)["n"].tolist() == [12] * 7


def test_a_rate_of_two_loops_is_refused(sent_at, standin, tmp_path, capsys):
    """The table has one row for it, so that the other loop was measured and not shown."""
    (tmp_path / "trace").write_text("0\n0.5\n1\n")
    server = standin()
    for words in (("timing.rate=[1,2]", f"timing.trace={tmp_path}/trace"), ("timing.rate=2", "timing.ramp=[1,2]")):
        assert sent_at(server, *words) == 2
        assert "two loops of this run have 2 requests/s" in capsys.readouterr().err
    assert not server.seen


def test_an_answer_of_another_length_than_the_fixed_length_is_a_failure(sent_at, standin, tmp_path, capsys):
    """It was a good answer, and a short one comes sooner."""
    assert sent_at(standin(busy(3, 0.0)), "timing.rate=400", "timing.tokens=20") == 1
    assert "it sent 3 tokens instead of timing.tokens=20" in capsys.readouterr().err


def test_answers_of_a_fixed_length_and_a_cache_of_prompts_are_schedules_of_their_own(sent_at, standin, tmp_path):
    server = standin()
    assert sent_at(server, "timing.rate=400", "task.stop=[and]") == 0
    sent, usual = len(server.seen), read(tmp_path / NAME).open_loads
    assert usual["tokens"].max() < 20, "the task's own stop string"
    assert sent_at(server, "timing.rate=400", "task.stop=[and]", "timing.tokens=20", "timing.prefix_cache=true") == 0
    frame = read(tmp_path / NAME).open_loads
    fixed = frame[frame["schedule"] != usual["schedule"].iloc[0]]
    assert fixed["tokens"].tolist() == [20] * 12
    bodies = server.seen[sent:][-12:]
    assert {(body["max_tokens"], body["ignore_eos"], tuple(body["stop"])) for body in bodies} == {(20, True, ())}
    assert len({body["cache_salt"] for body in bodies}) == 1, "what the loop has sent before is cached"
    assert bodies[0]["cache_salt"] not in [body.get("cache_salt") for body in server.seen[:sent]]


LLAMACPP = "engine.dialect=llamacpp"


def test_llamacpp_gets_requests_at_their_times_too(sent_at, llamacpp, tmp_path, capsys):
    """It reports no queue: what a request waited is null, and latency and goodput are those of the client's clock."""
    server = llamacpp(lambda body: Text([5] * 3, [1], [3]))
    assert sent_at(server, LLAMACPP, "timing.rate=[400,800]", "timing.slo={ttft: 10, tpot: 10s}") == 0
    frame = read(tmp_path / NAME).open_loads
    assert frame.groupby("rate").size().to_dict() == {400: 12, 800: 12}
    assert (frame["arrival_s"] <= frame["sent_s"]).all()
    assert (frame["sent_s"] < frame["first_token_s"]).all()
    assert (frame["first_token_s"] <= frame["last_token_s"]).all()
    assert frame["tokens"].eq(3).all()
    assert frame["failure"].eq("").all()
    assert frame["server_queue_s"].isna().all()
    assert not frame["is_cached"].any()
    assert len([body for body in server.seen if not body["cache_prompt"]]) == len(server.seen) >= 24
    assert "goodput (ttft within 10 s, tpot within 10 s) is highest at" in capsys.readouterr().out


@pytest.mark.slow
def test_requests_that_are_lost_while_a_server_starts_again_are_failures(sent_at, llamacpp, tmp_path):
    count, is_due = itertools.count(1), threading.Event()

    def answer(body) -> Text:
        if body["max_tokens"] == 3 and next(count) == 6:
            is_due.set()
        return Text([5] * 3, [1], [3])

    def restart() -> None:
        if is_due.wait(120):
            server.__exit__()
            time.sleep(1.5)
            server.__enter__()

    server = llamacpp(answer)
    thread = threading.Thread(target=restart)
    thread.start()
    words = (LLAMACPP, "timing.rate=5", "timing.requests=24", "timing.tokens=3")
    assert sent_at(server, *words) == 0
    thread.join()
    frame = read(tmp_path / NAME).open_loads
    is_lost = frame["failure"] != ""
    assert len(frame) == 24
    assert 0 < is_lost.sum() < 18
    assert not is_lost.iloc[-1], "it answers again"
    assert frame.loc[is_lost, "tokens"].eq(0).all()
    assert frame.loc[is_lost, "failure"].str.contains("Cannot connect").any()
    seen = len(server.seen)
    assert sent_at(server, *words) == 0
    assert len(server.seen) == seen, "a failure is a result"


def test_ids_that_a_stream_leaves_out_are_not_asked_for_while_requests_arrive(sent_at, llamacpp, tmp_path):
    """The same request once more was load on the server, and an answer with another text then counted as a failure."""
    server = llamacpp(left_out=(1,))
    usual = server.maker

    def answer(body) -> Text:
        return Text([5 if body["stream"] else 6, 5, 5], [1], [3]) if body["max_tokens"] == 3 else usual(body)

    server.maker = answer
    assert sent_at(server, LLAMACPP, "timing.rate=400", "timing.tokens=3") == 0
    frame = read(tmp_path / NAME).open_loads
    assert frame["failure"].eq("").all()
    assert frame["tokens"].eq(3).all()
    assert [body["stream"] for body in server.seen if body["max_tokens"] == 3] == [True] * 12


def test_llamacpp_gives_answers_of_a_fixed_length_and_caches_the_prompts_of_a_loop(sent_at, llamacpp, tmp_path):
    server = llamacpp()
    assert sent_at(server, LLAMACPP, "timing.rate=400", "task.stop=[and]") == 0
    sent, usual = len(server.seen), read(tmp_path / NAME).open_loads
    assert usual["tokens"].max() < 20, "the task's own stop string"
    words = ("task.stop=[and]", "timing.tokens=20", "timing.prefix_cache=true")
    assert sent_at(server, LLAMACPP, "timing.rate=400", *words) == 0
    frame = read(tmp_path / NAME).open_loads
    fixed = frame[frame["schedule"] != usual["schedule"].iloc[0]]
    assert fixed["tokens"].tolist() == [20] * 12
    assert fixed["is_cached"].all()
    bodies = server.seen[sent:][-12:]
    given = {(body["max_tokens"], body["ignore_eos"], tuple(body["stop"]), body["cache_prompt"]) for body in bodies}
    assert given == {(20, True, (), True)}


@pytest.mark.slow
def test_first_token_times_of_prompts_that_may_be_cached_have_a_name_of_their_own(sent_at, standin, tmp_path, capsys):
    server, first = standin(), ["ttft_p50_s", "cached_ttft_p50_s"]

    def tables():
        (sweep,) = sweeps_of([results := read(tmp_path / NAME)], [summarise(results)])
        return sweep, FRAMES["open_load"](sweep)

    assert sent_at(server, "timing.rate=[200,400]") == 0
    _, table = tables()
    assert table[first].notna().to_numpy().tolist() == [[True, False]] * 2
    assert sent_at(server, "timing.rate=400", "timing.prefix_cache=true") == 0
    assert "may cache prompts" not in capsys.readouterr().err, "the closed loops read each prompt"
    sweep, table = tables()
    assert table[first].notna().to_numpy().tolist() == [[True, False], [False, True]]
    assert table["is_cached"].tolist() == [False, True]
    figure = open_load(sweep)
    assert figure is not None
    assert [axis.get_title() for axis in figure.axes][:2] == ["to the first token", "to the first token, cached"]
    assert not sweep.results.loads["is_cached"].any()

    assert sent_at(server, "timing.rate=400", "engine.request.cache_salt=mine") == 0
    assert "this server may cache prompts" in capsys.readouterr().err
    results = read(tmp_path / NAME)
    by_cell = [
        frame.groupby("cell")["is_cached"].unique().map(list).tolist() for frame in (results.loads, results.timings)
    ]
    assert sorted(by_cell[0]) == sorted(by_cell[1]) == [[False], [True]], "another cell: the salt is part of its key"
    names = ["first_token_s", "cached_first_token_s"]
    for frame in (load_table(results.loads), summarise(results)):
        assert sorted(frame[names].notna().to_numpy().tolist()) == [[False, True], [True, False]]


@pytest.mark.slow
def test_a_pass_with_cached_prompts_is_not_continued_without(sent_at, standin, tmp_path):
    server = standin()
    assert sent_at(server, "timing.rate=400", "engine.dialect.salt=null") == 0
    assert read(tmp_path / NAME).loads["is_cached"].all()
    assert sent_at(server, "timing.rate=[400,800]") == 0
    results = read(tmp_path / NAME)
    is_cached = results.open_loads.groupby("pass_id")["is_cached"].unique()
    assert is_cached.map(list).tolist() == [[True], [False]], "passes of one second are in their order, too"
    table = load_table(results.loads)
    assert table["first_token_s"].notna().all(), "of the newest pass"


def test_a_length_beyond_the_room_and_a_server_without_such_a_field(sent_at, standin, capsys):
    assert sent_at(standin(), "timing.rate=400", "timing.tokens=25") == 2
    assert "timing.tokens=25 must be at most max_new_tokens=24" in capsys.readouterr().err
    words = ("timing.rate=400", "timing.tokens=20", "engine.dialect.fixed_length=null")
    assert sent_at(standin(), *words) == 2
    assert "timing.tokens needs a server that decodes beyond the end of a text" in capsys.readouterr().err
    words = ("timing.rate=400", "timing.prefix_cache=true", "engine.dialect.salt=null")
    assert sent_at(standin(), *words) == 2
    assert "which this kind of server lacks: remove it" in capsys.readouterr().err


def test_a_batch_of_the_native_latency_pass_is_refused(sent_at, standin, capsys):
    """It was ignored, and the report said that it was the batch of the pass."""
    assert sent_at(standin(), "timing.rate=400", "timing.batch_size=2") == 2
    assert "timing.batch_size=2 needs engine=native; a server is timed with" in (error := capsys.readouterr().err)
    assert "engine.concurrency=[1,2]" in error


def test_more_requests_than_this_process_may_open_files_do_not_fail(sent_at, standin, tmp_path):
    """The server holds its answers until all are under way; each is two open files here, where the server is a thread."""
    before, count = resource.getrlimit(resource.RLIMIT_NOFILE), 120

    def hold(body) -> Text:
        end = time.monotonic() + 20
        while server.most_under_way < count and body["max_tokens"] == 3 and time.monotonic() < end:
            time.sleep(0.01)
        return Text([5] * 3, [1], [3])

    server = standin(hold)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 60, before[1]))
        assert sent_at(server, "timing.rate=10000", f"timing.requests={count}", "timing.tokens=3") == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    failures = read(tmp_path / NAME).open_loads["failure"]
    assert failures.tolist() == [""] * count
