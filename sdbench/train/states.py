"""The target's states of the texts of a training, on disk: a shard for each fixed group of texts, from which the steps read.

A shard carries a digest of the target, the layers and the texts of its group. So a training that was interrupted computes only
the states that are missing, in the same groups and thus with the same numbers.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sdbench.config import ConfigError
from sdbench.files import digest_of_data, write_whole
from sdbench.train.answers import Text
from sdbench.train.failed_files import explain_failed_read, explain_failed_write

TextKey = tuple[tuple[int, ...], tuple[int, ...]]
HEADER = 256  # the most bytes that a text takes in its shard besides its states


@dataclass
class StatesStore:
    """The states of texts in `folder`, in the precision in which `compute` returns them."""

    folder: Path
    identity: Mapping[str, Any]  # what decides the states of a text: the target, its precision, the layers
    compute: Callable[[Sequence[Text]], Sequence[Tensor]]  # states [L,d] of each text
    shards: dict[TextKey, tuple[Path, str]] = field(default_factory=dict)  # by text: its shard, and its name there

    def fill(self, groups: Iterable[Sequence[Text]]) -> None:
        """Write a shard for each group of texts, unless it is complete from an earlier run of the same training."""
        for number, group in enumerate(groups):
            new = {key: text for text in group if (key := key_of(text)) not in self.shards}
            path = self.folder / f"{number:04}.safetensors"
            if new:
                self._write(path, list(new.values()))
            self.shards |= {key: (path, str(row)) for row, key in enumerate(new)}

    def _write(self, path: Path, texts: Sequence[Text]) -> None:
        digest = digest_of_data([dict(self.identity), texts])
        if digest_in(path) == digest:
            return
        states = {str(row): x.cpu().contiguous() for row, x in enumerate(self.compute(texts))}
        with explain_failed_write(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, save(states, {"digest": digest}), part=path.with_suffix(".part"))

    def read(self, texts: Sequence[Text], device: Any) -> list[Tensor]:
        """Return copies of the states of these texts; a shard is mapped into memory only while it is read."""
        with explain_failed_read(self.folder), ExitStack() as stack:
            places = [self.shards[key_of(text)] for text in texts]
            files = {path: stack.enter_context(safe_open(path, "pt")) for path in {path for path, _ in places}}
            return [files[path].get_tensor(name).to(device, copy=True) for path, name in places]


def key_of(text: Text) -> TextKey:
    prompt, answer = text
    return tuple(prompt), tuple(answer)


def digest_in(shard: Path) -> str | None:
    """Return the digest that a shard carries; None if it is missing or incomplete."""
    try:
        with safe_open(shard, "pt") as file:
            return (file.metadata() or {}).get("digest")
    except (OSError, SafetensorError):
        return None


def check_disk(name: str, folder: Path, *, num_texts: int, num_tokens: int, token_bytes: int) -> None:
    """Print how much disk the states of so many texts take; raise ConfigError if less is free where `folder` will be.

    Shards of an earlier run count as free: those that belong to another training are overwritten.
    """
    need = num_tokens * token_bytes + num_texts * HEADER
    free = free_disk(folder) + sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    size = f"up to {need / 1e6:,.2f} MB of disk in {folder}, {token_bytes:,} bytes a token"
    if need > free:
        raise ConfigError(
            f"the target's states of {num_texts} answers take {size}, and {free / 1e6:,.2f} MB are free: "
            "give fewer rows=, another out=, or once=0, which computes them again at each step"
        )
    print(f"{name}: the target's states of {num_texts} answers take {size}; {free / 1e6:,.2f} MB are free", flush=True)


def free_disk(path: Path) -> int:
    """Return the bytes that are free on the disk of a path, which need not exist yet."""
    return shutil.disk_usage(next(parent for parent in (path, *path.absolute().parents) if parent.exists())).free
