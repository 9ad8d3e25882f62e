"""How many tokens texts share with the target's greedy text: a comparison that does not depend on the task's metric.

The greedy text is that of a cell at temperature 0 with the same prompts and pair, of the same weights on the same server: the
target alone, or a lossless rule, which has the same tokens. Without such a cell the frame is empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sdbench.metrics.cells import settings_of
from sdbench.metrics.columns import spread, spread_names
from sdbench.metrics.server import server_key
from sdbench.metrics.stats import NAN, Estimate, is_binary, mean_interval, proportion_interval
from sdbench.records import Results

COLUMNS = ["cell", "example", "sample", "tokens", "prefix", "is_same"]
EXACT = ("float32", "float64")  # dtypes in which a block and single steps choose the same tokens
REPEAT = "with engine=native, repeating the command measures the next ones"
UNMEASURED = f"the difference of logits was not measured for {{}} of {{}} texts ({REPEAT})"
AUDIT = "python -m sdbench.audit finds the rule at fault"


def greedy_reference(cells: pd.DataFrame, cell: pd.Series, *, is_alike_only: bool = False) -> str | None:
    """Return the cell of `cells` with the target's greedy text for the prompts and the pair of `cell`; one with the numbers of
    its target if there is any, and none other with `is_alike_only`.
    """
    same = cells[(cells["temperature"] == 0) & (cells["model"] == cell["model"]) & (cells["asked"] == cell["asked"])]
    same = same.loc[[_is_same_model(each, cell) for _, each in same.iterrows()]]
    alike = [_target_of(each) == _target_of(cell) for _, each in same.iterrows()]
    same = same.loc[alike] if any(alike) or is_alike_only else same  # a folder may hold the target in two dtypes
    for chosen in (same[same["verifier"] == "target"], same[same["is_lossless"].astype(bool)]):
        if len(chosen):
            return str(chosen["cell"].iloc[0])
    return None


def _is_same_model(reference: pd.Series, cell: pd.Series) -> bool:
    """Return whether both have the same server configuration and, if both name the target's weights, the same weights."""
    weights = [each.get("checkpoint_target") for each in (reference, cell)]
    is_other = all(isinstance(name, str) for name in weights) and weights[0] != weights[1]
    return not is_other and server_key(reference.to_dict()) == server_key(cell.to_dict())


def _target_of(cell: pd.Series) -> dict[str, object]:
    """Return what decides the target's numbers: its dtype, attention and quantisation."""
    return {name: value for name, value in (cell["content"] or {}).items() if name.startswith("target_")}


def against_greedy(results: Results, references: Sequence[Results] | None = None) -> pd.DataFrame:
    """Return one row per generation: how many of its first tokens equal the greedy text's (`prefix`), and whether all do.

    The greedy text is looked for in this folder and then in `references`; one of the target in another dtype is used only if
    none of them holds that in the same.
    """
    sources = [results, *(source for source in references or () if source is not results)]
    texts: dict[str, dict[str, NDArray[np.int64]]] = {}
    followed = []
    is_needed = any((source.cells["temperature"] == 0).any() for source in sources)
    by_cell = dict(list(results.tokens.groupby("cell", sort=True))) if is_needed else {}
    for _, cell in results.cells.iterrows():
        known = (
            (source, greedy_reference(source.cells, cell, is_alike_only=is_alike))
            for is_alike, source in product((True, False), sources)
        )
        home, key = next(((source, key) for source, key in known if key is not None), (results, None))
        if key is None or key == cell["cell"] or cell["cell"] not in by_cell:
            continue
        if key not in texts:
            tokens = home.tokens[home.tokens["cell"] == key]
            texts[key] = {row.example: np.asarray(row.ids) for row in tokens.itertuples() if row.sample == 0}  # type: ignore[misc]
        for row in by_cell[cell["cell"]].itertuples():
            greedy = texts[key].get(str(row.example))
            if greedy is not None:
                ids = np.asarray(row.ids)
                prefix = common_prefix(ids, greedy)
                is_same = prefix == len(ids) == len(greedy)
                followed.append((cell["cell"], row.example, row.sample, len(ids), prefix, is_same))
    return pd.DataFrame(followed, columns=COLUMNS)


