"""A draft with another tokenizer: q is its law over shared tokens, columns by id; its text follows the target's."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import sdbench
from sdbench import embedded
from sdbench.draft import NoDraft
from sdbench.draft.intersection import IntersectionDrafter
from sdbench.draft.translation import Translation
from sdbench.verify import Ensemble, Exact
from tests.draft.toys import word_tokenizer
from tests.engine.models import PROMPTS, pair, tiny

VOCAB = 61
TEXTS = [[5, 6, 7, 8, 5, 6], [9, 9, 9, 9], [11, 12], *PROMPTS[:2]]


def permuted_pair() -> tuple[Any, Any, torch.Tensor]:
    """A pair, and its draft with embeddings and head in another order: id order[n] for id n."""
    target, draft = pair("llama")
    _, other = pair("llama")
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for module in {other.get_input_embeddings(), other.get_output_embeddings()}:
            module.weight[order] = module.weight.clone()
    return target, (draft, other), order


def decode(engine: Any, drafter: str, temperature: float, batch_size: int = 3, step: int = 1) -> dict[Any, Any]:
    built = engine.drafter(drafter, engine.warp(temperature))
    options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 10, "stop_ids": (), "num_draft": 3}
    keys = range(len(TEXTS))[::step]
    rules = [Exact(), Ensemble(w=0.5)]
    decoded = sdbench.generate(
        None, None, TEXTS[::step], rules, keys=keys, drafter=built, engine=engine, batch_size=batch_size, **options
    )
    return {(keys[g.prompt], g.verifier): (g.tokens, g.drafted, g.draft_tokens, g.q) for g in decoded}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_permuted_vocabulary_drafts_as_the_models_own(temperature):
    target, (draft, other), order = permuted_pair()
    tokenizer, other_tokenizer = word_tokenizer(VOCAB), word_tokenizer(VOCAB, order.tolist())
    plain = decode(sdbench.Engine(target, draft), "model", temperature)
    engine = sdbench.Engine(target, other, tokenizer, draft_tokenizer=other_tokenizer)
    translated = decode(engine, "intersection", temperature)
    for key, (tokens, drafted, drafts, q) in plain.items():
        assert translated[key][:3] == (tokens, drafted, drafts)
        assert translated[key][3] == pytest.approx(q, abs=1e-9)
    in_another_batch = decode(engine, "intersection", temperature, 32, -1)
    assert {key: text[:3] for key, text in in_another_batch.items()} == {key: t[:3] for key, t in translated.items()}


def test_a_smaller_vocabulary_drafts_what_both_have():
    target, draft = tiny("llama"), tiny("llama", layers=1, vocab=40, seed=5)
    tokenizer, other = word_tokenizer(VOCAB), word_tokenizer(40, torch.arange(39, -1, -1).tolist())
    engine = sdbench.Engine(target, draft, tokenizer, draft_tokenizer=other)
    greedy, drawn = decode(engine, "intersection", 0.0), decode(engine, "intersection", 1.0)
    assert all(token < 40 for texts in (greedy, drawn) for _, _, drafts, _ in texts.values() for token in drafts)
    for (key, text), other_text in zip(drawn.items(), decode(engine, "intersection", 1.0, 1).values(), strict=True):
        assert text[:3] == other_text[:3], key
    alone = sdbench.generate(
        target, None, TEXTS, [Exact()], drafter=NoDraft(), temperature=0.0, max_new_tokens=10, stop_ids=()
    )
    assert [greedy[n, 0][0] for n in range(len(TEXTS))] == [g.tokens for g in alone]


def test_the_law_is_the_drafts_over_shared_tokens_renormalised():
    draft, order = tiny("llama", layers=1, vocab=40, seed=5), list(range(39, -1, -1))
    engine = sdbench.Engine(tiny("llama"), draft, word_tokenizer(VOCAB), draft_tokenizer=word_tokenizer(40, order))
    drafter: Any = engine.drafter("intersection", engine.warp(1.0))
    law = drafter.warp.law(drafter._restrict(torch.arange(40.0).double()[None]))
    assert law[0, 40:].sum() == 0
    torch.testing.assert_close(law[0, :40], torch.arange(40.0).double().softmax(-1)[order])


def test_a_token_that_the_draft_lacks_is_spelt_in_its_own():
    translation = Translation(word_tokenizer(5), word_tokenizer(3, [2, 0, 1]))
    assert translation.shared == {0: 2, 1: 0, 2: 1}
    assert translation.ids_of([1, 3, 0]) == [0, 2, 2], "t3 is no word of the draft: its unknown token, t0"


def test_what_needs_one_vocabulary_is_refused():
    target, draft = tiny("llama"), tiny("llama", layers=1, vocab=40)
    words = word_tokenizer(VOCAB)
    engine = sdbench.Engine(target, draft, words, draft_tokenizer=word_tokenizer(40))
    with pytest.raises(ValueError, match="drafter=model needs a draft with the target's tokenizer"):
        engine.drafter("model", engine.warp())
    with pytest.raises(ValueError, match="drafter=intersection needs a tokenizer of the draft: give one"):
        sdbench.Engine(target, target, words).drafter("intersection", engine.warp())


@pytest.mark.parametrize("add_special_tokens", [True, False], ids=["begun", "not begun"])
def test_a_text_begins_once_in_the_drafts_ids(add_special_tokens):
    """Both tokenizers begin a text with <s>."""
    folders = embedded.path("llama-tiny", "target"), embedded.path("qwen-tiny", "draft")
    target, draft = map(AutoTokenizer.from_pretrained, folders)
    translation = Translation(target, draft)
    drafter: Any = SimpleNamespace(translation=translation)
    prompt = target("How many apples?", add_special_tokens=add_special_tokens)["input_ids"]
    ids = IntersectionDrafter.begin_text(drafter, prompt).ids
    assert len(translation.begin) == 1
    assert ids[:1] == translation.begin
    assert ids.count(ids[0]) == 1
    assert draft.decode(ids, skip_special_tokens=True) == "How many apples?"
