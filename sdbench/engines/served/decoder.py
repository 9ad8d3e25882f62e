"""Build requests for servers and turn their answers into generations."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError
from sdbench.engines.served.request import ServerSetting, request_body
from sdbench.engines.served.servers import OpenServer, Servers
from sdbench.engines.served.timing import time_plan
from sdbench.engines.stops import end_of, stopper
from sdbench.plan import Work, WorkItem
from sdbench.prepare.arrivals import arrivals_of
from sdbench.prepare.progress import warn
from sdbench.records import PooledRecord
from sdbench.serve.answer import Answer, UnansweredError
from sdbench.serve.client import Client
from sdbench.serve.dialect import at
from sdbench.serve.file_limit import allow_requests
from sdbench.serve.pump import Pump
from sdbench.serve.rounds import CountedRounds, cut_rounds, steps_within, without_drafts
from sdbench.types import EngineError, Generation

if TYPE_CHECKING:
    from sdbench.engine.loop import Watch
    from sdbench.engines.job import Job
    from sdbench.engines.latency import LatencyPlan
    from sdbench.engines.served.options import Http
    from sdbench.prepare.cells import Point
    from sdbench.records import Store

AT_A_TIME = 64  # requests in progress in the quality pass


class ServedDecoder:
    """Decodes a sweep on servers."""

    def __init__(self, kind: Http, job: Job, store: Store) -> None:
        self.kind, self.job, self.store = kind, job, store
        self.pump = Pump()
        self.servers = Servers(kind, job, store, self.pump)
        self.should_stop = stopper(job.pair_info.text, job.task.stop)
        unsent = [stop for stop in job.task.stop if stop not in kind.stops_sent(job)]
        self.is_over = stopper(job.pair_info.text, unsent)
        self._refuse_timing()
        self.most = min(job.run.batch_size or AT_A_TIME, kind.most_requests)
        self._allow_requests()
        self._settings = {key: kind.setting(job.run, point) for key, point in job.points.items()}
        try:
            self.servers.check()
        except BaseException:
            self.close()
            raise

    def _refuse_timing(self) -> None:
        timing, dialect, most = self.job.run.timing, self.kind.dialect, self.job.task.max_new_tokens
        if timing is None:
            return
        if timing.tokens is not None and timing.tokens > most:
            raise ConfigError(f"timing.tokens={timing.tokens} must be at most max_new_tokens={most}")
        if timing.tokens is not None and not dialect.fixed_length:
            raise ConfigError(
                "timing.tokens needs a server that decodes beyond the end of a text: engine.dialect.fixed_length is empty"
            )
        if timing.prefix_cache and dialect.salt is None and not dialect.cached_prompts:
            raise ConfigError(
                "timing.prefix_cache=true needs a server with an option to cache prompts, which this kind of server "
                "lacks: remove it"
            )

    def _allow_requests(self) -> None:
        """Raise the limit on open files for the requests that the options allow at a time; ConfigError if it is too low."""
        allow_requests(self.most, "batch_size")
        if self.job.run.timing is not None:
            allow_requests(max(self.kind.concurrency), "engine.concurrency")
        for each in arrivals_of(self.job.run, list(self.job.prompts.ids)):
            allow_requests(len(each.times), each.option)

    def close(self) -> None:
        try:
            self.servers.close()
        finally:
            self.pump.close()

    def setting(self, cell: str) -> ServerSetting:
        """Return the server that a cell needs."""
        return self._settings[cell]

    def stages(self) -> list[list[str]]:
        """Return one stage if all servers can run at once, otherwise one stage for each group that can."""
        by_setting: dict[ServerSetting, list[str]] = {}
        for point in self.job.planned:
            by_setting.setdefault(self.setting(point.cell.key), []).append(point.cell.key)
        groups = list(by_setting.values())
        size = self.kind.at_once or len(groups) or 1
        return [list(chain(*groups[first : first + size])) for first in range(0, len(groups), size)]

    def stop_ids(self, role: str) -> tuple[int, ...]:
        return self.job.pair_info.ends("draft" if role == "draft" else "target", self.job.task.stop)

    def stream(self, work: Work, watch: Watch | None = None) -> Iterator[tuple[WorkItem, Generation]]:
        """Decode share by share."""
        while items := work.claim():
            yield from self._share(items, watch)

    def _share(self, items: Sequence[WorkItem], watch: Watch | None) -> Iterator[tuple[WorkItem, Generation]]:
        """Decode server by server, starting with one that already runs."""
        by_setting: dict[ServerSetting, list[WorkItem]] = {}
        for item in items:
            by_setting.setdefault(self.setting(item.cell), []).append(item)
        for setting in sorted(by_setting, key=lambda setting: not self.servers.is_open(setting)):
            server, parts = self.servers.at(setting), [by_setting[setting]]
            if watch is not None:
                watch(0, 0)  # the time until here was spent on starting the server
            is_pooled = setting.role == "pair" and (not server.tells_steps or self._may_lose_steps)
            if is_pooled:  # cell by cell, so that the server's counters can be assigned to cells
                cells = dict.fromkeys(item.cell for item in by_setting[setting])
                parts = [[item for item in by_setting[setting] if item.cell == cell] for cell in cells]
            for part in parts:
                try:
                    yield from self._stream(server, part, is_pooled=is_pooled)
                except EngineError as error:
                    raise self.servers.explain(server.client, error) from error

    @property
    def _may_lose_steps(self) -> bool:
        """Whether a text may come without its steps. vLLM ends it at a stop string outside its engine core, which counts them.
        llama.cpp leaves tokens within a character out of its stream, and each may have been a step.
        """
        return bool(self.kind.dialect.sums or (self.kind.stops_sent(self.job) and not self.kind.plugin))

    def _stream(
        self, server: OpenServer, items: Sequence[WorkItem], *, is_pooled: bool
    ) -> Iterator[tuple[WorkItem, Generation]]:
        client = server.client
        texts: list[Answer] = []
        before, after = self.pump.run(client.counters()) if is_pooled else None, None
        try:
            slots = at(server.facts["info"], client.dialect.slots)
            for item, answer in self._answers(client, items, min(self.most, slots or self.most)):
                generation = self.generation(client, item, answer)
                texts.append(answer)
                yield item, generation
            after = self.pump.run(client.counters()) if is_pooled else None
        finally:  # if the block is interrupted, the counts of its finished texts are recorded too
            cell = items[0].cell
            if is_pooled and (record := pool(cell, texts, before, after, epoch=self.store.epoch_of(cell))) is not None:
                self.store.append([record])
        if is_pooled and server.tells_steps and any(text.steps is None for text in texts):
            self._warn_of_lost_steps(client, is_counted=after is not None)

    def _answers(self, client: Client, items: Sequence[WorkItem], most: int) -> Iterator[tuple[WorkItem, Answer]]:
        """Yield the answers with all their ids. Among other requests the repetition of one whose stream omitted ids may be rounded
        differently and give another text; it is then sent again at the end, alone.
        """

        async def work(item: WorkItem) -> Answer:
            body = self.body(client, item)
            answer = await client.complete(body, fills=False)
            with suppress(UnansweredError):  # then the answer still lacks ids
                answer = await client.fill(body, answer)
            self.servers.refuse_dead(client)
            return answer

        async def work_alone(item: WorkItem) -> Answer:
            answer = await client.complete(self.body(client, item))
            self.servers.refuse_dead(client)
            return answer

        left = []
        for item, answer in self.pump.each(items, work, most):
            if answer.omitted:
                left.append(item)
            else:
                yield item, answer
        yield from self.pump.each(left, work_alone, 1)

    def _warn_of_lost_steps(self, client: Client, *, is_counted: bool) -> None:
        if client.dialect.sums:
            warn(
                f"the server at {client.url} left out token ids within characters, so the rounds of some texts are not known: "
                "acceptance is pooled over each cell, from the sums with each text"
            )
            return
        if self.kind.plugin:
            rest = "acceptance stays empty. Its plug-in is an older one: install plugins/vllm of this version there"
        elif is_counted:
            rest = "acceptance is pooled over each cell, from its counters, which include other users' requests"
        else:
            rest = "acceptance stays empty"
        warn(f"the server at {client.url} reports no rounds of a text that ends at a stop string: {rest}")

    def time(self, plan: LatencyPlan) -> None:
        time_plan(self, plan)

    def body(self, client: Client, item: WorkItem) -> dict[str, Any]:
        """Return the request for one text."""
        return request_body(self.kind, self.job, client.model, item, self.job.task.max_new_tokens)

    def salted_body(self, client: Client, item: WorkItem) -> dict[str, Any]:
        """Return the request for one timed text, with a cache salt: the quality pass has sent the same prompt before."""
        body = self.body(client, item)
        if client.dialect.salt is not None:
            body.setdefault(client.dialect.salt, secrets.token_hex(8))
        return body

    def generation(self, client: Client, item: WorkItem, answer: Answer) -> Generation:
        """Return the text, cut by the run's stop rules, with its rounds; what the server does not report is None."""
        point = self.job.points[item.cell]
        tokens, is_cut = self._cut(client, point.role, answer)
        is_stopped = is_cut or answer.is_stopped
        counts = self._counts(client, point, answer, tokens, is_stopped=is_stopped)
        unknown = None if point.role == "pair" else ()
        return Generation(
            prompt=0,
            verifier=0,
            sample=item.sample,
            tokens=tokens,
            finish="stop" if is_stopped else "length",
            **(dict.fromkeys(CountedRounds._fields) if counts is None else counts._asdict()),
            **dict.fromkeys(("draft_tokens", "p", "q", "tv", "expected", "bias"), unknown),
        )

    def _cut(self, client: Client, role: str, answer: Answer) -> tuple[tuple[int, ...], bool]:
        ids, known = answer.ids[: self.job.task.max_new_tokens], self._num_ids
        for token in ids:
            if not isinstance(token, int) or not 0 <= token < known:
                raise EngineError(
                    f"the server at {client.url} answers with the token id {token}, but the model has {known} ids"
                )
        end = end_of(ids, self.stop_ids(role), self.should_stop)
        return ids[:end], end is not None

    @cached_property
    def _num_ids(self) -> int:
        return max(len(self.job.pair_info.tokenizer), int(self.job.pair_info.configs["target"].vocab_size))

    def _counts(
        self, client: Client, point: Point, answer: Answer, tokens: Sequence[int], *, is_stopped: bool
    ) -> CountedRounds | None:
        if point.role != "pair":
            return without_drafts(len(tokens))
        if answer.steps is None:
            return None
        most = max(answer.steps["drafted"], default=0)
        if most > point.num_draft:
            raise EngineError(
                f"the server at {client.url} drafts {most} tokens a step, and num_draft={point.num_draft}: write num_draft={most}"
            )
        try:
            steps = steps_within(len(tokens), len(answer.ids), answer.steps["accepted"], answer.steps["drafted"])
            return None if steps is None else cut_rounds(len(tokens), *steps, is_stopped=is_stopped)
        except EngineError as error:
            raise EngineError(f"{error} ({client.url})") from error


def pool(
    cell: str,
    texts: Sequence[Answer],
    before: Mapping[str, float] | None,
    after: Mapping[str, float] | None,
    *,
    epoch: int = 0,
) -> PooledRecord | None:
    """Return the sums of the counts of each text, or else the change of the server's counters; None if it reports neither."""
    if not texts:
        return None
    totals = [text.totals for text in texts if text.totals is not None]
    if len(totals) == len(texts):
        sums = {name: sum(float(total[name]) for total in totals) for name in ("steps", "drafted", "accepted")}
    elif before is not None and after is not None:
        sums = {name: after[name] - before[name] for name in ("steps", "drafted", "accepted")}
        if min(sums.values()) < 0:
            return None  # it was restarted meanwhile
    else:
        return None
    source = "requests" if len(totals) == len(texts) else "server"
    tokens = sum(len(text.ids) for text in texts)
    block = secrets.token_hex(8)
    return PooledRecord(cell=cell, source=source, texts=len(texts), tokens=tokens, **sums, block=block, epoch=epoch)
