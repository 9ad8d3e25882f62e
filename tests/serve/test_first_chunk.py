"""Tokens of the first chunk of an answer came at the end of the prefill, so no rate of decoding counts them."""

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sdbench.engines.latency import LatencyPlan
from sdbench.engines.served.timing import Ask, LoadBlock, TimedRequest, _timing, loads
from sdbench.metrics.gain import Passes
from sdbench.metrics.load import load_table
from sdbench.metrics.speed import speeds
from sdbench.records import Results, Store, read
from sdbench.serve.answer import Answer
from sdbench.serve.dialect import SECONDS
from tests.records.synthetic import cell

TARGET, LOSSLESS = (cell("micro", "gsm8k-tiny", name, temperature=0.0) for name in ("target", "lossless"))
PREFILL_S, TOKEN_S = 0.05, 0.01


def request_of(number: int, sizes: list[int]) -> TimedRequest:
    """An answer in chunks of so many tokens: the first after the prefill, then ten milliseconds a token."""
    chunks = tuple((PREFILL_S + TOKEN_S * sum(sizes[1 : end + 1]), size) for end, size in enumerate(sizes))
    server_s = dict.fromkeys(SECONDS, math.nan)
    answer = Answer(tuple(range(sum(sizes))), "", True, None, None, chunks, server_s, started_at=float(number))
    return TimedRequest(Ask(f"e{number}", 0), answer, float(number), sum(sizes), len(sizes))


@pytest.fixture
def timed(tmp_path):
    """Time answers of these chunks for each cell, and read the records."""

    def make(*answers: tuple[list[int], list[int]]) -> Results:
        plan = LatencyPlan("p", "machine", (), ())
        with Store.open(tmp_path, config={}) as store:
            store.add_cells([TARGET, LOSSLESS])
            for setting, sizes in zip((TARGET, LOSSLESS), zip(*answers, strict=True), strict=True):
                block = LoadBlock(setting.key, 0, 1)
                requests = [request_of(number, each) for number, each in enumerate(sizes)]
                store.append([_timing(block, request, plan) for request in requests])
                store.append(loads(block, requests, plan))
        return read(tmp_path)

    return make


def rates_of(results: Results) -> list[float]:
    """Tokens per second of both cells, then the speed-ups of the second over the first, from timings and from loads."""
    by_cell, table = speeds(results.timings), load_table(results.loads).set_index("cell")
    names = ("speedup", "speedup_median")
    ratio = Passes.of(results.timings).ratio(LOSSLESS.key, TARGET.key)
    assert ratio is not None
    return [
        *(by_cell[setting.key]["tokens_per_s"].value for setting in (TARGET, LOSSLESS)),
        *(table.at[setting.key, "tokens_per_s_user"] for setting in (TARGET, LOSSLESS)),
        *(by_cell[LOSSLESS.key][name].value for name in names),
        table.at[LOSSLESS.key, "speedup_user"],
        ratio.value,
    ]


EQUAL = [100.0] * 4 + [1.0] * 4


@pytest.mark.parametrize(
    "answers",
    [
        [([1] * 6, [1] * 3)] * 3,
        [([1] * 6, [2, 1, 3])] * 3,
        [*[([1] * 6, [1] * 3)] * 3, ([1], [1]), ([1], [2])],
    ],
)
def test_answers_of_one_pace_are_equally_fast_whatever_their_lengths(answers, timed):
    """Shorter ones seemed faster: 3 tokens in 2 steps of decoding against 6 in 5."""
    assert rates_of(timed(*answers)) == pytest.approx(EQUAL)


def test_all_tokens_count_from_end_to_end(timed):
    speedup = speeds(timed(*[([1] * 6, [1] * 3)] * 3).timings)[LOSSLESS.key]["speedup_end_to_end"]
    assert speedup.value == pytest.approx(3 / (PREFILL_S + 2 * TOKEN_S) / (6 / (PREFILL_S + 5 * TOKEN_S)))


def test_records_from_before_the_column_read_as_before(timed, tmp_path: Path):
    timed(*[([1] * 6, [1] * 3)] * 3)
    parts = [part for kind in ("timings", "loads") for part in (tmp_path / "records").glob(f"{kind}-*.parquet")]
    for part in parts:
        pq.write_table(pq.read_table(part).drop_columns(["first_tokens"]), part)
    results = read(tmp_path)
    assert results.timings["first_tokens"].tolist() == results.loads["first_tokens"].tolist() == [0] * 6
    speedup = 150 / 120
    assert rates_of(results) == pytest.approx([120, 150, 120, 150, *[speedup] * 4])
