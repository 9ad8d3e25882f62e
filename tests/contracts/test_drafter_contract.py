"""What every drafter promises and is promised: greedy `Exact` is the target, counts are what the texts say, rows may move."""

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import sdbench
from sdbench.draft import BaseDrafter, ModelDrafter
from sdbench.types import DRAFTER_NEEDS, DraftBlock, DraftSetup, needs_of
from sdbench.verify import Diversed, Ensemble, Exact, Head, Sure
from tests.contracts.parts import Named, middle_rules, parts
from tests.draft.heads import write_gate, write_heads
from tests.draft.proofs import (
    NEW,
    OPTIONS,
    REPEATING,
    assert_drafts_change_no_text,
    by_batch,
    by_slow_family,
    models_of,
)
from tests.draft.toys import word_tokenizer, words_of
from tests.engine.models import PROMPTS, tiny
from tests.engine.test_invariance import same

DRAFTERS = parts("drafter")
QUICK = ("model", "lookup", "tiers", "block")  # a model's law, one without a law, a composed one, one of a head
by_drafter = pytest.mark.parametrize("named", DRAFTERS, ids=str)
GIVEN = {
    "corpus": lambda *_: write_corpus(),
    "head": lambda kind, family: write_head(kind, family),
    "length_head": lambda *_: write_gate(Path(mkdtemp())),
}  # options without a default, by drafter and family of the target


@cache
def write_corpus() -> str:
    """A file of what the targets of these tests may say."""
    path = Path(mkdtemp()) / "corpus.txt"
    path.write_text("\n".join(words_of([5, 6, 7, n % 61, 9, 9, n % 13, 11, 12]) for n in range(200)))
    return str(path)


@cache
def write_head(kind: str, family: str) -> str:
    """Random heads on the states of the targets of these tests."""
    return write_heads(Path(mkdtemp()), models_of(family)[0], kind)


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return models_of("llama")


def engine_and_drafter(
    models: tuple[Any, Any], named: Named, *, family: str = "llama", capture: Any = None, **warp: Any
) -> tuple[sdbench.Engine, Any]:
    needs, tokenizer = needs_of(named.target, DRAFTER_NEEDS), word_tokenizer(models[0].config.vocab_size)
    draft, draft_tokenizer = models[1] if "draft" in needs else None, tokenizer if "draft_tokenizer" in needs else None
    engine = sdbench.Engine(models[0], draft, tokenizer, capture=capture, draft_tokenizer=draft_tokenizer)
    given = {name: give(named.name, family) for name, give in GIVEN.items() if name in named.options}
    options = {**named.options, **given}
    return engine, engine.drafter(named.target, engine.warp(**warp), options)


@by_slow_family
@by_batch
@by_drafter
def test_greedy_exact_is_the_target_alone(named: Named, family, batch_size, capture):
    models = models_of(family)
    engine, drafter = engine_and_drafter(models, named, family=family, capture=capture, temperature=0.0)
    assert_drafts_change_no_text(family, engine, drafter, batch_size)


@pytest.mark.slow
@by_drafter
def test_captured_steps_emit_the_texts_of_eager_ones(models, named):
    """At T = 1, whose texts depend on the last digits of every law."""

    def decode(capture: str) -> list[Any]:
        engine, drafter = engine_and_drafter(models, named, capture=capture, temperature=1.0)
        rules = [Exact(), Ensemble(w=0.5)]
        return sdbench.generate(None, None, REPEATING, rules, engine=engine, drafter=drafter, batch_size=3, **OPTIONS)

    eager = decode("off")
    for capture in ("trace", "graphs"):
        for a, b in zip(eager, decode(capture), strict=True):
            same(a, b)


# A rule that reads states of both models, of 32 numbers each: those of configs/verifier get heads that read laws alone.
READS_STATES = Diversed(
    Head("ensemble", ("draft_hidden", "target_hidden"), {"weight": torch.ones(1, 64) / 8, "bias": torch.tensor([0.5])})
)


