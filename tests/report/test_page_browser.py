"""The page in a real Chromium: nothing loaded, nothing logged, everything reached by keys, on a phone, in the dark, in print.

Its stand-in among the quick tests is test_page.py, which reads the same page with a parser.
"""

import json
import math
import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from sdbench.metrics.stats import Estimate
from sdbench.records import read
from sdbench.report.page.tables import _value
from sdbench.types import Metric
from tests.records.synthetic import write_synthetic
from tests.report.pages import unpacked, write, write_home

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: scripts/system_packages installs one"),
]
WHITE_SPACE = re.compile(r"\s+")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = write_home(tmp_path_factory.mktemp("results") / "llama-tiny-gsm8k-tiny")
    write(home)
    return home


@pytest.fixture(scope="module")
def data(home):
    source = (home / "report.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'id="examples-data">(.*?)</script>', source)[1])


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, home):
    """Opens the page; at the end nothing may have been logged, thrown or fetched."""
    trouble: list[str] = []
    contexts = []

    def opened(width: int = 1280, height: int = 900, *, is_ready: bool = True, **options):
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(120_000)  # a busy machine is no failure
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: trouble.append(request.url) if request.url != url else None)
        page.goto(url)
        if is_ready:
            page.wait_for_selector(".texts .token")
        return page

    url = (home / "report.html").as_uri()
    yield opened
    for context in contexts:
        context.close()
    assert trouble == []


def opened_at(group) -> list[int]:
    """The settings in which the first example is shown: lossless, and where it changes most."""
    listed, base = group["examples"][0], group["compared"][0]
    gaps = {
        place: abs(score - listed["scores"][base])
        for place, (score, cell) in enumerate(zip(listed["scores"], group["cells"], strict=True))
        if not cell["is_baseline"]
    }
    return [base, max(gaps, key=lambda place: (gaps[place], -place))]


def settle(page, title: str) -> None:
    page.wait_for_function("title => document.querySelector('[data-part=title]').textContent === title", arg=title)


def test_it_opens_without_a_word_and_without_the_network(visit):
    page = visit()
    assert page.title() == "llama-tiny on gsm8k-tiny · sdbench report"
    assert page.locator("main > section").count() == 7
    assert page.locator("#figures figure svg").count() == 2
    assert page.locator(".plane svg").is_visible()
    assert page.locator("#no-browser").count() == 0


def test_texts_of_a_model_are_words_and_nothing_else(visit, data):
    page = visit()
    assert page.evaluate("window.hacked") is None
    assert page.locator(".shown img, .shown script, .shown b, .list img").count() == 0
    example = unpacked(data["chunks"][data["groups"][0]["examples"][0]["chunk"]])
    for name in ("prompt", "reference"):
        assert page.locator(f"[data-part={name}]").evaluate("part => part.textContent") == example[name]


def test_the_policy_stops_what_a_mistake_would_let_in(chromium, home):
    context = chromium.new_context()
    page = context.new_page()
    page.goto((home / "report.html").as_uri())
    with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked=1\">')")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'hacked = 1'}))")
    fetched = page.evaluate("fetch('data:,x').then(() => 'fetched', () => 'refused')")
    assert fetched == "refused"
    assert page.evaluate("window.hacked") is None
    context.close()


def column(page, index: int) -> list[str]:
    return page.locator(f".sortable >> nth=0 >> tbody tr td:nth-of-type({index})").evaluate_all(
        "cells => cells.map(cell => cell.dataset.sort ?? '')"
    )


def test_heads_sort_by_click_and_by_key(visit):
    page = visit()
    head = page.locator(".sortable >> nth=0 >> thead th").nth(2)
    before = column(page, 2)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    known = [float(value) for value in column(page, 2) if value]
    assert known == sorted(known)
    assert column(page, 2)[-1] == "", "what was not measured stays last"
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert [float(value) for value in column(page, 2) if value] == known[::-1]
    assert column(page, 2)[-1] == ""
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "none"
    assert column(page, 2) == before


def test_every_token_is_coloured_by_its_origin(visit, home, data):
    page = visit()
    results = read(home)
    group = data["groups"][0]
    listed = group["examples"][0]
    for place, cell in enumerate(opened_at(group)):
        key = group["cells"][cell]["key"]
        rows = results.generations[
            (results.generations["cell"] == key) & (results.generations["example"] == listed["id"])
        ]
        (row,) = rows.to_dict("records")
        text = page.locator(f".texts .column >> nth={place}")
        assert text.locator(".text").evaluate("box => box.textContent") == row["text"]
        for letter, name in (("a", "accepted"), ("r", "replaced"), ("b", "bonus")):
            assert text.locator(f".token.{letter}").count() == row[name]
    styles = {
        letter: page.locator(f".shown .key .token.{letter}").evaluate(
            "key => [getComputedStyle(key).borderBottomStyle, getComputedStyle(key).borderBottomColor]"
        )
        for letter in "arb"
    }
    assert {style for style, _ in styles.values()} == {"solid", "double", "dotted"}, "told apart without colours"
    assert len({colour for _, colour in styles.values()}) == 3


