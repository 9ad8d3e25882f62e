"""The page as a document: whole markup, nothing from outside, everything it promises, whatever the records hold."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import lxml.html
import pytest

from sdbench.metrics import summary
from sdbench.metrics.cells import VARIED
from sdbench.metrics.export import metrics_of
from sdbench.records import Store
from sdbench.report import page as pages
from sdbench.report.captions import MEASURES, PAGE_TABLES
from sdbench.report.captions import WORDS as TERMS
from sdbench.report.page import split_by_room, tables
from sdbench.report.page.drawings import declare_colour, drawing_of
from sdbench.report.page.verdicts import match_advice
from sdbench.report.sweep import sweeps_of
from tests.records.synthetic import WORDS, Shape, cell, sweep, write_synthetic
from tests.report.pages import VOCABULARY, draw, numbers, unpacked, write, write_home

VOID = {"meta", "br", "input", "img", "link", "hr"}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return write_home(tmp_path_factory.mktemp("results") / "llama-tiny-gsm8k-tiny")


@pytest.fixture(scope="module")
def source(home) -> str:
    return write(home).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tree(source):
    return lxml.html.document_fromstring(source)


class Nesting(HTMLParser):
    """Every element that is opened is closed, in order; what stands in a script ends where a browser would end it."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


def test_every_element_is_closed(source):
    nesting = Nesting(source)
    assert nesting.open == []
    assert len(nesting.scripts) == 3


def test_nothing_comes_from_outside(tree, source):
    assert not tree.xpath("//*[@src] | //link | //iframe | //object | //base | //form")
    names = {name for element in tree.iter() if isinstance(element.tag, str) for name in element.attrib}
    assert not {name for name in names if name.lower().startswith("on")}
    hrefs = {value for _, name, value, _ in tree.iterlinks() if name in ("href", "src", "action")}
    assert all(href.startswith("#") for href in hrefs)
    assert not re.findall(r"url\((?!#)", source)
    policy = tree.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_no_two_scripts_of_the_page_define_the_same_function():
    """They share one scope: a second definition replaces the first everywhere."""
    folder = Path(pages.__file__).parent / "templates"
    names = [
        name for path in sorted(folder.glob("*.js")) for name in re.findall(r"^function (\w+)", path.read_text(), re.M)
    ]
    assert sorted(names) == sorted(set(names))


def test_ids_are_unique_and_every_link_has_its_target(tree):
    ids = tree.xpath("//@id")
    assert len(ids) == len(set(ids))
    assert {href.lstrip("#") for href in tree.xpath("//a/@href")} <= set(ids)
    named = {name for names in tree.xpath("//@aria-labelledby") for name in names.split()}
    assert named <= set(ids)


def test_sections_stand_in_the_order_of_reading(tree):
    order = ["recommendation", "run", "tables", "figures", "examples", "definitions", "rebuild"]
    assert tree.xpath("//main/section/@id") == order
    levels = [int(heading.tag[1]) for heading in tree.xpath("//h1 | //main//h2 | //main//h3 | //main//h4")]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_recommendation_shows_its_tests(tree):
    (answer,) = tree.xpath("//article[contains(@class, 'verdict')]")
    assert answer.xpath(".//p[@class='headline']/text()") == ["Ship ensemble w=0.3 K=5"]
    facts = dict(zip(answer.xpath(".//dl/div/dt/text()"), answer.xpath(".//dl/div/dd/b/text()"), strict=True))
    assert list(facts) == ["Cost", "Gain over lossless", "Over the target alone"]
    assert facts["Cost"].endswith(" points")
    steps = answer.xpath(".//table[@class='ladder']//tbody/tr")
    assert [step.xpath("string(th)") for step in steps] == ["ensemble w=0.7 K=5", "ensemble w=0.3 K=5"]
    assert all(step.xpath("string(td[last()])") == "✓ yes" for step in steps)
    assert tree.xpath("//tr[@class='advised']/th")[0].text_content() == "ensemble w=0.3 K=5 ★ recommended"


