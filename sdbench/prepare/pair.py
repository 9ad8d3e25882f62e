"""The models of a pair: first their metadata only, later their weights. Prompts and tokenizers are in pair_info."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sdbench import embedded
from sdbench.config import ConfigError, Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sdbench.lm.load import Checkpoint
    from sdbench.prepare.pair_info import PairInfo

GIB = 2**30


@dataclass(frozen=True)
class LoadedPair:
    """Both models in evaluation mode, on their device."""

    target: PreTrainedModel
    draft: PreTrainedModel | None

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        """Return the models by role."""
        return {"target": self.target, **({} if self.draft is None else {"draft": self.draft})}


def folder_of(model_id: str) -> str:
    """Resolve a hub id, or a folder with or without ~; `embedded:NAME/ROLE` is a folder of the package."""
    if not model_id.startswith("embedded:"):
        return os.path.expanduser(model_id)
    name, _, role = model_id.removeprefix("embedded:").partition("/")
    folder = Path(str(embedded.__file__)).parent / name / role
    if not folder.is_dir():
        raise ConfigError(
            f"the pair {name} is not in this copy of the package; train it in a checkout: python scripts/train_tiny.py pair={name}"
        )
    return str(folder)


def device_of(name: str, *, is_read: bool = True) -> str:
    """Return the device. `auto` is the first accelerator that exists. A named device that does not exist is an error if weights
    will be read.
    """
    if name == "cpu":
        return name
    import torch

    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if accelerator is None or accelerator.type == "mps" else accelerator.type
    if name.partition(":")[0] == "mps":
        raise ConfigError("device=mps has no float64, in which sdbench adds and draws: use device=cpu")
    if is_read and not is_available(name):
        raise ConfigError(f"device={name} is not available on this machine; use device=cpu or device=auto")
    return name


def is_available(device: str) -> bool:
    """Return whether this machine has a device."""
    if device == "cpu":
        return True
    import torch

    kind, _, number = device.partition(":")
    backend = getattr(torch, kind, None)  # torch.hpu exists only with its plug-in
    return backend is not None and backend.is_available() and int(number or 0) < backend.device_count()


@dataclass(frozen=True)
class PairMetadata:
    """The metadata of a pair: the checkpoint of each role, and how it will be loaded."""

    model: Model
    checkpoints: Mapping[str, Checkpoint]
    device: str
    dtype: str | None  # None: that of the checkpoint

    def quantization(self, role: str) -> str | None:
        return self.model.quantization if role == "target" else self.model.draft_quantization

    @property
    def num_bytes(self) -> float:
        """Bytes of the weights in memory."""
        return sum(map(self.bytes_of, self.checkpoints))

    @property
    def read_bytes(self) -> float:
        """Bytes of the weights that are read, without packed copies."""
        return sum(map(self.read_bytes_of, self.checkpoints))

    def bytes_of(self, role: str) -> float:
        """Bytes of a model's weights in memory, and of their packed copies where both take memory."""
        return (2 if self._is_kept_twice(role) else 1) * self.read_bytes_of(role)

    def read_bytes_of(self, role: str) -> float:
        """Bytes of a model's weights that are read, without packed copies."""
        return self.checkpoints[role].bytes(self.dtype, self.quantization(role), self.device)

    def _is_kept_twice(self, role: str) -> bool:
        """Return whether a model's weights take memory beside their packed copies: unless they are mapped from a file that has them
        in the run's dtype (lm/mapped.py). (An embedding that is not also the head is not packed, but it counts as if it were.)
        """
        checkpoint = self.checkpoints[role]
        stored, is_plain = checkpoint.weights, self.quantization(role) is None and sys.platform == "linux"
        is_mapped = (
            is_plain
            and stored is not None
            and not stored.quantized_bytes
            and (checkpoint.gguf is not None or self.dtype in (None, stored.dtype))
        )
        return bool(self.model.packed) and not is_mapped

    def why_too_large(self) -> str | None:
        """Return a sentence if the weights do not fit into the free memory of the device, which must be here."""
        from sdbench.lm.load import why_too_large

        wanted = [(checkpoint, self.dtype, self.quantization(role)) for role, checkpoint in self.checkpoints.items()]
        more = self.num_bytes - self.read_bytes
        return why_too_large(wanted, self.device, is_spread=self.model.device_map is not None, more=more)


