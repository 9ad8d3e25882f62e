"""What transformers' assisted generation needs; checked before weights are read and texts are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdbench.config import NATIVE, ConfigError

if TYPE_CHECKING:
    from sdbench.config import Run
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.rules import Parts


def refuse_assisted(run: Run, pair_info: PairInfo, parts: Parts) -> None:
    """Raise a ConfigError if `timing.assisted` cannot be timed, or if no drafter of the run is comparable with it."""
    if run.timing is None or not run.timing.assisted:
        return
    if run.engine.name != NATIVE.name or "draft" not in pair_info.configs:
        raise ConfigError(
            "timing.assisted=true times transformers' assisted generation in this process: it needs engine=native and a draft model"
        )
    if not any(drafter.needs_draft and not drafter.translates for drafter in parts.drafters):
        raise ConfigError(
            "timing.assisted=true is compared with lossless decoding by the same draft model: add drafter=model, or remove it"
        )
    target, draft = (int(pair_info.configs[role].get_text_config().vocab_size) for role in ("target", "draft"))
    if target != draft:
        raise ConfigError(
            "timing.assisted=true: transformers assists a target only with a draft that has as many token ids, and these have "
            f"{target} and {draft}: remove it"
        )