@pytest.mark.parametrize(
    "named", [pytest.param(name, marks=[] if name.name in QUICK else pytest.mark.slow) for name in DRAFTERS], ids=str
)
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_every_rule_judges_every_drafter(models, named, temperature):
    engine, drafter = engine_and_drafter(models, named, temperature=temperature)
    options = {**OPTIONS, "engine": engine, "drafter": drafter, "temperature": temperature}
    calls_sure = bool(getattr(drafter, "calls_sure", False))
    rules = middle_rules(temperature, OPTIONS["num_draft"], calls_sure=calls_sure)
    if not calls_sure:
        with pytest.raises(ValueError, match="Sure keeps what a drafter is sure of, and this drafter is never sure"):
            sdbench.generate(None, None, PROMPTS[1:3], [Sure(Exact())], **options)
    if "draft" in needs_of(drafter, DRAFTER_NEEDS) and getattr(drafter, "has_logits", True):
        rules.append(READS_STATES)
    else:
        with pytest.raises(ValueError, match="Diversed reads the states of a draft model, and this drafter has none"):
            sdbench.generate(None, None, PROMPTS[1:3], [READS_STATES], **options)
    for g in sdbench.generate(None, None, PROMPTS[1:3], rules, **options):
        counts = Counter(g.origins)
        ends = counts["replacement"] + counts["bonus"]
        assert len(g.tokens) == counts["accepted"] + counts["sure"] + ends == NEW, rules[g.verifier]
        assert counts["accepted"] + counts["sure"] == sum(g.accepted)
        assert counts["replacement"] == sum(g.examined) - sum(g.accepted)
        assert len(g.drafted) - 1 <= ends <= len(g.drafted), "all rounds but the last end with a token of the target"


def recount(generation: Any, offered: list[list[int]]) -> None:
    """Every count by its definition, from the text, where its tokens came from, and what was offered in each round."""
    place = 0
    shown = iter(generation.draft_tokens)
    for number, block in enumerate(offered):
        origins = generation.origins[place : place + next_round(generation.origins[place:])]
        tokens = generation.tokens[place : place + len(origins)]
        kept = sum(origin == "accepted" for origin in origins)
        assert generation.accepted[number] == kept
        assert list(tokens[:kept]) == block[:kept]
        is_last = number == len(offered) - 1
        counted = len(origins) if is_last and generation.finish == "stop" else len(block)
        assert generation.drafted[number] == min(len(block), counted)
        assert [next(shown) for _ in range(generation.drafted[number])] == block[: generation.drafted[number]]
        replaced = sum(origin == "replacement" for origin in origins)
        assert generation.examined[number] == kept + replaced, "positions whose token or replacement reached the text"
        if origins[-1] == "bonus":
            assert kept == len(block), "a bonus stands behind a block that was kept whole"
        if origins[-1] == "replacement":
            assert kept < len(block)
        place += len(origins)
    assert place == len(generation.tokens)
    assert next(shown, None) is None
    assert len(generation.drafted) == len(generation.examined) == len(generation.accepted) == len(offered)


def next_round(origins: Any) -> int:
    """How many tokens the round emitted that begins here: it ends with the first token that no draft gave."""
    ends = [place for place, origin in enumerate(origins, start=1) if origin != "accepted"]
    return ends[0] if ends else len(origins)


