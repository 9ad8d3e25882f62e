"""Percentiles, goodput and saturation of a queue whose service times are known. No clock is read."""

from heapq import heappop, heappush

import numpy as np
import pandas as pd
import pytest

from sdbench.metrics.load_sentences import sentences
from sdbench.metrics.open_load import BEHIND, open_load_table, served_share, with_latencies
from sdbench.prepare.arrivals import poisson_times

TTFT, TOKENS = 0.25, 11  # of the service time the first token takes a quarter


def queue(
    cell: str, rate: float, service_s: float, *, n: int = 100, servers: int = 1, seed: int | None = None, **more
) -> pd.DataFrame:
    """First come, first served: each request takes `service_s` of one of the servers, or with a seed that on average."""
    heap, rows, draws = [0.0] * servers, [], np.random.default_rng(seed)
    mean_s = service_s
    for number, arrival in enumerate(poisson_times(rate, n, seed or 0, 0)):
        service_s = mean_s if seed is None else draws.exponential(mean_s)
        begin = max(arrival, heappop(heap))
        heappush(heap, begin + service_s)
        rows.append(
            {
                "cell": cell,
                "verifier": cell,
                "num_draft": 3,
                "drafter": "model",
                "rate": rate,
                "repeat": 0,
                "request": number,
                "example": f"e{number}",
                "pass_id": "p",
                "schedule": f"s{rate}",
                "loop": "",
                "started_at": float(number),
                "under_way": 1,
                "failure": "",
                "is_cached": False,
                "arrival_s": arrival,
                "sent_s": arrival,
                "tokens": TOKENS,
                "server_queue_s": begin - arrival,
                "first_token_s": begin + TTFT * service_s,
                "last_token_s": begin + service_s,
                "gaps_s": None,
                **more,
            }
        )
    return pd.DataFrame(rows)


def named(*cells: str) -> pd.DataFrame:
    return pd.DataFrame({"label": list(cells), "verifier": list(cells)}, index=list(cells))


def row_of(frame: pd.DataFrame, slo=None) -> pd.Series:
    return open_load_table(frame, slo).iloc[0]


def test_percentiles_count_from_the_arrival_and_the_queue_is_apart():
    frame = queue("lossless", 2.0, 0.4)
    row = row_of(frame)
    answer = frame["last_token_s"] - frame["arrival_s"]
    for percent in (50, 90, 99):
        assert row[f"e2el_p{percent}_s"] == pytest.approx(np.quantile(answer, percent / 100))
        assert row[f"service_p{percent}_s"] == pytest.approx(0.4)
        assert row[f"tpot_p{percent}_s"] == pytest.approx(0.4 * 0.75 / (TOKENS - 1))
        assert row[f"queue_p{percent}_s"] == pytest.approx(np.quantile(answer - 0.4, percent / 100))
    assert row["e2el_p50_s_low"] <= row["e2el_p50_s"] <= row["e2el_p50_s_high"]
    assert np.isnan(row["e2el_p99_s_high"]), "100 requests do not bound a 99th percentile from above"
    assert row["n"] == 100


def with_gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """Answers of one chunk and more, with a seed."""
    draws = np.random.default_rng(3)
    gaps = [np.round(draws.gamma(2.0, 0.01, draws.integers(0, 12)), 6) for _ in range(len(frame))]
    return frame.assign(gaps_s=pd.Series(gaps, index=frame.index))


def test_percentiles_of_the_times_between_chunks_are_those_of_all_answers():
    frame = with_gaps(queue("lossless", 2.0, 0.4))
    assert frame["gaps_s"].map(len).eq(0).any(), "an answer of one chunk has no gap"
    row, gaps = row_of(frame), np.concatenate(frame["gaps_s"].tolist())
    for percent in (50, 90, 99):
        assert row[f"itl_p{percent}_s"] == np.percentile(gaps, percent)
        assert row[f"itl_p{percent}_s_low"] < row[f"itl_p{percent}_s"]
    assert row["itl_p50_s"] < row["itl_p50_s_high"]
    failed = failing(frame, [0]).assign(gaps_s=[None, *frame["gaps_s"][1:]])
    rest = np.concatenate(frame["gaps_s"].tolist()[1:])
    assert row_of(failed)["itl_p99_s"] == np.percentile(rest, 99), "failed requests are in no latency"


