"""Weights in files that are mapped into memory: they take no memory until they are read, and can give it back.

transformers maps a file of weights instead of copying it where the weights keep their dtype. Nothing here has an effect except on
Linux.
"""

import ctypes
import mmap
import re
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from torch import Tensor

IS_LINUX = sys.platform == "linux"
SMAPS = Path("/proc/self/smaps")
ENTRY = re.compile(r"^(?=[0-9a-f]+-[0-9a-f]+ )", re.MULTILINE)
FILE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S{4} \S+ \S+ \d+ +/")  # an entry of a file, with its addresses
# A page that was written to is the process's own: it counts as anonymous, or is swapped out, or is a huge page.
UNCHANGED = tuple(re.compile(pattern, re.MULTILINE) for pattern in (r"^Anonymous: +0 kB", r"^Swap: +0 kB"))
HUGE = re.compile(r"Hugetlb: +[1-9]")


def unchanged_files() -> list[range]:
    """Return the addresses of all files that are mapped into this process's memory and were not written to there."""
    return _find_unchanged(SMAPS) if IS_LINUX and _is_writing_reported() else []


def _find_unchanged(smaps: Path) -> list[range]:
    try:
        entries = ENTRY.split(smaps.read_text(errors="surrogateescape"))
    except OSError:  # the system does not show it
        return []
    return [
        range(int(head[1], 16), int(head[2], 16))
        for entry in entries
        if (head := FILE.match(entry)) and all(line.search(entry) for line in UNCHANGED) and not HUGE.search(entry)
    ]


@cache
def _is_writing_reported() -> bool:
    """Return whether a file that was written to is not taken for an unchanged one, as it could be where Linux is emulated."""
    with TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE, access=mmap.ACCESS_COPY) as page:
            page[0] = 1
            byte = ctypes.c_char.from_buffer(page)
            address = ctypes.addressof(byte)
            del byte  # a mapping that is referred to cannot be closed
            return not any(address in span for span in _find_unchanged(SMAPS))


def is_in(weight: Tensor, files: Collection[range]) -> bool:
    """Return whether the memory of a weight is in one of these files."""
    begin, end = weight.data_ptr(), weight.data_ptr() + weight.nbytes
    return weight.is_contiguous() and any(file.start <= begin and end <= file.stop for file in files)


def release(weight: Tensor, files: Collection[range]) -> None:
    """Give back the memory of a weight if it is in one of these files; whoever reads the weight next gets it from there.

    `files` are those of `unchanged_files`, and nothing was written to them since: it would be lost.
    """
    begin, end = weight.data_ptr(), weight.data_ptr() + weight.nbytes
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if is_in(weight, files) and first < last:  # the result is ignored: memory that the process has locked is kept
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
