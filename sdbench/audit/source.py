"""The models' own distributions after any text, from plain forwards of transformers: the engine is never used to check itself.

For a small vocabulary every continuation is run once and looked up (`Tables`); otherwise the given texts are run (`Forwards`).
"""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor

from sdbench.audit.texts import number_of
from sdbench.types import DraftBlock, Evidence

Side = Literal["target", "draft"]
ELEMENTS = 1 << 24  # logits of one forward


@dataclass(frozen=True, slots=True)
class Sampling:
    """How logits become a distribution, by transformers' names and in its order: temperature, top-k, top-p."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def is_cut_uncertain(self, dtype: torch.dtype) -> bool:
        """Return whether rounding in this precision may decide which tokens top-k and top-p keep, however likely they are."""
        has_cut = self.top_k is not None or (self.top_p is not None and self.top_p < 1)
        return has_cut and not self.is_greedy and dtype.itemsize < 4

    def law(self, logits: Tensor) -> Tensor:
        """Return the distributions [..., V] in float64 of logits [..., V], by transformers' warpers; one-hot at temperature 0."""
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


@dataclass(frozen=True, slots=True)
class ModelOutputs:
    """Before each token of N texts: un-tempered logits, and the states after the final norm that they are computed from."""

    logits: Tensor  # [N,T,V]
    states: Tensor  # [N,T,d]

    @classmethod
    def empty(cls, model: Any, shape: Sequence[int], vocab: int, dtype: torch.dtype) -> Self:
        width = model.get_output_embeddings().weight.shape[1]
        return cls(torch.zeros(*shape, vocab, dtype=dtype), torch.zeros(*shape, width, dtype=model.dtype))


class Source(Protocol):
    """The outputs of a pair before each token of texts [N,T] (padded with 0) after prompts [N]."""

    models: dict[str, Any]
    prompts: Sequence[Sequence[int]]
    vocab: int

    def outputs(self, side: Side, prompts: Sequence[int], texts: Tensor) -> ModelOutputs: ...


def run_model(model: Any, ids: Tensor, **options: Any) -> ModelOutputs:
    """Run one forward; a hook of the audit's own takes the states, since the audit shares no code with what it tests."""
    kept: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    try:
        with torch.no_grad():
            logits = model(ids, **options).logits
    finally:
        hook.remove()
    return ModelOutputs(logits, kept[0])


