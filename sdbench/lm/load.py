"""Checkpoints: their metadata, whether they fit into memory, their files, and the loaded model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError
from sdbench.errors import first_line
from sdbench.files import digest_of, digest_of_data
from sdbench.hub import explain, fetch, is_offline
from sdbench.lm.digests import announce_hashing, digest_once, hash_of_hub, is_digest_known
from sdbench.lm.gguf import GGUFFile, find_file, is_gguf
from sdbench.lm.memory import free_system_bytes
from sdbench.lm.quantized import INT8, QUANTIZED, quantization_config
from sdbench.lm.snapshot import download_small, download_weights
from sdbench.lm.stored import StoredWeights, count_weights, stored_weights, weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER = "adapter_config.json"
HASHED = (".safetensors", ".bin", ".json", ".jinja")
TENSOR_FILES = (".safetensors", ".bin", ".pt", ".pth")
ROOM = 1.1  # factor on the weights, for activations and the allocator; the batch adds keys and values


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's identity: its files, their commit and hashes, the numbers and types of its weights."""

    id: str
    folder: Path
    commit: str | None  # None: a folder that is not a hub snapshot
    weights: StoredWeights | None  # None: no safetensors, so unknown before loading
    gguf: GGUFFile | None = None  # the file from which the folder was made
    tokenizer: Path | None = None  # instead of the folder's

    @property
    def tokenizer_folder(self) -> Path:
        return self.tokenizer or self.folder

    @property
    def dtype(self) -> str:
        """The dtype of most weights that are not quantised."""
        return "float32" if self.weights is None else self.weights.dtype

    @property
    def stored_bytes(self) -> float:
        """The bytes of the weights in their files."""
        return 0 if self.weights is None else self.weights.stored_bytes

    def bytes(self, dtype: str | None, quantization: str | None, device: str) -> float:
        """Return the bytes that a device needs to read the weights: `int8` reads them whole and then quantises."""
        if self.weights is None:
            return 0
        if quantization not in (None, INT8):
            return self.weights.floating * QUANTIZED[quantization][0] + self.weights.quantized_bytes
        return self.weights.bytes(dtype, device)

    def description(self, dtype: str | None, quantization: str | None) -> str:
        """Return its name with the number of its weights, and the bytes of those that are stored quantised."""
        weights = self.weights or StoredWeights(0, self.dtype)
        kind = quantization if quantization != INT8 else None
        text = f"{weights.floating / 1e9:.3g} B weights in {kind or dtype or self.dtype}"
        size = weights.quantized_bytes
        return f"{self.id} ({text}{f' and {size / 2**30:.3g} GiB of quantised weights' if size else ''})"

    def hashes(self) -> dict[str, str]:
        """File -> hash: the hub's own if the file is in its cache, else sha256 of the content."""
        return {path.name: _hash(path) for path in self._files()}

    def _files(self) -> list[Path]:
        whole = [] if self.gguf is None else [self.gguf.path]
        return whole or [path for path in sorted(self.folder.iterdir()) if path.suffix in HASHED]

    def is_hashed(self) -> bool:
        """Return whether its identity is known without reading weights: they are the hub's, small, or were hashed before."""
        return self.commit is not None or all(map(is_digest_known, self._files()))

    def identity(self) -> str:
        """Return a line for provenance and keys of cells; it changes when the weights do. The first call hashes local files."""
        if self.commit is not None:
            return f"{self.id}@{self.commit}"
        announce_hashing(self.id, self._files())
        if self.gguf is not None:
            return self.gguf.identity
        hashes, small = self.hashes(), (".json", ".jinja")
        weights = (f"{name} {hashes[name]}\n" for name in hashes if name == "config.json" or not name.endswith(small))
        return f"sha256:{digest_of(*weights)}"


