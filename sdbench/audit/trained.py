"""The claims where nothing can be enumerated: first tokens, two-token prefixes, and every token under the law its origin claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sdbench.audit.claims import Cell, Effect, PitTest, TableTest, worst_of
from sdbench.audit.evidence import Coins, Counts
from sdbench.audit.outcomes import outcomes
from sdbench.audit.source import Sampling, Source
from sdbench.audit.texts import ELEMENTS, Rounds, Texts
from sdbench.types import DraftBlock, Evidence, needs_of
from sdbench.verify import Tokenwise

WIDEST = 16  # first tokens whose second token is looked at
ROUGH = 1e-4  # mass that is spread over all tokens where a cut by top-k or top-p may be rounded another way


def smoothed(law: Tensor, is_exact: bool) -> Tensor:
    """A law that excludes nothing, where the arithmetic cannot tell which token is the last of a cut."""
    return law if is_exact else (1 - ROUGH) * law + ROUGH / law.shape[-1]


def shown(
    p: Tensor,
    q: Tensor | None,
    raw_p: Tensor,
    raw_q: Tensor | None,
    tokens: Tensor,
    states: tuple[Tensor, Tensor] | None = None,
) -> Evidence:
    """Laws [N,T,V] of texts' places, and the states of target and draft, as if each were a drafted slot."""
    last = torch.cat((p, p[:, -1:]), 1), torch.cat((raw_p, raw_p[:, -1:]), 1)
    q = p if q is None else q
    lengths = torch.full((len(tokens),), tokens.shape[1])
    hidden, behind = (None, None) if states is None else (states[1], torch.cat((states[0], states[0][:, -1:]), 1))
    return Evidence(last[0], DraftBlock(tokens, q, lengths, raw_q, hidden), False, last[1], behind)


@dataclass
class Claimed:
    """What a rule claims to emit at a place, from the models' own logits. `rule` None, or not token-wise: the target's law."""

    source: Source
    sampling: Sampling
    rule: Any
    has_draft: bool
    is_exact: bool

    @property
    def is_tokenwise(self) -> bool:
        return isinstance(self.rule, Tokenwise) and self.has_draft

    def laws(self, prompts: Sequence[int], tokens: Tensor) -> tuple[Tensor, Tensor | None, Evidence]:
        """p and q [N,T,V] at every place of texts, and both as evidence."""
        raw_p = self.source.logits("target", prompts, tokens)
        raw_q = self.source.logits("draft", prompts, tokens) if self.has_draft else None
        p, q = self.sampling.law(raw_p), None if raw_q is None else self.sampling.law(raw_q)
        states = None
        if self.has_draft and {"target_hidden", "draft_hidden"} & needs_of(self.rule):
            states = self.source.states("target", prompts, tokens), self.source.states("draft", prompts, tokens)
        return p, q, shown(p, q, raw_p, raw_q, tokens, states)

    def out(self, prompts: Sequence[int], tokens: Tensor) -> Tensor:
        """The law [N,T,V] of what is emitted at drafted places."""
        p, q, evidence = self.laws(prompts, tokens)
        if not self.is_tokenwise or q is None:
            return smoothed(p, self.is_exact)
        return smoothed(self.rule.settled(evidence).out(p, q), self.is_exact)


