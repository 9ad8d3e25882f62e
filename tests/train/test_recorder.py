"""The recorder against a plain forward of both models over the finished texts: features and probabilities of each decided token."""

import pytest
import torch

from sdbench.engine import Engine, Options, Request
from sdbench.train.recorder import Recorder
from sdbench.verify import Diversed, Head
from sdbench.verify.head import FEATURES
from tests.engine.models import PROMPTS, pair
from tests.engine.shortage import runs_short

HEAD = Head("ensemble", ("target_entropy",), {"weight": torch.tensor([[0.7]]), "bias": torch.tensor([-1.0])})
SAMPLES = 3


def record(target, draft, temperature, **more):
    engine, recorder = Engine(target, draft), Recorder(FEATURES)
    warp = engine.warp(temperature)
    options = Options(warp, 24, frozenset(range(0, 61, 8)), seed=5, **more)
    texts = [(prompt, sample) for prompt in range(len(PROMPTS)) for sample in range(SAMPLES)]
    requests = [Request(prompt, n, sample, str(prompt), 4) for n, (prompt, sample) in enumerate(texts)]
    rules = [recorder.wrap(Diversed(HEAD, greedy="mixture"), n) for n in range(len(texts))]
    generations = engine.stream(PROMPTS, rules, requests, options, engine.drafter("model", warp))
    generations = sorted(generations, key=lambda g: g.request)
    return generations, recorder.recordings(generations), warp


def forced(model, ids):
    """Logits and last states [L] of one text."""
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    return out.logits[0], out.hidden_states[-1][0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_each_decided_token_has_its_own_states_and_laws(family, temperature):
    target, draft = pair(family)
    made, seen, warp = record(target, draft, temperature, batch_size=5)
    kept = 0
    for generation, own in zip(made, seen, strict=True):
        prompt, origins = PROMPTS[generation.prompt], generation.origins
        ids = [*prompt, *generation.tokens]
        (raw_p, state), (raw_q, of_draft) = forced(target, ids), forced(draft, ids)
        p, q = warp.law(warp.logits(raw_p)), warp.law(warp.logits(raw_q))
        slot, rows = 0, []
        for place, (origin, token) in enumerate(zip(origins, generation.tokens, strict=True)):
            at = len(prompt) + place - 1
            if origin != "bonus":
                rows.append((at, token, slot, origin))
            slot = slot + 1 if origin == "accepted" else 0
        assert len(own.p) == len(rows)
        size = state.shape[-1]
        for n, (at, token, slot, origin) in enumerate(rows):
            entropies = [float(torch.special.entr(law[at]).sum()) for law in (p, q)]
            margins = [float(law[at].topk(2).values @ torch.tensor([1.0, -1.0]).to(law)) for law in (p, q)]
            tv = float((p[at] - q[at]).abs().sum() / 2)
            torch.testing.assert_close(own.features[n, :size], of_draft[at].float(), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(own.features[n, size : 2 * size], state[at].float(), atol=1e-5, rtol=1e-4)
            if origin == "accepted":  # of a rejected draft the rule sees the state at the draft, which no text has
                kept += 1
                told = own.features[n, 2 * size : 3 * size]
                torch.testing.assert_close(told, state[at + 1].float(), atol=1e-5, rtol=1e-4)
            assert own.features[n, 3 * size :].tolist() == pytest.approx([slot, tv, *entropies, *margins], abs=1e-4)
            told = [float(column[n]) for column in (own.p, own.q, own.tv)]
            assert told == pytest.approx([float(p[at, token]), float(q[at, token]), tv], abs=1e-5)
    assert kept > 20
    assert "stop" in {generation.finish for generation in made}  # what was decided behind it counts nowhere


def test_a_text_that_is_restarted_where_memory_runs_out_is_recorded_once(monkeypatch):
    target, draft = pair("llama")
    whole = record(target, draft, 1.0, batch_size=8)
    runs_short(monkeypatch, above=4, after=3)
    with pytest.warns(ResourceWarning, match="out of memory"):
        halved = record(target, draft, 1.0, batch_size=8)
    assert [g.tokens for g in whole[0]] == [g.tokens for g in halved[0]]
    for one, other in zip(whole[1], halved[1], strict=True):
        for name in ("features", "p", "q", "tv"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), atol=1e-5, rtol=1e-4)


def test_texts_without_drafts_have_recordings_without_tokens():
    first, second = Recorder(FEATURES, 70).recordings([(), ()])  # type: ignore[list-item] - no generation is read
    assert (first.features.shape, second.features.shape) == ((0, 70), (0, 70))
    assert first.p.shape == first.q.shape == first.tv.shape == (0,)
