"""A transformers model as the engine sees it: ids and positions in, logits out, over a ragged cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sdbench.lm.attention import NAME
from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.plan import CURRENT, Plan

CHUNK = 512  # prompt tokens a prefill call takes
BUCKET = 64  # lengths that are read are multiples of it
PADDING = 256  # vocabularies that differ by at most this many ids are one, padded differently


class LM:
    """A causal language model made of attention layers. Its weights are used as they are; its configuration is left as it was."""

    def __init__(self, model: PreTrainedModel, *, role: str = "target") -> None:
        self.model, self.config = model, model.config.get_text_config()
        _refuse_recurrent(self.config, role)
        if not model._can_set_attn_implementation():
            raise ValueError(f"{role} {type(model).__name__} does not take an attention function; the engine needs one")
        self.role = role
        self.is_raw = False
        self.head: Any = model.get_output_embeddings()
        self.vocab_size: int = self.head.weight.shape[0]
        self.limit: int | None = getattr(self.config, "max_position_embeddings", None)
        self.device, self.dtype = model.device, model.dtype

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All end-of-text ids of the generation_config, or where it names none, of the configuration."""
        generation = self.model.generation_config
        found = generation.eos_token_id if generation is not None else None
        found = found if found is not None else self.config.eos_token_id
        return () if found is None else (found,) if isinstance(found, int) else tuple(found)

    def cache(self, num_rows: int, capacity: int) -> RaggedCache:
        return RaggedCache(self.config.num_hidden_layers, num_rows, capacity)

    def plan(self, positions: Tensor, cache: RaggedCache, longest: int) -> Plan:
        """For tokens at positions [B,T], none of which matters beyond `longest`."""
        scratch, row = cache.capacity, torch.arange(len(positions), device=positions.device)
        slot = torch.where(positions < 0, scratch, positions.clamp_max(scratch))
        index = (slot + row[:, None] * (scratch + 1)).flatten()
        return Plan(positions, index, min(-(-longest // BUCKET) * BUCKET, scratch), self.dtype)

    def forward(self, ids: Tensor, plan: Plan, cache: RaggedCache, *, keep: int = 0) -> Tensor:
        """Logits [B,T,V] of ids [B,T], or of the last `keep` of them."""
        return self.forward_hidden(ids, plan, cache, keep=keep)[0]

    def forward_hidden(
        self, ids: Tensor, plan: Plan, cache: RaggedCache, *, keep: int = 0, keep_hidden: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B,T,V], and where asked for the last hidden states [B,T,d], after the final norm: what the head reads."""
        if keep_hidden:
            seen: list[Tensor] = []
            hook = self.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
            try:
                logits = self.forward(ids, plan, cache, keep=keep)
                return logits, seen[0]
            finally:
                hook.remove()
        positions = plan.positions.clamp(0, (self.limit or cache.capacity) - 1)
        with self._attending(plan):
            return self.model(
                input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=keep
            ).logits, None

    def prefill(self, prompt: Tensor) -> Prefix:
        """Keys and values of a prompt [L], chunk by chunk; no logits but the last position's are ever made."""
        length = len(prompt)
        cache = self.cache(1, max(length, 1))
        for start in range(0, length, CHUNK):
            ids = prompt[None, start : start + CHUNK]
            stop = start + ids.shape[1]
            positions = torch.arange(start, stop, device=ids.device)[None]
            plan = Plan(positions, positions[0], stop, self.dtype, is_prefill=True, start=start)
            self.forward(ids, plan, cache, keep=1)
        return cache.read(0, length)

    @contextmanager
    def _attending(self, plan: Plan) -> Iterator[None]:
        """Our attention for one forward only: between two of ours, the model may be used by others."""
        configs = {id(c): c for c in (self.model.config, self.config)}.values()
        before = [(c, c._attn_implementation_internal) for c in configs]
        token = CURRENT.set(plan)
        for config in configs:
            config._attn_implementation_internal = NAME
        try:
            yield
        finally:
            CURRENT.reset(token)
            for config, name in before:
                config._attn_implementation_internal = name


def used_vocab(target: LM, draft: LM | None, vocab_size: int | None) -> int:
    """How many ids may get mass on either side: those both models have, or the first `vocab_size` of them."""
    smaller = target.vocab_size if draft is None else min(target.vocab_size, draft.vocab_size)
    if draft is not None and abs(target.vocab_size - draft.vocab_size) > PADDING:
        raise ValueError(
            f"target and draft must share a vocabulary: theirs have {target.vocab_size} and {draft.vocab_size} ids, "
            f"and padding explains at most {PADDING}"
        )
    if vocab_size is not None and not 1 <= vocab_size <= smaller:
        raise ValueError(f"vocab_size must be between 1 and {smaller}, the ids both models have, got {vocab_size}")
    return vocab_size or smaller


def _refuse_recurrent(config: Any, role: str) -> None:
    """A recurrent state cannot be rolled back by a shorter length."""
    kinds = {kind for kind in getattr(config, "layer_types", None) or [] if "attention" not in kind or "linear" in kind}
    known = ("mamba", "rwkv", "rg_lru", "recurrent", "xlstm", "bamba", "jamba", "falcon_h1", "lfm2", "zamba")
    if kinds or any(name in config.model_type for name in known):
        why = f"layers of type {', '.join(sorted(kinds))}" if kinds else "recurrent state"
        raise ValueError(f"{role} model of type {config.model_type!r} has {why}, which cannot be rolled back")
