"""scripts/simulate_shipping.py: what its page says is computed from what was simulated."""

import json
from pathlib import Path

from scripts import simulate_shipping

STATISTICS = Path(__file__).parents[2] / "results/statistics"


def test_the_committed_page_of_settings_shipped_by_mistake_is_that_of_its_table():
    tree = json.loads((STATISTICS / "shipping.json").read_text())
    shares = {int(n): {int(count): share for count, share in row.items()} for n, row in tree["shipped"].items()}
    assert simulate_shipping.page_of(shares, tree["runs"]) == (STATISTICS / "shipping.md").read_text()


def test_the_sentence_on_the_error_of_students_limits_is_that_of_the_simulation():
    page = simulate_shipping.page_of({30: {2: 0.03}, 12: {2: 0.04}}, 100)
    assert "With 12 texts of different lengths" in page
    assert "err up to 1.60 times as often" in page
    assert "settings=2 texts=30,12`" in page
