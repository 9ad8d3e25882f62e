"""What every rule promises, the package's and a stranger's: its law to 1e-12, its strict end, its behaviour at the edges."""

from typing import Any

import pytest
import torch

import sdbench
from sdbench.types import DraftBlock, Evidence, Limits, needs_of
from sdbench.verify import Exact, Tokenwise, family, stack
from tests.contracts.parts import Named, parts
from tests.engine.models import PROMPTS, pair

RULES = parts("verifier")
V, K = 5, 3
by_rule = pytest.mark.parametrize("named", RULES, ids=str)


def laws(batch: int, seed: int = 0, slots: int = K) -> tuple[torch.Tensor, torch.Tensor]:
    """p [B,K+1,V] and q [B,K,V] with zeros in places, float64."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.rand(2, batch, slots + 1, V, generator=generator, dtype=torch.float64) ** 4
    raw = raw * (torch.rand(raw.shape, generator=generator) > 0.25)
    raw[..., :3] += 1e-3 * torch.arange(1, 4)  # with two tokens alone a threshold may be met to the last bit
    p, q = raw / raw.sum(-1, keepdim=True)
    return p, q[:, :slots]


def evidence_of(p: Any, q: Any, tokens: Any, lengths: Any) -> Evidence:
    """With the logits and states that some rules read."""
    logits = {"logits": q.log()} if q.is_floating_point() else {}
    hidden = {"hidden": torch.zeros(*tokens.shape, 4, dtype=p.dtype)}
    draft = DraftBlock(tokens, q, lengths, **logits, **hidden)
    return Evidence(p, draft, logits=p.log(), target_hidden=torch.zeros(*p.shape[:2], 4, dtype=p.dtype))


def limits_of(rule: Any) -> Limits:
    return getattr(rule, "limits", Limits())


def fresh_state(rule: Any, batch: int) -> Any:
    return rule.init_state([torch.tensor([1, 2])] * batch, "cpu")


def by_family(named: Named) -> list[tuple[Any, list[Any]]]:
    """The token-wise settings of a rule as one stacked rule for each family: (what stacks them, they)."""
    groups: dict[Any, list[Any]] = {}
    for setting in named.settings():
        rule = named.make(**setting)
        if isinstance(rule, Tokenwise):
            groups.setdefault(family(rule), []).append(rule)
    return [
        (lambda each, group=group: stack([rule for rule in group for _ in range(each)]), group)
        for group in groups.values()
    ]


def enumerated(rules: Any, count: int, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The law [count·B,V] of the first token under `count` settings, from what they *do*: of each drafted x the share of its coins
    that keeps it, and of each token the share of draws that gives it, by bisection, all in one batch."""
    batch = len(p)
    p, q = (law.repeat(count, 1, 1) for law in (p[:, :2], q[:, :1]))

    def verdict(x: torch.Tensor, coin: torch.Tensor, draw: torch.Tensor) -> Any:
        each = len(x) // len(p)
        tall_p, tall_q = (law.repeat_interleave(each, 0) for law in (p, q))
        evidence = evidence_of(tall_p, tall_q, x[:, None], torch.ones_like(x))
        return rules(batch * each)(evidence, torch.stack((coin, draw), 1))

    x = torch.arange(V).repeat(len(p))
    half = torch.full(x.shape, 0.5, dtype=torch.float64)
    keep = bisect(lambda coin: verdict(x, coin, half).accepted == 1, len(x)).reshape(-1, V)
    x, token = torch.arange(V).repeat_interleave(V).repeat(len(p)), torch.arange(V).repeat(V * len(p))
    refused = torch.full(x.shape, 1 - 2**-52, dtype=torch.float64)
    upto = bisect(lambda u: verdict(x, refused, u).next_token <= token, len(x)).reshape(-1, V, V)
    drawn = upto.diff(dim=-1, prepend=torch.zeros(len(p), V, 1, dtype=torch.float64))
    left = torch.where(keep < 1, q[:, 0] * (1 - keep), 0)
    return q[:, 0] * keep + (left[..., None] * drawn).sum(1)


