"""What a cell requires of a server, and the body of a request, for a run and for the probe before it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, nearest

if TYPE_CHECKING:
    from sdbench.config import Run
    from sdbench.engines.job import Job
    from sdbench.engines.served.options import Http
    from sdbench.plan import WorkItem

PLUGIN = "sdbench"
PLUGIN_ENV = {"VLLM_PLUGINS": PLUGIN, "VLLM_USE_V2_MODEL_RUNNER": "0"}  # loaded only if named; it needs the V1 runner


@dataclass(frozen=True)
class ServerSetting:
    """What a server cannot change while it runs: the model that decodes, the draft length, the rule, the address."""

    role: str
    num_draft: int = 0
    rule: str = ""  # JSON of its command line, or PLUGIN: sent with each request
    url: str | None = None  # of a server that is already running

    @property
    def label(self) -> str:
        return self.role if self.role != "pair" else f"num_draft={self.num_draft} {self.rule}"


def refuse_unknown_urls(urls: Iterable[str], planned: Collection[str]) -> None:
    """Raise if engine.urls names a server for cells that this run does not have."""
    names = sorted({"target", "draft", "lossless", *planned})
    for name in urls:
        if name not in names:
            hint = "(verifier=exact is called lossless)" if name == "exact" else nearest(name, names)
            raise ConfigError(f"engine.urls.{name} names no cell of this run {hint}")


def model_id_of(run: Run, role: str, *, is_folder: bool = False) -> str:
    """Return the model that a server of a role serves; `is_folder`: name an embedded model by its folder."""
    from sdbench.prepare.pair import folder_of

    name = run.model.draft if role == "draft" else run.model.target
    assert name is not None, "a run without a draft model has no cell that needs it"
    return folder_of(name) if is_folder else name


def request_body(kind: Http, job: Job, model: str, item: WorkItem, most: int) -> dict[str, Any]:
    """Return a request for at most `most` tokens that sets all options for which a server has defaults."""
    run, point, dialect = job.run, job.points[item.cell], kind.dialect
    body = {
        **dialect.request,
        **kind.request,
        "model": model,
        "prompt": list(job.prompts.ids[item.example]),
        "max_tokens": most,
        "temperature": run.temperature,
        "top_p": 1.0 if run.top_p is None else run.top_p,
        "top_k": dialect.top_k_all if run.top_k is None else run.top_k,
        "seed": seed_of(run.seed, item),
        "stop": kind.stops_sent(job),
        "stop_token_ids": list(job.pair_info.ends("draft" if point.role == "draft" else "target", job.task.stop)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if (extra := kind.extra(point)) and dialect.extra is not None:
        body[dialect.extra] = extra
    return body


def seed_of(seed: int, item: WorkItem) -> int:
    """Return the seed of a request. It is equal for all cells of an example, so that their texts are paired as far as possible."""
    digest = hashlib.sha256(f"{seed}\n{item.example}\n{item.sample}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 33  # 31 bits: every server takes them
