"""Rules that judge a block as a whole: the law of what is emitted by enumeration, and plain walks written from the papers."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sdbench
from sdbench.types import DraftBlock, Evidence
from sdbench.verify import ASD, Block, Ensemble, Exact, FLy, TopKRelaxed, Within, stack
from tests.engine.models import PROMPTS, pair

V, K = 3, 2


def tree_laws(seed: int) -> tuple[dict[tuple[int, ...], np.ndarray], dict[tuple[int, ...], np.ndarray]]:
    """p and q behind every text of at most K tokens."""
    rng = np.random.default_rng(seed)
    texts = [text for n in range(K + 1) for text in itertools.product(range(V), repeat=n)]
    p, q = ({text: rng.dirichlet(np.full(V, 0.5)) for text in texts} for _ in range(2))
    return p, q


def emitted_by_block(p: dict[Any, np.ndarray], q: dict[Any, np.ndarray]) -> np.ndarray:
    """The law [V,V,V] of the next K + 1 tokens from what Block does: all drafts, all pairs of coins that differ, then p alone."""
    law = np.zeros((V,) * (K + 1))
    drafts = list(itertools.product(range(V), repeat=K))
    target = torch.tensor(np.array([[p[x[:i]] for i in range(K + 1)] for x in drafts]))
    drafted = torch.tensor(np.array([[q[x[:i]] for i in range(K)] for x in drafts]))
    tokens, lengths = torch.tensor(drafts), torch.full((len(drafts),), K)
    evidence = Evidence(target, DraftBlock(tokens, drafted, lengths))

    def verdict(*u: Tensor) -> Any:
        return Block()(evidence, torch.stack(u, 1))

    half, never = torch.full((len(drafts),), 0.5, dtype=torch.float64), torch.full((len(drafts),), 1 - 2**-52).double()
    second = threshold(lambda u: verdict(never, u, half).accepted == 2, len(drafts))
    first = threshold(
        lambda u: verdict(u, never, half).accepted >= 1, len(drafts)
    )  # the last coin says no unless it must say yes
    first = torch.where(second < 1, first, 0)
    chances = {0: (1 - second) * (1 - first), 1: (1 - second) * first, 2: second}
    coins = {0: (never, never), 1: (half * 0, never), 2: (never, half * 0)}
    for accepted, chance in chances.items():
        happens = chance > 0
        ends = [
            threshold(lambda u, a=accepted, t=t: verdict(*coins[a], u).next_token <= t, len(drafts)) for t in range(V)
        ]
        assert (verdict(*coins[accepted], half).accepted[happens] == accepted).all()
        share = torch.stack(ends, 1).diff(dim=1, prepend=torch.zeros(len(drafts), 1, dtype=torch.float64))
        for row, x in enumerate(drafts):
            weight = float(chance[row]) * q[()][x[0]] * q[x[:1]][x[1]]
            for token in range(V):
                extend(law, p, (*x[:accepted], token), weight * float(share[row, token]))
    return law


def extend(law: np.ndarray, p: dict[Any, np.ndarray], text: tuple[int, ...], weight: float) -> None:
    if len(text) == K + 1:
        law[text] += weight
        return
    for token in range(V):
        extend(law, p, (*text, token), weight * p[text][token])


def threshold(holds: Any, count: int) -> Tensor:
    low, high = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    for _ in range(52):
        middle = (low + high) / 2
        is_true = holds(middle)
        low, high = torch.where(is_true, middle, low), torch.where(is_true, high, middle)
    return torch.where(high == 2**-52, torch.where(holds(torch.zeros(count).double()), high, 0), high)


@pytest.mark.parametrize("seed", range(12))
def test_block_verification_emits_the_target_whatever_the_texts(seed: int):
    p, q = tree_laws(seed)
    wanted = np.zeros((V,) * (K + 1))
    extend(wanted, p, (), 1.0)
    np.testing.assert_allclose(emitted_by_block(p, q), wanted, rtol=0, atol=1e-12)


def random_evidence(rows: int, slots: int, vocab: int, seed: int) -> tuple[Evidence, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, rows, slots + 1, vocab, generator=generator, dtype=torch.float64)
    p, q = logits.softmax(-1)
    tokens = torch.distributions.Categorical(0.5 * q[:, :slots] + 0.5 * p[:, :slots]).sample()
    lengths = torch.randint(0, slots + 1, (rows,), generator=generator)
    u = torch.rand(rows, slots + 1, generator=generator, dtype=torch.float64)
    return Evidence(p, DraftBlock(tokens, q[:, :slots], lengths, logits=logits[1, :, :slots]), logits=logits[0]), u


def greedy(evidence: Evidence) -> Evidence:
    draft = evidence.draft
    ids = DraftBlock(draft.tokens, draft.tokens, draft.lengths, draft.logits)
    return Evidence(evidence.p.argmax(-1), ids, is_greedy=True, logits=evidence.logits)


def test_block_verification_keeps_more_than_one_token_at_a_time():
    torch.manual_seed(0)
    evidence, u = random_evidence(20_000, 4, 6, seed=3)
    kept = [rule(evidence, u).accepted.double().mean() for rule in (Block(), Exact())]
    assert kept[0] > kept[1] + 0.01


def test_greedy_block_verification_is_exact_match():
    torch.manual_seed(0)
    evidence, u = random_evidence(500, 4, 6, seed=4)
    ours, exact = (rule(greedy(evidence), u) for rule in (Block(), Exact()))
    assert torch.equal(ours.accepted, exact.accepted)
    assert torch.equal(ours.next_token, exact.next_token)


@pytest.mark.parametrize("setting", [(8, 0.25, 2), (2, 0.5, 1), (1, 2.0, 4), (0, 1, 1), (8, 0, 2), (8, 1, 0)])
def test_a_regret_budget_is_walked_as_its_authors_walk_it(setting: tuple[float, float, int]):
    """Token by token, as arXiv:2608.03447 has it; the budget is the text's, so that a second block begins with what is left."""
    budget, gap, most = setting
    torch.manual_seed(1)
    rule, rows = ASD(budget, gap, most), 300
    state = rule.init_state([torch.tensor([1])] * rows, "cpu")
    spent = [0.0] * rows
    for seed in (5, 6):
        evidence, u = random_evidence(rows, 5, 6, seed)
        evidence = greedy(evidence)
        verdict = rule(evidence, u, state)
        state = verdict.state
        logits: Any = evidence.logits
        for row in range(rows):
            length, accepted, paid, misses = int(evidence.draft.lengths[row]), 0, 0.0, 0
            for i in range(length):
                z, x = logits[row, i], int(evidence.draft.tokens[row, i])
                if x != int(z.argmax()):
                    regret = float(z.max() - z[x])
                    paid, misses = paid + regret, misses + 1
                    is_cheap = regret / (length - i) <= gap and spent[row] + paid <= budget + 1e-9 and misses <= most
                    if 0 in setting or not is_cheap:
                        paid -= regret
                        break
                accepted = i + 1
            spent[row] += paid
            assert verdict.accepted[row] == accepted
            assert verdict.next_token[row] == evidence.p[row, accepted]
        torch.testing.assert_close(state[:, 0], torch.tensor(spent, dtype=torch.float64))
        assert (state[:, 0] <= budget + 1e-9).all()


