"""The data of the page's example browser: the examples and their texts in every setting, in a few bytes per token.

The largest changes of quality against lossless come first, then a seeded random sample. An example is JSON, deflated, in
base64; the page inflates the example that is shown. If not all fit into the page, a note says so.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from sdbench.metrics.cells import BASELINES, reference, scores_of
from sdbench.metrics.quality import sign_of
from sdbench.metrics.summary import FLAGS
from sdbench.report.page.pieces import colour_tokens
from sdbench.report.sweep import Sweep

LIMIT = 300  # examples on a page
SAMPLES = 4  # texts of one example in one setting
NO_TOKENS = "These records do not hold the text of each token, so answers are shown whole and without colours."
NO_PROMPTS = "These records hold no prompts and references, so only answers are shown."
NO_SCORES = "There is no lossless run to compare with, so the examples are a random sample."


@dataclass
class Browser:
    """`groups`: the lists to choose from; `chunks`: one packed example each; `notes`: what is left out, and why."""

    groups: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def browse(sweeps: Sequence[Sweep], compared: Mapping[str, Sequence[str]], *, room: int, seed: int = 0) -> Browser:
    """Choose at most LIMIT examples over all sweeps in at most `room` bytes; `compared`: the cells shown at first, by title."""
    browser = Browser()
    for index, sweep in enumerate(map(with_texts, sweeps)):
        share = (room - sum(map(len, browser.chunks))) // (len(sweeps) - index)
        _add(browser, sweep, compared.get(sweep.title, ()), LIMIT // len(sweeps), share, seed)
    return browser


def with_texts(sweep: Sweep) -> Sweep:
    """Return the sweep without the cells that were only timed."""
    return replace(sweep, cells=sweep.cells[sweep.cells.index.isin(set(sweep.results.generations["cell"]))])


def _add(browser: Browser, sweep: Sweep, compared: Sequence[str], limit: int, room: int, seed: int) -> None:
    results, cells, generations = sweep.results, sweep.cells, sweep.select(sweep.results.generations)
    scores = by_example(generations, sweep)
    chosen = choose(changes(scores, sweep), limit, seed)
    vocabulary = results.vocabulary.get(sweep.model)
    rows = texts_of(
        sweep, generations[generations["example"].isin(chosen["example"])], with_tokens=vocabulary is not None
    )
    parts = {str(example): part for example, part in rows.groupby("example", sort=True)}
    prompts = results.examples[results.examples["asked"].isin(set(cells["asked"]))].set_index("example")
    flags = [name for name in FLAGS if name in rows]
    examples: list[dict[str, Any]] = []
    for key, change, is_change in chosen.itertuples(index=False):
        prompt, answer = prompts.loc[key, ["prompt", "reference"]] if key in prompts.index else (None, None)
        texts = [_text(row, results.scores, vocabulary) for row in parts[key].to_dict("records")]
        chunk = pack({"prompt": prompt, "reference": answer, "texts": texts})
        room -= len(chunk)
        if room < 0:
            browser.notes.append(
                f"{sweep.title}: {len(examples)} of {len(chosen)} chosen examples are shown; "
                f"more would make this page too large. All texts are in the records."
            )
            break
        listed = {"id": key, "change": _number(change), "is_change": is_change, "chunk": len(browser.chunks)}
        listed |= {"scores": [_number(score) for score in scores.loc[key]]}
        examples.append(listed | {"flags": [name for name in flags if parts[key][name].any()]})
        browser.chunks.append(chunk)
    lacking = {NO_TOKENS: vocabulary is None, NO_PROMPTS: prompts.empty, NO_SCORES: chosen["change"].isna().all()}
    browser.notes += [f"{sweep.title}: {note}" for note, is_lacking in lacking.items() if is_lacking]
    stored = [name for name in results.scores if generations[name].notna().any()]
    metrics = scores_of(cells.iloc[0].to_dict(), stored) if len(cells) else []
    scales, raw = {each.name: each.scale for each in metrics}, [each.name for each in metrics if each.unit == "raw"]
    group = {"title": sweep.title, "metric": sweep.metric.name, "sign": sign_of(sweep.metric), "examples": examples}
    group |= {"unit": "" if sweep.metric.unit == "raw" else " points", "scales": scales, "raw": raw}
    group |= {"num_all": generations["example"].nunique()}
    group["cells"] = [describe_cell(sweep, str(key)) for key in cells.index]
    group["compared"] = [index for index, key in enumerate(cells.index) if key in compared]
    browser.groups.append(group)


def by_example(generations: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """Return the headline score of every example (index) in every cell (columns), a mean over samples; NaN if missing."""
    if sweep.metric.name not in generations:
        return pd.DataFrame(np.nan, index=sorted(generations["example"].unique()), columns=sweep.cells.index)
    means = generations.groupby(["example", "cell"], sort=True)[sweep.metric.name].mean().unstack("cell")
    return means.reindex(columns=sweep.cells.index)


def changes(scores: pd.DataFrame, sweep: Sweep) -> pd.Series:
    """Return each example's largest change against lossless over the swept settings; positive is better."""
    gaps: dict[object, pd.Series] = {}
    for key, verifier in sweep.cells["verifier"].items():
        base = reference(sweep.cells, str(key), "lossless")
        if verifier not in BASELINES and base is not None and base != key:
            gaps[key] = sign_of(sweep.metric) * (scores[key] - scores[base])
    values = pd.DataFrame(gaps, index=scores.index).to_numpy(dtype=np.float64)
    if np.isnan(values).all():
        return pd.Series(np.nan, index=scores.index)
    largest = np.nan_to_num(np.abs(values), nan=-1.0).argmax(axis=1)
    return pd.Series(values[np.arange(len(values)), largest], index=scores.index)