@dataclass
class Tables:
    """Outputs for every continuation of up to `depth` tokens of every prompt, from batched forwards of each prompt and model."""

    models: dict[str, Any]
    prompts: Sequence[Sequence[int]]
    vocab: int
    depth: int

    def __post_init__(self) -> None:
        self.cache: dict[Any, Any] = {}  # used by laws.py for blocks of drafters and by plan.py for laws of texts
        self.tables = {s: [self._run(model, prompt) for prompt in self.prompts] for s, model in self.models.items()}

    def _run(self, model: Any, prompt: Sequence[int]) -> list[ModelOutputs]:
        """Return depth d -> the outputs [V^d,·] after every prefix of d tokens, numbered as digits in base V."""
        tails = torch.tensor(list(itertools.product(range(self.vocab), repeat=self.depth - 1))).long()
        tails = tails.reshape(self.vocab ** (self.depth - 1), self.depth - 1)
        ids = torch.cat((torch.tensor([list(prompt)]).expand(len(tails), -1), tails), 1)
        parts = [run_model(model, part) for part in ids.split(max(1, 4096 // ids.shape[1]))]
        logits = torch.cat([part.logits[:, len(prompt) - 1 :, : self.vocab] for part in parts])
        states = torch.cat([part.states[:, len(prompt) - 1 :] for part in parts])
        steps = [self.vocab ** (self.depth - 1 - d) for d in range(self.depth)]
        return [ModelOutputs(logits[::step, d].double(), states[::step, d]) for d, step in enumerate(steps)]

    def at(self, side: Side, prompt: int, depth: int) -> ModelOutputs:
        """Return logits [V^d,V] and states [V^d,·] after every prefix of d tokens."""
        return self.tables[side][prompt][depth]

    def outputs(self, side: Side, prompts: Sequence[int], texts: Tensor) -> ModelOutputs:
        out = ModelOutputs.empty(self.models[side], texts.shape, self.vocab, torch.float64)
        numbers = torch.as_tensor(list(prompts))
        for prompt in numbers.unique().tolist():
            rows = (numbers == prompt).nonzero()[:, 0]
            for depth in range(min(texts.shape[1], self.depth)):
                table, prefix = self.at(side, prompt, depth), number_of(texts[rows, :depth], self.vocab)
                out.logits[rows, depth], out.states[rows, depth] = table.logits[prefix], table.states[prefix]
        return out


@dataclass
class Forwards:
    """Outputs from running each distinct text once, in batches that fit into memory, on transformers' own cache of its prompt."""

    models: dict[str, Any]
    prompts: Sequence[Sequence[int]]
    vocab: int
    caches: dict[tuple[Side, int], Any] = field(default_factory=dict)

    def outputs(self, side: Side, prompts: Sequence[int], texts: Tensor) -> ModelOutputs:
        model = self.models[side]
        is_exact = model.dtype == torch.float64 and self.vocab <= 8192
        out = ModelOutputs.empty(model, texts.shape, self.vocab, torch.float64 if is_exact else torch.float32)
        numbers, step = torch.as_tensor(list(prompts)), ELEMENTS // max(1, texts.shape[1] * self.vocab)
        for prompt in numbers.unique().tolist():
            rows = (numbers == prompt).nonzero()[:, 0]
            distinct, index = texts[rows].unique(dim=0, return_inverse=True)
            parts = [self._run(side, prompt, part) for part in distinct.split(max(1, min(256, step)))]
            out.logits[rows] = torch.cat([part.logits.to(out.logits.dtype) for part in parts])[index]
            out.states[rows] = torch.cat([part.states for part in parts])[index]
        return out

    def _run(self, side: Side, prompt: int, texts: Tensor) -> ModelOutputs:
        """Return outputs [n,T,·] before each token of texts [n,T]: the last token of the prompt is run again with them."""
        from transformers import DynamicCache

        model, ids = self.models[side], list(self.prompts[prompt])
        if (side, prompt) not in self.caches:
            cache = DynamicCache(config=model.config)
            if ids[:-1]:
                run_model(model, torch.tensor([ids[:-1]], device=model.device), past_key_values=cache, use_cache=True)
            self.caches[side, prompt] = cache
        cache = copy.deepcopy(self.caches[side, prompt])
        if ids[:-1]:
            cache.batch_repeat_interleave(len(texts))
        first = torch.full((len(texts), 1), ids[-1])
        inputs = torch.cat((first, texts[:, :-1]), 1).to(model.device)
        out = run_model(model, inputs, past_key_values=cache, use_cache=True)
        return ModelOutputs(out.logits[..., : self.vocab].cpu(), out.states.cpu())


def draft_block(
    source: Source, sampling: Sampling, prompt: int, texts: Tensor, drafts: Tensor, lengths: Tensor
) -> DraftBlock:
    """Return drafts [R,K] after texts [R,d] of one prompt as a block of the draft model."""
    begin, whole = texts.shape[1], torch.cat((texts, drafts, torch.zeros_like(lengths)[:, None]), 1)
    out = source.outputs("draft", [prompt] * len(whole), whole)
    logits = out.logits[:, begin:-1]
    return DraftBlock(drafts, sampling.law(logits), lengths, logits, out.states[:, begin:-1])


def evidence_of(source: Source, sampling: Sampling, prompt: int, texts: Tensor, draft: DraftBlock) -> Evidence:
    """Return the evidence for a rule on the block of each of texts [R,d] of one prompt; its q are distributions [R,K,V]."""
    begin = texts.shape[1]
    whole = torch.cat((texts, draft.tokens, torch.zeros_like(draft.lengths)[:, None]), 1)
    target = source.outputs("target", [prompt] * len(whole), whole)
    raw_p = target.logits[:, begin:]
    p = sampling.law(raw_p)
    if sampling.is_greedy:
        p, draft = p.argmax(-1), replace(draft, q=draft.q.argmax(-1))
    return Evidence(p, draft, sampling.is_greedy, raw_p, target.states[:, begin:])
