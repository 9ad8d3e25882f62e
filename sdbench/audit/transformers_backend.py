"""transformers' own `generate` under the audit: each mode makes its own random pair; nothing of this package's engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers

from sdbench.audit import pairs
from sdbench.audit.audit import Check, Options, Report, Row, Trial, sample
from sdbench.audit.build import Command, options
from sdbench.audit.checks import walk
from sdbench.audit.claims import LawTest, Test
from sdbench.audit.evidence import ALPHA
from sdbench.audit.laws import Laws
from sdbench.audit.source import Forwards, Sampling, Source, Tables
from sdbench.audit.subject import Setting, Subject
from sdbench.audit.texts import Texts
from sdbench.audit.trained import Claimed, EmittedTest, PrefixTest
from sdbench.config import ConfigError, nearest
from sdbench.draft import NoDraft
from sdbench.verify import Ensemble, Exact

MODES = ("assistant", "ensemble", "universal", "lookup", "early_exit")
BUDGET, NUM_DRAFT, WEIGHT = 5, 3, 0.5
WIDE, NARROW = 300, 290  # ids of the two tokenizers of mode=universal
TV, LEAST = 0.15, 100  # what is to be found where nothing is said: generate takes one text at a time


@dataclass
class Mode:
    """A pair and the options of `generate` that make this mode of it. rule: what it claims to do."""

    name: str
    target: Any
    draft: Any
    prompt: Sequence[int]
    rule: Any = field(default_factory=Exact)
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def is_lossless(self) -> bool:
        return bool(self.rule.is_lossless().all())

    def text(
        self, sampling: Sampling, seed: int, prompt: Sequence[int] | None = None, budget: int = BUDGET
    ) -> list[int]:
        """One text of `generate`."""
        ids = torch.tensor([list(self.prompt if prompt is None else prompt)])
        how: dict[str, Any] = {"do_sample": not sampling.is_greedy}
        if not sampling.is_greedy:
            how |= {"temperature": sampling.temperature, "top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0}
        torch.manual_seed(seed)
        with torch.no_grad():
            out = self.target.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=budget, **how, **self.given
            )
        return out[0, ids.shape[1] :].tolist()


def make(name: str) -> Mode:
    """A mode with a pair of its own."""
    prompt = [0, 1, 2, 0, 1]
    if name in ("assistant", "ensemble"):
        target, draft = pairs.random_llama(layers=2, seed=0), pairs.random_llama(layers=1, seed=1)
        mode = Mode(name, target, draft, prompt, given={"assistant_model": draft})
        if name == "assistant":
            return mode
        given = {**mode.given, "assistant_ensemble_weight": WEIGHT}
        return replace(mode, rule=Ensemble(WEIGHT), given=given)
    if name == "lookup":
        given = {"prompt_lookup_num_tokens": NUM_DRAFT, "max_matching_ngram_size": 2}
        return Mode(name, pairs.random_llama(layers=2, seed=0), None, prompt, given=given)
    if name == "early_exit":
        return Mode(name, pairs.random_llama(layers=3, seed=0), None, prompt, given={"assistant_early_exit": 1})
    tokenizers = [pairs.random_tokenizer(which, size) for which, size in enumerate((WIDE, NARROW))]
    target, draft = (
        pairs.random_llama(layers=2 - n, seed=n, vocab=len(tokenizer), spread=4.0)
        for n, tokenizer in enumerate(tokenizers)
    )
    given = {"assistant_model": draft, "tokenizer": tokenizers[0], "assistant_tokenizer": tokenizers[1]}
    return Mode(name, target, draft, tokenizers[0]("the quick brown fox")["input_ids"], given=given)


def audit_mode(given: Command) -> tuple[str, Report, Any]:
    """(name, report, device) of backend=transformers mode=NAME."""
    name = given.own.get("mode", "assistant")
    if name not in MODES:
        raise ConfigError(f"mode cannot be {name} {nearest(name, MODES)}")
    from sdbench.audit.build import compose

    run = compose(given)
    if given.has("model") or given.has("verifier") or given.has("drafter"):
        raise ConfigError("backend=transformers makes its own pair, and mode= says what it does with it")
    wanted = options(given.own)
    if "tv" not in given.own:
        wanted = replace(wanted, tv=TV)
    sampling = Sampling(run.temperature, run.top_k, run.top_p)
    report = audit(make(name), sampling, wanted, seed=run.seed)
    return f"transformers-{transformers.__version__}-{name}", report, torch.device("cpu")


def audit(mode: Mode, sampling: Sampling, wanted: Options, *, seed: int = 0) -> Report:
    """Sampled texts against their exact law, greedy texts against a plain loop."""
    rows: list[Row] = []
    total = 0
    if not sampling.is_greedy and {"law", "losslessness", "prefixes", "pit"} & set(wanted.claims):
        rows, total = _sampled(mode, sampling, wanted, seed)
    if "greedy" in wanted.claims:
        # A fresh pair: universal generation prunes the assistant's head and embeddings in place where it samples.
        rows.append(greedy(make(mode.name)).row())
    return Report(rows, total)


def _sampled(mode: Mode, sampling: Sampling, wanted: Options, seed: int) -> tuple[list[Row], int]:
    import numpy as np

    from sdbench.audit.evidence import first_of
    from sdbench.audit.plan import SIZES

    vocab = mode.target.config.vocab_size
    is_small = vocab**BUDGET <= 1 << 17
    models = {"target": mode.target, **({"draft": mode.draft} if mode.draft is not None and is_small else {})}
    source: Source = (Tables if is_small else lambda *args: Forwards(*args[:3]))(models, [mode.prompt], vocab, BUDGET)

    def tests(horizon: int) -> list[Test]:
        if isinstance(source, Tables):
            claim = "losslessness" if mode.is_lossless else "law"
            rule = None if mode.is_lossless else mode.rule
            drafter = _shell(mode).helper if rule is not None else None
            return [LawTest(claim, Laws(source, sampling, rule, drafter, NUM_DRAFT, BUDGET), (), horizon)]
        claimed = Claimed(source, sampling, None, has_draft=False, is_exact=True)
        return [
            PrefixTest(claimed, 1, horizon, with_second=True),
            EmittedTest("pit", horizon * BUDGET, claimed=claimed),
        ]

    log_wanted = float(np.log(len(tests(LEAST)) / ALPHA))

    def is_enough(size: float) -> bool:
        first: Any = tests(int(size))[0]
        return first.least([int(size)], log_wanted) <= wanted.tv

    horizon = wanted.samples or int(min(first_of(SIZES, is_enough), SIZES[-1]))
    place = [0]

    def draw(which: Sequence[int], count: int, look: int) -> list[tuple[Texts, None]]:
        texts = [mode.text(sampling, seed * 10**9 + place[0] + number) for number in range(count)]
        place[0] += count
        return [(Texts.of([0] * count, texts, BUDGET), None)]

    return sample([mode.name], [Trial(0, tests(horizon))], wanted, horizon=horizon, draw=draw)  # type: ignore[arg-type]


def _shell(mode: Mode) -> Subject:
    """The mode's pair as a subject, for the plain loop."""
    return Subject(
        [Setting(mode.name, mode.rule)],
        mode.target,
        mode.draft,
        [list(mode.prompt)],
        drafter=NoDraft if mode.draft is None else "model",
        num_draft=NUM_DRAFT,
        budget=8,
    )


def greedy(mode: Mode, count: int = 12) -> Check:
    """Greedy texts against the target's own best tokens, or for the ensemble against a plain loop of its rule."""
    vocab, generator = mode.target.config.vocab_size, torch.Generator().manual_seed(5)
    alone = replace(mode, draft=None) if mode.is_lossless else mode
    subject = _shell(alone)
    wrong: list[str] = []
    for number in range(count):
        prompt = torch.randint(0, vocab, (2 + number % 7,), generator=generator).tolist()
        if mode.name == "universal":
            prompt = mode.given["tokenizer"](pairs.CORPORA[0][number : 3 * number + 8])["input_ids"]
        rule = None if mode.is_lossless else mode.rule
        wanted = walk(subject, rule, subject.helper if rule is not None else None, prompt)
        seen = mode.text(Sampling(0.0), 0, prompt, budget=8)
        if seen != wanted:
            wrong.append(f"behind {prompt} it says {seen}, and a plain loop {wanted}")
    return Check(mode.name, "greedy", count, wrong)
