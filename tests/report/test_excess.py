"""A setting that is refused for its looping or failing texts says so wherever its test is shown."""

import math
from dataclasses import replace
from types import SimpleNamespace

import lxml.html
import pandas as pd
import pytest

from sdbench.metrics.export import _test
from sdbench.metrics.recommend import Advice, Recommendation, decide
from sdbench.metrics.safety import FAILURES, Comparison
from sdbench.metrics.stats import Estimate
from sdbench.metrics.weigh import Weighed
from sdbench.report import frames
from sdbench.report.page import ENVIRONMENT, verdicts
from sdbench.types import Metric

CUT, EMPTY = FAILURES["is_truncated"], FAILURES["is_empty"]
REFUSED = Comparison(
    *("a", "ensemble", "w=0.5", 5, Estimate(-0.01, -0.02, 0.0, 200), -1.0, -2.0),
    loops=-1.0,
    failures={CUT: 8.0, EMPTY: 0.5},
)


STRICT = Metric("strict", "share")


def recommendation(test, metric=STRICT):
    weighed = Weighed("m", "t", "m on t", metric, ((test,),), names={"a": "ensemble w=0.5 K=5"})
    return Recommendation((decide(weighed, 5.0),), (weighed,))


def test_tables_have_the_largest_excess_and_its_kind():
    (row,) = frames.recommendation([recommendation(REFUSED)]).to_dict("records")
    assert (row["worst"], row["is_passed"], row["excess"], row["excess_kind"]) == (-2.0, False, 8.0, CUT)
    entry = _test(REFUSED, 5.0, 0.025, {"a": "name"})
    assert (entry["is_passed"], entry["excess"], entry["excess_kind"]) == (False, 8.0, CUT)
    unknown = _test(replace(REFUSED, loops=math.nan, failures={}), 5.0, 0.025, {"a": "name"})
    assert (unknown["is_passed"], unknown["excess"], unknown["excess_kind"]) == (True, None, None)


def test_the_page_names_every_kind_that_exceeds_lossless_and_shows_the_largest(monkeypatch):
    advice = recommendation(REFUSED)
    cells = pd.DataFrame({"label": ["ensemble w=0.5 K=5"]}, index=["a"])
    sweep = SimpleNamespace(title="m on t", cells=cells, batch_size=None)
    monkeypatch.setattr(verdicts, "plane_of", lambda *_: None)
    monkeypatch.setattr(verdicts, "losses_of", lambda *_: None)
    card = verdicts.card_of(verdicts.Advised(sweep, advice.advices[0], advice.weighed[0]), 0, [sweep])
    page = ENVIRONMENT.get_template("parts.html.j2").make_module().answer(card, False)
    tree = lxml.html.fragment_fromstring(str(page))
    text = " ".join(tree.text_content().split())
    assert (
        f"the share of its texts that {CUT} or {EMPTY} exceeds that of lossless by no more than the margin (each kind"
        in text
    )
    assert "end in a loop" not in text.partition("Examples needed")[0]
    (row,) = tree.xpath("//table[@class='ladder']//tbody/tr")
    assert [cell.text_content() for cell in row.xpath("td")][:3] == ["−1.0", "−2.0", "+8.0"]
    assert row.xpath("td[3]/@title") == [CUT]
    assert "✗ no" in row.text_content()


@pytest.mark.parametrize(
    ("best", "tested", "compared"),
    [
        (
            "low",
            "All numbers are points of ter, of which less is better: a positive difference is a gain.",
            "Each example’s ter minus that of lossless, in points, with the opposite sign, since less is better: "
            "positive is a gain. Of the examples that score worse: 3 looping.",
        ),
        (
            "high",
            "All numbers are points of ter.",
            "Each example’s ter minus that of lossless, in points. Of the examples that score worse: 3 looping.",
        ),
    ],
)
def test_the_page_says_that_a_positive_difference_is_a_gain_where_less_is_better(best, tested, compared, monkeypatch):
    advice = recommendation(REFUSED, Metric("ter", "raw", best, (0, 100)))
    sweep = SimpleNamespace(title="m on t", cells=pd.DataFrame({"label": ["ensemble w=0.5 K=5"]}, index=["a"]))
    sweep.batch_size = None
    monkeypatch.setattr(verdicts, "plane_of", lambda *_: None)
    monkeypatch.setattr(verdicts, "losses_of", lambda *_: verdicts.LossDetail("w=0.5", [], [], "3 looping"))
    card = verdicts.card_of(verdicts.Advised(sweep, advice.advices[0], advice.weighed[0]), 0, [sweep])
    page = ENVIRONMENT.get_template("parts.html.j2").make_module().answer(card, False)
    texts = [
        " ".join(each.text_content().split()) for each in lxml.html.fragment_fromstring(str(page)).xpath("//details/p")
    ]
    assert any(text.endswith(tested) for text in texts)
    assert compared in texts


