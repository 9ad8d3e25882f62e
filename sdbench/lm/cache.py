"""Keys and values, contiguous per row, so that a rollback is just a shorter length. The engine stores the lengths.

Memory is allocated as texts grow, for all rows at once, so the unused part of a token budget takes no memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from sdbench.lm.capture import CapturedSteps
from sdbench.lm.memory import ROOM
from sdbench.lm.plan import current


@dataclass(frozen=True, slots=True)
class Prefix:
    """The keys and values of a prompt, copied to each row that starts from it."""

    layers: tuple[tuple[Tensor, Tensor], ...]  # [L,G,D] each
    length: int
    hidden: Tensor | None = None  # [L,d] after the final norm, if requested
    layer_hidden: Tensor | None = None  # [L,2d] of a low and a middle layer, if requested

    @property
    def nbytes(self) -> int:
        return sum(states.nbytes for layer in self.layers for states in layer)

    def first(self, length: int) -> "Prefix":
        """Return the prefix of the first tokens."""
        return Prefix(tuple((keys[:length], values[:length]) for keys, values in self.layers), length)


class RaggedLayer(CacheLayerMixin):
    """Keys and values [R,S+1,G,D] of one layer; slot S is scratch. `update` writes to the slots of the current plan."""

    is_sliding = False  # sliding layers keep everything too; the mask limits what they see

    def __init__(self, num_rows: int, slots: int) -> None:
        super().__init__()
        self.num_rows, self.slots = num_rows, slots
        self.stores: tuple[Tensor, ...] = ()  # [R,S+1,G,D], keys and values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate with the dtype, the device and the number of heads of the first keys that the model computes."""
        self.stores = tuple(
            torch.zeros(self.num_rows, self.slots + 1, x.shape[1], x.shape[3], dtype=x.dtype, device=x.device)
            for x in (key_states, value_states)
        )
        self.is_initialized = True

    def grow(self, slots: int) -> None:
        """Make room for longer texts. Keys are copied first, then values, so that only one of the two is in memory twice."""
        before, self.slots = self.slots, slots
        stores, self.stores = list(self.stores), ()
        while stores:
            store = stores.pop(0)
            larger = store.new_zeros(len(store), slots + 1, *store.shape[2:])
            larger[:, :before] = store[:, :before]
            self.stores += (larger,)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Scatter [B,G,T,D] to the plan's slots; return what the first B rows can see, [B,G,L,D].

        What is written and what is read are views of one tensor, taken here, so that a trace keeps the order of both.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan = current()
        for store, states in zip(self.stores, (key_states, value_states), strict=True):
            store.flatten(0, 1).index_copy_(0, plan.index, states.transpose(1, 2).flatten(0, 1))
        keys, values = (store[: len(key_states), : plan.length].transpose(1, 2) for store in self.stores)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return current().length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.slots


class RaggedCache(Cache):
    """R rows of at most C tokens in every layer, with memory for S tokens per row so far (None: for all C)."""

    def __init__(self, num_layers: int, num_rows: int, capacity: int, slots: int | None = None) -> None:
        self.slots = capacity if slots is None else slots
        self.ragged = [RaggedLayer(num_rows, self.slots) for _ in range(num_layers)]
        super().__init__(layers=list(self.ragged))
        self.num_rows, self.capacity, self.steps = num_rows, capacity, CapturedSteps()

    def reserve(self, length: int) -> None:
        """Make room for texts of this length. Steps that were captured over the smaller cache are captured again."""
        if length <= self.slots:
            return
        slots = slots_for(length, self.slots, self.capacity)
        self.steps = self.steps.renew()
        for layer in self.ragged:
            layer.grow(slots)
        self.slots = slots

    @property
    def is_whole(self) -> bool:
        """Whether all layers have the same room. If memory runs out in `reserve`, they do not, and the cache is unusable."""
        return all(layer.slots == self.slots for layer in self.ragged)

    def read(self, row: int, length: int) -> Prefix:
        """Return the first `length` slots of a row as views, which keep the cache alive."""
        return Prefix(tuple((k[row, :length], v[row, :length]) for k, v in self._stores()), length)

    def write(self, row: int, prefix: Prefix) -> None:
        """Start a row from a prompt."""
        if not prefix.length:
            return
        self.reserve(prefix.length)
        for layer, states in zip(self.ragged, prefix.layers, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(*(x[None].transpose(1, 2) for x in states))
            for store, state in zip(layer.stores, states, strict=True):
                store[row, : prefix.length] = state

    def move(self, source: int, row: int, length: int) -> None:
        """Copy the first `length` slots of one row to another."""
        for stores in self._stores():
            for store in stores:
                store[row, :length] = store[source, :length]

    def _stores(self) -> list[tuple[Tensor, ...]]:
        return [layer.stores for layer in self.ragged if layer.is_initialized]


def slots_for(length: int, slots: int, capacity: int) -> int:
    """Return how many slots to allocate for texts of a length: at least half as many again as before, up to the capacity."""
    return min(capacity, -(-max(length, slots * 3 // 2) // ROOM) * ROOM)
