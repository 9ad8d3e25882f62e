"""The content of a record and its columns. Counts are derived here, once, from the arrays; rates are never stored.

Stored columns are named `score.<metric>`, `stats.<metric>`, `flag.<name>`, so that each kind has one type in every part; a
reader shows them as `<metric>`, `stats_<metric>`, `<name>`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = Sequence[int] | Sequence[float] | np.ndarray

ACCEPTED, REPLACED, BONUS, SURE = 0, 1, 2, 3  # the origin of an emitted token
NAN = math.nan
LABELS = ("model", "task", "verifier", "w", "drafter", "num_draft", "temperature")  # joined from the cell
KEY = ("cell", "example", "sample")
COUNTS = ("prompt_tokens", "tokens", "rounds", "drafted", "examined", "accepted", "replaced", "bonus", "spared")
MEASURES = ("tv", "expected", "bias")
SUMS = tuple(f"{name}_sum" for name in MEASURES)
ARRAYS = ("ids", "origin", "draft_ids", "p", "q", *MEASURES)  # of one text
ROUNDS = ("drafted", "examined", "accepted")
RESERVED = frozenset((*KEY, *LABELS, *COUNTS, *SUMS, "text", "finish", "epoch", "run"))


@dataclass(frozen=True, slots=True)
class Rounds:
    """Counts of one generation's rounds, all [R]: drafted >= examined >= accepted."""

    drafted: Numbers
    examined: Numbers
    accepted: Numbers


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """One finished and scored generation. None: measures are off, the rule does not define it (joint, greedy blend), or the
    engine does not report it. Without rounds no count of drafts is known; without origins no position of a token in its round.

    T emitted tokens, D drafted positions, E examined positions, R rounds; arrays are in the order of the text.
    """

    cell: str
    example: str
    sample: int
    prompt_tokens: int
    text: str
    finish: str  # "eos", "stop" or "length"
    ids: Numbers  # [T]
    origin: Numbers | None  # [T] ACCEPTED, REPLACED, BONUS or SURE
    rounds: Rounds | None
    draft_ids: Numbers | None  # [D]
    p: Numbers | None = None  # [D] the target's law at the drafted token
    q: Numbers | None = None  # [D] the draft's
    tv: Numbers | None = None  # [E] TV(q, p)
    expected: Numbers | None = None  # [E] exact acceptance probability, sum of q * a
    bias: Numbers | None = None  # [E] TV(out, p)
    scores: Mapping[str, float] = field(default_factory=dict)
    stats: Mapping[str, Sequence[float]] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)


def generations_schema(records: Sequence[GenerationRecord]) -> pa.Schema:
    """Base columns and one for each score, statistic and flag of these records."""
    import pyarrow as pa

    columns = [("cell", pa.string()), ("example", pa.string()), ("sample", pa.int32())]
    columns += [(name, pa.int32()) for name in COUNTS] + [(name, pa.float64()) for name in SUMS]
    columns += [("text", pa.string()), ("finish", pa.string()), ("epoch", pa.int32()), ("run", pa.string())]
    columns += [(f"score.{name}", pa.float64()) for name in _names(records, "scores")]
    columns += [(f"stats.{name}", pa.list_(pa.float64())) for name in _names(records, "stats")]
    columns += [(f"flag.{name}", pa.bool_()) for name in _names(records, "flags")]
    return pa.schema(columns)


def tokens_schema() -> pa.Schema:
    """Return the schema of a table with a row per generation and arrays in list columns.

    Floats are in float64, so that equal runs give equal records.
    """
    import pyarrow as pa

    integers, floats = pa.list_(pa.int32()), pa.list_(pa.float64())
    columns = [("cell", pa.string()), ("example", pa.string()), ("sample", pa.int32())]
    columns += [("ids", integers), ("origin", pa.list_(pa.int8())), ("draft_ids", integers)]
    columns += [(name, floats) for name in ("p", "q", *MEASURES)]
    columns += [(f"round_{name}", pa.list_(pa.int16())) for name in ROUNDS]
    return pa.schema(columns)


