"""Texts of many rules decoded in one batch have the law that enumeration gives: chi-square over all sequences."""

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import sdbench
from sdbench.verify import EARS, Block, Cactus, CascadeOPT, Coin, ExactMatch, FLy, Lenience, Typical, Within
from tests.engine.models import pair
from tests.engine.test_law import laws

VOCAB, K, NEW, SAMPLES, PROMPT, ALPHA = 4, 2, 4, 3000, (0, 1, 2), 1e-4  # seeds are fixed: it does not fail by chance
LOSSLESS = [Block(), ExactMatch(), FLy(window=1, entropy=float("inf"))]
RULES: list[Any] = [Lenience(0.5), Cactus(0.5), Typical(0.5, 0.9), Coin(Typical(0.5, 0.9)), CascadeOPT(0.5), EARS(0.4)]


@pytest.fixture(scope="module")
def models() -> Any:
    return pair("llama", vocab=VOCAB, scale=0.6, eos_token_id=None)


@pytest.fixture(scope="module")
def texts(models: Any) -> list[Counter[tuple[int, ...]]]:
    """{sequence: how often} of every rule, all decoded in one stream."""
    rules = [*LOSSLESS, *RULES, Within(RULES[0], begin=2, end=9)]  # the prompt ends inside a span that nothing ends
    options: dict[str, Any] = {"num_draft": K, "max_new_tokens": NEW, "samples": SAMPLES, "batch_size": 2000}
    decoded = sdbench.generate(*models, [list(PROMPT)], rules, stop_ids=(), measure=False, **options)
    return [Counter(g.tokens for g in decoded if g.verifier == number) for number in range(len(rules))]


def law_of(rule: Any, models: Any) -> dict[tuple[int, ...], float]:
    """Every round with its drafts, where it stopped and what came next, from what the rule accepts and emits; None: the target."""
    p, q = laws(models[0]), laws(models[1])

    @cache
    def law(context: tuple[int, ...], left: int) -> dict[tuple[int, ...], float]:
        if not left:
            return {(): 1.0}
        k = 0 if rule is None else min(K, left - 1)
        chances: Counter[tuple[int, ...]] = Counter()

        def go_on(prefix: tuple[int, ...], weight: float, token_law: np.ndarray) -> None:
            for token, chance in enumerate(weight * token_law):
                emitted = (*prefix, token)
                for rest, more in law((*context, *emitted), left - len(emitted)).items():
                    chances[(*emitted, *rest)] += chance * more

        def walk(prefix: tuple[int, ...], weight: float) -> None:
            here = (*context, *prefix)
            if len(prefix) == k:
                go_on(prefix, weight, p(here))
                return
            target, draft = (torch.from_numpy(side(here))[None, None] for side in (p, q))
            kept = draft * rule.accept(target, draft)
            rejected = (rule.out(target, draft) - kept)[0, 0].clamp_min(0).numpy()
            go_on(prefix, weight, rejected)
            for token, chance in enumerate(kept[0, 0].tolist()):
                walk((*prefix, token), weight * chance)

        walk((), 1.0)
        return dict(chances)

    return law(PROMPT, NEW)


def p_value(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    assert abs(sum(law.values()) - 1) < 1e-9
    common = [text for text, chance in law.items() if chance * SAMPLES >= 5]
    observed = np.array(
        [*(counts[text] for text in common), SAMPLES - sum(counts[text] for text in common)], dtype=float
    )
    expected = np.array([law[text] * SAMPLES for text in common])
    expected = np.append(expected, SAMPLES - expected.sum())
    seen = expected > 1e-6
    assert observed[~seen].sum() == 0
    return float(chisquare(observed[seen], expected[seen]).pvalue)


@pytest.mark.parametrize("number", range(len(LOSSLESS)), ids=[type(rule).__name__ for rule in LOSSLESS])
def test_lossless_rules_emit_the_target(models: Any, texts: Any, number: int):
    assert p_value(texts[number], law_of(None, models)) > ALPHA


@pytest.mark.parametrize("number", range(len(RULES)), ids=[type(rule).__name__ for rule in RULES])
def test_sequences_have_the_law_of_their_rule(models: Any, texts: Any, number: int):
    rule = RULES[number]
    assert p_value(texts[len(LOSSLESS) + number], law_of(rule, models)) > ALPHA
    assert p_value(texts[len(LOSSLESS) + number], law_of(None, models)) < ALPHA, "and not that of the target"


def test_inside_a_span_the_sequences_are_those_of_the_rule(models: Any, texts: Any):
    assert p_value(texts[-1], law_of(RULES[0], models)) > ALPHA
