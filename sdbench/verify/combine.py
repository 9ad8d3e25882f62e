"""Rules built from another rule: `Coin` accepts more with the same output law, `Sure` keeps what the drafter is sure of, and
`Within` applies a rule inside spans of the text only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.types import Evidence, Limits, Measures, Verdict, needs_of
from sdbench.verify.exact import Exact
from sdbench.verify.joint import unknown_measures
from sdbench.verify.rule import Rule
from sdbench.verify.tokenwise import Tokenwise, Towards, choose_rows, draw_bonus, keep_until_first_rejection


class Outer(Rule):
    """A rule built from another one, `rule`, which is token-wise and has no state."""

    rule: Any

    def __post_init__(self) -> None:
        outer, inner = type(self).__name__, type(self.rule).__name__
        if not isinstance(self.rule, Tokenwise):
            raise ValueError(f"rule of {outer} must judge one token at a time, got {inner}")
        if type(self.rule).init_state is not Tokenwise.init_state:
            raise ValueError(f"rule of {outer} must carry no state, and {inner} does")

    @property
    def limits(self) -> Limits:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.limits

    @property
    def needs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return needs_of(self.rule)

    @property
    def draws_if_greedy(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.draws_if_greedy

    def is_lossless(self) -> Tensor:
        return self.rule.is_lossless()


@dataclass(frozen=True, slots=True)
class Coin(Outer, Towards):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Samples towards the law of a token-wise rule with the highest possible acceptance: a = min(1, out/q), r = norm((out −
    q)+).

    It emits the same law as the rule and never accepts less, since q·a ≤ min(q, out). Lenience gains nothing; rules with a
    threshold gain, and become cascades (arXiv:2405.19261, section 4.3). Needs what the rule needs, and is exact where the rule
    is. Greedy: the rule's own form, if it has one.
    """

    version: ClassVar[str] = "1"
    is_ordered: ClassVar[bool] = False

    rule: Any

    def settle(self, evidence: Evidence) -> Any:
        return Coin(self.rule.settle(evidence))

    def law(self, p: Tensor, q: Tensor) -> Tensor:
        return self.rule.out(p, q)

    def keeps(self, evidence: Evidence, u: Tensor) -> Tensor:
        decided = self._is_decided(evidence)
        return self.rule.keeps(evidence, u) if decided else Towards.keeps(self, evidence, u)

    def correction(self, evidence: Evidence, slot: Tensor) -> Tensor:
        decided = self._is_decided(evidence)
        return self.rule.correction(evidence, slot) if decided else Towards.correction(self, evidence, slot)

    def measure(self, evidence: Evidence) -> Measures:
        decided = self._is_decided(evidence)
        return self.rule.measure(evidence) if decided else Towards.measure(self, evidence)

    def _is_decided(self, evidence: Evidence) -> bool:
        """Return whether the rule decides without uniforms, so that a coin gains nothing."""
        return evidence.is_greedy and not self.rule.draws_if_greedy