def choose(change: pd.Series, limit: int, seed: int) -> pd.DataFrame:
    """Choose `limit` examples: up to half of them the largest changes, the rest at random from the others."""
    size = change.abs().sort_index().sort_values(ascending=False, kind="stable")
    largest = list(size[size > 0].index[: limit - limit // 2])
    others = sorted(set(change.index) - set(largest))
    drawn = np.random.default_rng(seed).permutation(len(others))[: limit - len(largest)]
    picked = [*largest, *(others[index] for index in drawn)]
    is_change = [True] * len(largest) + [False] * len(drawn)
    return pd.DataFrame({"example": picked, "change": change.loc[picked].to_numpy(), "is_change": is_change})


def texts_of(sweep: Sweep, generations: pd.DataFrame, *, with_tokens: bool) -> pd.DataFrame:
    """Return the generations in the order of cells (`index`) and samples, joined with their tokens and rounds."""
    results, key = sweep.results, ["cell", "example", "sample"]
    order = {cell: index for index, cell in enumerate(sweep.cells.index)}
    rows = generations[generations["sample"] < SAMPLES].assign(index=generations["cell"].map(order))
    rows = rows.sort_values(["example", "index", "sample"])
    if not with_tokens:
        return rows
    rounds = results.rounds[results.rounds["example"].isin(set(rows["example"]))]
    lists = rounds.groupby(key, sort=True)[["drafted", "examined"]].agg(list).add_prefix("round_").reset_index()
    return rows.merge(results.tokens, on=key, how="left").merge(lists, on=key, how="left")


def _text(row: Mapping[Any, Any], scores: Sequence[str], vocabulary: Sequence[str] | None) -> dict[str, Any]:
    """Return a text in the page's format, with its scores and flags, and the colours of its tokens if they are known."""
    names = ("sample", "finish", "tokens", "drafted", "examined", "accepted", "rounds")
    text: dict[str, Any] = {name: None if row[name] != row[name] else row[name] for name in names}  # NaN: unknown
    known = {name: _number(row[name]) for name in scores if name in row}
    text["scores"] = {name: score for name, score in known.items() if score is not None}
    text |= {"flags": [name for name in FLAGS if row.get(name) is True], "cell": row["index"]}
    if vocabulary is not None and isinstance(row.get("ids"), Iterable):
        rounds = {"drafted": row["round_drafted"], "examined": row["round_examined"]}
        text |= colour_tokens(row["text"], row, rounds, vocabulary)
    return text if "pieces" in text else {**text, "text": row["text"]}


def describe_cell(sweep: Sweep, key: str) -> dict[str, Any]:
    """Return what the page shows of a cell besides numbers; `base` is the index of its lossless cell."""
    cell, base = sweep.cells.loc[key], reference(sweep.cells, key, "lossless")
    return {
        "key": key,
        "label": cell["label"],
        "is_baseline": cell["verifier"] in BASELINES,
        "is_alone": cell["verifier"] in ("target", "draft"),
        "base": None if base is None else list(sweep.cells.index).index(base),
    }


def pack(example: Mapping[str, Any]) -> str:
    """Encode an example in base64; the same example gives the same text."""
    text = json.dumps(example, ensure_ascii=True, separators=(",", ":"), default=int)
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii")


def script_json(value: object) -> str:
    """Return JSON that is safe inside a script tag: it can neither end the tag nor begin another."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _number(value: object) -> float | None:
    """Return a number with at most four decimals; None without one."""
    is_number = isinstance(value, int | float | np.number) and value == value
    return round(float(value), 4) if is_number else None  # type: ignore[arg-type]