def test_records_without_times_between_chunks_give_no_percentile_of_them():
    """Nor does a load of which only a part has them, such as a pass that went on after an update."""
    old = queue("lossless", 2.0, 0.4)
    names = [f"itl_p{percent}_s{end}" for percent in (50, 90, 99) for end in ("", "_low", "_high")]
    assert row_of(old)[names].isna().all()
    new = with_gaps(old)
    assert row_of(new)["itl_p50_s"] > 0
    assert row_of(new.assign(gaps_s=[None, *new["gaps_s"][1:]]))[names].isna().all()
    single = new.assign(gaps_s=[[] for _ in range(len(new))])
    assert row_of(single)[names].isna().all(), "answers of one chunk"
    assert row_of(old)["tpot_p50_s"] == row_of(new)["tpot_p50_s"]


def test_the_first_token_of_a_prompt_that_may_be_cached_has_a_name_of_its_own():
    frame = queue("lossless", 2.0, 0.4)
    row, cached = row_of(frame), row_of(frame.assign(is_cached=True), {"ttft": 0.05})
    assert np.isnan(row["cached_ttft_p50_s"])
    assert np.isnan(cached["ttft_p50_s"])
    assert cached["cached_ttft_p50_s"] == row["ttft_p50_s"]
    assert cached["goodput"] == 0, "a bound on the first token holds for cached prompts too"
    cells = pd.DataFrame({"label": ["lossless K=3"], "verifier": ["lossless"]}, index=["lossless"])
    (line,) = sentences(pd.DataFrame([cached]), cells, {"ttft": 0.05})
    assert "goodput (cached ttft within 0.05 s)" in line


def test_repeats_with_cached_prompts_are_never_joined_with_others():
    before = [queue("lossless", 2.0, 0.4).assign(repeat=repeat, schedule=f"s{repeat}") for repeat in (0, 1)]
    after = queue("lossless", 2.0, 0.1).assign(schedule="c", is_cached=True, started_at=1e6)
    row = row_of(pd.concat([*before, after]))
    assert (row["n"], row["is_cached"]) == (100, True)
    assert row["service_p50_s"] == pytest.approx(0.1)
    assert row_of(pd.concat([*before, after.assign(started_at=-1.0)]))["n"] == 200


def with_under_way(frame: pd.DataFrame) -> pd.DataFrame:
    """Count at each sending the requests that are sent and have not ended, itself included."""
    sent, ended = frame["sent_s"].to_numpy(), frame["last_token_s"].to_numpy()
    return frame.assign(under_way=[int(((sent <= now) & (ended > now)).sum()) for now in sent])


def test_peak_concurrency_is_the_most_requests_that_were_under_way_at_a_time():
    """Of requests that take a second each, three overlap between .9 and 1; of a repeat's two, none does."""
    times = [0.0, 0.5, 0.9, 1.2, 3.0]
    trace = queue("lossless", 1.0, 1.0, n=5, servers=5)
    trace = trace.assign(
        arrival_s=times, sent_s=times, first_token_s=np.add(times, 0.25), last_token_s=np.add(times, 1)
    )
    trace = with_under_way(trace)
    assert trace["under_way"].tolist() == [1, 2, 3, 3, 1]
    assert row_of(trace)["peak_concurrency"] == 3
    alone = trace.iloc[[0, 4]].assign(repeat=1, under_way=1, schedule="t")
    assert row_of(alone)["peak_concurrency"] == 1
    assert row_of(pd.concat([trace, alone]))["peak_concurrency"] == 3, "repeats follow each other"
    served = with_under_way(queue("lossless", 40.0, 0.2, servers=4, n=80))
    assert row_of(served)["peak_concurrency"] == served["under_way"].max() > 30, "what waits for a place counts"


