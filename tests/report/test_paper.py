"""The paper's tables and figures: numbers are the records', published ones stand apart, what is missing names its command."""

import shlex
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.colors import to_rgba

import sdbench
from scripts import paper_figures
from scripts.paper import build as paper
from scripts.paper import cells as paper_cells
from scripts.paper import numbers as paper_numbers
from scripts.paper import plots as paper_plots
from scripts.paper import tables as paper_tables
from scripts.paper.numbers import doubtful, read_published
from sdbench.cli.command import parse
from sdbench.cli.compose import Composer
from sdbench.metrics.summary import summarise
from sdbench.report.figures.style import house_style, save, settle
from tests.records.synthetic import write_synthetic

OPTIONS = {"resamples": 300}
TASKS = ("gsm8k-tiny", "mbpp-tiny")
FORMATS = ("pdf", "svg", "png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("paper") / "llama-tiny"
    ws = (0.3, 0.5, 0.7, 0.9, 1.0)
    return write_synthetic(home, tasks=TASKS, ws=ws, n=16, num_drafts=(3, 5, 7), timing_examples=0)


@pytest.fixture(scope="module")
def cells(folder):
    return paper_numbers.measure_cells([sdbench.read(folder)], **OPTIONS)


@pytest.fixture(scope="module")
def published():
    return read_published()


@pytest.fixture(scope="module")
def figures(cells, published):
    made = {f"curve_{asked.name}": paper_plots.curve(asked, cells, published, {}) for asked in paper_cells.TABLES}
    return made | {
        "draft_length": paper_plots.draft_length(cells, published, {}),
        "seed": paper_plots.seed(cells, published, {}),
    }


@pytest.mark.slow
def test_numbers_are_those_of_the_summary_in_points_of_100(folder, cells):
    summary = summarise(sdbench.read(folder), **OPTIONS).set_index("cell")
    assert len(cells) == len(summary)
    for row in cells.to_dict("records"):
        same = summary.loc[row["cell"]]
        assert row["n"] == same["n"] == 16
        if row["num_draft"]:
            assert row["acceptance"] == pytest.approx(same["acceptance"])
            assert row["block_acceptance_high"] == pytest.approx(same["block_acceptance_high"])
        if row["base"] == "mbpp":  # its headline is what the paper scores
            assert row["quality_low"] == pytest.approx(100 * same["quality_low"])


def test_the_paper_s_own_prompt_and_the_larger_n_come_first(cells):
    doubled = pd.concat([cells, cells.assign(n=99, cell="zz")])
    assert len(doubled) == 2 * len(cells)
    labels = ["model", "task", "temperature", "verifier", "num_draft", "w"]
    assert not cells.duplicated(labels).any()


def test_only_the_paper_s_mixture_counts():
    rule = {"verifier": "ensemble", "knob_mix": "prob", "knob_greedy": "blend"}
    assert paper_cells.is_plain(pd.Series(rule))
    assert not paper_cells.is_plain(pd.Series(rule | {"knob_mix": "logit"}))
    assert not paper_cells.is_plain(pd.Series(rule | {"knob_greedy": "mixture"}))
    assert not paper_cells.is_plain(pd.Series({"verifier": "block"}))


def test_what_is_not_measured_is_a_dash_and_has_its_command(cells, published):
    (table1, *_) = paper_cells.TABLES
    text = paper_tables.render_table("md", table1, paper_tables.measured_entries(table1, cells), [])
    (lossless,) = [line for line in text.splitlines() if "SD (lossless)" in line]
    assert lossless.count("–") == 6  # xsum: acceptance, block, speed-up, over lossless, quality, against lossless
    assert "| llama | not measured yet |" in text
    lacking = paper_cells.missing(table1, cells, {})
    methods = ("static", "finetuned", "learned")
    assert [(one.model, one.task, one.command.rpartition("=")[2]) for one in lacking] == [
        *(("llama-tiny", "gsm8k-tiny", method) for method in methods[1:]),
        *(("llama-tiny", "xsum-tiny", method) for method in methods),
        *(("llama-tiny", "mbpp-tiny", method) for method in methods[1:]),
        *((model, task, method) for model in ("llama", "qwen") for task in table1.tasks for method in methods),
    ]
    assert lacking[2].command.startswith("python -m sdbench model=llama-tiny task=xsum-tiny temperature=1 num_draft=5")
    assert lacking[-1].command == "python -m sdbench experiment=diversed-table1 model=qwen task=mbpp method=learned"
    assert [one.settings for one in lacking[:2]] == [("finetuned K=5",), ("diversed K=5",)]


def test_speed_stands_over_the_target_alone_and_over_the_best_lossless_setting(tmp_path):
    home = write_synthetic(tmp_path / "timed", ws=(0.5,), n=12, timing_examples=6)
    cells = paper_numbers.measure_cells([sdbench.read(home)], **OPTIONS)
    head, _, *rows = paper_tables.render_table(
        "md", table1 := paper_cells.TABLES[0], paper_tables.measured_entries(table1, cells), []
    ).splitlines()
    place = [name.strip() for name in head.split("|")].index("over lossless")
    texts = {row.split("|")[2].strip(): row.split("|")[place].strip() for row in rows if row.startswith("| llama-tiny")}
    assert texts["SD (lossless)"] == "1.00 [1.00, 1.00]"
    same = cells[cells["verifier"] == "ensemble"].iloc[0]
    low, high = same["speedup_over_lossless_low"], same["speedup_over_lossless_high"]
    assert texts["ensemble w=0.5"] == f"{same['speedup_over_lossless']:.2f} [{low:.2f}, {high:.2f}]"


def test_a_pair_without_a_file_is_named_by_its_checkpoints(cells):
    (table1, *_) = paper_cells.TABLES
    own = {"model": {"target": "org/big", "draft": "org/small"}}
    command = paper_cells.command_of(table1, "big+small", "gsm8k", own)
    assert "model.target=org/big model.draft=org/small task=gsm8k" in command


def test_latex_is_booktabs_with_equal_columns(cells, published):
    for asked in paper_cells.TABLES:
        parts = paper_tables.measured_entries(asked, cells), paper_tables.published_entries(asked, published)
        text = paper_tables.render_table("tex", asked, *parts)
        assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
        rows = [line for line in text.splitlines() if line.endswith(r"\\") and r"\multicolumn{6}" not in line]
        rows = [row for row in rows if r"\textit" not in row]
        assert {row.count("&") + row.count(r"\multicolumn{2}") for row in rows} == {1 + 6 * len(asked.tasks)}
        assert not set("±–†") & set(text)


def test_published_rows_are_the_source_s_and_say_what_is_unknown(cells, published):
    table3 = paper_cells.TABLES[2]
    lines = paper_tables.published_entries(table3, published)
    assert {line.rule for line in lines if "head" in line.rule} == {
        *("DIVERSED, head trained on cnndm", "DIVERSED, head trained on gsm8k"),
    }
    notes = paper_tables.notes(table3, published, cells)
    assert "not defined" in notes
    assert "GSM8K values equal Table 1's" in notes
    assert "GSM8K values" not in paper_tables.notes(paper_cells.TABLES[0], published, cells)


def points(figure, *, is_hollow):
    """(x, y) of every mark in the figure's panels, hollow ones or filled ones, line by line."""
    for axis in figure.axes:
        for line in axis.get_lines():
            if line.get_marker() not in ("None", "", None) and (line.get_markerfacecolor() == "none") == is_hollow:
                yield list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_published_points_are_joined_to_nothing_of_ours(figures, cells, published):
    kept = published[~doubtful(published, "broken")]
    theirs = set(kept["quality"]) | set(100 * kept["acceptance"])
    ours = {
        *cells["quality"],
        *(100 * cells["acceptance"]),
        *(100 * cells["block_acceptance"]),
        *cells["tokens_per_round"],
    }
    for name, figure in figures.items():
        hollow = [y for line in points(figure, is_hollow=True) for _, y in line]
        filled = [y for line in points(figure, is_hollow=False) for _, y in line]
        assert hollow, name
        assert set(hollow) <= theirs, name
        assert set(filled) <= ours, name
        assert not set(filled) & theirs - ours, name


def test_every_figure_says_that_their_acceptance_is_not_defined(figures):
    for name, figure in figures.items():
        (legend,) = figure.legends
        assert "not defined" in legend.get_title().get_text(), name
        colours = {
            to_rgba(handle.get_color()) for handle in legend.legend_handles if handle.get_markerfacecolor() == "none"
        }
        assert colours, name


def test_the_legend_lies_on_no_panel(cells, published):
    with house_style():
        for figure in (
            paper_plots.curve(paper_cells.TABLES[0], cells, published, {}),
            paper_plots.seed(cells, published, {}),
        ):
            settle(figure)
            (legend,) = figure.legends
            top = legend.get_window_extent().y1
            boxes = [axis.get_tightbbox() for axis in figure.axes if axis.axison]
            assert top <= min(box.y0 for box in boxes)
            assert legend.get_window_extent().y0 >= 0


def test_the_broken_run_is_never_drawn(figures):
    marks = [y for figure in figures.values() for line in points(figure, is_hollow=True) for _, y in line]
    assert min(marks) > 1


def test_an_unfilled_panel_names_its_command(figures):
    texts = [text.get_text().replace(" \\\n", "") for axis in figures["curve_table2"].axes for text in axis.texts]
    assert "not measured: python -m sdbench experiment=diversed-table2 model=qwen task=mbpp" in texts


def test_the_commands_of_a_pair_without_a_file_name_its_checkpoints_and_can_be_composed(cells, published):
    few = cells[cells["num_draft"].isin([0, 5]) & (cells["verifier"] != "ensemble")].assign(model="big+small")
    few = few.assign(task=few["base"])
    configs = {"big+small": {"model": {"target": "org/big", "draft": "org/small"}}}
    figures = {
        "table1": paper_plots.curve(paper_cells.TABLES[0], few, published, configs),
        "draft_length": paper_plots.draft_length(few, published, configs),
        "seed": paper_plots.seed(few.assign(base="cnndm", task="cnndm"), published, configs),
    }
    composer = Composer()
    for name, figure in figures.items():
        texts = [text.get_text() for axis in figure.axes for text in axis.texts]
        texts += [legend.get_title().get_text() for legend in figure.legends]
        joined = "\n".join(texts).replace(" \\\n ", " ")
        commands = [line for line in joined.splitlines() if "model.target=" in line]
        assert commands, name
        runs = []
        for line in commands:
            command = parse(shlex.split(line.partition(": python -m sdbench ")[2]))
            runs += [composer.run(job) for job in composer.jobs(command)]
        assert {(run.model.target, run.model.draft) for run in runs} == {("org/big", "org/small")}
        wanted = {"seed": {"cnndm"}}.get(name, {"gsm8k", "xsum", "mbpp"})
        assert {run.task.name for run in runs} == wanted


@pytest.mark.slow
def test_the_same_records_give_the_same_files(folder, tmp_path, capsys):
    home, again = tmp_path / "figures", tmp_path / "again"
    assert paper_figures.main([str(folder.parent), "--out", str(home)]) == 0  # a folder of results folders
    named = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.name for path in named} == {path.name for path in home.iterdir()}
    assert {f"{name}.{kind}" for name in paper.FIGURES for kind in FORMATS} < {path.name for path in named}
    cells = paper_numbers.measure_cells([sdbench.read(folder)])
    with house_style():
        save(paper_plots.seed(cells, read_published(), {}), again, "seed")
    for asked in paper_cells.TABLES:
        for name, text in paper.table_files(asked, cells, read_published()).items():
            (again / name).write_text(text, encoding="utf-8")
    assert len(list(again.iterdir())) == 3 + 9
    for path in again.iterdir():
        assert (home / path.name).read_bytes() == path.read_bytes(), path.name


SLIPS = {
    (): "name a results folder",
    ("--frobnicate",): "--frobnicate is not an option",
    ("x", "--out"): "--out needs a value, for example out=figures",
    ("nowhere",): "nowhere is not a results folder and has none in it",
}


@pytest.mark.parametrize("words", SLIPS, ids=" ".join)
def test_a_slip_is_one_sentence_and_code_2(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert paper_figures.main(words) == 2
    message = capsys.readouterr().err
    assert SLIPS[words] in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_out_that_is_a_file_is_one_sentence(folder, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert paper_figures.main([str(folder), f"--out={tmp_path / 'file'}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
