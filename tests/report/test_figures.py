"""Figures of awkward sweeps: many settings, two knobs, temperature 0 without a distance between the distributions."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection

from sdbench.metrics.summary import summarise
from sdbench.records import Store, read
from sdbench.report.figures import draw_figures
from sdbench.report.figures.labels import Room
from sdbench.report.figures.marks import intervals, label_levels, looks_of
from sdbench.report.figures.style import house_style, panels, settle
from sdbench.report.page.drawings import CROSSES, NOTES
from sdbench.report.sweep import sweeps_of
from tests.records.synthetic import Shape, write_synthetic
from tests.records.synthetic import sweep as sweep_cells


def draw(home):
    results = read(home)
    (sweep,) = sweeps_of([results], [summarise(results, resamples=50)])
    with house_style():
        return sweep, draw_figures([sweep])


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """Eight curves on two knobs."""
    given = {"ws": (0.2, 0.8), "epsilons": (0.1, 0.5), "num_drafts": (2, 3, 4, 5), "max_new_tokens": 12}
    return draw(
        write_synthetic(tmp_path_factory.mktemp("crowded") / "home", n=5, timing_examples=2, repeats=1, **given)
    )


@pytest.mark.slow
def test_no_legend_lies_on_data(crowded):
    """They stood in corners of the panels: over points of curves that rise to the right, and over n where there are many."""
    _, figures = crowded
    assert {"against_knob", "speed_against_knob", "time_split", "bound", "laws", "predicted", "pareto"} <= set(figures)
    for name, figure in figures.items():
        assert not [axis for axis in figure.axes if axis.get_legend() is not None], name
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert box.y1 <= min(axis.get_tightbbox().y0 for axis in figure.axes), name
            assert 0 <= box.x0 < box.x1 <= figure.bbox.width, name


def test_labels_of_a_plane_do_not_overlap(crowded):
    _, figures = crowded
    for name in ("pareto", "pareto_speed", "bound"):
        (axis,) = figures[name].axes
        boxes = [text.get_window_extent() for text in axis.texts if text.get_text()]
        overlaps = [
            (a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.shrunk(0.8, 0.7).overlaps(b.shrunk(0.8, 0.7))
        ]
        assert not overlaps, name


def test_a_level_line_is_named_above_the_panel_where_no_spot_is_free():
    """With 141 settings the dashed line of the target alone had no name."""
    with house_style():
        figure, (axis,) = panels()
        axis.plot(np.linspace(0, 1, 50), np.tile([0.0, 1.0], 25))
        axis.axhline(0.5)
        settle(figure)
        room = Room(axis)
        label_levels(room, {"target": 0.5})
        assert [text.get_text() for text in axis.texts] == ["target alone"]
        for height in np.linspace(-0.1, 1.1, 60):
            room.block_line([-0.1, 1.1], [height, height])
        label_levels(room, {"draft": 0.25})
        assert len(axis.texts) == 1
        assert axis.get_title(loc="left") == "dashed at 0.25: draft alone"


@pytest.mark.parametrize(("count", "is_band"), [(12, False), (47, True)])
def test_intervals_of_many_settings_are_a_band(count, is_band):
    """As lines they were a fence, behind which nothing could be seen."""
    with house_style():
        _, (axis,) = panels()
        x = pd.Series(np.arange(count))
        intervals(axis, x, x - 1, x + 1, "C0", 1.0)
    (collection,) = axis.collections
    assert isinstance(collection, PolyCollection) is is_band


@pytest.mark.slow
def test_the_legends_of_one_curve_are_within_the_figure(tmp_path):
    """Two long entries beside each other ran out of the bound's figure on both sides."""
    _, figures = draw(write_synthetic(tmp_path / "one", n=4, ws=(0.3, 0.7), timing_examples=2, repeats=1))
    for name, figure in figures.items():
        boxes = [legend.get_window_extent() for legend in figure.legends]
        assert all(0 <= box.x0 < box.x1 <= figure.bbox.width for box in boxes), name


def test_a_caption_names_crosses_only_where_they_are(crowded, tmp_path):
    sweep, _ = crowded
    assert NOTES["against_knob"](sweep) == CROSSES
    greedy, _ = draw(write_synthetic(tmp_path / "greedy", n=3, ws=(0.5,), timing_examples=0, temperature=0.0))
    assert NOTES["against_knob"](greedy) == ""


def test_greedy_records_without_a_distance_for_lossless_have_the_other_figures(tmp_path):
    """At T = 0 p and q are tokens: tv is null, or that of the un-tempered distributions where a rule reads those."""
    cells = sweep_cells("a", "gsm8k-tiny", ws=(0.3, 0.7), num_drafts=(5,), temperature=0.0)
    with Store.open(tmp_path / "home", config={}, provenance={}) as store:
        store.add_cells(cells)
        for example in map(str, range(4)):
            rows = [Shape(16).decode(cell, example) for cell in cells]
            store.append_generations(
                [
                    replace(row, tv=None) if cell.verifier == "lossless" else row
                    for cell, row in zip(cells, rows, strict=True)
                ]
            )
    sweep, figures = draw(tmp_path / "home")
    assert sweep.rows.loc[sweep.cells["verifier"] == "lossless", "tv"].isna().all()
    assert sweep.rows.loc[sweep.cells["verifier"] == "ensemble", "tv"].notna().all()
    assert {"pareto", "against_knob", "positions", "divergence"} <= set(figures)
    assert not {"bound", "predicted"} & set(figures)


def test_two_dozen_names_differ_in_colour_and_line_and_neighbours_of_a_colour_in_their_mark():
    looks = looks_of(map(str, range(24)))
    assert len({(look["color"], look["linestyle"]) for look in looks.values()}) == 24
    of_a_colour = [look for look in looks.values() if look["color"] == looks["0"]["color"]]
    assert len({look["marker"] for look in of_a_colour}) == len(of_a_colour) == 4