def settle(rule: Any, p: torch.Tensor, q: torch.Tensor) -> Any:
    """A token-wise rule with its knobs worked out for these laws."""
    tokens = torch.zeros(q.shape[:2], dtype=torch.int64)
    return rule.settle(evidence_of(p, q, tokens, torch.full((len(p),), q.shape[1])))


def bisect(holds: Any, batch: int) -> torch.Tensor:
    """The share of [0, 1) below which `holds` is true, in every row."""
    low, high = torch.zeros(batch, dtype=torch.float64), torch.ones(batch, dtype=torch.float64)
    for _ in range(52):
        middle = (low + high) / 2
        is_true = holds(middle)
        low, high = torch.where(is_true, middle, low), torch.where(is_true, high, middle)
    return torch.where(high == 2**-52, torch.where(holds(torch.zeros_like(low)), high, 0), high)


@by_rule
def test_what_a_rule_emits_is_its_out(named: Named):
    p, q = laws(8)
    for rules, group in by_family(named):
        p1, q1 = (law[:, :1].repeat(len(group), 1, 1) for law in (p, q))
        wanted = settle(rules(len(p)), p[:, :2].repeat(len(group), 1, 1), q1).out(p1, q1)[:, 0]
        torch.testing.assert_close(wanted.sum(-1), torch.ones(len(wanted), dtype=torch.float64), rtol=0, atol=1e-12)
        torch.testing.assert_close(enumerated(rules, len(group), p, q), wanted, rtol=0, atol=1e-12)


@by_rule
def test_no_tokenwise_rule_accepts_more_than_its_bias_allows(named: Named):
    p, q = laws(200, slots=1)
    for rules, group in by_family(named):
        p1, q1 = (law[:, :1].repeat(len(group), 1, 1) for law in (p, q))
        rule = settle(rules(len(p)), p.repeat(len(group), 1, 1), q1)
        accepted = (q1 * rule.accept(p1, q1)).sum(-1)
        bias = (rule.out(p1, q1) - p1).abs().sum(-1) / 2
        assert (accepted <= 1 - (p1 - q1).abs().sum(-1) / 2 + bias + 1e-12).all()


