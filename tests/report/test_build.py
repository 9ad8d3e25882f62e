"""The report is a function of the records: every figure they can fill, the same bytes for the same records, no network."""

import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import lxml.html
import pandas as pd
import pytest

import sdbench
from sdbench.cli import main as front_door
from sdbench.metrics import divergence
from sdbench.metrics.cells import sweep_of
from sdbench.metrics.summary import summarise
from sdbench.records import Store
from sdbench.records.keys import frame_of_cells
from sdbench.report import build
from sdbench.report.build import DRAWN
from sdbench.report.captions import FIGURES, TABLES
from sdbench.report.figures import DRAW
from sdbench.report.figures.planes import GRIDS
from sdbench.report.figures.style import CYCLE, MARKS, house_style
from sdbench.report.sweep import MOST_NAMED, sweeps_of
from tests.metrics.test_open_load import queue
from tests.records.synthetic import Shape, sweep, write_synthetic


def main(words):
    return front_door(["report", *words])


ALONE = set(DRAW) - {
    "divergence",
    "load",
    "open_load",
    "goodput",
}  # what a sampled sweep with times of our own engine has by itself


def complete_figures(home):
    """Names of figures that are there in all three formats."""
    names = {path.stem for path in (home / "figures").iterdir()}
    for name in names:
        for kind in ("pdf", "svg", "png"):
            assert (home / "figures" / f"{name}.{kind}").stat().st_size > 1000
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = write_synthetic(tmp_path_factory.mktemp("results") / "llama-tiny-gsm8k-tiny", n=60, ws=(0.0, 0.5, 1.0))
    build(home)
    return home


def test_the_table_of_captions_is_what_is_drawn():
    assert set(FIGURES) == set(DRAW) | set(GRIDS) | {"inputs"}  # which takes all sweeps of a folder
    assert list(FIGURES)[: len(DRAW)] == list(DRAW)


def test_every_figure_that_the_records_fill_comes_in_three_formats(folder):
    assert complete_figures(folder) == ALONE


def test_every_table_is_named_in_the_captions(folder):
    written = {
        str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.parent.name in (folder.name, "tables")
    }
    assert written - {"report.html", "config.json"} <= set(TABLES)
    assert {"summary.csv", "results.json", "tables/front.csv", "tables/volume.csv", "tables/metrics.csv"} <= written


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(folder, tmp_path):
    again = shutil.copytree(folder, tmp_path / folder.name)
    before = {path: path.read_bytes() for path in again.rglob("*") if path.is_file() and "records" not in path.parts}
    for path in before:
        if path.name != "config.json":
            path.unlink()
    build(again)
    for path, data in before.items():
        assert path.read_bytes() == data, path.name


@pytest.mark.slow
def test_what_an_earlier_report_left_is_removed_and_nothing_else(folder, tmp_path):
    again = shutil.copytree(folder, tmp_path / folder.name)
    old = [again / "figures" / "pareto-gone.svg", again / "figures" / "grid.pdf", again / "tables" / "areas.csv"]
    own = [again / "figures" / "mine.svg", again / "notes.csv"]
    for path in [*old[:2], old[2], own[1]]:
        path.write_text("an old one")
    build(again)
    assert not any(path.exists() for path in old)
    assert own[1].exists()


@pytest.mark.slow
def test_a_report_of_several_folders_leaves_no_decision_of_an_earlier_one(tmp_path):
    """results.json of one folder stayed beside the page of two, which listed it; a results folder keeps that of its records."""
    given = {"n": 2, "ws": (0.5,), "timing_examples": 0, "max_new_tokens": 8}
    first, second = (str(write_synthetic(tmp_path / name, **given)) for name in "ab")
    out, summary = tmp_path / "out", {name for name in TABLES if "/" not in name}
    assert main([first, f"out={out}"]) == 0
    for name in summary:
        shutil.copy(out / name, first)
    for home, kept in ((out, set()), (Path(first), summary)):
        assert main([first, second, f"out={home}", "margin=1"]) == 0
        assert {name for name in summary if (home / name).exists()} == kept
        listed = set(lxml.html.parse(home / "report.html").xpath("//dl[contains(@class, 'files')]//code/text()"))
        assert "tables/together.csv" in listed
        assert not listed & summary


