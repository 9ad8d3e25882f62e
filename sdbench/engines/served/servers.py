"""The servers of a run, already running or started here. Each one is checked before it decodes a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, show
from sdbench.engines.served.counts import probed_tokens, tells_steps_of
from sdbench.engines.served.identity import is_same_text, keys_in, without_secrets
from sdbench.engines.served.plugin import compare_versions, request_of
from sdbench.engines.served.remarks import warn_of_other_program, warn_of_slots
from sdbench.engines.served.request import PLUGIN, ServerSetting, model_id_of, request_body
from sdbench.plan import WorkItem
from sdbench.prepare.provenance import gpus
from sdbench.serve.answer import Answer, UnansweredError
from sdbench.serve.client import Client
from sdbench.serve.command import port_of
from sdbench.serve.dialect import at
from sdbench.serve.process import Server
from sdbench.types import EngineError
from sdbench.verify import Ensemble

if TYPE_CHECKING:
    from sdbench.engines.job import Job
    from sdbench.engines.served.options import Http
    from sdbench.engines.served.started import StartedServers
    from sdbench.records import Store
    from sdbench.serve.pump import Pump

DYING_S = 5.0  # the connection of a dying server closes before its process ends
SAMPLE = "Question: what is 12 + 30?\nAnswer:"  # a text that both tokenizers encode


@dataclass
class OpenServer:
    """A server that has been checked; `process` if sdbench started it."""

    client: Client
    tells_steps: bool
    facts: dict[str, Any]
    process: Server | None = None


class Servers:
    """Servers by setting. Of those started here, at most `engine.at_once` run; the least recently used one is stopped first."""

    def __init__(self, kind: Http, job: Job, store: Store, pump: Pump) -> None:
        self.kind, self.job, self.store, self.pump = kind, job, store, pump
        self._open: dict[ServerSetting, OpenServer] = {}
        self._points = {kind.setting(job.run, point): point for point in reversed(job.planned)}

    def check(self) -> None:
        """Check all servers that are already running, before any decoding."""
        if not self.kind.is_started_here:
            for setting in self._points:
                self.at(setting)

    def is_open(self, setting: ServerSetting) -> bool:
        return setting in self._open

    def at(self, setting: ServerSetting) -> OpenServer:
        """Return the server of this setting, started and checked at first use."""
        if setting in self._open:
            self._open[setting] = self._open.pop(setting)
            return self._open[setting]
        server = self._start(setting) if setting.url is None else self._looked_at(setting, setting.url, None, {})
        self._open[setting] = server
        warn_of_other_program(self.store, server.facts)
        self.store.add_server(server.facts)
        return server

    def close(self) -> None:
        for setting in list(self._open):
            self._close(setting)

    def _close(self, setting: ServerSetting) -> None:
        server = self._open.pop(setting)
        try:
            self.pump.run(server.client.close())
        finally:
            if server.process is not None:
                server.process.close()

    def death_of(self, client: Client) -> str | None:
        """Return how the server of a client ended; None if it still runs, or was not started here."""
        processes = (server.process for server in self._open.values() if server.client is client)
        return next((process.death(within_s=DYING_S) for process in processes if process is not None), None)

    def refuse_dead(self, client: Client) -> None:
        """Raise EngineError if the server of a client was started here and has ended, because another may answer at its port."""
        processes = (server.process for server in self._open.values() if server.client is client)
        if any(process is not None and process.has_ended() for process in processes):
            rest = "finished texts are recorded; run the same command again to continue"
            raise EngineError(f"the server at {client.url} has ended; {rest}")

    def explain(self, client: Client, error: EngineError) -> EngineError:
        """Return the same error, or how the server ended if it was started here and has ended."""
        death = self.death_of(client)
        rest = "finished texts are recorded; run the same command again to continue"
        return error if death is None else EngineError(f"{death}\n{rest}")

    def _start(self, setting: ServerSetting) -> OpenServer:
        kind: StartedServers = self.kind  # pyright: ignore[reportAssignmentType]
        while len(self._open) >= kind.at_once:
            self._close(next(iter(self._open)))
        port = port_of(kind.host, kind.port)
        url = f"http://{kind.host}:{port}"
        words = kind.words(self.job, setting, port)
        log = Path(self.job.run.folder) / "servers" / f"{setting.role}-{port}.log"
        process = Server.start(words, url, log, env=kind.environment(self.job, setting), grace_s=kind.grace_s)
        try:
            process.wait_until_ready(kind.health, kind.start_s)
            facts = {
                "command": list(words),
                "installed": kind.installed,
                "gpus": gpus(),
                "started_s": process.started_s,
            }
            return self._looked_at(setting, url, process, facts)
        except BaseException:
            process.close()
            raise

    def _looked_at(
        self, setting: ServerSetting, url: str, process: Server | None, started: Mapping[str, Any]
    ) -> OpenServer:
        """Check a server before one of its texts counts; raise ConfigError with one sentence for a problem."""
        client = Client(url, self.kind.dialect, self.kind.patience, self.kind.headers)
        self.pump.run(client.open())
        try:
            version = self._version(client)
            model = self._served_model(client, setting)
            client.model = str(model.get("id"))
            info = self.pump.run(client.get(client.dialect.info))
            self._refuse_short_context(client, model, info)
            self._compare_tokenizers(client)
            self._look_for_the_plugin(client, setting)
            answer = self._probe(client, setting)
            tells_steps = setting.role == "pair" and tells_steps_of(self, client, setting, answer, version)
            if self.job.run.timing is not None:
                warn_of_slots(at(info, client.dialect.slots), self.kind.concurrency)
            facts = {
                "url": url,
                "setting": setting.label,
                "model": client.model,
                "version": version,
                "info": without_secrets(info, keys_in(self.kind.headers)),
                "counts": "steps" if tells_steps else "pooled" if setting.role == "pair" else "none needed",
                "engine": self.job.run.engine.name,
                **started,
            }
        except BaseException as error:
            self.pump.run(client.close())
            if isinstance(error, EngineError | UnansweredError):
                is_silent = isinstance(error, UnansweredError)
                first = f"the server at {url} did not answer sdbench's first requests: " if is_silent else ""
                death = None if process is None else process.death(DYING_S if is_silent else 0)
                raise ConfigError(death or f"{first}{error}") from error
            raise
        return OpenServer(client, tells_steps, facts, process)

    def _version(self, client: Client) -> str | None:
        try:
            answer = self.pump.run(client.get(client.dialect.version))
        except UnansweredError as error:
            raise ConfigError(
                f"no server answers at {client.url} ({error}): start it, or write its address as engine.url=URL"
            ) from None
        version = at(answer, client.dialect.version_name)
        return None if version is None else str(version)

    def _served_model(self, client: Client, setting: ServerSetting) -> Mapping[str, Any]:
        """Return what the server lists about the model of this setting."""
        models = self.pump.run(client.models())
        if not models:
            raise ConfigError(
                f"the server at {client.url} lists no models at /v1/models: engine.url is the address before /v1"
            )
        ids, wanted = [str(model.get("id")) for model in models], model_id_of(self.job.run, setting.role)
        if self.kind.model is not None:
            if self.kind.model not in ids:
                raise ConfigError(
                    f"engine.model={show(self.kind.model)} is not served at {client.url}, which has {', '.join(ids)}"
                )
            return models[ids.index(self.kind.model)]
        names = self._names_of(setting.role)
        for model in models:
            if names(str(model.get("id"))) or names(str(model.get("root"))):
                return model
        raise ConfigError(
            f"the server at {client.url} serves {', '.join(ids)}, and this run asks for {wanted}: set "
            f"model.{setting.role if setting.role == 'draft' else 'target'}= to a served model, or give "
            f"engine.model={ids[0]} if that is the same model under another name"
        )

    def _refuse_short_context(self, client: Client, model: Mapping[str, Any], info: Any) -> None:
        """Raise if an answer may not fit: the server would cut it, and report that it reached max_new_tokens."""
        needed, sizes = self.job.longest, (at(model, "max_model_len"), at(info, client.dialect.context))
        size = min((size for size in sizes if isinstance(size, int)), default=needed)
        if size < needed:
            raise ConfigError(
                f"the server at {client.url} takes texts of {size} tokens, and this run needs {needed} for its longest prompt and "
                f"max_new_tokens={self.job.task.max_new_tokens}: start it with at least {needed} ({client.dialect.context_flag}), "
                "or lower max_new_tokens"
            )

    def _names_of(self, role: str) -> Callable[[str], bool]:
        """Return a test of whether a name is that of the model. The path of a GGUF file may differ on another machine."""
        names = {model_id_of(self.job.run, role, is_folder=is_folder) for is_folder in (False, True)}
        file = self.job.pair_info.metadata.checkpoints["draft" if role == "draft" else "target"].gguf
        return lambda name: name in names or (file is not None and Path(name).name == file.path.name)

    def _compare_tokenizers(self, client: Client) -> None:
        """Compare how both tokenizers encode a text."""
        if client.dialect.tokenize is None:
            return
        ours = list(self.job.pair_info.tokenizer(SAMPLE, add_special_tokens=False)["input_ids"])
        body = {"model": client.model, client.dialect.tokenize_text: SAMPLE, **client.dialect.tokenize_request}
        theirs = at(self.pump.run(client.get(client.dialect.tokenize, body)), "tokens")
        if theirs is not None and list(theirs) != ours:
            raise ConfigError(self._other_ids(client, f"{theirs[:6]} and {ours[:6]} begin the same text"))

    def _other_ids(self, client: Client, why: str) -> str:
        return (
            f"the tokenizer of the server at {client.url} has other ids than that of {self.job.run.model.target} ({why}): the "
            "same prompts would be other texts, so give the model that is served"
        )

    def _look_for_the_plugin(self, client: Client, setting: ServerSetting) -> None:
        """Check that the plug-in runs, with the rules of this version. A server without it accepts any rule of a request. An engine
        core without it verifies with vLLM's sampler, even if the front end has the plug-in, and so rejects drafts at
        w = 0, where the plug-in keeps all of them.
        """
        field = client.dialect.extra
        if setting.rule != PLUGIN or field is None:
            return
        body = {"model": client.model, "prompt": SAMPLE, "max_tokens": 1, field: {"sdbench_rule": "none"}}
        if not self.pump.run(client.refuses(body)):
            raise ConfigError(
                f"the server at {client.url} accepts a made-up rule, so sdbench's plug-in is missing or did not load: "
                "install plugins/vllm and sdbench into its environment, and start it with VLLM_PLUGINS=sdbench"
            )
        probe = self._probe_body(client, setting)
        rules = [point.rule for point in self.job.planned if self.kind.setting(self.job.run, point) == setting]
        compare_versions(client, self.pump, {**probe, "max_tokens": 1}, field, rules)
        keep_all = request_of(Ensemble(0.0, greedy="mixture"))
        steps = self.pump.run(client.complete({**probe, field: keep_all})).steps
        rounds = [] if steps is None else list(zip(steps["accepted"], steps["drafted"], strict=True))
        # A text may end inside its last round.
        if any(accepted < drafted for accepted, drafted in rounds[:-1] or rounds):
            raise ConfigError(
                f"the server at {client.url} rejects drafts at w = 0, where sdbench's plug-in accepts all of them: its engine core "
                "does not run the plug-in; start it with VLLM_PLUGINS=sdbench and VLLM_USE_V2_MODEL_RUNNER=0 in the environment"
            )

    def _probe_body(self, client: Client, setting: ServerSetting) -> dict[str, Any]:
        """Return a request for a short answer to the first prompt, without stop strings, which could end it before a draft."""
        item = WorkItem(self._points[setting].cell.key, next(iter(self.job.prompts.ids)), 0)
        most = probed_tokens(setting.num_draft)
        return request_body(self.kind, self.job, client.model, item, most) | {"stop": []}

    def _probe(self, client: Client, setting: ServerSetting) -> Answer:
        """Ask for a short answer to the first prompt, to see which fields come with it."""
        answer = self.pump.run(client.complete(self._probe_body(client, setting)))
        ours = self.job.pair_info.text(answer.ids)
        if answer.text and not is_same_text(ours, answer.text):
            raise ConfigError(self._other_ids(client, f"{show(answer.text)!r} there is {show(ours)!r} here"))
        return answer
