"""A resolved run as frozen dataclasses, checked before anything loads. Every error is one sentence with a way out.

Stdlib only: a typing slip must cost less than two seconds. Names and ranges of knobs stand in the YAML files, not here.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu")
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
QUANTIZATION = ("bnb-int8", "bnb-nf4", "torchao-int8", "torchao-int4")


class ConfigError(ValueError):
    """The user's mistake, in one sentence."""


def config_dir() -> Path:
    """The YAML files: sdbench/configs in an installed wheel, configs/ beside the package in a source tree."""
    here = Path(__file__).parent
    inside = here / "configs"
    return inside if inside.is_dir() else here.parent / "configs"


def nearest(word: object, choices: Iterable[object]) -> str:
    """A hint in brackets: the nearest match and all choices."""
    names = [str(choice) for choice in choices]
    match = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    hint = f"did you mean {match[0]}? " if match else ""
    return f"({hint}choices: {', '.join(names)})"


def show(value: object) -> str:
    """A value as the user would type it, on one line and not long."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= 80 else text[:77] + "..."


def integer(key: str, value: object, low: int, high: int = 10**9) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = f"at least {low}" if high == 10**9 else f"between {low} and {high}"
        raise ConfigError(f"{key} must be a whole number {limit}, got {show(value)}")
    return value


def number(key: str, value: object, low: float, high: float, *, is_open: bool = False) -> float:
    """A finite number in [low, high], or in (low, high] where open."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high or (is_open and value == low):  # type: ignore[operator]
        limit = f"above {low:g}" if is_open else f"between {low:g} and {high:g}"
        limit = f"of at least {low:g}" if math.isinf(high) and not is_open else limit
        limit += f" and at most {high:g}" if is_open and math.isfinite(high) else ""
        raise ConfigError(f"{key} must be a number {limit}, got {show(value)}")
    return float(value)  # type: ignore[arg-type]


def choice(key: str, value: object, choices: Sequence[str]) -> str:
    if value not in choices or not isinstance(value, str):
        raise ConfigError(f"{key} cannot be {show(value)} {nearest(value, choices)}")
    return value


def string(key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key} must be a text, got {show(value) or 'an empty one'}")
    return value


