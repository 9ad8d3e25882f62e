"""A draft of one layer on a target's states: the target's embedding and head, and between them a trained layer of its kind."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

from sdbench.lm.cache import RaggedCache
from sdbench.lm.layers import output_of
from sdbench.lm.model import LM
from sdbench.lm.plan import Plan
from sdbench.lm.pruned import without_layers

EPS = 1e-6
LAYER = "layer."  # before the names of the layer's parameters
NORMS = ("state_norm", "token_norm", "final_norm")


class StateLM(LM):
    """Slot t reads h(t−1), the target's state that gave token t, and the embedding of token t; its state gives token t+1. Where
    the target has not made h(t−1) yet, the draft's state of slot t−1 stands for it.

    Weights: fuse [d,2d]; layer.*, named as those of the target's last layer; and state_norm, token_norm, final_norm [d], or none;
    and join [d,3d], or none, that makes h of the states of a low, a middle and the last layer.
    """

    def __init__(self, target: LM, weights: Mapping[str, Tensor]) -> None:
        model, self.layer = with_new_layer(target)
        self.source = weights
        self.weights = {name: x.detach().to(target.device, target.dtype) for name, x in weights.items()}
        parameters = {name.removeprefix(LAYER): x for name, x in self.weights.items() if name.startswith(LAYER)}
        try:
            self.layer.load_state_dict(parameters)
        except RuntimeError as error:
            kind = type(self.layer).__name__
            raise ValueError(f"the head's layer is not a {kind} of this target's sizes: train one for it") from error
        super().__init__(model, role="draft", capture=target.mode)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the target's embeddings [...,d] of ids [...]."""
        return self.model.get_input_embeddings()(ids)

    def inputs(self, states: Tensor, ids: Tensor) -> Tensor:
        """Return what the layer is given, [...,d], of states [...,d] and ids [...]."""
        return fuse(self.weights, states, self.embed(ids))

    def advance(
        self, states: Tensor, ids: Tensor, newest: Tensor, plan: Plan, cache: RaggedCache
    ) -> tuple[Tensor, Tensor]:
        """Run slots that read states [B,T,d] and ids [B,T]; return the logits [B,1,V] and the state [B,1,d] of slot newest [B],
        or of the last where there are fewer.
        """
        rows = torch.arange(len(ids), device=ids.device)
        with self._running(plan, 1), output_of(self.layer) as outputs:
            self._run(self.model.get_decoder(), self.inputs(states, ids), plan, cache)
            after = outputs[0][rows, newest.clamp_max(ids.shape[1] - 1)][:, None]
            state = normalize(self.weights, "final_norm", after)
            return self.read_out(state), state


def fuse(weights: Mapping[str, Tensor], states: Tensor, embeddings: Tensor) -> Tensor:
    """Return W·[norm(h), norm(e)] of states and embeddings [...,d]."""
    parts = normalize(weights, "state_norm", states), normalize(weights, "token_norm", embeddings)
    return linear(torch.cat(parts, -1), weights["fuse"])


def join(weights: Mapping[str, Tensor], states: Tensor) -> Tensor:
    """Return the states [...,d] that slots read of the target's [...,3d], of three layers; `states` itself without such weights."""
    return linear(states, weights["join"]) if "join" in weights else states


def normalize(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Return x [...,d] over its root mean square, times the weight of this name; x itself where there is none."""
    return rms_norm(x, x.shape[-1:], weights[name], EPS) if name in weights else x


def with_new_layer(lm: LM) -> tuple[Any, nn.Module]:
    """Return a model over the weights of `lm` with one layer, which is new, and this layer."""
    model = without_layers(lm, range(len(lm.listed_layers()) - 1))
    kind = type(lm.layers[-1])
    holder = next(x for x in model.modules() if isinstance(x, nn.ModuleList) and [type(y) for y in x] == [kind])
    with torch.random.fork_rng(devices=[]):
        holder[0] = kind(model.config.get_text_config(), 0).to(lm.device, lm.dtype).eval().requires_grad_(False)
    return model, holder[0]


def initial_weights(lm: LM, *, norms: bool, joins: bool = False) -> dict[str, Tensor]:
    """Return weights to train from: the target's last layer over the state, to which a random image of the embedding is added.

    Where states of three layers are joined, the last one's state begins as it is, and the others' with nothing.
    """
    width = lm.config.hidden_size
    image = torch.randn(width, width, generator=torch.Generator().manual_seed(0)) * width**-0.5
    last = {LAYER + name: x.detach().float().cpu().clone() for name, x in lm.listed_layers()[-1].named_parameters()}
    ones = {name: torch.ones(width) for name in NORMS if norms}
    alone = {"join": torch.cat((torch.zeros(width, 2 * width), torch.eye(width)), 1)} if joins else {}
    return {"fuse": torch.cat((torch.eye(width), image), 1), **alone, **last, **ones}
