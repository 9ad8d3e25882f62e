"""Common code of drafters whose draft model has another tokenizer: a cache over the draft's ids."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from sdbench.draft.base import BaseDrafter, new_tokens
from sdbench.draft.text_index import count_common
from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.model import LM
from sdbench.types import Context, Limits

# From logits [B,V] of the draft and uniforms [B]: the ids [B] that it reads next, and what else to keep for a slot.
Choose = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class ForeignText(Protocol):
    """A row's text in the ids of the draft."""

    ids: list[int]  # not empty
    size: int  # number of target tokens that they represent

    @property
    def num_settled(self) -> int:
        """Return how many of the ids later tokens cannot change."""
        ...

    def copy(self) -> "ForeignText":
        """Return an independent copy."""
        ...


class ForeignDrafter(BaseDrafter):
    """A draft model that reads each row's text in its own ids. It runs again only ids that changed."""

    limits: ClassVar[Limits] = Limits(draft_model=True)
    needs: ClassVar[frozenset[str]] = frozenset({"draft", "tokenizer", "draft_tokenizer"})

    model: LM
    cache: RaggedCache  # from open to close

    @property
    @abstractmethod
    def most_ids(self) -> int:
        """Return the largest number of draft ids for one token of the target."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Return how many of the target's tokens the draft shares, and their total number."""

    @abstractmethod
    def begin_text(self, prompt: list[int]) -> ForeignText: ...

    @abstractmethod
    def extend(self, texts: Mapping[int, Any], new: Mapping[int, list[int]]) -> None:
        """Append tokens of the target to the texts of these rows."""

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:
        self.cache = self.model.cache(num_rows, (capacity + 1) * self.most_ids)
        self.texts: dict[int, Any] = {}
        self.fed: dict[int, tuple[int, list[int]]] = {}  # cached ids of a row: the first n of its text, then these

    def close(self) -> None:
        self.model.give_back(self.cache)
        del self.cache

    def prefill_all(self, prompts: Sequence[Tensor], prefixes: Sequence[Any]) -> list[tuple[ForeignText, Prefix]]:
        """Run each text without its last id, up to the draft's number of positions; longer texts get no drafts (`has_room`)."""
        texts = [self.begin_text(prompt.tolist()) for prompt in prompts]
        readable = [text.ids[:-1][: self.model.limit] for text in texts]
        starts = [torch.tensor(ids, dtype=torch.int64, device=self.model.device) for ids in readable]
        return list(zip(texts, self.model.prefill_all(starts), strict=True))

    def prefill(self, prompt: Tensor, prefix: Any) -> tuple[ForeignText, Prefix]:
        return self.prefill_all([prompt], [prefix])[0]

    def admit(self, row: int, prefix: tuple[ForeignText, Prefix]) -> None:
        text, cached = prefix
        self.texts[row], self.fed[row] = text.copy(), cut(text, text.ids[: cached.length])
        self.cache.write(row, cached)

    def move(self, source: int, row: int) -> None:
        self.texts[row], self.fed[row] = self.texts.pop(source), self.fed.pop(source)
        self.cache.move(source, row, self.cache.slots)

    def read(self, context: Context) -> None:
        """Append to each row's text the tokens emitted in the last round."""
        self.extend(self.texts, new_tokens(context, {row: text.size for row, text in self.texts.items()}))

    def has_room(self, row: int, count: int) -> bool:
        """Return whether the draft can write `count` ids after a row's text."""
        limit = min(self.model.limit or self.cache.capacity, self.cache.capacity)
        return row in self.texts and len(self.texts[row].ids) + count <= limit

    def draw_slots(self, name: Any, rows: Sequence[bool], u: Tensor, choose: Choose) -> tuple[Tensor, ...]:
        """Draft with u [B,k] after the texts of `rows`; return ids [B,k], their states [B,k,d] and what else `choose` keeps.

        Other rows draft after a text of one id, and their result is ignored. `name`: everything on which `choose` depends.
        """
        # After a block that was kept whole two ids are new; with this minimum most rounds have one shape.
        texts, widths = [], [2]
        for row, is_drafted in enumerate(rows):
            text = self.texts[row] if is_drafted else None
            texts.append([0] if text is None else text.ids)
            if text is not None:
                count, rest = self.fed[row]
                common = count + count_common(rest, text.ids[count:])
                widths.append(len(text.ids) - min(common, len(text.ids) - 1))
        width = 1 << (max(widths) - 1).bit_length()  # few shapes; running ids again gives the same values
        ids = torch.tensor([[0] * (width - len(text)) + text[-width:] for text in texts], device=u.device)
        sizes = torch.tensor([len(text) for text in texts], device=u.device)
        kv_length = self.model.kv_length(max(map(len, texts)) + u.shape[1], self.cache)
        step = partial(self._draw, self.cache, choose)
        drawn, *kept = self.cache.steps(step, name, kv_length, ids, sizes, u)
        for row, slots in enumerate(drawn[:, :-1].tolist()):
            if row in self.texts:  # the last drafted id was not run
                self.fed[row] = cut(self.texts[row], texts[row] + slots) if rows[row] else (0, [0, *slots])
        return drawn, *kept

    def _draw(
        self, cache: RaggedCache, choose: Choose, kv_length: int, ids: Tensor, sizes: Tensor, u: Tensor
    ) -> tuple[Tensor, ...]:
        width, k = ids.shape[1], u.shape[1]
        positions = sizes[:, None] + torch.arange(-width, k - 1, device=u.device)  # [B,T+k−1]
        plans = self.model.plan(positions.clamp_min(-1), cache, kv_length).split([width, *[1] * (k - 1)])
        slots: list[tuple[Tensor, ...]] = []
        for plan, uniforms in zip(plans, u.unbind(1), strict=True):
            raw, hidden = self.model.forward_hidden(ids, plan, cache, keep=1)
            token, *kept = choose(raw[:, 0], uniforms)
            slots.append((token, hidden[:, -1], *kept))
            ids = token[:, None]
        return tuple(torch.stack(values, 1) for values in zip(*slots, strict=True))


def cut(text: ForeignText, ids: list[int]) -> tuple[int, list[int]]:
    """Split ids that begin like this text into (the number of settled ids, the rest)."""
    count = min(text.num_settled, len(ids))
    return count, ids[count:]
