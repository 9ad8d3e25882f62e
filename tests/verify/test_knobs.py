"""Knobs by row and by position, rules within rules, replacements that know what they replace: one call judges all."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import sdbench
from sdbench.draft import BaseDrafter
from sdbench.types import DraftBlock, Evidence
from sdbench.verify import Ensemble, Exact, Lenience, Synthetic, Tokenwise, family, knob, stack
from tests.engine.models import PROMPTS, pair

V, K = 5, 3


@dataclass(frozen=True, slots=True)
class ByPosition(Ensemble):
    """The ensemble with a weight that falls where the draft is sure of itself."""

    def settle(self, evidence: Evidence) -> Ensemble:
        return Ensemble(w=knob(self.w, evidence.draft.q[..., 0]) * (1 - evidence.draft.q.amax(-1)))


@dataclass(frozen=True, slots=True)
class Nested(Tokenwise):
    """Another rule's law, with a cut of `least` whole tokens' worth: a rule within a rule, and a whole-number knob."""

    inner: Any
    least: int | Tensor = 1

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return self.inner.accept(p, q) * (knob(self.least, p) > 0)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return self.inner.replace(p, q)


@dataclass(frozen=True, slots=True)
class NextDoor(Tokenwise):
    """What is rejected is replaced by its neighbour: a replacement that knows the rejected token."""

    knows_rejected: ClassVar[bool] = True

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return p

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        raise AssertionError("this rule replaces each token in its own way")

    def replace_rejected(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot((x + 1) % p.shape[-1], p.shape[-1]).to(p)


def random_evidence(batch: int) -> tuple[Evidence, Tensor]:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.rand(2, batch, K + 1, V, generator=generator, dtype=torch.float64).softmax(-1)
    tokens = torch.randint(0, V, (batch, K), generator=generator)
    u = torch.rand(batch, K + 1, generator=generator, dtype=torch.float64)
    return Evidence(p, DraftBlock(tokens, q[:, :K], torch.arange(batch) % (K + 1))), u


def test_a_knob_by_position_judges_each_position_with_its_own():
    evidence, u = random_evidence(64)
    rule = ByPosition(w=0.8)
    settled = rule.settle(evidence)
    assert settled.w.shape == (64, K)
    together = rule(evidence, u)
    for row in range(64):
        place = min(int(together.accepted[row]), K - 1)
        one = evidence.rows(slice(row, row + 1))
        keep = [
            u[row, slot] < Ensemble(w=float(settled.w[row, slot])).accept(one.p[:, slot], one.draft.q[:, slot])[0, x]
            for slot, x in enumerate(one.draft.tokens[0].tolist())
        ]
        length = int(one.draft.lengths)
        wanted = next((slot for slot in range(length) if not keep[slot]), length)
        assert together.accepted[row] == wanted
        alone = Ensemble(w=float(settled.w[row, place]))(one, u[row : row + 1])
        if int(alone.accepted) == wanted:
            assert together.next_token[row] == alone.next_token[0]
    measures = rule.measure(evidence)
    for slot in range(K):
        w = settled.w[:, slot]
        tv = (evidence.p[:, slot] - evidence.draft.q[:, slot]).abs().sum(-1) / 2
        torch.testing.assert_close(measures.expected[:, slot], 1 - w * tv)
    by_definition = Tokenwise.measure(rule, evidence)
    torch.testing.assert_close(measures.expected, by_definition.expected)
    torch.testing.assert_close(measures.bias, by_definition.bias)


@dataclass(frozen=True, slots=True)
class KeepsOne(Exact):
    """Replaces by the token that the knob names, a different one at each position."""

    token: int | Tensor = 0

    def settle(self, evidence: Evidence) -> "KeepsOne":
        width = evidence.draft.tokens.shape[1]
        return KeepsOne(token=torch.arange(width).expand(len(evidence.p), -1))

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return p

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        place = torch.as_tensor(knob(self.token, p)).to(torch.int64)
        return (torch.arange(p.shape[-1]) == place).to(p)


def test_a_rejected_position_is_replaced_with_its_own_knob():
    evidence, u = random_evidence(64)
    verdict = KeepsOne()(evidence, u)
    is_replaced = verdict.accepted < evidence.draft.lengths
    assert is_replaced.any()
    assert torch.equal(verdict.next_token[is_replaced], verdict.accepted[is_replaced])
    assert set(verdict.accepted[is_replaced].tolist()) > {0}


def test_rules_within_rules_and_whole_numbers_stack_into_one_family():
    rules = [Nested(Ensemble(w=0.1 * i), least=i % 2) for i in range(8)]
    assert len({family(rule) for rule in rules}) == 1
    assert family(Nested(Exact())) != family(Nested(Ensemble(w=0.5)))
    evidence, u = random_evidence(8)
    together = stack(rules)(evidence, u)
    for row, rule in enumerate(rules):
        alone = rule(evidence.rows(slice(row, row + 1)), u[row : row + 1])
        assert (alone.accepted[0], alone.next_token[0]) == (together.accepted[row], together.next_token[row])


@dataclass(frozen=True, slots=True)
class PlainNumber(Exact):
    eps: float = 0.5

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        assert isinstance(self.eps, float), "a field that names no Tensor stays a number"
        return Exact.accept(self, p, q)


def test_a_field_that_names_no_tensor_is_never_made_one():
    assert family(PlainNumber(eps=0.1)) != family(PlainNumber(eps=0.2))
    sdbench.generate(*pair("llama"), PROMPTS, [PlainNumber(eps=0.1), PlainNumber(eps=0.2)], max_new_tokens=6)


def test_a_replacement_that_knows_the_rejected_token_has_the_law_it_says():
    """out = Σₓ q(x)·(a(x)·δₓ + (1 − a(x))·rₓ), and the texts follow it."""
    evidence, _ = random_evidence(2)
    p, q = evidence.p[:, :1], evidence.draft.q[:, :1]
    rule = NextDoor()
    by_hand = q * p + (q * (1 - p)).roll(1, -1)
    torch.testing.assert_close(rule.out(p, q), by_hand, rtol=0, atol=1e-12)
    draws = 20_000
    one = Evidence(
        evidence.p[:1, :2].expand(draws, -1, -1),
        DraftBlock(
            torch.multinomial(q[0, 0], draws, replacement=True, generator=torch.Generator().manual_seed(1))[:, None],
            q[:1].expand(draws, -1, -1),
            torch.ones(draws, dtype=torch.int64),
        ),
    )
    u = torch.rand(draws, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    verdict = rule(one, u)
    first = torch.where(verdict.accepted > 0, one.draft.tokens[:, 0], verdict.next_token)
    shares = torch.bincount(first, minlength=V) / draws
    error = (by_hand[0, 0] * (1 - by_hand[0, 0]) / draws).sqrt()
    assert ((shares - by_hand[0, 0]).abs() < 4.5 * error).all()


class SaysItsPrompt(BaseDrafter):
    """Drafts its prompt's number, a token that tells which text a row is."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def prefill(self, prompt: Tensor, prefix: Any) -> int:
        return int(prompt[0])

    def admit(self, row: int, prefix: int) -> None:
        self.numbers[row] = prefix

    def move(self, source: int, row: int) -> None:
        self.numbers[row] = self.numbers[source]

    def draft(self, context: Any, k: int, lengths: Tensor, u: Tensor, needs: Any) -> DraftBlock:
        tokens = torch.tensor([[self.numbers.get(row, 0)] for row in range(len(lengths))])
        return DraftBlock(tokens, tokens, lengths.clamp_max(1))


