"""The exact distribution of emitted texts, by dynamic programming over rounds: drafts, how many are kept, the next token.

A text of d tokens is numbered as digits in base V. For every text before a round, and every block that can be drafted there,
`outcomes` gives what the rule does; from the last round backwards this gives the law of all that follows, [V^d, V^(N−d)].
Where a rule carries a state that the text does not determine, each reachable state has its own laws.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sdbench.audit.outcomes import UnknownLawError, outcomes
from sdbench.audit.source import Sampling, Tables, evidence_of
from sdbench.audit.texts import digits_of, number_of
from sdbench.lm.cache import RaggedCache
from sdbench.lm.model import LM
from sdbench.probs import dense
from sdbench.types import DRAFTER_NEEDS, DraftBlock, needs_of

MAX_TEXTS = 1 << 17  # the most rows of blocks that are judged at a time


class HiddenRandomnessError(UnknownLawError):
    """A drafter draws its tokens at random while its q says that it chose them."""


@dataclass(frozen=True, slots=True)
class DraftedBlocks:
    """R blocks that a drafter may propose, each with its probability."""

    context: Tensor  # [R] the text before it
    x: Tensor  # [R,K] its drafts
    chance: Tensor  # [R]
    q: Tensor  # [R,K,V]
    lengths: Tensor  # [R]
    logits: Tensor | None  # [R,K,V] un-tempered, those behind q; None where the rule does not read them
    hidden: Tensor | None  # [R,K,d] likewise

    @property
    def draft(self) -> DraftBlock:
        return DraftBlock(self.x, self.q, self.lengths, self.logits, self.hidden)


@dataclass(frozen=True, slots=True)
class RoundLaw:
    """The law of what one round emits after each text of d tokens."""

    ends: list[Tensor]  # [i] [V^d,V^(i+1)]: the round keeps i drafts and emits these i + 1 tokens
    carried: list[tuple[int, int, Tensor]]  # (i, number of the next state, its share of ends[i])


@dataclass
class TextLaws:
    """The law of texts of `budget` tokens, in rounds of at most `num_draft` drafts, for one rule, drafter and pair."""

    tables: Tables
    sampling: Sampling
    rule: Any  # None: the target alone
    drafter: Any  # None: the pair's own draft model
    num_draft: int
    budget: int

    def __post_init__(self) -> None:
        if self.tables.vocab**self.budget > MAX_TEXTS:
            raise ValueError(f"{self.tables.vocab}^{self.budget} texts are too many to enumerate")
        self._texts: dict[int, Tensor] = {}
        self._rounds: dict[tuple[int, int, int], RoundLaw] = {}
        self._states: dict[tuple[int, int], dict[tuple[float, ...], int]] = {}

    @property
    def carries_state(self) -> bool:
        """Return whether a round depends on more than the text before it."""
        return hasattr(self.rule, "outcomes_from")

    def texts(self, prompt: int) -> Tensor:
        """Return the law [V^N] of all texts of `budget` tokens."""
        if prompt in self._texts:
            return self._texts[prompt]
        vocab, budget = self.tables.vocab, self.budget
        # First to last round, so that all states are known before any is looked up.
        rounds = [
            [self.round(prompt, depth, n) for n in range(len(self.states(prompt, depth)))] for depth in range(budget)
        ]
        end = torch.ones(vocab**budget, 1, dtype=torch.float64)
        laws = {budget: [end] * len(self.states(prompt, budget))}  # [depth][state]: the law of what follows
        for depth in reversed(range(budget)):
            laws[depth] = []
            for begun in rounds[depth]:
                law = torch.zeros(vocab**depth, vocab ** (budget - depth), dtype=torch.float64)
                for kept, state, share in begun.carried:
                    rest = laws[depth + kept + 1][state].reshape(*share.shape, -1)
                    law += (share[:, :, None] * rest).reshape(vocab**depth, -1)
                laws[depth].append(law)
        return self._texts.setdefault(prompt, laws[0][0][0])

    def states(self, prompt: int, depth: int) -> dict[tuple[float, ...], int]:
        """Return the states in which a round may begin after `depth` tokens, numbered as earlier rounds reach them."""
        if (prompt, depth) not in self._states:
            first: tuple[float, ...] = ()
            if self.carries_state:
                ids = torch.tensor(list(self.tables.prompts[prompt]))
                first = tuple(self.rule.init_state([ids], "cpu")[0].tolist())
            self._states[prompt, depth] = {first: 0} if depth == 0 or not self.carries_state else {}
        return self._states[prompt, depth]

    def round(self, prompt: int, depth: int, state: int = 0) -> RoundLaw:
        """Return what a round emits after `depth` tokens, in the state with this number."""
        key = prompt, depth, state
        return self._rounds[key] if key in self._rounds else self._rounds.setdefault(key, self._compute_round(*key))

    def _compute_round(self, prompt: int, depth: int, state: int) -> RoundLaw:
        """Add up what every block that may be drafted contributes.

        With V = 2, depth 0 and one draft there are two blocks, x = 0 and x = 1, of chance q(0) and q(1). A rule that keeps x with
        probability a(x), replaces it from r(x), and draws the bonus token from p(· | x) gives

            ends[0][0, y]      = q(0)·(1 − a(0))·r(0)(y) + q(1)·(1 − a(1))·r(1)(y)     one token, y
            ends[1][0, 2x + y] = q(x)·a(x)·p(y | x)                                    two tokens, x and y
        """
        vocab = self.tables.vocab
        width = 0 if self.rule is None else min(self.num_draft, self.budget - depth - 1)
        blocks = (self.blocks if width else self._blocks_of_draft_model)(prompt, depth, width)
        if not blocks.x.shape[1] and not self.carries_state:
            law = self.sampling.law(self.tables.at("target", prompt, depth).logits)
            return RoundLaw([law], [(0, 0, law)])
        before = None
        if self.carries_state:
            values = list(self.states(prompt, depth))[state]
            before = torch.tensor(values, dtype=torch.float64).expand(len(blocks.context), -1)
        texts = digits_of(blocks.context, vocab, depth)
        evidence = evidence_of(self.tables, self.sampling, prompt, texts, blocks.draft)
        claimed = outcomes(self.rule, evidence, self.tables.prompts[prompt], texts, before)
        ends, carried = [], []
        for kept in range(blocks.x.shape[1] + 1):
            chance = (blocks.chance * claimed.accepted[:, kept])[:, None] * claimed.following[:, kept]  # [R,V]
            prefix = blocks.context * vocab**kept + number_of(blocks.x[:, :kept], vocab)  # [R] text and kept drafts
            next_state = self._next_states(prompt, depth + kept + 1, chance, claimed.state, kept)
            ends.append(torch.zeros(vocab**depth, vocab ** (kept + 1), dtype=torch.float64))
            for number in next_state[chance > 0].unique().tolist():
                share = torch.zeros(vocab ** (depth + kept), vocab, dtype=torch.float64)
                share.index_add_(0, prefix, torch.where(next_state == number, chance, 0))
                carried.append((kept, number, share.reshape(ends[-1].shape)))
                ends[-1] += carried[-1][-1]
        return RoundLaw(ends, carried)

    def _next_states(self, prompt: int, depth: int, chance: Tensor, state: Tensor | None, kept: int) -> Tensor:
        """Return the number [R,V] of the state after each possible outcome."""
        numbers, is_possible = torch.zeros(chance.shape, dtype=torch.int64), chance > 0
        if state is not None and bool(is_possible.any()):
            distinct, index = state[:, kept].double()[is_possible].unique(dim=0, return_inverse=True)
            known = self.states(prompt, depth)
            numbers[is_possible] = torch.tensor([known.setdefault(tuple(s), len(known)) for s in distinct.tolist()])[
                index
            ]
        return numbers

    def blocks(self, prompt: int, depth: int, width: int) -> DraftedBlocks:
        if self.drafter is None or keeps_draft_law(self.drafter):
            return self._blocks_of_draft_model(prompt, depth, width)
        if reads_history(self.drafter):
            raise UnknownLawError("what it drafts depends on earlier rounds, which a text does not show")
        needs = needs_at(self.rule, self.sampling)
        cache, key = self.tables.cache, (id(self.drafter), prompt, depth, width, needs)
        if key not in cache:
            try:
                cache[key] = query_drafter(self.drafter, self.tables, prompt, depth, width, needs)
            except UnknownLawError:
                if not claims_draft_law(self.drafter):
                    raise
                cache[key] = self._blocks_of_draft_model(prompt, depth, width)
        return cache[key]

    def _blocks_of_draft_model(self, prompt: int, depth: int, width: int) -> DraftedBlocks:
        """Return every block, each token from the draft model's own distribution."""
        vocab = self.tables.vocab
        every = torch.arange(vocab ** (depth + width))
        texts = digits_of(every, vocab, depth + width)
        chance, laws, logits, states = torch.ones(len(every), dtype=torch.float64), [], [], []
        for slot in range(width):
            prefix, table = every // vocab ** (width - slot), self.tables.at("draft", prompt, depth + slot)
            laws.append(self.sampling.law(table.logits)[prefix])
            logits.append(table.logits[prefix])
            states.append(table.states[prefix])
            chance *= laws[-1].gather(1, texts[:, depth + slot, None])[:, 0]
        rows = (chance > 0).nonzero()[:, 0]
        drafts = every[rows] // vocab**width, texts[rows, depth:], chance[rows]
        lengths = torch.full((len(rows),), width)
        if not width:
            return DraftedBlocks(*drafts, chance.new_zeros(len(rows), 0, vocab), lengths, None, None)
        q, raw, hidden = (torch.stack(parts, 1)[rows] for parts in (laws, logits, states))
        return DraftedBlocks(*drafts, q, lengths, raw, hidden)


