"""MTP weights in a target's checkpoint, as weights of a StateLM. transformers reads them by their published names.

The names are model.layers.N.{enorm, hnorm, eh_proj, shared_head.norm} and those of a decoder layer, where N is the number of the
target's layers (DeepSeek-V3, GLM-4.5 and similar), or mtp.{fc, pre_fc_norm_embedding, pre_fc_norm_hidden, norm, layers.0.*}
(Qwen3-Next). If there are several modules, the first is read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sdbench.errors import first_line
from sdbench.lm.model import LM
from sdbench.lm.state_model import LAYER

IGNORED = "_keys_to_ignore_on_load_unexpected"  # a model class lists the names of its MTP weights there


def num_modules(config: Any) -> int:
    """Return the number of MTP modules of a configuration."""
    names = "num_mtp_layers", "num_nextn_predict_layers"
    return next((int(count) for name in names if (count := getattr(config, name, None))), 0)


def shipped_weights(lm: LM) -> dict[str, Tensor]:
    """Return the weights of the first module; ValueError if it cannot be read."""
    name = f"the MTP weights of a checkpoint of type {lm.config.model_type!r} cannot be read"
    try:
        from transformers.modeling_layers import MtpModel  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        raise ValueError(f"{name} by this version of transformers: update it") from None
    try:
        with mtp_names(lm):
            module = MtpModel.from_pretrained(lm.model, device_map={"": lm.device})
    except (ValueError, RuntimeError, OSError, AttributeError) as error:
        raise ValueError(f"{name}: {first_line(error)}") from error
    first: Any = module.layers[0]
    width = lm.config.hidden_size
    if first.post_norm is None:
        raise ValueError(f"{name}: its modules end without a norm of their own")
    halves = first.eh_proj.weight.detach().split(width, 1)
    is_state_first = bool(getattr(module.config, "mtp_hidden_states_first", False))
    norms = {"token_norm": first.enorm, "state_norm": first.hnorm, "final_norm": first.post_norm}
    block = {f"{LAYER}{inner}": x.detach() for inner, x in first.mtp_block.state_dict().items()}
    fuse = torch.cat(halves if is_state_first else halves[::-1], 1)
    return {"fuse": fuse, **{each: factor_of(norm, fuse) for each, norm in norms.items()}, **block}


def factor_of(norm: Any, like: Tensor) -> Tensor:
    """Return the factor [d] by which a norm multiplies; it is measured, because some classes store the factor minus one."""
    with torch.no_grad():
        return norm(like.new_ones(1, like.shape[0]))[0]


@contextmanager
def mtp_names(lm: LM) -> Iterator[None]:
    """Extend the model's list of MTP weights by those of its own number of layers, since classes list only published models'."""
    held, count = vars(lm.model).get(IGNORED), lm.config.num_hidden_layers
    listed = getattr(lm.model, IGNORED, None) or ()
    setattr(lm.model, IGNORED, [*listed, *(rf"\.layers\.{count + n}\." for n in range(num_modules(lm.config)))])
    try:
        yield
    finally:
        delattr(lm.model, IGNORED) if held is None else setattr(lm.model, IGNORED, held)