class Watched:
    """A drafter that writes down what it offered to each text, and follows each text by what it observes."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.needs = inner, needs_of(inner, DRAFTER_NEEDS)
        self.texts: dict[int, list[int]] = {}
        self.blocks: dict[int, list[list[int]]] = {}
        self.log: list[tuple[list[int], list[list[int]]]] = []
        self.num_observed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def prefill(self, prompt: Any, prefix: Any) -> Any:
        assert prefix.length == len(prompt) - 1
        return prompt.tolist(), self.inner.prefill(prompt, prefix)

    def admit(self, row: int, prefix: Any) -> None:
        if row in self.texts:
            self.log.append((self.texts[row], self.blocks[row]))
        self.texts[row], self.blocks[row] = list(prefix[0]), []
        self.inner.admit(row, prefix[1])

    def move(self, source: int, row: int) -> None:
        if row in self.texts:
            self.log.append((self.texts[row], self.blocks[row]))
        self.texts[row], self.blocks[row] = self.texts.pop(source), self.blocks.pop(source)
        self.inner.move(source, row)

    def draft(self, context: Any, k: int, lengths: Any, u: Any, needs: Any) -> Any:
        for row, text in self.texts.items():
            if row < len(context.lengths) and context.lengths[row] > 1:
                assert context.tokens[row, : context.lengths[row]].tolist() == text, "a row is the text it was"
        block = self.inner.draft(context, k, lengths, u, needs)
        for row, length in enumerate(block.lengths.tolist()):
            if row in self.blocks:
                self.blocks[row].append(block.tokens[row, :length].tolist())
        return block

    def observe(self, emitted: Any, evidence: Any, verdict: Any) -> None:
        self.num_observed += 1
        assert len(emitted) == len(verdict.accepted) == len(evidence.p)
        for row, count in enumerate((verdict.accepted + 1).tolist()):
            self.texts[row] += emitted[row, :count].tolist()
        self.inner.observe(emitted, evidence, verdict)

    def close(self) -> None:
        self.log += [(self.texts[row], self.blocks[row]) for row in self.texts]
        self.texts, self.blocks = {}, {}
        self.inner.close()


@by_drafter
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("batch_size", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_counts_are_what_the_texts_say_through_moves_and_refills(models, named, temperature, batch_size):
    engine, drafter = engine_and_drafter(models, named, temperature=temperature)
    watched = Watched(drafter)
    rules = [Exact(), Ensemble(w=0.5), Ensemble(w=0.0, mix="logit")]
    generations = sdbench.generate(
        None,
        None,
        REPEATING,
        rules,
        temperature=temperature,
        max_new_tokens=15,
        num_draft=4,
        batch_size=batch_size,
        drafter=watched,
        engine=engine,
    )
    logged = Counter((tuple(text), tuple(map(tuple, blocks))) for text, blocks in watched.log if blocks)
    assert sum(logged.values()) >= len(generations)
    for generation in generations:
        prompt = tuple(REPEATING[generation.prompt])
        own = [
            blocks
            for text, blocks in logged
            if text[: len(prompt) + len(generation.tokens)] == prompt + generation.tokens
            and len(blocks) == len(generation.drafted)
        ]
        assert own, "every text was watched from its first round to its last"
        failures = []
        for blocks in own:
            try:
                recount(generation, [list(block) for block in blocks])
            except AssertionError as error:
                failures.append(error)
        assert len(failures) < len(own), failures[0]
        # Tiers draft what the slim verifier would take, which need not be the likeliest token of the mixed law.
        if temperature == 0 and generation.verifier == 2 and named.name != "tiers":
            assert generation.accepted == generation.drafted, "w = 0 keeps every draft"
    assert watched.num_observed > 0


class Narrow(BaseDrafter):
    """Offers one wrong token a row where four are asked for, and nothing every third round."""

    def __init__(self) -> None:
        self.round = 0

    def draft(self, context: Any, k: int, lengths: Any, u: Any, needs: Any) -> DraftBlock:
        self.round += 1
        if self.round % 3 == 0:
            return DraftBlock.empty(lengths)
        tokens = (context.tokens.gather(1, context.lengths[:, None] - 1) + 1) % 61
        return DraftBlock(tokens, tokens, lengths.clamp_max(1))


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_what_is_counted_is_what_was_offered(models, temperature):
    options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 12, "stop_ids": ()}
    decoded = sdbench.generate(models[0], None, PROMPTS, [Exact()], num_draft=4, drafter=Narrow(), **options)
    for g in decoded:
        assert max(g.drafted) <= 1
        assert len(g.draft_tokens) == sum(g.drafted)
        assert g.origins.count("replacement") == sum(g.examined) - sum(g.accepted)
        for drafted, accepted, origin in zip(g.drafted, g.accepted, ends(g), strict=True):
            assert origin == ("replacement" if accepted < drafted else "bonus")


def ends(generation: Any) -> list[str]:
    return [origin for origin in generation.origins if origin != "accepted"]


@pytest.mark.parametrize(
    ("slots", "lengths", "token", "sentence"),
    [
        (9, 2, 3, "Wrong gave a block of 9 slots; at most 5 are allowed"),
        (4, 9, 3, "Wrong offered 9 tokens in a block of 4 slots"),
        (1, 4, 3, "Wrong offered 4 tokens in a block of 1 slots"),
        (5, -1, 3, "Wrong offered -1 tokens; at most"),
        (4, 1, -4, "Wrong drafted the token -4, which is not a token id"),
        (4, 1, 68, "Wrong drafted the token 68, which is not a token id"),
    ],
)
def test_a_block_that_cannot_be_is_an_error(models, slots, lengths, token, sentence):
    class Wrong(BaseDrafter):
        def draft(self, context: Any, k: int, asked: Any, u: Any, needs: Any) -> DraftBlock:
            tokens = torch.full((len(asked), slots), token)
            return DraftBlock(tokens, tokens.clamp_min(0), torch.full_like(asked, lengths))

    with pytest.raises(ValueError, match=sentence):
        sdbench.generate(models[0], None, PROMPTS, [Exact()], drafter=Wrong(), max_new_tokens=8)


@pytest.mark.slow
def test_one_hot_drafts_keep_the_targets_law_and_both_ends_of_a_mix_are_free_of_nan():
    """Sampled: chi-square against the target's own law. Greedy, with un-tempered laws of one-hot drafts: numbers throughout."""
    target = tiny("llama", vocab=4, scale=0.6, eos_token_id=None)

    class Guess(BaseDrafter):
        def draft(self, context: Any, k: int, lengths: Any, u: Any, needs: Any) -> DraftBlock:
            tokens = (context.lengths[:, None] + torch.arange(k)) % 4
            return DraftBlock(tokens, tokens, lengths)

    samples = 6000
    decoded = sdbench.generate(
        target, None, [[0, 1, 2]], [Exact()], num_draft=2, drafter=Guess, samples=samples, max_new_tokens=3, stop_ids=()
    )
    counts = Counter(g.tokens for g in decoded)
    law = {}
    with torch.no_grad():
        for a in range(4):
            for b in range(4):
                for c in range(4):
                    p = target(torch.tensor([[0, 1, 2, a, b]])).logits[0, 2:].softmax(-1)
                    law[a, b, c] = float(p[0, a] * p[1, b] * p[2, c])
    expected = np.array(list(law.values())) * samples
    observed = np.array([counts[key] for key in law], dtype=float)
    small = expected < 5
    pooled = [np.append(x[~small], x[small].sum()) for x in (observed, expected)]
    assert chisquare(*pooled).pvalue > 1e-4
    rules = [Ensemble(w=w, mix=mix) for w in (0.0, 0.5, 1.0) for mix in ("prob", "logit")]
    for temperature in (0.0, 1.0):
        decoded = sdbench.generate(
            target, None, [[0, 1, 2]], rules, temperature=temperature, drafter=Guess, max_new_tokens=8, stop_ids=()
        )
        assert all(value == value for g in decoded for value in (*g.p, *g.q, *g.tv))
        if temperature == 0:
            assert decoded[0].tokens != decoded[4].tokens, "w = 0 keeps every guess, w = 1 is the target"
            assert sum(decoded[0].accepted) == sum(decoded[0].drafted) == sum(decoded[1].accepted)