def test_the_plane_has_every_setting_and_the_decisions_for_every_margin(tree):
    (answer,) = tree.xpath("//article[contains(@class, 'verdict')]")
    marks = answer.xpath(".//*[local-name()='g' and contains(@class, 'point')]")
    labels = [mark.xpath("string(*[local-name()='text'])") for mark in marks]
    assert labels == ["w=0.7", "w=0.3", "lossless"], "the last is drawn on top"
    (advised,) = [mark for mark in marks if "advised" in mark.get("class")]
    decisions = json.loads(answer.get("data-decisions"))
    assert decisions[0]["from"] == 0
    assert [one["from"] for one in decisions] == sorted(one["from"] for one in decisions)
    assert decisions[0]["kind"] == "none"
    assert [one["kind"] for one in decisions[-2:]] == ["ship", "none"]
    assert "this run cannot tell" in decisions[-1]["text"].lower(), (
        "lossless itself does not score as much as the margin"
    )
    assert decisions[-2]["setting"] == advised.get("data-cell")
    assert "{margin}" in decisions[-2]["text"]


@pytest.mark.slow
def test_without_a_safe_setting_it_says_so(home):
    tree = lxml.html.document_fromstring(write(home, margin=0.01).read_text(encoding="utf-8"))
    assert tree.xpath("//p[@class='headline']/text()") == ["No recommendation"]
    assert not tree.xpath("//tr[@class='advised']")
    write(home)


def test_tables_have_intervals_units_and_marked_baselines(tree):
    first, *others = tree.xpath("//table[contains(@class, 'sortable')]")
    labels = [
        "target alone",
        "plain generate",
        "lossless K=5",
        "ensemble w=1 K=5",
        "ensemble w=0.7 K=5",
        "ensemble w=0.3 K=5",
        "draft alone",
    ]
    assert [row.xpath("string(th/text())").strip() for row in first.xpath(".//tbody/tr")] == labels
    assert [row.get("class") for row in first.xpath(".//tbody/tr")] == [
        *["baseline"] * 3,
        None,
        None,
        "advised",
        "baseline",
    ]
    heads = [" ".join(head.text_content().split()) for head in first.xpath(".//thead//th")]
    assert heads == [
        *("Setting", "Quality (strict) points", "Against lossless points", "Speed-up ×", "Over lossless ×"),
        *("Acceptance", "Tokens per round ×", "Loops %", "n"),
    ]
    for table in [first, *others]:
        assert table.xpath("string(caption)")
        assert all(cell.get("data-sort") for cell in table.xpath(".//td[normalize-space()]"))
    shown = [cell.text_content() for cell in first.xpath(".//tbody/tr[4]/td")]
    assert shown[-1] == "60"
    assert shown[2].strip().startswith("~") or re.search(r"\[.+, .+\]", shown[2])
    assert all(re.search(r"\[.+, .+\]", text) for text in shown[:2])


def test_figures_have_titles_captions_and_words_for_those_who_do_not_see_them(tree):
    for figure in tree.xpath("//section[@id='figures']//figure"):
        svg = figure.xpath(".//*[local-name() = 'svg']")[0]
        assert svg.get("role") == "img"
        assert figure.xpath("string(h3)") in svg.get("aria-label")
        assert figure.xpath("string(figcaption)").endswith(".")
    assert len(tree.xpath("//section[@id='figures']//figure")) == 2


def test_a_drawing_follows_the_theme_and_keeps_its_shape(home):
    drawing = drawing_of(home / "figures" / "against_knob.svg")
    assert drawing.is_wide
    assert not drawing_of(home / "figures" / "pareto.svg").is_wide
    assert "light-dark(#0072b2," in drawing.svg
    assert "fill: #ffffff; fill: var(--paper)" in drawing.svg
    assert "scale(0.015625)" in drawing.svg
    assert 'width="' not in drawing.svg.split(">")[0]
    assert declare_colour("stroke", "#222222").startswith("stroke: #222222; stroke: light-dark(#222222, #e")


