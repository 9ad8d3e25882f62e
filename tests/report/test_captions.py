"""The captions that page and README quote: names are names of files, and every caption has a title and a text."""

import re

from sdbench.report.captions import FIGURES, TABLES, caption_of, in_order


def test_names_leave_the_hyphen_to_the_suffix():
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in FIGURES)


def test_every_caption_has_a_title_and_a_text():
    for caption in [*FIGURES.values(), *TABLES.values()]:
        assert caption.title
        assert caption.text.endswith(".")


def test_a_suffix_stands_in_the_title():
    assert caption_of("pareto").title == FIGURES["pareto"].title
    assert (
        caption_of("against_knob-llama-tiny-wmt-tiny").title == FIGURES["against_knob"].title + ": llama-tiny-wmt-tiny"
    )


def test_stems_are_read_in_the_order_of_the_table():
    assert in_order(["laws-b", "pareto-b", "laws-a", "pareto"]) == ["pareto", "pareto-b", "laws-a", "laws-b"]