@dataclass
class PrefixTest(TableTest):
    """First tokens and two-token prefixes against what the models' own laws make of them; every other token is pooled."""

    claimed: Claimed
    num_prompts: int
    horizon: int
    with_second: bool
    claim: str = "prefixes"
    likely: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        vocab, firsts, seconds, self.likely = self.claimed.source.vocab, [], [], []
        for prompt in range(self.num_prompts):
            first = self.claimed.out([prompt], torch.zeros(1, 1, dtype=torch.int64))[0, 0].double()
            firsts.append(Counts((first / first.sum()).numpy(), self.horizon))
            enough = (first * self.horizon >= 20).nonzero()[:, 0]
            likely = enough[first[enough].argsort(descending=True)][:WIDEST]
            self.likely.append(likely)
            if not self.with_second:
                continue
            texts = torch.stack((likely, torch.zeros_like(likely)), 1)
            parts = [self.claimed.out([prompt] * len(part), part)[:, 1].double() for part in texts.split(4)]
            second = torch.cat(parts) if parts else torch.zeros(0, vocab, dtype=torch.float64)
            law = (first[likely, None] * second).flatten()
            law = torch.cat((law, (1 - law.sum()).clamp_min(0)[None]))
            seconds.append(Counts((law / law.sum()).numpy(), self.horizon))
        self.parts = [firsts, *([seconds] if self.with_second else [])]

    def add(self, texts: Texts, rounds: Rounds | None) -> None:
        vocab = self.claimed.source.vocab
        for prompt in range(self.num_prompts):
            own = texts.tokens[texts.prompts == prompt]
            self.parts[0][prompt].add(own[:, 0].numpy())
            if self.with_second:
                likely = self.likely[prompt]
                place = torch.full((vocab,), -1).scatter_(0, likely, torch.arange(len(likely)))[own[:, 0]]
                cell = torch.where(place < 0, len(likely) * vocab, place * vocab + own[:, 1])
                self.parts[1][prompt].add(cell.numpy())

    def worst(self) -> Cell:
        vocab, named = self.claimed.source.vocab, []
        for prompt, counts in enumerate(self.parts[0]):
            named.append((counts, lambda cell, prompt=prompt: f"token {cell} first behind prompt {prompt}"))
        for prompt, counts in enumerate(self.parts[1] if self.with_second else []):
            likely = [*self.likely[prompt].tolist(), "any other"]
            named.append(
                (
                    counts,
                    lambda cell, n=prompt, ids=likely: f"{ids[cell // vocab]}, then {cell % vocab} behind prompt {n}",
                )
            )
        return worst_of(named)


