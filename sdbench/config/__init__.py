"""A resolved run as frozen dataclasses, checked before models or data are loaded. Every error is one sentence that says what to do.

Standard library only, so that a mistyped option is reported within two seconds. Names and ranges of knobs are in the YAML files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdbench.config import checks
from sdbench.config.checks import ConfigError, config_dir, nearest, refuse_unknown, show
from sdbench.config.sweep import Knob, RuleSweep, check_rules
from sdbench.config.timing import TimingOptions

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu")
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
QUANTIZATION = ("int8", "bnb-int8", "bnb-nf4", "torchao-int8", "torchao-int4")
LENGTH_OPTIONS = (
    "length",
    "length_threshold",
    "length_price",
    "length_head",
)  # options that every drafter has: the policy for the length of its blocks
CONSTANT = "constant"  # the value of `length` for blocks of constant length, the default
COLDEST = 1e-6  # lower temperatures overflow float32; the law equals that of temperature 0 long before
FAMILIES = ("lm-eval",)  # files in configs/task that cover many tasks, chosen by task=FILE:NAME


@dataclass(frozen=True, slots=True)
class Model:
    """A pair. `target` and `draft` are hub ids, folders, GGUF files, or `embedded:NAME/target` for a pair of the package.

    `tokenizer`, a hub id or a folder, replaces the one inside the GGUF file of a target, and is used for a GGUF draft without a
    usable one. `distilled` names a loss: the draft distilled for the task with that loss replaces the pair's draft, and +LOSS is
    added to the pair's name.
    """

    name: str
    target: str
    draft: str | None
    distilled: str | None = None
    tokenizer: str | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
    attention: str | None = None
    device_map: str | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    packed: bool | None = None
    chat_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def check(cls, tree: Mapping[str, Any]) -> Model:
        refuse_unknown("model.", tree, cls.__dataclass_fields__)
        for key in ("name", "target"):
            checks.string(f"model.{key}", tree.get(key))
        for key in ("draft", "tokenizer", "target_revision", "draft_revision", "device_map", "distilled"):
            if tree.get(key) is not None:
                checks.string(f"model.{key}", tree[key])
        for key in ("attention", "quantization", "draft_quantization"):
            if tree.get(key) is not None:
                checks.choice(f"model.{key}", tree[key], ATTENTION if key == "attention" else QUANTIZATION)
        if tree.get("packed") is not None:
            checks.switch("model.packed", tree["packed"])
        chat_options = tree.get("chat_options") or {}
        if not isinstance(chat_options, Mapping):
            raise ConfigError(
                f"model.chat_options must be a mapping such as {{enable_thinking: false}}, got {show(chat_options)}"
            )
        if tree.get("distilled") is not None and tree.get("draft") is None:
            raise ConfigError(f"model.distilled={tree['distilled']} needs a draft to be distilled: give model.draft=ID")
        if tree.get("draft_revision") is not None and tree.get("draft") is None:
            raise ConfigError(f"model.draft_revision={tree['draft_revision']} needs a draft: give model.draft=ID")
        return cls(**{**tree, "chat_options": dict(chat_options)})

    @property
    def pair(self) -> str:
        """Return the name of the pair without +LOSS, which names the distilled draft."""
        return self.name.removesuffix(f"+{self.distilled}")


@dataclass(frozen=True, slots=True)
class Component:
    """A task, drafter, engine or tracker: its name, its class if the file names one, and its options as keyword arguments."""

    name: str
    target: str | None
    options: Mapping[str, Any]
    chosen: tuple[str, ...] = ()  # options whose values the file lists under `choices`

    @property
    def free(self) -> dict[str, Any]:
        """Return the options that take any value, such as file names."""
        return {name: value for name, value in self.options.items() if name not in self.chosen}

    @classmethod
    def check(cls, group: str, tree: Mapping[str, Any]) -> Component:
        choices = tree.get("choices") or {}
        options = {k: v for k, v in tree.items() if k not in ("name", "_target_", "choices")}
        if group.startswith("drafter") and options.get("length") == CONSTANT:
            del options["length"]  # the default, so the same as no length
        for key, values in choices.items():
            if options.get(key) is not None:
                checks.choice(f"{group}.{key}", options[key], values)
        return cls(checks.string(f"{group}.name", tree.get("name")), tree.get("_target_"), options, tuple(choices))


NATIVE = Component("native", "sdbench.engines.native.kind.Native", {})


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count` parts of the examples."""

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
    """A resolved run. See `python -m sdbench --help`."""

    model: Model
    task: Component
    verifiers: tuple[RuleSweep, ...]
    drafters: tuple[Component, ...]
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
    timing: TimingOptions | None
    tracker: Component | None
    margin: float | Mapping[str, float]
    shard: Shard
    force: bool
    report: bool = True
    engine: Component = NATIVE

    @property
    def folder(self) -> Path:
        """Return the folder of this run's records."""
        return self.results / self.name


def member_options(task: str) -> tuple[str, dict[str, str]]:
    """Return the file of a task, and for FILE:NAME of a family also the options that NAME sets."""
    file, _, name = task.partition(":")
    return (file, {"task": name, "name": f"{file}-{name}"}) if file in FAMILIES and name else (task, {})