@pytest.mark.slow
def test_a_new_report_voids_the_note_of_what_the_page_shows(tmp_path):
    """A run skips drawing where the note says that its page is up to date, at its own margin."""
    home = write_synthetic(tmp_path / "noted", n=3, ws=(0.5,), timing_examples=0)
    (home / DRAWN).write_text("the page at margin 5")
    assert main([str(home), "margin=1"]) == 0
    assert not (home / DRAWN).exists()


def test_two_dtypes_in_one_folder_have_a_report(tmp_path):
    """Retention looked up lossless by draft length, of which such a folder has two."""
    home, shape = write_synthetic(tmp_path / "two", n=8, ws=(0.5,), timing_examples=0), Shape(64)
    first = sweep("llama-tiny", "gsm8k-tiny", ws=(0.5,), num_drafts=(5,), temperature=1.0)
    others = [replace(c, content={**c.content, "dtype": "bfloat16"}) for c in first]
    with Store.open(home, config={}, provenance={}) as store:
        store.add_cells(others)
        store.append_generations([shape.decode(c, str(i)) for c in others for i in range(8)])
    build(home)
    retention = pd.read_csv(home / "tables" / "retention.csv")
    assert len(retention) == 2
    assert retention["retention"].notna().all()


def test_options_with_which_a_server_drafts_are_in_a_name_where_they_differ(tmp_path):
    """As p-min of llama.cpp, of which a folder had two settings with one name."""
    home, shape = tmp_path / "served", Shape(64)
    by_name = {c.verifier: c for c in sweep("llama-tiny", "gsm8k-tiny", ws=(), num_drafts=(5,), temperature=1.0)}
    target, lossless = by_name["target"], by_name["lossless"]
    engines = [{"name": "llamacpp", "speculative": {"spec_type": "simple", "p_min": p_min}} for p_min in (0, 0.5)]
    cells = [replace(target, content={**target.content, "engine": {"name": "llamacpp", "speculative": None}})]
    cells += [replace(lossless, content={**lossless.content, "engine": engine}) for engine in engines]
    with Store.open(home, config={}, provenance={}) as store:
        store.add_cells(cells)
        store.append_generations([shape.decode(c, str(i)) for c in cells for i in range(4)])
    results = sdbench.read(home)
    (only,) = sweeps_of([results], [summarise(results, resamples=50)])
    names = ["target alone", "lossless model p_min=0 K=5", "lossless model p_min=0.5 K=5"]
    assert only.cells["label"].tolist() == names


def test_a_gain_under_load_is_over_lossless_with_the_same_options_of_the_drafter(tmp_path):
    """Two lossless settings with drafters of one name; the slower one drafts as the rule does."""
    home, shape = tmp_path / "served", Shape(64)
    plain = sweep("llama-tiny", "gsm8k-tiny", ws=(0.5,), num_drafts=(5,), temperature=1.0)
    by_name = {c.verifier: c for c in plain}
    cells = [
        replace(
            by_name[rule],
            content={**by_name[rule].content, "engine": {"name": "llamacpp", "speculative": {"p_min": p_min}}},
        )
        for rule, p_min in (("lossless", 0), ("lossless", 0.5), ("ensemble", 0.5))
    ]
    with Store.open(home, config={}, provenance={}) as store:
        store.add_cells(cells)
        store.append_generations([shape.decode(c, str(i)) for c in cells for i in range(4)])
    results = sdbench.read(home)
    labels = [{"verifier": c.verifier, "drafter": c.drafter, "num_draft": c.num_draft} for c in cells]
    loads = [queue(c.key, 2.0, s, **more) for c, s, more in zip(cells, (0.1, 0.2, 0.1), labels, strict=True)]
    results.__dict__["open_loads"] = pd.concat(loads)
    (only,) = sweeps_of([results], [summarise(results, resamples=50)])
    assert only.open_load.set_index("cell").at[cells[2].key, "gain_over_lossless"] > 1.5


