"""A frozen text as token ids, with an index of the occurrences of each context. It is built once, cached and memory-mapped.

`order` holds the positions of the text, sorted by the `depth` tokens before them in reverse: a truncated suffix array of the
reversed text. Tokens and order take eight bytes per token. A position is the number of tokens before it.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import constants
from numpy.typing import NDArray

from sdbench.draft.text_index import count_common
from sdbench.files import digest_of, digest_of_data, digest_of_path, replace_on_success
from sdbench.lm.load import tokenizer_key

CACHE = Path(constants.HF_HOME, "sdbench", "corpora")
FORMAT = 1
BREAK = -1  # separates two texts: no context crosses it
PIECE = 1 << 16  # characters of a text that are tokenised together, extended to the end of a line
BATCH = 256  # pieces in a call of the tokenizer
MOST_TOKENS = 1 << 31  # a key has 31 bits for a rank
LEVELS = 2  # number of sorts; each after the first doubles the tokens that are compared


@dataclass(frozen=True, slots=True)
class IndexedCorpus:
    """Token ids [N], BREAK between texts, and positions sorted by the `depth` tokens before them."""

    tokens: NDArray[np.int32]
    order: NDArray[np.int32]
    depth: int

    @classmethod
    def of_ids(cls, tokens: NDArray[np.int32]) -> "IndexedCorpus":
        """Sort the positions by as many tokens as fit into a key, then by pairs of ranks; equal contexts by position."""
        if len(tokens) >= MOST_TOKENS:
            raise ValueError(f"corpus has {len(tokens):,} tokens, and at most {MOST_TOKENS:,} can be indexed")
        bits = max(1, int(tokens.max(initial=0) + 2).bit_length())
        width = 62 // bits
        keys, ids = torch.zeros(len(tokens), dtype=torch.int64), torch.from_numpy(tokens)
        for back in range(1, width + 1):
            keys[back:] |= (ids[:-back].long() + 2) << (bits * (width - back))
        keys, order = torch.sort(keys, stable=True)  # a radix sort, three times as fast as numpy's
        for _ in range(LEVELS - 1):
            ranks = torch.empty_like(order)
            ranks[order] = torch.cat((keys[:1] * 0, (keys[1:] != keys[:-1]).cumsum(0)))
            keys = ranks << 31
            keys[width:] |= ranks[:-width] + 1
            width *= 2
            keys, order = torch.sort(keys, stable=True)
        return cls(tokens, order.int().numpy(), width)

    @classmethod
    def open(cls, path: Path, tokenizer: Any, known_key: str | None = None) -> "IndexedCorpus":
        """Return the corpus of a text file or a records folder, from the cache if it was read before.

        `known_key`: the tokenizer's key if it is known; computing it takes a second for a large vocabulary.
        """
        key = digest_of(digest_of_corpus(path), known_key or tokenizer_key(tokenizer), str((FORMAT, PIECE, LEVELS)))
        folder = CACHE / key
        if not folder.is_dir():
            built = cls.of_ids(ids_of(texts_of(path), tokenizer))
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                with replace_on_success(folder) as part:
                    part.mkdir()
                    np.save(part / "tokens.npy", built.tokens)
                    np.save(part / f"order-{built.depth}.npy", built.order)
            except OSError:
                if not folder.is_dir():  # if it exists, another process built it first
                    raise
        order = next(folder.glob("order-*.npy"))
        # Plain arrays: a slice of a memmap takes ten times as long.
        maps = (np.load(file, mmap_mode="r") for file in (folder / "tokens.npy", order))
        tokens, positions = (mapped.view(np.ndarray) for mapped in maps)
        return cls(tokens, positions, int(order.stem.removeprefix("order-")))

    def occurrences(self, ending: Sequence[int], shortest: int, most: int) -> tuple[list[int], int]:
        """Return at most `most` positions after the longest ending of a text that occurs, and how many tokens agree.

        If more positions agree as long, every n-th of them is taken.
        """
        wanted = list(ending)[::-1]
        first = wanted[: self.depth]
        where = self._search(first, 0, len(self.order))
        agreed = max((self._agreement(index, first) for index in (where - 1, where)), default=0)
        if agreed < min(shortest, self.depth):
            return [], 0
        low, high = self._around(first[:agreed], where)
        positions = self.order[low:high]
        # Positions with equal contexts are in the order of the text.
        for token in wanted[self.depth :] if agreed == self.depth else []:
            reaching = positions[np.searchsorted(positions, agreed, "right") :]
            agreeing = reaching[self.tokens[reaching - (agreed + 1)] == token]
            if not len(agreeing):
                break
            positions, agreed = agreeing, agreed + 1
        if agreed < shortest:
            return [], 0
        return positions[:: -(-len(positions) // most)].tolist(), agreed

    def _before(self, position: int, count: int) -> list[int]:
        """Return the tokens before a position, in reverse."""
        return self.tokens[max(0, position - count) : position].tolist()[::-1]

    def _agreement(self, index: int, wanted: list[int]) -> int:
        return count_common(self._context(index, len(wanted)), wanted) if 0 <= index < len(self.order) else 0

    def _around(self, wanted: list[int], where: int) -> tuple[int, int]:
        """Return the range of indices whose context is `wanted`, by doubling steps from `where`, which is in or next to it."""
        back, ahead = 1, 1
        while where >= back and self._context(where - back, len(wanted)) == wanted:
            back *= 2
        while where + ahead <= len(self.order) and self._context(where + ahead - 1, len(wanted)) == wanted:
            ahead *= 2
        low = self._search(wanted, max(0, where - back + 1), where - back // 2)
        high = self._search(wanted, where + ahead // 2, min(len(self.order), where + ahead - 1), is_upper=True)
        return low, high

    def _context(self, index: int, count: int) -> list[int]:
        return self._before(int(self.order[index]), count)

    def _search(self, wanted: list[int], low: int, high: int, *, is_upper: bool = False) -> int:
        """Return the first index of a range whose context is not below `wanted`; with is_upper, the first that is above it."""
        while low < high:
            middle = (low + high) // 2
            before = self._context(middle, len(wanted))
            if before < wanted or (is_upper and before == wanted):
                low = middle + 1
            else:
                high = middle
        return low


def digest_of_corpus(path: Path, *, without: Collection[str] = ()) -> str:
    """Return a digest of a corpus: of a records folder its distinct texts alone, since runs and reports write other files there;
    of any other folder, or of a file, `digest_of_path`.
    """
    if (path / "records").is_dir():
        return digest_of_data(_distinct_texts(path))
    return digest_of_path(path, without=without)


def _distinct_texts(folder: Path) -> list[str]:
    from sdbench.records import read

    return sorted(set(read(folder).generations["text"]))


def texts_of(path: Path) -> Iterator[str]:
    """Yield a file's text in pieces that end with a line, or each distinct text of a records folder's cells."""
    if path.is_dir():
        yield from _distinct_texts(path)
        return
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        while piece := file.read(PIECE):
            yield piece + file.readline()


def ids_of(texts: Iterator[str], tokenizer: Any) -> NDArray[np.int32]:
    """Return the ids of texts, with a BREAK after each."""
    parts: list[NDArray[np.int32]] = []
    batch: list[str] = []
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:  # each call of the tokenizer changes these
        fast.no_truncation()
        fast.no_padding()

    def encode() -> None:
        if fast is None:
            rows = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        else:  # without token offsets, which take as long as the rest
            rows = [encoding.ids for encoding in fast.encode_batch_fast(batch, add_special_tokens=False)]
        parts.extend(np.array([*row, BREAK], dtype=np.int32) for row in rows)
        batch.clear()

    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            encode()
    if batch:
        encode()
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


def refuse_corpus(corpus: object, tokenizer: Any = None, known_key: str | None = None) -> Path:
    """Return the path of a corpus. ValueError if it has no texts, or if they were recorded with another tokenizer."""
    if not isinstance(corpus, str | Path) or not str(corpus):
        raise ValueError(f"corpus must name a text file or a records folder, got {corpus}: give drafter.corpus=PATH")
    path = Path(corpus)
    if not path.exists():
        raise ValueError(f"corpus={path} does not exist: give a text file or a records folder")
    if path.is_file():
        if not any(map(str.strip, texts_of(path))):
            raise ValueError(f"corpus={path} is empty: give a text file or a records folder with texts")
        return path
    from sdbench.records import SchemaError, read

    try:
        results = read(path)
        if not any(map(str.strip, results.generations["text"])):
            raise ValueError
    except (ValueError, SchemaError):
        raise ValueError(
            f"corpus={path} is a folder without recorded texts: give a text file or a records folder"
        ) from None
    if tokenizer is not None:
        keys = {((content or {}).get("shown") or {}).get("tokenizer") for content in results.cells["content"]}
        if keys != {known_key or tokenizer_key(tokenizer)}:
            raise ValueError(
                f"corpus={path} holds texts of another tokenizer: give the records of a pair with this one"
            )
    return path
