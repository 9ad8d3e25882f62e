"""Every rule and drafter there is, from the YAML files of the package and of docs/examples, as objects."""

import itertools
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

from sdbench.config.sweep import flat
from sdbench.prepare.rules import rule_of
from sdbench.types import Limits
from sdbench.verify import Head
from sdbench.verify.head import SHIP

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
MARKERS = {"<think>": [1], "</think>": [2]}  # the ids that a tokenizer would give the files' markers
# What a rule that needs a head is given: one that reads laws alone, so that it fits any pair.
HEADS = {
    kind: Head(kind, ("tv", "target_entropy"), {"weight": torch.tensor([[3.0, -1.0]]), "bias": torch.tensor([0.5])})
    for kind in ("ensemble", "judge")
}
KIND_OF_FOLDER = {folder: kind for kind, folder in SHIP.items()}  # `trained: FOLDER` says which heads a knob takes
sys.path.insert(0, str(EXAMPLES))  # modules outside the package, as a user's own


@dataclass(frozen=True)
class Named:
    """A class with the options of its YAML, and its knobs as the YAML describes them."""

    name: str
    target: type
    options: dict[str, Any]
    knobs: dict[str, dict[str, Any]]

    def __str__(self) -> str:
        return self.name

    def settings(self) -> list[dict[str, Any]]:
        """Both ends and the middle of every knob, all choices: each with each."""
        options = flat(self.options)
        axes = [spread(knob, {**rule, "default": options.get(knob)}) for knob, rule in self.knobs.items()]
        return [dict(zip(self.knobs, point, strict=True)) for point in itertools.product(*axes)]

    def make(self, **setting: Any) -> Any:
        given = {**flat(self.options), **setting}
        if not any("." in key for key in given):
            return self.target(**given)
        rule: Any = rule_of(f"{self.target.__module__}.{self.target.__name__}", given)
        return rule.with_markers(MARKERS.__getitem__) if hasattr(rule, "with_markers") else rule


def spread(knob: str, rule: dict[str, Any]) -> list[Any]:
    if "choices" in rule or "text" in rule:
        return list(rule.get("choices", [rule["default"]]))
    low, high = rule.get("low", 0), rule.get("high", 1)
    values = sorted({low, (low + high) / 2, high, *([] if rule.get("strict") is None else [rule["strict"]])})
    values = [value for value in values if not (rule.get("open") and value == low)]
    return sorted({int(value) for value in values}) if rule.get("whole") else values


def parts(group: str) -> list[Named]:
    """The parts that configs/GROUP and docs/examples/configs/GROUP name; a file that lists names is none of its own."""
    files = sorted((ROOT / "configs" / group).glob("*.yaml")) + sorted((EXAMPLES / "configs" / group).glob("*.yaml"))
    trees = [yaml.safe_load(file.read_text()) for file in files]
    return [_named(tree) for tree in trees if isinstance(tree, dict) and "_target_" in tree]


def _named(tree: dict[str, Any]) -> Named:
    module, _, name = tree["_target_"].rpartition(".")
    options = {
        key: value for key, value in tree.items() if key not in ("name", "_target_", "knobs", "choices", "draws")
    }
    knobs = tree.get("knobs") or {}
    heads = {key: HEADS[KIND_OF_FOLDER[says["trained"]]] for key, says in knobs.items() if "trained" in says}
    options, knobs = options | heads, {key: says for key, says in knobs.items() if key not in heads}
    return Named(tree["name"], getattr(import_module(module), name), options, knobs)


def middle_rules(temperature: float, num_draft: int, *, calls_sure: bool = False) -> list[Any]:
    """Every rule at the middle of its knobs that can judge the drafts of a model at this temperature."""
    rules = [named.make(**named.settings()[len(named.settings()) // 2]) for named in parts("verifier")]
    setting: Any = {"temperature": temperature, "num_draft": num_draft, "calls_sure": calls_sure}
    limits = [getattr(rule, "limits", None) or Limits() for rule in rules]
    broken = [each.broken_by("it", has_draft_model=True, has_logits=True, **setting) for each in limits]
    return [rule for rule, sentence in zip(rules, broken, strict=True) if sentence is None]