def find(
    id: str,
    folder: str | None = None,
    *,
    revision: str | None = None,
    tokenizer: str | None = None,
    keeps_tokenizer: bool = False,
) -> Checkpoint:
    """Return the checkpoint of a hub id, a folder or a GGUF file from its metadata. No weights are read, and none are downloaded
    except a GGUF file, which contains its metadata. `tokenizer` replaces the one in a GGUF file, with `keeps_tokenizer`
    only one that cannot be used.
    """
    if is_gguf(id):
        return _find_gguf(id, revision, tokenizer, keeps_tokenizer=keeps_tokenizer)
    path = Path(os.path.expanduser(folder or id))
    if path.is_dir():
        _refuse_adapter(id, path)
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"model {id} is a folder without config.json: name one that holds config.json, weights and a tokenizer"
            )
        counts = count_weights(path)
        return Checkpoint(id, path, None, None if counts is None else stored_weights(counts, path))
    if id.endswith(TENSOR_FILES):
        raise ConfigError(
            f"model {id} is a file of weights: give the folder that holds it with config.json and a tokenizer"
        )
    if id.count("/") != 1 or ":" in id or id.startswith((".", "/", "~")):
        raise ConfigError(f"model {id} is neither a folder on this machine nor an id of the hub such as Qwen/Qwen3-8B")

    def metadata() -> Checkpoint:
        from huggingface_hub import get_safetensors_metadata, hf_hub_download
        from huggingface_hub.errors import NotASafetensorsRepoError

        hf_hub_download(id, "config.json", revision=revision)  # raises for a gated or unknown repository
        here = download_small(id, revision=revision)
        _refuse_adapter(id, here)
        counts: Mapping[str, int] | None = count_weights(here)
        if counts is None and is_offline():
            if not any(here.glob("pytorch_model*.bin")):
                raise FileNotFoundError(f"the weights of {id} are not all in the cache")
        elif counts is None:
            with suppress(NotASafetensorsRepoError):
                numbers = get_safetensors_metadata(id, revision=here.name).parameter_count
                counts = {str(kind): count for kind, count in numbers.items()}
        return Checkpoint(id, here, here.name, None if counts is None else stored_weights(counts, here))

    return fetch(metadata, id, revision=revision)


def is_local(id: str) -> bool:
    """Return whether `find` reads this folder or GGUF file of this machine, and nothing of the hub."""
    path = Path(os.path.expanduser(id))
    return path.is_file() if is_gguf(id) else path.is_dir()


def _find_gguf(id: str, revision: str | None, tokenizer: str | None, *, keeps_tokenizer: bool) -> Checkpoint:
    file = find_file(id, revision=revision)
    if tokenizer is None and file.tokenizer_fault:
        instead = "give model.tokenizer=ID, a hub id or a folder with the model's tokenizer"
        raise ConfigError(f"{id} {file.tokenizer_fault}: {instead}")
    if keeps_tokenizer and not file.tokenizer_fault:
        tokenizer = None
    folder = None if tokenizer is None else _tokenizer_folder(tokenizer)
    return Checkpoint(id, file.folder, None, StoredWeights(file.parameters, file.dtype), file, folder)


def _refuse_adapter(id: str, folder: Path) -> None:
    """Raise for an adapter beside a model: transformers applies it if peft is installed, and ignores it otherwise."""
    if (folder / ADAPTER).is_file():
        raise ConfigError(f"{id} has an adapter beside its weights ({ADAPTER}): merge the adapter into the weights")


def _tokenizer_folder(id: str) -> Path:
    if (path := Path(os.path.expanduser(id))).is_dir():
        return path
    return fetch(lambda: download_small(id), id)


def weights_folder(checkpoint: Checkpoint, dtype: str | None) -> Path:
    """Return the folder of the weights; for a GGUF file a dequantised copy in a dtype, which the first call makes."""
    if checkpoint.gguf is None:
        return checkpoint.folder
    return checkpoint.gguf.weights(dtype or checkpoint.dtype)


def is_here(checkpoint: Checkpoint) -> bool:
    """Return whether its weights are on this machine."""
    return checkpoint.commit is None or count_weights(checkpoint.folder) is not None


def download(checkpoint: Checkpoint) -> None:
    """Download the weights of a hub checkpoint into the cache; an interrupted download is resumed."""
    if is_here(checkpoint):
        return
    id, commit = checkpoint.id, checkpoint.commit
    names = set[str]() if checkpoint.weights is None else weight_files(checkpoint.folder)
    fetch(lambda: download_weights(id, commit=commit, names=names), id, revision=commit)


