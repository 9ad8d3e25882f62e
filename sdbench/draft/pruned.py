"""The target without some consecutive layers as the draft: without those that change their input least."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from warnings import warn

import torch
from huggingface_hub import constants

from sdbench.draft.base import is_whole, num_layers
from sdbench.draft.model import ModelDrafter
from sdbench.files import digest_of, digest_of_data, write_whole
from sdbench.lm.fingerprint import sample_of
from sdbench.lm.known import KnownPrefixes
from sdbench.lm.model import LM
from sdbench.lm.pruned import PrunedLM, angular_distances, sample_texts
from sdbench.types import DraftSetup, Limits

CACHE = Path(constants.HF_HOME, "sdbench", "pruned")
METHOD = "1"  # increase it if a change of the code gives other distances
NO_LOGIT = ("_name_or_path", "transformers_version", "architectures")  # configuration keys that change no logit


class PrunedDrafter(ModelDrafter):
    """Depth pruning (Gromov et al. 2024, arXiv:2403.17887): of all runs of consecutive layers of the required length, the one
    with the smallest angular distance between its input and output is left out. Nothing is trained.

    It shares the target's weights, but not its keys and values, because layers after the gap have other states.
    """

    version: ClassVar[str] = "1"
    limits: ClassVar[Limits] = Limits()
    needs: ClassVar[frozenset[str]] = frozenset()
    draws_draft_law: ClassVar[bool] = False  # it does not use the pair's draft model
    facts: Mapping[str, Any] = {}  # for the records

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        setup: DraftSetup,
        keep_layers: int | None = None,
        calibration: str | None = None,
        calibration_texts: int = 16,
        calibration_tokens: int = 32,
    ) -> "PrunedDrafter":
        target: LM = setup.target
        cls.check(
            replace(setup, target_config=target.config), keep_layers, calibration, calibration_texts, calibration_tokens
        )
        target.products.renew()  # the target has not been called yet since its weights may have changed
        count, texts = len(target.listed_layers()), None
        if calibration is not None:
            texts = read_texts(calibration, setup.tokenizer, calibration_texts, calibration_tokens)
        num_dropped = count - kept_of(count, keep_layers)
        content = METHOD, num_dropped, texts or (calibration_texts, calibration_tokens), identity_of(target)
        key = digest_of_data(content)
        distances = read_distances(key)
        if distances is None:
            ids = sample_texts(target, calibration_texts, calibration_tokens) if texts is None else texts
            distances = angular_distances(target, [torch.as_tensor(x, device=target.device) for x in ids], num_dropped)
            write_distances(key, distances)
        start = min(range(len(distances)), key=distances.__getitem__)
        if key not in target.pruned:  # only one is kept, since weights may have changed
            others = {name: lm for name, lm in target.pruned.items() if not isinstance(lm, PrunedLM)}
            target.pruned = {**others, key: PrunedLM(target, range(start, start + num_dropped))}
        model = target.pruned[key]
        model.patience, model.known = target.patience, target.known and (model.known or KnownPrefixes())
        drafter = cls(model, setup.warp)
        drafter.facts = {"dropped_layers": list(range(start, start + num_dropped)), "angular_distances": distances}
        return drafter

    @classmethod
    def cache_share(cls, config: Any, keep_layers: int | None = None, **options: Any) -> float:
        return kept_of(config.num_hidden_layers, keep_layers) / config.num_hidden_layers

    @classmethod
    def check(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        setup: DraftSetup,
        keep_layers: int | None = None,
        calibration: str | None = None,
        calibration_texts: int = 16,
        calibration_tokens: int = 32,
    ) -> None:
        for name, value in {"calibration_texts": calibration_texts, "calibration_tokens": calibration_tokens}.items():
            if not is_whole(value) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value}")
        if setup.target_config is not None:
            kept_of(setup.target_config.num_hidden_layers, keep_layers)
            if calibration is not None:
                read_texts(calibration, setup.tokenizer, calibration_texts, calibration_tokens)


def kept_of(count: int, keep_layers: int | None) -> int:
    """Return how many of `count` layers are kept; None: three quarters of them, at least one."""
    return num_layers("keep_layers", count, keep_layers, count * 3 // 4)


def read_texts(path: str, tokenizer: Any, count: int, length: int) -> list[list[int]]:
    """Return the first ids, at most `length`, of the first `count` lines of a file that are not blank."""
    if tokenizer is None:
        raise ValueError(f"calibration={path} is a text file, and there is no tokenizer to read it with")
    try:
        lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"calibration={path} cannot be read as text: {error}") from None
    texts = [list(tokenizer(line)["input_ids"])[:length] for line in lines[:count]]
    if not any(texts):
        raise ValueError(f"calibration={path} is empty: give a file with one text per line")
    return [text for text in texts if text]


def identity_of(lm: LM) -> str:
    """Return a digest of a model's configuration and of sampled values of each tensor, the same in every process."""
    config = {name: value for name, value in lm.config.to_dict().items() if name not in NO_LOGIT}
    return digest_of(digest_of_data(config), *sample_of([*lm.model.parameters(), *lm.model.buffers()]))


def read_distances(key: str) -> list[float] | None:
    """Return angular distances from the cache; None if they are missing or incomplete."""
    try:
        return json.loads((CACHE / f"{key}.json").read_text())
    except (FileNotFoundError, ValueError):
        return None


def write_distances(key: str, distances: Sequence[float]) -> None:
    """Store angular distances for later runs."""
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        write_whole(CACHE / f"{key}.json", json.dumps(distances))
    except OSError as error:  # without the file, later runs only take longer
        warn(
            f"the distances of drafter=pruned cannot be kept in {CACHE} ({error}): the next run measures them again",
            stacklevel=2,
        )
