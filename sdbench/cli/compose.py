"""Compose the command line into checked runs. Only this file uses Hydra and OmegaConf; all other code uses dataclasses.

hydra.main turns errors into stack traces with exit code 1 and discards what jobs return, so this file uses Hydra's object
directly (pinned below 1.4): one composition for a plain command, its sweeper and launchers for -m.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sdbench import config
from sdbench.cli.command import (
    LISTS,
    Command,
    expand,
    groups_of_user_classes,
    misspelt,
    parse,
    refuse_contradictions,
    refuse_idle_values,
    without_the_default,
)
from sdbench.cli.narrow import of_chosen, sweep_words, takes_w
from sdbench.config import GROUPS, KEYS, ConfigError, member_options, nearest, show
from sdbench.errors import first_line
from sdbench.words import key_of

MAIN = "run"
INTERNAL = ("_target_", "name", "knobs", "choices")  # keys of a group's file that cannot be set on the command line
CHOOSABLE = (*GROUPS, "hydra/launcher")
OPTIONAL = ("experiment", "method")
PATH_MARKS = re.compile(r"[:/\\]+")
ALL = tuple(
    f"{group}=all" for group in LISTS
)  # every drafter that can run in the job, and every rule that can and needs no head


class Composer:
    """Hydra with the configs of the package and of a user's folder."""

    def __init__(self, config_dir: str | None = None) -> None:
        search = create_config_search_path(f"file://{config.config_dir()}")
        if config_dir is not None:
            refuse_names_of_the_package(Path(config_dir))
            search.append(
                "command-line", f"file://{Path(config_dir).resolve()}", anchor=SearchPathQuery(provider="main")
            )
        GlobalHydra.instance().clear()
        self.hydra = Hydra.create_main_hydra2(task_name="sdbench", config_search_path=search)
        self._composed: dict[tuple[Any, ...], DictConfig] = {}

    def options(self, group: str) -> list[str]:
        """Return the names of a group's files, including those of the user's folder."""
        return self.hydra.config_loader.get_group_options(group)

    def jobs(self, command: Command) -> list[tuple[str, ...]]:
        """Return the overrides of every job: one, or one for each combination of -m or of an experiment with a sweep."""
        parsed = [_parse(word) for word in command.overrides]
        refuse_contradictions(command.overrides)
        for override in parsed:
            self._check(override, command.overrides, is_multirun=command.is_multirun)
        given = {override.key_or_group for override in parsed}
        if not command.is_multirun and not given & {"experiment", "hydra.mode"}:
            return [self._name_all(command.overrides)]
        cfg = self.compose(without_sweeps(command.overrides))
        params: Mapping[str, Any] = cfg.hydra.sweeper.get("params") or {}
        if not command.is_multirun and cfg.hydra.mode != RunMode.MULTIRUN:
            return [self._name_all(command.overrides)]
        overrides = [*map(_parse, sweep_words(params, given)), *parsed]
        batches = BasicSweeper.split_arguments(overrides, max_batch_size=None)
        jobs = [of_chosen(job, given, self.options) for batch in batches for job in batch]
        are_methods_swept = any(o.key_or_group == "method" and o.is_sweep_override() for o in overrides)
        if are_methods_swept if "w" in given else "verifier" in given:
            jobs = [self._without_idle_w(job) for job in jobs]
        return [self._name_all(job) for job in dict.fromkeys(map(tuple, jobs))]

    def _without_idle_w(self, job: list[str]) -> list[str]:
        """Return a job without w= if none of its rules has that knob."""
        rest = [word for word in job if key_of(word) != "w"]
        return job if rest == job or "verifier=all" in job or takes_w(self.compose(rest).verifier) else rest

    def _name_all(self, words: Sequence[str]) -> tuple[str, ...]:
        """Replace drafter=all and verifier=all by the drafters and rules that can run in this job."""
        if not set(ALL) & set(words):
            return tuple(words)
        from sdbench.prepare.refuse import can_draft, can_run

        names = {f"{group}=all": self.options(group) for group in LISTS}

        def name_all() -> tuple[str, ...]:
            return tuple(
                f"{word.partition('=')[0]}=[{','.join(names[word])}]" if word in names else word for word in words
            )

        run = self.run(name_all())
        if "drafter=all" in words:
            able = [can_draft(run, drafter) for drafter in run.drafters]
            names["drafter=all"] = list(compress(names["drafter=all"], able))
            run = replace(run, drafters=tuple(compress(run.drafters, able)))
        names["verifier=all"] = [
            name for name, rule in zip(names["verifier=all"], run.verifiers, strict=False) if can_run(run, rule)
        ]
        return name_all()

    def run(self, overrides: Sequence[str]) -> config.Run:
        """Compose, resolve and check one job."""
        words = self._name_all(overrides)
        return config.check(self.tree(self.compose(words), words))

    def yaml(self, jobs: Sequence[Sequence[str]]) -> str:
        """Return the resolved configuration of every job as YAML."""
        return "---\n".join(OmegaConf.to_yaml(self.tree(self.compose(job), job)) for job in jobs)

    @staticmethod
    def tree(cfg: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the configuration as plain data, without Hydra's part and with the pair under its name."""
        refuse_idle_values(overrides)
        try:
            bare = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
            name_the_pair(bare.get("model"), {key_of(word) for word in overrides})
            tree: Any = OmegaConf.to_container(bare, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            raise ConfigError(first_line(error)) from None
        for group in groups_of_user_classes(overrides):
            tree[group] = without_the_default(group, tree[group], overrides)
        return tree

    def compose(self, overrides: Sequence[str], *, mode: RunMode = RunMode.RUN) -> DictConfig:
        """Compose these words; the result is cached."""
        key = mode, *expand(overrides)
        if key not in self._composed:
            try:
                self._composed[key] = self.hydra.compose_config(
                    MAIN,
                    list(key[1:]),
                    run_mode=mode,
                    with_log_configuration=False,
                    validate_sweep_overrides=False,
                )
            except (HydraException, OmegaConfBaseException, YAMLError, OSError) as error:
                raise ConfigError(self._explain(error, overrides)) from None
        return self._composed[key]

    def _explain(self, error: Exception, overrides: Sequence[str]) -> str:
        """Turn an error of Hydra into one sentence. If a key in a group is unknown, list the keys of the group."""
        match = re.search(r"(?:Could not override|Key) '\+?([\w.@/]+)'", str(error))
        groups = [word for word in overrides if word.partition("=")[0] in CHOOSABLE]
        if match is None or len(groups) == len(overrides):
            return first_line(error)
        parts = next(
            (w.partition("=")[0].lstrip("+~").split(".") for w in overrides if match[1] in w), match[1].split(".")
        )
        node: Any = self.compose(groups)
        for depth, part in enumerate(parts):
            if not isinstance(node, DictConfig):
                above = ".".join(parts[:depth])
                return f"{above} has no options, so {'.'.join(parts)} cannot be set: write {above}=VALUE"
            if part not in node:
                named = ".".join(parts)
                if depth and part in KEYS:
                    return f"{named} is not an option: write {part}=VALUE, without {'.'.join(parts[:depth])}"
                names = [str(key) for key in node if key not in INTERNAL]
                knobs = [knob for knob in node.get("knobs") or () if knob != "w"]
                return f"{named} is not an option {nearest(part, dict.fromkeys([*names, *map(str, knobs)]))}"
            node = node[part]
        return first_line(error)

    def _groups_with(self, name: str, words: Sequence[str]) -> list[str]:
        """Return which of the chosen rule, drafter and task has an option or a knob of this name."""
        cfg = self.compose([word for word in words if word.partition("=")[0] in CHOOSABLE])
        nodes = {group: cfg.get(group) for group in ("verifier", "drafter", "task")}
        return [
            group
            for group, node in nodes.items()
            if isinstance(node, DictConfig) and name not in INTERNAL and name in (*node, *(node.get("knobs") or ()))
        ]

    def _check(self, override: Override, words: Sequence[str], *, is_multirun: bool) -> None:
        key = override.key_or_group
        top = re.split(r"[./]", key)[0]
        if top not in (*KEYS, *GROUPS, "hydra"):
            for group in self._groups_with(top, words):
                raise ConfigError(f"{show(key)} is not an option: write {group}.{key}=VALUE")
            raise ConfigError(f"{show(key)} is not an option {nearest(key, (*KEYS, 'decode', *OPTIONAL))}")
        if override.is_delete():
            raise ConfigError(f"{key} cannot be removed; write {key}=null for its default")
        if override.is_sweep_override() and key == "experiment":
            raise ConfigError("experiment= takes one name: run the command once for each")
        if override.is_sweep_override() and not is_multirun:
            text = override.get_value_string()
            if key in ("w", "num_draft"):
                raise ConfigError(
                    f"{key}={show(text)} is a sweep over jobs: write {key}=[{show(text)}], one job for all, or add -m"
                )
            raise ConfigError(f"{key}={show(text)} names several: add -m to run one job for each")
        if key in CHOOSABLE and not override.is_sweep_override():
            self._check_group(key, override.value())
        elif key in CHOOSABLE:
            for value in override.sweep_string_iterator():
                self._check_group(key, value)

    def _check_group(self, group: str, value: object) -> None:
        if value is None and group in OPTIONAL:
            return
        names = self.options(group)
        if f"{group}={value}" in ALL:
            return
        if isinstance(value, str) and value.startswith("["):  # one of several lists, for -m
            value = [name.strip() for name in value.strip("[]").split(",")]
        for name in value if group in LISTS and isinstance(value, list) else [value]:
            file = member_options(name)[0] if group == "task" and isinstance(name, str) else name
            if not isinstance(file, str) or file not in names:
                raise ConfigError(f"{group}={show(name)} names no file in configs/{group} {nearest(name, names)}")


def _parse(word: str) -> Override:
    if "=" not in word and not word.startswith("~"):
        raise ConfigError(f"{show(word)} is not KEY=VALUE {nearest(word, KEYS)}")
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        raise ConfigError(misspelt(word)) from None
    if override.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
        raise ConfigError(f"{show(word)} names no values: write them as a list, {override.key_or_group}=A,B")
    return override


def without_sweeps(words: Sequence[str]) -> list[str]:
    """Return the words that all jobs share and that Hydra understands. This leaves out options of drafters, which each job may
    set, and of groups for which several files are named, since those files may have other options than the default file.
    """
    swept = {override.key_or_group for override in map(_parse, words) if override.is_sweep_override()}
    prefixes = tuple(f"{group}." for group in ("drafter", *swept))
    words = [word for word in words if word not in ALL and not key_of(word).startswith(prefixes)]
    return [word for word in words if not _parse(word).is_sweep_override()]


def refuse_names_of_the_package(folder: Path) -> None:
    """Raise if a user's file has the name of a file of the package: Hydra would silently read the package's."""
    for path in sorted(folder.rglob("*.yaml")):
        if (config.config_dir() / path.relative_to(folder)).exists():
            raise ConfigError(
                f"{path} has the same name as a file of the package, which would be read instead: rename it"
            )


def name_the_pair(model: Any, keys: Collection[str]) -> None:
    """Name a pair after its models if they are set on the command line, and after the loss if its draft was distilled."""
    if not isinstance(model, DictConfig):
        return
    if "model.target" in keys and not {"model", "experiment", "model.draft"} & set(keys):
        raise ConfigError(
            f"model.target={show(model.get('target'))} has no draft: give model.draft=ID, a smaller model with the same "
            "vocabulary, or model.draft=null drafter=lookup, which drafts from the text alone"
        )
    if {"model.target", "model.draft"} & set(keys) and "model.name" not in keys:
        ids = [str(model.get(key)) for key in ("target", "draft") if model.get(key)]
        model.name = "+".join(map(slug, ids)) or "model"
    if model.get("distilled"):
        model.name = f"{model.get('name')}+{model.get('distilled')}"


def slug(model_id: str) -> str:
    """Return a folder name for a hub id or a path: its last part, or its last two parts if the last is only target or draft."""
    parts = [part for part in PATH_MARKS.split(model_id) if part not in ("", ".", "..")]
    kept = parts[-2:] if parts and parts[-1] in ("target", "draft", "model", "checkpoint") else parts[-1:]
    return re.sub(r"[^\w.+=-]", "_", "-".join(kept).removesuffix(".gguf"))[:90].lstrip(".") or "model"


def compose_one(words: Sequence[str]) -> config.Run:
    """Compose the one run of a command line with only KEY=VALUE words and --config-dir."""
    command = parse(words)
    if command.is_multirun or command.show is not None:
        raise ConfigError(
            "this command takes only KEY=VALUE words and --config-dir DIR: run it once for each combination"
        )
    composer = Composer(command.config_dir)
    jobs = composer.jobs(command)
    if len(jobs) != 1:
        raise ConfigError("this command takes one combination at a time, and this command line names several")
    return composer.run(jobs[0])
