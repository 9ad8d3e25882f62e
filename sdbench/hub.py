"""Requests to the hub, answered from the cache if possible; errors become one sentence.

If a commit is named and cached, no request is sent. Only the hub knows which commit a branch is at; without a network the cached
commit is used, with a warning. The network is tested once, by a connection attempt of at most PROBE_S seconds. If it fails, the
libraries run offline (as with HF_HUB_OFFLINE=1), so that their requests fail at once.
"""

import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from huggingface_hub import constants

from sdbench.config import ConfigError, show

T = TypeVar("T")
PASSING = frozenset({408, 429, 500, 502, 503, 504})
WAITS_S = (1.0, 2.0, 4.0)  # before the second to fourth try, unless the server gives a time (at most 60 s)
PROBE_S = 3.0  # resolving an unreachable name may take long
TRANSPORTS = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "aiohttp"})
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubError(ConnectionError):
    """The hub does not answer now. The run itself is valid and can be started again later."""


def fetch(request: Callable[[], T], repo: str, *, kind: str = "model", revision: str | None = None) -> T:
    """Return `request()`: without a connection if a named commit is cached, otherwise with retries while the hub is busy.

    Without a network, or if the transport fails, the answer comes from the cache, with a warning.
    """
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # suppresses the library's message about each attempt
    if revision is not None and COMMIT.fullmatch(revision) and _snapshot(repo, kind, revision).is_dir():
        before = is_offline()
        _go_offline()
        try:
            return request()
        except (OSError, ValueError):  # some of its files are not cached: ask the hub
            pass
        finally:
            _go_offline(to=before)
    if not is_offline() and not _has_network():
        _go_offline()
    was_offline = is_offline()
    try:
        answer = _retry(request)
    except ConfigError:
        raise
    except Exception as error:  # the exception depends on the HTTP library
        is_network = _is_network(list(_chain(error)))
        if not is_network and not isinstance(error, OSError | ValueError):
            raise
        if was_offline or not is_network:
            raise explain(error, repo, kind=kind, revision=revision) from error
        _go_offline()
        try:
            answer = request()
        except (OSError, ValueError) as nothing:
            raise explain(nothing, repo, kind=kind, revision=revision) from error
    if is_offline() and not _is_set_offline():
        commit = cached_commit(repo, kind=kind, revision=revision) or "unknown"
        warnings.warn(f"{_where()}: {repo} is taken from the cache, commit {commit}", stacklevel=2)
    return answer


def _retry(request: Callable[[], T]) -> T:
    for wait in WAITS_S:
        try:
            return request()
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            pause = _pause(error, wait)
            if pause is None:
                raise
            time.sleep(pause)
    return request()


def cached_commit(repo: str, *, kind: str = "model", revision: str | None = None) -> str | None:
    """Return the commit in the cache for a revision; None if there is none."""
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    ref = _snapshot(repo, kind, "").parent / "refs" / (revision or "main")
    return ref.read_text().strip() if ref.is_file() else None


def _snapshot(repo: str, kind: str, commit: str) -> Path:
    return Path(constants.HF_HUB_CACHE, f"{kind}s--{repo.replace('/', '--')}", "snapshots", commit)


def is_offline() -> bool:
    """Return whether the libraries make no requests, by the user's setting or because there is no network."""
    return bool(constants.HF_HUB_OFFLINE)


@cache
def _is_set_offline() -> bool:
    """Return whether the user's environment requests offline mode."""
    values = (os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value in ("1", "ON", "YES", "TRUE") for value in values)


def _go_offline(*, to: bool = True) -> None:
    constants.HF_HUB_OFFLINE = to
    if "datasets" in sys.modules:  # this library copies the flag when it is imported
        sys.modules["datasets"].config.HF_HUB_OFFLINE = to


@cache
def _has_network() -> bool:
    """Return whether the hub, or its proxy, accepts a connection. A thread limits the time, also that of name resolution."""
    hub = urlsplit(constants.ENDPOINT)
    proxies = getproxies()
    proxy = None if proxy_bypass(hub.hostname or "") else proxies.get(hub.scheme) or proxies.get("all")
    server = hub if proxy is None else urlsplit(proxy if "//" in proxy else f"//{proxy}")
    address = server.hostname or "", server.port or (80 if server.scheme == "http" else 443)
    reached: list[bool] = []

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection(address, PROBE_S).close()
            reached.append(True)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PROBE_S)
    return bool(reached)