@by_rule
def test_the_strict_end_equals_the_rule_it_names(named: Named):
    for knob, rule in named.knobs.items():
        if rule.get("equals") is None:
            continue
        assert rule["equals"] == "exact", "so far every strict end that equals a rule equals the lossless one"
        for setting in named.settings():
            if setting[knob] != rule["strict"] or setting.get("greedy") == "mixture":
                continue
            made = named.make(**setting)
            assert bool(made.is_lossless().all())
            p, q = laws(64, seed=3)
            tokens = torch.randint(0, V, (64, K), generator=torch.Generator().manual_seed(4))
            u = torch.rand(64, K + 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
            evidence = evidence_of(p, q, tokens, torch.full((64,), K))
            ours, exact = made(evidence, u, fresh_state(made, 64)), Exact()(evidence, u)
            assert torch.equal(ours.accepted, exact.accepted)
            assert torch.equal(ours.next_token, exact.next_token)


@by_rule
@pytest.mark.parametrize("is_one_hot", [False, True])
def test_an_empty_draft_is_the_target_and_a_full_block_ends_in_its_bonus(named: Named, is_one_hot: bool):
    p, q = laws(32, seed=1)
    tokens = torch.randint(0, V, (32, K), generator=torch.Generator().manual_seed(2))
    q = tokens.clone() if is_one_hot else q
    u = torch.rand(32, K + 1, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    bonus_of = torch.searchsorted(p.cumsum(-1), (u[:, -1:, None] * p.sum(-1, keepdim=True)).contiguous(), right=True)
    for setting in named.settings():
        rule = named.make(**setting)
        for length in range(K + 1):
            lengths = torch.full((32,), length)
            verdict = rule(evidence_of(p, q, tokens, lengths), u, fresh_state(rule, 32))
            assert (verdict.accepted >= 0).all()
            assert (verdict.accepted <= length).all(), "what is not offered is not accepted"
            full = verdict.accepted == length
            assert torch.equal(verdict.next_token[full], bonus_of[full, length, 0])
        none = torch.zeros(32, 0, dtype=torch.int64)
        empty = Evidence(p[:, :1], DraftBlock(none, none, torch.zeros(32, dtype=torch.int64)), logits=p[:, :1].log())
        assert torch.equal(rule(empty, u[:, -1:], fresh_state(rule, 32)).next_token, bonus_of[:, 0, 0])


@by_rule
def test_what_lies_past_the_draft_of_a_row_changes_nothing(named: Named):
    """Rules are called there too, also where q is 0 everywhere."""
    p, q = laws(16, seed=15)
    tokens = torch.randint(0, V, (16, K), generator=torch.Generator().manual_seed(16))
    u = torch.rand(16, K + 1, generator=torch.Generator().manual_seed(17), dtype=torch.float64)
    lengths = torch.arange(16) % (K + 1)
    without_mass = torch.where((torch.arange(K) < lengths[:, None])[..., None], q, 0)
    for setting in named.settings():
        rule = named.make(**setting)
        a, b = (rule(evidence_of(p, law, tokens, lengths), u, fresh_state(rule, 16)) for law in (q, without_mass))
        assert torch.equal(a.accepted, b.accepted)
        assert torch.equal(a.next_token, b.next_token)


@by_rule
@pytest.mark.parametrize("batch", [1, 3, 32])
def test_rows_are_judged_by_themselves_and_with_their_own_knobs(named: Named, batch: int):
    """A stacked rule gives each row what its own rule gives it alone."""
    rules = [named.make(**setting) for setting in named.settings()]
    groups: dict[Any, list[Any]] = {}
    for rule in rules:
        groups.setdefault(family(rule), []).append(rule)
    p, q = laws(batch, seed=7)
    tokens = torch.randint(0, V, (batch, K), generator=torch.Generator().manual_seed(8))
    lengths = torch.arange(batch) % (K + 1)
    u = torch.rand(batch, K + 1, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    evidence = evidence_of(p, q, tokens, lengths)
    for group in groups.values():
        own = [group[row % len(group)] for row in range(batch)]
        together = stack(own)(evidence, u, fresh_state(own[0], batch))
        for row, rule in enumerate(own):
            alone = rule(evidence.rows(slice(row, row + 1)), u[row : row + 1], fresh_state(rule, 1))
            assert alone.accepted[0] == together.accepted[row]
            assert alone.next_token[0] == together.next_token[row]


def numbers(rule: Any, p: torch.Tensor, q: torch.Tensor) -> list[torch.Tensor]:
    """Everything that a token-wise rule computes from laws."""
    settled, evidence = settle(rule, p, q), evidence_of(p, q, q.argmax(-1), torch.full((len(q),), q.shape[1]))
    first, measures = p[:, :-1], rule.measure(evidence)
    of_set = [rule.set_of(first, q)] if hasattr(rule, "set_of") else []
    scores = [rule.greedy_scores(first.log(), q.log())] if hasattr(rule, "greedy_scores") else []
    return [settled.accept(first, q), settled.out(first, q), measures.expected, measures.bias, *of_set, *scores]


@by_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_knob_is_the_same_number_alone_and_beside_other_settings(named: Named, dtype: torch.dtype):
    """To the last bit, on random laws and on laws at each threshold and next to it."""
    values = [n / 20 for n in range(1, 20)]
    edges = torch.tensor([1 - value for value in values], dtype=dtype)
    edges = torch.cat((edges, *(edges.nextafter(torch.full_like(edges, end)) for end in (0, 1))))
    below_1, without_rest = torch.stack((torch.ones_like(edges), edges), -1), torch.stack((edges, 0 * edges), -1)
    pairs = [
        laws(1, slots=len(edges)),
        *((p[None, [*range(len(p)), 0]], p.flip(0)[None]) for p in (below_1, without_rest)),
    ]
    pairs = [tuple(law.to(dtype).repeat(len(values), 1, 1) for law in pair) for pair in pairs]
    middle = named.settings()[len(named.settings()) // 2]
    choices = [{knob: choice} for knob, says in named.knobs.items() for choice in says.get("choices", ())]
    for knob, says in named.knobs.items():
        if {"choices", "text", "whole"} & set(says):
            continue
        for choice in choices or [{}]:
            rules = [named.make(**{**middle, **choice, knob: value}) for value in values]
            if not isinstance(rules[0], Tokenwise):
                continue
            for p, q in pairs:
                together = numbers(stack(rules), p, q)
                for row, rule in enumerate(rules):
                    for alone, beside in zip(numbers(rule, p, q), together, strict=True):
                        torch.testing.assert_close(alone[row], beside[row], rtol=0, atol=0, equal_nan=True)


@by_rule
def test_measures_are_what_the_law_says_or_nothing(named: Named):
    p, q = laws(16, seed=11)
    tokens = torch.randint(0, V, (16, K), generator=torch.Generator().manual_seed(12))
    for setting in named.settings():
        rule = named.make(**setting)
        evidence = evidence_of(p, q, tokens, torch.full((16,), K))
        measures = rule.measure(evidence)
        if not isinstance(rule, Tokenwise):
            assert measures.expected.isnan().all()
            assert measures.bias.isnan().all(), "what a joint rule emits at a position is not known without sampling"
            continue
        rule = rule.settle(evidence)
        expected = (q * rule.accept(p[:, :-1], q)).sum(-1)
        bias = (rule.out(p[:, :-1], q) - p[:, :-1]).abs().sum(-1) / 2
        torch.testing.assert_close(measures.expected, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(measures.bias, bias, rtol=0, atol=1e-12)


@by_rule
def test_at_temperature_0_tv_is_that_of_the_un_tempered_distributions_or_null(named: Named):
    """So that no two rules disagree in it: lossless decoding, w = 1 of the ensemble and what reads the chosen tokens alone."""
    p, q = laws(16, seed=13)
    ids, tokens, lengths = p.argmax(-1), q.argmax(-1), torch.full((16,), K)
    tv = (p[:, :-1] - q).abs().sum(-1) / 2
    draft = DraftBlock(tokens, tokens, lengths, logits=q.log(), hidden=torch.zeros(16, K, 4, dtype=p.dtype))
    evidence = Evidence(ids, draft, True, p.log(), torch.zeros(16, K + 1, 4, dtype=p.dtype))
    for setting in named.settings():
        rule = named.make(**setting)
        if limits_of(rule).temperature == "above_zero":
            continue
        measured = rule.measure(evidence).tv
        assert measured.isnan().all() or torch.allclose(measured, tv, atol=1e-12)
        assert {"raw", "raw_if_greedy"} & needs_of(rule) or measured.isnan().all(), "it does not read the distributions"


@by_rule
def test_contracts_are_declared(named: Named):
    rule = named.make(**named.settings()[0])
    assert isinstance(rule.version, str)
    assert rule.version, "a rule of the package, or of the documentation, carries its version"
    assert needs_of(rule) is not None
    assert all({"sweep", "choices", "text"} & set(knob) for knob in named.knobs.values())


def some_settings(named: Named) -> list[Any]:
    """One end of all knobs, and what lies between."""
    settings = named.settings()
    return [named.make(**settings[place]) for place in sorted({0, len(settings) // 2})]


@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_all_rules_in_one_batch_decode_as_they_do_alone_and_captured(temperature: float):
    models = pair("llama")
    kinds = ("any", "above_zero" if temperature else "zero")
    options: dict[str, Any] = {"num_draft": 5, "temperature": temperature, "max_new_tokens": 10, "stop_ids": ()}
    rules = [rule for named in RULES for rule in some_settings(named) if limits_of(rule).temperature in kinds]
    rules = [
        rule for rule in rules if limits_of(rule).num_draft[0] <= options["num_draft"] and not limits_of(rule).sure
    ]
    assert len({type(rule) for rule in rules}) >= len(RULES) - 3
    prompts = PROMPTS[:2]
    mixed = sdbench.generate(*models, prompts, rules, batch_size=32, capture="off", **options)
    traced = sdbench.generate(*models, prompts, rules, batch_size=5, capture="graphs", **options)
    engine = sdbench.Engine(*models, capture="off")
    for number, rule in enumerate(rules):
        alone = sdbench.generate(None, None, prompts, [rule], engine=engine, batch_size=1, **options)
        for prompt in range(len(prompts)):
            place = prompt * len(rules) + number
            for other in (mixed[place], traced[place]):
                assert other.tokens == alone[prompt].tokens
                assert other.accepted == alone[prompt].accepted
