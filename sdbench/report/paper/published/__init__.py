"""Numbers that others published about lenient speculative decoding, with their sources and their doubts.

They are shown beside ours and never joined to ours: nobody says what their "acceptance rate" counts. README.md beside
this file tells where each number comes from and what is doubtful about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from sdbench.metrics.columns import WEIGHT

PATH = Path(__file__).parent / "diversed.csv"

SOURCES: Mapping[str, str] = {
    "readme": "figures in the README of DIVERSED's code",
    "issue": "huggingface/transformers#45865",
    "digest": "third-party digest of arXiv:2604.07622",
    "logs": "logs in DIVERSED's development code",
}
METHODS: Mapping[str, str] = {
    "target": "target alone",
    "draft": "draft alone",
    "sd": "SD (lossless)",
    "sd-finetuned": "SD, finetuned draft",
    "static": "static ensemble",
    "diversed": "DIVERSED (learned head)",
}
DOUBTS: Mapping[str, str] = {
    "definition": "what the acceptance rate counts is not said",
    "approximate": "a round figure in prose",
    "digest": "from a machine-written digest, not checked against the paper",
    "caption": "the caption prints T = 0.1 and a finetuned draft, yet the GSM8K values equal Table 1's at T = 1.0",
    "broken": "a broken run, not a measurement: never drawn",
    "logit-mix": "the code mixed logits, v ∝ p^w · q^(1−w), where the paper mixes probabilities",
    "suppressed-end": "the draft could not propose the end of a text",
    "unnamed-settings": "draft length or number of examples is not said",
}
TEXTS = (
    *("source", "place", "model", "draft", "target", "task", "temperature_printed", "method", "method_printed"),
    *("metric", "doubts", "note"),
)
NUMBERS = (
    *("temperature", WEIGHT, "num_draft", "acceptance", "quality", "rougeL", "tokens_per_s", "max_new_tokens", "n"),
)


def read_published(path: Path = PATH) -> pd.DataFrame:
    """One row a published number: acceptance on 0–1, quality in points of 100, empty where nothing was said."""
    frame = pd.read_csv(
        path, dtype=dict.fromkeys(TEXTS, "str"), keep_default_na=False, na_values=dict.fromkeys(NUMBERS, "")
    )
    missing = sorted({*TEXTS, *NUMBERS} ^ set(frame.columns))
    if missing:
        raise ValueError(
            f"{path.name} must have the columns {', '.join((*TEXTS, *NUMBERS))}; it differs in {missing[0]}"
        )
    frame = frame.astype(dict.fromkeys(NUMBERS, "float64"))
    for column, known in (("source", SOURCES), ("method", METHODS)):
        strange = sorted(set(frame[column]) - set(known))
        if strange:
            raise ValueError(f"{path.name}: {column} must be one of {', '.join(known)}, got {strange[0]}")
    strange = sorted({doubt for doubts in frame["doubts"] for doubt in doubts.split()} - set(DOUBTS))
    if strange:
        raise ValueError(f"{path.name}: doubts must be among {', '.join(DOUBTS)}, got {strange[0]}")
    return frame


def doubtful(frame: pd.DataFrame, doubt: str) -> pd.Series:
    """Rows that carry this doubt."""
    return frame["doubts"].str.split().map(lambda doubts: doubt in doubts)