def test_a_request_that_was_sent_late_has_waited():
    frame = queue("lossless", 2.0, 0.1).assign(server_queue_s=0.0)
    late = frame.assign(**{name: frame[name] + 1 for name in ("sent_s", "first_token_s", "last_token_s")})
    row, other = row_of(frame), row_of(late)
    assert other["ttft_p50_s"] == pytest.approx(row["ttft_p50_s"] + 1)
    assert other["queue_p50_s"] == pytest.approx(1)
    assert other["send_delay_p99_s"] == pytest.approx(1)


@pytest.mark.parametrize(("rate", "served"), [(2.0, 2.0), (10.0, 10.0), (40.0, 20.0), (60.0, 20.0)])
def test_throughput_is_the_rate_until_it_is_the_servers(rate, served):
    frame = queue("lossless", rate, 0.2, servers=4, n=200)
    row = row_of(frame)
    assert row["throughput"] == pytest.approx(served, rel=0.01 if rate > 20 else 0.15)  # below, that of the arrivals
    assert row["is_saturated"] == (rate > 20)
    assert row["keeps_up"] == (rate < 20)


@pytest.mark.parametrize(("load", "least", "most"), [(0.8, 0, 6), (2.0, 34, 40)])
def test_saturation_is_reported_above_capacity_and_seldom_below(load, least, most):
    """Of 40 passes of 64 requests each, as docs/engines.md has it: 4 % at .8 of the capacity, 98 % at twice."""
    passes = [with_latencies(queue("lossless", load, 4.0, servers=4, n=64, seed=seed)) for seed in range(40)]
    assert least <= sum(served_share(each).high < BEHIND for each in passes) <= most


def test_few_requests_show_no_saturation():
    estimate = served_share(with_latencies(queue("lossless", 10.0, 1.0, n=10)))
    assert np.isnan([estimate.value, estimate.low, estimate.high]).all()
    row = row_of(queue("lossless", 10.0, 1.0, n=10))
    assert not row["is_saturated"]
    assert not row["keeps_up"]


def test_goodput_counts_requests_within_all_bounds_and_failures_are_none():
    frame = queue("lossless", 1.0, 0.01, n=40)  # nobody waits
    slow = frame["request"] % 4 == 0
    frame.loc[slow, "last_token_s"] += 1.0
    frame.loc[frame["request"] == 1, ["failure", "tokens", "first_token_s", "last_token_s"]] = [
        "HTTP 500",
        0,
        np.nan,
        np.nan,
    ]
    seconds = frame["last_token_s"].max() - frame["sent_s"].min()
    row = row_of(frame, {"ttft": 0.1, "e2el": 0.5})
    assert row["failures"] == 1
    assert row["requests_per_s"] == pytest.approx(39 / seconds)
    assert row["goodput"] == pytest.approx(29 / seconds)
    assert row["goodput_low"] < row["goodput"] < row["goodput_high"]
    assert row_of(frame)["goodput"] == pytest.approx(39 / seconds), "without bounds all answers are good"
    assert row_of(frame, {"tpot": 0.05})["goodput"] == pytest.approx(29 / seconds)


def test_an_answer_of_one_token_has_no_time_between_tokens_and_is_good():
    frame = queue("lossless", 1.0, 0.01, n=20, tokens=1)
    row = row_of(frame, {"tpot": 1e-9})
    assert np.isnan(row["tpot_p50_s"])
    assert row["goodput"] == pytest.approx(row["requests_per_s"])


def test_gains_are_of_the_same_arrivals_and_sentences_say_up_to_which_rate():
    fast = [queue("ensemble", rate, 0.1) for rate in (1.0, 2.0, 20.0)]
    slow = [queue("lossless", rate, 0.2) for rate in (1.0, 2.0, 20.0)]
    table = open_load_table(pd.concat([*fast, *slow]), {"e2el": 1.0})
    lenient = table[table["cell"] == "ensemble"].set_index("rate")
    assert lenient.at[1.0, "gain_over_lossless"] > 1.9
    assert (lenient["gain_over_lossless_low"] > 1).all()
    cells = pd.DataFrame(
        {"label": ["lossless", "w=0.5"], "verifier": ["lossless", "ensemble"]}, index=["lossless", "ensemble"]
    )
    first, second = sentences(table, cells, {"e2el": 1.0})
    assert first.startswith("lossless under load: saturated at 20 requests/s, where it serves 5.0")
    assert "goodput (e2el within 1 s) is highest at " in first
    assert "times as soon as with lossless at 20 requests/s" in second
    assert "as soon as" not in first


