"""Our open loop beside `vllm bench serve`: the same fields, of the same requests at the same times, against stand-ins of both."""

import json

import pytest

from scripts import bench_vllm_load
from sdbench.engines.served.open_loop import SentRequest


def test_fields_are_those_of_their_definitions():
    """Two answers and a failure: seconds count from the sending, and a failure is in no latency."""
    sent = [
        SentRequest(0, 1.0, 1.5, 3.5, 1, 0.0, tokens=5),
        SentRequest(1, 2.0, 3.0, 3.0, 2, 0.0, tokens=1),
        SentRequest(2, 2.5, float("nan"), float("nan"), 3, 0.0, failure="HTTP 429"),
    ]
    fields = bench_vllm_load.fields_of(sent)
    assert (fields["completed"], fields["total_output_tokens"]) == (2, 6)
    assert fields["request_throughput"] == pytest.approx(2 / 2.5)
    assert fields["output_throughput"] == pytest.approx(6 / 2.5)
    assert (fields["mean_ttft_ms"], fields["p50_ttft_ms"]) == pytest.approx((750, 750))
    assert fields["mean_e2el_ms"] == pytest.approx(1750)
    assert fields["mean_tpot_ms"] == fields["p99_tpot_ms"] == pytest.approx(500), "one token has no time between tokens"


def test_both_get_the_same_requests_and_the_page_has_every_field(vllm_python, tmp_path, capsys):
    words = [f"python={vllm_python}", f"out={tmp_path}", "rate=50", "n=8", "repeats=1"]
    assert bench_vllm_load.main(words) in (0, 1), "a busy machine decides about seconds"
    tree = json.loads((tmp_path / "vllm_load.json").read_text())
    (turn,) = tree["turns"]
    assert set(turn) == set(bench_vllm_load.FIELDS)
    assert turn["completed"] == [8, 8]
    assert turn["total_output_tokens"][0] == turn["total_output_tokens"][1] > 8
    assert all(value > 0 for pair in turn.values() for value in pair)
    page = (tmp_path / "vllm_load.md").read_text()
    assert page in capsys.readouterr().out
    assert all(f"| {name} |" in page for name in bench_vllm_load.FIELDS)
    assert "| completed | 8 | 8 | 1.000 | 1.000 to 1.000 | yes |" in page


def test_two_per_cent_by_the_median():
    assert bench_vllm_load.is_within([0.9, 1.019, 1.02])
    assert not bench_vllm_load.is_within([1.0, 1.03, 1.03])


def test_without_an_interpreter(capsys):
    with pytest.raises(SystemExit) as ended:
        bench_vllm_load.main(["rate=1"])
    assert ended.value.code == 2
    assert "python names no interpreter" in capsys.readouterr().err