@pytest.mark.parametrize(
    ("best", "cost"),
    [("low", ("1.9 points worse", "at worst 4.98 worse ter")), ("high", ("−1.9 points", "at worst −4.98 ter"))],
)
def test_the_cost_is_called_worse_where_less_is_better(best, cost):
    test = replace(REFUSED, change=-1.9, worst=-4.98)
    weighed = Weighed("m", "t", "m on t", Metric("ter", "raw", best, (0, 100)), ((test,),))
    advice = Advice("m", "t", "a", "m on t: ship.", kind="ship", margin=5.0)
    (fact,) = verdicts.facts_of(verdicts.Advised(SimpleNamespace(batch_size=None), advice, weighed), advice)
    assert fact == ("Cost", *cost)


@pytest.mark.parametrize(
    ("metric", "difference", "is_wider"),
    [
        (STRICT, Estimate(-0.01, -0.02, 0.0, 200), False),
        (Metric("rougeL", "points"), Estimate(-1.0, -1.6, 0.0, 200), True),
    ],
)
def test_the_page_says_that_limits_lie_beyond_the_intervals_only_if_they_do(metric, difference, is_wider, monkeypatch):
    """Of a single curve of pass/fail scores the limit is the lower end of the interval."""
    advice = recommendation(replace(REFUSED, difference=difference), metric)
    cells = pd.DataFrame({"label": ["ensemble w=0.5 K=5"]}, index=["a"])
    sweep = SimpleNamespace(title="m on t", cells=cells, batch_size=None)
    for name in ("plane_of", "losses_of"):
        monkeypatch.setattr(verdicts, name, lambda *_: None)
    card = verdicts.card_of(verdicts.Advised(sweep, advice.advices[0], advice.weighed[0]), 0, [sweep])
    page = str(ENVIRONMENT.get_template("parts.html.j2").make_module().answer(card, False))
    assert "At most 1 in 40" in page
    assert "chosen before looking at results: errors are more\nfrequent at a margin chosen with the slider" in page
    assert ("lies beyond the interval in the tables" in page) == is_wider


def shown_at(decisions, margin):
    """The decision that decide.js shows."""
    return [each for each in decisions if each["from"] < margin or (each["has_from"] and each["from"] == margin)][-1]


def test_the_gain_on_the_page_says_whether_texts_or_batches_were_timed():
    weighed, gain = Weighed("m", "t", "m on t", Metric("strict", "share")), Estimate(1.5, 1.4, 1.6, 3)
    advice = Advice("m", "t", None, "m on t: do not speculate.", kind="alone", speedup=gain)
    for size, timed in {None: "3 texts", 1: "3 texts, batch 1", 8: "3 batches of 8"}.items():
        sweep = SimpleNamespace(batch_size=size)
        facts = verdicts.facts_of(verdicts.Advised(sweep, advice, weighed), advice)
        assert [fact.limits for fact in facts if fact.title == "Over the target alone"] == [f"[1.40, 1.60] on {timed}"]


def test_the_page_decides_as_the_command_does_at_a_margin_equal_to_an_excess_or_to_a_limit():
    """7 texts of 100 more are within a margin of 7, and a possible loss of 7 points is not; the page refused both."""
    excess, limit = (
        replace(REFUSED, failures={CUT: 100 * 0.07}),
        replace(REFUSED, cell="b", worst=-7.0, failures={}),
    )
    assert 100 * 0.07 > 7
    names = {"a": "ensemble w=0.5 K=5", "b": "ensemble w=0.5 K=3"}
    weighed = Weighed("m", "t", "m on t", Metric("strict", "share"), ((excess,), (limit,)), names=names)
    sweep = SimpleNamespace(title="m on t", cells=pd.DataFrame({"label": names}), batch_size=None)
    decisions = verdicts.decisions_of(verdicts.Advised(sweep, decide(weighed, 5.0), weighed))
    for margin, states in {6.99: "nn", 7.0: "yn", 7.01: "yy"}.items():
        assert verdicts.states_of(weighed, margin) == states
        shown = shown_at(decisions, margin)
        assert shown["states"] == states
        assert shown["kind"] == decide(weighed, margin).kind
