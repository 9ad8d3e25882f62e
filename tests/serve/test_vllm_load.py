"""Our open loop beside `vllm bench serve`: the same fields, of the same requests at the same times, against stand-ins of both."""

import json
import math
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import bench_vllm_load
from sdbench import tasks
from sdbench.engines.served import open_loop
from sdbench.engines.served.open_loop import SentRequest

ROOT = Path(__file__).parents[2]


def test_fields_are_those_of_their_definitions():
    """Two answers and a failure: seconds count from the sending, and a failure is in no latency."""
    sent = [
        SentRequest(0, 1.0, 1.5, 3.5, 1, 0.0, tokens=5, chunks_s=(1.5, 1.75, 2.5, 3.5)),
        SentRequest(1, 2.0, 3.0, 3.0, 2, 0.0, tokens=1, chunks_s=(3.0,)),
        SentRequest(2, 2.5, float("nan"), float("nan"), 3, 0.0, failure="HTTP 429"),
    ]
    fields = bench_vllm_load.fields_of(sent, [70, 30, 999], {"ttft": 600, "tpot": 500})
    assert tuple(fields) == bench_vllm_load.FIELDS
    assert (fields["completed"], fields["failed"], fields["duration"]) == (2, 1, 2.5)
    assert (fields["total_input_tokens"], fields["total_output_tokens"]) == (100, 6)
    rates = ("request_throughput", "input_throughput", "output_throughput", "total_token_throughput", "request_goodput")
    assert [2.5 * fields[name] for name in rates] == pytest.approx([2, 100, 6, 106, 1]), (
        "one is slow to its first token"
    )
    assert (fields["mean_ttft_ms"], fields["p50_ttft_ms"]) == pytest.approx((750, 750))
    assert fields["mean_e2el_ms"] == pytest.approx(1750)
    assert fields["mean_tpot_ms"] == fields["p99_tpot_ms"] == pytest.approx(500), "one token has no time between tokens"
    assert [fields[f"{kind}_itl_ms"] for kind in ("mean", "p50")] == pytest.approx([2000 / 3, 750])
    assert fields["max_concurrent_requests"] == 2
    assert fields["max_output_tokens_per_s"] == 2, "chunks at .5 and .75 s, at 1.5 s, at 2 and at 2.5 s"
    good = [bench_vllm_load.fields_of(sent, [70, 30, 999], bounds)["request_goodput"] for bounds in BOUNDS]
    assert [2.5 * rate for rate in good] == pytest.approx([2, 1, 0]), "an answer of one token keeps any tpot"


BOUNDS = ({"ttft": 1000, "tpot": 500}, {"ttft": 1000, "tpot": 499}, {"ttft": 400, "tpot": 900})


def test_requests_of_the_other_client_are_read_as_our_own():
    """Its results have the time of a sending by its clock, that of the first chunk from there, and the times between chunks."""
    detailed = {
        "start_times": [101.0, 100.0],
        "ttfts": [0.5, 1.0],
        "itls": [[0.25, 0.75], []],
        "output_lens": [5, 1],
    }
    first, second = bench_vllm_load.requests_of(detailed)
    assert (first.sent_s, first.first_token_s, first.last_token_s, first.tokens) == (1.0, 1.5, 2.5, 5)
    assert (first.chunks_s, second.chunks_s) == ((1.5, 1.75, 2.5), (1.0,))
    assert (second.sent_s, second.first_token_s, second.last_token_s, second.tokens) == (0.0, 1.0, 1.0, 1)


def test_chunks_come_with_the_answer():
    answer = SimpleNamespace(chunks=((0.5, 1), (0.75, 3)), num_tokens=4, server_s={})
    sent = SentRequest.of_answer(0, 10.0, 1, 0.0, answer)
    assert (sent.chunks_s, sent.first_token_s, sent.last_token_s) == ((10.5, 10.75), 10.5, 10.75)
    assert sent.gaps_s == (0.25,)


def test_gaps_are_of_whole_microseconds_and_an_answer_of_one_chunk_has_none():
    def gaps_of(*times: float) -> tuple[float, ...] | None:
        answer = SimpleNamespace(chunks=tuple((when, 2) for when in times), num_tokens=2 * len(times), server_s={})
        return SentRequest.of_answer(0, 10.0, 1, 0.0, answer).gaps_s

    assert gaps_of(0.5, 0.5123456789, 0.6) == (0.012346, 0.087654)
    assert gaps_of(0.5) == ()
    assert gaps_of() is None, "it failed"


def test_an_answer_without_a_token_is_a_failure_and_no_fast_answer():
    nothing = SentRequest.of_answer(0, 10.0, 1, 0.0, SimpleNamespace(chunks=(), num_tokens=0, server_s={}))
    assert (nothing.failure, nothing.tokens, nothing.chunks_s) == ("it sent no token", 0, ())
    assert math.isnan(nothing.first_token_s)
    assert math.isnan(nothing.last_token_s)
    answered = SentRequest(1, 11.0, 11.5, 12.0, 1, 0.0, tokens=2, chunks_s=(11.5, 12.0))
    fields = bench_vllm_load.fields_of([nothing, answered], [7, 7], {"ttft": 1000})
    assert (fields["completed"], fields["failed"], 2 * fields["request_goodput"]) == (1, 1, 1)


