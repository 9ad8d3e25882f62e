"""The tables and figures of DIVERSED (arXiv:2604.07622) from records: what our runs cover, beside what was published.

`build_paper(folders, out)` writes table1–3 in Markdown, LaTeX and CSV, the acceptance–quality curves, the sensitivity to the
draft length, the sweep at T = 0, a list of what is missing with its commands, and paper.md, which shows all of it. The same
records give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sdbench.records import Results, read
from sdbench.report.figures.style import save, styled
from sdbench.report.paper import plots, tables
from sdbench.report.paper.cells import ALL, TABLES, Exhibit, Missing, missing
from sdbench.report.paper.numbers import measured
from sdbench.report.paper.published import read_published

FIGURES = {
    "curve_table1": "Quality against acceptance at T = 1",
    "curve_table2": "Quality against acceptance at T = 0.1",
    "curve_table3": "Quality against acceptance, the tasks of Table 3",
    "draft_length": "Sensitivity to the draft length",
    "seed": "CNN/DM at T = 0 over w",
}
INTRODUCTION = """\
# The tables and figures of DIVERSED that these records cover

Measured numbers come from the records alone, each with its 95 % interval by example. Published numbers stand apart, marked by
source: what their acceptance rate counts is not defined, so nothing joins them to ours; `sdbench/report/paper/published/README.md`
says what is doubtful about them. Static ensembles v = w·p + (1 − w)·q stand beside the paper's own rows: the learned head, as
`scripts/train_ensemble.py` has trained it, and lossless speculation with a draft that `scripts/distill_draft.py` has distilled.
"""
TRAINED_FIRST = (
    "A command that needs a head or a draft which was not trained yet names the training's command, and ends.\n"
)


def build_paper(folders: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str], **options: Any) -> list[Path]:
    """Every table and figure in `out`; the paths written."""
    results = [read(folder) for folder in folders_of(folders)]
    home = Path(out)
    home.mkdir(parents=True, exist_ok=True)
    cells, published = measured(results, **options), read_published()
    lacking = [one for asked in ALL for one in missing(asked, cells, configs_of(results))]
    texts = {name: text for asked in TABLES for name, text in table_files(asked, cells, published).items()}
    texts["missing.csv"] = pd.DataFrame(lacking, columns=list(Missing.__slots__)).to_csv(index=False)
    texts["paper.md"] = page(cells, published, lacking)
    for name, text in texts.items():
        (home / name).write_text(text, encoding="utf-8")
    with styled():
        drawn = {f"curve_{asked.name}": plots.curve(asked, cells, published) for asked in TABLES}
        drawn |= {"draft_length": plots.draft_length(cells, published), "seed": plots.seed(cells, published)}
        saved = [path for name in FIGURES for path in save(drawn[name], home, name)]
    return [*(home / name for name in texts), *saved]


def folders_of(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Results folders as they are; of any other folder the results folders right below it."""
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        inside = (
            [path] if (path / "records").is_dir() else sorted(p.parent for p in path.glob("*/records") if p.is_dir())
        )
        if not inside:
            raise ValueError(f"{path} is not a results folder and has none in it: there is no records/")
        folders |= {folder.resolve(): folder for folder in inside}
    return list(folders.values())


def configs_of(results: Sequence[Results]) -> dict[str, dict[str, Any]]:
    """The last resolved configuration of each pair."""
    configs = [config for one in results for config in one.configs.values() if isinstance(config.get("model"), dict)]
    return {str(config["model"].get("name")): config for config in configs}


def table_files(asked: Exhibit, cells: pd.DataFrame, published: pd.DataFrame) -> dict[str, str]:
    ours, theirs = tables.measured_lines(asked, cells), tables.published_lines(asked, published)
    return {
        f"{asked.name}.md": tables.to_markdown(asked, ours, theirs),
        f"{asked.name}.tex": tables.to_latex(asked, ours, theirs),
        f"{asked.name}.csv": tables.long_form(asked, cells).to_csv(index=False),
    }


def page(cells: pd.DataFrame, published: pd.DataFrame, lacking: Sequence[Missing]) -> str:
    """paper.md: tables with their notes, figures, and what to run for the rest."""
    parts = [INTRODUCTION]
    for asked in TABLES:
        ours, theirs = tables.measured_lines(asked, cells), tables.published_lines(asked, published)
        notes = "\n".join(f"- {note}" for note in tables.notes(asked, published, cells))
        parts.append(f"## {asked.title}\n\n{tables.to_markdown(asked, ours, theirs)}\n{notes}\n")
    parts += ["## Figures\n", *(f"### {title}\n\n![{title}]({name}.svg)\n" for name, title in FIGURES.items())]
    rows = [f"| {one.asked} | {one.model} | {one.task} | {len(one.settings)} | `{one.command}` |" for one in lacking]
    head = [
        "## Not measured yet\n",
        TRAINED_FIRST,
        "| for | pair | task | settings | command |",
        "|---|---|---|---:|---|",
    ]
    parts.append("\n".join([*head, *rows]) if rows else "Nothing is missing.")
    return "\n".join(parts) + "\n"
