"""Tiny random checkpoints under the real ids, and invented rows in the real schemas, as the real repositories lay them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

GATED = frozenset(
    [
        *("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
        *("google/gemma-3-12b-it", "google/gemma-3-4b-it", "google/gemma-3-1b-it", "google/gemma-3-270m"),
    ]
)
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WORDS = (
    "the mayor of a small town said on monday that new buses will run every ten minutes from june . "
    "how many ? 1 2 3 4 5 6 7 8 9 0"
)


def make_models(root: Path) -> None:
    """Checkpoints of some 50,000 weights, one tokenizer, a chat template."""
    import torch
    import transformers as t

    torch.manual_seed(0)
    tokenizer = _tokenizer()
    size = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    text = t.Gemma3TextConfig(**size, sliding_window=64)
    both = {"vision_config": vision, "mm_tokens_per_image": 4, "bos_token_id": 0, "eos_token_id": 1}

    def gemma() -> Any:
        return t.Gemma3ForConditionalGeneration(t.Gemma3Config(text_config=text.to_dict(), **both))

    def llama() -> Any:
        return t.LlamaForCausalLM(t.LlamaConfig(**size))

    def qwen(padding: int) -> Any:
        """Rows of the embedding beyond the tokenizer's: the real 7B has 128 more than the smaller ones."""
        return t.Qwen2ForCausalLM(t.Qwen2Config(**{**size, "vocab_size": len(tokenizer) + padding}))

    makers = {
        "meta-llama/Llama-3.1-8B-Instruct": llama,
        "meta-llama/Llama-3.2-1B-Instruct": llama,
        "HuggingFaceTB/SmolLM2-1.7B-Instruct": llama,
        "HuggingFaceTB/SmolLM2-135M-Instruct": llama,
        "Qwen/Qwen2.5-Coder-7B-Instruct": lambda: qwen(padding=144),
        "Qwen/Qwen2.5-Coder-1.5B-Instruct": lambda: qwen(padding=16),
        "Qwen/Qwen2.5-Coder-0.5B-Instruct": lambda: qwen(padding=16),
        "Qwen/Qwen3-8B": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**size)),
        "Qwen/Qwen3-0.6B": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**size)),
        "google/gemma-3-12b-it": gemma,
        "google/gemma-3-4b-it": gemma,
        "google/gemma-3-1b-it": lambda: t.Gemma3ForCausalLM(text),
        "google/gemma-3-270m": lambda: t.Gemma3ForCausalLM(text),
    }
    for id, make in makers.items():
        model = make()
        model.generation_config = t.GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
        model.to(torch.bfloat16).save_pretrained(root / "models" / id)
        tokenizer.save_pretrained(root / "models" / id)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    special, alphabet = ["<s>", "</s>", "<pad>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(  # type: ignore[call-arg]
        vocab_size=384, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([WORDS] * 4, trainer)
    words = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": CHAT}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **words)


def make_datasets(
    root: Path, datasets: dict[str, dict[str, Any]] | None = None, *, num_rows: int | None = None
) -> None:
    """Eight rows a split, twelve in training, unless `num_rows` are wanted; of `rows()`, or of other data sets."""
    for id, configs in (datasets or rows()).items():
        folder = root / "datasets" / id
        lines = ["---", "configs:"]
        for config, make in configs.items():
            lines += [f"- config_name: {config}", "  data_files:"]
            for split, count in {"train": 12, "validation": 8, "test": 8}.items():
                table = [make(i) for i in range(num_rows or count)]
                _write(folder / config / f"{split}-00000-of-00001.parquet", table)
                lines += [f"  - split: {split}", f"    path: {config}/{split}-*"]
        (folder / "README.md").write_text("\n".join([*lines, "---", f"# {id}", ""]))


def rows() -> dict[str, dict[str, Any]]:
    """id -> config -> row number -> row."""

    def humaneval(i: int) -> dict[str, Any]:
        prompt = f'def add_{i}(x: int) -> int:\n    """ Add {i} to x.\n    >>> add_{i}(1)\n    {i + 1}\n    """\n'
        test = f"def check(candidate):\n    assert candidate(1) == {i + 1}\n"
        solution = f"    return x + {i}\n"
        fields = {"task_id": f"HumanEval/{i}", "prompt": prompt, "canonical_solution": solution, "test": test}
        return fields | {"entry_point": f"add_{i}"}

    def mbpp(i: int) -> dict[str, Any]:
        tests = [f"assert add({n}) == {n + i}" for n in range(3)]
        fields = {
            "task_id": 11 + i,
            "text": f"Write a function to add {i}.",
            "code": f"def add(x):\n    return x + {i}",
        }
        return fields | {"test_list": tests, "test_setup_code": "", "challenge_test_list": []}

    def sanitized(i: int) -> dict[str, Any]:
        row = mbpp(i)
        fields = {"source_file": "x.ipynb", "task_id": row["task_id"], "prompt": row["text"], "code": row["code"]}
        return fields | {"test_imports": [], "test_list": row["test_list"]}

    def article(i: int) -> dict[str, Any]:
        text = f"The mayor said on Monday that line {i} will run every ten minutes. " * 6
        return {"article": text, "highlights": f"Line {i} will run often .\nThe mayor said so .", "id": f"{i:040x}"}

    def document(i: int) -> dict[str, Any]:
        text = f"A bridge over the river was closed for {i + 2} days.\nIt opens on Friday."
        return {"document": text, "summary": f"A bridge was closed for {i + 2} days.", "id": f"{30000000 + i}"}

    def problem(i: int) -> dict[str, Any]:
        question = f"Ann has {i} apples and buys 3. How many has she?"
        return {"question": question, "answer": f"Ann has {i}+3=<<{i}+3={i + 3}>>{i + 3} apples.\n#### {i + 3}"}

    def phrase(i: int) -> dict[str, Any]:
        return {"translation": {"de": f"Der Zug hat {i} Wagen.", "en": f"The train has {i} cars."}}

    return {
        "abisee/cnn_dailymail": {"1.0.0": article, "3.0.0": article},
        "EdinburghNLP/xsum": {"default": document},
        "openai/gsm8k": {"main": problem, "socratic": problem},
        "wmt/wmt16": {"de-en": phrase},
        "wmt/wmt14": {"de-en": phrase},
        "openai/openai_humaneval": {"openai_humaneval": humaneval},
        "google-research-datasets/mbpp": {"full": mbpp, "sanitized": sanitized},
    }


def _write(path: Path, table: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(table), path)
