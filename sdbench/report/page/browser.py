"""What the page's example browser holds: which examples, their texts in every setting, packed to a few bytes a token.

The largest changes of quality against lossless come first, then a seeded random sample. An example is one chunk: JSON,
deflated, in base64; the page inflates the one that is looked at. Where the room does not do for all, the page says so.
"""

from __future__ import annotations

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
from sdbench.records import Results
from sdbench.report.page.pieces import coloured
from sdbench.report.sweep import Sweep

LIMIT = 300  # examples on a page
SAMPLES = 4  # texts of one example in one setting
NO_TOKENS = "These records hold no texts of single tokens, so texts are shown whole and without colours."
NO_PROMPTS = "These records hold no prompts and references, so texts stand alone."
NO_SCORES = "There is no lossless run to compare with, so the examples are a random sample."


@dataclass
class Browser:
    """`groups`: what is needed to list and to choose; `chunks`: one packed example each; `notes`: what is left out, and why."""

    groups: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_bytes: int = 0


def browse(sweeps: Sequence[Sweep], compared: Mapping[str, Sequence[str]], *, room: int, seed: int = 0) -> Browser:
    """At most LIMIT examples over all sweeps in at most `room` bytes; `compared`: the cells shown at first, by title."""
    browser = Browser()
    for place, sweep in enumerate(map(with_texts, sweeps)):
        share = (room - browser.num_bytes) // (len(sweeps) - place)
        _add(browser, sweep, compared.get(sweep.title, ()), LIMIT // len(sweeps), share, seed)
    return browser


def with_texts(sweep: Sweep) -> Sweep:
    """The sweep without the cells that were timed only."""
    return replace(sweep, cells=sweep.cells[sweep.cells.index.isin(set(sweep.results.generations["cell"]))])


def _add(browser: Browser, sweep: Sweep, compared: Sequence[str], limit: int, room: int, seed: int) -> None:
    own = sweep.results.generations
    own = own[own["cell"].isin(sweep.cells.index)]
    scores = by_example(own, sweep)
    chosen = choose(changes(scores, sweep), limit, seed)
    texts = Texts.of(sweep, own[own["example"].isin(chosen["example"])])
    held = [name for name in sweep.results.scores if own[name].notna().any()]
    metrics = scores_of(sweep.cells.iloc[0].to_dict(), held) if len(sweep.cells) else []
    group: dict[str, Any] = {"title": sweep.title, "metric": sweep.metric.name, "sign": sign_of(sweep.metric)}
    group["scales"] = {metric.name: metric.scale for metric in metrics}
    group |= {
        "cells": [described(sweep, str(key)) for key in sweep.cells.index],
        "compared": [place for place, key in enumerate(sweep.cells.index) if key in compared],
        "examples": [],
    }
    left = room
    for pick in chosen.to_dict("records"):
        chunk = packed(texts.example(pick["example"]))
        if len(chunk) > left:
            browser.notes.append(
                f"{sweep.title}: {len(group['examples'])} of {len(chosen)} chosen examples are here; "
                f"more would make this page too large. All texts are in the records."
            )
            break
        left -= len(chunk)
        listed = {"id": pick["example"], "change": _number(pick["change"]), "is_change": bool(pick["is_change"])}
        listed |= {"scores": [_number(score) for score in scores.loc[pick["example"]]], "chunk": len(browser.chunks)}
        listed["flags"] = texts.flags.get(pick["example"], [])
        group["examples"].append(listed)
        browser.chunks.append(chunk)
        browser.num_bytes += len(chunk)
    browser.notes += [f"{sweep.title}: {note}" for note in texts.notes]
    if chosen["change"].isna().all():
        browser.notes.append(f"{sweep.title}: {NO_SCORES}")
    group["num_all"] = int(own["example"].nunique())
    browser.groups.append(group)


def by_example(generations: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """The headline's value of every example (index) in every cell (columns), a mean over samples; NaN where there is none."""
    if sweep.metric.name not in generations:
        return pd.DataFrame(np.nan, index=sorted(generations["example"].unique()), columns=sweep.cells.index)
    means = generations.groupby(["example", "cell"], sort=True)[sweep.metric.name].mean().unstack("cell")
    return means.reindex(columns=sweep.cells.index)


def changes(scores: pd.DataFrame, sweep: Sweep) -> pd.Series:
    """Each example's largest change against lossless over the swept settings; positive is better, as the scores are stored."""
    gaps = pd.DataFrame(index=scores.index)
    for key, verifier in sweep.cells["verifier"].items():
        base = reference(sweep.cells, str(key), "lossless")
        if verifier not in BASELINES and base is not None and base != key:
            gaps[key] = sign_of(sweep.metric) * (scores[key] - scores[base])
    if gaps.empty or gaps.isna().all(axis=None):
        return pd.Series(np.nan, index=scores.index)
    values = gaps.to_numpy(dtype=np.float64)
    largest = np.argmax(np.nan_to_num(np.abs(values), nan=-1.0), axis=1)
    return pd.Series(values[np.arange(len(values)), largest], index=scores.index)


def choose(change: pd.Series, limit: int, seed: int) -> pd.DataFrame:
    """`limit` examples: up to half of them the largest changes, the rest drawn at random from the others."""
    size = change.abs().fillna(0.0)
    ranked = sorted(size.index, key=lambda example: (-size[example], example))
    largest = [example for example in ranked if size[example] > 0][: limit - limit // 2]
    others = sorted(set(change.index) - set(largest))
    drawn = np.random.default_rng(seed).permutation(len(others))[: limit - len(largest)]
    picked = [*largest, *(others[place] for place in drawn)]
    is_change = [True] * len(largest) + [False] * (len(picked) - len(largest))
    return pd.DataFrame({"example": picked, "change": change.loc[picked].to_numpy(), "is_change": is_change})


@dataclass
class Texts:
    """Generations of the chosen examples, joined with their tokens, rounds and prompts."""

    sweep: Sweep
    parts: Mapping[str, Sequence[Mapping[Any, Any]]]
    asked: Mapping[str, tuple[str, str]]
    vocabulary: Sequence[str] | None
    flags: Mapping[str, list[str]]
    notes: list[str]

    @classmethod
    def of(cls, sweep: Sweep, own: pd.DataFrame) -> Texts:
        results, key = sweep.results, ["cell", "example", "sample"]
        vocabulary = results.vocabulary.get(str(sweep.cells["model"].iloc[0])) if len(sweep.cells) else None
        own = own[own["sample"] < SAMPLES]
        if vocabulary is not None:
            own = own.merge(results.tokens, on=key, how="left").merge(_rounds(results, own), on=key, how="left")
        asked = results.examples[results.examples["asked"].isin(set(sweep.cells["asked"]))]
        texts = zip(asked["prompt"], asked["reference"], strict=True)
        notes = [NO_TOKENS] * (vocabulary is None) + [NO_PROMPTS] * asked.empty
        present = [name for name in FLAGS if name in own]
        raised = own.groupby("example", sort=True)[present].any() if present else pd.DataFrame()
        flags = {str(example): [n for n in present if row[n]] for example, row in raised.iterrows()}
        parts: dict[str, list[dict[Any, Any]]] = {}
        for row in own.to_dict("records"):
            parts.setdefault(str(row["example"]), []).append(row)
        return cls(sweep, parts, dict(zip(asked["example"], texts, strict=True)), vocabulary, flags, notes)

    def example(self, example: str) -> dict[str, Any]:
        """Prompt, reference and every text of one example, in the order of cells and samples."""
        prompt, reference_text = self.asked.get(example, (None, None))
        places = {key: place for place, key in enumerate(self.sweep.cells.index)}
        rows = sorted(self.parts[example], key=lambda row: (places[row["cell"]], row["sample"]))
        texts = [self._text(row) | {"cell": places[row["cell"]]} for row in rows]
        return {"prompt": prompt, "reference": reference_text, "texts": texts}

    def _text(self, row: Mapping[Any, Any]) -> dict[str, Any]:
        names = ("sample", "finish", "tokens", "drafted", "examined", "accepted", "rounds")
        text: dict[str, Any] = {name: None if row[name] != row[name] else row[name] for name in names}  # NaN: not told
        text["scores"] = {
            name: _number(value)
            for name, value in row.items()
            if name in self.sweep.results.scores and _number(value) is not None
        }
        text["flags"] = [name for name in FLAGS if row.get(name) is True]
        if self.vocabulary is not None and isinstance(row.get("ids"), Iterable):
            rounds = {"drafted": row["round_drafted"], "examined": row["round_examined"]}
            text |= coloured(row["text"], row, rounds, self.vocabulary)
        return text if "pieces" in text else {**text, "text": row["text"]}


def _rounds(results: Results, own: pd.DataFrame) -> pd.DataFrame:
    """One row a generation: its counts a round as lists."""
    rounds = results.rounds
    rounds = rounds[rounds["cell"].isin(set(own["cell"])) & rounds["example"].isin(set(own["example"]))]
    lists = rounds.groupby(["cell", "example", "sample"], sort=True)[["drafted", "examined"]].agg(list)
    return lists.rename(columns={"drafted": "round_drafted", "examined": "round_examined"}).reset_index()


def described(sweep: Sweep, key: str) -> dict[str, Any]:
    """What the page says of a cell without its numbers; `base` is the place of the lossless cell that it is held against."""
    cell, base = sweep.cells.loc[key], reference(sweep.cells, key, "lossless")
    description = {"key": key, "label": cell["label"], "is_baseline": cell["verifier"] in BASELINES}
    description["base"] = None if base is None else list(sweep.cells.index).index(base)
    return description | {"is_alone": cell["verifier"] in ("target", "draft")}


def packed(example: Mapping[str, Any]) -> str:
    """One example in base64; the same example gives the same letters."""
    text = json.dumps(example, ensure_ascii=True, separators=(",", ":"), default=int)
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii")


def unpacked(chunk: str) -> dict[str, Any]:
    """The example again."""
    return json.loads(zlib.decompress(base64.b64decode(chunk)))


def script_json(value: object) -> str:
    """JSON that may stand inside a script tag: nothing in it can end the tag or begin another."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _number(value: object) -> float | None:
    """Four decimals at most; None where there is no number."""
    if not isinstance(value, int | float | np.number) or value != value:
        return None
    return round(float(value), 4)