@dataclass(frozen=True, slots=True)
class EqualTexts:
    """In how many texts at T = 0 a lossless setting equals the target alone, and where the earliest difference is."""

    name: str
    dtype: str
    num_equal: int
    num: int
    token: int  # counted from 1; 0 if all texts are equal
    example: str
    num_measured: int = 0  # differing texts with a measured margin
    num_beyond: int = 0  # those whose margin is larger than rounding explains
    margin: float = NAN  # the largest, in logits
    explained: float = NAN  # by rounding

    @property
    def is_fault(self) -> bool:
        """Whether texts differ although rounding in their dtype does not explain it, or by more than it explains."""
        return self.num_equal < self.num and (self.dtype in EXACT or self.num_beyond > 0)

    @property
    def count(self) -> str:
        """The number as text."""
        return f"{self.name} equals the target alone in {self.num_equal} of {self.num} texts ({self.dtype})"

    @property
    def text(self) -> str:
        """The number as text, and where and why texts differ."""
        if self.num_equal == self.num:
            return self.count
        return (
            f"{self.count}; the earliest difference is at token {self.token}, in example {self.example}: {self._cause}"
        )

    @property
    def _cause(self) -> str:
        num = self.num - self.num_equal
        logits = f"the logits of the two tokens are up to {self.margin:.3g} apart"
        rest = "" if self.num_measured == num else f"; {UNMEASURED.format(num - self.num_measured, num)}"
        if self.num_beyond:
            what = f"{logits}, and rounding in {self.dtype} explains {self.explained:.3g}"
            what = what if self.margin == self.margin else "one text ends where the other goes on"
            return f"a fault in {self.num_beyond} of {num} texts: {what}{rest}; {AUDIT}"
        if self.is_fault:
            return f"a fault, since rounding in {self.dtype} does not explain it; {AUDIT}"
        if self.num_measured:
            some = f" in {self.num_measured} of {num} texts" if rest else ""
            explained = f"rounding in {self.dtype} explains {self.explained:.3g}"
            return f"rounding{some}: {logits} where texts part, and {explained}{rest}"
        return f"possibly rounding of near-ties, which a block of tokens and single tokens may round differently{rest}"


def first_differences(results: Results, cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return for each lossless setting at T = 0 the texts that differ from the target's: ids of both, `token` counted from 1.

    `cells`: those of a sweep by key. The attribute `num` of the frame is the number of texts compared.
    """
    target = cells.index[cells["verifier"] == "target"]
    if target.empty or cells["temperature"].iloc[0] != 0:
        return {}
    ids = results.ids
    pairs = ids.merge(ids[ids["cell"] == target[0]], on=["example", "sample"], suffixes=("", "_target"))
    frames = {}
    for key in cells.index[cells["is_lossless"].astype(bool) & (cells["num_draft"] > 0)]:
        part = pairs[pairs["cell"] == key]
        texts = [(np.asarray(row.ids), np.asarray(row.ids_target)) for row in part.itertuples()]
        differ = [not np.array_equal(*both) for both in texts]
        tokens = [common_prefix(*both) + 1 for both, is_other in zip(texts, differ, strict=True) if is_other]
        if len(part):
            frames[str(key)] = part[differ].assign(token=tokens)
            frames[str(key)].attrs["num"] = len(part)
    return frames


def equal_texts(results: Results, cells: pd.DataFrame) -> list[EqualTexts]:
    """Compare the texts of lossless settings at T = 0 with the target's own. `cells`: those of a sweep by key, with `label`."""
    compared, keys = [], ["cell", "example", "sample", "token"]
    known = results.partings[[*keys, "margin", "explained"]]
    for key, part in first_differences(results, cells).items():
        measured = part.merge(known, on=keys)
        beyond = measured[~(measured["margin"] <= measured["explained"])]
        worst = beyond if len(beyond) else measured
        first = part.sort_values("token", kind="stable").iloc[:1]
        counts = part.attrs["num"] - len(part), part.attrs["num"], int(first["token"].sum())
        cell = cells.loc[key]
        compared.append(
            EqualTexts(
                str(cell["label"]),
                settings_of(cell.to_dict())["dtype"] or "dtype not recorded",
                *counts,
                str(first["example"].iloc[0]) if len(first) else "",
                len(measured),
                len(beyond),
                float(worst["margin"].max(skipna=False)) if len(worst) else NAN,
                float(worst["explained"].min()) if len(worst) else NAN,
            )
        )
    return compared


def common_prefix(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return how many first tokens are equal."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def follow(divergence: pd.DataFrame, **options: float) -> pd.DataFrame:
    """Return one row per cell: share of answers equal to the greedy text, and tokens before the first difference."""
    rows = []
    for cell, part in divergence.groupby("cell", sort=True):
        by_example = part.groupby("example", sort=True)
        same = by_example["is_same"].mean().to_numpy(dtype=np.float64)
        prefix = mean_interval(by_example["prefix"].mean(), bounds=(0, None), **options)  # type: ignore[arg-type]
        row: dict[str, object] = {"cell": cell, "n": len(same)}
        for name, estimate in (("same", share(same, **options)), ("prefix", prefix)):
            row |= spread(name, estimate)
        rows.append(row)
    return pd.DataFrame(rows, columns=["cell", "n", *spread_names(("same", "prefix"))])


def survival(divergence: pd.DataFrame, cell: str) -> pd.DataFrame:
    """Return the share of a cell's answers that equal the greedy text for at least `token` tokens, or to the end of both."""
    part = divergence[divergence["cell"] == cell]
    tokens = np.arange(int(part["prefix"].max()) + 2)
    lasts = (part["prefix"].to_numpy()[:, None] >= tokens) | part["is_same"].to_numpy()[:, None]
    return pd.DataFrame({"token": tokens, "share": lasts.mean(0)})


def share(values: NDArray[np.float64], **options: float) -> Estimate:
    """Return a share of examples: Wilson's interval for yes or no, the bootstrap where several samples were averaged."""
    if len(values) and is_binary(values):
        return proportion_interval(int(values.sum()), len(values), level=options.get("level", 0.95))
    return mean_interval(values, bounds=(0, 1), **options)  # type: ignore[arg-type]