class SeesThePrompt(Exact):
    """A rule whose state begins with the prompt's first token, and counts rounds."""

    __slots__ = ()

    def init_state(self, prompts: Any, device: Any) -> Tensor:
        return torch.stack([torch.stack((prompt[0], prompt[0] * 0)) for prompt in prompts]).to(device)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Any:
        assert state is not None
        assert torch.equal(state[:, :1], evidence.draft.tokens), "the state is that of the text in this row"
        seen.append(state.clone())
        verdict = Exact.__call__(self, evidence, u)
        return type(verdict)(verdict.accepted, verdict.next_token, state + torch.tensor([0, 1]))


seen: list[Tensor] = []


@dataclass(frozen=True, slots=True)
class Second(Exact):
    """Another family, so that rows have to move."""


@pytest.mark.parametrize("batch_size", [2, 5])
def test_a_state_begins_with_the_prompt_and_moves_with_its_row(batch_size):
    seen.clear()
    prompts = [[n, *range(10, 10 + n)] for n in range(1, 7)]
    options: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": 14, "stop_ids": list(range(30, 40))}
    rules = [Second(), SeesThePrompt(), Second()]
    decoded = sdbench.generate(pair("llama")[0], None, prompts, rules, drafter=SaysItsPrompt, samples=2, **options)
    rounds: dict[int, list[int]] = {}
    for g in decoded:
        if g.verifier == 1:
            rounds.setdefault(prompts[g.prompt][0], []).append(len(g.accepted))
    for number, counts in rounds.items():
        numbers = sorted(int(row[1]) for state in seen for row in state if int(row[0]) == number)
        assert numbers == sorted(n for count in counts for n in range(count)), "each text counted its own rounds"


def test_measures_are_probabilities_in_float32_too():
    """Sums of float32 laws lie a rounding above 1 now and then; what is recorded does not."""
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.rand(2, 64, K + 1, 4099, generator=generator) ** 8 * 30).softmax(-1)
    assert (q.sum(-1) > 1).any()
    tokens = torch.randint(0, 4099, (64, K), generator=generator)
    evidence = Evidence(p, DraftBlock(tokens, q[:, :K], torch.full((64,), K)))
    for rule in (Synthetic(1.0), Lenience(1e-6), Exact(), Ensemble(w=0.0)):
        measures = rule.measure(evidence)
        for value in (measures.tv, measures.expected, measures.bias):
            assert ((value >= 0) & (value <= 1)).all()
