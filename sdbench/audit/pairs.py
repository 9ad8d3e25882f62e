"""The default subject of an audit: a tiny random pair with a sliding window, in float64."""

from typing import Any

VOCAB, STOP = 4, 3  # ids, and the last of them ends a text
PROMPTS = ((0, 1, 2), (2, 1, 0, 0, 1, 2, 1))  # one shorter than the window, one longer
WINDOW = 5
SPREAD = 0.6


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "pad_token_id": None,
}


def random_model(*, layers: int, seed: int, vocab: int = VOCAB) -> Any:
    """Return a model of Gemma 3's architecture: a layer with a sliding window, then full ones."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **SIZES,
        vocab_size=vocab,
        num_hidden_layers=layers,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "full_attention"][:layers],
        initializer_range=0.5,
        tie_word_embeddings=False,
        eos_token_id=vocab - 1,
    )
    return with_random_weights(Gemma3ForCausalLM, config, seed, SPREAD)


def with_random_weights(kind: Any, config: Any, seed: int, spread: float) -> Any:
    """Return a model in float64 whose laws are neither flat nor one-hot."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config).double().eval()
    model.get_output_embeddings().weight.data.mul_(spread)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = config.eos_token_id, None
    return model


def random_pair(vocab: int = VOCAB) -> tuple[Any, Any]:
    """Return a target of two layers and a draft of one that shares its embeddings, so that some of its drafts are right."""
    target, draft = random_model(layers=2, seed=0, vocab=vocab), random_model(layers=1, seed=1, vocab=vocab)
    draft.get_input_embeddings().weight.data.copy_(target.get_input_embeddings().weight.data)
    draft.get_output_embeddings().weight.data.copy_(target.get_output_embeddings().weight.data)
    return target, draft


def random_llama(*, layers: int, seed: int, vocab: int = VOCAB, spread: float = 2.0) -> Any:
    """Llama's architecture, for transformers' own generate."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SIZES, vocab_size=vocab, num_hidden_layers=layers, initializer_range=0.35, eos_token_id=None)
    model = with_random_weights(LlamaForCausalLM, config, seed, spread / 2)
    options = model.generation_config
    options.num_assistant_tokens, options.num_assistant_tokens_schedule = 3, "constant"
    options.assistant_confidence_threshold = 0
    return model


CORPORA = (
    "the quick brown fox jumps over the lazy dog and then the other dog sleeps there with the fox in the winter weather",
    "a small draft model proposes tokens and a large target model keeps or replaces them so that the law stays the same",
)


def random_tokenizer(which: int, vocab: int) -> Any:
    """Return a byte-level BPE tokenizer, trained on one of two sentences: the two tokenizers share little more than bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator([CORPORA[which]] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
