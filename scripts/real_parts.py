"""Divide the records of a real run into the parts that results/real shows: w, other rules, draft lengths, drafters, their prices,
latency, a learned weight.

All parts are in one folder of records, so that their baselines are decoded once.
"""

import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass

import pandas as pd

from sdbench.metrics.cells import table_of
from sdbench.records import Results

PAIR = "qwen-coder-small"  # names of its folders begin with the task, those of other models with the model
TASKS = ("humaneval", "mbpp", "gsm8k", "wmt", "xsum", "cnndm")
PARTS = (
    "",
    "rules",
    "packed-rules",
    "learned",
    "lengths",
    "drafters",
    "prices",
    "latency",
    "assisted",
    "packed",
    "float32",
)
TIMED = ("latency", "assisted", "packed", "float32")  # parts that have only times, of few texts
NAMED = (*TIMED, "packed-rules", "learned")  # parts that have all cells of records with this ending in their name
OF_DRAFTERS = ("drafters", "prices")
CHAT = "chat"  # a task's usual prompt as a chat turn
FORMS = ("evalplus", "plan", "lighteval", CHAT)  # protocols and forms besides a task's usual one
NUM_DRAFT = 5
MARGINS = (5.0, 2.0)  # points of quality that a setting to ship may lose
WEIGHT = 0.7  # of the ensemble that other rules are compared with
FRAMES = ("cells", "generations", "rounds", "tokens", "ids", "timings", "loads", "open_loads", "pooled")
FOLDER = re.compile(
    rf"(?:(?P<model>.+)-)?(?P<task>{'|'.join(TASKS)})(?:-(?P<form>{'|'.join(FORMS)}))?"
    rf"(?:-T(?P<temperature>[\d.]+))?(?:-(?P<part>{'|'.join(PARTS[1:])}))?"
)


@dataclass(frozen=True, slots=True)
class RealFolder:
    """A folder of results/real, by its name."""

    name: str
    model: str
    task: str
    form: str
    temperature: str
    part: str

    @classmethod
    def of(cls, name: str) -> "RealFolder":
        match = FOLDER.fullmatch(name)
        if match is None:
            raise ValueError(f"{name} is not [MODEL-]TASK[-FORM][-T1][-PART] with a task of {', '.join(TASKS)}")
        return cls(name, **{key: value or "" for key, value in match.groupdict().items()})

    @property
    def title(self) -> str:
        """The title, such as "wmt, T = 1"."""
        model = f"{self.model}, " if self.model else ""
        form = f" ({self.form})" if self.form else ""
        return f"{model}{self.task}{form}" + (f", T = {self.temperature}" if self.temperature else "")

    @property
    def order(self) -> tuple[object, ...]:
        """The key by which folders are sorted."""
        return self.temperature, self.model, bool(self.form), TASKS.index(self.task), PARTS.index(self.part)


def divide(results: Results) -> Iterator[tuple[RealFolder, Results]]:
    """Yield each part of the records with the folder that it goes to. Records called …-latency, …-assisted, …-packed or …-float32
    are of few texts, so only the times of their settings are shown. Records called …-learned or …-packed-rules (more rules, with
    packed weights) are also one part, and those called …-chat have a task's usual prompt as a chat turn.
    """
    named = next((part for part in NAMED if results.name.endswith(f"-{part}")), None)
    cells = table_of(results.cells)
    cells = cells.assign(is_timed=cells.index.isin(results.timings["cell"]))
    if named not in TIMED:  # transformers' own generation is only timed
        cells = cells[cells.index.isin(results.generations["cell"])]
    has_own_draft = own_draft(results) is not None
    seen: set[str] = set()
    for _, sweep in cells.groupby("sweep", sort=True):
        first = sweep.iloc[0]
        stem = str(first["task"]) if first["model"] == PAIR else f"{first['model']}-{first['task']}"
        form = first["protocol"] if first["protocol"] in FORMS else CHAT if results.name.endswith(f"-{CHAT}") else None
        stem += f"-{form}" if form else ""
        stem += f"-T{first['temperature']:g}" if first["temperature"] > 0 else ""
        for part, choose in CHOICES.items():
            keys = choose(sweep)
            if not keys or (has_own_draft and part not in OF_DRAFTERS) or (part if part in NAMED else None) != named:
                continue
            name = f"{stem}-{part}" if part else stem
            if name in seen:
                raise ValueError(
                    f"{results.name} has two runs that would be {name}: they differ in seed, dtype or length"
                )
            seen.add(name)
            yield RealFolder.of(name), select(results, keys, is_shared=part == "drafters")


