"""One setting for several folders: safe on each of them, or named with where it fails; every sentence names its folder."""

from dataclasses import replace

import pandas as pd
import pytest

import sdbench
from sdbench.cli import main as front_door
from sdbench.metrics.cells import table_of
from sdbench.metrics.recommend import Recommendation, decide, recommend
from sdbench.metrics.safety import Comparison
from sdbench.metrics.seeds import pool_seeds
from sdbench.metrics.stats import Estimate
from sdbench.metrics.text import full_setting_of, names_of
from sdbench.metrics.weigh import Gain, Weighed
from sdbench.records.keys import frame_of_cells
from sdbench.report.build import worked_out
from sdbench.report.joint import _with_settings, decide_jointly
from sdbench.types import Metric
from tests.metrics.test_drafts import VARIANTS
from tests.records.synthetic import write_synthetic


def main(words):
    return front_door(["report", *words])


WS = (0.9, 0.7, 0.5)


def recommendation(title: str, worst: tuple[float, ...], *, margin: float = 5.0, is_faster: bool = True, **fields):
    """A folder of one sweep whose settings w = .9, .7, .5 have these limits of their losses; the more lenient is faster."""
    tests = [
        Comparison(f"{title}-{w}", "ensemble", f"w={w}", 5, Estimate(0.0, -0.1, 0.1, 200), limit + 2, limit, 0.0)
        for w, limit in zip(WS, worst, strict=True)
    ]
    over = Estimate(1.2, 1.1 if is_faster else 0.9, 1.3, 8)
    sweep = Weighed(
        "pair",
        "task",
        title,
        Metric("strict", "share", bounds=(0, 1)),
        (tuple(tests),),
        gains={test.cell: Gain({"lossless": over}, "lossless") for test in tests},
        modelled={test.cell: 2.0 + index for index, test in enumerate(tests)},
        names={test.cell: f"ensemble w={w} K=5" for test, w in zip(tests, WS, strict=True)}
        | {"lossless": "lossless K=5"},
        **fields,
    )
    return Recommendation((decide(sweep, margin),), (sweep,))


def test_the_fastest_setting_that_is_safe_on_all_is_shipped():
    joint = decide_jointly([recommendation("A", (-2.0, -3.0, -4.0)), recommendation("B", (-1.0, -4.5, -9.0))])
    assert joint.setting == "ensemble w=0.7 K=5"
    assert joint.text == (
        "joint: ship ensemble w=0.7 K=5: safe on all 2 sweeps (at worst -4.5 points (margin 5), on B); "
        "on A 1.20× [1.10, 1.30] over lossless K=5, on B 1.20× [1.10, 1.30] over lossless K=5."
    )


def test_where_less_is_better_the_limit_of_a_loss_is_called_worse():
    folders = [recommendation(title, (-2.0, -3.0, -9.0)) for title in "AB"]
    ter = Metric("ter", "raw", "low", (0, 100))
    folders = [replace(each, weighed=(replace(each.weighed[0], metric=ter),)) for each in folders]
    assert "safe on all 2 sweeps (at worst 3.0 points worse (margin 5), on A)" in decide_jointly(folders).text


def test_each_folder_keeps_its_margin():
    two = recommendation("A", (-2.0, -3.0, -4.0), margin=2.5), recommendation("B", (-1.0, -4.5, -9.0))
    assert decide_jointly(two).setting == "ensemble w=0.9 K=5"


def test_without_a_common_setting_it_says_where_each_fails():
    joint = decide_jointly([recommendation("A", (-2.0, -6.0, -9.0)), recommendation("B", (-7.0, -8.0, -9.0))])
    assert joint.setting is None
    assert joint.text.startswith("joint: none is safe on all 2 sweeps: ensemble w=0.9 K=5 fails on B (at worst -7.0); ")
    assert "ensemble w=0.7 K=5 fails on A (at worst -6.0), B (not reached)" in joint.text


def test_a_speed_up_must_be_proven_on_all():
    joint = decide_jointly([recommendation("A", (-2.0,) * 3), recommendation("B", (-2.0,) * 3, is_faster=False)])
    assert joint.text.startswith("joint: stay lossless; ensemble w=0.5 K=5 is safe on all 2 sweeps")
    assert "a speed-up over lossless and the target alone is not proven on all" in joint.text


