"""Tests for vocabularies too large to enumerate: first tokens, two-token prefixes, and every token by the law of its origin."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sdbench.audit.claims import PAIRS, AcceptanceTest, PitTest, TableTest
from sdbench.audit.evidence import CountEvidence
from sdbench.audit.outcomes import outcomes, p_of
from sdbench.audit.source import Sampling, Source, draft_block, evidence_of
from sdbench.audit.texts import ELEMENTS, ORIGINS, RoundBatch, TextBatch
from sdbench.types import DraftBlock, Evidence
from sdbench.verify import Tokenwise

MAX_FIRST_TOKENS = 16  # the second token is tested only after these
ROUGH = 1e-4  # mass spread over all tokens where rounding may move the cut of top-k or top-p, and change what is kept


def smooth(law: Tensor, is_exact: bool) -> Tensor:
    """Give every token some mass, unless rounding cannot move the cut of top-k or top-p."""
    return law if is_exact else (1 - ROUGH) * law + ROUGH / law.shape[-1]


def slot_evidence(
    p: Tensor, q: Tensor, raw: tuple[Tensor, Tensor | None], tokens: Tensor, states: tuple[Tensor, Tensor | None]
) -> Evidence:
    """Return evidence with each position of texts [N,T] as a drafted slot; logits and states are those of target and draft."""
    p, logits, target_states = (torch.cat((x, x[:, -1:]), 1) for x in (p, raw[0], states[0]))
    lengths = torch.full((len(tokens),), tokens.shape[1])
    return Evidence(p, DraftBlock(tokens, q, lengths, raw[1], states[1]), False, logits, target_states)


@dataclass
class ClaimedLaw:
    """What a rule claims to emit, from the models' own logits. `rule` None, or not token-wise: the target's law.

    `excluded`: end tokens that the texts do not hold. A text has a token only where it goes on, so the law of the token is the
    target's, conditioned on none of these ids.
    """

    source: Source
    sampling: Sampling
    rule: Any
    has_draft: bool
    is_exact: bool
    excluded: Sequence[int] = ()

    @property
    def is_tokenwise(self) -> bool:
        return isinstance(self.rule, Tokenwise) and self.has_draft

    def laws(self, prompts: Sequence[int], tokens: Tensor) -> tuple[Tensor, Tensor | None, Any]:
        """Return p and q [N,T,V] at every position of texts, and the rule settled on them."""
        target = self.source.outputs("target", prompts, tokens)
        p = self.sampling.law(target.logits)
        if self.excluded:
            p[..., list(self.excluded)] = 0
            p /= p.sum(-1, keepdim=True).clamp_min(1e-300)
        if not self.has_draft:
            return p, None, None
        draft = self.source.outputs("draft", prompts, tokens)
        q = self.sampling.law(draft.logits)
        if not self.is_tokenwise:
            return p, q, None
        evidence = slot_evidence(p, q, (target.logits, draft.logits), tokens, (target.states, draft.states))
        return p, q, self.rule.settle(evidence)

    def out(self, prompts: Sequence[int], tokens: Tensor) -> Tensor:
        """Return the law [N,T,V] of what is emitted at drafted positions."""
        p, q, rule = self.laws(prompts, tokens)
        return smooth(p if rule is None else rule.out(p, q), self.is_exact)


@dataclass
class PrefixTest(TableTest):
    """First tokens and two-token prefixes against the models' own laws; prefixes that are hardly ever expected are pooled."""

    views = ("first tokens", PAIRS)
    claimed: ClaimedLaw
    horizons: Sequence[int]  # texts of each prompt
    with_second: bool
    claim: str = "prefixes"
    likely: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        vocab, firsts, seconds, self.likely = self.claimed.source.vocab, [], [], []
        for prompt, horizon in enumerate(self.horizons):
            first = self.claimed.out([prompt], torch.zeros(1, 1, dtype=torch.int64))[0, 0].double()
            firsts.append(CountEvidence((first / first.sum()).numpy(), horizon))
            frequent = (first * horizon >= 20).nonzero()[:, 0]
            likely = frequent[first[frequent].argsort(descending=True)][:MAX_FIRST_TOKENS]
            self.likely.append(likely)
            if not self.with_second:
                continue
            texts = torch.stack((likely, torch.zeros_like(likely)), 1)
            parts = [self.claimed.out([prompt] * len(part), part)[:, 1].double() for part in texts.split(4)]
            second = torch.cat(parts) if parts else torch.zeros(0, vocab, dtype=torch.float64)
            law = (first[likely, None] * second).flatten()
            law = torch.cat((law, (1 - law.sum()).clamp_min(0)[None]))
            seconds.append(CountEvidence((law / law.sum()).numpy(), horizon, has_rest=True))
        self.parts = [firsts, *([seconds] if self.with_second else [])]

    def add(self, texts: TextBatch, rounds: RoundBatch | None) -> None:
        vocab = self.claimed.source.vocab
        for prompt, likely in enumerate(self.likely):
            tokens = texts.tokens[texts.prompts == prompt]
            self.parts[0][prompt].add(tokens[:, 0].numpy())
            if self.with_second:
                row = torch.full((vocab,), -1).scatter_(0, likely, torch.arange(len(likely)))[tokens[:, 0]]
                cell = torch.where(row < 0, len(likely) * vocab, row * vocab + tokens[:, 1])
                self.parts[1][prompt].add(cell.numpy())

    def name_of(self, view: int, prompt: int, cell: int) -> str:
        if view == 0:
            return f"token {cell} first after prompt {prompt}"
        vocab, likely = self.claimed.source.vocab, self.likely[prompt].tolist()
        if cell == len(likely) * vocab:
            return f"a first token other than the {len(likely)} likeliest after prompt {prompt}"
        return f"{likely[cell // vocab]}, then {cell % vocab} after prompt {prompt}"


