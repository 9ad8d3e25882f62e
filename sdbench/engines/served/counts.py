"""What a server reports about its drafts, from its answer to a first request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdbench.config import ConfigError
from sdbench.prepare.progress import warn

if TYPE_CHECKING:
    from sdbench.engines.served.request import ServerSetting
    from sdbench.engines.served.servers import Servers
    from sdbench.serve.answer import Answer
    from sdbench.serve.client import Client

PROBED = 8  # new tokens of the request that shows what a server reports


def probed_tokens(num_draft: int) -> int:
    """Return how many tokens the first request asks for: one without a draft, then room for a whole block."""
    return max(PROBED, num_draft + 2)


def tells_steps_of(
    servers: Servers, client: Client, setting: ServerSetting, answer: Answer, version: str | None
) -> bool:
    """Return whether rounds come with each text. Warn if only sums or counters exist; raise or warn if there are no counts."""
    kind = servers.kind
    most = 0 if answer.steps is None else max(answer.steps["drafted"], default=0)
    if most and most != setting.num_draft and not (kind.is_started_here and most < setting.num_draft):
        raise ConfigError(
            f"the server at {client.url} drafts {most} tokens a step: write num_draft={most}, or start it with "
            f"{client.dialect.length_flag}={setting.num_draft}"
        )
    totals = answer.totals
    if client.dialect.sums and most and not kind.is_started_here:
        _refuse_short_drafts(client, setting.num_draft, answer)
    if client.dialect.sums:
        totals = totals if totals and totals["drafted"] else None
        if totals or answer.num_tokens < 2:  # the first token is drawn without a draft
            return True
    elif answer.steps is not None:
        return True
    if kind.may_draft_nothing:
        warn(
            f"the server at {client.url} drafts nothing in its first {len(answer.ids)} tokens: spec_draft_p_min or "
            "spec_draft_n_min leaves no draft there; if no text has a draft, acceptance stays empty"
        )
        return True
    if totals is None and servers.pump.run(client.counters()) is None:
        sentence = f"the server at {client.url} (version {version or 'unknown'}) counts no drafts"
        if client.dialect.flag is not None:
            raise ConfigError(f"{sentence}: it does not speculate, or was started without {client.dialect.flag}")
        warn(f"{sentence}: acceptance stays empty")
        return False
    source = "sums with each text" if totals is not None else "its counters, which include other users' requests"
    warn(f"the server at {client.url} does not report its rounds: acceptance is pooled over each cell, from {source}")
    return False


def _refuse_short_drafts(client: Client, num_draft: int, answer: Answer) -> None:
    """Raise if a draft is shorter than `num_draft` although the answer had room for all of it: the server has a p-min, which keys
    of records would not have. The first token is drawn without a draft.
    """
    most, begin = probed_tokens(num_draft), 0
    steps = answer.steps or {"accepted": (), "drafted": ()}
    for accepted, drafted in zip(steps["accepted"], steps["drafted"], strict=True):
        if begin and drafted < min(num_draft, most - begin - 2):
            raise ConfigError(
                f"the server at {client.url} ends some drafts before num_draft={num_draft} tokens, which sdbench cannot tell "
                "apart from one that does not: start llama-server with --spec-draft-p-min 0, or measure it with engine=llamacpp "
                "engine.speculative.spec_draft_p_min=P"
            )
        begin += accepted + 1