def test_where_lossless_is_slower_than_the_target_alone_it_says_not_to_speculate():
    slow, fast = ({"lossless": {"lossless": Estimate(speed, speed - 0.1, speed + 0.1, 8)}} for speed in (0.8, 1.5))

    def text(first, second):
        folders = recommendation("A", (-2.0,) * 3, **first), recommendation("B", (-2.0,) * 3, is_faster=False, **second)
        return decide_jointly(folders).text

    assert text(fast, fast).startswith("joint: stay lossless; ensemble w=0.5 K=5 is safe on all 2 sweeps")
    level = {"lossless": {"lossless": Estimate(0.99, 0.9, 1.09, 8)}}
    assert text(level, level).startswith(
        "joint: do not speculate: lossless is not shown to be faster than the target alone (0.99× ["
    )
    assert "stay lossless, but lossless is not shown to be faster than the target alone (0.99× [0.90" in text(
        fast, level
    )
    assert "slower" not in text(level, slow), "of one of them it is not proven"
    assert text(slow, slow).startswith(
        "joint: do not speculate: lossless is slower than the target alone (0.80× [0.70, 0.90] on A, 0.80× [0.70, 0.90] on B); "
        "ensemble w=0.5 K=5 is safe on all 2 sweeps"
    )
    assert text(fast, slow).startswith(
        "joint: stay lossless, but lossless is slower than the target alone (0.80× [0.70, 0.90] on B): do not speculate there; "
    )


def test_a_faster_lossless_setting_of_another_pass_counts():
    speeds = {"lossless": Estimate(0.8, 0.7, 0.9, 8), "other": Estimate(1.19, 1.14, 1.24, 8)}
    folders = [recommendation(title, (-2.0,) * 3, is_faster=False) for title in "AB"]
    folders = [replace(each, weighed=(replace(each.weighed[0], lossless=speeds),)) for each in folders]
    assert decide_jointly(folders).text.startswith("joint: stay lossless; ensemble w=0.5 K=5 is safe on all 2 sweeps")


def test_a_setting_that_was_not_tested_says_why():
    first, second = recommendation("A", (-2.0, -3.0, -4.0)), recommendation("B", (-7.0, -8.0, -9.0))
    (sweep,) = second.weighed
    (strict, *_), names = sweep.curves[0], {f"B-{w}": f"ensemble w={w} K=5" for w in WS}
    left_out = replace(sweep, curves=((strict,),), names=names, left_out={"B-0.7": 30})
    text = decide_jointly([first, replace(second, weighed=(left_out,))]).text
    assert "ensemble w=0.9 K=5 fails on B (at worst -7.0)" in text
    assert "ensemble w=0.7 K=5 fails on B (left out, n=30)" in text
    assert "ensemble w=0.5 K=5 fails on B (not run there)" in text


def test_a_setting_is_shipped_though_the_modelled_fastest_is_not_proven():
    one = recommendation("A", (-2.0,) * 3)
    slow = replace(one.weighed[0].gains["A-0.5"], over_each={"lossless": Estimate(1.2, 0.9, 1.5, 8)})
    sweep = replace(one.weighed[0], gains=one.weighed[0].gains | {"A-0.5": slow})
    joint = decide_jointly([replace(one, weighed=(sweep,)), recommendation("B", (-2.0,) * 3)])
    assert joint.text.startswith("joint: ship ensemble w=0.7 K=5")


def timed(title: str, *, sooner=(1.1, 1.2), length: float = 1.0, **fields):
    """A folder with times of answers over lossless's, and lengths."""
    one = recommendation(title, (-2.0,) * 3, **fields)
    (sweep,) = one.weighed
    times = {"lossless": Estimate(sum(sooner) / 2, *sooner, 8)}
    gains = {key: replace(gain, sooner_each=times) for key, gain in sweep.gains.items()}
    lengths = dict.fromkeys(gains, Estimate(length, length - 0.01, length + 0.01, 200))
    return replace(one, weighed=(replace(sweep, gains=gains, lengths=lengths),))


def test_each_sweep_shows_the_time_and_the_length_of_an_answer():
    text = decide_jointly([timed("A"), timed("B", length=1.12)]).text
    assert "on A 1.20× [1.10, 1.30] over lossless K=5, 1.15× [1.10, 1.20] per answer, answers as long (8 texts" in text
    assert "12 % longer (8 texts at batch 1)" in text
    assert "B: Warning: its answers are 12 % longer than those of lossless." in text
    assert "A: Warning" not in text
    later = decide_jointly([timed("A"), timed("B", sooner=(0.5, 0.7))]).text
    assert later.startswith("joint: stay lossless; ")
    assert "0.60× [0.50, 0.70] per answer" in later