def test_a_gain_is_over_lossless_of_the_same_drafter():
    """With lossless of two drafters at a draft length there was no gain."""
    lossless = [
        queue(name, 2.0, seconds, verifier="lossless", drafter=name) for name, seconds in (("a", 0.3), ("b", 0.2))
    ]
    rule = queue("rule", 2.0, 0.1, verifier="ensemble", drafter="b")
    columns = ["gain_over_lossless", "gain_over_lossless_low", "gain_over_lossless_high", "unpaired"]
    both, alone, other = (
        open_load_table(pd.concat([rule, *bases])).set_index("cell").loc["rule", columns].tolist()
        for bases in (lossless, lossless[1:], lossless[:1])
    )
    assert both == alone
    assert both[0] > 1.5
    assert other[0] > both[0], "the only lossless setting at this draft length is of another drafter"


def test_only_the_newest_schedule_of_a_rate_counts():
    old = queue("lossless", 2.0, 0.4).assign(schedule="old", started_at=-1.0)
    both = pd.concat([old, queue("lossless", 2.0, 0.1)])
    assert row_of(both)["n"] == 100
    assert row_of(both)["service_p50_s"] == pytest.approx(0.1)


def test_a_cell_that_is_not_sent_again_keeps_its_row_and_is_not_compared_with_another_schedule():
    again = {"schedule": "new", "pass_id": "q"}
    frames = [queue(name, 2.0, 0.1) for name in ("lossless", "a", "b")]
    frames += [queue(name, 2.0, 0.1, **again).assign(started_at=1e9) for name in ("lossless", "a")]
    table = open_load_table(pd.concat(frames)).set_index("cell")
    assert set(table.index) == {"lossless", "a", "b"}
    assert table["gain_over_lossless"].notna().to_dict() == {"a": True, "b": False, "lossless": True}


def test_a_setting_is_saturated_above_the_rates_that_it_keeps_up_with():
    cells = pd.DataFrame({"label": ["w=0.5"], "verifier": ["ensemble"]}, index=["a"])
    table = open_load_table(pd.concat([queue("a", rate, 0.1) for rate in (1.0, 2.0, 4.0, 40.0)]))
    table["is_saturated"], table["keeps_up"] = [True, False, False, True], [False, True, True, False]
    assert "w=0.5 under load: saturated at 40 requests/s, where" in sentences(table, cells, {})[0]
    assert "keeps up with 4 requests/s" in sentences(table[:3], cells, {})[0]


def test_nothing_sent_is_an_empty_table():
    table = open_load_table(queue("lossless", 2.0, 0.1).iloc[:0])
    assert table.empty
    assert "goodput_low" in table


def failing(frame: pd.DataFrame, numbers) -> pd.DataFrame:
    """These requests fail."""
    lost = {"failure": "HTTP 500", "tokens": 0, "first_token_s": np.nan, "last_token_s": np.nan}
    frame = frame.copy()
    frame.loc[frame["request"].isin(list(numbers)), list(lost)] = list(lost.values())
    return frame


@pytest.mark.parametrize(("num_failed", "is_saturated"), [(2, False), (10, True)])
def test_failures_prove_saturation_only_beyond_chance(num_failed, is_saturated):
    """The server keeps up with the others. 2 failures of 20 happen at 1.2 % too, of which 98.8 % are answered."""
    frame = failing(queue("lossless", 1.0, 0.01, n=40 if is_saturated else 20), range(2, 2 + num_failed))
    row = row_of(frame)
    assert row["is_saturated"] == is_saturated
    assert not row["keeps_up"]


def test_a_few_failures_of_many_requests_leave_a_server_that_keeps_up():
    """Their share counts as it is: 99 % of 100."""
    assert row_of(failing(queue("lossless", 1.0, 0.01), [50]))["keeps_up"]