@dataclass(frozen=True, slots=True)
class Sure(Outer, Tokenwise):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Keeps the tokens that the drafter marks as sure (`DraftBlock.sure`) and judges all others by another rule.

    a = 1 for marked tokens; elsewhere a and r are the rule's. The emitted distribution depends on the drafter, so none is
    claimed. If no token is marked, as with drafter=tiers and drafter.high=1, it behaves as the rule. Greedy: the rule's own
    form for unmarked tokens.
    """

    version: ClassVar[str] = "2"
    is_ordered: ClassVar[bool] = False

    rule: Any
    sure: Tensor | None = None  # [B,K,V] bool, once settled

    def __post_init__(self) -> None:
        Outer.__post_init__(self)
        if not isinstance(self.sure, Tensor | None):
            raise ValueError(f"sure of Sure must be None or a tensor of the drafter's block, got {self.sure!r}")

    @property
    def limits(self) -> Limits:  # pyright: ignore[reportIncompatibleVariableOverride]
        return replace(self.rule.limits, sure=True)

    @property
    def needs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return needs_of(self.rule) | {"sure"}

    @property
    def knows_rejected(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.knows_rejected

    def is_lossless(self) -> Tensor:
        return self.rule.is_lossless() & False

    def settle(self, evidence: Evidence) -> "Sure":
        return Sure(self.rule.settle(evidence), evidence.draft.sure)

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        a = self.rule.accept(p, q)
        return a if self.sure is None else torch.where(self.sure, 1, a)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return self.rule.replace(p, q)

    def replace_rejected(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return self.rule.replace_rejected(p, q, x)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        return replace(Tokenwise.__call__(self, evidence, u, state), is_spared=evidence.draft.is_sure)

    def keeps(self, evidence: Evidence, u: Tensor) -> Tensor:
        return self.rule.keeps(evidence, u) | evidence.draft.is_sure

    def correction(self, evidence: Evidence, slot: Tensor) -> Tensor:
        return self.rule.correction(evidence, slot)

    def measure(self, evidence: Evidence) -> Measures:
        if not evidence.is_greedy:
            return Tokenwise.measure(self, evidence)
        measures, draft = self.rule.measure(evidence), evidence.draft
        is_known = draft.is_sure & ~measures.bias.isnan()
        wrong = (draft.tokens != evidence.p[:, :-1]).to(measures.bias)
        expected = measures.expected.masked_fill(is_known, 1)
        return replace(measures, expected=expected, bias=torch.where(is_known, wrong, measures.bias))


@dataclass(frozen=True, slots=True)
class Within(Outer):
    """A token-wise rule inside a span of the text, the lossless rule outside it, as for the reasoning part of an answer.

    A span begins after the token `begin` and ends with the token `end`, which is still judged leniently; it may begin in the
    prompt. TensorRT-LLM's relaxed acceptance is `Within(TopKRelaxed(…), begin, end)` at temperature 0. The markers are ids, or
    texts that are one token of the target's tokenizer, which a run looks up before weights are read. Needs what the rule needs;
    exact where the rule is. Greedy: the rule's form inside, exact match outside. Whether a draft was inside a span
    is not stored, so acceptance probability and bias are not measured.
    """

    version: ClassVar[str] = "1"

    rule: Any
    begin: int | str
    end: int | str

    def __post_init__(self) -> None:
        Outer.__post_init__(self)
        for name in ("begin", "end"):
            marker = getattr(self, name)
            is_id = isinstance(marker, int) and not isinstance(marker, bool) and marker >= 0
            if not is_id and not (isinstance(marker, str) and marker):
                raise ValueError(f"{name} of Within must be a token id or the text of one token, got {marker!r}")
        if self.begin == self.end:
            raise ValueError(f"begin and end of Within must differ, got {self.begin!r} for both")

    def with_markers(self, ids_of: Callable[[str], Sequence[int]]) -> "Within":
        """Return the rule with ids instead of texts as markers; `ids_of` tokenizes a text."""
        return replace(self, begin=_marker("begin", self.begin, ids_of), end=_marker("end", self.end, ids_of))

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor:
        """Return [B,1]: 1 where the prompt ends inside a span."""
        self._refuse_texts()
        return (
            torch.stack([self._inside(prompt.new_zeros(1), prompt[None])[:, -1] for prompt in prompts])
            .long()
            .to(device)
        )

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        assert state is not None, "Within needs the state that init_state returns: whether a text is inside a span"
        tokens = evidence.draft.tokens
        inside = self._inside(state[:, 0], tokens)
        row = torch.arange(len(tokens), device=u.device)
        if not tokens.shape[1]:
            verdict = draw_bonus(evidence, u)
        else:
            exact, rule = Exact(), self.rule.settle(evidence)
            keep = torch.where(inside[:, :-1], rule.keeps(evidence, u[:, :-1]), exact.keeps(evidence, u[:, :-1]))

            def correct(evidence: Evidence, slot: Tensor) -> Tensor:
                return choose_rows(inside[row, slot], rule.correction(evidence, slot), exact.correction(evidence, slot))

            verdict = keep_until_first_rejection(keep, evidence, correct, u)
        after = self._inside(inside[row, verdict.accepted], verdict.next_token[:, None])[:, 1:]
        is_spared = evidence.draft.is_sure & inside[:, :-1] if isinstance(self.rule, Sure) else None
        return replace(verdict, state=after.long(), is_spared=is_spared)

    def _inside(self, before: Tensor, tokens: Tensor) -> Tensor:
        """Return [B,K+1] bool: whether each of tokens [B,K], and the next, is inside a span; `before` [B]: whether the first is."""
        inside = [before.bool()]
        for token in tokens.unbind(1):
            inside.append((inside[-1] | (token == self.begin)) & (token != self.end))
        return torch.stack(inside, 1)

    def measure(self, evidence: Evidence) -> Measures:
        return replace(self.rule.measure(evidence), **unknown_measures(evidence))

    def _refuse_texts(self) -> None:
        for name in ("begin", "end"):
            if isinstance(getattr(self, name), str):
                raise ValueError(
                    f"{name} of Within must be a token id at this point, got the text {getattr(self, name)!r}"
                )


def _marker(name: str, marker: int | str, ids_of: Callable[[str], Sequence[int]]) -> int:
    if isinstance(marker, int):
        return marker
    ids = ids_of(marker)
    if len(ids) != 1:
        raise ValueError(f"{name}={marker} is {len(ids)} tokens of this tokenizer; a marker must be one token")
    return ids[0]