def test_draft_states_are_those_each_token_was_sampled_from(models):
    """The head over `DraftBlock.hidden` gives the very logits, and over the target's states those of the evidence."""

    class Reads(Exact):
        __slots__ = ()
        needs = frozenset({"raw", "draft_hidden", "target_hidden"})  # pyright: ignore[reportAssignmentType]

        def __call__(self, evidence: Any, u: Any, state: Any = None) -> Any:
            target, draft = models
            if evidence.draft.tokens.shape[1]:
                made = draft.get_output_embeddings()(evidence.draft.hidden)
                torch.testing.assert_close(made, evidence.draft.logits, rtol=0, atol=1e-12)
            made = target.get_output_embeddings()(evidence.target_hidden)
            torch.testing.assert_close(made, evidence.logits, rtol=0, atol=1e-12)
            return Exact.__call__(self, evidence, u, state)

    for capture in ("off", "graphs", "trace"):
        sdbench.generate(*models, PROMPTS, [Reads()], max_new_tokens=6, capture=capture)


class OnTheTarget(BaseDrafter):
    """The target drafts for itself, a token at a time, on its own cache: each slot is the same captured step again."""

    needs = frozenset({"target_hidden"})

    def __init__(self, setup: DraftSetup) -> None:
        self.setup, self.cache, self.prefixes = setup, None, []

    @classmethod
    def build(cls, setup: DraftSetup, **options: Any) -> "OnTheTarget":
        return cls(setup)

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:
        self.cache = cache

    def prefill(self, prompt: Any, prefix: Any) -> Any:
        if len(prompt) > 1:
            assert prefix.hidden.shape[:1] == (len(prompt) - 1,)

    def observe(self, emitted: Any, evidence: Any, verdict: Any) -> None:
        assert evidence.target_hidden.shape[:2] == evidence.p.shape[:2]

    def draft(self, context: Any, k: int, lengths: Any, u: Any, needs: Any) -> DraftBlock:
        lm, sizes, tokens, laws = self.setup.target, context.lengths, [], []
        ids = context.tokens.gather(1, sizes[:, None] - 1)
        kv_length = lm.kv_length(context.longest + k, self.cache)

        def step(length: Any, ids: Any, sizes: Any) -> Any:
            plan = lm.plan(sizes[:, None] - 1, self.cache, length)
            return (self.setup.warp.law(self.setup.warp.logits(lm.forward(ids, plan, self.cache)[:, 0])),)

        for slot in range(k):
            (q,) = self.cache.steps(step, "own", kv_length, ids, sizes + slot)
            ids = torch.searchsorted(q.cumsum(-1), u[:, slot, None], right=True).clamp_max(q.shape[-1] - 1)
            tokens.append(ids[:, 0])
            laws.append(q)
        return DraftBlock(torch.stack(tokens, 1), torch.stack(laws, 1), lengths)


