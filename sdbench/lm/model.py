"""A transformers model as used by the engine: ids and positions in, logits out, over a ragged cache."""

from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from sdbench.lm.attention import NAME
from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.capture import PATIENCE, CapturedSteps, Mode, mode_of
from sdbench.lm.fingerprint import fingerprint
from sdbench.lm.hook import ModelHook, no_model_hook, with_hook
from sdbench.lm.known import KnownPrefixes
from sdbench.lm.layers import bypass, contiguous, decoder_layers, last_states, low_and_middle, output_of
from sdbench.lm.logits import scale_logits
from sdbench.lm.memory import CHUNK, ROOM
from sdbench.lm.packed import PackedLayers, PackedWeights
from sdbench.lm.plan import CURRENT, Plan
from sdbench.lm.probe import probe
from sdbench.lm.rope import longest_text
from sdbench.lm.servable import refuse_unservable
from sdbench.lm.split_kv import kernel_for
from sdbench.types import PartialForward

BUCKET = 64  # KV lengths are multiples of it, or of 1/16 of themselves: few shapes, little padding
NOT_BEGUN = PartialForward()
NOTHING: Set[str] = frozenset()
PADDING = 256  # vocabularies that differ by at most this many ids count as the same, padded differently


class LM:
    """A causal language model of attention layers. Weights are used in place; the configuration is left unchanged.

    hook: called around each call of the model, for example to time it. packed: where packed copies of its weights are kept, for
    a model on a CPU whose steps run eagerly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        role: str = "target",
        capture: Mode | None = None,
        packed: PackedWeights | None = None,
    ) -> None:
        self.model, self.config, self.role = model, model.config.get_text_config(), role
        refuse_unservable(model.config, type(model), role)
        self._refuse_training_mode()
        self.packed, self.products = packed, packed.layers_of(model) if packed else PackedLayers()
        self.mode: Mode = mode_of(capture, model, is_packed=packed is not None)
        self.patience = PATIENCE if capture is None and self.mode == "trace" else 1
        self.head: Any = model.get_output_embeddings()
        self.layers = decoder_layers(model, self.config.num_hidden_layers)
        self.vocab_size: int = self.head.weight.shape[0]
        self.limit = longest_text(self.config)
        self.device, self.dtype = model.device, model.dtype
        self._levels = torch.tensor([0.0, -torch.inf], dtype=self.dtype, device=self.device).unbind()
        self._configs = list({id(c): c for c in (model.config, self.config)}.values())
        self._kept: RaggedCache | None = None  # with its captured steps
        self.pruned: dict[str, LM] = {}  # drafts over this model's weights, by what decides their layers
        self.hook: ModelHook = no_model_hook
        self.known: KnownPrefixes | None = None  # set only by code that knows the weights do not change
        self.kernel = kernel_for(self.device, self.dtype)
        self.attention, self.layer_masks = NAME, probe(self)

    def _refuse_training_mode(self) -> None:
        if self.model.training:
            name = f"{self.role} model of type {self.config.model_type!r}"
            raise ValueError(f"{name} is in training mode: call model.eval() first")

    def listed_layers(self) -> list[Any]:
        """Return the decoder layers; ValueError unless they are in one list, so that some can be left out."""
        if not self.layers:
            name = f"the {self.role} model of type {self.config.model_type!r}"
            raise ValueError(f"{name} does not keep its decoder layers in one list, so that some could be left out")
        return self.layers

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return all end-of-text ids of the generation_config, or if it has none, of the configuration."""
        generation = self.model.generation_config
        ids = generation.eos_token_id if generation is not None else None
        ids = ids if ids is not None else self.config.eos_token_id
        return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)

    def num_padded(self, count: int, num_rows: int) -> int:
        """Return how many rows a step computes for `count` texts: few different numbers if new shapes are expensive."""
        return min(1 << (count - 1).bit_length(), num_rows) if self.mode in ("graphs", "compile") else count

    def cache(self, num_rows: int, capacity: int) -> RaggedCache:
        """Return a cache of R texts of at most `capacity` tokens, for which `kv_length` allocates; with captured steps the
        cache returned last, if they are still valid.
        """
        self._refuse_training_mode()
        num_layers = self.config.num_hidden_layers
        self.products.renew()
        if self.mode == "off":
            return RaggedCache(num_layers, num_rows, capacity, 0)
        holds_for = self.mode, num_rows, fingerprint(self.model)
        cache, self._kept = self._kept, None
        if cache is None or cache.steps.holds_for != holds_for or cache.capacity < capacity:
            cache = RaggedCache(num_layers, num_rows, -(-capacity // ROOM) * ROOM, 0)
            cache.steps = CapturedSteps(self.mode, holds_for)
        cache.steps.patience = self.patience
        return cache

    def give_back(self, cache: RaggedCache) -> None:
        """Take back a cache that is no longer read. If a step could not be captured, none is tried again."""
        self.mode = cache.steps.mode
        if self.mode != "off" and cache.is_whole:
            self._kept = cache

    def forget(self) -> None:
        """Free the caches that are kept for captured steps, and those of known prompts."""
        self._kept = None
        self.known = None if self.known is None else KnownPrefixes(self.known.most_bytes)
        for lm in self.pruned.values():
            lm.forget()

    def kv_length(self, longest: int, cache: RaggedCache) -> int:
        """Return how many slots are read if no text is longer than this, and allocate them."""
        length = min(self.round_up(longest), cache.capacity)
        cache.reserve(length)
        return length

    def round_up(self, longest: int) -> int:
        """Round a length up to the next one for which steps are captured."""
        width = max(BUCKET, 1 << max(longest - 1, 0).bit_length() >> 4)
        return -(-longest // width) * width

    def plan(self, positions: Tensor, cache: RaggedCache, length: int) -> Plan:
        """Plan tokens at positions [B,T], at least −1, that attend to the first `length` slots."""
        if isinstance(length, int):  # otherwise a tracer's; `kv_length` has allocated
            cache.reserve(length)
        slots = cache.slots + 1
        row = torch.arange(0, len(positions) * slots, slots, device=positions.device)
        # −1, before a text, and positions past the cache use the scratch slot.
        index = positions.clamp_max(cache.slots).remainder(slots).add_(row[:, None])
        masks = self._levels, self.layer_masks
        return Plan(positions.clamp_min(0), index.flatten(), length, *masks, self.limit, None, self.kernel)

    def forward(self, ids: Tensor, plan: Plan, cache: RaggedCache, *, keep: int = 0) -> Tensor:
        """Return the logits [B,T,V] of ids [B,T], or of the last `keep` of them."""
        return self.forward_hidden(ids, plan, cache, keep=keep)[0]

    @with_hook
    def forward_hidden(
        self, ids: Tensor, plan: Plan, cache: RaggedCache, *, keep: int = 0, begun: PartialForward = NOT_BEGUN
    ) -> tuple[Tensor, Tensor]:
        """Return logits as `forward` does, and the last hidden states [B,T,d] of all ids, after the final norm.

        A partial forward pass is continued: its layers neither run nor write to the cache.
        """
        with self._running(plan, keep) as hidden, bypass(self.layers[: begun.num_layers], *begun.states):
            logits = self._run(self.model, ids, plan, cache).logits
        return logits, hidden[0]

    @with_hook
    def forward_exit(
        self, ids: Tensor, plan: Plan, cache: RaggedCache, num_layers: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run only the first `num_layers` layers: return logits [B,T,V] and states [B,T,d] as `forward_hidden` does, by the
        model's final norm and head, and the states [B,T,d] of the last of these layers.
        """
        with self._running(plan, 0) as hidden, bypass(self.layers[num_layers:]) as given:
            logits = self._run(self.model, ids, plan, cache).logits
        return logits, hidden[0], given[0]

    @with_hook
    def read_out(self, states: Tensor) -> Tensor:
        """Return the logits [...,V] of the model's head for any last states [...,d]."""
        with self.products.in_use():
            return scale_logits(self.head(contiguous(states)), self.config)

    @with_hook
    def begin(self, ids: Tensor, plan: Plan, cache: RaggedCache, num_layers: int) -> Tensor:
        """Run only the first `num_layers` layers, without the head: return the states [B,T,d] of the last of them."""
        with self._running(plan, 0), bypass(self.layers[num_layers:]) as given:
            self._run(self.model.get_decoder(), ids, plan, cache)
        return given[0]

    def _run(self, module: Any, ids: Tensor, plan: Plan, cache: RaggedCache) -> Any:
        inputs = {"inputs_embeds" if ids.is_floating_point() else "input_ids": ids}
        return module(**inputs, position_ids=plan.position_ids, past_key_values=cache, use_cache=True)

    @contextmanager
    def layer_states(self, is_on: bool) -> Iterator[list[list[Tensor]]]:
        """Yield a list that collects the states of a low and a middle layer; it stays empty if this is off."""
        with ExitStack() as stack:
            layers = low_and_middle(self.listed_layers()) if is_on else []
            yield [stack.enter_context(output_of(layer)) for layer in layers]

    def prefill_all(self, prompts: Sequence[Tensor], *, needs: Set[str] = NOTHING) -> list[Prefix]:
        """Return keys and values of several prompts [L], or of embeddings [L,d], chunk by chunk; only the last position's
        logits are computed.

        Shorter ones are padded at the end, which no earlier token sees. A common beginning is copied if it is known. With
        "target_hidden" or "layer_hidden" among the needs, prefixes hold these states.
        """
        names = {"hidden": "target_hidden", "layer_hidden": "layer_hidden"}
        states: dict[str, list[Tensor]] = {name: [] for name, need in names.items() if need in needs}
        known = None if states else self.known
        begun, beginnings = known.longest(prompts) if known else (0, [])
        lengths = [len(prompt) for prompt in prompts]
        capacity = max(1, *lengths)
        cache = RaggedCache(self.config.num_hidden_layers, len(prompts), capacity)
        ids = pad_sequence(list(prompts), batch_first=True)
        rows = torch.arange(0, len(prompts) * (capacity + 1), capacity + 1, device=ids.device)[:, None]
        for row, beginning in enumerate(beginnings):
            cache.write(row, beginning)
        for start in range(begun, max(lengths), CHUNK):
            chunk = ids[:, start : start + CHUNK]
            stop = start + chunk.shape[1]
            positions = torch.arange(start, stop, device=ids.device).expand(len(prompts), -1)
            plan = Plan(positions, (positions + rows).flatten(), stop, self._levels, self.layer_masks, None, start)
            with self.layer_states("layer_hidden" in states) as layer_states:
                hidden = self.forward_hidden(chunk, plan, cache, keep=1)[1]
            chunk_states = {"hidden": hidden, "layer_hidden": concatenate_states(layer_states)}
            for name, parts in states.items():
                parts.append(chunk_states[name])
        prefixes = [cache.read(row, length) for row, length in enumerate(lengths)]
        if known and begun < max(lengths):
            known.add(prompts, prefixes)
        if begun >= max(lengths):
            return prefixes
        whole = {name: torch.cat(parts, 1) for name, parts in states.items()}
        return [
            replace(prefix, **{name: x[row, : prefix.length] for name, x in whole.items()})
            for row, prefix in enumerate(prefixes)
        ]

    @contextmanager
    def _running(self, plan: Plan, keep: int) -> Iterator[list[Tensor]]:
        """For one forward pass, set our attention (others may use the model too), pass only the states of the last `keep` ids
        to its head, and record those of all ids.
        """
        states: list[Tensor] = []

        def head_input(_: Any, inputs: tuple[Tensor, ...]) -> Tensor:
            states.append(inputs[0])
            return last_states(inputs[0], keep)

        before = [config._attn_implementation_internal for config in self._configs]
        # In a trace the weights are constants, which must not require a gradient.
        learning = [p for p in self.model.parameters() if p.requires_grad] if torch._C._get_tracing_state() else []
        token = CURRENT.set(plan)
        hook = self.head.register_forward_pre_hook(head_input)
        for config in self._configs:
            config._attn_implementation_internal = self.attention
        try:
            for parameter in learning:
                parameter.requires_grad_(False)
            with self.products.in_use():
                yield states
        finally:
            for parameter in learning:
                parameter.requires_grad_(True)
            hook.remove()
            CURRENT.reset(token)
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation_internal = name


def concatenate_states(layer_states: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the states [B,T,n·d] of n layers of one forward pass; [0] without layers."""
    return torch.cat([outputs[0] for outputs in layer_states], -1) if layer_states else torch.empty(0)


def used_vocab(target: LM, draft: LM | None, vocab_size: int | None) -> int:
    """Return how many ids may have mass on either side: those that both models have, or the first `vocab_size` of them."""
    smaller = target.vocab_size if draft is None else min(target.vocab_size, draft.vocab_size)
    if draft is not None and abs(target.vocab_size - draft.vocab_size) > PADDING:
        raise ValueError(
            f"target and draft must share a vocabulary: theirs have {target.vocab_size} and {draft.vocab_size} ids, "
            f"and padding explains at most {PADDING}"
        )
    if vocab_size is not None and not 1 <= vocab_size <= smaller:
        raise ValueError(f"vocab_size must be between 1 and {smaller}, the ids both models have, got {vocab_size}")
    return vocab_size or smaller