def find(model: Model, *, device: str, dtype: str, is_read: bool = True) -> PairMetadata:
    """Find the pair and raise for a gated or missing model, a missing package or device, or too little memory, before weights
    are read and as far as possible before heavy imports. `is_read`: whether this process will read the weights; without it
    neither memory nor device are needed.
    """
    from sdbench.lm import load as lm
    from sdbench.lm.quantized import require_packages

    for quantization in (model.quantization, model.draft_quantization):
        require_packages(quantization, model.device_map)
    names = {"target": (model.target, model.target_revision)}
    if model.draft is not None:
        names["draft"] = model.draft, model.draft_revision
    for role, (name, revision) in names.items():
        if revision is not None and lm.is_local(folder_of(name)):
            raise ConfigError(
                f"model.{role}_revision={revision} is for models of the hub, and model.{role}={name} is on this machine: remove it"
            )
    tokenizer = None if model.tokenizer is None else folder_of(model.tokenizer)
    checkpoints = {
        role: lm.find(name, folder_of(name), revision=revision, tokenizer=tokenizer, keeps_tokenizer=role == "draft")
        for role, (name, revision) in names.items()
    }
    if tokenizer is not None and all(checkpoint.tokenizer is None for checkpoint in checkpoints.values()):
        raise ConfigError(
            f"model.tokenizer={model.tokenizer} has no effect here, since it is used only for a .gguf target or for a .gguf draft "
            "without a usable tokenizer: remove it"
        )
    where = device_of(device, is_read=is_read)
    kind = dtype if dtype != "auto" else "float32" if where == "cpu" else None
    metadata = PairMetadata(model, checkpoints, where, kind)
    if model.packed and where != "cpu":
        raise ConfigError(f"model.packed=true is for models on a CPU, and device={where} was chosen: remove it")
    if is_read and (why := metadata.why_too_large()):
        raise ConfigError(why)
    return metadata


def load(metadata: PairMetadata) -> LoadedPair:
    """Read the weights; errors become sentences with what to do."""
    from transformers.utils import logging

    from sdbench.lm import load as lm

    logging.disable_progress_bar()
    model, models = metadata.model, {}
    if (size := metadata.read_bytes) > GIB:
        names = " and ".join(checkpoint.id for checkpoint in metadata.checkpoints.values())
        print(f"sdbench: reading {size / GIB:.1f} GiB of weights: {names}", file=sys.stderr, flush=True)
        if metadata.device == "cpu":
            warn_of_emulation(metadata.dtype)
    for role, checkpoint in metadata.checkpoints.items():
        lm.download(checkpoint)
        models[role] = lm.load_model(
            checkpoint,
            device=metadata.device,
            dtype=metadata.dtype,
            attention=model.attention,
            device_map=model.device_map if role == "target" else None,
            quantization=metadata.quantization(role),
        )
    set_threads(list(models.values()))
    return LoadedPair(models["target"], models.get("draft"))


def warn_of_emulation(dtype: str | None) -> None:
    """Warn of a dtype of two bytes on a processor that computes in four bytes, where products of many rows take longer in it."""
    import torch

    from sdbench.lm.packed import has_instructions
    from sdbench.prepare.progress import warn

    if torch.backends.mkldnn.is_available() and dtype is not None and not has_instructions(getattr(torch, dtype)):
        warn(
            f"this processor has no instructions for {dtype}: reading prompts takes several times as long as with "
            "dtype=float32, which needs twice the memory"
        )


def set_threads(models: Sequence[PreTrainedModel]) -> None:
    """Set torch's threads on a CPU, where one thread multiplies narrow matrices faster than several; OMP_NUM_THREADS has
    precedence.
    """
    import torch

    widths = [model.config.get_text_config().hidden_size for model in models]
    is_on_cpu = all(model.device.type == "cpu" for model in models)
    threads = num_threads(widths, is_on_cpu=is_on_cpu)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)


def num_threads(widths: Sequence[int], *, is_on_cpu: bool) -> int:
    """Return the number of threads for models of these hidden sizes."""
    import torch

    from sdbench.lm.capture import NARROW

    usual = usual_threads()
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    return 1 if is_on_cpu and max(widths) < NARROW else usual


def threads_of(pair_info: PairInfo) -> int:
    """Return the number of threads with which the models of a pair run once this process has read their weights."""
    widths = [config.hidden_size for config in pair_info.configs.values()]
    return num_threads(widths, is_on_cpu=pair_info.metadata.device == "cpu")


@cache
def usual_threads() -> int:
    """Return the number of threads that torch uses by default."""
    import torch

    return torch.get_num_threads()
