"""A pair in memory: its models, their tokenizer, what identifies the weights, and prompts as ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench import embedded
from sdbench.config import ConfigError, Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sdbench.types import Prompt


@dataclass(frozen=True)
class Pair:
    """`checkpoints`: role -> repository@commit or hash of weights; `numerics`: role_what -> what else moves a logit."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    checkpoints: Mapping[str, str]
    numerics: Mapping[str, Any]
    chat_options: Mapping[str, Any]

    @property
    def device(self) -> str:
        return str(self.target.device)

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer uses; the rest of the embedding matrix is padding."""
        head: Any = self.target.get_output_embeddings()
        return min(len(self.tokenizer), int(head.weight.shape[0]))

    def ids(self, prompt: Prompt) -> list[int]:
        """A prompt as the model reads it: text with the tokenizer's own beginning, turns through its chat template."""
        if prompt.text is not None:
            return list(self.tokenizer(prompt.text + prompt.prefix)["input_ids"])  # type: ignore[arg-type]
        turns = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
        options = {"tokenize": False, "add_generation_prompt": True, **self.chat_options}
        text = str(self.tokenizer.apply_chat_template(turns, **options)) + prompt.prefix
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]

    def text(self, ids: Sequence[int]) -> str:
        """Ids as text, end-of-text marks left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def limit(self) -> int:
        """The longest text that both models take."""
        models = [self.target, *([self.draft] if self.draft is not None else [])]
        sizes = [getattr(model.config.get_text_config(), "max_position_embeddings", None) for model in models]
        return min((size for size in sizes if size), default=10**9)


def place(model_id: str) -> str:
    """A hub id or a folder; `embedded:NAME/ROLE` is a folder of the package."""
    if not model_id.startswith("embedded:"):
        return model_id
    name, _, role = model_id.removeprefix("embedded:").partition("/")
    folder = Path(str(embedded.__file__)).parent / name / role
    if not folder.is_dir():
        raise ConfigError(f"the pair {name} is not in this copy of the package; train it with scripts/train_tiny.py")
    return str(folder)


def device_of(asked: str) -> str:
    """`auto` is the first accelerator there is; one that is not there is a mistake, not a reason to be slow."""
    import torch

    if asked == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if accelerator is None else accelerator.type
    kind = asked.partition(":")[0]
    backend = torch.get_device_module(kind) if kind in ("cuda", "mps", "xpu") else None
    if kind != "cpu" and (backend is None or not backend.is_available()):
        raise ConfigError(f"device={asked} is not available on this machine; use device=cpu or device=auto")
    return asked


def fingerprint(folder: Path) -> str:
    """A hash of weights and configuration in a folder."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def load(model: Model, *, device: str, dtype: str) -> Pair:
    """Both models in evaluation mode, on the device; what goes wrong is a sentence that says what to do."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = device_of(device)
    target_id = place(model.target)
    tokenizer = _from_hub(model.target, AutoTokenizer.from_pretrained, target_id, revision=model.target_revision)
    options = (model.attention, where, dtype)
    target = _model(model.target, model.target_revision, model.quantization, model.device_map, *options)
    draft = None
    if model.draft is not None:
        draft = _model(model.draft, model.draft_revision, model.draft_quantization, None, *options)
    models = {"target": target, "draft": draft}
    checkpoints = {
        role: _checkpoint(getattr(model, role), loaded) for role, loaded in models.items() if loaded is not None
    }
    quantization = {"target": model.quantization, "draft": model.draft_quantization}
    numerics = {
        f"{role}_{name}": value
        for role, loaded in models.items()
        if loaded is not None
        for name, value in {"dtype": str(loaded.dtype), "quantization": quantization[role]}.items()
    }
    numerics["target_attention"] = model.attention or "engine"
    return Pair(target, draft, tokenizer, checkpoints, numerics, model.chat_options)


def _model(
    model_id: str,
    revision: str | None,
    quantization: str | None,
    device_map: str | None,
    attention: str | None,
    device: str,
    dtype: str,
) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    kind = {"auto": torch.float32 if device == "cpu" else "auto"}.get(dtype) or getattr(torch, dtype)
    options: dict[str, Any] = {"dtype": kind, "revision": revision}
    if attention is not None:
        options["attn_implementation"] = attention
    if device_map is not None:
        options["device_map"] = device_map
    if quantization is not None:
        options["quantization_config"] = _quantization(quantization)
        options.setdefault("device_map", {"": device})
    loaded = _from_hub(model_id, AutoModelForCausalLM.from_pretrained, place(model_id), **options)
    return (loaded if "device_map" in options else loaded.to(device)).eval().requires_grad_(False)


def _quantization(name: str) -> Any:
    import torch
    import transformers

    if name == "bnb-int8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    if name == "bnb-nf4":
        return transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig  # type: ignore[import-not-found]

    return transformers.TorchAoConfig(
        {"torchao-int8": Int8WeightOnlyConfig, "torchao-int4": Int4WeightOnlyConfig}[name]()
    )


def _from_hub(model_id: str, load: Callable[..., Any], *words: Any, **options: Any) -> Any:
    try:
        return load(*words, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        text = str(error)
        if "gated" in text or "restricted" in text:
            url = f"https://huggingface.co/{model_id}"
            hint = f"accept its licence at {url} and set HF_TOKEN to a token of that account, or use model=llama-tiny"
            raise ConfigError(f"{model_id} is gated: {hint}") from None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise ConfigError(f"{model_id} cannot be loaded: {lines[0] if lines else type(error).__name__}") from None


def _checkpoint(model_id: str, loaded: PreTrainedModel) -> str:
    folder = Path(place(model_id))
    if folder.is_dir():
        return f"sha256:{fingerprint(folder)}"
    commit = getattr(loaded.config, "_commit_hash", None)
    return f"{model_id}@{commit}" if commit else model_id
