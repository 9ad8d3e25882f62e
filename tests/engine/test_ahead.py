"""What is done ahead of a round: short prompts prefilled together, steps captured before the clock starts."""

from collections.abc import Callable
from typing import Any

import pytest

import sdbench
from sdbench.draft import ModelDrafter
from sdbench.draft import corpus as corpora
from sdbench.engine import Engine, Options, Request, prefill
from sdbench.lm import capture as capturing
from sdbench.lm.model import LM
from sdbench.probs import Warp
from sdbench.verify import Ensemble, Exact
from tests.draft.heads import write_heads
from tests.draft.toys import word_tokenizer, words_of
from tests.engine.models import FAMILIES, PROMPTS, pair

OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "stop_ids": (), "num_draft": 3}
MANY = [[3 + (7 * n + i) % 50 for i in range(2 + 5 * n % 23)] for n in range(9)]


@pytest.mark.parametrize("family", FAMILIES)
def test_short_prompts_are_prefilled_together_and_no_text_changes(monkeypatch, family):
    models, rules = pair(family, attention="eager"), [Exact(), Ensemble(w=0.4)]
    calls: list[tuple[str, int]] = []
    honest = LM.prefill_all

    def counted(self: Any, prompts: Any, **options: Any) -> Any:
        calls.append((self.role, len(prompts)))
        return honest(self, prompts, **options)

    monkeypatch.setattr(LM, "prefill_all", counted)
    together = sdbench.generate(*models, MANY, rules, batch_size=12, **OPTIONS)
    assert [count for role, count in calls if role == "target" and count > 1] == [len(MANY)]
    assert [count for role, count in calls if role == "draft" and count > 1] == [len(MANY)]
    calls.clear()
    monkeypatch.setattr(prefill, "CHUNK", 1)
    alone = sdbench.generate(*models, MANY, rules, batch_size=12, **OPTIONS)
    assert len([count for role, count in calls if role == "draft" and count == 1]) >= len(MANY)
    assert [g.tokens for g in together] == [g.tokens for g in alone]


def test_prompts_that_do_not_fit_into_one_call_are_prefilled_apart_and_each_once(monkeypatch):
    made: list[list[int]] = []
    honest = prefill.Prefixes._make
    monkeypatch.setattr(prefill.Prefixes, "_make", lambda self, numbers: made.append(numbers) or honest(self, numbers))
    monkeypatch.setattr(prefill, "CHUNK", 40)
    prompts = [MANY[4], MANY[3], MANY[2], [5] * 39, [6] * 3]
    sdbench.generate(*pair("llama"), prompts, [Exact()], samples=3, batch_size=2, **OPTIONS)
    assert sorted(number for numbers in made for number in numbers) == [0, 1, 2, 3, 4]
    for numbers in made:
        assert len(numbers) <= 2, "no more than the batch has rows"
        assert len(numbers) == 1 or len(numbers) * max(len(prompts[n]) for n in numbers) <= 40
    assert max(map(len, made)) > 1


def test_a_drafter_with_a_prefill_of_its_own_is_asked_for_every_prompt():
    asked: list[int] = []

    class Own(ModelDrafter):
        def prefill(self, prompt: Any, prefix: Any) -> Any:
            asked.append(len(prompt))
            return super().prefill(prompt, prefix)

    target, draft = pair("llama")
    engine = Engine(target, draft)
    own = Own(LM(draft, role="draft"), engine.warp())
    sdbench.generate(None, None, MANY, [Exact()], engine=engine, drafter=own, **OPTIONS)
    assert sorted(asked) == sorted(map(len, MANY))


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("capture", ["graphs", "trace"])
def test_after_a_rehearsal_no_step_is_captured_any_more(monkeypatch, capture, num_rows):
    """Whoever decodes, at every number of rows, from the shortest prompt to the longest text, in whatever order they come."""
    target, draft = pair("llama")
    engine = Engine(target, draft, capture=capture)
    prompts = [PROMPTS[0], [5 + i % 40 for i in range(70)], PROMPTS[1]]
    warp, rule = Warp(vocab_size=engine.vocab_size), Ensemble(w=0.5)
    options = Options(warp=warp, max_new_tokens=70, batch_size=num_rows, is_measured=False)
    drafter = engine.drafter("model", warp)
    kinds = [("target", drafter, 3), ("target", None, 0), ("draft", None, 0)]
    captured = count_captures(monkeypatch)
    for role, own, num_draft in kinds:
        engine.rehearse(prompts, Request(0, 0, 0, 0, num_draft), rule, options, own, role=role)
    ahead = len(captured)
    assert captured.count("trace_step" if capture == "trace" else "GraphStep") > 0
    if capture == "trace":
        assert captured.count("_check") < 2 * captured.count("trace_step") + 20, "not at each number of rows and length"
    for texts in (prompts[:1], prompts[1:2], prompts):
        for role, own, num_draft in kinds[::-1]:
            requests = [Request(n % len(texts), 0, n, n, num_draft) for n in range(num_rows)]
            assert len(list(engine.stream(texts, [rule], requests, options, own, role=role))) == num_rows
    assert len(captured) == ahead


