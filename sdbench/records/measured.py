"""Records with one column per field: measurements of latency passes, and pooled counts of servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sdbench.records.schema import NAN

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TimingRecord:
    """One example timed once in a latency pass. Draft, verify and rest are set in a split repeat only; its total is no speed."""

    pass_id: str
    machine: str
    cell: str
    example: str
    repeat: int
    tokens: int
    rounds: int
    prefill_s: float
    decode_s: float
    first_token_s: float = NAN
    round_p50_s: float = NAN
    round_p90_s: float = NAN
    round_p99_s: float = NAN
    draft_s: float = NAN
    verify_s: float = NAN
    rest_s: float = NAN
    started_at: float = NAN  # seconds since the epoch
    load: float = NAN  # load average when it started
    is_split: bool = False
    peak_memory_bytes: float = NAN
    stall: bool = False  # True: a first timing was far off its repeats and neighbours, and this is the second
    drafted_per_round: float = NAN  # tokens offered per round of a text, on average
    is_cached: bool = False  # whether the server may have had the prompt in its cache
    first_tokens: int = 0  # tokens of the first chunk of a server's answer: their seconds are in prefill_s


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The cost of one call on this machine: the median of several, at `tokens` tokens per call on average.

    `drafter`: whose drafts the kind "draft" measures, per drafted token; `model` is the draft model if that drafter reads it.
    The kind "text" is the part of such a draft that decodes and encodes texts, a mean per offered token.
    """

    pass_id: str
    machine: str
    model: str
    kind: str  # "draft", "text", "verify", "prefill" or "target"
    tokens: float
    seconds: float
    num_calls: int = 0
    drafter: str = ""


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """One request of a closed loop with a fixed number of users; seconds by the client's clock and by the server's.

    `block_s` is the time of all requests of the cell, from the first that was sent to the last that ended. `held_s` is the part
    of it in which all users were busy; `reached` requests were in progress then, on average.
    """

    pass_id: str
    machine: str
    cell: str
    example: str
    repeat: int
    concurrency: int
    tokens: int
    first_token_s: float
    decode_s: float
    block_s: float
    server_first_token_s: float = NAN
    server_decode_s: float = NAN
    server_queue_s: float = NAN
    started_at: float = NAN
    cycle: int = 0  # examples are asked in a cycle
    held_s: float = NAN
    held_tokens: float = NAN  # tokens of this request that came within `held_s`
    reached: float = NAN
    is_cached: bool = False  # whether the server may have had the prompt in its cache
    first_tokens: int = 0  # tokens of the first chunk: their seconds are in first_token_s


@dataclass(frozen=True, slots=True)
class OpenLoadRecord:
    """One request of an open loop, sent at its time whether or not others have ended; seconds from the start of the loop.

    `schedule` is a hash of which prompt arrives when, `request` the number of this request in it. A failed request has its
    reason in `failure` and no tokens; it is not repeated.
    """

    pass_id: str
    machine: str
    cell: str
    example: str
    repeat: int
    rate: float  # requests per second, on average
    schedule: str
    request: int
    tokens: int
    arrival_s: float  # as planned
    sent_s: float
    first_token_s: float
    last_token_s: float
    under_way: int  # requests in progress when this one was sent, including this one
    server_first_token_s: float = NAN  # seconds of the request by the server's clock
    server_decode_s: float = NAN
    server_queue_s: float = NAN
    started_at: float = NAN
    failure: str = ""
    is_cached: bool = False  # whether the server may have had the prompt in its cache
    loop: str = ""  # a hash of what all repeats of the loop share; empty in older records
    gaps_s: tuple[float, ...] | None = (
        None  # between successive chunks of the answer; None if it failed, and in older records
    )


@dataclass(frozen=True, slots=True)
class PooledRecord:
    """Counts of many texts of a cell together, from a server that may not report rounds; drafts after the end of a text count.

    `source`: "requests" (sums that come with each text) or "server" (its counters before and after, with all its other work).
    """

    cell: str
    source: str
    texts: int
    tokens: int
    steps: float
    drafted: float  # NaN: not reported
    accepted: float
    block: str  # a block of texts is counted once
    epoch: int = 0  # of the cell when they were decoded; `force` begins another


@dataclass(frozen=True, slots=True)
class PartingRecord:
    """Where a lossless text at T = 0 first differs from the target's, and the difference of the logits of the two tokens there."""

    cell: str
    example: str
    sample: int
    token: int  # the first that differs, counted from 1
    margin: float  # NaN: one of the texts ends there
    explained: float  # the largest difference that rounding in the run's dtype explains
    epoch: int = 0  # of the cell when the text was decoded; `force` begins another


PLAIN = {
    "timings": TimingRecord,
    "calls": CallRecord,
    "loads": LoadRecord,
    "open_loads": OpenLoadRecord,
    "pooled": PooledRecord,
    "partings": PartingRecord,
}


def plain_table(records: Sequence[Any], kind: str, *, run: str) -> pa.Table:
    """Build the table of a `kind` of PLAIN: one column per field, and the run."""
    import pyarrow as pa

    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    types["tuple[float, ...] | None"] = pa.list_(pa.float64())
    record_fields = fields(PLAIN[kind])
    columns = {f.name: pa.array([getattr(r, f.name) for r in records], types[str(f.type)]) for f in record_fields}
    return pa.table(columns | {"run": pa.array([run] * len(records), pa.string())})