@pytest.mark.parametrize(
    ("first", "second", "titles", "suffixes"),
    [
        (
            {"name": "vllm", "args": {"dtype": "bfloat16"}},
            {"name": "vllm", "args": {"dtype": "float32"}},
            [", engine.args.dtype=bfloat16", ", engine.args.dtype=float32"],
            ["-engine.args.dtype-bfloat16", "-engine.args.dtype-float32"],
        ),
        (
            {"name": "http", "request": {}},
            {"name": "vllm", "request": {}, "args": {"dtype": "float32"}},
            [", engine=http", ", engine=vllm"],
            ["-engine-http", "-engine-vllm"],
        ),
        (
            {"name": "vllm", "env": {"VLLM_API_KEY": "sesame"}},
            {"name": "vllm", "env": {"VLLM_API_KEY": "barley"}},
            [", engine.env.VLLM_API_KEY=sha256:d0c04f4b", ", engine.env.VLLM_API_KEY=sha256:d7a9ead0"],
            ["-engine.env.VLLM_API_KEY-sha256-d0c04f4b", "-engine.env.VLLM_API_KEY-sha256-d7a9ead0"],
        ),
    ],
)
def test_each_configuration_of_a_server_is_a_sweep(first, second, titles, suffixes, tmp_path):
    """A setting was compared with lossless of another server."""
    home, shape = tmp_path / "served", Shape(64)
    plain = sweep("llama-tiny", "gsm8k-tiny", ws=(0.5,), num_drafts=(5,), temperature=0.0)
    plain.append(replace(next(cell for cell in plain if cell.verifier == "lossless"), verifier="block"))

    def served(cell, engine):
        is_pair = cell.verifier in ("lossless", "ensemble", "block")
        more = {"rule": cell.verifier, "speculative": {"p_min": 0.5} if is_pair else None}
        more |= {"runner": "V2"} if cell.verifier == "block" else {}  # as `decides` of engine=vllm says
        return replace(cell, content={**cell.content, "engine": {**engine, **more}})

    cells = [served(cell, engine) for engine in (first, second) for cell in plain]
    with Store.open(home, config={}, provenance={}) as store:
        store.add_cells(cells)
        store.append_generations([shape.decode(cell, str(i)) for cell in cells for i in range(4)])
    results = sdbench.read(home)
    sweeps = sweeps_of([results], [summarise(results, resamples=50)])
    assert sorted(each.title for each in sweeps) == [f"llama-tiny on gsm8k-tiny{end}" for end in titles]
    assert sorted(each.suffix for each in sweeps) == [f"llama-tiny-gsm8k-tiny{end}" for end in suffixes]
    for each, engine in zip(sorted(sweeps, key=lambda each: each.title), (first, second), strict=True):
        assert {content["engine"]["name"] for content in each.cells["content"]} == {engine["name"]}
        assert set(each.cells["verifier"]) == {"target", "draft", "lossless", "ensemble", "block"}
        assert {equal.num for equal in each.equal_texts} == {4}, "texts of the same server's target"


def test_a_sweep_of_the_native_engine_has_no_server_in_its_key():
    """Keys of sweeps of earlier records stay."""
    cells = frame_of_cells(sweep("llama-tiny", "gsm8k-tiny", ws=(0.5,), num_drafts=(5,), temperature=1.0))
    (key,) = sweep_of(cells).unique()
    target = ["llama-tiny/target@0123456", None, None, None]
    assert json.loads(key) == [
        "llama-tiny",
        "gsm8k-tiny",
        1.0,
        "completion/1",
        cells["asked"][0],
        [0, 64, None, None],
        target,
    ]


def test_cells_of_a_gguf_file_whose_settings_were_not_set_are_another_sweep():
    """Such cells are of before the base of rotary positions was set: their baselines are of another model."""
    old = sweep("llama-tiny", "gsm8k-tiny", ws=(0.5,), num_drafts=(5,), temperature=1.0)
    new = [replace(each, content={**each.content, "target_settings": "rope_theta=1000000.0"}) for each in old]
    cells = frame_of_cells([*old, *new])
    sweeps = sweep_of(cells)
    assert sweeps.nunique() == 2
    is_new = cells["content"].map(lambda content: "target_settings" in content)
    assert sweeps[is_new].nunique() == sweeps[~is_new].nunique() == 1


@pytest.mark.parametrize(("setting", "value"), [("seed", 7), ("max_new_tokens", 9)])
def test_figures_of_sweeps_that_differ_in_a_setting_are_named_with_it(setting, value, tmp_path):
    home, shape = write_synthetic(tmp_path / "two", n=4, ws=(0.5,), timing_examples=0), Shape(64)
    first = sweep("llama-tiny", "gsm8k-tiny", ws=(0.5,), num_drafts=(5,), temperature=1.0)
    others = [replace(c, content={**c.content, setting: value}) for c in first]
    with Store.open(home, config={}, provenance={}) as store:
        store.add_cells(others)
        store.append_generations([shape.decode(c, str(i)) for c in others for i in range(4)])
    results = sdbench.read(home)
    names = [complete_figures.suffix for complete_figures in sweeps_of([results], [summarise(results, resamples=50)])]
    before = first[0].content.get(setting)
    assert sorted(names) == sorted(f"llama-tiny-gsm8k-tiny-{setting}-{known}" for known in (before, value))


