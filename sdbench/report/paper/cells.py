"""What the tables and figures of DIVERSED (arXiv:2604.07622) ask of our records, what the records hold of it, what is missing.

The learned head and the finetuned draft of the paper have no run here: static ensembles stand in their rows' place. A tiny
twin (gsm8k-tiny for gsm8k) fills the same column under its own pair's name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sdbench.config import config_dir
from sdbench.metrics.legacy import WEIGHT

TINY = "-tiny"
WS = (0.9, 0.7, 0.5, 0.3)  # of the sweep: what fits into a table
# What the paper scores: its own rule for numbers, ROUGE-2 without the stemmer.
METRICS: Mapping[str, str] = {
    "gsm8k": "flexible",
    "xsum": "rouge2_nostem",
    "cnndm": "rouge2_nostem",
    "mbpp": "pass@1",
}
TITLES: Mapping[str, tuple[str, str]] = {
    "gsm8k": ("GSM8K", "accuracy"),
    "xsum": ("XSum", "ROUGE-2"),
    "cnndm": ("CNN/DM", "ROUGE-2"),
    "mbpp": ("MBPP", "pass@1"),
}


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One table or figure: configs/experiment/`experiment`.yaml makes its records."""

    name: str
    title: str
    experiment: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    temperature: float
    num_drafts: tuple[int, ...] = (5,)


PAIRS, TABLE_TASKS = ("llama", "qwen"), ("gsm8k", "xsum", "mbpp")
TABLES = (
    Exhibit("table1", "Table 1", "diversed-table1", PAIRS, TABLE_TASKS, 1.0),
    Exhibit("table2", "Table 2", "diversed-table2", PAIRS, TABLE_TASKS, 0.1),
    Exhibit("table3", "Table 3", "diversed-table3", PAIRS, ("gsm8k", "cnndm"), 0.1),
)
LENGTHS = Exhibit("draft_length", "Draft length", "diversed-draft-length", PAIRS, TABLE_TASKS, 1.0, (3, 5, 7))
SEED = Exhibit("seed", "CNN/DM at T = 0 over w", "seed", ("llama",), ("cnndm",), 0.0)
ALL = (*TABLES, LENGTHS, SEED)


@dataclass(frozen=True, slots=True)
class Missing:
    """A pair and task that lacks settings, and the command that runs them."""

    asked: str
    model: str
    task: str
    settings: tuple[str, ...]
    command: str


LABELS = ("model", "task", "base", "protocol", "verifier", WEIGHT, "num_draft", "temperature")


def base_of(task: str) -> str:
    """gsm8k for gsm8k and gsm8k-tiny."""
    return task.removesuffix(TINY)


def is_plain(cell: pd.Series) -> bool:
    """The rules of the paper's tables: baselines, and the static ensemble as it is written there."""
    if cell["verifier"] != "ensemble":
        return cell["verifier"] in ("target", "draft", "lossless")
    wanted = {"knob_mix": "prob", "knob_greedy": "blend"}
    return all(pd.isna(cell.get(knob)) or cell[knob] == value for knob, value in wanted.items())


def pairs_of(asked: Exhibit, cells: pd.DataFrame) -> list[str]:
    """The pairs that were measured on one of its tasks, then the paper's own that were not."""
    have = sorted(set(cells.loc[cells["base"].isin(asked.tasks), "model"]))
    return [*have, *(model for model in asked.models if model not in have)]


def lines_of(asked: Exhibit) -> Iterator[tuple[str, float | None, int]]:
    """(rule, w, draft length) of every setting that a table or figure shows; 0 drafted for a model alone."""
    yield from (("target", None, 0), ("draft", None, 0))
    for num_draft in asked.num_drafts:
        yield "lossless", None, num_draft
        yield from (("ensemble", w, num_draft) for w in WS)


def find(
    cells: pd.DataFrame, asked: Exhibit, model: str, task: str, line: tuple[str, float | None, int]
) -> pd.Series | None:
    """The measured cell of one setting, if there is one."""
    rule, w, num_draft = line
    wanted = {"model": model, "base": task, "temperature": asked.temperature, "verifier": rule, "num_draft": num_draft}
    same = np.logical_and.reduce([cells[name].to_numpy() == value for name, value in wanted.items()])
    ws = cells[WEIGHT].to_numpy(dtype=np.float64)
    places = np.flatnonzero(same & (np.isnan(ws) if w is None else np.isclose(ws, w)))
    return cells.iloc[places[0]] if len(places) else None


def missing(asked: Exhibit, cells: pd.DataFrame, configs: Mapping[str, Mapping[str, Any]]) -> list[Missing]:
    """For every pair and task what was not measured; `configs` {pair: its resolved configuration} names unknown pairs."""
    gaps = []
    for model in pairs_of(asked, cells):
        for task in asked.tasks:
            lacking = [line for line in lines_of(asked) if find(cells, asked, model, task, line) is None]
            if lacking:
                name = named(cells, model, task)
                command = command_of(asked, model, name, configs.get(model, {}))
                gaps.append(Missing(asked.name, model, name, tuple(map(said, lacking)), command))
    return gaps


def named(cells: pd.DataFrame, model: str, task: str) -> str:
    """The task as this pair runs it: the tiny pairs know the tiny twins."""
    own = cells.loc[cells["model"] == model, "task"]
    return task + TINY if len(own) and own.str.endswith(TINY).all() else task


def said(line: tuple[str, float | None, int]) -> str:
    rule, w, num_draft = line
    return rule + (f" w={w:g}" if w is not None else "") + (f" K={num_draft}" if num_draft else "")


def command_of(asked: Exhibit, model: str, task: str, config: Mapping[str, Any]) -> str:
    """What to type to fill a pair and task; the records that there are already are not made again."""
    if model in asked.models:
        return f"python -m sdbench experiment={asked.experiment} model={model} task={task}"
    words = [f"model={model}"]
    if not (config_dir() / "model" / f"{model}.yaml").exists():
        own = config.get("model") or {}
        words = [f"model.{role}={own[role]}" for role in ("target", "draft") if own.get(role)] or words
    lengths = ",".join(map(str, asked.num_drafts))
    lengths = f"[{lengths}]" if len(asked.num_drafts) > 1 else lengths
    words += [f"task={task}", f"temperature={asked.temperature:g}", f"num_draft={lengths}", "timing=off"]
    return shlex.join(["python", "-m", "sdbench", *words])
