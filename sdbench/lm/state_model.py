"""A draft that reads a target's states: the target's embedding and head, with one or more trained layers of its kind between."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

from sdbench.lm.cache import RaggedCache
from sdbench.lm.layers import output_of
from sdbench.lm.model import LM
from sdbench.lm.plan import LayerMask, Plan
from sdbench.lm.pruned import without_layers

EPS = 1e-6
LAYER, LAYERS = (
    "layer.",
    "layers.",
)  # prefixes of parameter names: of a single layer, and before the numbers of several
NORMS = ("state_norm", "token_norm", "final_norm")


class StateLM(LM):
    """Slot t reads h(t−1), the target's state that predicted token t, and the embedding of token t; its state predicts token
    t+1. Until the target has computed h(t−1), the draft's state of slot t−1 is used instead.

    Weights: fuse [d,2d]; layer.*, named as those of the target's last layer, or layers.0.*, layers.1.* …; and state_norm,
    token_norm, final_norm [d], or none; and join [d,3d], or none, that combines the states of a low, a middle and the last
    layer into h.
    """

    def __init__(self, target: LM, weights: Mapping[str, Tensor], *, is_shipped: bool = False) -> None:
        """`is_shipped`: the weights are from the target's checkpoint; norms then have its epsilon, and no other slot attends to
        slot 0, which has no state.
        """
        parameters = layer_parameters(weights)
        model, self.new_layers = with_new_layers(target, count_layers(parameters))
        self.source, self.is_shipped = weights, is_shipped
        self.weights = {name: x.detach().to(target.device, target.dtype) for name, x in weights.items()}
        try:
            self.new_layers.load_state_dict(parameters)
        except RuntimeError as error:
            kind = type(self.new_layers[-1]).__name__
            raise ValueError(
                f"the head's layer is not a {kind} of this target's sizes: train a head for this target"
            ) from error
        super().__init__(model, role="draft", capture=target.mode, packed=target.packed)
        self.eps = float(target.config.rms_norm_eps) if is_shipped else EPS
        if is_shipped:
            masks = self.layer_masks.items()
            self.layer_masks = {layer: LayerMask(partial(sees_behind_first, mask.function), 0) for layer, mask in masks}

    def is_of(self, target: LM, weights: Mapping[str, Tensor]) -> bool:
        """Return whether it was built from these weights, and still shares the target's current embedding and head."""
        models = (self.model, target.model)
        ends = ([model.get_input_embeddings(), model.get_output_embeddings()] for model in models)
        mine, theirs = ([getattr(module, "weight", None) for module in modules] for modules in ends)
        return self.source is weights and all(a is b for a, b in zip(mine, theirs, strict=True))

    def embed(self, ids: Tensor) -> Tensor:
        """Return the target's embeddings [...,d] of ids [...]."""
        return self.model.get_input_embeddings()(ids)

    def inputs(self, states: Tensor, ids: Tensor) -> Tensor:
        """Return the layer's input [...,d] from states [...,d] and ids [...]."""
        return fuse(self.weights, states, self.embed(ids), self.eps)

    def advance(
        self, inputs: Callable[[], Tensor], wanted: Tensor, plan: Plan, cache: RaggedCache
    ) -> tuple[Tensor, Tensor]:
        """Run slots of inputs [B,T,d]; return the logits [B,N,V] and the states [B,N,d] of the slots `wanted` [B,N].

        The inputs are computed in here, where no weight requires a gradient, as a trace needs.
        """
        rows = torch.arange(len(wanted), device=wanted.device)[:, None]
        again = partial(self.advance, inputs, wanted, plan, cache)
        with (
            self.hook(self, wanted, again),
            self._running(plan, wanted.shape[1]),
            output_of(self.new_layers[-1]) as outputs,
        ):
            self._run(self.model.get_decoder(), inputs(), plan, cache)
            states = normalize(self.weights, "final_norm", outputs[0][rows, wanted], self.eps)
            return self.read_out(states), states