def numbers_of(tip: str) -> dict[str, str]:
    return dict(re.findall(r"\b(p|q|TV)\s*((?:< )?[01]\.\d{3})", tip))


def test_p_and_q_show_on_hover_and_on_focus(visit, home, data):
    page = visit()
    group = data["groups"][0]
    listed = group["examples"][0]
    cell = opened_at(group)[-1]
    results = read(home)
    tokens = results.tokens
    (row,) = tokens[(tokens["cell"] == group["cells"][cell]["key"]) & (tokens["example"] == listed["id"])].to_dict(
        "records"
    )
    spans = page.locator(".texts .column >> nth=1 >> .token")
    assert row["origin"][0] == 0, "the first token of this text is an accepted draft"
    expected = {"p": f"{row['p'][0]:.3f}", "q": f"{row['q'][0]:.3f}", "TV": f"{row['tv'][0]:.3f}"}
    spans.first.hover()
    tip = page.locator(".tip")
    assert numbers_of(tip.inner_text()) == expected
    assert "accepted draft" in tip.inner_text()
    page.mouse.move(5, 5)
    assert not tip.is_visible()
    spans.first.focus()
    assert numbers_of(tip.inner_text()) == expected
    assert all(f"{name} {value}" in spans.first.get_attribute("aria-label") for name, value in expected.items())
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.place") == "1"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.place") == str(len(row["origin"]) - 1)
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    page.locator(".texts .token.r").first.hover()
    assert "was refused" in tip.inner_text()


def test_settings_are_put_side_by_side(visit, data):
    page = visit()
    labels = [data["groups"][0]["cells"][place]["label"] for place in opened_at(data["groups"][0])]
    assert page.locator(".texts h4").all_inner_texts() == labels
    for label in ("ensemble w=0.3 K=5", "ensemble w=0.7 K=5"):
        page.get_by_role("checkbox", name=label).check(force=True)
    page.get_by_role("checkbox", name="ensemble w=1 K=5").uncheck(force=True)
    assert page.locator(".texts h4").all_inner_texts() == ["lossless K=5", "ensemble w=0.7 K=5", "ensemble w=0.3 K=5"]
    page.get_by_role("checkbox", name="target alone").check(force=True)
    assert page.locator(".texts .column >> nth=0 >> .token.o").count() > 0, "nothing was drafted, nothing is coloured"
    tops = page.locator(".texts .column").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
    assert tops[0] == tops[1] == tops[2]
    for label in ("lossless K=5", "ensemble w=0.3 K=5", "ensemble w=0.7 K=5", "target alone"):
        page.get_by_role("checkbox", name=label, exact=True).uncheck(force=True)
    assert "Choose one or more settings" in page.locator(".texts").inner_text()


def test_examples_are_found_by_their_words_and_linked(visit, data):
    page = visit()
    examples = data["groups"][0]["examples"]
    wanted = examples[-1]
    page.locator("[data-part=search]").fill(f"Question {wanted['id']}:")
    settle(page, f"Example {wanted['id']}")
    assert page.locator(".item").count() == 1
    link = page.locator("[data-part=link]").get_attribute("href")
    page.locator("[data-part=search]").fill("")
    page.evaluate("link => { location.hash = link }", link)
    settle(page, f"Example {wanted['id']}")
    page.reload()
    settle(page, f"Example {wanted['id']}")


def test_the_margin_is_moved_and_decided_again(visit):
    page = visit()
    answer = page.locator(".verdict")
    headline, band = answer.locator(".headline"), answer.locator("[data-part=band]")
    assert headline.inner_text() == "Ship ensemble w=0.3 K=5"
    before = float(band.get_attribute("height"))
    mover = answer.locator("[data-part=mover]")
    margin = mover.input_value()
    mover.evaluate("one => { one.value = 0.5; one.dispatchEvent(new Event('input')) }")
    assert headline.inner_text() == "No recommendation"
    assert "0.50 points" in answer.locator("[data-part=sentence]").inner_text()
    assert float(band.get_attribute("height")) < before
    assert answer.locator(".point.advised").count() == 0
    answer.locator("summary").first.click()
    assert answer.locator(".ladder .mark").nth(1).inner_text() == "✗ no"
    mover.evaluate(f"one => {{ one.value = {margin}; one.dispatchEvent(new Event('input')) }}")
    assert headline.inner_text() == "Ship ensemble w=0.3 K=5"
    assert answer.locator(".point.advised").count() == 1