def test_a_sweep_whose_lossless_scores_nothing_cannot_tell_for_all():
    floor = recommendation("B", (-2.0,) * 3, quality=Estimate(2.0, 0.5, 4.0, 200))
    joint = decide_jointly([recommendation("A", (-2.0,) * 3), floor])
    assert joint.setting is None
    assert joint.text.startswith(
        "joint: none: B: this run cannot tell: lossless is only 2.0 [0.5, 4.0] points of strict"
    )


def test_a_setting_that_fails_by_its_texts_says_so_and_limits_near_the_margin_have_two_decimals():
    one = recommendation("B", (-2.0, -4.98, -9.0))
    looping = replace(one.weighed[0].curves[0][0], loops=12.0)
    curve = (looping, *one.weighed[0].curves[0][1:])
    failing = replace(one, weighed=(replace(one.weighed[0], curves=(curve,)),))
    text = decide_jointly([recommendation("A", (-2.0, -5.02, -9.0)), failing]).text
    assert "w=0.9 K=5 fails on B (12.0 points more of its texts end in a loop than with lossless)" in text
    assert "w=0.7 K=5 fails on A (at worst -5.02), B (not reached)" in text
    text = decide_jointly([recommendation("A", (-2.0, -3.0, -9.0)), one]).text
    assert "(at worst -4.98 points (margin 5), on B)" in text


def test_a_draft_that_loses_nothing_is_named_with_its_sweep():
    alike = recommendation("B", (-2.0,) * 3, draft=Estimate(-1.2, -5.0, 2.6, 200))
    text = decide_jointly([recommendation("A", (-2.0,) * 3), alike]).text
    assert "B: On this task no loss of the draft alone is proven (-1.2 [-5.0, 2.6])." in text


def test_a_sweep_that_cannot_be_decided_is_named():
    joint = decide_jointly([recommendation("A", (-2.0,) * 3), recommendation("B", (-2.0,) * 3, problem="n is small")])
    assert joint.text == "joint: none: B: n is small."


def test_a_single_sweep_is_refused():
    with pytest.raises(ValueError, match="needs two sweeps or more"):
        decide_jointly([recommendation("A", (-2.0,) * 3)])


@pytest.mark.slow
def test_the_terminal_and_the_page_tell_folders_apart(tmp_path, capsys):
    homes = [write_synthetic(tmp_path / name, n=3, ws=(0.5,), timing_examples=0) for name in ("first", "second")]
    assert main([*map(str, homes), "joint=true"]) == 0
    printed = capsys.readouterr().out.splitlines()
    titles = [f"llama-tiny on gsm8k-tiny ({name})" for name in ("first", "second")]
    assert [line.partition(":")[0] for line in printed[:3]] == [*titles, "joint"]
    page = (tmp_path / "report-first+second" / "report.html").read_text()
    assert all(title in page for title in titles)
    assert 'id="joint">joint: none: ' in page
    assert 'id="errors"' not in page, "of three examples nothing is tested, so no recommendation can err"
    assert "joint=true" in page


@pytest.mark.slow
def test_seeds_of_one_setting_are_pooled_to_one_verdict_by_example(tmp_path):
    """Three seeds are three texts of each of 60 examples, not 180 examples."""
    homes = [
        write_synthetic(tmp_path / f"s{seed}", n=60, ws=(0.9, 1.0), timing_examples=6, seed=seed) for seed in range(3)
    ]
    folders = list(map(sdbench.read, homes))
    pooled = pool_seeds(folders)
    assert pooled is not None
    assert pooled.generations.groupby("cell")["example"].nunique().eq(60).all()
    assert pooled.generations.groupby(["cell", "example"])["sample"].agg(set).eq({0, 1, 2}).all()
    (curve,), single = recommend(pooled, 5.0).weighed[0].curves, recommend(folders[0], 5.0).weighed[0].curves[0]
    assert curve[0].difference.n == 60
    means = [folder.generations.groupby("cell")["strict"].mean().mean() for folder in folders]
    assert pooled.generations["strict"].mean() == pytest.approx(sum(means) / 3)
    assert curve[0].error < single[0].error, "texts of an example are averaged"
    assert pool_seeds(folders[:1]) is None
    assert pool_seeds([folders[0], folders[0]]) is None, "the same texts twice are no second seed"
    (text,) = worked_out(homes, margin=45).together
    assert text.startswith("seeds 0, 1, 2 pooled: llama-tiny on gsm8k-tiny: ")
    assert "(margin 45, n=60)" in text