def sees_behind_first(function: Callable[..., Any], row: Any, head: Any, position: Tensor, slot: Tensor) -> Tensor:
    """Return whether a position attends to a slot by a layer's mask function, except that only position 0 attends to slot 0."""
    return function(row, head, position, slot) & ((slot > 0) | (position == 0))


def fuse(weights: Mapping[str, Tensor], states: Tensor, embeddings: Tensor, eps: float = EPS) -> Tensor:
    """Return W·[norm(h), norm(e)] of states and embeddings [...,d]."""
    parts = normalize(weights, "state_norm", states, eps), normalize(weights, "token_norm", embeddings, eps)
    return linear(torch.cat(parts, -1), weights["fuse"])


def join(weights: Mapping[str, Tensor], states: Tensor) -> Tensor:
    """Return the states [...,d] that slots read, from the target's [...,3d]; `states` unchanged without the weight `join`."""
    return linear(states, weights["join"]) if "join" in weights else states


def normalize(weights: Mapping[str, Tensor], name: str, x: Tensor, eps: float = EPS) -> Tensor:
    """Return x [...,d] divided by its root mean square, times the weight of this name; x unchanged without such a weight."""
    return rms_norm(x, x.shape[-1:], weights[name], eps) if name in weights else x


def layer_parameters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of the layers, each name prefixed by the number of its layer."""
    alone = {f"0.{name.removeprefix(LAYER)}": x for name, x in weights.items() if name.startswith(LAYER)}
    return alone | {name.removeprefix(LAYERS): x for name, x in weights.items() if name.startswith(LAYERS)}


def count_layers(parameters: Mapping[str, Tensor]) -> int:
    """Return how many layers these parameters have."""
    return len({name.partition(".")[0] for name in parameters})


def with_new_layers(lm: LM, count: int) -> tuple[Any, nn.ModuleList]:
    """Return a model over the weights of `lm` with `count` new layers like its last, and the list of them."""
    before = lm.listed_layers()
    if count > len(before):
        raise ValueError(f"the head has {count} layers, and the target {len(before)}: train a head for this target")
    model = without_layers(lm, range(len(before) - count))
    kinds = [type(layer) for layer in before[-count:]]
    holder = next(x for x in model.modules() if isinstance(x, nn.ModuleList) and [type(y) for y in x] == kinds)
    with torch.random.fork_rng(devices=[]):
        for number, kind in enumerate(kinds):
            # With the target's configuration and layer number: in some models only the layers above a certain one have experts.
            layer = kind(lm.config, len(before) - count + number)
            for module in layer.modules():
                new = {"layer_idx": number, "config": model.config.get_text_config()}
                vars(module).update({name: value for name, value in new.items() if name in vars(module)})
            holder[number] = layer.to(lm.device, lm.dtype).eval().requires_grad_(False)
    return model, holder


def initial_weights(lm: LM, *, norms: bool, joins: bool = False, num_layers: int | None = None) -> dict[str, Tensor]:
    """Return initial weights for training: the target's last layers, whose input is the state plus a random projection of the
    embedding.

    num_layers=None: one layer, whose names have no number. If states of three layers are joined, the last layer's starts with
    weight 1, and the others with 0.
    """
    width = lm.config.hidden_size
    image = torch.randn(width, width, generator=torch.Generator().manual_seed(0)) * width**-0.5
    names = [LAYER] if num_layers is None else [f"{LAYERS}{number}." for number in range(num_layers)]
    layers = zip(names, lm.listed_layers()[-len(names) :], strict=True)
    last = {
        name + inner: x.detach().float().cpu().clone()
        for name, layer in layers
        for inner, x in layer.named_parameters()
    }
    ones = {name: torch.ones(width) for name in NORMS if norms}
    alone = {"join": torch.cat((torch.zeros(width, 2 * width), torch.eye(width)), 1)} if joins else {}
    return {"fuse": torch.cat((torch.eye(width), image), 1), **alone, **last, **ones}
