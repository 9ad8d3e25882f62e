"""Figures of awkward sweeps: many settings, two knobs, temperature 0 without a distance between the distributions."""

from dataclasses import replace

import pytest

from sdbench.metrics.summary import summarise
from sdbench.records import Store, read
from sdbench.report.figures import draw_figures
from sdbench.report.figures.style import house_style
from sdbench.report.page.drawings import CROSSES, NOTES
from sdbench.report.sweep import sweeps_of
from tests.records.synthetic import Shape, write_synthetic
from tests.records.synthetic import sweep as sweep_cells


def drawn(home):
    results = read(home)
    (sweep,) = sweeps_of([results], [summarise(results, resamples=50)])
    with house_style():
        return sweep, draw_figures([sweep])


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """Eight curves on two knobs."""
    given = {"ws": (0.2, 0.8), "epsilons": (0.1, 0.5), "num_drafts": (2, 3, 4, 5), "max_new_tokens": 12}
    return drawn(
        write_synthetic(tmp_path_factory.mktemp("crowded") / "home", n=5, timing_examples=2, repeats=1, **given)
    )


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


def test_the_legends_of_one_curve_are_within_the_figure(tmp_path):
    """Two long entries beside each other ran out of the bound's figure on both sides."""
    _, figures = drawn(write_synthetic(tmp_path / "one", n=4, ws=(0.3, 0.7), timing_examples=2, repeats=1))
    for name, figure in figures.items():
        boxes = [legend.get_window_extent() for legend in figure.legends]
        assert all(0 <= box.x0 < box.x1 <= figure.bbox.width for box in boxes), name


def test_a_caption_names_crosses_only_where_they_are(crowded, tmp_path):
    sweep, _ = crowded
    assert NOTES["against_knob"](sweep) == CROSSES
    greedy, _ = drawn(write_synthetic(tmp_path / "greedy", n=3, ws=(0.5,), timing_examples=0, temperature=0.0))
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
    sweep, figures = drawn(tmp_path / "home")
    assert sweep.rows.loc[sweep.cells["verifier"] == "lossless", "tv"].isna().all()
    assert sweep.rows.loc[sweep.cells["verifier"] == "ensemble", "tv"].notna().all()
    assert {"pareto", "against_knob", "positions", "divergence"} <= set(figures)
    assert not {"bound", "predicted"} & set(figures)
