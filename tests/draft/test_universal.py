"""A draft with another tokenizer, by text: what it writes is encoded by the target's, behind a window that never changes."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import sdbench
from sdbench.draft import NoDraft
from sdbench.draft.spelling import Spelling, WrittenDraft, refuse_undecodable
from sdbench.draft.text_index import count_common
from sdbench.lm.load import find, load_model, load_tokenizer
from sdbench.prepare.pair import folder_of
from sdbench.verify import Ensemble, Exact
from tests.draft.heads import write_gate
from tests.draft.test_intersection import TEXTS, VOCAB, decode, permuted_pair
from tests.draft.toys import word_tokenizer
from tests.engine.models import tiny

PROMPT = "Mia has 34 cards. Mia loses 9. Mia gets 11 more. How many cards does Mia have now?\nMia has 34 cards.\n"


def checkpoint(name: str) -> Any:
    return find(f"embedded:{name}", folder_of(f"embedded:{name}"))


@pytest.fixture(scope="module")
def trained() -> sdbench.Engine:
    """The target of one trained pair and the draft of another, which has another tokenizer."""
    parts = [checkpoint("llama-tiny/target"), checkpoint("qwen-tiny/draft")]
    target, draft = (load_model(part, device="cpu", dtype="float64") for part in parts)
    tokenizer, draft_tokenizer = map(load_tokenizer, parts)
    return sdbench.Engine(target, draft, tokenizer, draft_tokenizer=draft_tokenizer)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_permuted_vocabulary_drafts_what_the_models_own_would_write(temperature):
    target, (draft, other), order = permuted_pair()
    words = word_tokenizer(VOCAB)
    engine = sdbench.Engine(target, other, words, draft_tokenizer=word_tokenizer(VOCAB, order.tolist()))
    translated = decode(engine, "universal", temperature)
    same = decode(sdbench.Engine(target, draft, words, draft_tokenizer=words), "universal", temperature)
    assert translated == same
    if not temperature:
        plain = decode(sdbench.Engine(target, draft), "model", temperature)
        lossless = [key for key in plain if key[1] == 0]  # the blend reads q, which is one token here
        assert [plain[key][:3] for key in lossless] == [translated[key][:3] for key in lossless]
    in_another_batch = decode(engine, "universal", temperature, 32, -1)
    assert {key: text[:3] for key, text in in_another_batch.items()} == {key: t[:3] for key, t in translated.items()}
    assert decode(engine, "universal", temperature, 1) == translated


def test_a_smaller_vocabulary_keeps_the_targets_text():
    target, draft = tiny("llama"), tiny("llama", layers=1, vocab=40, seed=5)
    order = torch.arange(39, -1, -1).tolist()
    engine = sdbench.Engine(target, draft, word_tokenizer(VOCAB), draft_tokenizer=word_tokenizer(40, order))
    greedy = decode(engine, "universal", 0.0)
    alone = sdbench.generate(
        target, None, TEXTS, [Exact()], drafter=NoDraft(), temperature=0.0, max_new_tokens=10, stop_ids=()
    )
    assert [greedy[n, 0][0] for n in range(len(TEXTS))] == [g.tokens for g in alone]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("length", ["constant", "confidence", "gate"])
def test_nan_logits_of_the_draft_are_named_also_where_its_blocks_are_cut(length, temperature, tmp_path):
    draft = tiny("llama", layers=1, seed=5)
    draft.get_output_embeddings().weight.data[7] = torch.nan
    words = word_tokenizer(VOCAB)
    engine = sdbench.Engine(tiny("llama"), draft, words, draft_tokenizer=words)
    options = {"length": length, **({"length_head": write_gate(tmp_path)} if length == "gate" else {})}
    drafter = engine.drafter("universal", engine.warp(temperature), options)
    with pytest.raises(ValueError, match="the draft model's logits are NaN"):
        sdbench.generate(
            None, None, TEXTS, [Exact()], temperature=temperature, drafter=drafter, engine=engine, max_new_tokens=4
        )


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_trained_pair_of_two_tokenizers_is_lossless_and_keeps_drafts(trained, batch_size):
    prompts = [
        list(trained.tokenizer(text)["input_ids"]) for text in (PROMPT, PROMPT[:60], "Say it: caf\u00e9 \U0001f600")
    ]
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 40, "stop_ids": ()}
    alone = sdbench.generate(
        trained.target_model, None, prompts, [Exact()], drafter=NoDraft(), batch_size=batch_size, **options
    )
    drafter: Any = trained.drafter("universal", trained.warp(0.0))
    drafted = sdbench.generate(
        None,
        None,
        prompts,
        [Exact(), Ensemble(w=0.5)],
        drafter=drafter,
        engine=trained,
        batch_size=batch_size,
        **options,
    )
    assert [g.tokens for g in drafted if g.verifier == 0] == [g.tokens for g in alone]
    accepted, offered = (sum(sum(getattr(g, name) or ()) for g in drafted) for name in ("accepted", "drafted"))
    assert accepted > 0.3 * offered > 0
    assert drafter.counts["offered"] >= offered, "drafts past a stop are offered, and are no drafted position"
    assert drafter.counts["blocks"] > 0 < drafter.counts["text_s"]
    assert 0 < drafter.facts["shared_tokens"] < drafter.facts["target_tokens"]


def test_a_text_in_the_drafts_ids_is_what_its_tokenizer_makes_of_the_whole(trained):
    spelling = Spelling(trained.tokenizer, trained.draft_tokenizer, 4)
    text, tokens = spelling.begin_text([]), list(trained.tokenizer(PROMPT * 3, add_special_tokens=False)["input_ids"])
    for start in range(0, len(tokens), 3):
        spelling.extend({0: text}, {0: tokens[start : start + 3]})
        shown = trained.tokenizer.decode(tokens[: start + 3], skip_special_tokens=True)
        assert text.ids == list(trained.draft_tokenizer(shown)["input_ids"])
    assert len(text.window) < 20 < text.num_settled


def test_a_token_that_the_drafts_last_id_changes_ends_the_block(trained):
    target, draft = trained.tokenizer, trained.draft_tokenizer
    spelling = Spelling(target, draft, 10)
    text = spelling.begin_text(list(target("Mia has 34", add_special_tokens=False)["input_ids"]))
    letters = [index for letter in " cards" for index in draft(letter, add_special_tokens=False)["input_ids"]]
    [block] = spelling.spell([text], [WrittenDraft(letters, is_ended=False)], [5])
    [ended] = spelling.spell([text], [WrittenDraft(letters, is_ended=True)], [5])
    assert ended.tokens == list(target(" cards", add_special_tokens=False)["input_ids"])
    assert ended.num_lost == 0
    assert block.tokens == ended.tokens[: len(block.tokens)] != ended.tokens
    assert block.num_lost == len(ended.tokens) - len(block.tokens)
    digits = [index for digit in "56" for index in draft(digit, add_special_tokens=False)["input_ids"]]
    split = [len(target("34" + more, add_special_tokens=False)["input_ids"]) for more in ("", "56")]
    [glued] = spelling.spell([text], [WrittenDraft(digits, is_ended=True)], [5])
    assert len(glued.tokens) <= split[1] - split[0] + 1


def test_a_text_that_ends_inside_a_character_waits_for_the_rest(trained):
    spelling = Spelling(trained.tokenizer, trained.draft_tokenizer, 10)
    tokens = list(trained.tokenizer("Mia \U0001f600 has", add_special_tokens=False)["input_ids"])
    text = spelling.begin_text(tokens[:2])
    seen = []
    for token in tokens[2:]:
        spelling.extend({0: text}, {0: [token]})
        seen.append(text.is_open)
    assert not all(seen)
    assert text.is_open
    assert text.ids == list(trained.draft_tokenizer("Mia \U0001f600 has")["input_ids"])


def test_counts_are_those_of_a_recount_over_whole_texts(trained, monkeypatch):
    """Offered and lost tokens by their definition, from whole texts; the clock ticks once for each handling of texts."""
    target, draft = trained.tokenizer, trained.draft_tokenizer
    drafter: Any = trained.drafter("universal", trained.warp(0.0))
    ticks = count()
    monkeypatch.setattr("sdbench.draft.universal.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    texts: list[list[int]] = []  # of each round, of a batch of one
    blocks, lost, num_compared = [], [], 0
    spell, draw = drafter.spelling.spell, drafter.draft

    def spelled(of_rows: Any, drafts: Any, limits: Any) -> Any:
        nonlocal num_compared
        (block,), (written,), (limit,) = given = spell(of_rows, drafts, limits), drafts, limits
        lost.append(block.num_lost)
        shown = target.decode(texts[-1], skip_special_tokens=True)
        before = list(target(shown, add_special_tokens=False)["input_ids"])
        if before == [token for token in texts[-1] if token not in target.all_special_ids]:
            ends = [written.ids, written.ids if written.is_ended else written.ids[:-1]]
            whole, shorter = (
                list(target(shown + draft.decode(ids), add_special_tokens=False)["input_ids"]) for ids in ends
            )
            size, common = len(before), count_common(whole, shorter)
            kept = whole[size:common][:limit] if whole[:size] == before == shorter[:size] else []
            assert block.tokens == kept
            assert block.num_lost == max(0, min(limit, len(whole) - size) - len(kept))
            num_compared += 1
        return given[0]

    def record_draft(context: Any, *more: Any) -> Any:
        texts.append(context.tokens[0, : context.lengths[0]].tolist())
        block = draw(context, *more)
        blocks.append(int(block.lengths[0]))
        return block

    monkeypatch.setattr(drafter.spelling, "spell", spelled)
    monkeypatch.setattr(drafter, "draft", record_draft)
    prompts = [list(target(text)["input_ids"]) for text in (PROMPT, PROMPT[:60], "Say it: caf\u00e9 qwerty")]
    options: dict[str, Any] = {
        "temperature": 0.0,
        "max_new_tokens": 30,
        "num_draft": 3,
        "stop_ids": (),
        "batch_size": 1,
    }
    decoded = sdbench.generate(None, None, prompts, [Exact()], drafter=drafter, engine=trained, **options)
    assert num_compared > len(lost) / 2 > 5
    assert sum(lost) > 0, "where nothing is lost, nothing is tested"
    wanted = {"blocks": len(lost), "offered": sum(blocks), "lost": sum(lost)}
    assert {name: drafter.counts[name] for name in wanted} == wanted
    assert sum(blocks) == sum(sum(g.drafted or ()) for g in decoded)
    assert drafter.counts["text_s"] == len(lost) + sum(1 for text in texts)


@pytest.mark.parametrize("length", ["value", "gate"])
def test_of_blocks_that_a_length_policy_cuts_only_what_is_offered_counts(trained, length, tmp_path):
    options = {"length": length, **({"length_head": write_gate(tmp_path, bias=-23.7)} if length == "gate" else {})}
    drafter: Any = trained.drafter("universal", trained.warp(0.0), options)
    draw, written = drafter.drafter.draft, []

    def record_draft(*arguments: Any) -> Any:
        block = draw(*arguments)
        written.append(int(block.lengths.sum()))
        return block

    drafter.drafter.draft = record_draft
    prompts = [list(trained.tokenizer(text)["input_ids"]) for text in (PROMPT, PROMPT[:60])]
    decoding: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 20, "num_draft": 5, "stop_ids": ()}
    decoded = sdbench.generate(None, None, prompts, [Exact()], drafter=drafter, engine=trained, **decoding)
    offered = sum(sum(g.drafted or ()) for g in decoded)
    assert drafter.counts["offered"] == offered > 0
    assert offered < sum(written), "no block was cut"


@pytest.mark.parametrize("name", ["universal", "intersection"])
def test_shared_tokens_are_those_that_both_vocabularies_name_alike(trained, name):
    """Counted from the pieces of two byte-level vocabularies; parts of a character are no text."""
    drafter: Any = trained.drafter(name, trained.warp(0.0))
    tokenizers = trained.tokenizer, trained.draft_tokenizer
    special = {token for each in tokenizers for token in each.all_special_tokens}
    pieces = set.intersection(*(set(each.get_vocab()) for each in tokenizers)) - special
    texts = {piece for piece in pieces if "\ufffd" not in trained.tokenizer.convert_tokens_to_string([piece])}
    marks = set.intersection(*(set(each.all_special_tokens) for each in tokenizers))
    assert drafter.facts == {"shared_tokens": len(texts | marks), "target_tokens": drafter.num_ids}


def test_a_tokenizer_that_cannot_decode_its_ids_is_refused(trained):
    refuse_undecodable(trained.tokenizer, "target")
    refuse_undecodable(word_tokenizer(VOCAB), "draft")
    broken: Any = load_tokenizer(checkpoint("qwen-tiny/draft"))
    broken.backend_tokenizer.decoder = None
    with pytest.raises(ValueError, match="the tokenizer of the draft cannot decode its own ids"):
        refuse_undecodable(broken, "draft")
