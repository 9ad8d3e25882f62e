"""The loop itself. A round is: draft, judge, verify, commit; then finished rows leave and new ones take their place.

What a text becomes depends on (seed, key, sample, verifier, num_draft) only: noise is a function of where it is used, and no
row looks at another. In float64 that is token for token; in lower precision two batch shapes may round a near-tie differently.
"""

import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sdbench.engine.batch import Batch
from sdbench.engine.clock import Clock
from sdbench.engine.row import NUM_MEASURES, Request, Row, StopTest
from sdbench.lm import LM, Prefix, RaggedCache, forget
from sdbench.probs import Warp
from sdbench.types import DraftBlock, Drafter, Evidence, Feedback, Generation, Verdict, Verifier


@dataclass(frozen=True, slots=True)
class Options:
    """What all requests of a stream share."""

    warp: Warp
    max_new_tokens: int = 128
    stop_ids: frozenset[int] = frozenset()
    should_stop: StopTest | None = None
    seed: int = 0
    batch_size: int = 32
    is_measured: bool = True
    timing: bool | str | None = None


def stream(
    target: LM,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    verifiers: Sequence[Verifier],
    requests: Sequence[Request],
    options: Options,
) -> Iterator[Generation]:
    """Decode the requests, in the order in which they end. Those of one prompt should stand together: it is prefilled once."""
    queue = deque(enumerate(requests))
    num_rows = min(options.batch_size, len(requests))
    while queue:
        decoder = Decoder(target, drafter, prompts, verifiers, queue, options, num_rows)
        try:
            with torch.inference_mode():
                yield from decoder.run()
        except torch.OutOfMemoryError:
            if num_rows == 1:
                raise
            # Unfinished rows begin anew: their noise is a function of their rounds, so they come out the same.
            queue = deque(sorted([*queue, *((row.index, row.request) for row in decoder.unfinished())]))
            warnings.warn(
                f"out of memory with {num_rows} rows; going on with {num_rows // 2}", ResourceWarning, stacklevel=2
            )
            num_rows //= 2
            del decoder
            forget()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