def test_examples_are_filtered_and_walked(visit, data):
    page = visit()
    examples = data["groups"][0]["examples"]
    assert page.locator(".item").count() == len(examples) == 60
    page.locator("[data-part=next]").click()
    settle(page, f"Example {examples[1]['id']}")
    page.locator("[data-part=filter]").select_option("losses")
    losses = [example for example in examples if example["change"] < 0]
    assert page.locator(".item").count() == len(losses)
    settle(page, f"Example {losses[0]['id']}")
    page.locator("[data-part=filter]").select_option("flagged")
    flagged = [example for example in examples if example["flags"]]
    assert page.locator(".item").count() == len(flagged) > 0
    assert page.locator(".item .dot").count() == len(flagged)


def test_everything_is_reached_by_keys_alone(visit, data):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen: list[str] = []
    for _ in range(90):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "(one => one.dataset.part || one.id || (one.closest('[data-part]') || {dataset: {}}).dataset.part"
                " || one.className || one.tagName)(document.activeElement)"
            )
        )
        pair_info = page.evaluate(
            "(one => getComputedStyle(one).outlineStyle + getComputedStyle(one.nextElementSibling || one).outlineStyle)"
            "(document.activeElement)"
        )
        assert "solid" in pair_info or "auto" in pair_info, f"{seen[-1]} does not show that it has the focus"
        if seen[-1] == "list":
            break
    assert "theme" in seen
    page.keyboard.press("ArrowDown")
    settle(page, f"Example {data['groups'][0]['examples'][1]['id']}")
    assert page.locator('.item[aria-selected="true"]').count() == 1
    reached = ""
    for _ in range(40):
        page.keyboard.press("Tab")
        reached = page.evaluate("document.activeElement.className")
        if "token" in reached:
            break
    assert "token" in reached
    assert page.locator(".tip").is_visible()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert page.locator(".texts h4").count() in (1, 3), "the last setting was switched"


NAMES_OF_MARKS = """
() => [...document.querySelectorAll('.plane .point.rejected, .plane .point.best')].map(mark => {
  const text = mark.querySelector('text'), name = text.getBoundingClientRect();
  const drawing = mark.ownerSVGElement.getBoundingClientRect();
  return text.checkVisibility() && name.left >= drawing.left && name.right <= drawing.right && name.bottom <= drawing.bottom;
})
"""


def test_among_many_settings_those_that_failed_are_named_and_nothing_else_is_in_the_legend(chromium, tmp_path):
    ws = tuple(index / 50 for index in range(47))
    home = write_synthetic(tmp_path / "many", n=55, ws=ws, num_drafts=(3, 5, 7), timing_examples=0, max_new_tokens=12)
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    page.set_default_timeout(120_000)
    page.goto(write(home, margin=5.0).as_uri())
    named = page.evaluate(NAMES_OF_MARKS)
    assert len(named) >= 3
    assert all(named)
    assert page.locator(".k.rejected").is_visible()
    assert not page.locator(".k.advised").is_visible(), "nothing is recommended"
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator(".ladder tr.failed .needed").first.is_visible()
    page.emulate_media(media="print")
    assert not page.get_by_text("Click a heading to sort").is_visible()
    page.close()


def test_a_phone_is_never_scrolled_sideways(visit):
    page = visit(360, 740, has_touch=True)
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    token = page.locator(".texts .token.r").first
    token.tap()
    box = page.locator(".tip").bounding_box()
    assert box["x"] == 0
    assert box["width"] == 360
    assert box["y"] + box["height"] == pytest.approx(740, abs=1)
    small = page.evaluate(
        "[...document.querySelectorAll('button, select, .chip span, .item')].filter(one => one.offsetParent)"
        ".filter(one => one.getBoundingClientRect().height < 24).map(one => one.outerHTML.slice(0, 80))"
    )
    assert small == []


