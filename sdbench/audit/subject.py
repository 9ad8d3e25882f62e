"""The subject of an audit: rules with a drafter on a pair, and how their texts are drawn."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

import sdbench
from sdbench.audit.laws import MAX_TEXTS
from sdbench.audit.source import Forwards, Sampling, Source, Tables
from sdbench.audit.texts import DrawTexts, RoundBatch, SampledTexts, TextBatch
from sdbench.engine import Engine
from sdbench.types import Generation, Limits

MOST_ROUNDING = 0.15  # of a probability: logits of 20 in bfloat16 are known to 1/8
# Of the difference of two logits. With a real pair in bfloat16 the shape of a call changed a logit by up to .34, and where texts
# differed for that reason, the two logits were at most .19 apart in float32 (results/real/*/near_ties.csv).
MOST_LOGIT_ROUNDING = 0.5


@dataclass(frozen=True)
class AuditedRule:
    """A rule with its knobs set, under the name that the table shows."""

    name: str
    rule: Any

    @property
    def is_lossless(self) -> bool:
        return bool(self.rule.is_lossless().all())

    def is_random(self, sampling: Sampling) -> bool:
        """Return whether its texts depend on the noise."""
        return not sampling.is_greedy or bool(getattr(self.rule, "draws_if_greedy", False))

    @property
    def has_greedy_text(self) -> bool:
        """Return whether it has a single text at temperature 0."""
        limits = getattr(self.rule, "limits", None) or Limits()
        return not self.is_random(Sampling(0.0)) and limits.temperature != "above_zero"


@dataclass
class Subject:
    """A pair in memory, its prompts, and the rules and the drafter under test. `drafter`: an object, a class, or a name."""

    settings: Sequence[AuditedRule]
    target: Any
    draft: Any
    prompts: Sequence[Sequence[int]]
    sampling: Sampling = field(default_factory=Sampling)
    drafter: Any = "model"
    drafter_options: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    num_draft: int = 3
    budget: int = 5
    stops: Sequence[int] = ()
    batch_size: int = 256
    seed: int = 0
    vocab_size: int | None = None
    draft_tokenizer: Any = None  # if it is not the target's
    packed: bool = False
    engine: Engine = field(init=False)
    helper: Any = field(init=False)  # the drafter, built

    def __post_init__(self) -> None:
        self.engine = self.make_engine()
        self.helper = self.build_drafter()

    def make_engine(self, **options: Any) -> Engine:
        """Return a new engine of this pair."""
        parts = self.target, self.draft, self.tokenizer, self.vocab_size
        return Engine(*parts, draft_tokenizer=self.draft_tokenizer, packed=self.packed, **options)

    def build_drafter(self, sampling: Sampling | None = None) -> Any:
        """Return a new drafter, or the object that was given."""
        wanted = sampling or self.sampling
        warp = self.engine.warp(wanted.temperature, wanted.top_k, wanted.top_p)
        return self.engine.drafter(self.drafter, warp, self.drafter_options)

    @property
    def vocab(self) -> int:
        return self.engine.vocab_size or self.engine.target.vocab_size

    @property
    def models(self) -> dict[str, Any]:
        return {
            "target": self.target,
            **({} if self.draft is None or self.draft_tokenizer is not None else {"draft": self.draft}),
        }

    @property
    def widths(self) -> tuple[int, int]:
        """Sizes of the hidden states of target and draft."""
        models = (self.target, self.draft or self.target)
        target, draft = (model.config.get_text_config().hidden_size for model in models)
        return target, draft

    @property
    def is_enumerable(self) -> bool:
        return self.vocab**self.budget <= MAX_TEXTS

    def source(self) -> Source:
        if self.is_enumerable:
            return Tables(self.models, self.prompts, self.vocab, self.budget)
        return Forwards(self.models, self.prompts, self.vocab)

    @property
    def is_exact(self) -> bool:
        """Return whether the tokens of a text cannot depend on rounding."""
        return self.target.dtype == torch.float64

    @property
    def rounding(self) -> float:
        """Return how far two ways to compute a probability may differ: in half precision several hundredths."""
        return min(self.logit_rounding, MOST_ROUNDING)

    @property
    def logit_rounding(self) -> float:
        """Return how far two ways to compute the difference of two logits may differ."""
        return min(self.threshold_rounding, MOST_LOGIT_ROUNDING)

    @property
    def threshold_rounding(self) -> float:
        """Return how far apart the two best logits may be where rounding decides what a lenient rule keeps.

        In half precision this is more than `logit_rounding`: a probability near a threshold says little about that difference.
        """
        return 1e-9 if self.is_exact else 256 * torch.finfo(self.target.dtype).eps

    def decode(
        self,
        which: Sequence[int],
        samples: int,
        *,
        look: int = 0,
        sampling: Sampling | None = None,
        prompts: Sequence[Sequence[int]] | None = None,
        **options: Any,
    ) -> list[list[Generation]]:
        """Return texts of each of these settings, decoded in one stream; `look` with the seed selects the noise."""
        options = {
            "num_draft": self.num_draft,
            "max_new_tokens": self.budget,
            "stop_ids": tuple(self.stops),
            "seed": self.seed * 1000 + look,
            "batch_size": self.batch_size,
            "engine": self.engine,
            **asdict(sampling or self.sampling),
            "drafter": self.helper if sampling is None else self.build_drafter(sampling),
            **options,
        }
        texts, rules = self.prompts if prompts is None else prompts, [self.settings[number].rule for number in which]
        generations = sdbench.generate(None, None, texts, rules, samples=samples, **options)
        return [[g for g in generations if g.verifier == index] for index in range(len(which))]

    def arrays(self, generations: Sequence[Generation]) -> tuple[TextBatch, RoundBatch]:
        texts = TextBatch.of_generations(generations, self.budget)
        return texts, RoundBatch.of(generations, self.budget, self.num_draft)

    def sampler(self, seconds: dict[str, float]) -> DrawTexts:
        """Draw from this package's engine; seconds["drawing"] sums the time of decoding only."""

        def draw(which: Sequence[int], count: int, look: int) -> list[SampledTexts]:
            begun = time.perf_counter()
            decoded = self.decode(which, count, look=look)
            seconds["drawing"] = seconds.get("drawing", 0.0) + time.perf_counter() - begun
            return [self.arrays(texts) for texts in decoded]

        return draw


def min_num_draft(settings: Sequence[AuditedRule], wanted: int = 3) -> int:
    """Return the smallest number of drafts, at least `wanted`, that all rules accept."""
    lows = [(getattr(setting.rule, "limits", None) or Limits()).num_draft[0] for setting in settings]
    return max(wanted, *lows)
