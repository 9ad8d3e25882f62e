"""What the tables and figures of DIVERSED (arXiv:2604.07622) ask of our records, what the records hold of it, what is missing.

The paper's learned head is the rule `diversed` at offset 0; its finetuned draft is the lossless rule with a draft that was
distilled from the pair's own, and stands under the pair's name. A tiny twin (gsm8k-tiny for gsm8k) fills the same column
under its own pair's name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sdbench.config import config_dir
from sdbench.metrics.legacy import WEIGHT

TINY = "-tiny"
LEARNED, FINETUNED = "diversed", "finetuned"  # the first is the name of its rule too
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
    heads: tuple[str | None, ...] = ()  # the tasks that learned heads were trained on; None: each column's own
    is_finetuned: bool = False  # whether the paper shows a finetuned draft


class Line(NamedTuple):
    """A setting that a table or figure shows; 0 drafted for a model alone."""

    rule: str
    w: float | None
    num_draft: int
    trained: str | None = None  # the task of its training; None: the column's own, where it has one

    @property
    def name(self) -> str:
        """For a list of what is missing."""
        w = "" if self.w is None else f" w={self.w:g}"
        return f"{self.rule}{w}{f' K={self.num_draft}' if self.num_draft else ''}{_on(self.trained)}"


def _on(task: str | None) -> str:
    return "" if task is None else f" trained on {task}"


PAIRS, TABLE_TASKS = ("llama", "qwen"), ("gsm8k", "xsum", "mbpp")
TRANSFER = ("gsm8k", "cnndm")
TABLES = (
    Exhibit("table1", "Table 1", "diversed-table1", PAIRS, TABLE_TASKS, 1.0, heads=(None,), is_finetuned=True),
    Exhibit("table2", "Table 2", "diversed-table2", PAIRS, TABLE_TASKS, 0.1, heads=(None,), is_finetuned=True),
    Exhibit("table3", "Table 3", "diversed-table3", PAIRS, TRANSFER, 0.1, heads=TRANSFER),
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


LABELS = ("model", "task", "base", "protocol", "verifier", WEIGHT, "trained", "num_draft", "temperature")


def base_of(task: str) -> str:
    """gsm8k for gsm8k and gsm8k-tiny."""
    return task.removesuffix(TINY)


def is_plain(cell: pd.Series) -> bool:
    """The rules of the paper's tables: baselines, and static and learned ensembles as they are written there."""
    if cell["verifier"] not in ("ensemble", LEARNED):
        return cell["verifier"] in ("target", "draft", "lossless")
    wanted = {"knob_mix": "prob", "knob_greedy": "blend", "knob_offset": 0}
    return all(pd.isna(cell.get(knob)) or cell[knob] == value for knob, value in wanted.items())


def distilled(cell: pd.Series) -> Mapping[str, Any] | None:
    """Of which pair and how a cell's draft was distilled; None for a draft that was not, or for another target."""
    card = (cell["content"] or {}).get("distilled")
    target = cell["checkpoint_target"] if cell["verifier"] != "draft" else None  # the draft alone has none
    return card if card and target in (None, card["target"]) else None


def labels_of(cell: pd.Series) -> dict[str, Any] | None:
    """What a cell is in the paper's tables, None for what they do not show. `trained`: the task of a head or a draft, else ""."""
    card = distilled(cell)
    if not is_plain(cell) or (card is not None and cell["verifier"] != "lossless"):
        return None
    own = {name: cell[name] for name in LABELS if name not in ("base", "trained")}
    head = (cell["content"] or {}).get("heads", {}).get("head", {})
    learned = {"trained": base_of(str(head.get("task", ""))), "trained_at": head.get("temperature"), "loss": ""}
    if card is not None:
        own |= {"model": card["model"], "verifier": FINETUNED}
        learned = {"trained": base_of(card["task"]), "trained_at": card["temperature"], "loss": card["loss"]}
    return {**own, "base": base_of(str(cell["task"])), **learned}


def strangers(cells: pd.DataFrame) -> set[str]:
    """Names under which a folder holds a pair with a distilled draft alone: what they have without it is the pair's own."""
    drafting = cells[cells["verifier"] != "target"]
    is_distilled = pd.Series(
        [distilled(cell) is not None for _, cell in drafting.iterrows()], drafting.index, dtype=bool
    )
    return set(drafting.loc[is_distilled, "model"]) - set(drafting.loc[~is_distilled, "model"])


