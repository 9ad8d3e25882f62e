"""A pair without its weights: tokenizers, configurations and checkpoints. Prompts and the keys of cells need only these."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
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
    from sdbench.prepare.rules import Parts
    from sdbench.types import Prompt

BLANKS = ("\u2581", "\u0120", " ")  # first characters of vocabulary pieces whose text begins with a blank


@dataclass(frozen=True)
class PairInfo:
    """What is known of a pair without its weights. `configs`: role -> the text part of the model's configuration."""

    metadata: PairMetadata
    configs: Mapping[str, PretrainedConfig]
    is_hashed: bool = True  # False: `checkpoints` names large local files by their path only

    @classmethod
    def read(cls, metadata: PairMetadata, *, may_hash: bool = True) -> PairInfo:
        """Read the configurations; errors explain what to do. `may_hash`: whether large files may be read to hash them."""
        configs = {role: text_config(checkpoint) for role, checkpoint in metadata.checkpoints.items()}
        is_hashed = may_hash or all(checkpoint.is_hashed() for checkpoint in metadata.checkpoints.values())
        return cls(metadata, configs, is_hashed)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's tokenizer, read at first use."""
        from sdbench.lm.load import load_tokenizer

        return load_tokenizer(self.metadata.checkpoints["target"])

    @cached_property
    def draft_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The draft's tokenizer, for a drafter that translates; None without a draft."""
        from sdbench.lm.load import load_tokenizer

        draft = self.metadata.checkpoints.get("draft")
        return None if draft is None else load_tokenizer(draft)

    @cached_property
    def checkpoints(self) -> dict[str, str]:
        """Role -> repository@commit or a hash of the weights; only the id of a checkpoint unless `is_hashed`."""
        checkpoints = self.metadata.checkpoints.items()
        return {role: checkpoint.identity() if self.is_hashed else checkpoint.id for role, checkpoint in checkpoints}

    @cached_property
    def distilled(self) -> dict[str, Any] | None:
        """How the draft was distilled, None if it was not."""
        checkpoint = self.metadata.checkpoints.get("draft")
        return None if checkpoint is None else distillation_of(checkpoint.folder)

    @cached_property
    def stop_ids(self) -> dict[str, tuple[int, ...]]:
        """Role -> end-of-text ids, from the generation_config, otherwise from the configuration, as in `lm.LM`."""
        return {
            role: _stop_ids(self.metadata.checkpoints[role].folder, config) for role, config in self.configs.items()
        }

    @property
    def numerics(self) -> dict[str, Any]:
        """role_option -> value, for everything besides the weights that changes logits."""
        numerics: dict[str, Any] = {"target_attention": "engine"}  # model.attention applies to plain generate only
        for role, checkpoint in self.metadata.checkpoints.items():
            own_dtype = getattr(self.configs[role], "dtype", None) or checkpoint.dtype
            numerics[f"{role}_dtype"] = f"torch.{str(self.metadata.dtype or own_dtype).removeprefix('torch.')}"
            numerics[f"{role}_quantization"] = self.metadata.quantization(role)
            if self.metadata.model.packed:  # only then, so that cells without it keep their keys
                numerics[f"{role}_packed"] = True
            if checkpoint.gguf is not None and checkpoint.gguf.settings:
                numerics[f"{role}_settings"] = checkpoint.gguf.settings
        return numerics

    def limit(self, parts: Parts) -> int:
        """Return the length of the longest text that all models accept; a draft with another vocabulary does not count."""
        return min(map(self.limit_of, self._readers(parts)))

    def limit_of(self, role: str) -> int:
        """Return the length of the longest text that a model accepts."""
        from sdbench.lm.rope import longest_text

        return longest_text(self.configs[role]) or 10**9

    def why_limited(self, parts: Parts) -> str:
        """Return a reason to append to a message about `limit`, if it is less than the positions of the model that sets it."""
        from sdbench.lm.rope import why_limited

        roles = [role for role in self._readers(parts) if self.limit_of(role) == self.limit(parts)]
        return next(filter(None, (why_limited(self.configs[role]) for role in roles)), "")

    def _readers(self, parts: Parts) -> list[str]:
        return [role for role in self.configs if role == "target" or parts.has_one_vocabulary]

    def num_ids(self, num_rows: int) -> int:
        """Return how many ids a model whose head has this many rows may emit; rows above the tokenizer's highest id are padding."""
        highest = max(self.tokenizer.get_vocab().values(), default=len(self.tokenizer) - 1)  # ids may have gaps
        return min(highest + 1, num_rows)

    def ids(self, prompt: Prompt) -> list[int]:
        """Tokenize a prompt as the model reads it: text with the tokenizer's special tokens, turns through the chat template,
        which leaves a last turn of the assistant open.
        """
        if prompt.text is not None:
            return list(self.tokenizer(prompt.text + prompt.prefix)["input_ids"])  # type: ignore[arg-type]
        turns = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
        is_begun = turns[-1]["role"] == "assistant"
        options: dict[str, Any] = {
            "tokenize": False,
            "add_generation_prompt": not is_begun,
            "continue_final_message": is_begun,
        }
        options |= self.metadata.model.chat_options
        text = str(self.tokenizer.apply_chat_template(turns, **options)) + prompt.prefix
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]

    def ids_of(self, text: str) -> list[int]:
        """Tokenize a text without adding special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]

    def ends(self, role: str, stops: Collection[str] = ()) -> tuple[int, ...]:
        """Return the ids that end a text of this model: its end-of-text ids, and the special tokens among the stop strings, which
        no decoded text contains.
        """
        ids, known = self.stop_ids[role], self.tokenizer.added_tokens_decoder
        return (*ids, *(i for i, token in known.items() if token.special and token.content in stops and i not in ids))

    def text(self, ids: Sequence[int]) -> str:
        """Decode ids as the continuation of a text, without end-of-text tokens."""
        return self.text_alone([*self._anchor, *ids]).removeprefix(self._anchor_text)

    def text_alone(self, ids: Sequence[int]) -> str:
        """Decode ids as a separate text, without end-of-text tokens and, if `drops_blank`, without its first blank."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def drops_blank(self) -> bool:
        """Return whether the tokenizer decodes a text without its first blank, as SentencePiece tokenizers of Llama 2 do."""
        return bool(self._anchor)

    @cached_property
    def _anchor(self) -> list[int]:
        """An id to decode before a text so that it keeps its first blank; empty if the tokenizer keeps the blank anyway."""
        pieces = self.tokenizer.get_vocab().items()
        blank = min((index for piece, index in pieces if piece.startswith(BLANKS)), default=None)
        if blank is None or self.text_alone([blank, blank]) == 2 * self.text_alone([blank]):
            return []
        return [blank]

    @cached_property
    def _anchor_text(self) -> str:
        return self.text_alone(self._anchor)

    def prompt(self, ids: Sequence[int]) -> str:
        """Decode ids, including the tokens of the chat template."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_texts(self) -> list[str]:
        """Decode each id as part of a text: after another token, because a leading space could be lost otherwise."""
        before = list(self.tokenizer("a", add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        start = str(self.tokenizer.decode(before, **options))
        rows = self.tokenizer.batch_decode([[*before, index] for index in range(len(self.tokenizer))], **options)
        return [str(row).removeprefix(start) for row in rows]

    @cached_property
    def tokenizer_key(self) -> str:
        """A hash of everything that decides how a text is tokenized: pieces, merges, normaliser, special tokens."""
        from sdbench.lm.load import tokenizer_key

        return tokenizer_key(self.tokenizer)

    @property
    def template(self) -> str | None:
        """The text of the chat template, None if there is none."""
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
    """Return the configuration of a model's text part."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(checkpoint.folder).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise explain(error, checkpoint.id) from error
