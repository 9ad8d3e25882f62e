"""Records with one column a field: what a latency pass measures, and counts that a server pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sdbench.records.schema import NAN

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TimingRecord:
    """One example timed once in one latency pass; draft, verify, rest in a split repeat only, its total is no speed."""

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
    stall: bool = False  # a first clocking was far off its repeats and neighbours: this is the second
    drafted_per_round: float = NAN  # tokens that were offered in a round of a text, on average
    is_cached: bool = False  # whether the server may have had the prompt in its cache


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What one call costs on this machine: the median of several, at this many tokens a call on average.

    `drafter`: whose drafts a "draft" prices, per drafted token; `model` is the draft model where that drafter reads it. "text" is
    the part of such a draft that is decoding and encoding of texts, per token that was offered; a mean.
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
    """One request of a closed loop in which so many are under way at once; seconds by the client's clock and by the server's.

    `block_s` is what all requests of the cell took together, from the first that was sent to the last that ended, `held_s` the part
    of it in which all users were busy: `reached` requests were under way then, on average.
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
    held_tokens: float = NAN  # of this request, those that came within `held_s`
    reached: float = NAN
    is_cached: bool = False  # whether the server may have had the prompt in its cache


@dataclass(frozen=True, slots=True)
class OpenLoadRecord:
    """One request of an open loop, sent at its time whatever is still under way; seconds from the start of the loop.

    `schedule` is a hash of which prompt arrives when, `request` the number of this one in it. A request that failed has its reason
    in `failure`, and no tokens: it is not repeated.
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
    under_way: int  # requests when this one was sent, itself among them
    server_first_token_s: float = NAN  # seconds of the request by the server's clock
    server_decode_s: float = NAN
    server_queue_s: float = NAN
    started_at: float = NAN
    failure: str = ""
    is_cached: bool = False  # whether the server may have had the prompt in its cache


@dataclass(frozen=True, slots=True)
class PooledRecord:
    """What a server that tells no rounds says of many texts of a cell together; drafts past the end of a text count.

    `source`: "requests" (sums that come with each text) or "server" (its counters before and after: whatever else it did).
    """

    cell: str
    source: str
    texts: int
    tokens: int
    steps: float
    drafted: float  # NaN: not told
    accepted: float
    block: str  # one block of texts is counted once


@dataclass(frozen=True, slots=True)
class PartingRecord:
    """Where a lossless text at T = 0 parts from the target's own, and how far the logits of the two tokens are apart there."""

    cell: str
    example: str
    sample: int
    token: int  # the first that differs, from 1
    margin: float  # NaN: one of the texts ends there
    explained: float  # the largest margin that rounding in the run's dtype explains


PLAIN = {
    "timings": TimingRecord,
    "calls": CallRecord,
    "loads": LoadRecord,
    "open_loads": OpenLoadRecord,
    "pooled": PooledRecord,
    "partings": PartingRecord,
}


def plain_table(records: Sequence[Any], kind: str, *, run: str) -> pa.Table:
    """`kind` of PLAIN: one column a field, and the run they came from."""
    import pyarrow as pa

    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    record_fields = fields(PLAIN[kind])
    columns = {f.name: pa.array([getattr(r, f.name) for r in records], types[str(f.type)]) for f in record_fields}
    return pa.table(columns | {"run": pa.array([run] * len(records), pa.string())})
