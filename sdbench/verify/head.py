"""Heads: small learned functions of the features at a drafted position, and the folders that store them.

A folder holds `head.safetensors` and `head.json`: the kind of head, and the models whose states it was trained on.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sdbench.card import CARD, read_trained, write_trained
from sdbench.files import digest_of, digest_of_path
from sdbench.probs import dense, total_variation
from sdbench.types import Evidence

EMBEDDED = "embedded:"
KINDS = ("ensemble", "judge")
SHIP = {"ensemble": "heads", "judge": "judges"}  # kind -> folder in embedded/ of the heads that ship


def _entropy(law: Tensor) -> Tensor:
    return torch.special.entr(law).sum(-1, keepdim=True)


def _margin(law: Tensor) -> Tensor:
    best = law.topk(2, -1).values
    return best[..., :1] - best[..., 1:]


OF_LAWS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tv": lambda p, q: total_variation(p, q)[..., None],
    "target_entropy": lambda p, q: _entropy(p),
    "draft_entropy": lambda p, q: _entropy(q),
    "target_margin": lambda p, q: _margin(p),
    "draft_margin": lambda p, q: _margin(q),
}
STATES = {  # feature -> what a rule needs for it
    "draft_hidden": "draft_hidden",
    "target_hidden": "target_hidden",
    "token_hidden": "target_hidden",  # the target's state at the drafted token itself
}
SLOT = "slot"  # number of earlier drafts in the block
FEATURES = (*STATES, SLOT, *OF_LAWS)


@dataclass(frozen=True, eq=False)
class Head:
    """score = W·tanh(V·x + c) + b of the features x at a position, or W·x + b without a hidden layer.

    `weights`: weight [1,n], bias [1], and with a hidden layer weight_in [h,n], bias_in [h]; shift, scale [n] of the features.
    """

    kind: str
    features: tuple[str, ...]
    weights: Mapping[str, Tensor]
    card: Mapping[str, Any] = field(default_factory=dict)  # the models, and how it was trained
    moved: dict[torch.device, Mapping[str, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind of a head must be {' or '.join(KINDS)}, got {self.kind!r}")
        refuse_features(self.kind, self.features)

    @property
    def size(self) -> int:
        """Number of features at a position."""
        return self.weights["weight_in" if "weight_in" in self.weights else "weight"].shape[1]

    @cached_property
    def digest(self) -> str:
        """Hash of everything that decides its output."""
        pieces: list[str | bytes] = [json.dumps([self.kind, self.features])]
        for name in sorted(self.weights):
            tensor = self.weights[name].detach().to("cpu", torch.float32).contiguous()
            pieces += [f"{name}{list(tensor.shape)}", tensor.numpy().tobytes()]
        return digest_of(*pieces)

    @property
    def label(self) -> str:
        """Its name in records: the task that it was trained on, and its digest."""
        return f"{self.card.get('task', self.kind)}@{self.digest[:8]}"

    @property
    def needs(self) -> frozenset[str]:
        return needed_by(self.features)

    def features_of(self, evidence: Evidence) -> Tensor:
        """Return the features [B,K,n] at every drafted position."""
        return seen_by(self.features, evidence)

    def score(self, seen: Tensor) -> Tensor:
        """Return [B,K] from features [B,K,n]."""
        weights = self._on(seen.device)
        x = (seen - weights["shift"]) / weights["scale"] if "shift" in weights else seen
        if "weight_in" in weights:
            x = torch.tanh(torch.nn.functional.linear(x, weights["weight_in"], weights["bias_in"]))
        return torch.nn.functional.linear(x, weights["weight"], weights["bias"])[..., 0]

    def _on(self, device: torch.device) -> Mapping[str, Tensor]:
        if device not in self.moved:
            self.moved[device] = {name: tensor.to(device, torch.float32) for name, tensor in self.weights.items()}
        return self.moved[device]

    def save(self, folder: Path) -> None:
        """Write both files. The card may be that of the head from which this one was derived."""
        write_trained(folder, self.kind, self.weights, {"features": list(self.features)}, self.card)

    @classmethod
    def load(cls, name: str, kind: str) -> "Head":
        """Load a head from a folder, or one that ships (embedded:PAIR/TASK). Equal contents give the same object.

        ValueError if it is missing or damaged.
        """
        folder = folder_of(name, kind)
        try:
            return _head_of(folder, kind, digest_of_path(folder))
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            raise ValueError(f"head={name} has no {missing}: train one with python -m sdbench.train {kind}") from None
        except OSError as error:
            raise ValueError(f"head={name} cannot be read: {error.strerror}") from None


def folder_of(name: str, kind: str) -> Path:
    """Return the folder of a head."""
    if name == "none":
        raise ValueError(
            f"a head is needed: train one with python -m sdbench.train {kind} model=NAME task=NAME, then give "
            "verifier.head=FOLDER or verifier.head=trained:TASK"
        )
    if not name.startswith(EMBEDDED):
        return Path(name)
    folder = Path(__file__).parents[1] / "embedded" / SHIP[kind] / name.removeprefix(EMBEDDED)
    if not (folder / CARD).is_file():
        shipped = sorted(
            f"{EMBEDDED}{c.parent.relative_to(folder.parents[1])}" for c in folder.parents[1].glob(f"*/*/{CARD}")
        )
        raise ValueError(f"head={name} does not ship with sdbench (heads that ship: {', '.join(shipped) or 'none'})")
    return folder


@cache
def _head_of(folder: Path, kind: str, _digest: str) -> Head:
    """Read a head; the cache gives the same object for the same folder and content."""
    card, weights = read_trained(folder, kind, "this rule")
    _refuse_shapes(folder, {name: tuple(tensor.shape) for name, tensor in weights.items()})
    return Head(kind, tuple(card.get("features", ())), weights, card)


def _refuse_shapes(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless the tensors have the names and sizes that `Head` describes."""
    inner = shapes.get("weight_in")
    hidden, size = inner if inner is not None and len(inner) == 2 else (None, None)
    wanted = {"weight": (1, hidden or (shapes.get("weight") or (0,))[-1]), "bias": (1,)}
    if inner is not None:
        wanted |= {"weight_in": (hidden, size), "bias_in": (hidden,)}
    if shapes.keys() & {"shift", "scale"}:
        wanted |= dict.fromkeys(("shift", "scale"), (size or wanted["weight"][1],))
    for name in sorted(wanted.keys() | shapes.keys()):
        if wanted.get(name) != shapes.get(name):
            raise ValueError(
                f"head={folder} is damaged: {name} has the shape {shapes.get(name)}, not {wanted.get(name)}"
            )


