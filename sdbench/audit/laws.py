"""The exact law of emitted texts: every round with its drafts, how many stayed and what followed, by dynamic programming.

Texts of d tokens are numbered as digits in base V. Of every text that a round can begin with, and every block that can be drafted
there, `outcomes` says what becomes of it; from the last round backwards that gives the law of all that follows, [V^d, V^(N−d)].
Where a rule carries a state that no text tells, each state that can be reached has laws of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sdbench.audit.outcomes import UnknownLawError, outcomes
from sdbench.audit.source import Sampling, Tables
from sdbench.draft import ModelDrafter
from sdbench.probs import dense
from sdbench.types import DraftBlock, Evidence

LARGEST = 1 << 17  # rows of blocks that are judged at a time, at most


class TooLargeError(ValueError):
    """A vocabulary or a length whose texts are too many to enumerate."""


def digits(number: Tensor, base: int, width: int) -> Tensor:
    """[N] -> [N,width]."""
    places = [number // base ** (width - 1 - place) % base for place in range(width)]
    return torch.stack(places, 1) if width else number.new_zeros(len(number), 0)


def number_of(texts: Tensor, base: int) -> Tensor:
    """[N,width] -> [N]."""
    number = torch.zeros(len(texts), dtype=torch.int64)
    for token in texts.unbind(1):
        number = number * base + token
    return number


class HiddenCoinsError(UnknownLawError):
    """A drafter that draws and says that it chose: its q is wrong."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks that a drafter may propose: behind text `context` [R], the drafts x [R,K], with which chance [R]."""

    context: Tensor
    x: Tensor  # [R,K]
    chance: Tensor  # [R]
    q: Tensor  # [R,K,V]
    lengths: Tensor  # [R]


@dataclass(frozen=True, slots=True)
class Round:
    """What one round emits behind each text of d tokens: `ends[i]` [V^d, V^(i+1)] is the law of what is said with i drafts kept."""

    ends: list[Tensor]
    offered: Tensor  # [V^d] expected number of drafts
    carried: list[tuple[int, int, Tensor]]  # (i, number of the state that is carried on, its share of `ends[i]`)


@dataclass(frozen=True, slots=True)
class States:
    """The states that texts of one length can be in, numbered as they are found."""

    seen: dict[tuple[float, ...], int] = field(default_factory=dict)

    def numbers(self, states: Tensor) -> Tensor:
        """[R,S] -> [R]."""
        unlike, place = states.unique(dim=0, return_inverse=True)
        known = [self.seen.setdefault(tuple(one), len(self.seen)) for one in unlike.tolist()]
        return torch.tensor(known, dtype=torch.int64)[place]


