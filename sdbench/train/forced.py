"""What a head sees at every token of texts that are there already: both models run once over the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sdbench.lm.model import read_by
from sdbench.probs import Warp
from sdbench.types import Generation

ELEMENTS = 1 << 24  # logits of one forward


@dataclass(frozen=True, slots=True)
class Seen:
    """At N tokens of texts: the laws they were judged by, the states behind these, and which text and place each is."""

    tokens: Tensor  # [N]
    text: Tensor  # [N]
    place: Tensor  # [N]
    p: Tensor  # [N,V], as they are judged: warped, at temperature 0 un-tempered
    q: Tensor
    states: dict[str, Tensor]  # draft_hidden, target_hidden, token_hidden [N,d], slot [N,1]


def states_of(model: Any, ids: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Logits and last states after the final norm of the last `keep` positions of rows [B,L]."""
    with read_by(model.get_output_embeddings()) as kept:
        logits = model(ids, use_cache=False, logits_to_keep=keep).logits
    return logits, kept[0]


@dataclass(frozen=True, slots=True)
class Text:
    """Of one prompt; `slots`: how many drafts of its block stand before each token."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    slots: Sequence[int]

    @classmethod
    def of(cls, prompt: Sequence[int], generation: Generation, length: int | None = None) -> Text:
        """What was decoded, or its beginning."""
        assert generation.origins is not None, "our own engine tells them"
        slots, slot = [], 0
        for origin in generation.origins:
            slots.append(slot)
            slot = slot + 1 if origin == "accepted" else 0
        return cls(prompt, generation.tokens[:length], slots[:length])


def seen(pair: Any, texts: Sequence[Text], warp: Warp) -> list[Seen]:
    """In parts of as many texts as one forward takes; a part for each."""
    parts, vocab = [], int(pair.target.get_output_embeddings().weight.shape[0])
    order = list(range(len(texts)))
    while order:
        longest = max(len(texts[i].prompt) + len(texts[i].tokens) for i in order)
        count = max(1, ELEMENTS // (vocab * longest))
        parts.append(_part(pair, [texts[i] for i in order[:count]], order[0], warp))
        order = order[count:]
    return parts


@torch.no_grad()
def _part(pair: Any, given: Sequence[Text], first: int, warp: Warp) -> Seen:
    prompts, texts = [one.prompt for one in given], [one.tokens for one in given]
    device = pair.target.device
    length = max(len(p) + len(t) for p, t in zip(prompts, texts, strict=True))
    ids = torch.zeros(len(texts), length, dtype=torch.long, device=device)
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        ids[row, : len(prompt) + len(text)] = torch.tensor([*prompt, *text], device=device)
    keep = length - min(map(len, prompts)) + 1
    row = torch.cat([torch.full((len(text),), i) for i, text in enumerate(texts)])
    place = torch.cat([torch.arange(len(text)) for text in texts])
    before = torch.tensor([len(prompt) for prompt in prompts])[row] + place - 1 - (length - keep)
    laws = {}
    states = {"slot": torch.cat([torch.tensor(one.slots, device=device) for one in given])[:, None].float()}
    for side, model in (("target", pair.target), ("draft", pair.draft)):
        logits, hidden = states_of(model, ids, keep)
        raw = warp.logits(logits[row, before])
        laws[side] = raw.softmax(-1) if warp.is_greedy else warp.law(raw)
        states[f"{side}_hidden"] = hidden[row, before].float()
        if side == "target":
            states["token_hidden"] = hidden[row, before + 1].float()
    tokens = torch.cat([torch.tensor(list(text)) for text in texts]).to(device)
    return Seen(tokens, row + first, place, laws["target"], laws["draft"], states)