class Decoder:
    """A batch, the queue behind it, and prefixes of prompts that will be asked for again."""

    def __init__(
        self,
        target: LM,
        drafter: Drafter,
        prompts: Sequence[Sequence[int]],
        verifiers: Sequence[Verifier],
        queue: deque[tuple[int, Request]],
        options: Options,
        num_rows: int,
    ) -> None:
        self.target, self.drafter, self.prompts, self.verifiers = target, drafter, prompts, verifiers
        self.queue, self.options, self.num_rows = queue, options, num_rows
        self.asked = Counter(request.prompt for _, request in queue)
        self.prefixes: dict[int, tuple[Tensor, Prefix, Any]] = {}
        self.num_ids = options.warp.vocab_size or target.vocab_size
        self.clock = Clock(target.device, options.timing)
        self.needs = _needs(verifiers, options.warp)
        self.batch: Batch | None = None
        self.waiting: Row | None = None
        self.feedback: Feedback | None = None

    def unfinished(self) -> list[Row]:
        rows = [] if self.batch is None else [row for row in self.batch.rows if not row.is_done]
        return rows if self.waiting is None or self.waiting in rows else [*rows, self.waiting]

    def run(self) -> Iterator[Generation]:
        longest = max(len(self.prompts[request.prompt]) for _, request in self.queue)
        num_draft = max(request.num_draft for _, request in self.queue)
        capacity = longest + self.options.max_new_tokens + num_draft + 1
        args = (self.target, self.drafter, self.verifiers, self.num_rows, capacity, num_draft, self.options.seed)
        batch = self.batch = Batch(*args)
        try:
            while self.queue and len(batch.rows) < self.num_rows:
                self._admit(batch)
            while batch.rows:
                self._round(batch)
                yield from self._refill(batch)
        finally:
            batch.close()

    def _refill(self, batch: Batch) -> Iterator[Generation]:
        """Finished rows leave; what waits takes their place. Last slots first: closing a hole moves later rows only."""
        for slot in [slot for slot in range(len(batch.rows)) if batch.rows[slot].is_done][::-1]:
            row = batch.rows[slot]
            self.feedback = None
            if self.queue and batch.family_of[self.queue[0][1].verifier] == row.family:
                self._admit(batch, slot)
            else:
                batch.remove(slot)
            yield row.finish(self.clock.timing(row.prefill_s, row.rounds_s, row.split_s))
        while self.queue and len(batch.rows) < self.num_rows:
            self.feedback = None
            self._admit(batch)

    def _admit(self, batch: Batch, slot: int | None = None) -> None:
        """The next request joins, its prompt prefilled or found."""
        index, request = self.queue.popleft()
        number = request.prompt
        row = Row(
            index,
            request,
            batch.family_of[request.verifier],
            len(self.prompts[number]),
            self.options.max_new_tokens,
        )
        self.waiting, started_s = row, self.clock.read()
        if number not in self.prefixes:
            prompt = torch.tensor(list(self.prompts[number]), dtype=torch.int64, device=self.target.device)
            self.prefixes[number] = (prompt, self.target.prefill(prompt[:-1]), self.drafter.prefill(prompt))
        row.prefill_s = self.clock.read() - started_s
        if slot is None:
            batch.admit(row, *self.prefixes[number])
        else:
            batch.replace(slot, row, *self.prefixes[number])
        self.waiting = None
        self.asked[number] -= 1
        if not self.asked[number]:
            del self.prefixes[number]

    def _round(self, batch: Batch) -> None:
        begun_s = self.clock.read()
        planned = [row.draft_length for row in batch.rows]
        k = max(planned) if self.target.mode == "off" else batch.num_draft  # shapes that come back
        lengths, u = batch.begin(planned)
        draft = self.drafter.draft(batch, k, lengths, u[:, :k], self.feedback, self.needs)
        drafted_s = self.clock.split()
        evidence, ids = self._judge(batch, draft)
        verdict = self._verify(batch, evidence, _coins(u, batch.num_draft, k))
        verified_s = self.clock.split()
        self._commit(batch, planned, ids, evidence, verdict)
        if self.clock.is_on:
            ended_s = self.clock.read()
            for row in batch.rows:
                row.rounds_s.append(ended_s - begun_s)
                if self.clock.is_split:
                    parts = (drafted_s - begun_s, verified_s - drafted_s, ended_s - verified_s)
                    row.split_s = [old + new for old, new in zip(row.split_s, parts, strict=True)]

    def _judge(self, batch: Batch, draft: DraftBlock) -> tuple[Evidence, Tensor]:
        """One forward of the target over the last token and the draft: its law at each drafted slot and behind.

        The evidence has valid ids only. Beside it, ids [B,1+K] are V where logits were NaN: the target's, then the draft's.
        """
        sizes, warp, wanted = batch.lengths, self.options.warp, tuple(sorted(self.needs & {"raw", "target_hidden"}))
        ids = torch.cat((batch.tokens.gather(1, sizes[:, None] - 1), draft.tokens), 1)
        valid = ids.clamp_max(self.num_ids - 1)
        reach = self.target.reach(batch.longest + draft.tokens.shape[1], batch.cache)
        step = partial(_score, self.target, batch.cache, warp, reach, wanted)
        p, *more = batch.cache.records(step, ("score", warp, reach, wanted), valid, sizes)
        if warp.is_greedy:
            ids, p = torch.cat((p.amax(1, keepdim=True), draft.tokens), 1), p.clamp_max(self.num_ids - 1)
        extra = dict(zip(wanted, more, strict=True))
        draft = replace(draft, tokens=valid[:, 1:])
        evidence = Evidence(p, draft, warp.is_greedy, extra.get("raw"), extra.get("target_hidden"))
        count = len(batch.rows)
        return (evidence, ids) if count == len(ids) else (evidence.rows(slice(0, count)), ids[:count])

    def _verify(self, batch: Batch, evidence: Evidence, u: Tensor) -> Verdict:
        """Each family judges its own rows."""
        parts = []
        for rows, rule, number in batch.families():
            held = batch.states[number]
            view = evidence if len(batch.families()) == 1 else evidence.rows(rows)
            part = rule(view, u[rows], None if held is None else held[rows])
            if held is not None and part.state is not None:
                held[rows] = part.state
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        return Verdict(torch.cat([v.accepted for v in parts]), torch.cat([v.next_token for v in parts]))

    def _measures(self, batch: Batch, evidence: Evidence) -> Tensor | None:
        """[B,5,K] float64: p, q, tv, expected, bias."""
        if not self.options.is_measured:
            return None
        if not evidence.draft.tokens.shape[1]:
            return torch.zeros(len(batch.rows), NUM_MEASURES, 0)
        found = []
        for rows, rule, _ in batch.families():
            m = rule.measure(evidence.rows(rows))
            found.append(torch.stack([x.double() for x in (m.p, m.q, m.tv, m.expected, m.bias)], 1))
        return torch.cat(found)

    def _commit(self, batch: Batch, planned: list[int], ids: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        """Write the block behind each text (what lies past its new length is overwritten later), then count on the host."""
        accepted, next_token = verdict.accepted[:, None], verdict.next_token[:, None]
        batch.write(evidence.draft.tokens, accepted, next_token)
        told = torch.cat((accepted, next_token, ids), 1).tolist()
        measures = self._measures(batch, evidence)
        values = None if measures is None else measures.tolist()
        for number, (row, (kept, token, judged, *drafted)) in enumerate(zip(batch.rows, told, strict=True)):
            if max(token, judged, *drafted) >= self.num_ids:
                _refuse_nan("draft" if max(drafted, default=0) >= self.num_ids else "target", row)
            found = None if values is None else values[number]
            row.commit(planned[number], kept, token, drafted, found, self.options.stop_ids, self.options.should_stop)
        if "feedback" in self.drafter.needs:
            self.feedback = Feedback(evidence, verdict)


def _refuse_nan(role: str, row: Row) -> None:
    where = f"at prompt {row.request.prompt}: check its weights and dtype"
    raise ValueError(f"the {role} model's logits are NaN {where}")


def _score(
    target: LM, cache: RaggedCache, warp: Warp, reach: int, wanted: Sequence[str], ids: Tensor, sizes: Tensor
) -> tuple[Tensor, ...]:
    """The target's law [B,T,V] of ids [B,T], the first of them the last of texts of `sizes` [B]; what else is wanted."""
    positions = sizes[:, None] + torch.arange(-1, ids.shape[1] - 1, device=ids.device)
    plan = target.plan(positions, cache, reach)
    if "target_hidden" in wanted:
        raw, hidden = target.forward_hidden(ids, plan, cache)
    else:
        raw, hidden = target.forward(ids, plan, cache), None
    logits = warp.logits(raw)
    extra = {"raw": logits, "target_hidden": hidden}
    return warp.law(logits), *(x for name in wanted if (x := extra[name]) is not None)


def _coins(u: Tensor, num_draft: int, k: int) -> Tensor:
    """[B,k+1] of [B,2K+1]: the verifier's coins for k slots, and what makes the next token."""
    if k == num_draft:
        return u[:, num_draft:]
    return torch.cat((u[:, num_draft : num_draft + k], u[:, -1:]), 1)


def _needs(verifiers: Sequence[Verifier], warp: Warp) -> frozenset[str]:
    """What the rules read, under these warpers."""
    needs = {name for rule in verifiers for name in rule.needs}
    if "raw_if_greedy" in needs and warp.is_greedy:
        needs.add("raw")
    return frozenset(needs - {"raw_if_greedy"})