@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_fly_forgives_what_goes_on_well(window: int, is_greedy: bool):
    """A plain walk: native decisions first, then each rejection is looked at."""
    torch.manual_seed(2)
    evidence, u = random_evidence(400, 6, 8, seed=7)
    law, evidence = evidence.p, greedy(evidence) if is_greedy else evidence
    rule = FLy(window=window, entropy=0.4)
    verdict, exact = rule(evidence, u), Exact()
    forgiven = 0
    for row in range(400):
        length, tokens = int(evidence.draft.lengths[row]), evidence.draft.tokens[row].tolist()
        p, q = law[row].tolist(), None if is_greedy else evidence.draft.q[row].tolist()
        native = [
            x == max(range(8), key=p[i].__getitem__) if q is None else float(u[row, i]) < min(1.0, p[i][x] / q[i][x])
            for i, x in enumerate(tokens[:length])
        ]
        accepted = 0
        while accepted < length:
            first = sorted(p[accepted])[-3:]
            is_unsure = -sum(one * np.log(one) for one in first) >= 0.4
            behind = native[accepted + 1 : accepted + 1 + window]
            if not native[accepted] and not (is_unsure and len(behind) == window and all(behind)):
                break
            forgiven += not native[accepted]
            accepted += 1
        assert verdict.accepted[row] == accepted
        if accepted == int(exact(evidence, u).accepted[row]):
            assert verdict.next_token[row] == exact(evidence, u).next_token[row]
    assert forgiven > 3