CONTRAST = """
() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, under) => top.slice(0, 3).map((part, i) => (part * top[3] + under[i] * (255 - top[3])) / 255);
  const light = colour => {
    const parts = colour.map(part => part / 255).map(part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
    return .2126 * parts[0] + .7152 * parts[1] + .0722 * parts[2];
  };
  const under = one => one === null ? rgba('white') : over(rgba(getComputedStyle(one).backgroundColor), under(one.parentElement));
  const poor = [];
  for (const one of document.querySelectorAll('body *')) {
    if (one.closest('svg, script, option') || !one.checkVisibility({ opacityProperty: true })) continue;
    if (one.matches(':disabled')) continue;
    if (![...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())) continue;
    const paper = under(one), ink = over(rgba(getComputedStyle(one).color), paper);
    const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) poor.push(one.className + ' ' + one.textContent.slice(0, 30) + ' ' + ratio.toFixed(2));
  }
  return poor;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_stands_out_from_its_paper(visit, scheme):
    page = visit(color_scheme=scheme)
    page.locator(".texts .token.r").first.hover()
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert page.evaluate(CONTRAST) == []


def test_the_theme_is_chosen_and_kept(visit):
    page = visit(color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    button = page.locator("#theme")
    assert button.get_attribute("aria-label") == "Theme: system"
    button.click()
    button.click()
    assert button.get_attribute("aria-label") == "Theme: dark"
    dark = page.evaluate(paper)
    assert dark != light
    page.reload()
    page.wait_for_selector(".texts .token")
    assert page.evaluate(paper) == dark
    assert button.get_attribute("aria-label") == "Theme: dark"
    button.click()
    assert page.evaluate(paper) == light


def test_figures_follow_the_theme(visit):
    line = "getComputedStyle(document.querySelector('#figures figure svg [style*=\"#0072b2\"]')).stroke"
    papers = [
        visit(color_scheme=scheme).evaluate(
            f"[{line}, getComputedStyle(document.querySelector('#figures figure svg')).fill]"
        )
        for scheme in ("light", "dark")
    ]
    assert papers[0][0] == "rgb(0, 114, 178)"
    assert papers[1][0] != papers[0][0]
    assert papers[1][1] != papers[0][1], "letters without a colour of their own follow too"


def test_print_shows_all_of_the_tables_and_none_of_the_buttons(visit, tmp_path):
    page = visit(color_scheme="dark")
    printed = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 20
    assert page.locator("details:not([open])").count() > 0, "what was opened for the printer is closed again"
    page.set_viewport_size({"width": 690, "height": 1000})
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for hidden in ("#theme", "nav", ".chooser", ".copy"):
        assert not page.locator(hidden).first.is_visible()
    assert all(page.locator(".sortable").evaluate_all("all => all.map(one => one.checkVisibility())"))
    widths = page.locator(".sortable").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    assert max(widths) <= 690, "no table is wider than the sheet"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_without_a_script_tables_and_figures_are_read_all_the_same(visit):
    page = visit(java_script_enabled=False, is_ready=False)
    assert page.locator("table.sortable").first.is_visible()
    assert page.locator("figure svg").first.is_visible()
    assert page.locator("#no-browser").is_visible()
    assert not page.locator("#browser").is_visible()
    assert not page.locator("#theme").is_visible()


def test_a_browser_without_decompression_says_so(chromium, home):
    context = chromium.new_context()
    context.add_init_script("delete window.DecompressionStream")
    page = context.new_page()
    page.goto((home / "report.html").as_uri())
    assert "no DecompressionStream" in page.locator("#no-browser").inner_text()
    context.close()


def test_on_a_phone_the_answers_of_several_sweeps_show_cost_and_gains_without_scrolling(chromium, tmp_path):
    """They stood beside one another, cut off behind the decision."""
    homes = [write_home(tmp_path / name) for name in ("one", "two")]
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(write(*homes).as_uri())
    table = page.locator(".answers")
    assert table.evaluate("node => node.scrollWidth <= node.parentElement.clientWidth")
    facts = table.locator("tbody tr").first.locator("td[data-title]")
    assert facts.evaluate_all("nodes => nodes.map(node => node.dataset.title)") == [
        *("Cost", "Over lossless", "Over the target alone"),
    ]
    assert facts.evaluate_all("nodes => nodes.every(node => node.scrollWidth <= node.clientWidth)")
    context.close()


def test_the_browser_writes_raw_scores_between_0_and_1_as_the_table_does(chromium):
    source = (files("sdbench.report.page") / "templates" / "texts.js").read_text()
    group = {"raw": ["f1"], "scales": {"pass@1": 100}}
    calls = "[scored('f1', 0.412, group), scored('f1', 41.2, group), scored('pass@1', 0.412, group), signed('f1', -0.04, group)]"
    page = chromium.new_page()
    written = page.evaluate(f"(group) => {{ {source}; return {calls} }}", group)
    page.close()
    assert written == ["0.412", "41.2", "41.2", "−0.040"]
    assert [
        _value(Estimate(value, math.nan, math.nan, 9), "points", Metric("f1")).text for value in (0.412, 41.2)
    ] == written[:2]