def pairs_of(asked: Exhibit, cells: pd.DataFrame) -> list[str]:
    """The pairs that were measured on one of its tasks, then the paper's own that were not."""
    have = sorted(set(cells.loc[cells["base"].isin(asked.tasks), "model"]))
    return [*have, *(model for model in asked.models if model not in have)]


def lines_of(asked: Exhibit) -> Iterator[Line]:
    """Every setting that a table or figure shows."""
    yield from (Line("target", None, 0), Line("draft", None, 0))
    for num_draft in asked.num_drafts:
        yield Line("lossless", None, num_draft)
        if asked.is_finetuned:
            yield Line(FINETUNED, None, num_draft)
        yield from (Line("ensemble", w, num_draft) for w in WS)
        yield from (Line(LEARNED, None, num_draft, task) for task in asked.heads)


def find(cells: pd.DataFrame, asked: Exhibit, model: str, task: str, line: Line) -> pd.Series | None:
    """The measured cell of one setting, if there is one."""
    trained = (line.trained or task) if line.rule in (LEARNED, FINETUNED) else ""
    wanted = {"model": model, "base": task, "temperature": asked.temperature, "verifier": line.rule}
    wanted |= {"num_draft": line.num_draft, "trained": trained}
    same = np.logical_and.reduce([cells[name].to_numpy() == value for name, value in wanted.items()])
    ws = cells[WEIGHT].to_numpy(dtype=np.float64)
    places = np.flatnonzero(same & (np.isnan(ws) if line.w is None else np.isclose(ws, line.w)))
    return cells.iloc[places[0]] if len(places) else None


def missing(asked: Exhibit, cells: pd.DataFrame, configs: Mapping[str, Mapping[str, Any]]) -> list[Missing]:
    """For every pair and task what was not measured; `configs` {pair: its resolved configuration} names unknown pairs."""
    gaps = []
    for model in pairs_of(asked, cells):
        for task in asked.tasks:
            lacking: dict[str, list[str]] = {}
            for line in lines_of(asked):
                if find(cells, asked, model, task, line) is None:
                    lacking.setdefault(method_of(asked, line), []).append(line.name)
            name = named(cells, model, task)
            for method, lines in lacking.items():
                command = command_of(asked, model, name, configs.get(model, {}), method)
                gaps.append(Missing(asked.name, model, name, tuple(lines), command))
    return gaps


def method_of(asked: Exhibit, line: Line) -> str:
    """The file in configs/method that makes it."""
    if line.rule == LEARNED:
        return "learned" if asked.heads == (None,) else "transfer"
    return "finetuned" if line.rule == FINETUNED else "static"


def named(cells: pd.DataFrame, model: str, task: str) -> str:
    """The task as this pair runs it: the tiny pairs know the tiny twins."""
    own = cells.loc[cells["model"] == model, "task"]
    return task + TINY if len(own) and own.str.endswith(TINY).all() else task


def command_of(asked: Exhibit, model: str, task: str, config: Mapping[str, Any], method: str = "") -> str:
    """What to type to fill a pair and task, all of it or one method; the records that there are already are not made again."""
    chosen = [f"method={method}"] if method else []
    if model in asked.models:
        return shlex.join(
            ["python", "-m", "sdbench", f"experiment={asked.experiment}", f"model={model}", f"task={task}", *chosen]
        )
    words = [f"model={model}"]
    if not (config_dir() / "model" / f"{model}.yaml").exists():
        own = config.get("model") or {}
        words = [f"model.{role}={own[role]}" for role in ("target", "draft") if own.get(role)] or words
    lengths = ",".join(map(str, asked.num_drafts))
    lengths = f"[{lengths}]" if len(asked.num_drafts) > 1 else lengths
    words += [f"task={task}", f"temperature={asked.temperature:g}", f"num_draft={lengths}", "timing=off", *chosen]
    if method == "transfer" and task.endswith(TINY):
        words.append(f"verifier.head=[{','.join(f'trained:{head}{TINY}' for head in asked.heads)}]")
    return shlex.join(["python", "-m", "sdbench", *words])
