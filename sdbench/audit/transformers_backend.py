"""Audit transformers' own `generate`: each mode builds its own random pair, and this package's engine is not used."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from sdbench.audit import pairs
from sdbench.audit.build import run_of
from sdbench.audit.checks import plain_text
from sdbench.audit.claims import LawTest
from sdbench.audit.command import AuditCommand, AuditOptions, refuse_claims
from sdbench.audit.large_vocabulary import ClaimedLaw, EmittedTest, PrefixTest
from sdbench.audit.laws import TextLaws
from sdbench.audit.plan import RuleTests, least_horizon, sample
from sdbench.audit.report import AuditReport, ClaimResult, ExactCheck
from sdbench.audit.source import Sampling, Tables
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.audit.texts import SampledTexts, TextBatch
from sdbench.config import ConfigError, nearest
from sdbench.draft import NoDraft
from sdbench.verify import Ensemble, Exact

MODES = ("assistant", "ensemble", "universal", "lookup", "early_exit")
BUDGET, NUM_DRAFT, WEIGHT = 5, 3, 0.5
WIDE, NARROW = 300, 290  # ids of the two tokenizers of mode=universal
MIN_TEXTS = 100


@dataclass
class GenerateMode:
    """A pair and the options of `generate` for one mode. rule: what the mode claims to do."""

    name: str
    target: Any
    draft: Any
    prompt: Sequence[int]
    rule: Any = field(default_factory=Exact)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_lossless(self) -> bool:
        return bool(self.rule.is_lossless().all())

    def generate(
        self, sampling: Sampling, seed: int, prompt: Sequence[int] | None = None, budget: int = BUDGET
    ) -> list[int]:
        ids = torch.tensor([list(self.prompt if prompt is None else prompt)])
        options: dict[str, Any] = {"do_sample": not sampling.is_greedy, **self.options}
        if not sampling.is_greedy:
            options |= {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k or 0,
                "top_p": sampling.top_p or 1.0,
            }
        torch.manual_seed(seed)
        with torch.no_grad():
            out = self.target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=budget, **options)
        return out[0, ids.shape[1] :].tolist()


def build_mode(name: str) -> GenerateMode:
    """Return a mode with a new pair."""
    if name == "universal":
        tokenizers = [pairs.random_tokenizer(which, size) for which, size in enumerate((WIDE, NARROW))]
        target, draft = (
            pairs.random_llama(layers=2 - n, seed=n, vocab=len(tokenizer), spread=4.0)
            for n, tokenizer in enumerate(tokenizers)
        )
        options = {"assistant_model": draft, "tokenizer": tokenizers[0], "assistant_tokenizer": tokenizers[1]}
        return GenerateMode(name, target, draft, tokenizers[0]("the quick brown fox")["input_ids"], options=options)
    target = pairs.random_llama(layers=3 if name == "early_exit" else 2, seed=0)
    draft = pairs.random_llama(layers=1, seed=1) if name in ("assistant", "ensemble") else None
    options_of: dict[str, dict[str, Any]] = {
        "assistant": {"assistant_model": draft},
        "ensemble": {"assistant_model": draft, "assistant_ensemble_weight": WEIGHT},
        "lookup": {"prompt_lookup_num_tokens": NUM_DRAFT, "max_matching_ngram_size": 2},
        "early_exit": {"assistant_early_exit": 1},
    }
    rule = Ensemble(WEIGHT) if name == "ensemble" else Exact()
    return GenerateMode(name, target, draft, [0, 1, 2, 0, 1], rule, options_of[name])


def audit_generate(given: AuditCommand) -> AuditReport:
    """Audit backend=transformers mode=NAME."""
    name = given.values.get("mode", MODES[0])
    if name not in MODES:
        raise ConfigError(f"mode cannot be {name} {nearest(name, MODES)}")
    run = run_of(given)
    sampling = Sampling(run.temperature, run.top_k, run.top_p)
    mode = build_mode(name)
    refuse_claims(given, claims_of(mode, sampling), f"mode={name} at temperature {sampling.temperature:g}")
    return audit(mode, sampling, given.options, seed=run.seed)


def claims_of(mode: GenerateMode, sampling: Sampling) -> list[str]:
    """Return the claims that can be tested of a mode."""
    if sampling.is_greedy:
        return ["greedy"]
    if not _subject_of(mode, BUDGET).is_enumerable:
        return ["prefixes", "pit", "greedy"]
    return ["law", *(["losslessness"] if mode.is_lossless else []), "greedy"]


def audit(mode: GenerateMode, sampling: Sampling, options: AuditOptions, *, seed: int = 0) -> AuditReport:
    """Test sampled texts against their exact law, greedy texts against a plain loop."""
    rows: list[ClaimResult] = []
    total = 0
    if not sampling.is_greedy and {"law", "losslessness", "prefixes", "pit"} & set(options.claims):
        rows, total = _audit_samples(mode, sampling, options, seed)
    if "greedy" in options.claims:
        # A new pair: universal generation prunes the assistant's head and embeddings in place when it samples.
        rows.append(check_greedy(build_mode(mode.name)).result())
    return AuditReport(f"transformers-{transformers.__version__}-{mode.name}", rows, total, device=mode.target.device)


def _audit_samples(
    mode: GenerateMode, sampling: Sampling, options: AuditOptions, seed: int
) -> tuple[list[ClaimResult], int]:
    subject = _subject_of(mode, BUDGET)
    source = subject.source()

    def tests(horizon: int) -> list[RuleTests]:
        if isinstance(source, Tables):
            rule, drafter = (None, None) if mode.is_lossless else (mode.rule, subject.helper)
            claim = "losslessness" if mode.is_lossless and "losslessness" in options.claims else "law"
            laws = TextLaws(source, sampling, rule, drafter, NUM_DRAFT, BUDGET)
            return [RuleTests(0, [LawTest(claim, laws, (), horizon)])]
        claimed = ClaimedLaw(source, sampling, None, has_draft=False, is_exact=True)
        prefixes = PrefixTest(claimed, [horizon], with_second=True)
        return [RuleTests(0, [prefixes, EmittedTest("pit", horizon * BUDGET, claimed=claimed)])]

    horizon = options.samples or least_horizon(tests, 1, options) or MIN_TEXTS
    seeds = itertools.count(seed * 10**9)

    def draw(which: Sequence[int], count: int, look: int) -> list[SampledTexts]:
        texts = [mode.generate(sampling, next(seeds)) for _ in range(count)]
        return [(TextBatch.of([0] * count, texts, BUDGET), None)]

    return sample([mode.name], tests(horizon), options, horizon=horizon, draw=draw)


def _subject_of(mode: GenerateMode, budget: int) -> Subject:
    """Return the mode's pair as a subject; for a lossless mode its target alone."""
    draft = None if mode.is_lossless else mode.draft
    return Subject(
        [AuditedRule(mode.name, mode.rule)],
        mode.target,
        draft,
        [list(mode.prompt)],
        drafter=NoDraft if draft is None else "model",
        num_draft=NUM_DRAFT,
        budget=budget,
    )


def check_greedy(mode: GenerateMode, count: int = 12) -> ExactCheck:
    """Greedy texts against the target's own best tokens, or for the ensemble against a plain loop of its rule."""
    vocab, generator = mode.target.config.vocab_size, torch.Generator().manual_seed(5)
    subject = _subject_of(mode, 8)
    rule, drafter = (None, None) if mode.is_lossless else (mode.rule, subject.helper)
    wrong: list[str] = []
    for number in range(count):
        prompt = torch.randint(0, vocab, (2 + number % 7,), generator=generator).tolist()
        if mode.name == "universal":
            prompt = mode.options["tokenizer"](pairs.CORPORA[0][number : 3 * number + 8])["input_ids"]
        expected = plain_text(subject, rule, drafter, prompt)
        text = mode.generate(Sampling(0.0), 0, prompt, budget=8)
        if text != expected:
            wrong.append(f"after {prompt} generate gives {text}, but a plain loop {expected}")
    return ExactCheck(mode.name, "greedy", count, wrong)
