"""A draft model with a tokenizer of its own, whose law is restricted to the tokens that the target has too."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.draft.base import BaseDrafter, new_tokens
from sdbench.draft.text_index import count_common
from sdbench.draft.translation import Translation, shared_ids
from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.probs import clamp_nan_ids, draw
from sdbench.types import Context, DraftBlock, DraftSetup, Evidence, Limits, Verdict

Start = tuple[list[int], int, Prefix]  # a prompt's translation, its length before that, and the keys and values of it


class IntersectionDrafter(BaseDrafter):
    """Token-level intersection (Timor et al. 2025, arXiv:2502.05202): q is the draft's law over shared tokens, renormalised.

    Its columns are put in the target's order once, by id. The draft reads the target's text token by token: a token that it does
    not have is spelt in its own. So a text in its ids only grows, and is cached as any other.
    """

    version: ClassVar[str] = "1"
    limits: ClassVar[Limits] = Limits(draft_model=True)
    needs: ClassVar[frozenset[str]] = frozenset({"draft", "tokenizer", "draft_tokenizer"})

    cache: RaggedCache  # from open to close

    def __init__(self, setup: DraftSetup) -> None:
        self.model, self.warp = setup.draft, setup.warp
        self.num_ids = min(setup.target.vocab_size, setup.warp.vocab_size or setup.target.vocab_size)
        self.translation = Translation(setup.tokenizer, setup.draft_tokenizer)
        pairs = sorted(self.translation.shared.items())
        kept = [(ours, its) for ours, its in pairs if ours < self.num_ids and its < self.model.vocab_size]
        self.target_ids, self.draft_ids = torch.tensor(kept, device=self.model.device).unbind(1)
        self.draft_id_of = self.target_ids.new_zeros(self.num_ids).scatter_(0, self.target_ids, self.draft_ids)
        self.share = len(kept) / self.num_ids  # of the target's tokens that can be drafted

    @classmethod
    def build(cls, setup: DraftSetup) -> "IntersectionDrafter":  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls(setup)

    @classmethod
    def check(cls, setup: DraftSetup, **options: Any) -> None:
        if setup.tokenizer is not None and setup.draft_tokenizer is not None:
            shared_ids(setup.tokenizer, setup.draft_tokenizer)

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:
        self.cache = self.model.cache(num_rows, capacity * self.translation.longest + len(self.translation.begin) + 1)
        self.texts: dict[int, list[int]] = {}  # a row's text in the draft's ids
        self.sizes: dict[int, int] = {}  # tokens of the target that it stands for
        self.fed: dict[int, list[int]] = {}  # whose keys and values are cached
        self.drafted: Tensor | None = None  # [B,K] the last block in the draft's ids

    def close(self) -> None:
        self.model.give_back(self.cache)
        del self.cache

    def prefill_all(self, prompts: Sequence[Tensor], prefixes: Sequence[Any]) -> list[Start]:
        texts = [self.translation.begin + self.translation.ids_of(prompt.tolist()) or [0] for prompt in prompts]
        starts = [torch.tensor(text[:-1], dtype=torch.int64, device=self.model.device) for text in texts]
        cached = self.model.prefill_all(starts)
        return [(text, len(prompt), prefix) for text, prompt, prefix in zip(texts, prompts, cached, strict=True)]

    def prefill(self, prompt: Tensor, prefix: Any) -> Start:
        return self.prefill_all([prompt], [prefix])[0]

    def admit(self, row: int, prefix: Start) -> None:
        text, self.sizes[row], cached = prefix
        self.texts[row], self.fed[row] = list(text), text[:-1]
        self.cache.write(row, cached)

    def move(self, source: int, row: int) -> None:
        for rows in (self.texts, self.sizes, self.fed):
            rows[row] = rows.pop(source)  # type: ignore[assignment, index]
        self.cache.move(source, row, self.cache.slots)

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        self.drafted = None
        if not k:
            return DraftBlock.empty(lengths)
        self._read(context)
        texts = [self.texts.get(row, [0]) for row in range(len(lengths))]
        width = max(
            len(text) - min(count_common(self.fed.get(row, []), text), len(text) - 1) for row, text in enumerate(texts)
        )
        sizes = lengths.new_tensor([len(text) for text in texts])
        ids = lengths.new_tensor([([0] * width + text)[-width:] for text in texts])
        if self.model.limit is not None:
            lengths = torch.where(sizes + k <= self.model.limit, lengths, 0)
        positions = sizes[:, None] + torch.arange(-width, k - 1, device=sizes.device)  # [B,W+K−1]
        kv_length = self.model.kv_length(max(map(len, texts)) + k, self.cache)
        plans = self.model.plan(positions.clamp_min(-1), self.cache, kv_length).split([width, *[1] * (k - 1)])
        slots: list[tuple[Tensor, ...]] = []
        for plan, uniforms in zip(plans, u.unbind(1), strict=True):
            raw, hidden = self.model.forward_hidden(ids, plan, self.cache, keep=1)
            logits = self._restrict(raw[:, 0])
            q = self.warp.law(logits)
            token = q if self.warp.is_greedy else draw(q, uniforms)
            known = clamp_nan_ids(token, self.num_ids)
            ids = self.draft_id_of[known][:, None]
            slots.append((token, known if self.warp.is_greedy else q, logits, hidden[:, -1], ids[:, 0]))
        tokens, laws, logits, hidden, self.drafted = (torch.stack(values, 1) for values in zip(*slots, strict=True))
        kept = logits if "raw" in needs else None
        return DraftBlock(tokens, laws, lengths, kept, hidden if "draft_hidden" in needs else None)

    def _restrict(self, raw: Tensor) -> Tensor:
        """Return logits [B,V] of the target's ids from those of the draft's: −∞ where it has no such token."""
        raw = raw if raw.dtype in (torch.float32, torch.float64) else raw.float()
        logits = raw.new_full((len(raw), self.num_ids), -torch.inf)
        return logits.index_copy_(1, self.target_ids, raw.index_select(1, self.draft_ids))

    def _read(self, context: Context) -> None:
        """Translate what was emitted since the last round."""
        for row, tokens in new_tokens(context, self.sizes).items():
            self.texts[row] += self.translation.ids_of(tokens)
            self.sizes[row] += len(tokens)

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        if self.drafted is not None:  # of which the last token was not fed
            for row, ids in enumerate(self.drafted[: len(emitted), :-1].tolist()):
                self.fed[row] = self.texts[row] + ids
