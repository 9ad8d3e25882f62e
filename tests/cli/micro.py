"""A random pair of two tiny Llamas with a byte tokenizer, saved as any checkpoint: real files, real loading."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|end|>"


def save_pair(folder: Path) -> Path:
    """folder/target and folder/draft."""
    tokenizer = byte_tokenizer()
    for role, layers, seed in (("target", 2, 0), ("draft", 1, 1)):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
        LlamaForCausalLM(config).save_pretrained(folder / role)
        tokenizer.save_pretrained(folder / role)
    return folder


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and an end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def overridden(given: list[str], *words: str) -> list[str]:
    """A command line with options in the place of its own: one that is given twice is a warning."""
    keys = {word.partition("=")[0] for word in words}
    return [*(word for word in given if word.partition("=")[0] not in keys), *words]
