"""Where a server's JSON and its counters report each fact, such as ids and times; read from a file in configs/engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sdbench.config import ConfigError, refuse_unknown
from sdbench.config.checks import integer

STEPS = ("accepted", "drafted")
TOTALS = ("steps", "drafted", "accepted")
SECONDS = ("first_token", "decode", "queue")
SUMS = ("tokens", "drafted", "accepted")

GROUPS = (("steps", STEPS), ("totals", TOTALS), ("sums", SUMS), ("milliseconds", SECONDS), ("counters", TOTALS))


@dataclass(frozen=True)
class Dialect:
    """The fields of one kind of server. A path is dotted, with numbers as list indices; None: the server does not report it.

    ids             the new token ids of a choice
    steps           lists with a number for each decoding step of a text
    totals          sums over all steps of a text
    sums            sums up to the current chunk; the steps are computed from their differences
    milliseconds    the server's own measurements of time
    counters        names of counters in /metrics, which run since the server started
    request         fields that every request has
    top_k_all       the value of top_k that means the whole vocabulary
    most_stops      how many stop strings a request may have; None: any number
    fixed_length    fields that keep an answer from ending before max_tokens
    ignored         fields of a request that the server takes without effect, with all their parts
    cached_prompts  fields that allow the server to cache a prompt, besides the salt
    """

    completions: str = "/v1/completions"
    choices: str | None = "choices"  # None: a chunk is itself the only choice
    ids: str = "token_ids"
    text: str = "text"
    finish: str = "finish_reason"
    stops: Sequence[str] = ("stop",)  # values of `finish` of a text that ended by itself or at a stop string
    last: str | None = None  # a field that is true in the last chunk; None: the event [DONE] follows the last chunk
    steps: Mapping[str, str | None] = field(default_factory=dict)
    totals: Mapping[str, str | None] = field(default_factory=dict)
    sums: Mapping[str, str | None] = field(default_factory=dict)
    milliseconds: Mapping[str, str | None] = field(default_factory=dict)
    counters: Mapping[str, str | None] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    top_k_all: int = -1
    most_stops: int | None = None
    fixed_length: Mapping[str, Any] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    cached_prompts: Mapping[str, Any] = field(default_factory=dict)
    extra: str | None = None  # the field of a request that plug-ins read
    salt: str | None = None  # the request field for a cache salt: requests with different salts share no cached prompts
    has_cached_prompts: bool = True  # False: the server has no prompt cache
    version: str | None = "/version"
    version_name: str = "version"
    tokenize: str | None = None
    tokenize_text: str = "prompt"
    tokenize_request: Mapping[str, Any] = field(default_factory=lambda: {"add_special_tokens": False})
    info: str | None = None
    context: str | None = None  # path in `info` to the longest context in tokens; vLLM lists it with the model instead
    context_flag: str = "max_model_len"  # the server's option that sets it
    slots: str | None = None  # path in `info` to the number of requests that the server answers at a time
    counters_at: str = "/metrics"
    keeps_connections: bool = True  # False: the server closes the connection after each streamed answer
    is_cumulative: bool = False  # whether each chunk repeats all ids so far
    flag: str | None = None  # the flag that makes the server count drafts; None: there is none
    length_flag: str = "num_speculative_tokens"  # the server's option for the draft length
    tokens_per_step: str | None = None  # mean number of tokens per step of a text, from servers that count no drafts

    @classmethod
    def check(cls, tree: Mapping[str, Any]) -> "Dialect":
        refuse_unknown("engine.dialect.", tree, cls.__dataclass_fields__)
        for name, keys in GROUPS:
            if not isinstance(tree.get(name, {}), Mapping):
                raise ConfigError(f"engine.dialect.{name} must be a mapping of {', '.join(keys)} to names")
            refuse_unknown(f"engine.dialect.{name}.", tree.get(name) or {}, keys)
        if tree.get("most_stops") is not None:
            integer("engine.dialect.most_stops", tree["most_stops"], 0, 10**6)
        given: dict[str, Any] = {
            key: value for key, value in tree.items() if value is not None or key in ("version", "choices")
        }
        for name in ("request", "tokenize_request"):  # null removes a field that the server does not have
            if name in given:
                given[name] = {key: value for key, value in given[name].items() if value is not None}
        return cls(**given)


def at(tree: Any, path: str | None) -> Any:
    """Return the value at a dotted path; None if there is none."""
    for part in () if path is None else path.split("."):
        if isinstance(tree, Mapping):
            tree = tree.get(part)
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return None if path is None else tree


def all_of(tree: Any, paths: Mapping[str, str | None], names: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the values of all names, or None if one of them is missing."""
    values = {name: at(tree, paths.get(name)) for name in names}
    return None if any(value is None for value in values.values()) else values


def counters_of(text: str, names: Mapping[str, str | None]) -> dict[str, float] | None:
    """Return counters from a page in Prometheus' text format, summed over their labels; None if one is missing."""
    wanted = {str(name): key for key, name in names.items() if name is not None}
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in wanted and not line.startswith("#"):
            sums[wanted[name]] = sums.get(wanted[name], 0.0) + float(
                line.rpartition("} ")[2].split()[0 if "{" in line else 1]
            )
    return sums if set(sums) >= set(TOTALS) else None
