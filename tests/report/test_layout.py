"""Room for labels: none is cut off, whatever ticks the final size of the axes brings."""

import pytest
from matplotlib.artist import Artist

from sdbench.report.figures.style import FORMATS, PAD, house_style, panels, save, settle


@pytest.mark.parametrize("top", [1.0, 0.999, 1.5, 5.7, 12.0, 1234.5])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_no_label_stands_outside_the_figure(top, rows):
    with house_style():
        figure, axes = panels(rows=rows, height=1.7, sharex=True)
        for axis in axes:
            axis.plot([0, 1], [0.7, top])
            axis.set_ylabel("acceptance")
        axes[-1].set_xlabel("w, the weight of the target")
        settle(figure)
        figure.draw_without_rendering()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= -PAD / 2
    assert box.y0 >= -PAD / 2
    assert box.x1 <= width + PAD / 2
    assert box.y1 <= height + PAD / 2


def test_a_figure_is_drawn_once_a_format(tmp_path):
    class Counted(Artist):
        drawn = 0

        def draw(self, renderer):
            Counted.drawn += 1

    with house_style():
        figure, _ = panels(2)
        figure.add_artist(Counted())
        save(figure, tmp_path, "counted")
    assert Counted.drawn == len(FORMATS)
