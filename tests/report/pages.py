"""A page made of made-up records whose texts do their worst: markup, quotes, other scripts, letters of several tokens.

home = write_home(tmp_path / "llama-tiny-gsm8k-tiny")
page = write(home)
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdbench.metrics.recommend import Recommendation, recommend
from sdbench.metrics.summary import summarise
from sdbench.records import Results, Store, read
from sdbench.report.figures.style import house_style, panels, save
from sdbench.report.page import write_page
from sdbench.report.sweep import sweeps_of
from tests.records.synthetic import WORDS, Shape, call_costs, cell, sweep, texts_of, timings

PIECES = [
    *("</script>", "<script>window.hacked=1</script>", "<img src=x onerror='window.hacked=1'>", "<!--", "]]>", "&lt;"),
    *(" שלום", " עולם", " مرحبا", "\u202e", "\u2028", "\n", "\n\n", "\t", "  ", '"', "'", "\\", " \u2066x\u2069"),
    *(" naïve", " 東京", "👩‍💻", " the", " cat"),
]
VOCABULARY = [PIECES[i % len(PIECES)] for i in range(len(WORDS))]
MODEL, TASK = "llama-tiny", "gsm8k-tiny"


def hostile(example: str) -> tuple[str, str]:
    prompt, reference = texts_of(example)
    return f"{prompt}</pre></script><b onclick='hacked=1'>שלום", f"<i>{reference}</i>"


def write_home(home: Path, *, n: int = 60, ws: tuple[float, ...] = (0.3, 0.7, 1.0), samples: int = 1) -> Path:
    """Records with a latency pass, a failure and hostile texts, and two figures beside them."""
    shape = Shape(48)
    cells = sweep(MODEL, TASK, ws=ws, num_drafts=(5,), temperature=1.0)
    plain = cell(MODEL, TASK, "generate")
    provenance = {"commit": "0123456789abcdef+", "device": {"type": "cpu", "name": "<b>CPU</b>"}, "threads": 1}
    config = {"model": {"name": MODEL}, "results": "results", "command": "python -m sdbench 'w=[0.3,0.7,1]' name='<x>'"}
    with Store.open(home, config=config, provenance=provenance) as store:
        store.add_cells([*cells, plain])
        store.add_vocabulary(MODEL, "hostile", lambda: VOCABULARY)
        store.add_examples(cells[0].asked, map(str, range(n)), hostile)
        made = [shape.decode(c, str(i), s) for i in range(n) for c in cells for s in range(samples)]
        store.append_generations([replace(r, text="".join(VOCABULARY[i] for i in np.asarray(r.ids))) for r in made])
        for c in [*cells, plain]:
            for i in range(16):
                rows = timings(c, shape.decode(c, str(i)), pass_id="pass", repeats=2, shape=shape)
                store.append(rows)
        store.append(call_costs(MODEL, pass_id="pass", num_drafts=(5,)))
        store.append_failure(cells[-1].key, "scoring failed: <oops>", example="no such example")
    draw(home / "figures")
    return home


def draw(folder: Path) -> None:
    """Two small figures under names that have captions, a wide one among them."""
    for name, width in (("pareto", 3.4), ("against_knob", 7.0)):
        with house_style():
            figure, axes = panels(width=width)
            axes[0].plot([0, 1], [1, 0], color="#0072b2", label="ensemble")
            axes[0].legend()
            save(figure, folder, name)


@cache
def numbers(home: Path) -> tuple[Results, pd.DataFrame]:
    """The records and their summary, with intervals of few resamples."""
    results = read(home)
    return results, summarise(results, resamples=100)


@cache
def advice(home: Path, margin: float) -> Recommendation:
    return recommend(numbers(home)[0], margin, resamples=100)


def write(*homes: Path, margin: float = 60.0) -> Path:
    """report.html of the first folder."""
    results, summaries = zip(*map(numbers, homes), strict=True)
    return write_page(homes[0], results, sweeps_of(results, summaries), [advice(home, margin) for home in homes])


def unpacked(chunk: str) -> dict[str, Any]:
    """Return the example of a chunk of the page's browser."""
    return json.loads(zlib.decompress(base64.b64decode(chunk)))
