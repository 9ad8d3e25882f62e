"""Which models the engine cannot serve, as far as their configuration and class tell."""

from typing import Any

from sdbench.config import ConfigError

OWN_ATTENTION = {  # model types with more than masked attention over keys and values
    "deepseek_v32": "an indexer that chooses which keys are read",
    "glm_moe_dsa": "an indexer that chooses which keys are read",
}


def refuse_unservable(config: Any, model_class: Any, role: str) -> None:
    """Raise a ConfigError for recurrent states, which no shorter length rolls back, and for attention that cannot be replaced.

    `model_class`: None if it is not known.
    """
    text = config.get_text_config()
    kinds = {kind for kind in getattr(text, "layer_types", None) or [] if "attention" not in kind or "linear" in kind}
    why = None
    if getattr(config, "is_encoder_decoder", False):
        why = "is an encoder-decoder, which is not supported"
    elif text.model_type in OWN_ATTENTION:
        why = f"has {OWN_ATTENTION[text.model_type]}, which is not supported"
    elif kinds or getattr(model_class, "_is_stateful", False):
        layers = f"layers of type {', '.join(sorted(kinds))}" if kinds else "recurrent state"
        why = f"has {layers}, which cannot be rolled back"
    elif model_class is not None and not model_class._can_set_attn_implementation():
        why = f"({model_class.__name__}) does not take an attention function; the engine needs one"
    if why is not None:
        raise ConfigError(f"{role} model of type {text.model_type!r} {why}")


def class_of(config: Any) -> Any:
    """Return the class of models that transformers loads for a configuration; None if it has none."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