@pytest.mark.parametrize("capture", ["off", "trace", "graphs"])
def test_a_drafter_on_the_targets_cache_finds_its_laws_as_it_left_them(models, capture):
    decoded = sdbench.generate(
        models[0], None, PROMPTS, [Exact()], drafter=OnTheTarget, capture=capture, max_new_tokens=12, stop_ids=()
    )
    assert max(value for g in decoded for value in g.tv) < 1e-9
    assert all(sum(g.accepted) == sum(g.drafted) for g in decoded)


def test_drafters_are_found_by_name_class_or_object_and_need_what_they_say(models):
    options: dict[str, Any] = {"max_new_tokens": 6, "stop_ids": ()}
    by_default = sdbench.generate(*models, PROMPTS, [Exact()], **options)
    for drafter in ("model", ModelDrafter):
        assert sdbench.generate(*models, PROMPTS, [Exact()], drafter=drafter, **options) == by_default
    with pytest.raises(ValueError, match="drafter=model needs a draft model: give one"):
        sdbench.generate(models[0], None, PROMPTS, [Exact()], drafter="model", **options)
    with pytest.raises(ValueError, match=r"drafter=modle names no file in configs/drafter \(did you mean model"):
        sdbench.generate(*models, PROMPTS, [Exact()], drafter="modle", **options)

    class Greedy(BaseDrafter):
        needs = frozenset({"oracle"})

        def draft(self, *arguments: Any) -> Any: ...

    with pytest.raises(ValueError, match="Greedy needs 'oracle', which does not exist"):
        sdbench.generate(*models, PROMPTS, [Exact()], drafter=Greedy, **options)
