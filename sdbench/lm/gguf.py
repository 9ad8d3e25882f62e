"""GGUF files as checkpoints: each becomes a folder in the cache, which the rest of the package reads like any other.

Configuration, tokenizer and stop ids are written when the file is first used, into a folder named by the file's state, so
that no weight is read; the weights when they are first needed, into a folder named by the file's hash, dequantised into
one dtype and written tensor by tensor, so that only one tensor is in memory.
Names and layouts are transformers'. Not covered: files in several parts, and rope scaling, which transformers does not read from
GGUF; what else it does not read is set by lm/gguf_config.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from huggingface_hub import constants

from sdbench.config import ConfigError
from sdbench.errors import first_line
from sdbench.hub import fetch
from sdbench.lm.digests import GIB, digest_once, state_of
from sdbench.lm.gguf_config import set_unread
from sdbench.lm.gguf_folders import is_whole, remove_folder, write_once
from sdbench.lm.gguf_tokenizer import stop_ids, value_of, write_tokenizer
from sdbench.lm.stored import CODES

if TYPE_CHECKING:
    from gguf import GGUFReader

CACHE = Path(constants.HF_HOME, "sdbench", "gguf")
LONG = 2**28  # bytes that take seconds to dequantise
# Of the folders of metadata and of weights; after a change, or with another transformers, they are written again.
FORMAT, WEIGHTS_FORMAT = 6, 3
CARD = "gguf.json"
ON_HUB = re.compile(r"([\w.-]+/[\w.-]+):(.+\.gguf)")
OWN_DTYPES = {"F32": "float32", "F16": "float16"}  # by kind; the others are made from bfloat16
TORN = ValueError, IndexError, KeyError, OSError, OverflowError


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A local file; `kind` is its quantisation, such as Q4_K_M."""

    id: str
    path: Path
    folder: Path  # configuration, tokenizer and stop ids in transformers' format
    kind: str
    parameters: int
    dtype: str  # that of the weights before quantisation
    settings: str  # of the configuration that transformers does not read from the file
    tokenizer_fault: str  # why the tokenizer inside is not used; empty: it is

    @property
    def digest(self) -> str:
        """The SHA-256 of the content. The first call reads the whole file."""
        return digest_once(self.path)

    @property
    def identity(self) -> str:
        return f"sha256:{self.digest[:20]} ({self.kind} GGUF)"

    def weights(self, dtype: str) -> Path:
        """Return the folder of the weights in a dtype. The first call dequantises them, which takes a minute for 1.5 B."""
        folder = _folder_of(self.digest, WEIGHTS_FORMAT) / dtype
        size = self.parameters * CODES[dtype][1]
        try:
            if folder.is_dir() and not is_whole(folder):
                print(
                    f"sdbench: the copy of {self.id} in {dtype} is damaged: it is written again",
                    file=sys.stderr,
                    flush=True,
                )
                remove_folder(folder)
            if size >= LONG and not folder.is_dir():
                what = f"{self.id} into {size / GIB:.1f} GiB of {dtype}"
                print(f"sdbench: dequantising {what}, once: the copy is kept", file=sys.stderr, flush=True)
            return write_once(folder, lambda part: self._dequantise(part, dtype))
        # NotImplementedError: gguf cannot undo this kind of quantisation.
        except (NotImplementedError, *TORN) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{self.id} cannot be dequantised into {folder}: {first_line(error)}") from error

    def _dequantise(self, part: Path, dtype: str) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

        from sdbench.lm.gguf_tensors import read_tensors

        _require_packages(self.id)
        config = AutoConfig.from_pretrained(self.folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        tied = set(model._tied_weights_keys or ()) if config.tie_word_embeddings else set()
        shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items() if name not in tied}
        missing = set(shapes)
        with open(part / "model.safetensors", "wb") as file:
            offsets = _write_header(file, shapes, dtype)
            for name, weight in read_tensors(self.id, self.path, model, config):
                if name not in missing or tuple(weight.shape) != shapes[name]:
                    continue
                missing.remove(name)
                file.seek(offsets[name])
                weight.to(getattr(torch, dtype)).contiguous().flatten().view(torch.uint8).numpy().tofile(file)
        if missing:
            raise ConfigError(f"{self.id} has no weights for {min(missing)}: it is of another architecture")
        config.architectures, config.dtype = [type(model).__name__], dtype
        config.save_pretrained(part)
        GenerationConfig.from_pretrained(self.folder).save_pretrained(part)


def _write_header(file: BinaryIO, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> dict[str, int]:
    """Write the header of a safetensors file; return where each tensor begins."""
    code, width = CODES[dtype]
    ends = list(accumulate((prod(shape) * width for shape in shapes.values()), initial=0))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, shape), span in zip(shapes.items(), pairwise(ends), strict=True):
        header[name] = {"dtype": code, "shape": shape, "data_offsets": span}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    return {name: 8 + len(text) + end for name, end in zip(shapes, ends, strict=False)}


