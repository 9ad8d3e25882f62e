"""Talking to the hub: passing faults are tried again, the others become one sentence that says what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sdbench.config import ConfigError, show

T = TypeVar("T")
PASSING = frozenset({408, 429, 500, 502, 503, 504})
WAITS_S = (1.0, 2.0, 4.0)  # before the second, third and fourth try, unless the server names a time (at most 60 s)


class HubError(ConnectionError):
    """The hub cannot be reached, or cannot answer now: nothing is wrong with the run, so it may be started again."""


def fetch(what: Callable[[], T], repo: str, *, kind: str = "model", revision: str | None = None) -> T:
    """`what()`, tried again while the hub is out of breath."""
    for wait in (*WAITS_S, None):
        try:
            return what()
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            pause = _pause(error, wait)
            if pause is None:
                raise explain(error, repo, kind=kind, revision=revision) from error
            time.sleep(pause)
    raise AssertionError("the last round returns or raises")


def explain(error: BaseException, repo: str, *, kind: str = "model", revision: str | None = None) -> Exception:
    """What a failed request means for the user, with the page to visit or the option to set."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{repo}"
    instead = "model=llama-tiny needs no download" if kind == "model" else "task.data=rows.jsonl takes a local file"
    has_token = bool(os.environ.get("HF_TOKEN")) or os.path.exists(constants.HF_TOKEN_PATH)  # the file a login leaves
    faults, status = list(_chain(error)), _status(error)
    named = {type(fault) for fault in faults} | set(_told_by_datasets(error, errors))
    if errors.GatedRepoError in named:
        is_stranger = status == 401 or not has_token
        return ConfigError(f"{repo} is gated{_at_the_gate(page, is_stranger=is_stranger)}; {instead}")
    if errors.RevisionNotFoundError in named:
        return ConfigError(
            f"{repo} has no revision {show(revision or 'main')}: see {page}/commits/main; leave it out for main"
        )
    if status == 401 and has_token:  # the hub answers so to any request that carries a dead token
        return ConfigError(
            f"the hub refuses your HF_TOKEN (while asking for {repo}): unset it, or make a new one at "
            f"{constants.ENDPOINT}/settings/tokens; {instead}"
        )
    if errors.RepositoryNotFoundError in named or errors.HFValidationError in named:
        return ConfigError(
            f"there is no {kind} {repo} on the hub, or it is private: check the name at {page}, and set HF_TOKEN if it "
            f"is yours; {instead}"
        )
    if status == 429:
        return HubError(f"the hub limits your requests (429) for {repo}: wait some minutes, or set HF_TOKEN; {instead}")
    if status is not None and status >= 500:
        return HubError(f"the hub fails ({status}) for {repo}, again and again: start again later; {instead}")
    if constants.HF_HUB_OFFLINE or errors.LocalEntryNotFoundError in named or _is_network(faults):
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} cannot be reached"
        return HubError(
            f"{repo} is not in the cache and {why}: run once with a connection, or give a folder; {instead}"
        )
    return HubError(f"{repo} could not be loaded ({type(error).__name__}: {show(error)}); {instead}")


def _at_the_gate(page: str, *, is_stranger: bool) -> str:
    from huggingface_hub import constants

    if is_stranger:
        return (
            f": accept its licence at {page}, then set HF_TOKEN to a token of that account "
            f"(make one at {constants.ENDPOINT}/settings/tokens)"
        )
    return (
        f" and the account of your HF_TOKEN has no access yet: accept its licence at {page} and wait for the grant, "
        "or set HF_TOKEN to another account's"
    )


def _told_by_datasets(error: BaseException, errors: Any) -> Iterator[type]:
    """`datasets` has one exception for three faults, and drops their causes."""
    if type(error).__name__ == "DatasetNotFoundError":
        words = str(error)
        yield errors.GatedRepoError if "gated" in words else errors.RepositoryNotFoundError
        if "evision" in words:
            yield errors.RevisionNotFoundError


def _pause(error: BaseException, wait: float | None) -> float | None:
    if wait is None or _status(error) not in PASSING:
        return None
    for fault in _chain(error):
        if getattr(getattr(getattr(fault, "response", None), "request", None), "method", "") == "HEAD":
            return None  # the client itself has tried these for 20 s and more
        after = getattr(getattr(fault, "response", None), "headers", {}).get("Retry-After", "")
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
    return any("Connect" in type(fault).__name__ or "Timeout" in type(fault).__name__ for fault in faults)