@pytest.mark.parametrize("num_answered", [0, 3, 12])
def test_a_server_that_fails_most_requests_is_saturated(num_answered):
    """Too few answers for the growth of latency: the share of answers decides."""
    frame = failing(queue("lossless", 1.0, 0.01, n=40), range(num_answered, 40))
    row = row_of(frame)
    assert row["is_saturated"]
    assert not row["keeps_up"]
    cells = pd.DataFrame({"label": ["lossless"], "verifier": ["lossless"]}, index=["lossless"])
    (line,) = sentences(pd.DataFrame([row]), cells, {})
    assert line == f"lossless under load: saturated at 1 requests/s, where {40 - num_answered} of 40 requests fail"


def test_a_gain_says_how_many_requests_it_leaves_out():
    """One failed with the rule, two with lossless, one of them in both."""
    rule, lossless = failing(queue("ensemble", 2.0, 0.1), [30]), failing(queue("lossless", 2.0, 0.2), [30, 60])
    table = open_load_table(pd.concat([rule, lossless]))
    cells = pd.DataFrame({"label": ["w=0.5"], "verifier": ["ensemble"]}, index=["ensemble"])
    (line,) = sentences(table, cells, {})
    assert line.endswith(
        "as soon as with lossless at 2 requests/s (without 2 requests that failed with one of the two)"
    )
    slow = open_load_table(pd.concat([rule.assign(cell="ensemble", last_token_s=lossless["last_token_s"]), lossless]))
    (line,) = sentences(slow, cells, {})
    assert line.endswith("than with lossless (without 2 requests that failed with one of the two)")


@pytest.mark.parametrize("at", [0.1, 7.3, 1e6 / 3])
@pytest.mark.parametrize("repeats", [1, 3])
def test_a_trace_that_ends_in_one_burst_proves_nothing(at, repeats):
    """All arrivals that count are at one time, so there is no growth over the time of arrival."""
    loops = [
        queue("lossless", 2.0, 0.1, n=60).assign(repeat=repeat, schedule=f"s{repeat}") for repeat in range(repeats)
    ]
    frame = pd.concat(loops, ignore_index=True)
    late = frame["request"] >= 10
    times = np.where(late, at, 0.0)
    frame = frame.assign(
        arrival_s=times, sent_s=times, first_token_s=times + 0.1, last_token_s=times + 0.1 * frame["request"] + 0.2
    )
    row = row_of(frame)
    assert (row["is_saturated"], row["keeps_up"]) == (False, False)
    cells = pd.DataFrame({"label": ["lossless"], "verifier": ["lossless"]}, index=["lossless"])
    (line,) = sentences(pd.DataFrame([row]), cells, {})
    assert line == "lossless under load: neither proven to keep up nor to be saturated at any rate"


def twice(frame: pd.DataFrame) -> pd.DataFrame:
    """The same requests in two repeats."""
    return pd.concat([frame, frame.assign(repeat=1, schedule="again")], ignore_index=True)


def test_requests_of_the_same_text_are_one_row_of_a_gain():
    """A second time of the same text that repeats the first is no evidence."""
    pair = [queue("ensemble", 1.0, 0.1, seed=1), queue("lossless", 1.0, 0.2, seed=1)]
    ends = [f"gain_over_lossless{end}" for end in ("", "_low", "_high")]
    single, double, alike = (
        open_load_table(pd.concat(frames)).set_index("cell").loc["ensemble"]
        for frames in (pair, map(twice, pair), [frame.assign(example="e0") for frame in pair])
    )
    assert (single["n"], double["n"]) == (100, 200)
    assert single[ends].tolist() == pytest.approx(double[ends].tolist())
    assert single[ends[1]] < single[ends[0]] < single[ends[2]]
    assert alike[ends[0]] == pytest.approx(single[ends[0]])
    assert alike[ends[1:]].isna().all(), "of one text there is no interval"


