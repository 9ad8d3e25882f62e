"""GGUF files as llama.cpp's converter writes them, from small models of transformers."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "starcoder2": "starcoder2",
}
FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_K": gguf.LlamaFileType.MOSTLY_Q4_K_M,
}


def tiny(family: str, *, hidden: int = 64, layers: int = 6, vocab: int = 1024, **options: Any) -> Any:
    """A random model; gemma3 has its usual five windows and one full layer. `options`: more of its configuration."""
    from transformers import Gemma2Config, Gemma3TextConfig, LlamaConfig, Qwen2Config, Starcoder2Config
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    torch.manual_seed(0)
    kinds: dict[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "gemma3": Gemma3TextConfig}
    kinds |= {"gemma2": Gemma2Config, "starcoder2": Starcoder2Config}
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers, "vocab_size": vocab}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    windows = {"head_dim": hidden // 4, "sliding_window": 8}
    extra: dict[str, Any] = {  # no file holds the scalar
        "gemma2": {**windows, "query_pre_attn_scalar": hidden // 4 if layers == 46 else 256},
        "gemma3": {**windows, "query_pre_attn_scalar": 256},
        "starcoder2": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    }
    config = kinds[family](**sizes, **heads, **extra.get(family, {}), **options, initializer_range=0.2)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # all the same otherwise
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def write(
    path: Path,
    model: Any,
    *,
    kind: str = "F16",
    tokenizer: Path | None = None,
    pre: str | None = None,
    more: dict[str, str] | None = None,
    base: float | None = None,
) -> Path:
    """Write a model, with the tokenizer of a folder.

    pre: how the tokenizer splits texts. more: text under further keys. base: another base of rotary positions.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if architecture == "starcoder2":
        writer.add_layer_norm_eps(config.norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if architecture in ("gemma2", "gemma3"):
        writer.add_key_length(head_dim)
        writer.add_sliding_window(config.sliding_window)
    else:
        writer.add_rope_dimension_count(head_dim)
    theta = config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"]
    writer.add_rope_freq_base(theta if base is None else base)
    writer.add_eos_token_id(2)
    for key, text in (more or {}).items():
        writer.add_string(key, text)
    if tokenizer is not None:
        # That of the tiny pairs; for the architecture of Qwen2 transformers has its own.
        _add_tokenizer(writer, tokenizer, pre or ("qwen2" if architecture == "qwen2" else "smollm"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if not (name == "lm_head.weight" and config.tie_word_embeddings):
            stem, _, suffix = name.rpartition(".")
            _add_tensor(writer, f"{names.get_name(stem)}.{suffix}", weight.float().numpy(), config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(writer: gguf.GGUFWriter, name: str, x: np.ndarray, config: Any, kind: str) -> None:
    if config.model_type == "llama" and ("attn_q" in name or "attn_k" in name):  # llama.cpp rotates pairs, not halves
        heads = config.num_attention_heads if "attn_q" in name else config.num_key_value_heads
        x = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    if config.model_type in ("gemma2", "gemma3_text") and "norm" in name:
        x = x + 1
    stored = Kind.F32 if x.ndim == 1 else Kind[kind]
    x = np.ascontiguousarray(x)
    stored_x = q4_k(x) if stored == Kind.Q4_K else gguf.quants.quantize(x, stored)
    writer.add_tensor(name, stored_x, raw_dtype=stored)


def q4_k(x: np.ndarray) -> np.ndarray:
    """Blocks of 256 weights as bytes, which the package only reads: any scales serve, so all eight of a block are equal."""
    blocks = x.reshape(-1, 256)
    low = np.maximum(0, -blocks.min(1, keepdims=True))
    step = np.maximum((blocks.max(1, keepdims=True) + low) / 15, 1e-8)
    scales = np.concatenate((step / 32, low / 32), 1).astype(np.float16)  # of scales and minima, which are 32 of 63
    six_bits = np.zeros(
        (len(blocks), 12), dtype=np.uint8
    )  # (scales 0–3, minima 0–3, low and high halves of the others)
    six_bits[:, :8], six_bits[:, 8:] = 32 | (32 & 0x30) << 2, 0
    q = np.clip(np.round((blocks + low) / step), 0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    packed = (q[:, :, 0] | q[:, :, 1] << 4).reshape(-1, 128)
    rows = np.concatenate((scales.view(np.uint8), six_bits, packed), 1)
    return rows.reshape(*x.shape[:-1], -1)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, pre: str) -> None:
    """Byte-level BPE, as the pairs of the package have."""
    rules = json.loads((folder / "tokenizer.json").read_text())
    special = {entry["id"] for entry in rules["added_tokens"]}
    tokens = sorted(rules["model"]["vocab"], key=rules["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL for index in range(len(tokens))]
    )
    writer.add_token_merges([" ".join(pair) for pair in rules["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
