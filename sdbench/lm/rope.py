"""The longest text that a model's configuration allows. No weights are read, and torch is not imported."""

from typing import Any


def longest_text(config: Any) -> int | None:
    """Return the longest text that a configuration allows. In some models a longer text changes what is computed for all rows of a
    call (the frequencies of LongRoPE and dynamic NTK, the scale of attention of Llama 4). The limit is then the longest length
    without such a change, since rows and chunks of a prompt must not affect each other.
    """
    limit: int | None = getattr(config, "max_position_embeddings", None)
    return min((length for length in (limit, *_limits(config).values()) if length), default=None)


def frequencies_depend_on_length(config: Any) -> bool:
    """Return whether the rotary frequencies of a whole call depend on its longest position, past the original length."""
    return any(
        f"'rope_type': '{kind}'" in str(getattr(config, "rope_parameters", None)) for kind in ("dynamic", "longrope")
    )


def why_limited(config: Any) -> str:
    """Return a reason to append to a message about `longest_text`, if that is less than the configuration's positions."""
    positions, longest = getattr(config, "max_position_embeddings", None), longest_text(config)
    reasons = [reason for reason, limit in _limits(config).items() if limit == longest != positions]
    return f": its configuration has {positions}, but longer texts change {reasons[0]}" if reasons else ""


def _limits(config: Any) -> dict[str, int | None]:
    """Return what longer texts would change -> the longest text that does not change it."""
    limits: dict[str, int | None] = {}
    if frequencies_depend_on_length(config):
        inside: int | None = (config.rope_parameters or {}).get("original_max_position_embeddings")
        beside: int | None = getattr(config, "original_max_position_embeddings", None)
        limits["its rotary frequencies (LongRoPE or dynamic NTK)"] = inside or beside
    if getattr(
        config, "attn_temperature_tuning", False
    ):  # transformers counts positions by its own caches, not by the engine's
        limits["the scale of its attention (attn_temperature_tuning)"] = (
            int(config.floor_scale) - 1
        )  # positions before the first step of the scale
    return limits
