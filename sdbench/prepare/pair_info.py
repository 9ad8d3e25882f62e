"""A pair without its weights: its tokenizer, configurations and checkpoints. Prompts and the keys of cells need no more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sdbench.hub import explain
from sdbench.prepare.distilled import distillation_of

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sdbench.lm.load import Checkpoint
    from sdbench.prepare.pair import PairMetadata
    from sdbench.types import Prompt


@dataclass(frozen=True)
class PairInfo:
    """`configs`: role -> the text part of the model's configuration."""

    metadata: PairMetadata
    configs: Mapping[str, PretrainedConfig]
    is_hashed: bool = True  # False: `checkpoints` says of large local files only where they are

    @classmethod
    def read(cls, metadata: PairMetadata, *, may_hash: bool = True) -> PairInfo:
        """Read the configurations; what is wrong with one is a sentence. `may_hash`: large files may be read for their hash."""
        configs = {role: text_config(checkpoint) for role, checkpoint in metadata.checkpoints.items()}
        is_hashed = may_hash or all(checkpoint.is_hashed() for checkpoint in metadata.checkpoints.values())
        return cls(metadata, configs, is_hashed)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's, read when it is first needed."""
        from sdbench.lm.load import load_tokenizer

        return load_tokenizer(self.metadata.checkpoints["target"])

    @cached_property
    def draft_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The draft's, which a drafter that translates reads; None without a draft."""
        from sdbench.lm.load import load_tokenizer

        draft = self.metadata.checkpoints.get("draft")
        return None if draft is None else load_tokenizer(draft)

    @cached_property
    def checkpoints(self) -> dict[str, str]:
        """Role -> repository@commit or a hash of the weights."""
        checkpoints = self.metadata.checkpoints.items()
        return {role: checkpoint.identity() if self.is_hashed else checkpoint.id for role, checkpoint in checkpoints}

    @cached_property
    def distilled(self) -> dict[str, Any] | None:
        """How the draft was distilled, where it was."""
        checkpoint = self.metadata.checkpoints.get("draft")
        return None if checkpoint is None else distillation_of(checkpoint.folder)

    @cached_property
    def stop_ids(self) -> dict[str, tuple[int, ...]]:
        """Role -> end-of-text ids of the generation_config, or where it names none of the configuration: as `lm.LM` has them."""
        return {
            role: _stop_ids(self.metadata.checkpoints[role].folder, config) for role, config in self.configs.items()
        }

    @property
    def numerics(self) -> dict[str, Any]:
        """role_what -> what else moves a logit."""
        numerics: dict[str, Any] = {"target_attention": "engine"}  # model.attention is plain generate's
        for role, checkpoint in self.metadata.checkpoints.items():
            own_dtype = getattr(self.configs[role], "dtype", None) or checkpoint.dtype
            numerics[f"{role}_dtype"] = f"torch.{str(self.metadata.dtype or own_dtype).removeprefix('torch.')}"
            numerics[f"{role}_quantization"] = self.metadata.quantization(role)
        return numerics

    @property
    def limit(self) -> int:
        """The longest text that all models take."""
        from sdbench.lm.rope import longest_text

        sizes = [longest_text(config) for config in self.configs.values()]
        return min((size for size in sizes if size), default=10**9)

    @property
    def why_limited(self) -> str:
        """The end of a sentence on `limit`, where it is less than the positions of the model that sets it."""
        from sdbench.lm.rope import longest_text, why_limited

        return next(filter(None, (why_limited(c) for c in self.configs.values() if longest_text(c) == self.limit)), "")

    def ids(self, prompt: Prompt) -> list[int]:
        """A prompt as the model reads it: text with the tokenizer's own beginning, turns through its chat template."""
        if prompt.text is not None:
            return list(self.tokenizer(prompt.text + prompt.prefix)["input_ids"])  # type: ignore[arg-type]
        turns = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
        options = {"tokenize": False, "add_generation_prompt": True, **self.metadata.model.chat_options}
        text = str(self.tokenizer.apply_chat_template(turns, **options)) + prompt.prefix
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]

    def ids_of(self, text: str) -> list[int]:
        """A text as ids, without special tokens around it."""
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

    @cached_property
    def tokenizer_key(self) -> str:
        """A hash of all that decides which ids a text becomes: pieces, merges, normaliser, special tokens."""
        from sdbench.lm.load import tokenizer_key

        return tokenizer_key(self.tokenizer)

    @property
    def template(self) -> str | None:
        """The chat template's own text; None where there is none."""
        template = self.tokenizer.chat_template
        return None if template is None else template if isinstance(template, str) else json.dumps(template)


def _stop_ids(folder: Path, config: PretrainedConfig) -> tuple[int, ...]:
    from transformers import GenerationConfig

    ids = None
    if (folder / "generation_config.json").is_file():
        ids = GenerationConfig.from_pretrained(folder).eos_token_id
    ids = ids if ids is not None else config.eos_token_id
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)


def text_config(checkpoint: Checkpoint) -> PretrainedConfig:
    """The configuration of a model's text part."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(checkpoint.folder).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise explain(error, checkpoint.id) from error
