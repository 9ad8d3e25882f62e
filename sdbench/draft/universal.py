"""A draft model with another tokenizer, by text: the target's tokenizer encodes what the draft writes."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

from torch import Tensor

from sdbench.draft.base import is_whole
from sdbench.draft.foreign import ForeignDrafter
from sdbench.draft.lookup import TextDrafter
from sdbench.draft.spelling import SpelledText, Spelling, WrittenDraft, refuse_undecodable
from sdbench.draft.translation import UNKNOWN, texts_of_ids
from sdbench.probs import Warp, clamp_nan_ids
from sdbench.types import Context, DraftBlock, DraftSetup, Evidence, Verdict


class UniversalDrafter(ForeignDrafter):
    """Universal assisted generation (Timor et al. 2025, arXiv:2502.05202): any two vocabularies, by text.

    The draft reads the text in its own ids and continues it greedily. The target's tokenizer encodes this continuation together
    with a window of the text. Tokens are offered up to the first that depends on the draft's last id. So a drafted token is a
    function of the text, and its q is one-hot, as with prompt lookup.
    """

    version: ClassVar[str] = "2"
    reads_target: ClassVar[bool] = False
    has_logits: ClassVar[bool] = False

    def __init__(self, setup: DraftSetup, look_behind: int) -> None:
        target, draft = setup.tokenizer, setup.draft_tokenizer
        self.model, self.spelling = setup.draft, Spelling(target, draft, look_behind)
        self.num_ids = min(setup.target.vocab_size, setup.warp.vocab_size or setup.target.vocab_size)
        self.warp = Warp(0.0, vocab_size=min(self.model.vocab_size, len(draft)))
        self.special = {self.warp.vocab_size, *draft.all_special_ids}
        self.longest, self.num_shared = longest_text(target), len(common_texts(target, draft))
        self.counts = {"blocks": 0, "offered": 0, "lost": 0, "text_s": 0.0}
        self.newest: dict[str, float] = dict.fromkeys(self.counts, 0)  # of the current round
        self.sizes: list[int] = []  # of the current round's blocks, by row

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, setup: DraftSetup, look_behind: int = 10
    ) -> "UniversalDrafter":
        return cls(setup, look_behind)

    @classmethod
    def check(cls, setup: DraftSetup, look_behind: Any = 10, **options: Any) -> None:
        if not is_whole(look_behind) or look_behind < 1:
            raise ValueError(f"look_behind must be a whole number of at least 1, got {look_behind}")
        for name, tokenizer in (("target", setup.tokenizer), ("draft", setup.draft_tokenizer)):
            if tokenizer is not None:
                refuse_undecodable(tokenizer, name)

    @property
    def facts(self) -> dict[str, int]:
        return {"shared_tokens": self.num_shared, "target_tokens": self.num_ids}

    @property
    def most_ids(self) -> int:
        return self.longest

    def begin_text(self, prompt: list[int]) -> SpelledText:
        text = self.spelling.begin_text(prompt)
        text.rate = min(text.rate, self.longest)
        return text

    def extend(self, texts: Mapping[int, SpelledText], new: Mapping[int, list[int]]) -> None:
        with self._clock_text():
            self.spelling.extend(texts, new)

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        self.newest = dict.fromkeys(self.counts, 0)
        if not k:
            return DraftBlock.empty(lengths)
        self.read(context)
        limits = lengths.tolist()
        counts = [
            ceil(limit * self.texts[row].rate) + 1 if row in self.texts else 1 for row, limit in enumerate(limits)
        ]
        rows = [self.has_room(row, count) for row, count in enumerate(counts)]
        blocks: list[list[int]] = [[] for _ in limits]
        open_rows = [row for row, has_room in enumerate(rows) if has_room and limits[row] and self.texts[row].is_open]
        if open_rows:
            slots = u.new_zeros(len(limits), max(counts))
            written = self.draw_slots(("universal", self.warp), rows, slots, self._choose)[-1].tolist()
            with self._clock_text():
                drafts = [self._end_at_special(written[row][: counts[row]]) for row in open_rows]
                of_rows = [self.texts[row] for row in open_rows], drafts, [limits[row] for row in open_rows]
                spelled = self.spelling.spell(*of_rows)
            for row, block in zip(open_rows, spelled, strict=True):
                known = [token < self.num_ids for token in block.tokens]
                blocks[row] = block.tokens[: [*known, False].index(False)]
                if self.warp.vocab_size in written[row]:
                    blocks[row] = [self.num_ids]  # from this id the engine reports NaN logits
                self.newest["blocks"] += 1
                self.newest["lost"] += block.num_lost
        self.sizes = list(map(len, blocks))
        return TextDrafter.block_of(blocks, lengths)

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        if self.newest["blocks"]:  # a length policy may have cut them
            self.newest["offered"] = sum(map(min, self.sizes, evidence.draft.lengths.tolist()))
        for name, value in self.newest.items():
            self.counts[name] += value

    def _choose(self, raw: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        token = self.warp.law(raw)
        return clamp_nan_ids(token, self.warp.vocab_size or raw.shape[-1]), token

    def _end_at_special(self, ids: list[int]) -> WrittenDraft:
        """Return the ids before the first special token."""
        stop = next((n for n, index in enumerate(ids) if index in self.special), len(ids))
        return WrittenDraft(ids[:stop], stop < len(ids))

    @contextmanager
    def _clock_text(self) -> Iterator[None]:
        begun_s = time.perf_counter()
        yield
        self.newest["text_s"] += time.perf_counter() - begun_s


@lru_cache(maxsize=4)  # tokenizers do not change, and reading all their texts takes a second
def common_texts(target: Any, draft: Any) -> frozenset[str]:
    """Return the texts that both tokenizers have as a token."""
    ours, its = ({text for text in texts_of_ids(part) if text and UNKNOWN not in text} for part in (target, draft))
    return frozenset(ours & its)


@lru_cache(maxsize=4)
def longest_text(tokenizer: Any) -> int:
    """Return the number of bytes of the longest text of an id: no tokenizer needs more ids for one token."""
    return max((len(text.encode()) for text in texts_of_ids(tokenizer)), default=1) or 1