@dataclass
class EmittedTest(PitTest):
    """Every emitted token under the law its origin claims: norm(q·a), the replacement, or the target's own for a bonus."""

    claimed: Claimed | None = None
    coins: PlaceTest | None = None  # fed from the same forwards

    def add(self, texts: Texts, rounds: Rounds | None) -> None:
        assert self.claimed is not None
        step = max(1, ELEMENTS // (self.claimed.source.vocab * texts.tokens.shape[1]))
        rejected = None if rounds is None else drafts_at(texts, rounds)
        for rows in torch.arange(len(texts.tokens)).split(step):
            self._add(texts, rows, None if rejected is None else rejected[rows])

    def _add(self, texts: Texts, rows: Tensor, drafted: Tensor | None) -> None:
        claimed = self.claimed
        assert claimed is not None
        tokens, origins = texts.tokens[rows], texts.origins[rows]
        p, q, evidence = claimed.laws(texts.prompts[rows].tolist(), tokens)
        other, is_token = p if q is None else q, texts.is_token[rows]
        if not claimed.is_tokenwise or q is None or drafted is None:
            self.add_tokens(smoothed(p, claimed.is_exact)[is_token], other[is_token], tokens[is_token])
            return
        rule = claimed.rule.settled(evidence)
        kept = q * rule.accept(p, q)
        replaced = rule.replace_rejected(p, q, drafted)
        laws = {0: kept / kept.sum(-1, keepdim=True).clamp_min(1e-300), 1: replaced, 2: p}
        for origin, law in laws.items():
            some = is_token & (origins == origin)
            self.add_tokens(smoothed(law, claimed.is_exact)[some], (p if origin == 0 else q)[some], tokens[some])
        if self.coins is not None:
            some = is_token & (origins != 2)
            self.coins.coins.add(
                (origins == 0)[some].numpy(), kept.sum(-1)[some].double().clamp(ROUGH, 1 - ROUGH).numpy()
            )


@dataclass
class JudgedTest(PitTest):
    """Rounds of a rule that judges whole blocks, given what was drafted: how many drafts stayed, and the token behind them."""

    source: Source | None = None
    sampling: Sampling = field(default_factory=Sampling)
    rule: Any = None
    prompts: Sequence[Sequence[int]] = ()
    is_exact: bool = True
    coins: PlaceTest | None = None

    def add(self, texts: Texts, rounds: Rounds | None) -> None:
        assert rounds is not None, "an engine that records its rounds"
        assert self.source is not None, "the models' own laws"
        for part in rounds.parts(self.source.vocab):
            for prompt, begin in set(zip(part.prompts.tolist(), part.begin.tolist(), strict=True)):
                if begin == 0 or not hasattr(self.rule, "outcomes_from"):  # later, its state is not known
                    own = part.rows(((part.prompts == prompt) & (part.begin == begin)).nonzero()[:, 0])
                    self._add(texts, own, prompt, begin, self.source)

    def _add(self, texts: Texts, rounds: Rounds, prompt: int, begin: int, source: Source) -> None:
        width = rounds.drafts.shape[1]
        whole = rounds.whole()[:, : begin + width]
        text = torch.cat((whole, torch.zeros_like(whole[:, :1])), 1)
        numbers, ids = [prompt] * len(text), self.prompts[prompt]
        raw_p = source.logits("target", numbers, text)[:, begin:]
        raw_q = source.logits("draft", numbers, text)[:, begin : begin + width]
        behind = hidden = None
        if {"target_hidden", "draft_hidden"} & needs_of(self.rule):
            behind = source.states("target", numbers, text)[:, begin:]
            hidden = source.states("draft", numbers, text)[:, begin : begin + width]
        p, q = self.sampling.law(raw_p), self.sampling.law(raw_q)
        draft = DraftBlock(rounds.drafts, q, rounds.drafted, raw_q, hidden)
        state = None
        if hasattr(self.rule, "outcomes_from"):
            state = self.rule.init_state([torch.tensor(list(ids))], "cpu").expand(len(text), -1)
        evidence = Evidence(p, draft, False, raw_p, behind)
        claimed = outcomes(self.rule, evidence, ids, whole[:, :begin], state)
        rows, kept = torch.arange(len(text)), rounds.accepted
        if self.coins is not None:
            law = claimed.accepted.double().clamp_min(ROUGH if not self.is_exact else 0)
            self.coins.coins.add_counts(kept.numpy(), (law / law.sum(1, keepdim=True)).numpy())
        some = rounds.emitted > kept
        token = texts.tokens[rounds.text, (begin + kept).clamp_max(texts.tokens.shape[1] - 1)]
        law = smoothed(claimed.following[rows, kept].double(), self.is_exact)
        self.add_tokens(law[some], p[rows, kept][some], token[some])


@dataclass
class PlaceTest:
    """Whether the draft at each examined place stayed, against its exact probability Σ q·a there, or how many of a block, against
    their law: a martingale.
    """

    claim: str = "acceptance"
    coins: Coins = field(default_factory=Coins)

    def add(self, texts: Texts, rounds: Rounds | None) -> None:
        """Fed by the test that has the laws."""

    def log_e(self) -> float:
        return self.coins.log_e()

    @property
    def samples(self) -> int:
        return self.coins.size

    def effect(self, log_wanted: float) -> Effect:
        return Effect("acceptance", *self.coins.effect(), self.coins.least(log_wanted))

    def worst(self) -> Cell:
        return Cell("drafts that stayed", self.coins.total, self.coins.expected)


def drafts_at(texts: Texts, rounds: Rounds) -> Tensor:
    """[N,T]: the draft that was judged at each place of a text; the token itself where none was."""
    out = texts.tokens.clone()
    places = rounds.begin[:, None] + torch.arange(rounds.drafts.shape[1])
    some = rounds.is_drafted & (places < out.shape[1])
    out[rounds.text[:, None].expand_as(places)[some], places[some]] = rounds.drafts[some]
    return out