@dataclass
class Laws:
    """Of one rule, drafter, pair and prompt. `budget` tokens are emitted, in rounds of at most `num_draft` drafts."""

    tables: Tables
    sampling: Sampling
    rule: Any  # None: the target alone
    drafter: Any  # None: the pair's own draft model
    num_draft: int
    budget: int

    def __post_init__(self) -> None:
        if self.tables.vocab**self.budget > LARGEST:
            raise TooLargeError(f"{self.tables.vocab}^{self.budget} texts are too many to enumerate")
        self._texts: dict[int, Tensor] = {}
        self._rounds: dict[tuple[int, int, int], Round] = {}
        self._states: dict[tuple[int, int], States] = {}

    @property
    def carries_state(self) -> bool:
        """Whether a round depends on more than the text before it."""
        return hasattr(self.rule, "outcomes_from")

    def texts(self, prompt: int) -> Tensor:
        """[V^N]: the law of all texts of `budget` tokens."""
        if prompt not in self._texts:
            self._texts[prompt] = self._all(prompt)
        return self._texts[prompt]

    def _all(self, prompt: int) -> Tensor:
        vocab, budget = self.tables.vocab, self.budget
        # Rounds from the first to the last, so that all states are found before any is looked up.
        begun = [
            [self.round(prompt, depth, number) for number in range(self._count(prompt, depth))]
            for depth in range(budget)
        ]
        end = torch.ones(vocab**budget, 1, dtype=torch.float64)
        law = {budget: [end] * self._count(prompt, budget)}
        for depth in reversed(range(budget)):
            law[depth] = []
            for one in begun[depth]:
                here = torch.zeros(vocab**depth, vocab ** (budget - depth), dtype=torch.float64)
                for kept, number, share in one.carried:
                    rest = law[depth + kept + 1][number].reshape(*share.shape, -1)
                    here += (share[:, :, None] * rest).reshape(vocab**depth, -1)
                law[depth].append(here)
        return law[0][0][0]

    def states(self, prompt: int, depth: int) -> States:
        """Those in which a round may begin with `depth` tokens, as far as rounds before it have been worked out."""
        if (prompt, depth) not in self._states:
            self._states[prompt, depth] = States({self._first(prompt): 0} if depth == 0 else {})
        return self._states[prompt, depth]

    def _count(self, prompt: int, depth: int) -> int:
        return len(self.states(prompt, depth).seen) if self.carries_state else 1

    def _first(self, prompt: int) -> tuple[float, ...]:
        if not self.carries_state:
            return ()
        return tuple(self.rule.init_state([torch.tensor(list(self.tables.prompts[prompt]))], "cpu")[0].tolist())

    def round(self, prompt: int, depth: int, state: int = 0) -> Round:
        """What a round emits that begins with `depth` tokens behind this prompt, in the state of this number."""
        if (prompt, depth, state) not in self._rounds:
            self._rounds[prompt, depth, state] = self._round(prompt, depth, state)
        return self._rounds[prompt, depth, state]

    def _round(self, prompt: int, depth: int, state: int) -> Round:
        vocab = self.tables.vocab
        width = 0 if self.rule is None else min(self.num_draft, self.budget - depth - 1)
        blocks = self.blocks(prompt, depth, width) if width else self._nothing(depth)
        if not blocks.x.shape[1] and not self.carries_state:
            law = self.sampling.law(self.tables.table("target", prompt, depth))
            return Round([law], torch.zeros(vocab**depth), [(0, 0, law)])
        evidence, before = self.evidence(prompt, depth, blocks), None
        if self.carries_state:
            values = list(self.states(prompt, depth).seen)[state]
            before = torch.tensor(values, dtype=torch.float64).expand(len(blocks.context), -1)
        texts = digits(blocks.context, vocab, depth)
        claimed = outcomes(self.rule, evidence, self.tables.prompts[prompt], texts, before)
        ends, carried = [], []
        for kept in range(blocks.x.shape[1] + 1):
            weight = (blocks.chance * claimed.accepted[:, kept])[:, None] * claimed.following[:, kept]
            row = blocks.context * vocab**kept + number_of(blocks.x[:, :kept], vocab)
            number = self._numbers(prompt, depth + kept + 1, weight, claimed.state, kept)
            ends.append(torch.zeros(vocab**depth, vocab ** (kept + 1), dtype=torch.float64))
            for one in number[weight > 0].unique().tolist():
                share = torch.zeros(vocab ** (depth + kept), vocab, dtype=torch.float64)
                share.index_add_(0, row, torch.where(number == one, weight, 0))
                carried.append((kept, one, share.reshape(ends[-1].shape)))
                ends[-1] += carried[-1][-1]
        offered = torch.zeros(vocab**depth, dtype=torch.float64)
        offered.index_add_(0, blocks.context, blocks.chance * blocks.lengths)
        return Round(ends, offered, carried)

    def _numbers(self, prompt: int, depth: int, weight: Tensor, state: Tensor | None, kept: int) -> Tensor:
        """[R,V]: the number of the state behind each outcome that can be."""
        number, some = torch.zeros(weight.shape, dtype=torch.int64), weight > 0
        if state is not None and bool(some.any()):
            number[some] = self.states(prompt, depth).numbers(state[:, kept].double()[some])
        return number

    def _nothing(self, depth: int) -> Blocks:
        """No draft behind any text."""
        count, vocab = self.tables.vocab**depth, self.tables.vocab
        x, one = torch.zeros(count, 0, dtype=torch.int64), torch.ones(count, dtype=torch.float64)
        return Blocks(
            torch.arange(count), x, one, one.new_zeros(count, 0, vocab), torch.zeros(count, dtype=torch.int64)
        )

    def evidence(self, prompt: int, depth: int, blocks: Blocks) -> Evidence:
        """What a rule would be shown at these blocks."""
        vocab, width = self.tables.vocab, blocks.x.shape[1]
        texts = torch.cat((digits(blocks.context, vocab, depth), blocks.x), 1)
        rows = [number_of(texts[:, : depth + slot], vocab) for slot in range(width + 1)]
        raw_p = torch.stack([self.tables.table("target", prompt, depth + s)[rows[s]] for s in range(width + 1)], 1)
        raw_q = None
        if "draft" in self.tables.models and width:
            raw_q = torch.stack([self.tables.table("draft", prompt, depth + s)[rows[s]] for s in range(width)], 1)
        p, q = self.sampling.law(raw_p), blocks.q
        if self.sampling.is_greedy:
            p, q = p.argmax(-1), q.argmax(-1)
        states = torch.stack([self.tables.state("target", prompt, depth + s)[rows[s]] for s in range(width + 1)], 1)
        hidden = None
        if raw_q is not None:
            hidden = torch.stack([self.tables.state("draft", prompt, depth + s)[rows[s]] for s in range(width)], 1)
        draft = DraftBlock(blocks.x, q, blocks.lengths, raw_q, hidden)
        return Evidence(p, draft, self.sampling.is_greedy, raw_p, states)

    def blocks(self, prompt: int, depth: int, width: int) -> Blocks:
        if self.drafter is None or type(self.drafter).draft is ModelDrafter.draft:
            return self._drawn(prompt, depth, width)
        place = id(self.drafter), prompt, depth, width
        if place not in self.tables.blocks:
            try:
                self.tables.blocks[place] = asked(self.drafter, self.tables, prompt, depth, width)
            except UnknownLawError:
                if not isinstance(self.drafter, ModelDrafter):
                    raise
                self.tables.blocks[place] = self._drawn(prompt, depth, width)  # what is built upon it claims its law
        return self.tables.blocks[place]

    def _drawn(self, prompt: int, depth: int, width: int) -> Blocks:
        """Every block, token by token from the draft's own law."""
        vocab = self.tables.vocab
        every = torch.arange(vocab ** (depth + width))
        texts = digits(every, vocab, depth + width)
        chance, laws = torch.ones(len(every), dtype=torch.float64), []
        for slot in range(width):
            row = every // vocab ** (width - slot)
            laws.append(self.sampling.law(self.tables.table("draft", prompt, depth + slot))[row])
            chance *= laws[-1].gather(1, texts[:, depth + slot, None])[:, 0]
        some = (chance > 0).nonzero()[:, 0]
        lengths = torch.full((len(some),), width)
        return Blocks(
            every[some] // vocab**width, texts[some, depth:], chance[some], torch.stack(laws, 1)[some], lengths
        )


