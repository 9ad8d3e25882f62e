"""Where a kind of server reports its facts: paths into its JSON and names of its counters, from a file in configs/engine."""

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
    """Paths are dotted, with numbers as indices of lists; None: such a server does not report it.

    ids: the new ids of a choice. steps: of a text, lists over its steps. totals: of a text, sums over its steps. sums: the sums up
    to a chunk, from which the steps follow. milliseconds: its own times. counters: sums since its start, in /metrics. request:
    fields that every request has. top_k_all: how a request says "the whole vocabulary". most_stops: how many stop strings a request
    may carry, None: any number. fixed_length: fields that keep an answer from ending before max_tokens. cached_prompts: fields
    that let a prompt be cached, beside the salt.
    """

    completions: str = "/v1/completions"
    choices: str | None = "choices"  # None: a chunk is itself the only choice
    ids: str = "token_ids"
    text: str = "text"
    finish: str = "finish_reason"
    stops: Sequence[str] = ("stop",)  # of its values those of a text that the model or a stop string ended
    last: str | None = None  # what is true in the last chunk; None: [DONE] follows it
    prompt_ids: str | None = None
    steps: Mapping[str, str | None] = field(default_factory=dict)
    totals: Mapping[str, str | None] = field(default_factory=dict)
    sums: Mapping[str, str | None] = field(default_factory=dict)
    milliseconds: Mapping[str, str | None] = field(default_factory=dict)
    counters: Mapping[str, str | None] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    top_k_all: int = -1
    most_stops: int | None = None
    fixed_length: Mapping[str, Any] = field(default_factory=dict)
    cached_prompts: Mapping[str, Any] = field(default_factory=dict)
    extra: str | None = None  # the field of a request that plug-ins read
    salt: str | None = None  # the field of a request that keeps its prompt out of a cache of prompts
    has_cached_prompts: bool = True  # False: every request's prompt is prefilled again
    version: str | None = "/version"
    version_name: str = "version"
    tokenize: str | None = None
    tokenize_text: str = "prompt"
    tokenize_request: Mapping[str, Any] = field(default_factory=lambda: {"add_special_tokens": False})
    info: str | None = None
    counters_at: str = "/metrics"
    keeps_connections: bool = True  # False: it closes one after a stream, and a request on it would be lost
    is_cumulative: bool = False  # whether each chunk repeats all ids so far
    flag: str | None = None  # what to start such a server with, so that it counts; None: nothing makes it
    length_flag: str = "num_speculative_tokens"  # name of the draft length at its start
    tokens_per_step: str | None = None  # of a text, the mean; what was drafted then stays unknown

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
        for name in ("request", "tokenize_request"):  # null: a field that such a server does not have
            if name in given:
                given[name] = {key: value for key, value in given[name].items() if value is not None}
        return cls(**given)


def at(tree: Any, path: str | None) -> Any:
    """Return the value at a path; None if there is none."""
    for part in () if path is None else path.split("."):
        if isinstance(tree, Mapping):
            tree = tree.get(part)
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return None if path is None else tree


def all_of(tree: Any, paths: Mapping[str, str | None], names: tuple[str, ...]) -> dict[str, Any] | None:
    """Return every name's value, or None if one is missing."""
    values = {name: at(tree, paths.get(name)) for name in names}
    return None if any(value is None for value in values.values()) else values


def counters_of(text: str, names: Mapping[str, str | None]) -> dict[str, float] | None:
    """Return sums over all labels of these counters in a server's Prometheus text; None if one is missing."""
    wanted = {str(name): key for key, name in names.items() if name is not None}
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in wanted and not line.startswith("#"):
            sums[wanted[name]] = sums.get(wanted[name], 0.0) + float(
                line.rpartition("} ")[2].split()[0 if "{" in line else 1]
            )
    return sums if set(sums) >= set(TOTALS) else None
