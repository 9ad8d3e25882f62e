"""Sampled universal assisted generation of transformers divides by the wrong q. Needs transformers, tokenizers and torch alone.

python universal_assisted_generation.py [TEXTS]

`AssistantToTargetTranslator` prunes the assistant's head to the shared tokens in the order of a vocabulary dict
(`list(target_to_assistant_input_ids.values())`), but `get_target_logits` scatters those columns back in ascending order of the
assistant's ids. Drafted ids are mapped rightly, the law beside them is not, so that what is emitted is not the target's law.
"""

import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.generation import candidate_generator

TEXTS = int(sys.argv[1]) if len(sys.argv) > 1 else 400
CORPORA = (
    "the quick brown fox jumps over the lazy dog and then the other dog sleeps there with the fox in the winter weather",
    "a small draft model proposes tokens and a large target model keeps or replaces them so that the law stays the same",
)


def tokenizer_of(text, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        [text] * 4, trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def model_of(vocab, layers, seed):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.35,
        eos_token_id=None,
        bos_token_id=0,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).double().eval()
    model.get_output_embeddings().weight.data.mul_(2)
    options = model.generation_config
    options.num_assistant_tokens, options.num_assistant_tokens_schedule = 3, "constant"
    options.assistant_confidence_threshold = 0
    return model


def first_tokens(is_repaired):
    """The law of the first sampled token, as counted."""
    first, second = tokenizer_of(CORPORA[0], 300), tokenizer_of(CORPORA[1], 290)
    target, assistant = model_of(len(first), 2, 0), model_of(len(second), 1, 1)
    ids = torch.tensor([first("the quick brown fox")["input_ids"]])
    with torch.no_grad():
        p = target(ids).logits[0, -1].softmax(-1)
    honest = candidate_generator.AssistantToTargetTranslator._get_assistant_to_target_input_ids

    def in_order(self):
        """The dict in ascending order of the assistant's ids: the one-line repair."""
        forward, backward = honest(self)
        return forward, dict(sorted(backward.items(), key=lambda pair: pair[1]))

    candidate_generator.AssistantToTargetTranslator._get_assistant_to_target_input_ids = (
        in_order if is_repaired else honest
    )
    counts = torch.zeros(len(first), dtype=torch.float64)
    shown = None
    for seed in range(TEXTS):
        torch.manual_seed(seed)
        how = {"do_sample": True, "top_k": 0, "max_new_tokens": 3, "attention_mask": torch.ones_like(ids)}
        out = target.generate(ids, assistant_model=assistant, tokenizer=first, assistant_tokenizer=second, **how)
        counts[out[0, ids.shape[1]]] += 1
        if shown is None:
            translator = candidate_generator.AssistantVocabTranslatorCache.get_translator(first, second, len(first))
            order = list(translator.target_to_assistant_input_ids.values())
            shown = sum(a != b for a, b in zip(order, sorted(order), strict=True)), len(order)
    candidate_generator.AssistantToTargetTranslator._get_assistant_to_target_input_ids = honest
    generator = torch.Generator().manual_seed(0)
    noise = []
    for _ in range(200):
        drawn = torch.multinomial(p, TEXTS, replacement=True, generator=generator)
        noise.append(float((torch.bincount(drawn, minlength=len(p)) / TEXTS - p).abs().sum() / 2))
    return float((counts / TEXTS - p).abs().sum() / 2), sorted(noise), shown


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    print(
        f"transformers {transformers.__version__}, {TEXTS} texts, TV between the first sampled token and the target's law"
    )
    for is_repaired in (False, True):
        tv, noise, (wrong, shared) = first_tokens(is_repaired)
        print(
            f"{'dict sorted by assistant id' if is_repaired else 'as shipped':28} TV {tv:.3f}; of the target alone "
            f"{sum(noise) / len(noise):.3f} on average, at most {noise[-1]:.3f}; {wrong} of {shared} shared columns misplaced"
        )