def claims_draft_law(drafter: Any) -> bool:
    """Return whether a drafter declares that it draws each token from the draft model's distribution, and that this is its q."""
    return bool(getattr(drafter, "draws_draft_law", False))


def keeps_draft_law(drafter: Any) -> bool:
    """Return whether the class that defines `draft` sets `draws_draft_law`; a subclass that overrides it is queried for blocks."""
    owner = next((kind for kind in type(drafter).__mro__ if "draft" in vars(kind)), object)
    return bool(vars(owner).get("draws_draft_law", False))


def reads_history(drafter: Any) -> bool:
    """Return whether a drafter declares that it adapts to which of its earlier drafts were kept."""
    return bool(getattr(drafter, "reads_history", False))


def needs_at(rule: Any, sampling: Sampling) -> frozenset[str]:
    """Return what the engine asks of a drafter for this rule."""
    needs = needs_of(rule)
    return (needs | {"raw"} if sampling.is_greedy and "raw_if_greedy" in needs else needs) - {"raw_if_greedy"}


def query_drafter(
    drafter: Any, tables: Tables, prompt: int, depth: int, width: int, needs: frozenset[str] = frozenset()
) -> DraftedBlocks:
    """Return the blocks of a drafter that chooses its tokens, or draws token i by the inverse CDF of its law at uᵢ.

    Every text is a new prompt to the drafter, so what it remembers of a text must depend on that text only.
    """
    vocab, begin = tables.vocab, torch.tensor(list(tables.prompts[prompt]))
    context = torch.arange(vocab**depth)
    chance = torch.ones(len(context), dtype=torch.float64)
    u = torch.full((len(context), width), 0.5, dtype=torch.float64)
    lm = LM(tables.models["target"], capture="off")
    block = draft_afresh(drafter, lm, begin, digits_of(context, vocab, depth), u, needs)
    if not block.q.is_floating_point():
        other = draft_afresh(drafter, lm, begin, digits_of(context, vocab, depth), u / 8, needs)
        refuse_hidden_randomness(drafter, block, other)
    slot = 0
    while slot < block.tokens.shape[1] and block.q.is_floating_point():  # blocks of other rows may be longer
        # A slot that is not offered may hold any tokens: it has no law, so a single row represents them.
        claimed = block.q[:, slot].double()
        first = torch.zeros_like(claimed).index_fill_(1, torch.tensor(0), 1)
        law = torch.where(((claimed.sum(-1) - 1).abs() < 1e-6)[:, None], claimed, first)
        row, token = (law > 0).nonzero().unbind(1)
        chance, context, u = chance[row] * law[row, token], context[row], u[row]
        u[:, slot] = law.cumsum(-1)[row, token] - law[row, token] / 2
        block = draft_afresh(drafter, lm, begin, digits_of(context, vocab, depth), u, needs)
        if bool(((slot < block.lengths) & (block.tokens[:, slot] != token)).any()):
            raise UnknownLawError(f"{type(drafter).__name__} does not draw by the inverse CDF of its q")
        slot += 1
    q, logits = dense(block.q, vocab, torch.float64).double(), block.logits
    if logits is None and not block.q.is_floating_point():
        logits = q.log()  # of ids: rules that read logits get those of the one-hot distributions
    return DraftedBlocks(context, block.tokens.clamp(0, vocab - 1), chance, q, block.lengths, logits, block.hidden)