@dataclass
class Asking:
    """What a drafter sees of texts that it has never seen before."""

    tokens: Tensor
    lengths: Tensor

    @property
    def longest(self) -> int:
        return int(self.lengths.max())


def asked(drafter: Any, tables: Tables, prompt: int, depth: int, width: int) -> Blocks:
    """The blocks of any drafter that draws token i by the inverse CDF of its law at uᵢ, or chooses them: it is asked itself.

    Every text is a prompt to it, so what it remembers of a text must be a function of that text.
    """
    vocab, begin = tables.vocab, torch.tensor(list(tables.prompts[prompt]))
    context = torch.arange(vocab**depth)
    chance = torch.ones(len(context), dtype=torch.float64)
    u = torch.full((len(context), width), 0.5, dtype=torch.float64)
    block = _ask(drafter, begin, digits(context, vocab, depth), u)
    if not block.q.is_floating_point():
        refuse_hidden_coins(drafter, block, _ask(drafter, begin, digits(context, vocab, depth), u / 8))
    for slot in range(block.tokens.shape[1] if block.q.is_floating_point() else 0):
        # A slot that is not offered may hold anything: without a law, one row stands for all of it.
        claimed = block.q[:, slot].double()
        first = torch.zeros_like(claimed).index_fill_(1, torch.tensor(0), 1)
        law = torch.where(((claimed.sum(-1) - 1).abs() < 1e-6)[:, None], claimed, first)
        row, token = (law > 0).nonzero().unbind(1)
        chance, context, u = chance[row] * law[row, token], context[row], u[row]
        u[:, slot] = law.cumsum(-1)[row, token] - law[row, token] / 2
        block = _ask(drafter, begin, digits(context, vocab, depth), u)
        is_other = (slot < block.lengths) & (block.tokens[:, slot] != token)
        if bool(is_other.any()):
            raise UnknownLawError(f"{type(drafter).__name__} does not draw by the inverse of the law that it says")
    tokens, q = block.tokens.clamp(0, vocab - 1), block.q
    return Blocks(context, tokens, chance, dense(q, vocab, torch.float64).double(), block.lengths)


def refuse_hidden_coins(drafter: Any, block: DraftBlock, other: DraftBlock) -> None:
    """Ids as q say that nothing was drawn: then other coins give the same block."""
    slots = torch.arange(block.tokens.shape[1])
    is_same = other.tokens.shape == block.tokens.shape and bool((other.lengths == block.lengths).all())
    if is_same:
        is_same = not bool(((other.tokens != block.tokens) & (slots < block.lengths[:, None])).any())
    if not is_same:
        raise HiddenCoinsError(f"{type(drafter).__name__} says by ids that it chose its drafts, and draws them")


def _ask(drafter: Any, begin: Tensor, texts: Tensor, u: Tensor) -> DraftBlock:
    """What the drafter proposes behind these texts, all of them new to it."""
    whole = torch.cat((begin.expand(len(texts), -1), texts), 1)
    lengths = torch.full((len(whole),), u.shape[1])
    with torch.inference_mode():
        drafter.open(len(whole), whole.shape[1] + u.shape[1] + 1, None)
        try:
            for row, text in enumerate(whole):
                drafter.admit(row, drafter.prefill(text, None))
            asking = Asking(whole, torch.full_like(lengths, whole.shape[1]))
            block = drafter.draft(asking, u.shape[1], lengths, u, frozenset())
        finally:
            drafter.close()
    return DraftBlock(block.tokens.clone(), block.q.clone(), block.lengths.clone())
