"""A pair in memory: its models, their tokenizer, what identifies the weights, and prompts as ids."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench import embedded
from sdbench.config import ConfigError, Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sdbench.lm.load import Checkpoint
    from sdbench.types import Prompt

NARROW = 512  # a hidden size


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

    def prompt(self, ids: Sequence[int]) -> str:
        """Ids as text, the chat template's marks shown."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_texts(self) -> list[str]:
        """The text of each id as it stands inside a text: behind another token, or its leading space would be lost."""
        before = list(self.tokenizer("a", add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        start = str(self.tokenizer.decode(before, **options))
        rows = self.tokenizer.batch_decode([[*before, index] for index in range(len(self.tokenizer))], **options)
        return [str(row).removeprefix(start) for row in rows]

    def tokenizer_key(self) -> str:
        """A hash of the tokenizer's pieces and their ids."""
        pieces = json.dumps(sorted(self.tokenizer.get_vocab().items()))
        return hashlib.sha256(pieces.encode()).hexdigest()

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
    if asked == "cpu":
        return asked
    import torch

    if asked == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if accelerator is None else accelerator.type
    backend = getattr(torch, asked.partition(":")[0], None)  # torch.hpu is there where its plug-in is
    if backend is None or not backend.is_available():
        raise ConfigError(f"device={asked} is not available on this machine; use device=cpu or device=auto")
    return asked


@dataclass(frozen=True)
class Found:
    """A pair from its metadata alone: role -> checkpoint, and how it is to be loaded."""

    model: Model
    checkpoints: Mapping[str, Checkpoint]
    device: str
    dtype: str | None  # None: the checkpoint's own

    def quantization(self, role: str) -> str | None:
        return self.model.quantization if role == "target" else self.model.draft_quantization


def find(model: Model, *, device: str, dtype: str) -> Found:
    """A gate, a slip, a missing package or device, or too little memory says so here: before weights are read, and where it
    can be, before anything heavy is imported.
    """
    from sdbench.lm import load as lm

    for quantization in (model.quantization, model.draft_quantization):
        lm.require_packages(quantization, model.device_map)
    checkpoints = {"target": lm.find(model.target, place(model.target), revision=model.target_revision)}
    if model.draft is not None:
        checkpoints["draft"] = lm.find(model.draft, place(model.draft), revision=model.draft_revision)
    where = device_of(device)
    kind = dtype if dtype != "auto" else "float32" if where == "cpu" else None
    found = Found(model, checkpoints, where, kind)
    wanted = [(checkpoint, kind, found.quantization(role)) for role, checkpoint in checkpoints.items()]
    lm.refuse_what_does_not_fit(wanted, where, is_spread=model.device_map is not None)
    return found


def load(found: Found) -> Pair:
    """Both models in evaluation mode, on the device; what goes wrong is a sentence that says what to do."""
    from transformers.utils import logging

    from sdbench.lm import load as lm

    logging.disable_progress_bar()
    model, models = found.model, {}
    for role, checkpoint in found.checkpoints.items():
        lm.download(checkpoint)
        models[role] = lm.load_model(
            checkpoint,
            device=found.device,
            dtype=found.dtype,
            attention=model.attention,
            device_map=model.device_map if role == "target" else None,
            quantization=found.quantization(role),
        )
    numerics = {
        f"{role}_{name}": value
        for role, loaded in models.items()
        for name, value in {"dtype": str(loaded.dtype), "quantization": found.quantization(role)}.items()
    }
    numerics["target_attention"] = "engine"  # model.attention is plain generate's
    set_threads(list(models.values()))
    checkpoints = {role: checkpoint.identity() for role, checkpoint in found.checkpoints.items()}
    tokenizer = lm.load_tokenizer(found.checkpoints["target"])
    return Pair(models["target"], models.get("draft"), tokenizer, checkpoints, numerics, model.chat_options)


def set_threads(models: Sequence[PreTrainedModel]) -> None:
    """On a CPU one thread multiplies narrow matrices faster than several that wait for each other; OMP_NUM_THREADS wins."""
    import torch

    widest = max(model.config.get_text_config().hidden_size for model in models)
    is_narrow = widest < NARROW and all(model.device.type == "cpu" for model in models)
    usual = usual_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1 if is_narrow else usual)


@cache
def usual_threads() -> int:
    """What torch uses when nobody has said anything yet."""
    import torch

    return torch.get_num_threads()
