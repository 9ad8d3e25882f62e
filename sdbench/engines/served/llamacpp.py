"""llama.cpp servers started by sdbench: GGUF files, a draft from a second file, the lossless rule."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sdbench.config import ConfigError, Run, show
from sdbench.config.checks import integer, string
from sdbench.engines.served.request import ServerSetting, model_id_of
from sdbench.engines.served.started import StartedServers
from sdbench.prepare.progress import warn
from sdbench.serve.command import flags, look_at_llama_server

if TYPE_CHECKING:
    from sdbench.engines.job import Job
    from sdbench.prepare.pair import PairMetadata

MARGIN = 8  # positions that a slot keeps free after its text and a draft
STEP = 256  # contexts are multiples of it
# llama.cpp's second names of two options
OTHER_NAMES = {"draft_min": "spec_draft_n_min", "draft_n_min": "spec_draft_n_min", "draft_p_min": "spec_draft_p_min"}


@dataclass(kw_only=True)
class LlamaCpp(StartedServers):
    """Starts llama.cpp servers with the program `binary`."""

    reserved: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("model", "model_draft", "spec_draft_model"), "model="),
        **dict.fromkeys(("spec_draft_n_max", "draft_max", "draft_n", "draft"), "num_draft="),
        "parallel": "engine.slots",
        "host": "engine.host",
        "port": "engine.port",
    }
    reserved_speculative: ClassVar[Mapping[str, str]] = reserved
    secret: ClassVar[Mapping[str, str]] = {**StartedServers.secret, "api_key": "LLAMA_API_KEY"}

    module: str = "llamacpp"
    binary: str | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots is not None:
            integer("engine.slots", self.slots, 1, 4096)

    def _check_servers(self) -> None:
        super()._check_servers()
        for name in self.args:
            plain = name.replace("-", "_")
            if plain.startswith("spec_") or plain in OTHER_NAMES:
                raise ConfigError(
                    f"engine.args.{name} is an option of drafting: write engine.speculative.{OTHER_NAMES.get(plain, plain)}"
                )
        for name in self.speculative:
            plain = name.replace("-", "_")
            if (written := OTHER_NAMES.get(plain, plain)) != name:
                raise ConfigError(
                    f"engine.speculative.{name} is another way to write engine.speculative.{written}: write that"
                )

    def api_key(self) -> str | None:
        """Return the first of the keys, which are separated by commas."""
        return (super().api_key() or "").partition(",")[0]

    @property
    def most_requests(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The server's slots: further requests would wait in its queue."""
        return self.slots or max(self.concurrency)

    @property
    def may_draft_nothing(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if p-min or n-min is set: a draft ends at the first token below p-min, and one shorter than n-min is dropped."""
        ends = (self.speculative.get(name) for name in ("spec_draft_p_min", "spec_draft_n_min"))
        return any(end is not None and float(end) > 0 for end in ends)

    def look_at_program(self, run: Run) -> None:
        self.installed = look_at_llama_server(None if self.binary is None else string("engine.binary", self.binary))

    def find(self, run: Run, *, is_read: bool = True) -> PairMetadata:
        metadata = super().find(run, is_read=is_read)
        for role, checkpoint in metadata.checkpoints.items():
            if checkpoint.gguf is None:
                name = model_id_of(run, role)
                raise ConfigError(f"engine=llamacpp loads .gguf files, and model.{role}={show(name)} is not one")
        if run.timing is not None and run.timing.is_open and self.slots is None:
            num = self.most_requests
            warn(
                f"llama.cpp answers {num} request{'' if num == 1 else 's'} at a time while requests arrive at a rate, and the "
                "others wait: engine.slots=N starts it with more"
            )
        return metadata

    def words(self, job: Job, setting: ServerSetting, port: int) -> Sequence[str]:
        files = {role: checkpoint.gguf for role, checkpoint in job.pair_info.metadata.checkpoints.items()}
        paths = {role: str(file.path) for role, file in files.items() if file is not None}
        speculative = {
            "spec_draft_model": paths.get("draft"),
            self.dialect.length_flag: setting.num_draft,
            **self.speculative,
            **json.loads(setting.rule or "{}"),
        }
        room = -(-(job.longest + setting.num_draft + MARGIN) // STEP) * STEP
        args = {
            "model": paths["draft" if setting.role == "draft" else "target"],
            "host": self.host,
            "port": port,
            "parallel": self.most_requests,
            "ctx_size": room * self.most_requests,
            **self.always,
            **self.args,
        }
        return [self.installed["binary"], *flags(args), *(flags(speculative) if setting.role == "pair" else ())]
