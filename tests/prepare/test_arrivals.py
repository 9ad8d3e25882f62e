"""Schedules of arrivals: the same for every setting, at the rate that was asked for, and another where a second could differ."""

from types import SimpleNamespace
from typing import Any

import pytest

from sdbench.config import ConfigError
from sdbench.prepare.arrivals import arrivals_of, poisson_times, read_trace


def run_of(**options) -> Any:
    timing = {"repeats": 1, "rate": (2.0,), "ramp": (), "requests": 10, "trace": None, **options}
    timing = {"tokens": None, "prefix_cache": False, **timing}
    return SimpleNamespace(timing=SimpleNamespace(**timing), seed=0)


def test_poisson_times_have_their_rate_and_are_equal_for_equal_seeds():
    times = poisson_times(2.0, 400, 0, 0)
    assert times == poisson_times(2.0, 400, 0, 0)
    assert times[-1] == pytest.approx(200)
    gaps = [later - earlier for earlier, later in zip((0, *times), times, strict=False)]
    assert min(gaps) > 0
    # An exponential's mean equals its deviation: 400 gaps give it to within 4 standard errors of .05.
    deviation = (sum((gap - 0.5) ** 2 for gap in gaps) / 400) ** 0.5
    assert deviation == pytest.approx(0.5, abs=0.1)


def test_rates_differ_by_a_factor_only_and_repeats_by_luck():
    slow, fast = poisson_times(1.0, 20, 0, 0), poisson_times(4.0, 20, 0, 0)
    assert [time / 4 for time in slow] == pytest.approx(fast)
    assert poisson_times(1.0, 20, 0, 1) != slow
    assert poisson_times(1.0, 20, 1, 0) != slow


def test_a_ramp_is_one_loop_whose_rates_follow_each_other():
    (arrivals,) = arrivals_of(run_of(rate=(), ramp=(1.0, 4.0)), ["a", "b", "c"])
    assert arrivals.rates == (1.0,) * 10 + (4.0,) * 10
    assert arrivals.times[9] == pytest.approx(10)
    assert arrivals.times[-1] == pytest.approx(10 + 10 / 4)
    assert list(arrivals.times) == sorted(arrivals.times)
    gaps = [later - arrivals.times[9] for later in arrivals.times[10:]]
    assert [4 * gap for gap in gaps] != pytest.approx(arrivals.times[:10]), "the steps differ by luck too"
    assert arrivals.examples[9:12] == ("a", "b", "c")


def test_64_requests_unless_a_number_is_given():
    (usual,) = arrivals_of(run_of(requests=None), ["a"])
    assert len(usual.times) == len(usual.rates) == 64


def test_prompts_are_sent_again_from_the_first():
    (arrivals,) = arrivals_of(run_of(requests=5), ["a", "b"])
    assert arrivals.examples == ("a", "b", "a", "b", "a")


def test_a_key_is_of_all_that_decides_a_second():
    changed: list[dict[str, Any]] = [{}, {"rate": (3.0,)}, {"requests": 11}, {"repeats": 2}]
    keys = [each.key for options in changed for each in arrivals_of(run_of(**options), ["a", "b"])]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 4
    fixed = [arrivals_of(run_of(**options), ["a", "b"])[0].key for options in ({"tokens": 4}, {"prefix_cache": True})]
    assert len({*keys, *fixed}) == 6
    assert arrivals_of(run_of(), ["a", "c"])[0].key not in keys


def test_a_trace_begins_at_0_and_has_numbers_or_objects(tmp_path):
    file = tmp_path / "trace"
    file.write_text('100\n\n{"arrival_s": 101.5, "tokens": 3}\n.105e3\n')
    assert read_trace(str(file)) == (0, 1.5, 5)
    (arrivals,) = arrivals_of(run_of(rate=(), trace=str(file)), ["a"])
    assert arrivals.rates == pytest.approx([2 / 5] * 3)


@pytest.mark.parametrize("text", ["0\n4e-10\n", '0\n{"arrival_s": 1' + "0" * 400 + "}\n"])
def test_times_that_are_too_close_or_too_large_are_refused(text, tmp_path):
    """Both ended with a stack trace."""
    (tmp_path / "trace").write_text(text)
    with pytest.raises(ConfigError, match="arrival time"):
        read_trace(str(tmp_path / "trace"))


@pytest.mark.parametrize(("file", "reason"), [("~nobody-here/trace", "Could not determine"), ("/none", "No such file")])
def test_a_trace_that_cannot_be_read_is_one_sentence(file, reason):
    with pytest.raises(ConfigError, match=f"^timing.trace={file} cannot be read: {reason}"):
        read_trace(file)


def test_repeats_of_a_loop_share_a_hash_and_other_loops_have_others(tmp_path):
    first, again = arrivals_of(run_of(repeats=2), ["a", "b"])
    assert first.key != again.key
    assert first.loop == again.loop
    (tmp_path / "trace").write_text("0\n1\n5\n")
    (tmp_path / "other").write_text("0\n2\n5\n")
    changed: list[dict[str, Any]] = [{"rate": (3.0,)}, {"requests": 11}, {"tokens": 4}, {"prefix_cache": True}]
    changed += [{"rate": (), "ramp": (1.0, 2.0)}]
    changed += [{"rate": (), "trace": str(tmp_path / name)} for name in ("trace", "other")]
    loops = [arrivals_of(run_of(**options), ["a", "b"])[0].loop for options in changed]
    reseeded = run_of()
    reseeded.seed = 1
    loops += [arrivals_of(reseeded, ["a", "b"])[0].loop, arrivals_of(run_of(), ["a", "c"])[0].loop]
    assert len({first.loop, *loops}) == 1 + len(changed) + 2
