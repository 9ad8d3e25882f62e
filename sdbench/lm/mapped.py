"""Weights in files that are mapped into memory: they take no memory until they are read, and can give it back.

transformers maps a file of weights instead of copying it where the weights keep their dtype. Nothing here has an effect except on
Linux.
"""

import ctypes
import mmap
import os
import re
import sys
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from torch import Tensor

IS_LINUX = sys.platform == "linux"
SMAPS = Path("/proc/self/smaps")
ENTRY = re.compile(r"^(?=[0-9a-f]+-[0-9a-f]+ )", re.MULTILINE)
# An entry of a file: addresses, source, path. Of private mappings only, since nothing shows what was written to a shared one.
FILE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S{3}p (\S+ \S+ \d+) +(/.*)")
# A page that was written to is the process's own: it counts as anonymous, or is swapped out, or is a huge page.
UNCHANGED = tuple(re.compile(pattern, re.MULTILINE) for pattern in (r"^Anonymous: +0 kB", r"^Swap: +0 kB"))
HUGE = re.compile(r"Hugetlb: +[1-9]")


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that is mapped into memory, or a part of one. `source`: offset, device and inode, as the system shows them."""

    addresses: range
    source: str
    path: str

    @property
    def state(self) -> Hashable:
        """What changes if another file is mapped here, or if the file on disk is written to, which this memory would then show."""
        try:
            status = os.stat(self.path)
        except OSError:  # the file was deleted, or its name is shown in another way
            return self.source
        return self.source, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def unchanged_files() -> list[MappedFile]:
    """Return all files that are mapped into this process's memory and were not written to there."""
    return _find_unchanged(SMAPS) if IS_LINUX and _is_writing_reported() else []


def _find_unchanged(smaps: Path) -> list[MappedFile]:
    try:
        entries = ENTRY.split(smaps.read_text(errors="surrogateescape"))
    except OSError:  # the system does not show it
        return []
    return [
        MappedFile(range(int(head[1], 16), int(head[2], 16)), head[3], head[4])
        for entry in entries
        if (head := FILE.match(entry)) and all(line.search(entry) for line in UNCHANGED) and not HUGE.search(entry)
    ]


@cache
def _is_writing_reported() -> bool:
    """Return whether a file that was written to is not taken for an unchanged one, as it could be where Linux is emulated."""
    try:
        with TemporaryFile() as file:
            file.write(bytes(mmap.PAGESIZE))
            file.flush()
            with mmap.mmap(file.fileno(), mmap.PAGESIZE, access=mmap.ACCESS_COPY) as page:
                page[0] = 1
                byte = ctypes.c_char.from_buffer(page)
                address = ctypes.addressof(byte)
                del byte  # a mapping that is referred to cannot be closed
                return not any(address in unchanged.addresses for unchanged in _find_unchanged(SMAPS))
    except OSError:  # no folder for temporary files, or one that cannot be mapped
        return False


def file_of(weight: Tensor, files: Collection[MappedFile]) -> MappedFile | None:
    """Return which of these files the memory of a weight is in, None for others."""
    if not weight.is_contiguous():
        return None
    begin, end = weight.data_ptr(), weight.data_ptr() + weight.nbytes
    inside = (x for x in files if x.addresses.start <= begin and end <= x.addresses.stop)
    return next(inside, None)


def release(weight: Tensor, files: Collection[MappedFile]) -> None:
    """Give back the memory of a weight if it is in one of these files; whoever reads the weight next gets it from there.

    `files` are those of `unchanged_files`, and nothing was written to them since: it would be lost.
    """
    begin, end = weight.data_ptr(), weight.data_ptr() + weight.nbytes
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and file_of(weight, files) is not None:
        # The result is ignored: memory that the process has locked is kept.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