def _where() -> str:
    return "HF_HUB_OFFLINE is set" if _is_set_offline() else f"{constants.ENDPOINT} cannot be reached"


def explain(error: BaseException, repo: str, *, kind: str = "model", revision: str | None = None) -> Exception:
    """Return what a failed request means for the user, with the page to visit or the option to set."""
    from huggingface_hub import errors

    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{repo}"
    instead = "model=llama-tiny needs no download" if kind == "model" else "task.data=rows.jsonl takes a local file"
    has_token = bool(os.environ.get("HF_TOKEN")) or os.path.exists(constants.HF_TOKEN_PATH)  # the file a login leaves
    faults, status = list(_chain(error)), _status(error)
    kinds = {type(fault) for fault in faults} | set(_datasets_kinds(error, errors))
    if errors.GatedRepoError in kinds and (status == 401 or not has_token):
        return ConfigError(
            f"{repo} is gated: accept its licence at {page}, then set HF_TOKEN to a token of that account "
            f"(make one at {constants.ENDPOINT}/settings/tokens); {instead}"
        )
    if errors.GatedRepoError in kinds:
        return ConfigError(
            f"{repo} is gated and the account of your HF_TOKEN has no access yet: accept its licence at {page} and wait "
            f"for the grant, or set HF_TOKEN to another account's; {instead}"
        )
    if errors.RevisionNotFoundError in kinds:
        return ConfigError(
            f"{repo} has no revision {show(revision or 'main')}: see {page}/commits/main; leave it out for main"
        )
    if status == 401 and has_token:  # the hub's answer to any request with an expired token
        return ConfigError(
            f"the hub refuses your HF_TOKEN (while asking for {repo}): unset it, or make a new one at "
            f"{constants.ENDPOINT}/settings/tokens; {instead}"
        )
    if errors.RepositoryNotFoundError in kinds or errors.HFValidationError in kinds:
        return ConfigError(
            f"there is no {kind} {repo} on the hub, or it is private: check the name at {page}, and set HF_TOKEN if it "
            f"is yours; {instead}"
        )
    if status == 429:
        return HubError(f"the hub limits your requests (429) for {repo}: wait some minutes, or set HF_TOKEN; {instead}")
    if status is not None and status >= 500:
        return HubError(f"the hub fails ({status}) for {repo}, again and again: start again later; {instead}")
    if constants.HF_HUB_OFFLINE or errors.LocalEntryNotFoundError in kinds or _is_network(faults):
        return ConfigError(
            f"{repo} is not in the cache and {_where()}: run once with a connection, or give a folder; {instead}"
        )
    return HubError(f"{repo} could not be loaded ({type(error).__name__}: {show(error)}); {instead}")


def _datasets_kinds(error: BaseException, errors: Any) -> Iterator[type]:
    """Yield the hub's errors that an exception of `datasets` may stand for: it raises one class for three, without their causes."""
    if type(error).__name__ == "DatasetNotFoundError":
        text = str(error)
        yield errors.GatedRepoError if "gated" in text else errors.RepositoryNotFoundError
        if "evision" in text:
            yield errors.RevisionNotFoundError


def _pause(error: BaseException, wait: float) -> float | None:
    """Return the seconds to wait before the next try; None if another try would not help."""
    if _status(error) not in PASSING:
        return None
    for fault in _chain(error):
        response: Any = getattr(fault, "response", None)
        if getattr(getattr(response, "request", None), "method", "") == "HEAD":
            return None  # the client has already retried these for over 20 s
        after = getattr(response, "headers", {}).get("Retry-After", "")
        if after.isdigit():
            return min(float(after), 60.0)
    return wait


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    codes = (getattr(getattr(fault, "response", None), "status_code", None) for fault in _chain(error))
    return next((code for code in codes if code is not None), None)


def _is_network(faults: list[BaseException]) -> bool:
    """Return whether a request had no answer. Transports raise their own exceptions, which are not OSErrors."""
    return _status(faults[0]) is None and any(
        type(fault).__module__.partition(".")[0] in TRANSPORTS
        or isinstance(fault, ConnectionError | TimeoutError | socket.gaierror)
        for fault in faults
    )