@pytest.mark.slow
def test_both_get_the_same_requests_and_the_page_has_every_field(vllm_python, tmp_path, capsys, monkeypatch):
    """The exit status is that of the numbers: which it is on a busy machine is no property of the code."""
    bodies, body_of = [], open_loop.body_of
    monkeypatch.setattr(open_loop, "body_of", lambda *given: bodies.append(body_of(*given)) or bodies[-1])
    words = [f"python={vllm_python}", f"out={tmp_path}", "rate=50", "n=8", "repeats=1", "ttft=9000"]
    code = bench_vllm_load.main(words)
    examples = tasks.load("gsm8k-tiny", n=8).examples()
    assert [body["prompt"] for body in bodies] == 2 * [example.prompt.text for example in examples]
    tree = json.loads((tmp_path / "vllm_load.json").read_text())
    (turn,) = tree["turns"]
    apart = [abs(mine - theirs) > 0.02 * theirs for ours, theirs, again in turn.values() for mine in (ours, again)]
    assert code == int(any(apart))
    for name in (
        "completed",
        "total_input_tokens",
        "total_output_tokens",
        "mean_ttft_ms",
        "mean_itl_ms",
        "mean_e2el_ms",
    ):
        _, theirs, again = turn[name]
        assert again == pytest.approx(theirs, rel=1e-6), f"{name} of the same requests"
    assert set(turn) == set(bench_vllm_load.FIELDS)
    assert (turn["completed"], turn["failed"]) == ([8] * 3, [0] * 3)
    assert turn["total_output_tokens"][0] == turn["total_output_tokens"][1] > 8
    assert turn["total_input_tokens"][0] > 8
    assert all(value > 0 for name, pair in turn.items() for value in pair if name != "failed")
    page = (tmp_path / "vllm_load.md").read_text()
    assert page in capsys.readouterr().out
    assert all(f"| {name} |" in page for name in bench_vllm_load.FIELDS)
    assert "| completed | 8 | 8 | 1.000 | 1.000 to 1.000 | yes | 1.0000 | yes |" in page
    assert "| failed | 0 | 0 | 1.000 | 1.000 to 1.000 | yes | 1.0000 | yes |" in page
    assert "Goodput: ttft within 9000 ms, tpot within 8 ms. Both clients sent texts." in page


def test_the_exit_status_is_0_if_all_is_within_two_per_cent_and_1_otherwise(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_vllm_load, "interpreter", lambda options: "python")
    monkeypatch.setattr(bench_vllm_load, "look", lambda program, name: {"version": "0.32.0"})
    for ours, again, code in ((101.0, 99.0, 0), (103.0, 100.0, 1), (100.0, 97.0, 1)):
        turn = dict.fromkeys(bench_vllm_load.FIELDS, (100.0, 100.0, 100.0))
        turn |= {"mean_itl_ms": (ours, 100.0, again), "failed": (0, 0, 0)}
        monkeypatch.setattr(bench_vllm_load, "compare", lambda *given, turn=turn: [turn])
        assert bench_vllm_load.main([f"out={tmp_path}"]) == code
    assert "400 requests at 2 requests/s" in capsys.readouterr().out


def test_what_only_one_side_counts_is_not_equal():
    turns = [dict.fromkeys(bench_vllm_load.FIELDS, (1.0, 1.0, 1.0)) | {"failed": (2, 0, 3)}]
    assert bench_vllm_load.ratios_of(turns)["failed"] == [float("inf")]
    assert bench_vllm_load.ratios_of(turns, side=2)["failed"] == [float("inf")]
    assert not bench_vllm_load.is_within([float("inf")])


def test_two_per_cent_by_the_median():
    assert bench_vllm_load.is_within([0.9, 1.019, 1.02])
    assert not bench_vllm_load.is_within([1.0, 1.03, 1.03])


@pytest.mark.results
def test_what_docs_engines_says_of_the_committed_comparison():
    tree = json.loads((ROOT / "results" / "benchmarks" / "vllm_load.json").read_text())
    assert (ROOT / "results" / "benchmarks" / "vllm_load.md").read_text() == bench_vllm_load.page(tree)
    is_of_ids = tree.get("prompts") != "texts"
    assert ("but it sent the ids of the prompts" in (ROOT / "docs/engines.md").read_text()) == is_of_ids
    assert ("but our client sent ids" in (ROOT / "results/README.md").read_text()) == is_of_ids
    turns = tree["turns"]
    assert (len(turns), len(bench_vllm_load.FIELDS), turns[0]["completed"]) == (3, 28, [120, 120, 120])
    same = {name: statistics.median(each) for name, each in bench_vllm_load.ratios_of(turns, side=2).items()}
    assert max(abs(ratio - 1) for ratio in same.values()) < 0.006
    own = {name: 100 * (statistics.median(each) - 1) for name, each in bench_vllm_load.ratios_of(turns).items()}
    apart = {name for name in own if abs(own[name]) > 2}
    first = [f"{kind}_ttft_ms" for kind in ("mean", "p50", "p90", "p99")]
    last = [f"p99_{kind}_ms" for kind in ("tpot", "itl", "e2el")]
    assert apart == {"request_goodput", *first, *last}
    assert len(own) - len(apart) == 20
    sooner = [-own[name] for name in first]
    assert (round(min(sooner), 1), round(max(sooner), 1)) == (3.9, 6.3)
    medians = [[statistics.median(turn[name][side] for turn in turns) for name in first] for side in (0, 1)]
    earlier = [theirs - ours for ours, theirs in zip(*medians, strict=True)]
    assert (round(min(earlier)), round(max(earlier))) == (0, 3)
    assert (round(min(medians[1])), round(max(medians[1]))) == (31, 52)
    assert round(own["request_goodput"], 1) == -3.4
    assert [round(-own[name]) for name in last] == [8, 6, 11]


def test_without_an_interpreter(capsys):
    with pytest.raises(SystemExit) as ended:
        bench_vllm_load.main(["rate=1"])
    assert ended.value.code == 2
    assert "python names no interpreter" in capsys.readouterr().err
