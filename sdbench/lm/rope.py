"""The longest possible text by a model's configuration: no weights are read, and torch is not imported."""

from typing import Any


def longest_text(config: Any) -> int | None:
    """Return the longest text of a configuration. If longer calls change the frequencies of all their rows (LongRoPE, dynamic
    NTK) it is the length from which they do, since rows and chunks of a prompt must not affect each other.
    """
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if not frequencies_depend_on_length(config):
        return limit
    inside: int | None = (config.rope_parameters or {}).get("original_max_position_embeddings")
    beside: int | None = getattr(config, "original_max_position_embeddings", None)
    return min((length for length in (inside or beside, limit) if length), default=None)


def frequencies_depend_on_length(config: Any) -> bool:
    """Return whether the rotary frequencies of a whole call depend on its longest position, from the original length on."""
    return any(
        f"'rope_type': '{kind}'" in str(getattr(config, "rope_parameters", None)) for kind in ("dynamic", "longrope")
    )


def why_limited(config: Any) -> str:
    """Return the end of a sentence about `longest_text`, if that is less than the configuration's positions."""
    positions = getattr(config, "max_position_embeddings", None)
    if not frequencies_depend_on_length(config) or longest_text(config) == positions:
        return ""
    return (
        f": its configuration has {positions}, but longer texts change its rotary frequencies (LongRoPE or dynamic NTK)"
    )
