"""The margin's slider decides as the command does at the margin that it shows, for any number of settings."""

from dataclasses import replace

import numpy as np
import pytest

from sdbench.metrics.recommend import decide
from sdbench.records import Store
from sdbench.report.page.verdicts import match_advice, states_of, words_of
from sdbench.report.sweep import sweeps_of
from tests.records.synthetic import Shape, sweep, write_synthetic
from tests.report.pages import advice, numbers, write
from tests.report.test_page_browser import chromium, pytestmark  # noqa: F401

SETTINGS = {
    2: ((0.3, 0.7), (5,), 0),
    40: (tuple(np.linspace(0, 0.95, 20).round(2)), (3, 5), 40),
    141: (tuple(np.linspace(0, 0.94, 47).round(2)), (3, 5, 7), 0),
}  # settings -> w, num_draft, a seed by which few enough lossless answers are cut off for a decision
MOVED = """
([margins]) => {
  const article = document.querySelector(".verdict"), mover = article.querySelector("[data-part=mover]");
  return margins.map((margin) => {
    mover.value = margin;
    mover.dispatchEvent(new Event("input"));
    const marks = [...article.querySelectorAll(".ladder .mark")].slice(1).map((mark) => mark.textContent);
    const shown = Number(article.querySelector("[data-part=margin]").textContent);
    return [shown, article.querySelector("[data-part=headline]").textContent, marks];
  });
}
"""
STATES = {"y": "✓ yes", "n": "✗ no", "-": "not reached"}


@pytest.mark.parametrize("count", SETTINGS)
def test_the_slider_decides_as_the_command_does_at_200_margins(count, chromium, tmp_path):  # noqa: F811
    """It kept the first 60 margins at which a decision changes, and showed the last of them from there on."""
    ws, num_drafts, seed = SETTINGS[count]
    home = write_synthetic(
        tmp_path / "many", n=55, ws=ws, num_drafts=num_drafts, timing_examples=0, max_new_tokens=12, seed=seed
    )
    results, summary = numbers(home)
    (advised,) = match_advice(sweeps_of([results], [summary]), [results], [advice(home, 40.0)])
    page = chromium.new_page()
    page.goto(write(home).as_uri())
    most = float(page.locator("[data-part=mover]").first.get_attribute("max"))
    moved = page.evaluate(MOVED, [np.linspace(0.2, most, 200).tolist()])
    assert len(moved) == 200
    for margin, headline, marks in moved:
        expected = decide(advised.weighed, margin)
        assert headline == words_of(advised, expected)["headline"], margin
        assert marks == [STATES[state] for state in states_of(advised.weighed, margin)], margin
    page.close()


def test_a_margin_equal_to_an_excess_is_decided_as_by_the_command(chromium, tmp_path):  # noqa: F811
    """15 of 60 answers are empty: within a margin of 25 points by the command, and refused there by the slider."""
    home, shape = tmp_path / "tie", Shape(16)
    cells = sweep("llama-tiny", "gsm8k-tiny", ws=(0.5,), num_drafts=(5,), temperature=1.0)
    (lossless,) = (cell for cell in cells if cell.verifier == "lossless")
    with Store.open(home, config={"model": "llama-tiny"}, provenance={}) as store:
        store.add_cells(cells)
        for example in range(60):
            scores = shape.decode(lossless, str(example)).scores
            for cell in cells:
                flags = {"is_truncated": False, "is_empty": cell.w == 0.5 and example < 15}
                record = replace(shape.decode(cell, str(example)), scores=scores, flags=flags)
                store.append_generations([record])
    page = chromium.new_page()
    page.goto(write(home, margin=20.0).as_uri())
    moved = page.evaluate(MOVED, [[24, 25, 26]])
    assert [[shown, marks] for shown, _, marks in moved] == [[24, ["✗ no"]], [25, ["✓ yes"]], [26, ["✓ yes"]]]
    page.close()