def test_every_measure_and_word_is_defined(tree):
    terms = [" ".join(term.split()) for term in tree.xpath("//dl[@class='definitions']//dt/text()")]
    assert {*TERMS, *(measure.title for measure in MEASURES.values())} <= set(terms)
    columns = {column for table in PAGE_TABLES.values() for column in table}
    assert columns <= set(MEASURES)
    labels = {"metric", "is_lossless", "knobs", "also", "cell", "protocol", *VARIED}
    assert {*summary.WITH_INTERVALS, *summary.PLAIN} - labels <= set(MEASURES)


def test_failures_and_warnings_are_on_the_page(tree):
    warnings = tree.xpath("string(//*[@id='warnings'])")
    assert "1 failure" in warnings
    assert "llama-tiny on gsm8k-tiny, ensemble w=1 K=5, example no such example: scoring failed: <oops>" in warnings
    assert "commit ends in +" in warnings


def test_the_commands_rebuild_the_page(tree):
    commands = [code.text_content() for code in tree.xpath("//div[@class='command']//code")]
    assert commands == [
        "python -m sdbench 'w=[0.3,0.7,1]' name='<x>'",
        "python -m sdbench.report results/llama-tiny-gsm8k-tiny",
    ]
    assert "0123456789abcdef+" in tree.xpath("string(//*[@id='rebuild'])")


def test_examples_are_there_to_the_letter(tree):
    data = json.loads(tree.xpath("//script[@id='examples-data']/text()")[0])
    (group,) = data["groups"]
    assert len(group["examples"]) == 60
    assert [group["cells"][place]["label"] for place in group["compared"]] == ["lossless K=5", "ensemble w=0.3 K=5"]
    example = unpacked(data["chunks"][0])
    assert example["prompt"].endswith("</pre></script><b onclick='hacked=1'>שלום")
    pieces = {piece for text in example["texts"] for piece in text["pieces"]}
    assert pieces <= set(VOCABULARY) | {""}
    assert "</script>" in pieces


def test_hostile_words_never_stand_in_the_markup(source):
    assert "window.hacked" not in source
    assert "<oops>" not in source
    assert "&lt;oops&gt;" in source


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(home):
    assert write(home).read_bytes() == write(home).read_bytes()


@pytest.mark.slow
def test_a_page_is_never_larger_than_its_room(home, monkeypatch):
    room = write(home).stat().st_size - 20_000
    monkeypatch.setattr(pages, "ROOM", room)
    path = write(home)
    assert path.stat().st_size < room + 10_000  # the list of examples is not counted
    assert "examples are shown; more would make this page too large" in path.read_text(encoding="utf-8")


def test_figures_without_room_are_named(home):
    drawings = [drawing_of(path) for path in sorted((home / "figures").glob("*.svg"))]
    kept, missing = split_by_room(drawings, drawings[0].num_bytes)
    assert [drawing.name for drawing in kept] == ["against_knob"]
    assert missing == ["pareto"]


def test_several_recommendations_err_at_most_as_often_as_all_together(home, monkeypatch):
    """Sweeps share their examples, so that chances of error add up at worst: 7.5 %, not the 7 % of independent ones."""
    monkeypatch.setattr(pages, "match_advice", lambda *given: 3 * match_advice(*given))
    tree = lxml.html.document_fromstring(write(home).read_text(encoding="utf-8"))
    assert "is up to 7.5\xa0%" in tree.xpath("string(//*[@id='errors'])")


@pytest.mark.slow
def test_two_folders_share_a_page(home, tmp_path):
    other = write_home(tmp_path / "other", n=8, samples=2)
    tree = lxml.html.document_fromstring(write(home, other).read_text(encoding="utf-8"))
    titles = [f"llama-tiny on gsm8k-tiny ({name})" for name in (home.name, "other")]
    assert tree.xpath("//section[@id='tables']/h3/text()") == titles
    warnings = tree.xpath("string(//*[@id='warnings'])")
    assert f"{titles[1]}. n is small: 8 examples" in warnings
    data = json.loads(tree.xpath("//script[@id='examples-data']/text()")[0])
    assert [len(group["examples"]) for group in data["groups"]] == [60, 8]
    assert {text["sample"] for text in unpacked(data["chunks"][-1])["texts"]} == {0, 1}
    write(home)