def test_inside_a_span_the_rule_judges_and_outside_the_lossless_one():
    """Markers 6 and 7: all drafts stay inside (w = 0), and outside as Exact has it; the state follows what is emitted."""
    torch.manual_seed(3)
    rows, lenient = 400, Ensemble(w=0.0)
    evidence, u = random_evidence(rows, 5, 8, seed=8)
    rule = Within(lenient, begin=6, end=7)
    prompts = [torch.tensor([1, 6, 2]) if row % 2 else torch.tensor([6, 3, 7, 1]) for row in range(rows)]
    state = rule.init_state(prompts, "cpu")
    assert state[:, 0].tolist() == [row % 2 for row in range(rows)]
    verdict = rule(evidence, u, state)
    tokens, lengths = evidence.draft.tokens.tolist(), evidence.draft.lengths.tolist()
    keep = Exact().keeps(evidence, u[:, :-1])
    for row in range(rows):
        is_inside, accepted = bool(row % 2), 0
        for i in range(lengths[row]):
            if not (is_inside or keep[row, i]):
                break
            is_inside, accepted = (is_inside or tokens[row][i] == 6) and tokens[row][i] != 7, i + 1
        assert verdict.accepted[row] == accepted
        last = int(verdict.next_token[row])
        assert bool(verdict.state[row]) == ((is_inside or last == 6) and last != 7)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_span_from_the_first_token_to_no_end_is_the_rule_itself(temperature: float):
    """Prompts that begin a span which nothing ends, and prompts without one: the rule's own texts, and Exact's."""
    models, inner = pair("llama"), Ensemble(w=0.3)
    inside, outside = Within(inner, begin=7, end=60), Within(inner, begin=60, end=59)
    options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 12, "stop_ids": (), "vocab_size": 59}
    prompts = [prompt for prompt in PROMPTS if 7 in prompt]
    assert prompts
    texts = sdbench.generate(*models, prompts, [inner, inside, Exact(), outside], **options)
    by_rule = [[g.tokens for g in texts if g.verifier == number] for number in range(4)]
    assert by_rule[0] == by_rule[1]
    assert by_rule[2] == by_rule[3]


def test_what_prevents_a_combination_is_named():
    with pytest.raises(ValueError, match="rule of Within must judge one token at a time, got Block"):
        Within(Block(), 1, 2)
    with pytest.raises(ValueError, match="begin of Within must be a token id or the text of one token, got True"):
        Within(TopKRelaxed(), True, 2)
    with pytest.raises(ValueError, match="begin=<think> is 3 tokens of this tokenizer; a marker must be one"):
        Within(TopKRelaxed(), "<think>", 2).with_markers(lambda text: [1, 2, 3])
    with pytest.raises(ValueError, match="begin of Within must be a token id at this point, got the text '<think>'"):
        Within(TopKRelaxed(), "<think>", 2).init_state([torch.tensor([1])], "cpu")
    rules = [Within(TopKRelaxed(k=k), 1, 2) for k in (1, 2)]
    assert stack(rules).rule.k.tolist() == [1, 2], "rules within rules stack"