def test_the_front_and_its_volume_agree_with_the_summary(folder):
    front, summary = pd.read_csv(folder / "tables" / "front.csv"), pd.read_csv(folder / "summary.csv")
    joined = front.merge(summary, on="cell", suffixes=("", "_summary"))
    for plane, column in (("acceptance", "acceptance"), ("speed-up", "speedup")):
        own = joined[joined["plane"] == plane]
        assert len(own) >= 4
        assert own["x"].to_numpy() == pytest.approx(own[column].to_numpy())
        assert own["y"].to_numpy() == pytest.approx(own["quality"].to_numpy())
        assert own["probability"].between(0, 1).all()
    volume = pd.read_csv(folder / "tables" / "volume.csv")
    assert set(volume["curve"]) == {"all", "ensemble"}
    assert (volume["low"] <= volume["value"]).all()
    assert (volume["value"] <= volume["high"]).all()
    assert (volume["bias"] >= 0).all()


def test_the_page_says_what_the_luck_of_the_best_settings_took_off_a_dominated_area(folder):
    volume = pd.read_csv(folder / "tables" / "volume.csv").set_index(["plane", "curve"])
    page = (folder / "report.html").read_text()
    for plane in ("acceptance", "speed-up"):
        value, bias = 100 * volume.loc[(plane, "all"), ["value", "bias"]]
        (message,) = re.findall(rf"Dominated area, {plane} × points: ([\d.]+) \[[^]]+\]; ([\d.]+) was taken off", page)
        assert [float(number) for number in message] == pytest.approx([value, bias], abs=0.051)


def test_the_summary_has_the_columns_that_were_promised(folder):
    head = (folder / "summary.csv").read_text().splitlines()[0].split(",")
    promised = (
        "model task verifier w num_draft temperature n acceptance acceptance_low acceptance_high acceptance_expected "
    )
    promised += "block_acceptance tokens_per_round bias metric quality quality_low quality_high tokens_per_s speedup "
    promised += "speedup_low speedup_high"
    assert set(promised.split()) <= set(head)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("odd", "missing"),
    [
        ({"n": 5, "ws": (0.5,), "timing_examples": 0}, {"pareto_speed", "speed_against_knob", "time_split"}),
        ({"n": 1, "ws": (0.5, 1.0), "timing_examples": 1, "repeats": 1}, set()),
        (
            {"n": 4, "ws": (), "timing_examples": 2},
            {"against_knob", "speed_against_knob", "lengths", "laws", "bound", "predicted"},
        ),
        ({"n": 0, "timing_examples": 0}, ALONE),
        ({"n": 6, "ws": (0.3, 1.0), "samples": 3, "num_drafts": (1, 4), "timing_examples": 0}, None),
    ],
    ids=["one cell, no times", "one example", "no knob", "nothing", "samples and draft lengths"],
)
def test_an_odd_folder_has_the_figures_it_can_fill(odd, missing, tmp_path):
    home = write_synthetic(tmp_path / "odd", **odd)
    build(home)
    if missing is None:
        missing = {"pareto_speed", "speed_against_knob", "time_split"}
    assert complete_figures(home) == ALONE - missing if (home / "figures").exists() else missing == ALONE
    results = json.loads((home / "results.json").read_text(), parse_constant=pytest.fail)
    assert bool(results["results"]) == bool(odd["n"])


@pytest.mark.slow
def test_greedy_texts_are_compared_across_folders(tmp_path):
    """A sampled folder beside a greedy one of the same pair and task: both follow the greedy target's own text."""
    sampled = write_synthetic(tmp_path / "sampled", n=5, ws=(0.5, 1.0), timing_examples=0)
    greedy = write_synthetic(tmp_path / "greedy", n=5, ws=(0.5, 1.0), timing_examples=0, temperature=0.0)
    before = sorted(path.name for path in sampled.iterdir())
    home = build(sampled, [greedy]).parent
    assert home == tmp_path / "report-sampled+greedy"
    assert sorted(path.name for path in sampled.iterdir()) == before, "the folder's own report is left alone"
    names = complete_figures(home)
    assert {"divergence-llama-tiny-gsm8k-tiny-T1", "divergence-llama-tiny-gsm8k-tiny-T0"} <= names
    assert "laws-llama-tiny-gsm8k-tiny-T0" not in names  # no exact law is recorded there
    table = pd.read_csv(home / "tables" / "divergence.csv")
    assert set(table["temperature"]) == {0.0, 1.0}
    together = pd.read_csv(home / "tables" / "together.csv")
    assert set(together["folder"]) == {"sampled", "greedy"}
    assert not (home / "summary.csv").exists()


