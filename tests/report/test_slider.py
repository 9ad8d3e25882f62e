"""The margin's slider decides as the command does at the margin that it shows, for any number of settings."""

import numpy as np
import pytest

from sdbench.metrics.recommend import decide
from sdbench.report.page.verdicts import match_advice, states_of, words_of
from sdbench.report.sweep import sweeps_of
from tests.records.synthetic import write_synthetic
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