def switch(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false, got {show(value)}")
    return value


def listed(key: str, value: object) -> list[object]:
    """A number or a list of them, as a list without repetitions, in the order given."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values:
        raise ConfigError(f"{key} must not be an empty list; leave it out for its default")
    return [v for i, v in enumerate(values) if v not in values[:i]]


def known(where: str, given: Mapping[str, object], names: Iterable[str]) -> None:
    names = list(names)
    for key in given:
        if key not in names:
            raise ConfigError(f"{where}{key} is not an option {nearest(key, names)}")


@dataclass(frozen=True, slots=True)
class Model:
    """A pair. `target` and `draft` are hub ids, folders, or `embedded:NAME/target` for the pairs that ship inside."""

    name: str
    target: str
    draft: str | None
    target_revision: str | None = None
    draft_revision: str | None = None
    attention: str | None = None
    device_map: str | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    chat_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def check(cls, tree: Mapping[str, Any]) -> Model:
        known("model.", tree, cls.__dataclass_fields__)
        for key in ("name", "target"):
            string(f"model.{key}", tree.get(key))
        for key in ("draft", "target_revision", "draft_revision", "device_map"):
            if tree.get(key) is not None:
                string(f"model.{key}", tree[key])
        if tree.get("attention") is not None:
            choice("model.attention", tree["attention"], ATTENTION)
        for key in ("quantization", "draft_quantization"):
            if tree.get(key) is not None:
                choice(f"model.{key}", tree[key], QUANTIZATION)
        chat_options = tree.get("chat_options") or {}
        if not isinstance(chat_options, Mapping):
            raise ConfigError(
                f"model.chat_options must be a mapping such as {{enable_thinking: false}}, got {show(chat_options)}"
            )
        return cls(**{**tree, "chat_options": dict(chat_options)})


@dataclass(frozen=True, slots=True)
class Part:
    """A task or a drafter: its name, the class where it names one, and its options as keyword arguments."""

    name: str
    target: str | None
    options: Mapping[str, Any]

    @classmethod
    def check(cls, group: str, tree: Mapping[str, Any]) -> Part:
        choices = tree.get("choices") or {}
        options = {k: v for k, v in tree.items() if k not in ("name", "_target_", "choices")}
        for key, values in choices.items():
            if options.get(key) is not None:
                choice(f"{group}.{key}", options[key], values)
        return cls(string(f"{group}.name", tree.get("name")), tree.get("_target_"), options)


@dataclass(frozen=True, slots=True)
class Verifier:
    """A rule and the points of its sweep: each setting is the keyword arguments of one verifier."""

    name: str
    target: str
    settings: tuple[Mapping[str, Any], ...]

    @classmethod
    def check(cls, tree: Mapping[str, Any], w: object) -> Verifier:
        """`knobs` in the YAML: {name: {low, high, open, whole, sweep} or {choices}}; one named w takes the top-level w."""
        name, target = string("verifier.name", tree.get("name")), string("verifier._target_", tree.get("_target_"))
        knobs: Mapping[str, Mapping[str, Any]] = tree.get("knobs") or {}
        options = {k: v for k, v in tree.items() if k not in ("name", "_target_", "knobs")}
        if knobs:
            known("verifier.", options, knobs)
        if w is not None and "w" not in knobs:
            has = f"its knobs are {', '.join(f'verifier.{k}' for k in knobs)}" if knobs else "it has no knob"
            raise ConfigError(
                f"verifier={name} takes no w, got w={show(w)}: leave w out or use verifier=ensemble; {has}"
            )
        axes: dict[str, list[Any]] = {}
        for knob, rule in knobs.items():
            given = w if knob == "w" and w is not None else options.get(knob)
            given = rule.get("sweep") if given is None else given
            key = "w" if knob == "w" else f"verifier.{knob}"
            axes[knob] = [cls._value(key, value, rule) for value in listed(key, given)]
        rest = {k: v for k, v in options.items() if k not in axes}
        points = itertools.product(*axes.values())
        return cls(name, target, tuple({**rest, **dict(zip(axes, point, strict=True))} for point in points))

    @staticmethod
    def _value(key: str, value: object, rule: Mapping[str, Any]) -> object:
        if "choices" in rule:
            return choice(key, value, rule["choices"])
        if rule.get("whole"):
            return integer(key, value, rule.get("low", 0), rule.get("high", 10**9))
        return number(
            key, value, rule.get("low", -math.inf), rule.get("high", math.inf), is_open=rule.get("open", False)
        )


@dataclass(frozen=True, slots=True)
class Timing:
    """The latency pass: how many of the sweep's cells, on how many examples, how often, at which batch size."""

    cells: int = 3
    examples: int = 8
    repeats: int = 1
    batch_size: int = 1

    @classmethod
    def check(cls, tree: object) -> Timing | None:
        """None where the user wrote timing=off."""
        if tree is False or tree is None or tree == "off":
            return None
        if tree is True or tree == "on":
            return cls()
        if not isinstance(tree, Mapping):
            raise ConfigError(f"timing must be off or options such as timing.examples=20, got {show(tree)}")
        known("timing.", tree, cls.__dataclass_fields__)
        timing = cls(**{key: integer(f"timing.{key}", value, 1) for key, value in tree.items()})
        if timing.batch_size > timing.examples:
            raise ConfigError(
                f"timing.batch_size={timing.batch_size} needs at least as many examples: "
                f"write timing.examples={timing.batch_size} or more"
            )
        return timing


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count` of the examples."""

    index: int = 0
    count: int = 1

    @classmethod
    def check(cls, value: object) -> Shard:
        if value is None:
            return cls()
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value) if isinstance(value, str) else None
        if match is None or int(match[1]) >= int(match[2]):
            raise ConfigError(f"shard must be written i/k with 0 <= i < k, for example shard=0/8, got {show(value)}")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Run:
    """Everything a run is told. See `python -m sdbench --help`."""

    model: Model
    task: Part
    verifier: Verifier
    drafter: Part
    num_draft: tuple[int, ...]
    temperature: float
    top_k: int | None
    top_p: float | None
    max_new_tokens: int | None
    n: int | None
    samples: int
    seed: int
    batch_size: int | None
    device: str
    dtype: str
    name: str
    results: Path
    timing: Timing | None
    tracker: Part | None
    margin: float
    shard: Shard
    force: bool

    @property
    def folder(self) -> Path:
        """Where the records of this run lie."""
        return self.results / self.name


KEYS = (
    *("model", "task", "verifier", "drafter", "w", "num_draft", "temperature", "top_k", "top_p", "max_new_tokens"),
    *("n", "samples", "seed", "batch_size", "device", "dtype", "name", "results", "timing", "margin", "shard", "force"),
    "tracker",
)
GROUPS = ("model", "task", "verifier", "drafter", "decode", "tracker", "experiment")


def check(tree: Mapping[str, Any]) -> Run:
    """A resolved, plain tree of the YAML files and overrides -> a run that makes sense. Raises ConfigError."""
    known("", tree, KEYS)
    missing = [key for key in KEYS if key not in tree]
    if missing:
        raise ConfigError(f"{missing[0]} cannot be removed; write {missing[0]}=null for its default")
    for group in ("model", "task", "verifier", "drafter", "tracker"):
        if not isinstance(tree[group], Mapping):
            raise ConfigError(f"{group} must be one of the files in configs/{group}, got {show(tree[group])}")
    model, task = Model.check(tree["model"]), Part.check("task", tree["task"])
    temperature = number("temperature", tree["temperature"], 0, 100)
    sampling = _sampling(tree, temperature)
    name = tree["name"] if tree["name"] is not None else f"{model.name}-{task.name}"
    return Run(
        model=model,
        task=task,
        verifier=Verifier.check(tree["verifier"], tree["w"]),
        drafter=Part.check("drafter", tree["drafter"]),
        num_draft=tuple(integer("num_draft", k, 1, 256) for k in listed("num_draft", tree["num_draft"])),
        temperature=temperature,
        **sampling,
        max_new_tokens=_optional("max_new_tokens", tree["max_new_tokens"], 1),
        n=None
        if tree["n"] == "all"
        else _optional("n", tree["n"] if tree["n"] is not None else tree["task"].get("n"), 1),
        seed=integer("seed", tree["seed"], 0, 2**63 - 1),
        batch_size=None if tree["batch_size"] == "auto" else integer("batch_size", tree["batch_size"], 1, 65536),
        device=_device(tree["device"]),
        dtype=choice("dtype", tree["dtype"], DTYPES),
        name=_folder_name(name),
        results=Path(string("results", tree["results"])),
        timing=Timing.check(tree["timing"]),
        tracker=None if tree["tracker"].get("_target_") is None else Part.check("tracker", tree["tracker"]),
        margin=number("margin", tree["margin"], 0, 100, is_open=True),
        shard=Shard.check(tree["shard"]),
        force=switch("force", tree["force"]),
    )


def _optional(key: str, value: object, low: int) -> int | None:
    return None if value is None else integer(key, value, low)


def _sampling(tree: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    top_k = _optional("top_k", tree["top_k"], 1)
    top_p = None if tree["top_p"] is None else number("top_p", tree["top_p"], 0, 1, is_open=True)
    samples = integer("samples", tree["samples"], 1)
    if temperature == 0 and samples > 1:
        raise ConfigError(
            f"samples={samples} at temperature=0 would repeat one text: use samples=1 or a temperature above 0"
        )
    for key, value in (("top_k", top_k), ("top_p", top_p)):
        if temperature == 0 and value is not None:
            raise ConfigError(
                f"{key}={value} does nothing at temperature=0: leave {key} out or use a temperature above 0"
            )
    return {"top_k": top_k, "top_p": top_p, "samples": samples}


def _device(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"(cuda|xpu|hpu):\d{1,3}", value):
        return value
    return choice("device", value, DEVICES)


def _folder_name(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(r"[\w+@=-][\w.+@=-]{0,199}", text):
        raise ConfigError(f"name must be a plain folder name of letters, digits and . _ - + @ =, got {show(value)}")
    return text