def own_draft(results: Results) -> str | None:
    """Return the kind of a draft that was built from the target; None for a draft that was trained from scratch."""
    model = results.config.get("model")
    if not isinstance(model, dict) or not model.get("draft"):
        return None
    if model["target"] == model["draft"]:
        return f"itself ({model.get('draft_quantization')})"
    cards = [content.get("distilled") or {} for content in results.cells["content"] if content]
    layers = {card["keep_layers"] for card in cards if "keep_layers" in card}
    return f"healed ({layers.pop()} layers)" if layers else None


def select(results: Results, keys: list[str], *, is_shared: bool) -> Results:
    """Return the records of some cells; `is_shared`: only those of examples that all these cells have."""
    generations = results.generations[results.generations["cell"].isin(keys)]
    num_cells = generations.groupby("example")["cell"].nunique()
    examples = num_cells.index[num_cells == len(keys)] if is_shared else num_cells.index

    def rows_of(frame: pd.DataFrame) -> pd.DataFrame:
        chosen = frame["cell"].isin(keys)
        return frame[chosen & frame["example"].isin(examples)] if "example" in frame else frame[chosen]

    chosen = copy(results)
    chosen.__dict__ |= {name: rows_of(getattr(results, name)) for name in FRAMES}
    return chosen


def _alone(cells: pd.DataFrame) -> pd.Series:
    return cells["num_draft"] == 0


def _with_draft_model(cells: pd.DataFrame) -> pd.Series:
    return cells["drafter"].eq("model") & (cells["num_draft"] > 0)


def _swept(cells: pd.DataFrame) -> list[str]:
    rules = cells["verifier"].isin(["lossless", "ensemble"])
    chosen = _with_draft_model(cells) & rules & (cells["num_draft"] == NUM_DRAFT)
    return cells.index[_alone(cells) | chosen].tolist() if (chosen & (cells["verifier"] == "ensemble")).any() else []


def _rules(cells: pd.DataFrame) -> list[str]:
    """Return the rules other than those used to compare drafters, and lossless and one ensemble for comparison."""
    with_model = _with_draft_model(cells) & (cells["num_draft"] == NUM_DRAFT)
    is_beside = (cells["verifier"] == "lossless") | ((cells["verifier"] == "ensemble") & (cells["w"] == WEIGHT))
    other = with_model & ~cells["verifier"].isin(["lossless", "ensemble"])
    of_drafters = cells["verifier"][~_with_draft_model(cells) & ~_alone(cells)]
    has_more = (other & ~cells["verifier"].isin(of_drafters)).any()
    return cells.index[_alone(cells) | (with_model & is_beside) | other].tolist() if has_more else []


def _lengths(cells: pd.DataFrame) -> list[str]:
    with_model = _with_draft_model(cells) & cells["verifier"].isin(["lossless", "ensemble"])
    other = cells[with_model & (cells["num_draft"] != NUM_DRAFT)]
    chosen = with_model & ((cells["verifier"] == "lossless") | cells["w"].isin(other["w"].dropna()))
    return cells.index[chosen].tolist() if len(other) else []


def _of_drafters(cells: pd.DataFrame) -> list[str]:
    drafting = cells[~_alone(cells) & (cells["num_draft"] == NUM_DRAFT)]
    setting = drafting["verifier"] + drafting["value"].map(str)
    other = ~_with_draft_model(drafting)
    return drafting.index[other | setting.isin(setting[other])].tolist() if other.any() else []


def _drafters(cells: pd.DataFrame) -> list[str]:
    """Return the cells that show what drafters emit and cost in quality. Timed runs have few short texts and are in `_prices`."""
    chosen = _of_drafters(cells)
    return [] if cells["is_timed"][chosen].any() else chosen


def _prices(cells: pd.DataFrame) -> list[str]:
    """Return the cells that show the time of drafters, and the target alone."""
    chosen = _of_drafters(cells)
    is_target = cells["verifier"] == "target"
    return cells.index[(is_target | cells.index.isin(chosen)) & cells["is_timed"]].tolist() if chosen else []


def _latency(cells: pd.DataFrame) -> list[str]:
    """Return the cells that were timed."""
    return cells.index[cells["is_timed"]].tolist()


def _all(cells: pd.DataFrame) -> list[str]:
    return cells.index.tolist()


CHOICES: dict[str, Callable[[pd.DataFrame], list[str]]] = {
    "": _swept,
    "rules": _rules,
    "packed-rules": _rules,
    "learned": _all,
    "lengths": _lengths,
    "drafters": _drafters,
    "prices": _prices,
    "latency": _latency,
    "assisted": _latency,
    "packed": _latency,
    "float32": _latency,
}
