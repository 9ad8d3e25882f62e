"""Heads: which states they read, what their folders promise, and the law of what they decide."""

import json
from itertools import pairwise

import pytest
import torch

from sdbench.draft import BaseDrafter
from sdbench.engine import generate
from sdbench.types import DraftBlock, Evidence
from sdbench.verify import Diversed, Ensemble, Exact, Head, Judge
from sdbench.verify.head import FEATURES, linear
from tests.engine.models import PROMPTS, pair

V, K, D = 5, 3, 4
OF_ENSEMBLES = tuple(name for name in FEATURES if name != "token_hidden")


def evidence(batch=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    p, q = (torch.rand(2, batch, K + 1, V, generator=g, dtype=torch.float64) + 0.05).unbind()
    p, q = p / p.sum(-1, keepdim=True), (q / q.sum(-1, keepdim=True))[:, :K]
    states = torch.randn(2, batch, K + 1, D, generator=g)
    draft = DraftBlock(
        torch.randint(0, V, (batch, K), generator=g), q, torch.full((batch,), K), q.log(), states[0][:, :K]
    )
    return Evidence(p, draft, logits=p.log(), target_hidden=states[1])


def random_head(kind="ensemble", features=("draft_hidden", "target_hidden"), hidden=0, size=2 * D, seed=0, **card):
    g = torch.Generator().manual_seed(seed)
    head = linear(kind, features, size, hidden=hidden)
    return Head(kind, tuple(features), {k: torch.randn(v.shape, generator=g) for k, v in head.weights.items()}, card)


@pytest.mark.parametrize("features", [("draft_hidden", "target_hidden"), ("tv", "target_entropy"), OF_ENSEMBLES])
@pytest.mark.parametrize("hidden", [0, 3])
def test_a_saved_head_is_loaded_as_it_was_and_once(features, hidden, tmp_path):
    size = sum(D if name.endswith("hidden") else 1 for name in features)
    head = random_head(features=features, hidden=hidden, size=size, task="gsm8k-tiny")
    head.save(tmp_path)
    loaded = Head.load(str(tmp_path), "ensemble")
    torch.testing.assert_close(loaded.score(loaded.features_of(evidence())), head.score(head.features_of(evidence())))
    assert Head.load(str(tmp_path), "ensemble") is loaded
    assert loaded.label.startswith("gsm8k-tiny@")
    random_head(features=features, hidden=hidden, size=size, seed=1).save(tmp_path)
    assert Head.load(str(tmp_path), "ensemble") is not loaded


def test_a_head_made_of_another_is_saved_as_what_it_is(tmp_path):
    random_head("judge", task="gsm8k-tiny").save(tmp_path / "judge")
    judge = Head.load(str(tmp_path / "judge"), "judge")
    Head("ensemble", ("target_hidden", "draft_hidden"), judge.weights, judge.card).save(tmp_path / "turned")
    turned = Head.load(str(tmp_path / "turned"), "ensemble")
    assert turned.features == ("target_hidden", "draft_hidden")
    assert turned.card["task"] == "gsm8k-tiny"


def test_a_head_is_known_by_all_that_decides_what_it_says(tmp_path):
    random_head(task="gsm8k-tiny").save(tmp_path)
    labels = [Head.load(str(tmp_path), "ensemble").label]
    edit(tmp_path, features=["target_hidden", "draft_hidden"])
    labels.append(Head.load(str(tmp_path), "ensemble").label)
    edit(tmp_path, seconds=17)
    labels.append(Head.load(str(tmp_path), "ensemble").label)
    random_head(seed=1, task="gsm8k-tiny").save(tmp_path)
    labels.append(Head.load(str(tmp_path), "ensemble").label)
    assert labels[1] == labels[2]
    assert len(set(labels)) == 3


@pytest.mark.parametrize(
    ("name", "spoil", "sentence"),
    [
        (
            "none",
            None,
            "sdbench.train ensemble model=NAME task=NAME, then give verifier.head=FOLDER or verifier.head=trained:TASK",
        ),
        ("embedded:llama-tiny/none", None, "does not ship"),
        (
            "folder",
            lambda f: (f / "head.json").unlink(),
            r"has no head\.json: train one with python -m sdbench.train ensemble",
        ),
        ("folder", lambda f: (f / "head.safetensors").write_bytes(b"x"), "is damaged"),
        ("folder", lambda f: (f / "head.json").write_text("{"), "is damaged"),
        ("folder", lambda f: edit(f, format=99), "has format 99, and this version reads up to 1: update sdbench"),
        ("folder", lambda f: edit(f, kind="judge"), "is of kind judge, and this rule takes one of kind ensemble"),
        ("folder", lambda f: edit(f, features=["token_hidden"]), "features of ensemble heads must be among"),
        ("folder", lambda f: (f / "head.json").write_text("[]"), "head.json is not a head's card"),
        ("folder", lambda f: edit(f, format="2"), "head.json is not a head's card"),
        ("folder", lambda f: reshaped(f, weight=(2, 8)), r"weight has the shape \(2, 8\), not \(1, 8\)"),
        ("folder", lambda f: reshaped(f, bias=None), r"bias has the shape None, not \(1,\)"),
        ("folder", lambda f: reshaped(f, shift=(1,)), r"scale has the shape None, not \(8,\)"),
        ("folder/head.json", None, "cannot be read: Not a directory"),
        ("folder", lambda f: edit(f, features=["moon"]), "features of ensemble heads must be among"),
        (
            "folder",
            lambda f: random_head(seed=5).save(f.parent / "o") or swap(f),
            "is not the one that head.json names",
        ),
    ],
)
def test_a_bad_head_is_one_sentence(name, spoil, sentence, tmp_path):
    folder = tmp_path / "folder"
    random_head().save(folder)
    if spoil:
        spoil(folder)
    with pytest.raises(ValueError, match=sentence):
        Diversed(str(tmp_path / name) if name.startswith("folder") else name)


def edit(folder, **changes):
    card = json.loads((folder / "head.json").read_text())
    (folder / "head.json").write_text(json.dumps(card | changes))


def reshaped(folder, **shapes):
    """Tensors of other shapes, or none, under a card that names them."""
    weights = dict(Head.load(str(folder), "ensemble").weights)
    for name, shape in shapes.items():
        weights.pop(name, None)
        weights |= {} if shape is None else {name: torch.ones(shape)}
    Head("ensemble", ("draft_hidden", "target_hidden"), weights).save(folder)


def swap(folder):
    (folder / "head.safetensors").write_bytes((folder.parent / "o" / "head.safetensors").read_bytes())


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    head = random_head()
    Head("ensemble", head.features, {**head.weights, "bias": torch.tensor([float("nan")])}).save(tmp_path)
    with pytest.raises(ValueError, match="weights that are not finite: its training diverged"):
        Diversed(str(tmp_path))


def test_the_offset_makes_one_head_a_curve_between_the_draft_and_the_lossless_rule():
    head, seen = random_head(), evidence()
    p, q = seen.p[:, :-1], seen.draft.q
    torch.testing.assert_close(Diversed(head, offset=float("inf")).settle(seen).out(p, q), p)
    torch.testing.assert_close(Diversed(head, offset=float("-inf")).settle(seen).out(p, q), q)
    assert bool(Diversed(head, offset=float("inf")).is_lossless().all())
    assert not bool(Diversed(head).is_lossless().any())
    accepted = [Diversed(head, offset=b).measure(seen).expected for b in (4.0, 1.0, 0.0, -1.0, -4.0)]
    assert all(bool((a < b).all()) for a, b in pairwise(accepted))


def test_each_position_has_a_weight_of_its_own_and_emits_its_mixture():
    head, seen = random_head(), evidence()
    rule = Diversed(head).settle(seen)
    w = torch.sigmoid(head.score(head.features_of(seen)).double())[..., None]
    assert rule.w.shape == (2, K)
    p, q = seen.p[:, :-1], seen.draft.q
    torch.testing.assert_close(rule.out(p, q), w * p + (1 - w) * q)


def one_way(target, token: int, other: int) -> Head:
    """A head that can only be right one way: w is 1 where the state that predicts the draft prefers one token to another."""
    rows = target.get_output_embeddings().weight.detach()
    weight = 1e4 * (rows[token] - rows[other])[None].float()
    return Head("ensemble", ("target_hidden",), {"weight": weight, "bias": torch.zeros(1)})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_slot_i_reads_the_state_that_predicts_draft_i(temperature):
    """Where the head says 0 every draft stays, and where it says 1 the target's law is kept: no position is off by one."""
    target, draft = pair("llama")
    options = {"num_draft": 4, "temperature": temperature, "max_new_tokens": 24, "stop_ids": (), "measure": True}
    generations = generate(
        target, draft, PROMPTS, [Diversed(one_way(target, 5, 9), greedy="mixture")], seed=3, **options
    )
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        ids = torch.tensor([[*prompt, *generation.tokens]])
        with torch.no_grad():
            logits = target(ids).logits[0]
        place, slot = 0, 0
        for examined, accepted in zip(generation.examined, generation.accepted, strict=True):
            for i in range(examined):
                row = logits[len(prompt) + place + i - 1]
                if row[5] < row[9]:  # the draft's law: nothing is refused
                    assert i < accepted
                elif temperature:
                    assert generation.bias[slot + i] < 1e-6
            place, slot = place + accepted + 1, slot + examined


def test_a_head_may_know_the_slot_in_its_block():
    """w is 1 at the first slot and 0 behind it: what is refused is a first draft."""
    first = Head("ensemble", ("slot",), {"weight": torch.tensor([[-400.0]]), "bias": torch.tensor([200.0])})
    target, draft = pair("llama")
    options = {"num_draft": 4, "max_new_tokens": 40, "stop_ids": (), "temperature": 1.0}
    generations = generate(target, draft, PROMPTS, [Diversed(first)], **options)
    rounds = [(e, a) for g in generations for e, a in zip(g.examined, g.accepted, strict=True)]
    assert {a for e, a in rounds if a < e} == {0}
    assert {a for e, a in rounds if a == e} & {3, 4}


class Blind(BaseDrafter):
    """It reads no draft model."""

    def draft(self, context, k, lengths, u, needs):
        raise AssertionError("it is refused before")


def test_a_head_that_reads_the_drafts_states_needs_a_drafter_that_has_them():
    options = {"max_new_tokens": 4, "stop_ids": (), "temperature": 1.0, "num_draft": 2, "drafter": Blind()}
    with pytest.raises(ValueError, match="Diversed reads the states of a draft model, and this drafter has none"):
        generate(*pair("llama"), PROMPTS, [Diversed(random_head(size=64))], **options)
    judge = Judge(random_head("judge", ("draft_hidden", "token_hidden")))
    with pytest.raises(ValueError, match="Judge reads the states of a draft model, and this drafter has none"):
        generate(*pair("llama"), PROMPTS, [judge], **options)
    of_laws = random_head(features=("tv",), size=1)
    assert not Diversed(of_laws).limits.states
    assert not Judge(random_head("judge", ("token_hidden",), size=D)).limits.states


def test_with_a_head_that_is_one_everywhere_texts_are_the_lossless_ones():
    target, draft = pair("llama")
    sure = Head("ensemble", ("tv",), {"weight": torch.zeros(1, 1), "bias": torch.tensor([200.0])})
    rules = [Diversed(sure), Exact(), Ensemble(1.0)]
    for temperature in (0.0, 1.0):
        generations = generate(
            target, draft, PROMPTS, rules, temperature=temperature, max_new_tokens=20, stop_ids=(), num_draft=3
        )
        texts = [[g.tokens for g in generations if g.verifier == rule] for rule in range(3)]
        assert texts[0] == texts[1] == texts[2]


def test_a_judge_keeps_what_the_lossless_rule_keeps_and_what_its_head_calls_good():
    never = Head("judge", ("token_hidden",), {"weight": torch.zeros(1, 32), "bias": torch.tensor([-200.0])})
    always = Head("judge", ("token_hidden",), {"weight": torch.zeros(1, 32), "bias": torch.tensor([200.0])})
    target, draft = pair("llama")
    for temperature in (0.0, 1.0):
        rules = [Judge(never), Exact(), Judge(always), Judge(always, threshold=float("inf"))]
        generations = generate(
            target, draft, PROMPTS, rules, temperature=temperature, max_new_tokens=20, stop_ids=(), num_draft=3
        )
        texts = [[g.tokens for g in generations if g.verifier == rule] for rule in range(4)]
        assert texts[0] == texts[1] == texts[3]
        kept = [g for g in generations if g.verifier == 2]
        assert all(sum(g.accepted) == sum(g.examined) for g in kept)


def test_a_judge_reads_the_state_at_the_token_itself():
    seen = evidence()
    head = random_head("judge", ("token_hidden",), size=D)
    torch.testing.assert_close(head.features_of(seen), seen.target_hidden[:, 1:].float())
    torch.testing.assert_close(
        random_head(features=("target_hidden",), size=D).features_of(seen), seen.target_hidden[:, :-1].float()
    )


@pytest.mark.parametrize(
    ("rule", "options"), [(Diversed, {"offset": float("nan")}), (Diversed, {"mix": "x"}), (Judge, {"threshold": -1})]
)
def test_knobs_outside_their_range_are_refused(rule, options):
    head = random_head("ensemble" if rule is Diversed else "judge")
    with pytest.raises(ValueError, match=f"{next(iter(options))} of {rule.__name__} must be"):
        rule(head, **options)