def refuse_hidden_randomness(drafter: Any, block: DraftBlock, other: DraftBlock) -> None:
    """Raise if a drafter whose q are ids, which claim that nothing is drawn, gives another block for other uniforms."""
    slots = torch.arange(block.tokens.shape[1])
    is_same = other.tokens.shape == block.tokens.shape and bool((other.lengths == block.lengths).all())
    if not is_same or bool(((other.tokens != block.tokens) & (slots < block.lengths[:, None])).any()):
        name = type(drafter).__name__
        raise HiddenRandomnessError(f"{name} gives ids as q, as if it chose its drafts, but draws them at random")


def draft_afresh(
    drafter: Any, target: LM, begin: Tensor, texts: Tensor, u: Tensor, needs: frozenset[str] = frozenset()
) -> DraftBlock:
    """Return drafts after prompt + texts [R,d] with uniforms u [R,K]; every text is new to the drafter."""
    whole = torch.cat((begin.expand(len(texts), -1), texts), 1)
    (rows, length), width = whole.shape, u.shape[1]
    context: Any = SimpleNamespace(tokens=whole, lengths=torch.full((rows,), length), longest=length)
    with torch.inference_mode():
        begin_rows(drafter, target, whole, length + width + 1)
        try:
            block = drafter.draft(context, width, torch.full((rows,), width), u, needs)
        finally:
            drafter.close()
    parts = {name: getattr(block, name) for name in ("tokens", "q", "lengths", "logits", "hidden", "sure")}
    return DraftBlock(**{name: None if x is None else x.clone() for name, x in parts.items()})  # type: ignore[arg-type]


@torch.inference_mode()
def begin_rows(drafter: Any, target: LM, texts: Tensor, capacity: int) -> None:
    """Begin a row for each text [R,L] in a cache of the target's, and let the drafter begin it."""
    cache = RaggedCache(target.config.num_hidden_layers, len(texts), capacity)
    prefixes = target.prefill_all(list(texts[:, :-1]), needs=needs_of(drafter, DRAFTER_NEEDS))
    drafter.open(len(texts), capacity, cache)
    for row, (text, prefix) in enumerate(zip(texts, prefixes, strict=True)):
        cache.write(row, prefix)
        drafter.admit(row, drafter.prefill(text, prefix))