@dataclass
class EmittedTest(PitTest):
    """Every emitted token by the law of its origin: norm(q·a), the replacement's, or the target's own for a bonus token."""

    claimed: ClaimedLaw = field(kw_only=True)
    acceptance: AcceptanceTest | None = None  # gets its counts from the same forward passes

    def add(self, texts: TextBatch, rounds: RoundBatch | None) -> None:
        step = max(1, ELEMENTS // (self.claimed.source.vocab * texts.tokens.shape[1]))
        drafts = None if rounds is None else rounds.drafts_along(texts)
        for rows in torch.arange(len(texts.tokens)).split(step):
            self._add(texts, rows, None if drafts is None else drafts[rows])

    def _add(self, texts: TextBatch, rows: Tensor, drafts: Tensor | None) -> None:
        tokens, origins, is_token = texts.tokens[rows], texts.origins[rows], texts.is_token[rows]
        p, q, rule = self.claimed.laws(texts.prompts[rows].tolist(), tokens)
        if rule is None or q is None or drafts is None:
            other = p if q is None else q
            self.add_tokens(smooth(p, self.claimed.is_exact)[is_token], other[is_token], tokens[is_token])
            return
        kept = q * rule.accept(p, q)
        laws = (kept / kept.sum(-1, keepdim=True).clamp_min(1e-300), rule.replace_rejected(p, q, drafts), p)
        for origin, (law, other) in enumerate(zip(laws, (p, q, q), strict=True)):
            rows = is_token & (origins == origin)
            self.add_tokens(smooth(law, self.claimed.is_exact)[rows], other[rows], tokens[rows])
        if self.acceptance is not None:
            rows = is_token & (origins != ORIGINS.index("bonus"))
            chance, rough = kept.sum(-1)[rows].double(), 0.0 if self.claimed.is_exact else ROUGH
            self.acceptance.add_kept((origins == 0)[rows].numpy(), chance.numpy(), rough)


@dataclass
class JudgedTest(PitTest):
    """Rounds of a rule that judges whole blocks, given the drafts: how many were kept, and the token after them."""

    source: Source = field(kw_only=True)
    sampling: Sampling = field(kw_only=True)
    rule: Any = field(kw_only=True)
    is_exact: bool = field(kw_only=True)
    acceptance: AcceptanceTest | None = None

    def add(self, texts: TextBatch, rounds: RoundBatch | None) -> None:
        assert rounds is not None, "an engine that records its rounds"
        for part in rounds.parts(self.source.vocab):
            for prompt, begin in set(zip(part.prompts.tolist(), part.begin.tolist(), strict=True)):
                if begin == 0 or not hasattr(self.rule, "outcomes_from"):  # in later rounds the rule's state is unknown
                    rows = ((part.prompts == prompt) & (part.begin == begin)).nonzero()[:, 0]
                    self._add(texts, part.rows(rows), prompt, begin)

    def _add(self, texts: TextBatch, rounds: RoundBatch, prompt: int, begin: int) -> None:
        before, ids = rounds.before[:, :begin], self.source.prompts[prompt]
        block = draft_block(self.source, self.sampling, prompt, before, rounds.drafts, rounds.drafted)
        evidence = evidence_of(self.source, self.sampling, prompt, before, block)
        state = None
        if hasattr(self.rule, "outcomes_from"):
            state = self.rule.init_state([torch.tensor(list(ids))], "cpu").expand(len(before), -1)
        claimed = outcomes(self.rule, evidence, ids, before, state)
        rows, kept = torch.arange(len(before)), rounds.accepted
        if self.acceptance is not None:
            law, rough = claimed.accepted.double().clamp_min(0), 0.0 if self.is_exact else ROUGH
            self.acceptance.add_counts(kept.numpy(), (law / law.sum(1, keepdim=True)).numpy(), rough)
        has_next = rounds.emitted > kept
        token = texts.tokens[rounds.text, (begin + kept).clamp_max(texts.tokens.shape[1] - 1)]
        law = smooth(claimed.following[rows, kept].double(), self.is_exact)
        self.add_tokens(law[has_next], p_of(evidence)[rows, kept][has_next], token[has_next])
