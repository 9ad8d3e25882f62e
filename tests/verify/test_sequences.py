"""Texts of many rules decoded in one batch have the law that enumeration gives: chi-square over all sequences."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

import sdbench
from sdbench.audit.laws import TextLaws
from sdbench.audit.source import Sampling, Tables
from sdbench.verify import EARS, Block, Cactus, CascadeOPT, Coin, ExactMatch, FLy, Lenience, Typical, Within
from tests.engine.models import pair

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
    """The audit's enumeration; None: the target alone."""
    tables = Tables(dict(zip(("target", "draft"), models, strict=True)), [PROMPT], VOCAB, NEW)
    law = TextLaws(tables, Sampling(), rule, None, K, NEW).texts(0).tolist()
    return dict(zip(itertools.product(range(VOCAB), repeat=NEW), law, strict=True))


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


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LOSSLESS)), ids=[type(rule).__name__ for rule in LOSSLESS])
def test_lossless_rules_emit_the_target(models: Any, texts: Any, number: int):
    assert p_value(texts[number], law_of(None, models)) > ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(RULES)), ids=[type(rule).__name__ for rule in RULES])
def test_sequences_have_the_law_of_their_rule(models: Any, texts: Any, number: int):
    rule = RULES[number]
    assert p_value(texts[len(LOSSLESS) + number], law_of(rule, models)) > ALPHA
    assert p_value(texts[len(LOSSLESS) + number], law_of(None, models)) < ALPHA, "and not that of the target"


@pytest.mark.slow
def test_inside_a_span_the_sequences_are_those_of_the_rule(models: Any, texts: Any):
    assert p_value(texts[-1], law_of(RULES[0], models)) > ALPHA
