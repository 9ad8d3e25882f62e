"""Trains the layer of drafter=mtp, eagle or eagle3, which drafts position k from its own states of the positions before.

Training unrolls it as drafting does (training-time test, EAGLE-3, arXiv:2503.01840, section 3.2): slot t of pass k reads the
layer's own state of slot t−1 in pass k−1, where pass 0 reads the target's. It attends to itself, to the slots of its own chain in
the passes before, and to those of pass 0 before the chain. The distribution of slot t is compared with the target's own at t in
every pass. Texts are sampled once and read repeatedly, with the target's states in memory.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.func import functional_call  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.functional import pad, smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from sdbench.draft.mtp import MTP, Eagle, Eagle3
from sdbench.lm.layers import output_of
from sdbench.lm.state_model import LAYER, StateLM, fuse, initial_weights, join, normalize
from sdbench.train.distill import LOSSES
from sdbench.train.heads import BATCH, StatesTraining, Text
from sdbench.train.recipes import MTPRecipe
from sdbench.train.setup import group_by


class MTPTraining(StatesTraining[MTPRecipe]):
    """Steps from the target's last layer over its last state and the embedding of the next token."""

    name = kind = MTP.kind
    report_every = 20
    has_norms, has_join = True, False

    def initial_weights(self) -> dict[str, Tensor]:
        weights = initial_weights(self.target, norms=self.has_norms, joins=self.has_join)
        self.model = StateLM(self.target, weights)
        self.decoder = self.model.model.get_decoder()
        self.path = next(name for name, x in self.decoder.named_modules() if x is self.model.layer)
        self.stored: dict[Hashable, Tensor] = {}  # the target's states of each text
        return weights

    @property
    def depth(self) -> int:
        return self.recipe.passes

    @property
    def num_positions(self) -> int:
        return self.setup.run.num_draft[0]

    @cached_property
    def sampled(self) -> list[Text]:
        """All training texts. Their states are read in groups that do not depend on the step: a resumed training repeats them."""
        texts = self.sample(self.training_keys, 1)
        for group in group_by(texts, BATCH):
            self.states(group)
        return texts

    def texts(self, step: int) -> Sequence[Text]:
        count = self.recipe.prompts
        return [self.sampled[(step * count + i) % len(self.sampled)] for i in range(count)]

    def states(self, texts: Sequence[Text]) -> list[Tensor]:
        """As before, each text read once."""
        by_key = {(len(prompt), *prompt, *text): (prompt, text) for prompt, text in texts}
        new = {key: text for key, text in by_key.items() if key not in self.stored}
        if new:
            self.stored.update(zip(new, super().states(list(new.values())), strict=True))
        return [self.stored[len(prompt), *prompt, *text] for prompt, text in texts]

    def losses(self, texts: Sequence[Text]) -> Iterator[Tensor]:
        """All passes of a group are one graph."""
        total = torch.zeros((), device=self.target.device)
        for k, drafted, states in self.unroll(texts, self.depth):
            loss = LOSSES[self.recipe.loss](self.law(states), self.law(drafted)).sum()
            if self.recipe.regression:
                distance = smooth_l1_loss(drafted, states, reduction="none").mean(-1).sum()
                loss = loss + self.recipe.regression * distance
            total = total + self.recipe.discount**k * loss
        yield total

    def laws(self, texts: Sequence[Text], depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for k, drafted, states in self.unroll(texts, depth):
            yield k, self.law(drafted), self.law(states)

    def unroll(self, texts: Sequence[Text], depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Return of each pass its number, its states and the target's, [N,d] each, of all slots that a round may reach in it."""
        device, dtype = self.target.device, self.target.dtype
        by_text, width = self.states(texts), self.target.config.hidden_size
        ids = pad_sequence([torch.tensor([*p, *t], device=device) for p, t in texts], batch_first=True)
        states = pad_sequence(by_text, batch_first=True)  # [B,L,d] or [B,L,3d]
        weights = {name: x.to(dtype) for name, x in self.weights.items()}
        embeddings, slots = self.model.embed(ids), torch.arange(ids.shape[1], device=device)
        first = torch.tensor([len(prompt) - 1 for prompt, _ in texts], device=device)[:, None]
        last = torch.tensor([len(x) - 2 for x in by_text], device=device)[:, None]
        cache, before = DynamicCache(), pad(join(weights, states), (0, 0, 1, -1))
        states = states[..., -width:]
        for k in range(depth):
            mask = self.mask(slots, k, dtype).expand(len(texts), 1, -1, -1)
            drafted = self.run(weights, fuse(weights, before, embeddings), mask, cache)
            is_read = (slots >= first + k) & (slots <= last)
            yield k, drafted[is_read], states[is_read]
            before = pad(drafted, (0, 0, 1, -1))

    def run(self, weights: dict[str, Tensor], inputs: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Return the states [B,L,d] that the layer makes of inputs [B,L,d], which see their pass and those in the cache."""
        parameters = {
            name.replace(LAYER, f"{self.path}.", 1): x for name, x in weights.items() if name.startswith(LAYER)
        }
        positions = torch.arange(inputs.shape[1], device=inputs.device)[None]
        arguments = {"inputs_embeds": inputs, "attention_mask": mask, "position_ids": positions}
        with output_of(self.model.layer) as outputs:
            functional_call(self.decoder, parameters, (), {**arguments, "past_key_values": cache, "use_cache": True})
        return normalize(weights, "final_norm", outputs[0])

    def mask(self, slots: Tensor, k: int, dtype: torch.dtype) -> Tensor:
        """Return what is added to the scores [1,1,L,(k+1)·L] of a pass: 0 where a slot is seen, else the lowest number."""
        query, key = slots[:, None], slots[None]
        in_window = self.model.layer_masks[0].function(0, 0, query, key)
        seen = [in_window & (key <= query - k), *(key == query - k + i for i in range(1, k + 1))]
        lowest = torch.finfo(dtype).min
        return torch.zeros((), dtype=dtype, device=slots.device).where(torch.cat(seen, 1), lowest)[None, None]


class EagleTraining(MTPTraining):
    """The same without norms, with a loss on the distance to the target's states beside that of the distributions."""

    name = kind = Eagle.kind
    has_norms = False


class Eagle3Training(MTPTraining):
    """The same with states of three layers; the loss is that of the distributions alone."""

    name = kind = Eagle3.kind
    state_needs = Eagle3.needs
    has_join = True
