"""Servers that are already running (Http): options, cells, keys. Servers that sdbench starts are in started.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sdbench.config import ConfigError, Run, nearest, show
from sdbench.config.checks import integer, integers, number, options, string, switch
from sdbench.engines.served.dialects import NAMELESS, named_dialect, usual_request
from sdbench.engines.served.request import PLUGIN, ServerSetting, refuse_unknown_urls
from sdbench.engines.served.timing import plan_timing
from sdbench.errors import without_user
from sdbench.prepare.progress import warn
from sdbench.records import Cell
from sdbench.serve.client import LONGEST_WAIT_S, Patience
from sdbench.serve.dialect import Dialect

if TYPE_CHECKING:
    from sdbench.engines.job import Job
    from sdbench.engines.latency import LatencyPlan
    from sdbench.engines.served.decoder import ServedDecoder
    from sdbench.prepare.cells import Point
    from sdbench.prepare.pair import PairMetadata
    from sdbench.records import Store

SERVED_LAW = "serve-1"  # change it when sdbench sends other requests for the same options
# Options that say how models are loaded in this process, with their defaults; a server has its own.
OF_THIS_PROCESS = {"device": "auto", "dtype": "auto"}
OF_THE_MODEL = ("attention", "device_map", "quantization", "draft_quantization", "packed")
OURS = (
    *("prompt", "model", "max_tokens", "temperature", "top_k", "top_p", "seed", "stop", "stop_token_ids", "stream"),
    *("stream_options", "n"),
)
OF_A_SERVER = (
    *("speculative_config", "num_speculative_tokens", "rejection_sample_method", "draft_sample_method", "method"),
    *("tensor_parallel_size", "pipeline_parallel_size", "max_model_len", "gpu_memory_utilization", "max_num_seqs"),
    *("dtype", "quantization", "enforce_eager", "block_size", "kv_cache_dtype", "speculative_model"),
)


@dataclass(kw_only=True)
class Http:
    """Servers that are already running."""

    is_started_here: ClassVar[bool] = False
    takes_arrivals: ClassVar[bool] = True
    may_draft_nothing: ClassVar[bool] = False  # whether the server may propose no draft in a whole text
    at_once: int = field(init=False, default=0)  # 0: no limit
    most_requests: ClassVar[int] = 4096  # requests that are sent to one server at a time
    mappings: ClassVar[Sequence[str]] = ("urls", "headers", "request")  # options whose values are checked alike
    dialect_name: str | None = field(init=False, default=None)

    url: str | None = None
    urls: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    plugin: bool = False
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    concurrency: Any = 1
    retries: int = 6
    wait_s: float = 0.5
    silence_s: float = 600.0
    headers: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    dialect: Any = None

    def __post_init__(self) -> None:
        for name in self.mappings:
            options(f"engine.{name}", getattr(self, name))
        for name, value in self.headers.items():
            if not f"{name}{value}".isprintable():
                raise ConfigError(
                    f"engine.headers.{show(name)} has a control character, such as a line break: remove it"
                )
        if isinstance(self.dialect, str):
            self.dialect_name = self.dialect
            self.dialect, self.rules = named_dialect(self.dialect)
        self.dialect = Dialect.check(self.dialect or {})
        self.rules = {
            name: {flag: value for flag, value in rule.items() if value is not None}
            for name, rule in self.rules.items()
            if rule is not None
        }
        self.plugin = switch("engine.plugin", self.plugin)
        self.concurrency = integers("engine.concurrency", self.concurrency, 1, 4096)
        self.patience = Patience(
            integer("engine.retries", self.retries, 0, 100),
            number("engine.wait_s", self.wait_s, 0, LONGEST_WAIT_S),
            number("engine.silence_s", self.silence_s, 0, 10**6, is_open=True),
        )
        self._refuse_request()
        self._check_servers()

    @property
    def may_cache_prompts(self) -> bool:
        """Whether a timed prompt may be cached: the user chose the salt, a field requests caching, or the cache has no salt."""
        fields = {**self.dialect.request, **self.request}
        if self.dialect.salt is not None:
            return self.dialect.salt in fields
        wants_cache = any(fields.get(name) == value for name, value in self.dialect.cached_prompts.items())
        return wants_cache or self.dialect.has_cached_prompts

    def _check_servers(self) -> None:
        for name, url in {**({} if self.url is None else {"": self.url}), **self.urls}.items():
            key = f"engine.urls.{name}" if name else "engine.url"
            if not string(key, url).startswith(("http://", "https://")):
                raise ConfigError(f"{key} must begin with http:// or https://, got {show(url)}")
            if without_user(url) != url:
                raise ConfigError(
                    f"{key} has a user's name or password, and records and pages show addresses: leave it out, and write "
                    "engine.headers.Authorization=VALUE, which is not recorded"
                )
        if self.url is None and not self.urls:
            raise ConfigError("engine.url is missing: write engine.url=http://HOST:PORT")

    def _refuse_request(self) -> None:
        for name in self.request:
            if name in OURS or (self.plugin and name == self.dialect.extra):
                raise ConfigError(f"sdbench sets engine.request.{name} itself, from the options of the run; remove it")
            if name.partition(".")[0] in self.dialect.ignored:
                raise ConfigError(
                    f"the server ignores engine.request.{name}: remove it, and set options of drafting when the server starts "
                    "(num_draft= and engine.speculative with engine=llamacpp)"
                )
            if name in OF_A_SERVER:
                raise ConfigError(
                    f"engine.request.{name} is set when a server starts, not by a request: "
                    f"engine=vllm engine.args.{name}=VALUE starts one with it"
                )

    def open(self, job: Job, store: Store) -> ServedDecoder:
        from sdbench.engines.served.decoder import ServedDecoder

        return ServedDecoder(self, job, store)

    def plan_timing(self, job: Job, points: Sequence[Point], store: Store) -> LatencyPlan | None:
        return plan_timing(self, job, points, store)

    def find(self, run: Run, *, is_read: bool = True) -> PairMetadata:
        """Find tokenizer and configuration. The server reads the weights, so `is_read` has no effect."""
        from sdbench.prepare import pair as pairs

        if self.plugin and self.dialect.extra is None:
            raise ConfigError("engine.plugin=true is for vLLM, in which sdbench's plug-in runs: leave it out")
        for key, usual in OF_THIS_PROCESS.items():
            if getattr(run, key) != usual:
                raise ConfigError(
                    f"{key}={getattr(run, key)} is an option of engine=native: a server loads its models itself"
                )
        for key in OF_THE_MODEL:
            if getattr(run.model, key) is not None:
                raise ConfigError(f"model.{key} is an option of engine=native: a server loads its models itself")
        for drafter in run.drafters:
            if drafter.name != "model":
                raise ConfigError(
                    f"drafter={drafter.name} needs engine=native: a server drafts with what it was started with "
                    "(with engine=vllm, set engine.speculative)"
                )
        bare = replace(run.model, attention=None)
        return pairs.find(bare, device="cpu", dtype="auto", is_read=False)

    def points(self, run: Run, planned: Sequence[Point]) -> list[Point]:
        """Return the cells with keys that name the engine. Cells without a server are left out with a warning.

        A setting with the same texts as lossless stays `same_as` the lossless cell only if one server decodes both, by the
        plug-in's rules: another server may write other texts.
        """
        refuse_unknown_urls(self.urls, {point.cell.verifier for point in planned})
        settings = {point.cell.key: self.setting(run, point) for point in planned}
        kept = self._cells_with_server(planned, settings)
        cells = {point.cell.key: self._with_key(run, point) for point in kept}

        def join(cell: Cell) -> Cell:
            lossless = cells.get(cell.same_as or "")
            is_same = lossless is not None and settings[cell.key] == settings[cell.same_as or ""]
            return replace(cells[cell.key], same_as=lossless.key if lossless and is_same else None)

        return [replace(point, cell=join(point.cell)) for point in kept]

    def _cells_with_server(self, planned: Sequence[Point], settings: Mapping[str, ServerSetting]) -> list[Point]:
        """Return the cells for which engine.urls names a server, or that engine.url can serve; warn of the others.

        One server has one rule and one draft length. If lossless would need another server than the other cells of engine.url,
        it is left out, because the user named the server for the rule.
        """
        shared = [point for point in planned if point.role == "pair" and point.cell.verifier not in self.urls]
        lenient = [point for point in shared if point.cell.verifier != "lossless"]
        left_out = []
        if lenient and len({settings[point.cell.key] for point in shared}) > 1:
            shared, left_out = lenient, ["lossless"]
        needed = list(dict.fromkeys(settings[point.cell.key] for point in shared))
        if len(needed) > 1 or (needed and self.url is None):
            names = ", ".join(setting.label for setting in needed[:3])
            raise ConfigError(
                f"engine.url is one server with one rule at one draft length, and this run needs {len(needed)} ({names}): name "
                "a server for each rule in engine.urls, or one with sdbench's plug-in and engine.plugin=true"
            )
        self._refuse_two_settings([p for p in planned if p in shared or p.cell.verifier in self.urls], settings)
        left_out += sorted({p.cell.verifier for p in planned if p.role != "pair" and p.cell.verifier not in self.urls})
        if left_out:
            warn(
                f"{', '.join(left_out)} left out: engine.urls names no server for {'it' if len(left_out) == 1 else 'them'}"
            )
        return [point for point in planned if point in shared or point.cell.verifier in self.urls]

    def _refuse_two_settings(self, points: Sequence[Point], settings: Mapping[str, ServerSetting]) -> None:
        """Raise if a server would need two models, two rules, or one rule at two settings."""
        for url in dict.fromkeys(self.url_of(point.cell.verifier) for point in points):
            here = [settings[point.cell.key] for point in points if self.url_of(point.cell.verifier) == url]
            labels = [setting.label for setting in dict.fromkeys(here)]
            if len(labels) > 1:
                raise ConfigError(
                    f"engine.url and engine.urls give {len(labels)} settings ({', '.join(labels[:3])}) to the server at {url}, "
                    "which has one: give each a server as engine.urls.NAME=URL, and run once for each setting of a rule"
                )

    def url_of(self, verifier: str) -> str:
        """Return the address, before /v1, of the server of these cells."""
        url = self._named_url(verifier)
        assert url is not None, "a cell without a server was left out"
        return url

    def _named_url(self, verifier: str) -> str | None:
        """Return the address, before /v1, that the options give for these cells; None if they give none."""
        url = self.urls.get(verifier, self.url)
        return None if url is None else url.rstrip("/").removesuffix("/v1")

    def setting(self, run: Run, point: Point) -> ServerSetting:
        """Return what this cell requires of a server; raise ConfigError for a rule that the server does not have."""
        name, url = point.cell.verifier, self._named_url(point.cell.verifier)
        if point.role != "pair":
            return ServerSetting(point.role, url=url)
        if self.plugin:
            from sdbench.engines.served.plugin import refuse_for_the_plugin

            refuse_for_the_plugin(name, point.rule)
            return ServerSetting("pair", point.num_draft, PLUGIN, url)
        if name not in self.rules:
            more = (
                "use engine=native"
                if self.dialect.extra is None
                else "with sdbench's plug-in inside, and engine.plugin=true, it takes every rule that judges one token at a time"
            )
            raise ConfigError(f"verifier={name} is not a rule that this server has {nearest(name, self.rules)}; {more}")
        rule = json.dumps(_fill_knobs(self.rules[name], point), sort_keys=True)
        return ServerSetting("pair", point.num_draft, rule, url)

    def extra(self, point: Point) -> dict[str, Any]:
        """Return the fields that a request carries for the plug-in."""
        if not (self.plugin and point.role == "pair"):
            return {}
        from sdbench.engines.served.plugin import request_of

        return request_of(point.rule)

    def stops_sent(self, job: Job) -> list[str]:
        """Return the stop strings that a request carries; sdbench looks for the others itself."""
        return list(job.task.stop)[: self.dialect.most_stops]

    def decides(self, run: Run, point: Point) -> dict[str, Any]:
        """Return the options of this engine that decide a text."""
        setting = self.setting(run, point)
        given = {} if self.model is None else {"model": self.model}
        given |= {} if self.dialect_name in NAMELESS else {"dialect": self.dialect_name}
        ours, usual = self.dialect.request, usual_request(run.engine.name)
        changed = {name: ours.get(name) for name in {**usual, **ours} if ours.get(name) != usual.get(name)}
        return {"name": run.engine.name, "rule": setting.rule, "request": {**changed, **self.request}, **given}

    def _with_key(self, run: Run, point: Point) -> Cell:
        data = point.cell.to_json()
        loading = tuple(
            f"{role}_{what}" for role in ("target", "draft") for what in ("dtype", "attention", "quantization")
        )
        content = {name: value for name, value in data["content"].items() if name not in loading}
        law = f"{data['law'].partition('/')[0]}/{SERVED_LAW}"
        return Cell.from_json(
            {**data, "same_as": None, "law": law, "content": {**content, "engine": self.decides(run, point)}}
        )


def _fill_knobs(rule: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Return a rule's command line with its $KNOBS filled in."""
    filled = {}
    for key, value in rule.items():
        is_knob = isinstance(value, str) and value.startswith("$")
        filled[key] = getattr(point.rule, value[1:]) if is_knob else value
        if isinstance(filled[key], float) and not abs(filled[key]) < float("inf"):
            raise ConfigError(
                f"{value[1:]}={filled[key]} of verifier={point.cell.verifier} cannot be sent to a server: give a finite number"
            )
    return filled