KEYS = (
    *("model", "task", "verifier", "drafter", "w", "num_draft", "temperature", "top_k", "top_p", "max_new_tokens"),
    *("n", "samples", "seed", "batch_size", "device", "dtype", "name", "results", "timing", "margin", "shard", "force"),
    *("tracker", "report", "engine"),
)
GROUPS = ("model", "task", "verifier", "drafter", "decode", "engine", "tracker", "experiment", "method")


def check(tree: Mapping[str, Any]) -> Run:
    """Return the run that a resolved configuration describes; raise ConfigError if it has a mistake."""
    refuse_unknown("", tree, KEYS)
    missing = [key for key in KEYS if key not in tree]
    if missing:
        raise ConfigError(f"{missing[0]} cannot be removed; write {missing[0]}=null for its default")
    for group in ("model", "task", "verifier", "drafter", "engine", "tracker"):
        if not isinstance(tree[group], Mapping):
            raise ConfigError(f"{group} must be one of the files in configs/{group}, got {show(tree[group])}")
    model, task = Model.check(tree["model"]), Component.check("task", tree["task"])
    temperature = checks.number("temperature", tree["temperature"], 0, 100)
    if 0 < temperature < COLDEST:
        raise ConfigError(f"temperature must be 0, or between {COLDEST:g} and 100, got {temperature:g}")
    verifiers = check_rules(tree["verifier"], tree["w"])
    sampling = _sampling(tree, temperature, is_drawn=any(rule.is_drawn for rule in verifiers))
    name = tree["name"] if tree["name"] is not None else f"{model.name}-{task.name}"
    n = tree["n"] if tree["n"] is not None else tree["task"].get("n")
    return Run(
        model=model,
        task=task,
        verifiers=verifiers,
        drafters=_drafters(tree["drafter"]),
        num_draft=tuple(checks.integer("num_draft", k, 1, 256) for k in checks.as_list("num_draft", tree["num_draft"])),
        temperature=temperature,
        **sampling,
        max_new_tokens=checks.optional_integer("max_new_tokens", tree["max_new_tokens"], 1),
        n=None if tree["n"] == "all" else checks.optional_integer("n", n, 1),
        seed=checks.integer("seed", tree["seed"], 0, 2**63 - 1),
        batch_size=None if tree["batch_size"] == "auto" else checks.integer("batch_size", tree["batch_size"], 1, 65536),
        device=_device(tree["device"]),
        dtype=checks.choice("dtype", tree["dtype"], DTYPES),
        name=_folder_name(name),
        results=Path(checks.string("results", tree["results"])),
        timing=TimingOptions.check(tree["timing"]),
        tracker=None if tree["tracker"].get("_target_") is None else Component.check("tracker", tree["tracker"]),
        margin=checks.margins("margin", tree["margin"], task.name),
        shard=Shard.check(tree["shard"]),
        force=checks.switch("force", tree["force"]),
        report=checks.switch("report", {"on": True, "off": False}.get(str(tree["report"]), tree["report"])),
        engine=Component.check("engine", tree["engine"]),
    )


def _drafters(tree: Mapping[str, Any]) -> tuple[Component, ...]:
    """Return one drafter, or several if the configuration has several by name."""
    names = [key for key, value in tree.items() if isinstance(value, Mapping) and "_target_" in value]
    if not names or "_target_" in tree:
        return (Component.check("drafter", tree),)
    for key in set(tree) - set(names):
        raise ConfigError(f"drafter.{key} is not an option: write drafter.NAME.{key}=VALUE {nearest(key, names)}")
    drafters = tuple(Component.check(f"drafter.{key}", tree[key]) for key in names)
    if len({drafter.name for drafter in drafters}) < len(drafters):
        raise ConfigError(
            f"drafter={names} has two drafters of the same name: give one of them another name in its file"
        )
    return drafters


def _sampling(tree: Mapping[str, Any], temperature: float, *, is_drawn: bool) -> dict[str, Any]:
    """Return the sampling options. `is_drawn`: a rule of the run draws random numbers even at temperature 0, so samples differ."""
    top_k = checks.optional_integer("top_k", tree["top_k"], 1)
    top_p = None if tree["top_p"] is None else checks.number("top_p", tree["top_p"], 0, 1, is_open=True)
    samples = checks.integer("samples", tree["samples"], 1)
    if temperature == 0 and samples > 1 and not is_drawn:
        raise ConfigError(
            f"samples={samples} at temperature=0 would repeat the same text: use samples=1 or a temperature above 0"
        )
    for key, value in (("top_k", top_k), ("top_p", top_p)):
        if temperature == 0 and value is not None:
            raise ConfigError(f"{key}={value} has no effect at temperature=0: remove it or use a temperature above 0")
    return {"top_k": top_k, "top_p": top_p, "samples": samples}


def _device(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"(cuda|xpu|hpu):\d{1,3}", value):
        return value
    return checks.choice("device", value, DEVICES)


def _folder_name(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(r"[\w+@=-][\w.+@=-]{0,199}", text):
        raise ConfigError(f"name must be a plain folder name of letters, digits and . _ - + @ =, got {show(value)}")
    return text
