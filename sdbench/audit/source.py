"""The models' own laws behind any text, by plain forwards of transformers: nothing of the engine is used to check the engine.

Of a small vocabulary every continuation is run once and looked up (`Tables`); else the texts at hand are run (`Forwards`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Side = Literal["target", "draft"]
ELEMENTS = 1 << 24  # logits of one forward


@dataclass(frozen=True, slots=True)
class Sampling:
    """How logits become a law, in transformers' own words and order: temperature, top-k, top-p."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def law(self, logits: Tensor) -> Tensor:
        """[..., V] float64 of un-tempered logits [..., V], by transformers' warpers; all mass on the best at temperature 0."""
        from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        flat: Any = logits.reshape(-1, logits.shape[-1]).double()
        if self.is_greedy:
            law = torch.zeros_like(flat).scatter_(-1, flat.argmax(-1, keepdim=True), 1)
            return law.reshape(logits.shape)
        if self.temperature != 1:
            flat = TemperatureLogitsWarper(float(self.temperature))(None, flat)  # type: ignore[arg-type]
        if self.top_k is not None:
            flat = TopKLogitsWarper(self.top_k)(None, flat)  # type: ignore[arg-type]
        if self.top_p is not None and self.top_p < 1:
            flat = TopPLogitsWarper(float(self.top_p))(None, flat)  # type: ignore[arg-type]
        return flat.softmax(-1).reshape(logits.shape)


class Source(Protocol):
    """Un-tempered logits [N,T,V] before each token of texts [N,T] (padded with 0) behind prompts [N]."""

    vocab: int

    def logits(self, side: Side, prompts: Sequence[int], texts: Tensor) -> Tensor: ...

    def states(self, side: Side, prompts: Sequence[int], texts: Tensor) -> Tensor:
        """The last states [N,T,d], after the final norm, that these logits are made of."""
        ...


def with_states(model: Any, ids: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Logits and what the head reads; a hook of the audit's own, since it shares no forward with what it audits."""
    kept: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    try:
        logits = model(ids, **options).logits
    finally:
        hook.remove()
    return logits, kept[0]


@dataclass
class Tables:
    """Every continuation of up to `depth` tokens of every prompt, run in one forward a prompt and side."""

    models: dict[str, Any]
    prompts: Sequence[Sequence[int]]
    vocab: int
    depth: int

    def __post_init__(self) -> None:
        self.blocks: dict[Any, Any] = {}  # what a drafter was asked for already (laws.Laws.blocks)
        self.kept = {side: [self._run(model, prompt) for prompt in self.prompts] for side, model in self.models.items()}

    def _run(self, model: Any, prompt: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Depth d -> [V^d,V] and [V^d,·]: logits and states behind every prefix of d tokens, numbered as digits in base V."""
        tails = torch.tensor(list(itertools.product(range(self.vocab), repeat=self.depth - 1))).long()
        tails = tails.reshape(self.vocab ** (self.depth - 1), self.depth - 1)
        ids = torch.cat((torch.tensor([list(prompt)]).expand(len(tails), -1), tails), 1)
        with torch.no_grad():
            parts = [with_states(model, part) for part in ids.split(max(1, 4096 // ids.shape[1]))]
        logits, states = (torch.cat([part[:, len(prompt) - 1 :] for part in side]) for side in zip(*parts, strict=True))
        steps = [self.vocab ** (self.depth - 1 - d) for d in range(self.depth)]
        return [(logits[::n, d, : self.vocab].double(), states[::n, d]) for d, n in enumerate(steps)]

    def table(self, side: Side, prompt: int, depth: int) -> Tensor:
        return self.kept[side][prompt][depth][0]

    def state(self, side: Side, prompt: int, depth: int) -> Tensor:
        return self.kept[side][prompt][depth][1]

    def logits(self, side: Side, prompts: Sequence[int], texts: Tensor) -> Tensor:
        return self._looked_up(lambda prompt, depth: self.table(side, prompt, depth), prompts, texts)

    def states(self, side: Side, prompts: Sequence[int], texts: Tensor) -> Tensor:
        return self._looked_up(lambda prompt, depth: self.state(side, prompt, depth), prompts, texts)

    def _looked_up(self, table: Callable[[int, int], Tensor], prompts: Sequence[int], texts: Tensor) -> Tensor:
        first = table(0, 0)
        out = first.new_zeros(*texts.shape, first.shape[-1])
        which = torch.as_tensor(list(prompts))
        for prompt in which.unique().tolist():
            rows = (which == prompt).nonzero()[:, 0]
            number = torch.zeros(len(rows), dtype=torch.int64)
            for place in range(min(texts.shape[1], self.depth)):
                out[rows, place] = table(prompt, place)[number]
                number = number * self.vocab + texts[rows, place]
        return out


@dataclass
class Forwards:
    """The texts at hand, each that differs once, as many at a time as fit, behind transformers' own cache of their prompt."""

    models: dict[str, Any]
    prompts: Sequence[Sequence[int]]
    vocab: int
    begun: dict[tuple[Side, int], Any] = field(default_factory=dict)

    def logits(self, side: Side, prompts: Sequence[int], texts: Tensor) -> Tensor:
        model = self.models[side]
        is_exact = model.dtype == torch.float64 and self.vocab <= 8192
        return self._joined(side, prompts, texts, 0, torch.float64 if is_exact else torch.float32)

    def states(self, side: Side, prompts: Sequence[int], texts: Tensor) -> Tensor:
        return self._joined(side, prompts, texts, 1, self.models[side].dtype)

    def _joined(self, side: Side, prompts: Sequence[int], texts: Tensor, which: int, dtype: torch.dtype) -> Tensor:
        """Of each prompt's texts, each that differs once: logits (0) or states (1)."""
        numbers, out = torch.as_tensor(list(prompts)), None
        for prompt in numbers.unique().tolist():
            rows = (numbers == prompt).nonzero()[:, 0]
            unlike, place = texts[rows].unique(dim=0, return_inverse=True)
            step = max(1, min(256, ELEMENTS // max(1, texts.shape[1] * self.vocab)))
            own = torch.cat([self._run(side, prompt, part)[which].to(dtype) for part in unlike.split(step)])[place]
            out = own.new_zeros(*texts.shape, own.shape[-1]) if out is None else out
            out[rows] = own
        return torch.zeros(*texts.shape, self.vocab, dtype=dtype) if out is None else out

    def _run(self, side: Side, prompt: int, texts: Tensor) -> tuple[Tensor, Tensor]:
        """[n,T,·] before each token of texts [n,T]: the last token of the prompt is run again with them."""
        from transformers import DynamicCache

        model, ids = self.models[side], list(self.prompts[prompt])
        with torch.no_grad():
            if (side, prompt) not in self.begun:
                cache = DynamicCache(config=model.config)
                if ids[:-1]:
                    model(torch.tensor([ids[:-1]], device=model.device), past_key_values=cache, use_cache=True)
                self.begun[side, prompt] = cache
            cache = copy.deepcopy(self.begun[side, prompt])
            if ids[:-1]:
                cache.batch_repeat_interleave(len(texts))
            first = torch.full((len(texts), 1), ids[-1])
            wanted = torch.cat((first, texts[:, :-1]), 1).to(model.device)
            logits, states = with_states(model, wanted, past_key_values=cache, use_cache=True)
        return logits[..., : self.vocab].cpu(), states.cpu()