def is_gguf(id: str) -> bool:
    """Return whether a checkpoint's name is that of a GGUF file, local or on the hub."""
    return id.endswith(".gguf")


def find_file(id: str, *, revision: str | None = None) -> GGUFFile:
    """Return a local file, or one of the hub such as org/repo:file.gguf, which is downloaded unless it is in the cache."""
    path = Path(os.path.expanduser(id))
    on_hub = ON_HUB.fullmatch(id)
    if not path.is_file() and on_hub is not None:
        path = _download(on_hub[1], on_hub[2], revision)
    if not path.is_file():
        raise ConfigError(f"{id} does not exist: give the path of a .gguf file, or org/repo:file.gguf of the hub")
    folder = _folder_of(state_of(path), FORMAT)
    if not folder.is_dir():  # reading a large vocabulary takes seconds
        print(f"sdbench: reading the tokenizer of {id} for the first time; it is kept", file=sys.stderr, flush=True)
    try:
        write_once(folder, lambda part: _describe(id, path, part))
    except OSError as error:
        raise ConfigError(f"{id} cannot be read into {CACHE}: {first_line(error)}") from error
    return GGUFFile(id, path, folder, **json.loads((folder / CARD).read_text()))


def _download(repo: str, name: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def request() -> Path:
        try:
            return Path(hf_hub_download(repo, name, revision=revision))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError as error:
            page = f"{constants.ENDPOINT}/{repo}/tree/{revision or 'main'}"
            raise ConfigError(f"{repo} has no file {name}: see {page}") from error

    return fetch(request, repo, revision=revision)


def _folder_of(name: str, form: int) -> Path:
    return CACHE / f"{name[:20]}-{form}-{version('transformers')}"  # whose code names and converts the tensors


def _require_packages(id: str) -> None:
    missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if missing:
        raise ConfigError(f"{id} needs {' and '.join(missing)}: pip install 'sdbench[gguf]'")


def _describe(id: str, path: Path, part: Path) -> None:
    """Write a file's configuration, tokenizer and stop ids, or raise for what is wrong with it."""
    _require_packages(id)
    from gguf import GGUFReader
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, GenerationConfig

    try:
        reader = GGUFReader(path)
        architecture = str(value_of(reader, "general.architecture", required=True))
        stops = stop_ids(reader)
    except TORN as error:
        raise ConfigError(
            f"{id} is damaged, or not a GGUF file ({first_line(error)}): copy or download it again"
        ) from error
    _refuse_unread(id, reader, architecture)
    if not stops:
        raise ConfigError(f"{id} has no end-of-text token (tokenizer.ggml.eos_token_id): convert the model again")
    try:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    # ValueError, NotImplementedError: an architecture that transformers does not read; KeyError: not a language model.
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ConfigError(
            f"{id} is of the architecture {architecture}, which transformers does not read from GGUF as a language model: "
            "give the publisher's own repository"
        ) from error
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    embeddings = (tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    config.vocab_size = next((int(tensor.shape[-1]) for tensor in embeddings), config.vocab_size)
    base = value_of(reader, f"{architecture}.rope.freq_base")
    settings = set_unread(
        id, config, None if base is None else float(base), [str(tensor.name) for tensor in reader.tensors]
    )
    config.save_pretrained(part)
    special: dict[str, Any] = {"eos_token_id": stops if len(stops) > 1 else stops[0]}
    special |= {name: getattr(config, name, None) for name in ("bos_token_id", "pad_token_id")}
    GenerationConfig(**special).save_pretrained(part)
    card = {
        "kind": (kind := _kind(reader)),
        "parameters": parameters,
        "dtype": OWN_DTYPES.get(kind, "bfloat16"),
        "settings": settings,
        "tokenizer_fault": write_tokenizer(id, path, reader, part),
    }
    (part / CARD).write_text(json.dumps(card))


def _refuse_unread(id: str, reader: GGUFReader, architecture: str) -> None:
    """Raise for features that change the weights or their use and that transformers does not read."""
    if int(value_of(reader, "split.count") or 1) > 1:
        raise ConfigError(
            f"{id} is one of several parts: join them with llama-gguf-split --merge FIRST.gguf WHOLE.gguf"
        )
    scaling = str(value_of(reader, f"{architecture}.rope.scaling.type") or "none")
    factors = [str(tensor.name) for tensor in reader.tensors if str(tensor.name).startswith("rope_f")]
    if scaling != "none" or factors:
        raise ConfigError(
            f"{id} scales its rotary positions ({factors[0] if factors else scaling}), which transformers does not read from "
            "GGUF: give the publisher's own repository"
        )


def _kind(reader: GGUFReader) -> str:
    """Return the quantisation that the file states, or the type of most of its weights."""
    from gguf import LlamaFileType

    try:
        return LlamaFileType(int(value_of(reader, "general.file_type"))).name.partition("_")[2]
    except (ValueError, TypeError):
        counts: Counter[str] = Counter()
        for tensor in reader.tensors:
            counts[tensor.tensor_type.name] += int(tensor.n_elements)
        return counts.most_common(1)[0][0]