def why_too_large(
    wanted: list[tuple[Checkpoint, str | None, str | None]], device: str, *, is_spread: bool = False, more: float = 0
) -> str | None:
    """Return a sentence if there is too little memory, known before any weight is read; None if there is enough or it is unknown.
    `wanted`: (checkpoint, dtype or None for its own, quantization). `more`: bytes of packed copies.
    """
    need = ROOM * (
        more + sum(checkpoint.bytes(dtype, quantization, device) for checkpoint, dtype, quantization in wanted)
    )
    if (free := free_bytes(device, is_spread=is_spread)) is None or need <= free:
        return None
    parts = [checkpoint.description(dtype, quantization) for checkpoint, dtype, quantization in wanted]
    return (
        f"{' and '.join(parts)} need about {need / 2**30:.1f} GiB and {device} has {free / 2**30:.1f} GiB free: use "
        "dtype=bfloat16, model.quantization=bnb-nf4, a smaller pair, or model=llama-tiny"
    )


def free_bytes(device: str, *, is_spread: bool = False) -> int | None:
    """Return the memory available to a model on a device, or on all devices of its kind; None if unknown."""
    kind, _, number = device.partition(":")
    if kind in ("cuda", "xpu"):
        import torch

        module = torch.get_device_module(kind)
        devices = range(module.device_count()) if is_spread else [int(number or module.current_device())]
        return sum(module.mem_get_info(device)[0] for device in devices)
    return free_system_bytes() if kind in ("cpu", "mps") else None


def load_model(
    checkpoint: Checkpoint,
    *,
    device: str,
    dtype: str | None,
    attention: str | None = None,
    device_map: str | None = None,
    quantization: str | None = None,
) -> PreTrainedModel:
    """Return the model in evaluation mode on its device; of a multimodal model the text part. dtype None is the checkpoint's."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from sdbench.lm.int8 import quantize_layers

    options: dict[str, Any] = {"dtype": getattr(torch, dtype) if dtype else "auto"}
    if attention is not None:
        options["attn_implementation"] = attention
    if quantization not in (None, INT8):
        options["quantization_config"] = quantization_config(quantization)
        options["device_map"] = device_map or {"": device}
    elif device_map is not None:
        options["device_map"] = device_map
    folder = weights_folder(checkpoint, dtype)
    try:
        config = AutoConfig.from_pretrained(folder)
        from_pretrained: Any = AutoModelForCausalLM.from_pretrained
        loaded, info = from_pretrained(folder, config=config, output_loading_info=True, **options)
    except ImportError as error:
        raise ConfigError(f"{checkpoint.id} cannot be loaded with these options: {first_line(error)}") from error
    except (OSError, ValueError, KeyError) as error:
        raise explain(error, checkpoint.id) from error
    except RuntimeError as error:
        if quantization is None:
            raise
        raise ConfigError(
            f"{checkpoint.id} cannot be loaded with quantization={quantization} on {device}: {first_line(error)}"
        ) from error
    if info["missing_keys"]:
        first, *others = sorted(info["missing_keys"])
        more = f" and {len(others)} more" if others else ""
        reason = "its files are damaged, or of another architecture"
        raise ConfigError(f"{checkpoint.id} has no weights for {first}{more}: {reason}")
    placed = (loaded if "device_map" in options else loaded.to(device)).eval().requires_grad_(False)
    return quantize_layers(placed, checkpoint.id) if quantization == INT8 else placed


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """Return the checkpoint's tokenizer, with its chat template."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(checkpoint.tokenizer_folder)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"the tokenizer of {checkpoint.id} cannot be loaded: {first_line(error)}") from error


def _hash(path: Path) -> str:
    return hash_of_hub(path) or digest_once(path)


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of everything that decides how a text is tokenized: pieces, merges, normaliser, special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = {} if backend is None else json.loads(backend.to_str())
    content = {
        "rules": {name: rule for name, rule in rules.items() if name not in ("truncation", "padding")},  # of a call
        "pieces": sorted(tokenizer.get_vocab().items()),
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "around": list(tokenizer("")["input_ids"]),  # type: ignore[arg-type]
    }
    return digest_of_data(content)
