"""Engines that start servers, one for each setting, among them that of vLLM."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from sdbench.config import ConfigError, Run, show
from sdbench.config.checks import integer, number, string
from sdbench.engines.served.options import Http
from sdbench.engines.served.request import PLUGIN, PLUGIN_ENV, ServerSetting, model_id_of
from sdbench.serve.command import look, port_of, words_of
from sdbench.serve.plugin import draws_from_laws

if TYPE_CHECKING:
    from sdbench.engines.job import Job
    from sdbench.prepare.cells import Point
    from sdbench.prepare.pair import PairMetadata


@dataclass(kw_only=True)
class StartedServers(Http, ABC):
    """Servers that sdbench starts, one for each setting."""

    is_started_here: ClassVar[bool] = True
    reserved: ClassVar[Mapping[str, str]] = {}  # arguments that sdbench sets itself, and the option that decides them
    reserved_speculative: ClassVar[Mapping[str, str]] = {}  # the same of engine.speculative
    mappings: ClassVar[Sequence[str]] = (*Http.mappings, "args", "speculative", "env")
    secret: ClassVar[Mapping[str, str]] = {"hf_token": "HF_TOKEN"}  # secret arguments, and the variables to use instead

    module: str = ""  # the server's name in messages
    args: Mapping[str, Any] = field(default_factory=dict)
    speculative: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int | None = None
    at_once: int = 1
    start_s: float = 1800.0
    grace_s: float = 20.0
    always: Mapping[str, Any] = field(default_factory=dict)
    health: str = "/health"
    installed: Mapping[str, Any] = field(init=False, default_factory=dict)  # facts about the server's program

    def __post_init__(self) -> None:
        super().__post_init__()
        key = self.api_key()
        if key and not key.isprintable():
            raise ConfigError(f"{self.secret['api_key']} has a control character, such as a line break: remove it")
        if key and not any(name.lower() == "authorization" for name in self.headers):
            # A new mapping, because the one of the options is recorded.
            self.headers = {**self.headers, "Authorization": f"Bearer {key}"}

    def api_key(self) -> str | None:
        """Return the key that the servers require, from the environment variable by which they get it."""
        variables = {**os.environ, **{name: str(value) for name, value in self.env.items()}}
        return variables.get(self.secret.get("api_key", ""))

    @abstractmethod
    def words(self, job: Job, setting: ServerSetting, port: int) -> Sequence[str]:
        """Return the command line of the server of a setting."""

    @abstractmethod
    def look_at_program(self, run: Run) -> None:
        """Check the server's program and set `installed`; raise ConfigError if it is missing or cannot decode this run."""

    def environment(self, job: Job, setting: ServerSetting) -> dict[str, str]:
        """Return the environment variables of the server of a setting."""
        return {name: str(value) for name, value in self.env.items() if value is not None}

    def find(self, run: Run, *, is_read: bool = True) -> PairMetadata:
        """Check program and port, then find tokenizer and configuration."""
        self.look_at_program(run)
        if self.port is not None:
            port_of(self.host, self.port)
        return super().find(run, is_read=is_read)

    def _check_servers(self) -> None:
        name = self.module
        string("engine.host", self.host)
        if not string("engine.health", self.health).startswith("/"):
            raise ConfigError(f"engine.health must begin with /, as /health, got {show(self.health)}")
        if self.url is not None or self.urls:
            raise ConfigError(f"engine.url is an option of engine=http: engine={name} starts its servers itself")
        integer("engine.at_once", self.at_once, 1, 1024)
        for variable, value in self.env.items():
            if not isinstance(value, str | int | float | None) or isinstance(value, bool):
                raise ConfigError(
                    f"engine.env.{variable} must be a text or a number, as '1' or 'true', got {show(value)}"
                )
        for key in ("start_s", "grace_s"):
            number(f"engine.{key}", getattr(self, key), 0, 10**6)
        for option, reserved in (("args", self.reserved), ("speculative", self.reserved_speculative)):
            for name, value in getattr(self, option).items():
                plain = name.replace("-", "_")
                if plain in self.secret and not isinstance(value, bool | None):
                    raise ConfigError(
                        f"engine.{option}.{name} would be shown by records, page and tracker: set {self.secret[plain]} in the "
                        "shell, whose environment the servers inherit"
                    )
                if plain in reserved:
                    raise ConfigError(f"sdbench sets engine.{option}.{name} itself, from {reserved[plain]}; remove it")
        if self.port is not None:
            integer("engine.port", self.port, 1, 65535)
            if self.at_once > 1:
                raise ConfigError(
                    f"engine.port={self.port} is one port, and engine.at_once={self.at_once} needs several: remove engine.port"
                )

    def _cells_with_server(self, planned: Sequence[Point], settings: Mapping[str, ServerSetting]) -> list[Point]:
        return list(planned)

    def decides(self, run: Run, point: Point) -> dict[str, Any]:
        given = {"args": dict(self.args), "speculative": dict(self.speculative) if point.role == "pair" else None}
        variables = {"env": dict(self.env)} if self.env else {}
        return {**super().decides(run, point), **given, **variables}


