"""Keys and values, compact per row: a rollback is a shorter length, nothing else; the lengths live with the engine."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from sdbench.lm.capture import CapturedSteps
from sdbench.lm.plan import current


@dataclass(frozen=True, slots=True)
class Prefix:
    """The keys and values of a prompt, copied to each row that starts from it."""

    layers: tuple[tuple[Tensor, Tensor], ...]  # [L,G,D] each
    length: int
    hidden: Tensor | None = None  # [L,d] after the final norm, where they were asked for


class RaggedLayer(CacheLayerMixin):
    """Keys and values [R,C+1,G,D] of one layer; slot C is scratch. `update` writes where the current plan says."""

    is_sliding = False  # sliding layers keep everything too: what they see is the mask's matter

    def __init__(self, num_rows: int, capacity: int) -> None:
        super().__init__()
        self.num_rows, self.capacity = num_rows, capacity
        self.stores: tuple[Tensor, ...] = ()  # [R,C+1,G,D], keys and values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Room in the dtype, on the device and in the number of heads that the model itself shows."""
        self.stores = tuple(
            torch.zeros(self.num_rows, self.capacity + 1, x.shape[1], x.shape[3], dtype=x.dtype, device=x.device)
            for x in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Scatter [B,G,T,D] to the plan's slots; what is visible of the first B rows, [B,G,L,D].

        What is written and what is read are views made here of one tensor, so that a tracer keeps their order.
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
        return self.capacity


class RaggedCache(Cache):
    """R rows of at most C tokens, in every layer."""

    def __init__(self, num_layers: int, num_rows: int, capacity: int) -> None:
        self.ragged = [RaggedLayer(num_rows, capacity) for _ in range(num_layers)]
        super().__init__(layers=list(self.ragged))
        self.num_rows, self.capacity, self.steps = num_rows, capacity, CapturedSteps()

    def read(self, row: int, length: int) -> Prefix:
        """The first `length` slots of a row: views, which keep the cache alive."""
        return Prefix(tuple((k[row, :length], v[row, :length]) for k, v in self._stores()), length)

    def write(self, row: int, prefix: Prefix) -> None:
        """Start a row from a prompt."""
        if not prefix.length:
            return
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

    def num_bytes(self) -> int:
        """Bytes a row."""
        return sum(store.nbytes // self.num_rows for stores in self._stores() for store in stores)

    def _stores(self) -> list[tuple[Tensor, ...]]:
        return [layer.stores for layer in self.ragged if layer.is_initialized]
