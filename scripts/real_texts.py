"""Do greedy texts of real checkpoints equal those of transformers' own `generate`? In float32, on five prompts for each model.

    python scripts/real_texts.py CHECKPOINT [CHECKPOINT …] [tokens=48] [out=results/real]

A checkpoint is a GGUF file, a folder or an id of the hub. Each model decodes the prompts by `generate`, by the engine without a
draft, and by the engine with itself as draft (lossless; every draft should be kept). The engine decodes all prompts in a batch, and
one at a time, when the first round reads the prompt. The last prompt is longer than Gemma 3's sliding windows. `out` gets texts.md,
a row per model. The exit status is 1 if a text differs.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from sdbench import generate
from sdbench.files import write_whole
from sdbench.lm.load import find, load_model, load_tokenizer
from sdbench.metrics.markup import markdown
from sdbench.verify import Exact
from sdbench.words import exit_on_mistake, parse_words

INTRODUCTION = """\
# Greedy texts of real checkpoints

How many of five texts equal those of transformers' own `generate`, in float32, written by `python scripts/real_texts.py`: of the
model alone, of lossless decoding with the model itself as the draft, in a batch of all five and one at a time. *Drafts kept*: of
those that the rule examined. *Tokens*: of all five texts together.

"""
ROOT = Path(__file__).parents[1]
PROMPTS = (
    "def is_palindrome(text: str) -> bool:\n",
    "The three primary colours are",
    "A train leaves at 9:40 and arrives at 12:15. How long does the journey take? Let us count:",
    "Translate into French: The library opens at nine and closes at six.\n",
    "",  # the project's own README, cut to LONG tokens
)
LONG = 700
NUM_DRAFT = 5


def compare(name: str, num_tokens: int) -> dict[str, str]:
    """Return how many texts of one checkpoint equal those of `generate`."""
    checkpoint = find(name)
    tokenizer: Any = load_tokenizer(checkpoint)
    model: Any = load_model(checkpoint, device="cpu", dtype="float32")
    readme = tokenizer((ROOT / "README.md").read_text())["input_ids"][:LONG]
    ids = [tokenizer(text)["input_ids"] if text else readme for text in PROMPTS]
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": num_tokens, "capture": "off"}
    reference = [generated(model, prompt, num_tokens) for prompt in ids]
    alone = [text.tokens for text in generate(model, None, ids, [Exact()], **options)]
    together, singly = (
        generate(model, model, ids, [Exact()], num_draft=NUM_DRAFT, batch_size=size, **options)
        for size in (len(ids), 1)
    )
    drafted = [*together, *singly]
    kept, examined = (sum(sum(getattr(text, counts) or ()) for text in drafted) for counts in ("accepted", "examined"))
    return {
        "model": Path(name).name,
        "alone": equal_of(alone, reference),
        "lossless": equal_of([text.tokens for text in together], reference),
        "lossless at batch 1": equal_of([text.tokens for text in singly], reference),
        "drafts kept": f"{kept} of {examined}",
        "tokens": str(sum(map(len, reference))),
    }


def equal_of(texts: Sequence[tuple[int, ...]], reference: Sequence[tuple[int, ...]]) -> str:
    return f"{sum(text == other for text, other in zip(texts, reference, strict=True))} of {len(reference)}"


def generated(model: Any, prompt: list[int], num_tokens: int) -> tuple[int, ...]:
    """Return the new ids of transformers' greedy `generate`, of one prompt without padding."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, repetition_penalty=1.0, max_new_tokens=num_tokens
    )
    return tuple(output[0, len(prompt) :].tolist())


def main(words: list[str]) -> int:
    with exit_on_mistake("real_texts", __doc__, words):
        given = parse_words(words, {"tokens": "48", "out": "results/real"})
        if not given.paths:
            raise ValueError("name at least one checkpoint: a GGUF file, a folder or an id of the hub")
        path = Path(given.options.get("out", "results/real")) / "texts.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = []
        for name in given.paths:
            rows.append(compare(name, int(given.options.get("tokens", "48"))))
            write_whole(path, INTRODUCTION + markdown(list(rows[0]), [list(row.values()) for row in rows], num_left=1))
            print(rows[-1], flush=True)
    every = f"{len(PROMPTS)} of {len(PROMPTS)}"
    return int(any(row[name] != every for row in rows for name in ("alone", "lossless", "lossless at batch 1")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
