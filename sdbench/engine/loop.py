"""The decode loop. A round is: draft, score, verify, commit; then finished rows are replaced by waiting requests.

A text depends only on (seed, key, sample, verifier, num_draft): noise is a function of where it is used, and rows do not affect
each other. In float64 this holds token for token; in lower precision two batch shapes may round a near-tie differently.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sdbench.engine.batch import Batch
from sdbench.engine.clock import Clock
from sdbench.engine.prefill import Prefixes
from sdbench.engine.row import NUM_MEASURES, Decoding, Request, StopTest
from sdbench.engine.score import score_block
from sdbench.errors import PromptError
from sdbench.lm.model import LM
from sdbench.probs import Warp, clamp_nan_ids, has_nan_law, is_ids, law_dtype, slice_size
from sdbench.types import DRAFTER_NEEDS, DraftBlock, Drafter, Evidence, Generation, Verdict, Verifier, needs_of

# A context around a phase of so many rows. The phases are "admit" and "round"; inside "round" are "draft", "score", "verify" and
# "commit"; inside "commit" are "measure" and "observe".
PhaseHook = Callable[[str, int], AbstractContextManager[object]]


# Called with the number of texts begun and the number of tokens written since the last call. Both are negative for texts that were
# interrupted and will start again.
Watch = Callable[[int, int], object]


# Returns the indices of the requests to begin next; empty if there are none now.
Claim = Callable[[], Sequence[int]]


def claim_all(requests: Sequence[Request]) -> Claim:
    """Return a claim of all requests at once."""
    shares = iter([range(len(requests))])
    return lambda: next(shares, ())


def no_hook(phase: str, num_rows: int) -> AbstractContextManager[object]:
    return nullcontext()


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
    watch: Watch | None = None


@dataclass(eq=False)
class BatchRun:
    """A batch and the queue of waiting requests."""

    target: LM
    drafter: Drafter
    prompts: Sequence[Sequence[int]]
    verifiers: Sequence[Verifier]
    options: Options
    hook: PhaseHook
    requests: Sequence[Request]  # all that may be claimed
    claim: Claim
    pending: dict[int, Request]  # requests claimed and not yet yielded, by index in the stream
    num_rows: int

    def __post_init__(self) -> None:
        self.queue = deque(self.pending.items())
        self.has_more = True
        self.num_ids = self.options.warp.vocab_size or self.target.vocab_size
        self.clock = Clock(self.target.device, self.options.timing)
        needs = {name for rule in self.verifiers for name in needs_of(rule)}
        if "raw_if_greedy" in needs and self.options.warp.is_greedy:
            needs.add("raw")
        self.needs = frozenset(needs - {"raw_if_greedy"})
        self.drafter_needs = needs_of(self.drafter, DRAFTER_NEEDS)
        self.prefixes = Prefixes(self.target, self.drafter, self.prompts, self.num_rows, self.clock)
        self.prefixes.expect(request.prompt for request in self.pending.values())
        self.laws: Tensor | None = None
        self.removal_s = 0.0  # since the last round

    def run(self) -> Iterator[Generation]:
        """Decode until nothing waits. Inference mode is on only inside a step of the loop; at a yield the caller's mode is on."""
        watch = self.options.watch
        num_draft = max(request.num_draft for request in self.requests)
        longest = max(len(self.prompts[request.prompt]) for request in self.requests) + self.options.max_new_tokens
        shape = self.num_rows, longest + num_draft + 1, num_draft
        with torch.inference_mode():
            batch = Batch(self.target, self.drafter, self.verifiers, *shape, self.options.seed)
        try:
            while True:
                with torch.inference_mode(), self.hook("admit", len(batch.rows)):
                    self._refill(batch)
                if not batch.rows:
                    return
                before = sum(len(row.tokens) for row in batch.rows)
                with torch.inference_mode(), self.hook("round", len(batch.rows)):
                    self._round(batch)
                if watch is not None:
                    watch(0, sum(len(row.tokens) for row in batch.rows) - before)
                # Yield before anything is admitted, so that running out of memory cannot lose a finished text.
                for row in [row for row in batch.rows if row.is_done][::-1]:
                    del self.pending[row.index]
                    yield row.finish(self.clock.timing(row))
        finally:
            if watch is not None and (lost := [row for row in batch.rows if row.index in self.pending]):
                watch(-len(lost), -sum(len(row.tokens) for row in lost))
            batch.close()

    def _refill(self, batch: Batch) -> None:
        """Replace finished rows by waiting requests. The last slots come first, because closing a gap moves only later rows."""
        for slot in [slot for slot in range(len(batch.rows)) if batch.rows[slot].is_done][::-1]:
            if self._is_waiting() and batch.family_of[self.queue[0][1].verifier] == batch.rows[slot].family:
                self._admit(batch, slot)
            else:
                begun_s = self.clock.read()
                batch.remove(slot)
                self.removal_s += self.clock.read() - begun_s
        while len(batch.rows) < self.num_rows and self._is_waiting():
            self._admit(batch)

    def _is_waiting(self) -> bool:
        """Return whether a request waits. If none does, claim more, unless an earlier claim has returned nothing."""
        if not self.queue and self.has_more:
            claimed = {number: self.requests[number] for number in self.claim()}
            self.has_more = bool(claimed)
            self.queue.extend(claimed.items())
            self.pending |= claimed
            self.prefixes.expect(request.prompt for request in claimed.values())
        return bool(self.queue)

    def _admit(self, batch: Batch, slot: int | None = None) -> None:
        """Admit the next request, prefilling its prompt if needed, into this slot or at the end of its family."""
        index, request = self.queue.popleft()
        start = self.prefixes.take(request.prompt, (waiting.prompt for _, waiting in self.queue))
        family, budget = batch.family_of[request.verifier], self.options.max_new_tokens
        if self.options.watch is not None:
            self.options.watch(1, 0)
        row = Decoding(index, request, family, len(start.prompt), start.prefix.length, budget, start.prefill_s)
        begun_s = self.clock.read()
        batch.admit(row, start, slot)
        row.prefill_s += self.clock.read() - begun_s  # keys and values of the prompt are copied

    def _round(self, batch: Batch) -> None:
        begun_s, count = self.clock.read(), len(batch.rows)
        wanted = [row.draft_length for row in batch.rows]
        k = max(wanted) if self.target.mode == "off" else batch.num_draft  # captured steps need shapes that recur
        lengths, u = batch.begin(wanted)
        with self.hook("draft", count):
            draft = self.drafter.draft(batch, k, lengths, u[:, :k], self.needs)
        width = draft.tokens.shape[1]
        if width > k:
            raise ValueError(f"{type(self.drafter).__name__} gave a block of {width} slots; at most {k} are allowed")
        drafted_s = self.clock.split()
        with self.hook("score", count):
            evidence, ids = self._score(batch, draft)
        with self.hook("verify", count):
            first = batch.num_draft  # of the verifier's uniforms; the last draws the next token
            verdict = self._verify(batch, evidence, torch.cat((u[:, first : first + width], u[:, -1:]), 1))
        verified_s = self.clock.split()
        with self.hook("commit", count):
            self._commit(batch, wanted, ids, evidence, verdict)
        if self.clock.is_on:
            ended_s, self.removal_s = self.clock.read() + self.removal_s, 0.0
            for row in batch.rows:
                row.rounds_s.append(ended_s - begun_s)
                if self.clock.is_split:
                    parts = (drafted_s - begun_s, verified_s - drafted_s, ended_s - verified_s)
                    row.split_s = [old + new for old, new in zip(row.split_s, parts, strict=True)]

    def _score(self, batch: Batch, draft: DraftBlock) -> tuple[Evidence, Tensor]:
        """Run the target over the unread end of each text and over the draft; return its law at each drafted slot and after them.

        The evidence has valid ids only. The second result, ids [B,1+K], is V where logits were NaN: first the target's, then
        those of each draft.
        """
        sizes, warp, num_unread = batch.lengths, self.options.warp, batch.num_unread
        wanted = tuple(sorted((self.needs | self.drafter_needs) & {"raw", "target_hidden", "layer_hidden"}))
        width = draft.tokens.shape[1]
        positions = sizes[:, None] + torch.arange(-num_unread, width, device=sizes.device)
        ids = torch.cat((batch.tokens.gather(1, positions[:, :num_unread]), draft.tokens), 1)
        valid = ids.clamp(0, self.num_ids - 1)  # a slot that is not offered may hold anything
        kv_length = self.target.kv_length(batch.longest + width, batch.cache)
        begun = draft.partial_forward
        out = self._law_memory(len(ids), width + 1)
        step = partial(score_block, self.target, batch.cache, warp, wanted, begun.num_layers, width + 1, out=out)
        name = "score", warp, wanted, begun.num_layers, width
        p, *more = batch.cache.steps(step, name, kv_length, valid, positions, *begun.states)
        if warp.is_greedy:
            ids, p = torch.cat((p.amax(1, keepdim=True), draft.tokens), 1), clamp_nan_ids(p, self.num_ids)
        else:
            ids = ids[:, num_unread - 1 :]
        extra = dict(zip(wanted, more, strict=True))
        q = draft.q.clamp(0, self.num_ids - 1) if is_ids(draft.q) else draft.q
        draft = replace(draft, tokens=valid[:, num_unread:], q=q)
        states = extra.get("target_hidden"), extra.get("layer_hidden")
        evidence = Evidence(p, draft, warp.is_greedy, extra.get("raw"), *states)
        count = len(batch.rows)
        return (evidence, ids) if count == len(ids) else (evidence.rows(slice(0, count)), ids[:count])

    def _law_memory(self, num_rows: int, num_slots: int) -> Tensor | None:
        """Return memory [B,K+1,V] for the target's laws. It is reused in each round, because allocating it takes time.

        None if laws are ids or small, or if steps are captured, since these keep memory for their results.
        """
        shape, device = (num_rows, num_slots, self.num_ids), self.target.device
        size = math.prod(shape)
        if self.options.warp.is_greedy or self.target.mode != "off" or size <= slice_size(device.type):
            return None
        if self.laws is None or len(self.laws) < size:
            self.laws = None  # frees the memory first
            self.laws = torch.empty(size, dtype=law_dtype(self.target.dtype), device=device)
        return self.laws[:size].view(shape)

    def _verify(self, batch: Batch, evidence: Evidence, u: Tensor) -> Verdict:
        """Let each family judge its rows."""
        parts = []
        for rows, rule, number in batch.families():
            states = batch.states[number]
            view = evidence if len(batch.families()) == 1 else evidence.rows(rows)
            part = rule(view, u[rows], None if states is None else states[rows])
            if states is not None and part.state is not None:
                states[rows] = part.state
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        draft = evidence.draft
        spared = [spared_in(v, draft.rows(rows)) for v, (rows, _, _) in zip(parts, batch.families(), strict=True)]
        accepted, next_token = (torch.cat([getattr(v, name) for v in parts]) for name in ("accepted", "next_token"))
        return Verdict(accepted, next_token, is_spared=torch.cat(spared))

    def _measures(self, batch: Batch, evidence: Evidence) -> list[Any]:
        """Return for each row p, q, tv, expected and bias, a list [K] each; None if measures are off."""
        if not self.options.is_measured:
            return [None] * len(batch.rows)
        if not evidence.draft.tokens.shape[1]:
            return [[[]] * NUM_MEASURES] * len(batch.rows)
        measures = [rule.measure(evidence.rows(rows)) for rows, rule, _ in batch.families()]
        parts = [torch.stack([x.double() for x in (m.p, m.q, m.tv, m.expected, m.bias)], 1) for m in measures]
        return torch.cat(parts).tolist()

    def _commit(self, batch: Batch, wanted: list[int], ids: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        """Write the block after each text, then count on the host. Tokens after the new end of a text are overwritten later."""
        accepted, next_token = verdict.accepted[:, None], verdict.next_token[:, None]
        offered = evidence.draft.lengths[:, None]
        emitted = batch.write(evidence.draft.tokens, accepted, next_token)
        is_spared, width = spared_in(verdict, evidence.draft), evidence.draft.tokens.shape[1]
        on_host = torch.cat((offered, accepted, next_token, is_spared, ids), 1).tolist()
        with self.hook("measure", len(batch.rows)):
            measures = self._measures(batch, evidence)
        rows = zip(batch.rows, wanted, on_host, measures, strict=True)
        for row, most, (length, kept, token, *lists), measured in rows:
            spared, scored, drafted = lists[:width], lists[width], lists[width + 1 :]
            draft = drafted[:length]
            is_nan = has_nan_law((token, scored, *draft), self.num_ids)
            if is_nan or not 0 <= kept <= length <= min(most, width) or min((token, *draft)) < 0:
                self._refuse(row, draft, kept, token, length, most)
            row.commit(length, kept, token, drafted, spared, measured, self.options.stop_ids, self.options.should_stop)
        with self.hook("observe", len(batch.rows)):
            self.drafter.observe(emitted, evidence, verdict)

    def _refuse(self, row: Decoding, draft: list[int], kept: int, token: int, length: int, wanted: int) -> None:
        """Raise for an invalid block or verdict, or for NaN logits, for which the id is V."""
        drafter, rule = type(self.drafter).__name__, type(self.verifiers[row.request.verifier]).__name__
        wrong = [index for index in draft if not 0 <= index <= self.num_ids]
        if len(draft) < length:
            raise ValueError(f"{drafter} offered {length} tokens in a block of {len(draft)} slots")
        if not 0 <= length <= wanted:
            raise ValueError(f"{drafter} offered {length} tokens; at most {wanted} are allowed")
        if wrong:
            raise ValueError(f"{drafter} drafted the token {wrong[0]}, which is not a token id")
        if not 0 <= kept <= length:
            raise ValueError(f"{rule} accepted {kept} of {length} drafted tokens")
        if not 0 <= token <= self.num_ids:
            raise ValueError(f"{rule} emitted the token {token}, which is not a token id")
        role, key = "draft" if has_nan_law(draft, self.num_ids) else "target", row.request.key
        raise PromptError(f"the {role} model's logits are NaN at prompt {key}: check its weights and dtype", key)


def spared_in(verdict: Verdict, draft: DraftBlock) -> Tensor:
    """Return [B,K] bool: which drafts the rule keeps without judging them."""
    if verdict.is_spared is None:
        return torch.zeros(draft.tokens.shape, dtype=torch.bool, device=draft.tokens.device)
    return verdict.is_spared
