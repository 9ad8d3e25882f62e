"""What is audited: rules under a drafter on a pair, and how texts are drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sdbench
from sdbench.audit.laws import LARGEST
from sdbench.audit.source import Forwards, Sampling, Source, Tables
from sdbench.engine import Engine
from sdbench.types import Generation, Limits


@dataclass(frozen=True)
class Setting:
    """A rule with its knobs set, under the name that the table shows."""

    name: str
    rule: Any

    @property
    def is_lossless(self) -> bool:
        return bool(self.rule.is_lossless().all())

    def draws(self, sampling: Sampling) -> bool:
        """Whether its texts depend on the noise."""
        return not sampling.is_greedy or bool(getattr(self.rule, "draws_if_greedy", True))


@dataclass
class Subject:
    """A pair in memory, its prompts, and the rules and the drafter under test. `drafter`: an object, a class, or a name."""

    settings: Sequence[Setting]
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
    engine: Engine = field(init=False)
    helper: Any = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Engine(self.target, self.draft, self.tokenizer, self.vocab_size)
        self.helper = self.build_drafter()

    def build_drafter(self) -> Any:
        """A fresh one, but for an object that was given."""
        warp = self.engine.warp(self.sampling.temperature, self.sampling.top_k, self.sampling.top_p)
        return self.engine.drafter(self.drafter, warp, self.drafter_options)

    @property
    def vocab(self) -> int:
        return self.engine.vocab_size or self.engine.target.vocab_size

    @property
    def models(self) -> dict[str, Any]:
        return {"target": self.target, **({} if self.draft is None else {"draft": self.draft})}

    @property
    def widths(self) -> tuple[int, int]:
        """Of the states of target and draft."""
        target, draft = (one.config.get_text_config().hidden_size for one in (self.target, self.draft or self.target))
        return target, draft

    @property
    def is_enumerable(self) -> bool:
        return self.vocab**self.budget <= LARGEST

    def source(self) -> Source:
        if self.is_enumerable:
            return Tables(self.models, self.prompts, self.vocab, self.budget)
        return Forwards(self.models, self.prompts, self.vocab)

    @property
    def rounding(self) -> float:
        """What two ways to compute a probability may differ by."""
        import torch

        return 1e-9 if self.engine.target_model.dtype == torch.float64 else 256 * torch.finfo(self.target.dtype).eps

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
        """Texts of each of these settings, decoded in one stream; `look` names the noise beside the seed."""
        texts = self.prompts if prompts is None else prompts
        warped = self.sampling if sampling is None else sampling
        helper = self.helper
        if sampling is not None:
            warp = self.engine.warp(warped.temperature, warped.top_k, warped.top_p)
            helper = self.engine.drafter(self.drafter, warp, self.drafter_options)
        given: dict[str, Any] = {
            "num_draft": self.num_draft,
            "max_new_tokens": self.budget,
            "stop_ids": tuple(self.stops),
            "seed": self.seed * 1000 + look,
            "batch_size": self.batch_size,
            "engine": self.engine,
            **options,
        }
        generations = sdbench.generate(
            None,
            None,
            texts,
            [self.settings[number].rule for number in which],
            samples=samples,
            temperature=warped.temperature,
            top_k=warped.top_k,
            top_p=warped.top_p,
            drafter=helper,
            **given,
        )
        return [[g for g in generations if g.verifier == place] for place in range(len(which))]


def least_draft(settings: Sequence[Setting], wanted: int = 3) -> int:
    """The number of drafts that all rules take, not below what is wanted."""
    lows = [(getattr(setting.rule, "limits", None) or Limits()).num_draft[0] for setting in settings]
    return max(wanted, *lows)
