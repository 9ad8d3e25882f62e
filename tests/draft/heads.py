"""Untrained heads of each kind for tiny random targets, in memory and in folders."""

from pathlib import Path
from typing import Any

import torch

from sdbench.card import write_trained
from sdbench.draft.gate import Gate
from sdbench.lm.model import LM
from sdbench.lm.state_model import initial_weights

GATE = ("draft_chance", "draft_entropy", "draft_margin", "slot")
HEADS = 4
KINDS = ("medusa", "mtp", "eagle", "eagle3", "block")


def random_heads(target: Any, kind: str = "medusa", scale: float = 0.3, count: int = HEADS) -> dict[str, torch.Tensor]:
    """Weights of a kind in float64: heads of Medusa, or layers like the target's last, with norms or without."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).double() * scale

    width = target.config.get_text_config().hidden_size
    if kind == "medusa":
        return {"weight": noise(count, width, width), "bias": noise(count, width)}
    num_layers = 2 if kind == "block" else None
    weights = initial_weights(LM(target), norms=kind != "eagle", joins=kind == "eagle3", num_layers=num_layers)
    masks = {"mask": noise(count - 1, width)} if kind == "block" else {}
    return masks | {
        name: x.double() + (noise(*x.shape) if "norm" in name or name == "join" else 0) for name, x in weights.items()
    }


def write_heads(folder: Path, target: Any, kind: str = "medusa", **more: Any) -> str:
    """Write such heads as the training does; return the folder's name."""
    card = {"model": "toy", "checkpoints": {"target": "sha256:0"}, "tokenizer": "0", **more}
    write_trained(folder, kind, random_heads(target, kind), {}, card)
    return str(folder)


def gate(bias: float = 1.0) -> Gate:
    """A gate that likes likely tokens."""
    values = {
        "weight": [2.0, -0.5, -0.3, -0.2],
        "shift": [-1.0, 0.0, -0.5, 1.0],
        "scale": [1.0, 0.5, 0.5, 1.5],
        "bias": [bias],
    }
    return Gate(GATE, {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}, {})


def write_gate(folder: Path, drafter: str = "sdbench.draft.model.ModelDrafter", bias: float = 1.0, **more: Any) -> str:
    """Write such a gate as the training does; return the folder's name."""
    card = {"model": "toy", "checkpoints": {"target": "sha256:0", "draft": "sha256:1"}, "tokenizer": "0", **more}
    write_trained(folder, "gate", gate(bias).weights, {"features": list(GATE)}, {"drafter": drafter, **card})
    return str(folder)