def _names(records: Sequence[GenerationRecord], kind: str) -> list[str]:
    names = {name for record in records for name in getattr(record, kind)}
    taken = sorted(names & RESERVED)
    if taken:
        raise ValueError(f"a task may not call its {kind} {taken[0]!r}: that is a column of every record")
    return sorted(names)


def generation_tables(
    records: Sequence[GenerationRecord], *, epochs: Mapping[str, int], run: str
) -> tuple[pa.Table, pa.Table]:
    """Return (generations, tokens), one row per record in the same order."""
    import pyarrow as pa

    schema = generations_schema(records)
    rows = [_generation_row(record) | {"epoch": epochs.get(record.cell, 0), "run": run} for record in records]
    generations = pa.table({name: [row.get(name) for row in rows] for name in schema.names}, schema=schema)
    return generations, pa.Table.from_pylist([_tokens_row(record) for record in records], schema=tokens_schema())


def _generation_row(record: GenerationRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in (*KEY, "prompt_tokens", "text", "finish")}
    row |= {"tokens": len(record.ids), **({} if record.rounds is None else _counts(record, record.rounds))}
    for name in MEASURES:
        values = getattr(record, name)
        row[f"{name}_sum"] = NAN if values is None else math.fsum(values)
    row |= {f"score.{name}": float(value) for name, value in record.scores.items()}
    row |= {f"stats.{name}": [float(value) for value in values] for name, values in record.stats.items()}
    return row | {f"flag.{name}": bool(value) for name, value in record.flags.items()}


def _counts(record: GenerationRecord, rounds: Rounds) -> dict[str, int | None]:
    """Sum over the rounds. The token at an examined position that was not accepted is a replacement; all other emitted ones are
    bonus tokens. Spared tokens are the accepted ones that the target did not judge.
    """
    drafted, examined, accepted = (sum(map(int, getattr(rounds, name))) for name in ROUNDS)
    assert drafted >= examined >= accepted, "what is accepted was examined, and what is examined was drafted"
    replaced = examined - accepted
    bonus = len(record.ids) - accepted - replaced
    lengths = {"p": drafted, "q": drafted, "tv": examined, "expected": examined, "bias": examined}
    for name, length in {"draft_ids": drafted, **lengths, "origin": len(record.ids)}.items():
        values = getattr(record, name)
        assert values is None or len(values) == length, f"{name} has {len(values)} values for {length} positions"
    spared = None
    if record.origin is not None:
        origin = list(map(int, record.origin))
        seen = [origin.count(code) for code in (ACCEPTED, REPLACED, BONUS, SURE)]
        assert seen[0] + seen[3] == accepted, "what is accepted was judged, or was sure"
        assert seen[1:3] == [replaced, bonus], "every emitted token has an origin, and is counted once"
        spared = seen[3]
    counts = len(rounds.drafted), drafted, examined, accepted, replaced, bonus, spared
    return dict(zip(COUNTS[2:], counts, strict=True))


def _tokens_row(record: GenerationRecord) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(record, name) for name in KEY}
    row |= {name: _plain(getattr(record, name)) for name in ARRAYS}
    return row | {f"round_{name}": _plain(getattr(record.rounds, name, None)) for name in ROUNDS}


def _plain(values: Numbers | None) -> list[Any] | None:
    return values.tolist() if hasattr(values, "tolist") else values and list(values)  # type: ignore[union-attr]


def examples_table(asked: str, texts: Mapping[str, tuple[str, str]]) -> pa.Table:
    """Return a table with a row per example, from {id: (prompt, reference)} of the cells with this `asked`."""
    import pyarrow as pa

    prompts, references = ([pair[side] for pair in texts.values()] for side in (0, 1))
    columns = {"asked": [asked] * len(texts), "example": list(texts), "prompt": prompts, "reference": references}
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


def vocabulary_table(model: str, texts: Sequence[str]) -> pa.Table:
    """Return a table with a row per token id, in the order of ids."""
    import pyarrow as pa

    return pa.table({"model": pa.array([model] * len(texts), pa.string()), "text": pa.array(texts, pa.string())})


def column_name(stored: str) -> str:
    """Return the name under which a reader shows a stored column."""
    kind, dot, rest = stored.partition(".")
    return {"score": rest, "flag": rest, "stats": f"stats_{rest}"}[kind] if dot else stored
