"""Which files of a repository of the hub are downloaded: first the small ones, later those of the weights that are loaded."""

from collections.abc import Collection
from pathlib import Path

SMALL = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]
OTHER_WEIGHTS = ["*.safetensors", "pytorch_model*.bin"]  # where no safetensors file has a usual name
ELSEWHERE = ["*/*"]  # original/, onnx/, metal/ … hold the same weights in other formats


def download_small(id: str, *, revision: str | None = None) -> Path:
    """Download configuration and tokenizer into the cache; return their folder."""
    return _download(id, revision, SMALL)


def download_weights(id: str, *, commit: str | None, names: Collection[str]) -> None:
    """Download the weights in these files, or without names all; others may hold the same again (consolidated.safetensors)."""
    _download(id, commit, SMALL + (sorted(names) or OTHER_WEIGHTS))


def _download(id: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(id, revision=revision, allow_patterns=patterns, ignore_patterns=ELSEWHERE))