def count_captures(monkeypatch: Any) -> list[str]:
    """The list to which each capture and each comparison of a step is appended from now on."""
    captured: list[str] = []

    def counting(name: str, honest: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: captured.append(name) or honest(*args)

    for name in ("trace_step", "GraphStep", "_check"):
        monkeypatch.setattr(capturing, name, counting(name, getattr(capturing, name)))
    return captured


WORDS = word_tokenizer(61)
OTHER_WORDS = word_tokenizer(61, range(61)[::-1])
TRANSLATING = ("intersection", "universal")
READ_THE_DRAFT = ("model heuristic", "model adaptive", "hybrid", "tiers", "intersection", "universal")
DRAFTERS: dict[str, dict[str, Any]] = {
    "model": {},
    "model heuristic": {"length": "heuristic"},
    "model adaptive": {"length": "adaptive"},
    "lookup": {},
    "suffix": {},
    "retrieval": {"corpus": "corpus.txt", "shortest": 1},
    "early-exit": {"exit_layer": 1},
    "early-exit confidence": {"exit_layer": 1, "length": "confidence"},
    "hybrid": {},
    "tiers": {"exit_layer": 1, "chunk": 2},
    "intersection": {},
    "universal": {},
    "medusa": {"head": "heads"},
    "mtp": {"head": "heads"},
    "mtp heuristic": {"head": "heads", "length": "heuristic"},
    "block": {"head": "heads"},
}


@pytest.fixture
def built(tmp_path, monkeypatch) -> Callable[[Engine, str], Any]:
    """Builds a drafter of DRAFTERS for an engine."""
    monkeypatch.setattr(corpora, "CACHE", tmp_path / "cache")
    (tmp_path / "corpus.txt").write_text(words_of([5, 6, 7, 8, 9, 11, 5, 6, 8]) * 3)

    def build(engine: Engine, drafter: str) -> Any:
        name, options = drafter.partition(" ")[0], dict(DRAFTERS[drafter])
        if "corpus" in options:
            options["corpus"] = str(tmp_path / "corpus.txt")
        if "head" in options:
            options["head"] = write_heads(tmp_path / name, engine.target_model, name)
        return engine.drafter(name, engine.warp(), options)

    return build


def engine_for(drafter: str, capture: Any) -> Engine:
    target, draft = pair("llama")
    other = OTHER_WORDS if drafter in TRANSLATING else None
    return Engine(target, draft, WORDS, capture=capture, draft_tokenizer=other)


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["graphs", "trace"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_after_a_rehearsal_no_step_of_any_drafter_is_captured_any_more(monkeypatch, built, drafter, capture):
    """However wide its blocks are, in texts that cross a KV length; and what a drafter counts is not of the rehearsal."""
    engine = engine_for(drafter, capture)
    refuse_later_captures(monkeypatch, engine, built(engine, drafter))


@pytest.mark.parametrize("capture", ["graphs", pytest.param("trace", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "drafter",
    ["model", *(pytest.param(name, marks=pytest.mark.slow) for name in READ_THE_DRAFT)],
)
def test_after_a_rehearsal_no_step_of_a_draft_is_captured_where_the_target_runs_eagerly(
    monkeypatch, built, drafter, capture
):
    """As a target on several devices does, or on a CPU one that is not narrow."""
    engine = engine_for(drafter, capture)
    engine.target.mode = "off"
    refuse_later_captures(monkeypatch, engine, built(engine, drafter))


def refuse_later_captures(monkeypatch: Any, engine: Engine, made: Any) -> None:
    """Rehearse, then assert that decoding captures nothing."""
    prompts, rule = [[5, 6, 7, 8, 5, 6], [5, 6, 7, 8] * 15 + [5, 6]], Ensemble(w=0.5)
    options = Options(warp=engine.warp(), max_new_tokens=24, batch_size=2, is_measured=False)
    captured = count_captures(monkeypatch)
    engine.rehearse(prompts, Request(0, 0, 0, 0, 4), rule, options, made)
    ahead, num_drafted = len(captured), 0
    assert ahead > 0
    assert not any(getattr(made, "counts", {}).values())
    for seed in range(3):
        requests = [Request(n % 2, 0, n, seed, 4) for n in range(4)]
        decoded = list(engine.stream(prompts, [rule], requests, options, made))
        num_drafted += sum(sum(g.drafted or ()) for g in decoded)
    assert num_drafted > 0
    assert captured[ahead:] == []


@pytest.mark.parametrize("capture", ["graphs", "trace"])
@pytest.mark.parametrize("drafter", ["tiers", "intersection", "universal", "early-exit"])
def test_a_second_drafter_of_an_engine_drafts_as_the_first(built, drafter, capture):
    """Captured steps outlive the drafter that was there when they were captured."""
    engine = engine_for(drafter, capture)
    texts = [
        sdbench.generate(None, None, PROMPTS, [Exact()], engine=engine, drafter=built(engine, drafter), **OPTIONS)
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert sum(sum(g.drafted or ()) for g in texts[0]) > 0