def test_a_failure_leaves_out_one_request_and_not_the_others_of_its_text():
    rule, lossless = twice(queue("ensemble", 1.0, 0.1)), twice(queue("lossless", 1.0, 0.2))
    lost = {"failure": "HTTP 500", "tokens": 0, "first_token_s": np.nan, "last_token_s": np.nan}
    rule.loc[5, list(lost)] = list(lost.values())
    lossless.loc[105, "last_token_s"] += 1000.0  # the other request of that text
    row = open_load_table(pd.concat([rule, lossless])).set_index("cell").loc["ensemble"]
    assert row["unpaired"] == 1
    assert row["gain_over_lossless"] > 10, "the slow answer counts"


def test_a_row_has_repeats_of_one_loop():
    """Two repeats of a loop and then one of another, whose second repeat was not sent: the newest loop alone."""
    old = [queue("lossless", 2.0, 0.4).assign(repeat=repeat, schedule=f"a{repeat}", loop="a") for repeat in (0, 1)]
    new = queue("lossless", 2.0, 0.1).assign(schedule="b0", loop="b", started_at=1e6)
    row = row_of(pd.concat([*old, new]))
    assert row["n"] == 100
    assert row["service_p90_s"] == pytest.approx(0.1)
    assert row_of(pd.concat([*old, new.assign(started_at=-1.0)]))["n"] == 200
    assert row_of(pd.concat([*(frame.assign(loop="") for frame in old), new]))["n"] == 100
    assert row_of(pd.concat([each.assign(loop="") for each in (*old, new)]))["n"] == 200, "old records: one by repeat"


def test_a_pass_of_before_that_goes_on_keeps_its_cells():
    """The records of its first cell have no hash of the loop; the same schedule is the same loop."""
    fast = queue("ensemble", 2.0, 0.1).assign(loop="a", started_at=1e6)
    table = open_load_table(pd.concat([queue("lossless", 2.0, 0.2), fast])).set_index("cell")
    assert table["n"].to_dict() == {"ensemble": 100, "lossless": 100}
    assert table.at["ensemble", "gain_over_lossless"] > 1.5


def test_a_client_that_sends_late_does_not_make_the_server_saturated():
    """It was reported as saturated, because its latency counts from the planned arrival."""
    frame = queue("lossless", 2.0, 0.01)
    for name in ("sent_s", "first_token_s", "last_token_s"):
        frame[name] += 0.3 * frame["arrival_s"]
    table = open_load_table(frame)
    assert table[["is_client_behind", "is_saturated", "keeps_up"]].to_numpy().tolist() == [[True, False, False]]
    (line,) = sentences(table, named("lossless"), {})
    assert "this client cannot send 2 requests/s on time" in line
    overload = row_of(queue("lossless", 2.0, 1.0))
    assert overload["is_saturated"]
    assert not overload["is_client_behind"]


def test_percentiles_of_the_queue_are_of_all_answers_or_of_none():
    """vLLM reports its queue in the last chunk, which an answer that this client ends does not have."""
    frame = queue("lossless", 2.0, 0.4)
    frame.loc[::2, "server_queue_s"] = np.nan
    row = row_of(frame)
    assert np.isnan(row["queue_p50_s"])
    assert np.isnan(row["service_p50_s"])
    assert row["e2el_p50_s"] > 0


def test_a_sentence_is_of_one_pass():
    """Another server's rate was reported as that of the newest pass."""
    old = queue("lossless", 2.0, 1.0)
    new = queue("lossless", 1.0, 0.1, pass_id="q", loop="b")
    table = open_load_table(pd.concat([old, new.assign(started_at=new["started_at"] + 1e6)]))
    assert table["pass_id"].tolist() == ["q", "p"]
    assert table["rate"].tolist() == [1.0, 2.0]
    (line,) = sentences(table, named("lossless"), {})
    assert "keeps up with 1 requests/s" in line
    assert "saturated at" not in line


def test_the_table_has_the_bounds_of_its_goodput():
    frame = queue("lossless", 2.0, 0.4)
    assert row_of(frame)["slo"] == ""
    assert row_of(frame, {"ttft": 0.2, "tpot": 0.05})["slo"] == "ttft 0.2 s, tpot 0.05 s"
