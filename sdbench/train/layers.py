"""Common code of trainings of layers on the target's states: the initial weights, texts as batches, a forward pass.

The layers run several times over the slots of a text. A subclass defines over which slots, and the attention mask of each slot.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import functional_call  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from sdbench.lm.layers import output_of
from sdbench.lm.plan import LayerMask
from sdbench.lm.state_model import StateLM, initial_weights, join, layer_parameters, normalize
from sdbench.train.distill import LOSSES
from sdbench.train.drafter_recipes import StatesRecipe
from sdbench.train.heads import StatesTraining, Text

Window = Callable[[Tensor, Tensor], Tensor]  # a layer's mask: whether query positions attend to key positions
Sees = Callable[[Window], Tensor]
AnyLayersRecipe = TypeVar("AnyLayersRecipe", bound=StatesRecipe)


class PaddedTexts(NamedTuple):
    """Some texts as one batch: for each slot t, the embedding of its token and the target's states before and at it."""

    embeddings: Tensor  # [B,L,d]
    before: Tensor  # [B,L,d], h(t−1) in slot t: the states that the layers read
    states: Tensor  # [B,L,d], h(t) in slot t: the target's states
    first: Tensor  # [B,1], the last slot of the prompt
    last: Tensor  # [B,1], the last slot whose state is compared


class LayersTraining(StatesTraining[AnyLayersRecipe]):
    """Trains layers on the target's last state and the embedding of the next token, starting with a copy of its last layers."""

    report_every = 20
    has_norms: ClassVar[bool] = True
    has_join: ClassVar[bool] = False

    def initial_weights(self) -> dict[str, Tensor]:
        weights = self.first_weights()
        self.model = StateLM(self.target, weights)
        self.decoder = self.model.model.get_decoder()
        self.path = next(name for name, x in self.decoder.named_modules() if x is self.model.new_layers)
        return weights

    def first_weights(self) -> dict[str, Tensor]:
        """Return the weights before the first step."""
        return initial_weights(self.target, norms=self.has_norms, joins=self.has_join)

    @abstractmethod
    def unroll(self, texts: Sequence[Text], depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (k, the layers' states [N,d], the target's states [N,d]) for each of `depth` positions k, at all N slots of these
        texts where a round may draft that position.
        """

    def losses(self, texts: Sequence[Text]) -> Iterator[Tensor]:
        """Yield the loss of all positions, which share one autograd graph."""
        total = torch.zeros((), device=self.target.device)
        for k, drafted, states in self.unroll(texts, self.depth):
            total = total + self.recipe.discount**k * self.loss(drafted, states)
        yield total

    def loss(self, drafted: Tensor, states: Tensor) -> Tensor:
        """Return the loss of a position, summed over N pairs of the layers' states [N,d] and the target's."""
        return LOSSES[self.recipe.loss](self.log_law(states), self.log_law(drafted)).sum()

    def log_laws(self, texts: Sequence[Text], depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for k, drafted, states in self.unroll(texts, depth):
            yield k, self.log_law(drafted), self.log_law(states)

    def cast_weights(self) -> dict[str, Tensor]:
        """Return the weights in the target's precision."""
        return {name: x.to(self.target.dtype) for name, x in self.weights.items()}

    def pad_texts(self, texts: Sequence[Text], weights: dict[str, Tensor]) -> PaddedTexts:
        """Return some texts as one batch."""
        device, width, by_text = self.target.device, self.target.config.hidden_size, self.states(texts)
        ids = pad_sequence([torch.tensor([*p, *t], device=device) for p, t in texts], batch_first=True)
        states = pad_sequence(by_text, batch_first=True)  # [B,L,d] or [B,L,3d]
        before = pad(join(weights, states), (0, 0, 1, -1))
        first = torch.tensor([len(prompt) - 1 for prompt, _ in texts], device=device)[:, None]
        last = torch.tensor([len(x) - 2 for x in by_text], device=device)[:, None]
        return PaddedTexts(self.model.embed(ids), before, states[..., -width:], first, last)

    def run(
        self, weights: dict[str, Tensor], inputs: Tensor, positions: Tensor, sees: Sees, cache: DynamicCache
    ) -> Tensor:
        """Return the states [B,T,d] that the layers compute from inputs [B,T,d] at positions [T].

        `sees` takes a layer's mask function and returns the mask [T,S] of the T inputs over the cached positions and themselves.
        """
        parameters = {f"{self.path}.{name}": x for name, x in layer_parameters(weights).items()}
        lowest = torch.finfo(inputs.dtype).min

        def scores_of(mask: LayerMask) -> Tensor:
            seen = sees(partial(mask.function, 0, 0))
            return inputs.new_zeros(()).where(seen, lowest).expand(len(inputs), 1, -1, -1)

        masks = [self.model.layer_masks[number] for number in range(len(self.model.new_layers))]
        types = getattr(self.model.config, "layer_types", None)
        mask = (
            scores_of(masks[0]) if types is None else {name: scores_of(x) for name, x in zip(types, masks, strict=True)}
        )
        arguments = {"inputs_embeds": inputs, "position_ids": positions[None], "attention_mask": mask}
        with output_of(self.model.new_layers[-1]) as outputs:
            functional_call(self.decoder, parameters, (), {**arguments, "past_key_values": cache, "use_cache": True})
        return normalize(weights, "final_norm", outputs[0])