@pytest.mark.slow
def test_several_pairs_and_tasks_share_a_grid(tmp_path):
    home = write_synthetic(
        tmp_path / "many",
        models=("llama-tiny", "qwen-tiny"),
        tasks=("wmt-tiny",),
        n=4,
        ws=(0.5,),
        timing_examples=1,
        repeats=1,
    )
    build(home)
    names = complete_figures(home)
    assert {"grid", "grid_speed", "pareto-llama-tiny-wmt-tiny", "pareto-qwen-tiny-wmt-tiny"} <= names
    results = json.loads((home / "results.json").read_text())["results"]
    assert len(results) == 2 * (2 + 1 + 1)  # both models: target, draft, lossless, one w


def test_prefixes_end_at_the_first_difference():
    a, b = pd.Series([1, 2, 3]).to_numpy(), pd.Series([1, 2, 4, 5]).to_numpy()
    assert divergence.common_prefix(a, b) == 2
    assert divergence.common_prefix(a, a) == 3
    assert divergence.common_prefix(a[:0], b) == 0


@pytest.mark.slow
def test_the_program_says_what_it_wrote(tmp_path):
    home = write_synthetic(tmp_path / "quiet", n=3, ws=(0.5,), timing_examples=0)
    options = ["margin={gsm8k: 2, cnndm: 0.5}", f"out={tmp_path}/another place"]
    done = subprocess.run(
        [sys.executable, "-m", "sdbench.report", str(home), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    page = html.unescape((tmp_path / "another place" / "report.html").read_text())
    assert f"'margin={{gsm8k: 2, cnndm: 0.5}}' 'out={tmp_path}/another place'" in page, "how to make it again"
    assert "none: n is too small (n=3" in done.stdout
    for word in ("report.html", "summary.csv", "pareto", "tables"):
        assert word in done.stdout


def test_a_folder_without_records_is_one_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sdbench.report", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is not a results folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_names_the_way_out(tmp_path, capsys):
    """A file stands where a folder must be made: that stops every user, as a read-only disk does."""
    home = write_synthetic(tmp_path / "home", n=3, ws=(0.5,), timing_examples=0)
    (home / "tables").write_text("")
    assert front_door(["report", str(home)]) == 2
    message = capsys.readouterr().err
    assert re.fullmatch(
        r"sdbench\S*: \S+tables\S* cannot be written \(.+\): write out=FOLDER for another folder\n", message
    )
    assert front_door(["report", str(home), f"out={tmp_path / 'out'}"]) == 0


@pytest.mark.slow
def test_of_more_curves_than_colours_the_likeliest_on_the_front_are_named(tmp_path):
    """Eight curves: six have a colour and a mark of their own, and a plane shows the others behind them."""
    home = write_synthetic(
        tmp_path / "many", n=20, ws=(0.2, 0.8), num_drafts=tuple(range(1, 9)), timing_examples=0, max_new_tokens=16
    )
    results = sdbench.read(home)
    (sweep,) = sweeps_of([results], [summarise(results)])
    assert len(sweep.curves) == 8
    chance = sweep.fronts["acceptance"].points.set_index("cell")["probability"]
    best = {name: chance.reindex(cells["cell"]).max() for name, cells in sweep.curves.items()}
    assert len(sweep.leading) == MOST_NAMED == len(CYCLE) == len(MARKS)
    assert min(best[name] for name in sweep.leading) >= max(best[name] for name in best if name not in sweep.leading)
    legends = {}
    with house_style():
        for name in ("pareto", "against_knob", "lengths"):
            figure = DRAW[name](sweep)
            assert figure is not None
            legends[name] = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legends["pareto"] == [*sweep.leading, "2 others"]
    assert all([*sweep.leading, "2 more not drawn"] == legends[name][:7] for name in ("against_knob", "lengths"))