V2_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
# Methods that vLLM 0.32 runs only with its V1 runner.
OF_V1_RUNNER = ("medusa", "mlp_speculator", "suffix", "custom_class")


def _is_block(setting: ServerSetting) -> bool:
    """Return whether a server of this setting uses vLLM's block verification."""
    return setting.rule not in ("", PLUGIN) and json.loads(setting.rule).get("rejection_sample_method") == "block"


def _set_from(option: str) -> str:
    return f"model=, num_draft= and engine.{option}"


@dataclass(kw_only=True)
class Vllm(StartedServers):
    """vLLM servers, started by `python`, the interpreter of an environment that has vLLM."""

    reserved_speculative: ClassVar[Mapping[str, str]] = {
        "num_speculative_tokens": "num_draft=",
        "rejection_sample_method": "verifier=",
        "revision": "model.draft_revision=",
    }
    reserved: ClassVar[Mapping[str, str]] = {
        **{name: _set_from("speculative") for name in ("speculative_config", "model")},
        **{name: _set_from(name) for name in ("host", "port")},
        "revision": "model.target_revision= and model.draft_revision=",
    }

    secret: ClassVar[Mapping[str, str]] = {**StartedServers.secret, "api_key": "VLLM_API_KEY"}

    python: str | None = None
    module: str = "vllm"
    entry: str = "vllm.entrypoints.openai.api_server"
    alone: Mapping[str, Any] = field(default_factory=dict)

    def look_at_program(self, run: Run) -> None:
        if self.python is None:
            raise ConfigError(
                "engine.python names no interpreter: engine=vllm needs the python of an environment that has vllm"
            )
        self.installed = look(string("engine.python", self.python), self.module)
        self._refuse_garbage(run, self.python)

    def _refuse_garbage(self, run: Run, python: str) -> None:
        is_on_cpu = "+cpu" in (self.installed.get("torch") or "")
        if run.temperature > 0 and not self.plugin and is_on_cpu and not draws_from_laws(python):
            raise ConfigError(
                f"vLLM {self.installed['version']} on a CPU writes garbage when it speculates at temperature={run.temperature:g} "
                "(vllm#55005): engine.plugin=true repairs it, and temperature=0 is not affected"
            )

    def stops_sent(self, job: Job) -> list[str]:
        """Return all stop strings: such a server is started with room for them. With engine.dialect.most_stops=0 none is sent."""
        return [] if self.dialect.most_stops == 0 else list(job.task.stop)

    def environment(self, job: Job, setting: ServerSetting) -> dict[str, str]:
        most, needed = self.dialect.most_stops, len(self.stops_sent(job))
        room = {} if most is None or needed <= most else {"VLLM_MAX_STOP_STRINGS": str(needed)}
        runner = PLUGIN_ENV if self.plugin else {V2_RUNNER: "1"} if _is_block(setting) else {}
        return {**room, **runner, **super().environment(job, setting)}

    def setting(self, run: Run, point: Point) -> ServerSetting:
        setting = super().setting(run, point)
        if _is_block(setting):
            self._refuse_v1_runner()
        return setting

    def _refuse_v1_runner(self) -> None:
        """Raise if vLLM would use its V1 runner, which ignores the method `block` and verifies token by token."""
        method, needs = self.speculative.get("method"), "verifier=block needs vLLM's V2 model runner"
        if str(self.env.get(V2_RUNNER, "1")) != "1":
            raise ConfigError(f"{needs}, and engine.env.{V2_RUNNER}={self.env[V2_RUNNER]} switches it off; remove it")
        if method in OF_V1_RUNNER:
            raise ConfigError(
                f"{needs}, which does not draft with engine.speculative.method={method}; use verifier=exact"
            )

    def decides(self, run: Run, point: Point) -> dict[str, Any]:
        # Earlier versions did not set this variable, so vLLM may have made their records with its V1 runner.
        runner = {"runner": "V2"} if _is_block(self.setting(run, point)) else {}
        return {**super().decides(run, point), **runner}

    def words(self, job: Job, setting: ServerSetting, port: int) -> Sequence[str]:
        assert self.python is not None, "find() comes first"
        usual = self.always if setting.role == "pair" else self.alone
        model = model_id_of(job.run, setting.role, is_folder=True)
        args = {"model": model, **_revision(job, setting.role), "host": self.host, "port": port, **usual, **self.args}
        return words_of(self.python, self.entry, args, self._speculative_config(job, setting))

    def _speculative_config(self, job: Job, setting: ServerSetting) -> Mapping[str, Any] | None:
        if setting.role != "pair":
            return None
        rule = {} if setting.rule == PLUGIN else json.loads(setting.rule)
        has_draft = self.speculative.get("method") == "draft_model"
        draft = {"model": model_id_of(job.run, "draft", is_folder=True), **_revision(job, "draft")} if has_draft else {}
        return {**draft, **self.speculative, "num_speculative_tokens": setting.num_draft, **rule}


def _revision(job: Job, role: str) -> dict[str, str]:
    """Return the revision on the hub that a server must load for a role: the one from which the run reads its metadata."""
    model = job.run.model
    revision = model.draft_revision if role == "draft" else model.target_revision
    return {} if revision is None else {"revision": revision}
