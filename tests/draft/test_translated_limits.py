"""Texts near or beyond the positions of a draft with another tokenizer: those rows are not drafted, and no other is affected."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import sdbench
from sdbench.draft import NoDraft
from sdbench.verify import Exact
from tests.draft.test_intersection import TEXTS, VOCAB, decode
from tests.draft.toys import word_tokenizer
from tests.engine.models import tiny

POSITIONS = 32


def spelling_tokenizer() -> Any:
    """A tokenizer of characters that has the words t5 to t8; other words take two or three ids."""
    merges = [(" ", "t"), *((" t", digit) for digit in "5678")]
    pieces = [*"0123456789t ", *(first + second for first, second in merges)]
    backend = Tokenizer(BPE({piece: n for n, piece in enumerate(pieces)}, merges))
    backend.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("num_tokens", [15, 40], ids=["more ids only", "more tokens too"])
@pytest.mark.parametrize("drafter", ["intersection", "universal"])
def test_a_prompt_with_more_ids_than_the_draft_has_positions_is_decoded_without_drafts(drafter, num_tokens):
    """Learned positions: the draft cannot read further."""
    tokenizer = spelling_tokenizer()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=POSITIONS, n_embd=32, n_layer=1, n_head=4)
    draft = GPT2LMHeadModel(config).double().eval()
    engine = sdbench.Engine(tiny("llama"), draft, word_tokenizer(VOCAB), draft_tokenizer=tokenizer)
    prompts = [[11, 12, 13, 14, 15] * (num_tokens // 5), [5, 6, 7, 8]]
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 8, "stop_ids": (), "num_draft": 3}
    alone = sdbench.generate(engine.target_model, None, prompts, [Exact()], drafter=NoDraft(), **options)
    built = engine.drafter(drafter, engine.warp(0.0))
    offered = 0
    for order in (1, -1):
        decoded = sdbench.generate(
            None, None, prompts[::order], [Exact()], drafter=built, engine=engine, batch_size=2, **options
        )
        assert [g.tokens for g in decoded[::order]] == [g.tokens for g in alone]
        assert sum(decoded[::order][0].drafted or ()) == 0
        offered += sum(decoded[::order][1].drafted or ())
    assert drafter == "universal" or offered > 0


def test_whether_a_row_drafts_near_the_drafts_limit_does_not_depend_on_the_batch():
    """Texts may have 16 tokens, as many as the draft has positions."""
    longest = max(map(len, TEXTS)) + 10
    target, draft = tiny("llama"), tiny("llama", layers=1, seed=1, max_position_embeddings=longest)
    tokenizers = word_tokenizer(VOCAB), word_tokenizer(VOCAB, range(VOCAB)[::-1])
    engine = sdbench.Engine(target, draft, tokenizers[0], draft_tokenizer=tokenizers[1], capture="off")
    for drafter in ("intersection", "universal"):
        once = decode(engine, drafter, 1.0, 1)
        assert {key: text[:3] for key, text in decode(engine, drafter, 1.0, 4).items()} == {
            key: text[:3] for key, text in once.items()
        }
