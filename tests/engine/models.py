"""Random tiny models in float64, one of each architecture, with the traps of the real ones."""

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SiglipVisionConfig,
)

PAD = 0  # no text of these tests holds it: transformers' assistant guesses an attention mask from it
WINDOW = 6
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3-multimodal")


def config(kind: str, *, layers: int = 2, vocab: int = 37, limit: int = 256):
    common = dict(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=limit,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
    )
    if kind == "llama":
        return LlamaConfig(**common, initializer_range=0.6)
    if kind == "qwen2":
        return Qwen2Config(**common, initializer_range=0.6, tie_word_embeddings=True)
    if kind == "qwen3":
        return Qwen3Config(**common, initializer_range=0.6, head_dim=8)
    layer_types = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
    gemma = dict(**common, head_dim=8, sliding_window=WINDOW, layer_types=layer_types, query_pre_attn_scalar=8)
    if kind == "gemma2":
        return Gemma2Config(**gemma, initializer_range=0.5, attn_logit_softcapping=5.0, final_logit_softcapping=6.0)
    return Gemma3TextConfig(**gemma, initializer_range=0.5)


def build(kind: str = "llama", *, seed: int = 0, attention: str = "sdpa", dtype=torch.float64, **shape) -> PreTrainedModel:
    """A model whose laws are neither flat nor one-hot, on a generation_config that samples nothing by itself."""
    torch.manual_seed(seed)
    classes = {
        "llama": LlamaForCausalLM,
        "qwen2": Qwen2ForCausalLM,
        "qwen3": Qwen3ForCausalLM,
        "gemma2": Gemma2ForCausalLM,
        "gemma3": Gemma3ForCausalLM,
        "gemma3-multimodal": Gemma3ForConditionalGeneration,
    }
    made = config(kind, **shape)
    if kind == "gemma3-multimodal":
        vision = SiglipVisionConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=4, patch_size=2
        )
        made = Gemma3Config(
            text_config=made, vision_config=vision, image_token_index=3, mm_tokens_per_image=4, pad_token_id=PAD
        )
    made._attn_implementation = attention
    model = classes[kind](made).to(dtype).eval()
    model.generation_config.update(eos_token_id=2, pad_token_id=PAD, bos_token_id=1, do_sample=False)
    return model


def pair(kind: str = "llama", **options) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A target of two layers and a draft of one that shares its embeddings, first layer and head: they agree now and then."""
    target = build(kind, **options)
    options.pop("layers", None)
    draft = build(kind, layers=1, **options)
    weights = target.state_dict()
    draft.load_state_dict({name: weights[name] for name in draft.state_dict() if name in weights})
    return target, draft


def prompts(count: int, *, low: int = 1, high: int = 20, vocab: int = 37, seed: int = 0) -> list[list[int]]:
    """Ragged texts without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high + 1, (count,), generator=generator).tolist()
    return [torch.randint(4, vocab, (length,), generator=generator).tolist() for length in lengths]