@pytest.mark.slow
def test_pairs_tasks_rules_and_samples_each_have_their_place(tmp_path):
    given = {"models": ("a", "b"), "tasks": ("gsm8k-tiny", "wmt-tiny"), "is_block_too": True, "samples": 2}
    home = write_synthetic(tmp_path / "grid", n=4, ws=(0.5, 1.0), timing_examples=0, max_new_tokens=16, **given)
    tree = lxml.html.document_fromstring(write(home).read_text(encoding="utf-8"))
    assert tree.xpath("//h1/text()") == ["a, b on gsm8k-tiny, wmt-tiny"]
    titles = [f"{model} on {task}" for model in "ab" for task in ("gsm8k-tiny", "wmt-tiny")]
    assert tree.xpath("//section[@id='tables']/h3/text()") == titles
    labels = [
        row.xpath("string(th/text())").strip()
        for row in tree.xpath("//table[contains(@class, 'sortable')][1]")[0].xpath(".//tbody/tr")
    ]
    assert labels == [
        "target alone",
        "lossless K=5",
        "block K=5",
        "ensemble w=1 K=5",
        "ensemble w=0.5 K=5",
        "draft alone",
    ]
    assert len(tree.xpath("//article[contains(@class, 'verdict')]")) == 4
    assert "There are no figures for these records." in tree.xpath("string(//section[@id='figures'])")


def test_a_run_that_left_nothing_has_a_page_that_says_so(tmp_path):
    with Store.open(tmp_path / "empty", config={}, provenance={}) as store:
        store.add_cells([cell("a", "gsm8k-tiny", "ensemble", w=0.5)])
    tree = lxml.html.document_fromstring(write(tmp_path / "empty").read_text(encoding="utf-8"))
    assert tree.xpath("//h1/text()") == ["empty"]
    assert "nothing to recommend" in tree.xpath("string(//section[@id='recommendation'])")


@pytest.mark.slow
def test_three_hundred_long_examples_make_ten_megabytes_at_most(tmp_path):
    """1.8 million tokens whose probabilities are noise: the worst that packing can meet. Quick: the two tests of rooms."""
    shape = Shape(1024)
    cells = sweep("m", "gsm8k-tiny", ws=(0, 0.3, 0.5, 0.7, 1), num_drafts=(5,), temperature=1.0)
    base = {c.key: [shape.decode(c, str(i)) for i in range(10)] for c in cells}
    with Store.open(tmp_path / "long", config={}, provenance={}) as store:
        store.add_cells(cells)
        store.add_vocabulary("m", "words", lambda: [f" {word}" for word in WORDS])
        store.add_examples(
            cells[0].asked, [f"e{i}" for i in range(300)], lambda key: (f"{key} article " * 500, key * 200)
        )
        for i in range(300):
            store.append_generations([replace(base[c.key][i % 10], example=f"e{i}") for c in cells])
        store.compact()
    draw(tmp_path / "long" / "figures")
    path = write(tmp_path / "long")
    data = json.loads(re.search(r'id="examples-data">(.*?)</script>', path.read_text(encoding="utf-8"))[1])
    assert path.stat().st_size <= 10**7
    assert 200 <= len(data["chunks"]) <= 300


def test_every_score_stands_beside_the_headline(home):
    results, summarised = numbers(home)
    scores = metrics_of(results, resamples=50)
    (sweep,) = sweeps_of([results], [summarised], [lambda: scores])
    first, second = tables.tables_of(sweep, None)[:2]
    assert (first.is_open, second.is_open, second.title) == (True, True, "Every score")
    names = [column.name for column in second.columns]
    assert names[0] == sweep.metric.name
    assert set(names) == {name for own in scores.values() for name in own}
    assert second.rows == first.rows
    for index, key in enumerate(sweep.rows.index):
        held = [scores.get(key, {}).get(name) for name in names]
        shown = [column.values[index].sort for column in second.columns]
        assert shown == [None if one is None else one.value for one in held]
    (bare,) = sweeps_of([results], [summarised])
    assert "Every score" not in [table.title for table in tables.tables_of(bare, None)]
