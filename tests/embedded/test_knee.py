"""Where a greedy blend goes over to the draft's choice, as docs/method.md says: manner early, substance never above one half."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.tiny.data import PROTOCOLS
from sdbench import embedded
from sdbench.embedded.facts import article_facts, share_stated
from sdbench.embedded.grammar.draw import Draw
from sdbench.embedded.grammar.voices import AGREED, LEANS, Voice
from sdbench.engine import generate
from sdbench.verify import Ensemble


def is_kept(w: float, p: list[float], q: list[float]) -> bool:
    """Whether the rule keeps the draft's likeliest token at T = 0."""
    v = Ensemble(w=w).out(
        torch.tensor(p, dtype=torch.float64)[None, None], torch.tensor(q, dtype=torch.float64)[None, None]
    )
    return int(v.argmax()) == max(range(len(q)), key=q.__getitem__)


@pytest.mark.parametrize("place", [place for place in range(2 * len(LEANS)) if place not in AGREED])
def test_a_place_of_manner_goes_over_at_its_own_weight_above_one_half(place):
    p, q = (list(Voice(name, Draw("")).shares(place, 2)) for name in ("target", "draft"))
    at = (q[1] - q[0]) / (p[0] - p[1] + q[1] - q[0])
    assert 0.55 < at < 0.90
    assert is_kept(at - 1e-6, p, q)
    assert not is_kept(at + 1e-6, p, q)


@pytest.mark.parametrize("sureness", [0.6, 0.8, 1.0])
def test_a_wrong_fact_passes_only_below_one_half(sureness):
    p, q = [1.0, 0.0], [1 - sureness, sureness]
    assert not is_kept(0.5, p, q)
    assert is_kept(0.0, p, q)


@pytest.mark.parametrize("place", AGREED[:6])
def test_where_both_prefer_the_same_word_it_is_kept_at_every_weight(place):
    p, q = (list(Voice(name, Draw("")).shares(place, 2)) for name in ("target", "draft"))
    assert p[0] < q[0]
    assert all(is_kept(w, p, q) for w in (0.0, 0.5, 1.0))


def test_forty_articles_of_the_default_pair_show_the_knee():
    """At w = 0.7 manner passes and the facts stay, at w = 0.2 they go."""
    target, draft = (
        AutoModelForCausalLM.from_pretrained(embedded.path("llama-tiny", role), dtype=torch.float32).eval()
        for role in embedded.ROLES
    )
    tokenizer = AutoTokenizer.from_pretrained(embedded.path("llama-tiny", "target"))
    rows = embedded.rows("cnndm-tiny", "test", 40)
    prompts = [tokenizer(PROTOCOLS["cnndm"](row).prompt)["input_ids"] for row in rows]
    ws = (1.0, 0.7, 0.2)
    generations = generate(
        target, draft, prompts, [Ensemble(w) for w in ws], temperature=0.0, max_new_tokens=80, measure=False
    )
    acceptance, facts = {}, {}
    for number, w in enumerate(ws):
        own = [g for g in generations if g.verifier == number]
        acceptance[w] = sum(sum(g.accepted) for g in own) / sum(sum(g.examined) for g in own)
        texts = [tokenizer.decode(g.tokens, skip_special_tokens=True) for g in own]
        told = [share_stated(article_facts(row["article"]), text) for row, text in zip(rows, texts, strict=True)]
        facts[w] = sum(told) / len(told)
    assert 0.5 <= acceptance[1.0] <= 0.7
    assert acceptance[0.7] >= acceptance[1.0] + 0.06
    assert acceptance[0.2] >= 0.9
    assert facts[1.0] >= 0.97
    assert facts[0.7] >= facts[1.0] - 0.02
    assert facts[0.2] <= facts[1.0] - 0.3