def test_a_joint_that_is_no_yes_or_no_is_one_sentence(tmp_path, capsys):
    home = write_synthetic(tmp_path / "home", n=3, ws=(0.5,), timing_examples=0)
    assert main([str(home), "joint=maybe"]) == 2
    assert "joint must be true or false, got maybe" in capsys.readouterr().err


def test_two_settings_with_one_name_in_their_folders_are_two_settings():
    """A folder leaves out of a name what its cells share: typical at eps=0.3 in one, at eps=0.6 in the other."""
    first, second = recommendation("A", (-2.0, -3.0, -4.0)), recommendation("B", (-1.0, -4.5, -9.0))
    for eps, folder in ((0.3, first), (0.6, second)):
        settings = {cell: f"{name} eps={eps}" for cell, name in folder.weighed[0].names.items()}
        object.__setattr__(folder, "weighed", (replace(folder.weighed[0], settings=settings),))
    joint = decide_jointly([first, second])
    assert joint.setting is None
    assert "ensemble w=0.9 K=5 eps=0.3 fails on B (not run there)" in joint.text
    settings = {cell: f"{name} eps=0.3" for cell, name in second.weighed[0].names.items()}
    names = {cell: f"{name} lookup" for cell, name in second.weighed[0].names.items()}
    object.__setattr__(second, "weighed", (replace(second.weighed[0], settings=settings, names=names),))
    assert decide_jointly([first, second]).setting == "ensemble w=0.7 K=5", "the same setting, by its shortest name"


@pytest.mark.parametrize("commands", VARIANTS.values(), ids=VARIANTS)
def test_a_setting_of_two_folders_has_one_draft_and_one_version_whatever_else_a_folder_holds(commands):
    def weighed(*commands):
        cells = table_of(frame_of_cells({cell.key: cell for cells in commands for cell in cells}.values()))
        cells = cells[cells["verifier"] == "ensemble"]
        return Weighed("m", "t", "m on t", Metric("strict", "share"), cells=cells, names=names_of(cells))

    for alone in commands:
        both, single = _with_settings([weighed(*commands), weighed(alone)])
        homes = [set(settings) for settings in (both.settings.values(), single.settings.values())]
        assert (len(homes[0]), len(homes[1])) == (len(both.settings), 2)
        assert homes[1] < homes[0]
        assert {key: both.settings[key] for key in single.settings} == single.settings, "the cells of one draft"
    first, second = _with_settings([weighed(each) for each in commands])
    assert not set(first.names.values()) & set(second.names.values()), "no name is that of another draft or version"
    assert not set(first.settings.values()) & set(second.settings.values())


def test_a_setting_is_told_by_what_decides_it_whatever_the_folder_sweeps():
    axes = [{"knob": "eps", "value": 0.3}, {"knob": "delta", "value": 0.2}]
    cell = pd.Series(
        {
            "verifier": "typical",
            "axes": axes,
            "knobs": "delta=0.2",
            "drafter": "lookup",
            "num_draft": 5,
            "content": None,
        }
    )
    assert full_setting_of(cell) == "typical eps=0.3 delta=0.2 lookup K=5"
    other = cell.copy()
    other["knobs"] = "eps=0.3"  # of a folder that sweeps delta
    assert full_setting_of(other) == full_setting_of(cell)
    for longest in (3, 12):
        other["content"] = {"drafter": {"name": "lookup", "longest": longest}}
        assert full_setting_of(other) == f"typical eps=0.3 delta=0.2 lookup longest={longest} K=5"
    learned = cell.copy()
    learned["axes"] = [{"knob": "head", "value": "gsm8k@1a2b"}, {"knob": "offset", "value": 0}]
    learned["content"] = {"heads": {"head": "1a2b"}}
    assert full_setting_of(learned) == "typical offset=0 lookup K=5", "a head is trained for each task"
