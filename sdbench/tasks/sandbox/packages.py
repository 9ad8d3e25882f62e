"""Packages that programs may import beside the standard library: linked into a folder of their own, so that no other is seen."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

IMPORTABLE = ("numpy",)  # what answers to HumanEval and MBPP import most often


def link(home: str) -> dict[str, tuple[str, ...]]:
    """Package -> folders that must be readable for it: one of links, which is where imports look, and the real ones."""
    place = Path(home, "packages")
    place.mkdir()
    place.chmod(0o755)
    folders: dict[str, tuple[str, ...]] = {}
    for name in IMPORTABLE:
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        folder = Path(os.path.realpath(next(iter(spec.submodule_search_locations))))
        beside = folder.with_name(f"{name}.libs")  # where wheels keep the shared libraries that they bring along
        real = [path for path in (folder, beside) if path.is_dir()]
        for path in real:
            (place / path.name).symlink_to(path)
        folders[name] = (str(place), *map(str, real))
    return folders
