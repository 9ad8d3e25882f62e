"""The identity of the servers on which a pass was timed: their addresses and what they report about themselves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdbench.engines.latency import machine
from sdbench.errors import SECRET_NAME
from sdbench.prepare.provenance import HIDDEN, gpus
from sdbench.serve.answer import UnansweredError
from sdbench.serve.client import Client
from sdbench.serve.dialect import at
from sdbench.serve.pump import Pump
from sdbench.types import EngineError

if TYPE_CHECKING:
    from sdbench.engines.served.options import Http
    from sdbench.engines.served.started import StartedServers
    from sdbench.prepare.cells import Point

VOLATILE = ("instance_id", "internal_states", "media_marker")  # in the configurations of vLLM, SGLang and llama.cpp
UNKNOWN = "?"  # of a server that does not answer now, of which only the address is compared


def where_timed(kind: Http, points: Sequence[Point]) -> str:
    """Return what decides a speed, as text: this machine, and the identity of each server."""
    if kind.is_started_here:
        program: StartedServers = kind  # pyright: ignore[reportAssignmentType]
        options = {name: getattr(program, name, None) for name in ("env", "always", "alone", "most_requests")}
        started = {"installed": program.installed, **options, "gpus": gpus()}
        return f"{machine()}; {program.module} {program.installed.get('version')} {_digest(started)}"
    pump = Pump()
    try:
        urls = sorted({kind.url_of(point.cell.verifier) for point in points})
        return "; ".join([machine(), *(f"{url} {_describe_server(kind, url, pump)}" for url in urls)])
    finally:
        pump.close()


def _describe_server(kind: Http, url: str, pump: Pump) -> str:
    """Return a server's version, and a digest of its models and its configuration; UNKNOWN if it does not answer."""
    dialect, client = kind.dialect, Client(url, kind.dialect, kind.patience, kind.headers)
    pump.run(client.open())
    try:
        version, info = (pump.run(client.get(page)) for page in (dialect.version, dialect.info))
        listing = pump.run(client.models())
    except (UnansweredError, EngineError):  # it does not answer, or not with this key
        return UNKNOWN
    finally:
        pump.run(client.close())
    models = [[at(model, key) for key in ("id", "root", "max_model_len")] for model in listing]
    return f"{at(version, dialect.version_name)} {_digest([models, info])}"


def _digest(facts: object) -> str:
    """Return a short hash of the facts."""
    return hashlib.sha256(json.dumps(_lasting(facts), sort_keys=True, default=str).encode()).hexdigest()[:8]


def _lasting(tree: Any) -> Any:
    """Return facts without those that change while a server runs, or each time that the same server is started."""
    if isinstance(tree, Mapping):
        return {key: _lasting(value) for key, value in tree.items() if key not in VOLATILE}
    if isinstance(tree, list):
        return [_lasting(value) for value in tree]
    return tree


def without_secrets(tree: Any, known: Collection[str] = ()) -> Any:
    """Return facts with `***` for passwords and keys: values with such a name, and values that contain one of `known`."""
    if isinstance(tree, Mapping):
        return {
            name: HIDDEN if SECRET_NAME.search(str(name)) and value not in (None, "") else without_secrets(value, known)
            for name, value in tree.items()
        }
    if isinstance(tree, list):
        return [without_secrets(value, known) for value in tree]
    return HIDDEN if isinstance(tree, str) and any(secret in tree for secret in known) else tree


def keys_in(headers: Mapping[str, Any]) -> list[str]:
    """Return the keys and passwords in these headers."""
    named = {name: str(value).removeprefix("Bearer ") for name, value in headers.items() if value}
    return [value for name, value in named.items() if name.lower() == "authorization" or SECRET_NAME.search(name)]


def is_there(timed: str, now: str) -> bool:
    """Return whether both name the same servers, as far as these answer now."""
    before, after = timed.split("; "), now.split("; ")
    return len(before) == len(after) and all(
        x == y or (y.endswith(f" {UNKNOWN}") and x.startswith(y.removesuffix(UNKNOWN)))
        for x, y in zip(before, after, strict=True)
    )


def is_same_text(ours: str, theirs: str) -> bool:
    """Return whether two texts are equal apart from blanks at the ends and half a character at the end."""
    text, other = ours.strip().rstrip("\ufffd"), theirs.strip().rstrip("\ufffd")
    return text.startswith(other) or other.startswith(text)
