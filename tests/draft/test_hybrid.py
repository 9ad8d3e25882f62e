"""The hybrid chain: model drafts while q(x) is high, copies behind them, and an index that forgets drafts again."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sdbench
from sdbench.draft import NoDraft
from sdbench.draft.text_index import TextIndex
from sdbench.types import DraftBlock
from sdbench.verify import Ensemble, Exact
from tests.engine.models import pair

TOKENS = st.lists(st.integers(0, 3), max_size=70)


@settings(max_examples=100, deadline=None)
@given(TOKENS, TOKENS, TOKENS, st.integers(1, 3))
def test_an_index_that_took_tokens_back_is_as_if_they_had_not_been(text, drafts, after, shortest):
    index = TextIndex(shortest, text)
    index.extend(drafts)
    index.shrink(len(drafts))
    assert list(index.earlier(8)) == list(TextIndex(shortest, text).earlier(8))
    index.extend(after)
    assert list(index.earlier(8)) == list(TextIndex(shortest, text + after).earlier(8))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_copies_follow_the_models_drafts(temperature):
    engine = sdbench.Engine(*pair("llama"))
    hybrid: Any = engine.drafter("hybrid", engine.warp(temperature), {"shortest": 1})
    law = torch.zeros(2, 1, 61)
    law[:, 0, 7] = 1
    unsure = DraftBlock(
        torch.tensor([[7], [7]]), law if temperature else torch.tensor([[7], [7]]), torch.tensor([1, 0])
    )
    hybrid.model = type("Model", (), {"draft": lambda *_: unsure})
    hybrid.num_copied = 0
    for row, text in enumerate([[7, 8, 9, 5], [5, 6, 5]]):
        hybrid.lookup.admit(row, TextIndex(1, text))
    hybrid.lookup.read = lambda context: None
    block = hybrid.draft(None, 3, torch.tensor([3, 2]), torch.zeros(2, 3), frozenset())
    assert block.lengths.tolist() == [3, 2]
    assert block.tokens[0].tolist() == [7, 8, 9]
    assert block.tokens[1, :2].tolist() == [6, 5]
    if temperature:
        assert block.q.argmax(-1)[0].tolist() == [7, 8, 9]
        assert block.q[1, :2].argmax(-1).tolist() == [6, 5]
        assert (block.q[0].sum(-1) == 1).all()
    assert list(hybrid.lookup.texts[0].tokens) == [7, 8, 9, 5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_the_targets_and_do_not_depend_on_the_batch(temperature):
    models, prompts = pair("llama"), [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [9, 9, 9, 9], [11, 12], [5]]
    options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 12, "stop_ids": (), "num_draft": 4}
    texts = []
    for batch_size, step in ((1, 1), (3, -1)):
        engine = sdbench.Engine(*models)
        drafter = engine.drafter("hybrid", engine.warp(temperature), {"shortest": 1})
        rules = [Exact(), Ensemble(w=0.5)]
        keys = range(4)[::step]
        decoded = sdbench.generate(
            None, None, prompts[::step], rules, keys=keys, drafter=drafter, engine=engine, batch_size=batch_size,
            **options,
        )  # fmt: skip
        texts.append({(keys[g.prompt], g.verifier): (g.tokens, g.drafted) for g in decoded})
    assert texts[0] == texts[1]
    if not temperature:
        alone = sdbench.generate(models[0], None, prompts, [Exact()], drafter=NoDraft(), **options)
        assert [texts[0][n, 0][0] for n in range(4)] == [g.tokens for g in alone]
