"""The judge's labels: which draft passes, what is told apart, and a fit that is what it says."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sdbench.config import ConfigError
from sdbench.engine import Engine, Options, Request, generate
from sdbench.train.judge import (
    JudgeTraining,
    Labels,
    Swap,
    auc_of,
    first_difference,
    fit_judge,
    fit_logistic,
    swapped_row,
)
from sdbench.train.recipes import JudgeRecipe
from sdbench.train.recorder import Recorder, Recording, num_decided
from sdbench.train.setup import Rollout
from sdbench.verify import Exact, Head
from tests.engine.models import PROMPTS, pair
from tests.train.trainings import finished, killed


@pytest.mark.parametrize("num_draft", [1, 4])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_nth_wrong_draft_passes_and_nothing_else(family, num_draft):
    """Against a plain loop: the target's best token everywhere, but for the n-th place where the draft's best is another."""
    target, draft = pair(family)
    options = {"temperature": 0.0, "num_draft": num_draft, "max_new_tokens": 16, "stop_ids": ()}
    count = 5
    generations = generate(target, draft, PROMPTS, [Exact(), *(Swap(n) for n in range(count))], **options)
    for number, prompt in enumerate(PROMPTS):
        base, *swapped = (list(g.tokens) for g in generations if g.prompt == number)
        places = met(next(g for g in generations if g.prompt == number))
        for n, text in enumerate(swapped):
            if n >= len(places):
                assert text == base
                continue
            place, wrong = places[n]
            assert text[:place] == base[:place]
            assert text[place] == wrong
            for i in range(place + 1, len(text)):
                with torch.no_grad():
                    assert text[i] == int(target(torch.tensor([[*prompt, *text[:i]]])).logits[0, -1].argmax())


def met(generation):
    """(place, token) of each wrong draft of a lossless text, from its own rounds."""
    places, place, slot = [], 0, 0
    for drafted, examined, accepted in zip(generation.drafted, generation.examined, generation.accepted, strict=True):
        if accepted < examined:
            places.append((place + accepted, generation.draft_tokens[slot + accepted]))
        place, slot = place + accepted + 1, slot + drafted
    return places


ORIGINS = ("accepted", "accepted", "bonus", "accepted", "replacement")


@pytest.mark.parametrize(
    ("tokens", "p", "row"),
    [
        ((1, 9, 3, 4, 5), (1, 0, 1, 1), 1),  # the swapped token
        ((1, 2, 3, 9, 5), (1, 1, 0, 1), 2),  # the same behind a bonus token, which has no row
        ((1, 2, 9, 4, 5), (1, 1, 0, 1), None),  # rounding changes the bonus token before it
        ((1, 2, 9), (1, 1), None),  # or the last token, so that no row follows
        ((1, 9, 3, 4, 5), (1, 1, 0, 1), None),  # or an accepted token
        ((1, 2, 3, 4, 9), (1, 1, 1, 1), None),  # or a replacement
        ((1, 2, 3, 4, 5), (1, 1, 1, 1), None),  # fewer wrong drafts than swaps
    ],
)
def test_only_the_swapped_token_is_labelled_and_only_where_the_texts_are_equal_before_it(tokens, p, row):
    def rollout(tokens: Any, p: Any, reward: float) -> Rollout:
        generation: Any = SimpleNamespace(tokens=tokens, origins=ORIGINS[: len(tokens)])
        features, probability = torch.arange(float(len(p)))[:, None], torch.tensor(p, dtype=torch.float64)
        return Rollout(generation, reward, Recording(features, probability, probability, probability))

    texts = [rollout((1, 2, 3, 4, 5), (1, 1, 1, 1), 1.0), rollout(tokens, p, 0.0)]
    setup = SimpleNamespace(
        prompts=SimpleNamespace(ids={"a": [5]}),
        roll_out=lambda *_: texts,
        widths=lambda: {"target_hidden": 1},
    )
    training: Any = SimpleNamespace(recipe=JudgeRecipe(prompts=1, swaps=1), setup=setup)
    features, good, prompts = JudgeTraining.step(training, 0)
    rows = [] if row is None else [row]
    assert features[:, 0].tolist() == rows
    assert (good.tolist(), prompts.tolist()) == ([False] * len(rows), [0] * len(rows))


def test_in_decoded_texts_the_swapped_token_is_recognised():
    engine, recorder, count = Engine(*pair("llama")), Recorder(("slot",), 1), 5
    warp = engine.warp(0.0)
    rules = [recorder.wrap(rule, n) for n, rule in enumerate((Exact(), *(Swap(n) for n in range(count))))]
    requests = [Request(0, n, 0, "0", 4) for n in range(len(rules))]
    stream = engine.stream(PROMPTS[:1], rules, requests, Options(warp, 16, frozenset()), engine.drafter("model", warp))
    generations = sorted(stream, key=lambda generation: generation.request)
    texts = [Rollout(g, 0.0, r) for g, r in zip(generations, recorder.recordings(generations), strict=True)]
    positions = [position for position, _ in met(generations[0])][:count]
    assert len(positions) > 1
    rows = [num_decided(text.generation, position) for text, position in zip(texts[1:], positions, strict=False)]
    expected = [*rows, *[None] * (count - len(positions))]
    assert [swapped_row(texts[0], text) for text in texts[1:]] == expected


def test_where_two_texts_part():
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) is None
    assert first_difference([1, 2], [1, 2]) is None


def test_the_fit_finds_the_direction_and_a_flat_penalty_changes_no_order():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 3, generator=g)
    good = torch.rand(4000, generator=g) < torch.sigmoid(2 * x[:, 0] - 1 * x[:, 1] + 0.5)
    weights = fit_logistic(x, good)
    slope = (weights["weight"] / weights["scale"])[0]
    torch.testing.assert_close(slope, torch.tensor([2.0, -1.0, 0.0]), atol=0.2, rtol=0)
    bias = float(weights["bias"] - (weights["weight"] * weights["shift"] / weights["scale"]).sum())
    assert bias == pytest.approx(0.5, abs=0.15)


def test_auc_is_the_chance_that_a_good_one_scores_above_a_bad_one():
    rng = np.random.default_rng(0)
    score, good = rng.integers(0, 9, 300).astype(float), rng.random(300) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in score[good] for b in score[~good]]
    assert auc_of(score, good) == pytest.approx(np.mean(pairs), abs=1e-12)


@pytest.mark.long
def test_labels_are_mined_resumably_and_reported(nursery, tmp_path):
    words = ("prompts=40", "swaps=12")
    finished(nursery, "judge", *words, f"out={tmp_path / 'whole'}")
    killed(nursery, "judge", 1, *words, f"out={tmp_path / 'part'}")
    finished(nursery, "judge", *words, f"out={tmp_path / 'part'}")
    heads = [Head.load(str(tmp_path / name), "judge") for name in ("whole", "part")]
    for name, tensor in heads[0].weights.items():
        torch.testing.assert_close(heads[1].weights[name], tensor, rtol=0, atol=0)
    stored = json.loads((tmp_path / "whole/calibration.json").read_text())
    assert stored["low"] <= stored["auc"] <= stored["high"]
    assert sum(one["n"] for one in stored["bins"]) == stored["labels"]
    assert {"calibration.pdf", "calibration.svg", "calibration.png"} <= {
        path.name for path in (tmp_path / "whole").iterdir()
    }


def test_labels_of_one_kind_among_those_to_learn_from_are_refused():
    """The held-out ones are of the other kind: a fit would have nothing to tell apart."""
    good = torch.tensor([False, True, True])
    labels = Labels(torch.zeros(3, 2), good, torch.tensor([0, 1, 2]))
    advice = (
        "give another out= with more prompts=, or choose another task"  # the folder has labels of these prompts alone
    )
    with pytest.raises(ConfigError, match=f"all 2 labels are positive, so nothing can be fitted: {advice}"):
        fit_judge(labels[labels.prompt > 0])