def laws_of(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Return p and q [B,K,V] as the rule reads them; un-tempered at temperature 0."""
    if evidence.is_greedy:
        log_p, log_q = evidence.raw_logs()
        return log_p.exp(), log_q.exp()
    p, q = evidence.p[:, :-1], evidence.draft.q
    return p, dense(q, p.shape[-1])


def needed_by(names: Sequence[str]) -> frozenset[str]:
    """Return what these features need from the engine besides p and q: states, and un-tempered logits at temperature 0."""
    states = {STATES[name] for name in names if name in STATES}
    return frozenset(states | ({"raw_if_greedy"} if _read_laws(names) else set()))


def seen_by(names: Sequence[str], evidence: Evidence) -> Tensor:
    """Return the features [B,K,n] in float32 at every drafted position."""
    behind, tokens = evidence.target_hidden, evidence.draft.tokens
    states = {
        "draft_hidden": evidence.draft.hidden,
        "target_hidden": None if behind is None else behind[:, :-1],
        "token_hidden": None if behind is None else behind[:, 1:],
        SLOT: torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)[..., None],
    }
    laws = laws_of(evidence) if _read_laws(names) else None
    parts = []
    for name in names:
        if name in OF_LAWS:
            assert laws is not None
            parts.append(OF_LAWS[name](*laws))
        else:
            state = states[name]
            assert state is not None, f'a rule that reads {name} must name "{STATES[name]}" in its needs'
            parts.append(state)
    return torch.cat([part.float() for part in parts], -1)


def _read_laws(names: Sequence[str]) -> bool:
    return any(name in OF_LAWS for name in names)


def refuse_features(kind: str, names: Sequence[str]) -> None:
    """Raise a ValueError for features that this kind of head cannot use."""
    # The weight of an ensemble must not depend on the token that was drawn.
    known = FEATURES if kind == "judge" else tuple(name for name in FEATURES if name != "token_hidden")
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(
            f"features of {kind} heads must be among {', '.join(known)}, got {', '.join(map(str, unknown)) or 'none'}"
        )


def width_of(names: Sequence[str], widths: Mapping[str, int]) -> int:
    """Return the number of features, given the widths of the states draft_hidden and target_hidden."""
    return sum(widths[STATES[name]] if name in STATES else 1 for name in names)


def linear(kind: str, features: Sequence[str], size: int, hidden: int = 0) -> Head:
    """Return a head that scores 0 everywhere, so w = 1/2. Weights of a hidden layer are small and random, with a fixed seed."""
    weights = {"weight": torch.zeros(1, hidden or size), "bias": torch.zeros(1)}
    if hidden:
        generator = torch.Generator().manual_seed(0)
        weights |= {
            "weight_in": torch.randn(hidden, size, generator=generator) / size**0.5,
            "bias_in": torch.zeros(hidden),
        }
    return Head(kind, tuple(features), weights)
