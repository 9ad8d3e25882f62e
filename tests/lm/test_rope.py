"""The longest text, where longer ones would change what shorter ones are."""

from transformers import Llama4TextConfig, LlamaConfig

from sdbench.lm.rope import longest_text, why_limited


def test_llama_4_ends_before_the_scale_of_its_attention_changes():
    """transformers counts positions by its own caches there; ours begins at 0 in each block."""
    config = Llama4TextConfig(max_position_embeddings=10_000_000)
    assert longest_text(config) == 8191
    assert why_limited(config) == (
        ": its configuration has 10000000, but longer texts change the scale of its attention (attn_temperature_tuning)"
    )
    short = Llama4TextConfig(max_position_embeddings=4096)
    assert (longest_text(short), why_limited(short)) == (4096, "")
    untuned = Llama4TextConfig(max_position_embeddings=20_000, attn_temperature_tuning=False)
    assert (longest_text(untuned), why_limited(untuned)) == (20_000, "")
    assert longest_text(LlamaConfig(max_position_embeddings=100)) == 100
