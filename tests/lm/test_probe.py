"""Any attention-only model is served right, whatever its masks and positions; what cannot be is refused by name."""

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, WhisperConfig, WhisperForConditionalGeneration

from sdbench.lm.model import LM, used_vocab
from sdbench.lm.probe import text_length
from tests.engine.models import tiny

WINDOW = 6
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
OF_ITS_TIME = {**SIZES, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 48}
SERVED: dict[str, dict[str, Any]] = {
    "mistral": {**GROUPED, "sliding_window": WINDOW},
    "phi3": {**GROUPED, "sliding_window": WINDOW},
    "olmo2": GROUPED,
    "olmo3": {**GROUPED, "sliding_window": WINDOW},
    "cohere2": {**GROUPED, "sliding_window": WINDOW},
    "smollm3": GROUPED,
    "gpt_neox": SIZES,
    "gpt2": OF_ITS_TIME,
    "opt": {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "llama4_text": {**EXPERTS, "head_dim": 8, "attention_chunk_size": WINDOW, "intermediate_size_mlp": 48},
    "mixtral": {**EXPERTS, "sliding_window": WINDOW},
    "qwen2_moe": {**EXPERTS, "sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "gpt_oss": {**EXPERTS, "head_dim": 8, "sliding_window": WINDOW},
}
RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4},
    "rwkv": {"attention_hidden_size": 32},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "head_dim": 8},
    "jamba": {"num_experts": 2, "mamba_d_state": 4, "attn_layer_offset": 1, "attn_layer_period": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_experts": 2,
        "moe_intermediate_size": 16,
    },
}


def random_model(kind: str, options: dict[str, Any]) -> Any:
    """Of this type, in float64, its experts one by one: fused ones know no float64."""
    config_class = transformers.CONFIG_MAPPING[kind]
    known = vars(config_class())
    config = config_class(**{name: value for name, value in options.items() if name in known or name in SIZES})
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).double().eval()


def ragged(model: Any, text: torch.Tensor, prompts: tuple[int, ...], steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of what follows prompts of several lengths in one batch, in blocks of `steps`, and the positions they are of."""
    lm = LM(model)
    logits, places = [], []
    with torch.inference_mode():
        cache = lm.cache(len(prompts) + 1, len(text) + 3)
        for row, length in enumerate(prompts):
            cache.write(row, lm.prefill_all([text[:length]])[0])
        start = torch.tensor(prompts)[:, None]
        while int(start.max()) + steps <= len(text):
            positions = start + torch.arange(steps)
            logits.append(lm.forward(text[positions], lm.plan(positions, cache, len(text)), cache))
            places.append(positions)
            start = start + steps
    return torch.cat(logits, 1), torch.cat(places, 1)


def assert_served(model: Any, length: int = 40) -> None:
    """Ragged blocks over the cache give the logits of the whole text at once, past windows and chunks."""
    text = torch.randint(5, 60, (length,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = model(input_ids=text[None], use_cache=False).logits[0]
    logits, places = ragged(model, text, (1, 9, 14), 3)
    assert torch.allclose(
        logits, whole[places], atol=1e-4 * float(whole.abs().max())
    )  # some do their softmax in float32


@pytest.mark.parametrize("kind", SERVED)
def test_attention_only_models_are_served(kind):
    assert_served(random_model(kind, SERVED[kind]))


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "qwen3"])
def test_prompts_longer_than_a_chunk_and_a_window(family, monkeypatch):
    monkeypatch.setattr("sdbench.lm.model.CHUNK", 7)
    model = tiny(family, attention="eager" if family == "gemma2" else "sdpa")
    text = torch.randint(5, 60, (60,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = model(input_ids=text[None], use_cache=False).logits[0]
    logits, places = ragged(model, text, (30, 23), 4)
    assert torch.allclose(logits, whole[places], atol=1e-5)


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_state_is_refused_by_name(kind):
    with pytest.raises(ValueError, match=rf"target model of type '{kind}' has .* cannot be rolled back"):
        LM(random_model(kind, {**GROUPED, **RECURRENT[kind]}))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("bart", "gives other distributions with sdbench's KV cache"),  # counts positions in its own cache
        ("bert", "gives other distributions with sdbench's KV cache"),  # looks both ways
        ("doge", "does not run with sdbench's KV cache"),  # makes masks of its own
        ("gptj", "does not take an attention function"),
        ("bloom", "does not take an attention function"),
    ],
)
def test_what_would_be_wrong_is_refused_by_name(kind, why):
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 4, "n_embd": 32}
    model = random_model(kind, {**GROUPED, **OF_ITS_TIME, **sizes, "rotary_dim": 4, "n_inner": 48})
    with pytest.raises(ValueError, match=why) as error:
        LM(model)
    assert type(model).__name__ in str(error.value)


def test_a_model_is_asked_once_and_left_as_it_was():
    model, calls = tiny("gemma3"), []
    model.register_forward_hook(lambda *_: calls.append(1))
    first = LM(model)
    asked = len(calls)
    assert asked > 0
    assert LM(model).layer_masks is first.layer_masks
    assert len(calls) == asked
    assert model.config._attn_implementation == "sdpa"
    assert [first.layer_masks[layer].local for layer in (0, 1)] == [12, None]


def test_the_probe_makes_the_logits_of_a_few_positions_only():
    """All of a window's over a large vocabulary would take a gigabyte."""
    model, sizes = tiny("gemma3", sliding_window=40), []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(output.logits.shape[1]))
    LM(model)
    assert 0 < max(sizes) <= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_reason_to_refuse(dtype):
    assert LM(tiny("gemma2", attention="eager").to(dtype)).dtype == dtype


def test_vocabularies_padded_differently_are_one_and_others_are_not():
    a, b, c = (LM(tiny("llama", vocab=size)) for size in (100, 356, 357))
    assert used_vocab(a, b, None) == used_vocab(b, a, None) == 100
    assert used_vocab(a, b, 90) == 90
    with pytest.raises(ValueError, match="have 100 and 357 ids"):
        used_vocab(a, c, None)
    with pytest.raises(ValueError, match="vocab_size must be between 1 and 100"):
        used_vocab(a, b, 101)


def test_a_window_that_begins_to_cut_late_is_seen(monkeypatch):
    """The text asked about ends beyond the window, so a model that sees otherwise there is refused."""
    model = tiny("gemma3", sliding_window=40)
    assert text_length(LM(model)) == 48
    late = tiny("gemma3", sliding_window=40, seed=5)
    attention = late.model.layers[0].self_attn
    honest = attention.forward

    def forgets(hidden_states, *arguments, **more):
        if more.get("past_key_values") is None and hidden_states.shape[1] > 30:
            hidden_states = hidden_states.clone()
            hidden_states[:, 30:] *= 3
        return honest(hidden_states, *arguments, **more)

    attention.forward = forgets
    with pytest.raises(ValueError, match="gives other distributions with sdbench's KV cache"):
        LM(late)


def test_a_model_in_training_mode_and_what_the_engine_cannot_serve_are_named():
    with pytest.raises(
        ValueError, match=r"target model of type 'llama' is in training mode: call model.eval\(\) first"
    ):
        LM(tiny("llama").train())
    config = WhisperConfig(
        vocab_size=61, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="of type 'whisper' is an encoder-decoder, which is not supported"):
        LM(WhisperForConditionalGeneration(config).eval())
    for kind in ("deepseek_v32", "glm_moe_dsa"):
        named = tiny("llama")
        named.config.model_type = kind
        with pytest.raises(ValueError, match=f"'{kind}' has an indexer that chooses which keys are read, which is not"):
            LM(named)
