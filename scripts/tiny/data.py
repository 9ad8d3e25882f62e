"""The training rows of the tiny pairs: the exact text of each task's 0-shot default protocol, and rows that teach copying.

The stream is a function of (seed, step): every rank (a training process) generates the same step and takes its share of it, and a
resumed run continues where it stopped.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from scripts.tiny.pairs import TASKS, Pair, PairRecipe, Phase
from scripts.tiny.tokenizer import BOS_ID, EOS_ID

BLOCK = 64  # steps generated at a time
PAD_TO = 16


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the completion that follows it directly."""

    prompt: str
    completion: str


def _wmt(r: dict) -> Text:
    return Text(f"German phrase: {r['translation']['de']}\nEnglish phrase:", f" {r['translation']['en']}")


def _mbpp(r: dict) -> Text:
    tests = "\n".join(r["test_list"])
    task = f"You are an expert Python programmer, and here is your task: {r['text']} "
    return Text(f"{task}Your code should pass these tests:\n\n{tests}\n[BEGIN]\n", f"{r['code']}\n[DONE]")


PROTOCOLS: dict[str, Callable[[dict], Text]] = {
    "cnndm": lambda r: Text(f"Summarize the following article:\n\n{r['article']}\n\nSummary:", f" {r['highlights']}"),
    "xsum": lambda r: Text(
        f"Write a concise summary of the following document:\n\nDocument: {r['document']}\n\nSummary:",
        f" {r['summary']}",
    ),
    "gsm8k": lambda r: Text(f"Question: {r['question']}\nAnswer:", f" {r['answer']}"),
    "wmt": _wmt,
    "humaneval": lambda r: Text(r["prompt"], r["canonical_solution"]),
    "mbpp": _mbpp,
}


def texts(
    task: str, split: str, n: int, seed: int = 0, voice: str = "neutral", unread: Sequence[str] = ()
) -> list[Text]:
    """Return n rows of a tiny task in its default protocol and one voice (wording), without rows with a word of `unread`."""
    from sdbench import embedded

    rows = (PROTOCOLS[task](row) for row in embedded.stream(f"{task}-tiny", split, seed, voice))
    words = re.compile(rf"\b(?:{'|'.join(unread)})\b") if unread else None
    return list(islice((text for text in rows if not (words and words.search(text.prompt))), n))


@dataclass(frozen=True, slots=True)
class Item:
    """A training row: token ids, and which of them count in the loss."""

    ids: list[int]
    learned: range


@dataclass(frozen=True, slots=True)
class Micro:
    """Right-padded rows: tokens [B,T]; flat positions [N] whose next token counts, that token [N], its weight [N]."""

    tokens: Tensor
    positions: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Stream:
    """Steps of micro-batches, a function of (pair.seed, step)."""

    pair: Pair
    recipe: PairRecipe
    tokenizer: PreTrainedTokenizerFast

    def step(self, step: int, rank: int, world: int, micros: int) -> list[Micro]:
        """Return this rank's micro-batches. Rows are sorted by length and dealt to the ranks in turn; all weights sum to 1."""
        index, within = self.recipe.at(step)
        phase = self.recipe.phases[index]
        rows = sorted(_block(self, index, within // BLOCK)[within % BLOCK], key=lambda item: len(item.ids))
        prompt_weight = phase.prompt_weight if within < 0.15 * phase.steps else 0.0
        learned = sum(len(item.learned) for item in rows)
        mine = rows[rank::world]
        size = -(-len(mine) // micros)
        return [_micro(mine[i : i + size], prompt_weight, learned) for i in range(0, len(mine), size)]

    def items(self, task: str, n: int, seed: int, phase: Phase) -> list[Item]:
        rows = texts(task, "train", n, seed, phase.voice, phase.unread)
        prompts = self.tokenizer([t.prompt for t in rows])["input_ids"]
        completions = self.tokenizer([t.completion for t in rows], add_special_tokens=False)["input_ids"]
        return [
            Item([*p, *c, EOS_ID], range(len(p), len(p) + len(c) + 1))
            for p, c in zip(prompts, completions, strict=True)
        ]

    def __hash__(self) -> int:
        return id(self)


@lru_cache(maxsize=2)
def _block(stream: Stream, index: int, block: int) -> list[list[Item]]:
    """Return the rows of BLOCK steps of a phase: tasks mixed by its weights, and copying rows, whose share falls to 0 at half."""
    pair, phase = stream.pair, stream.recipe.phases[index]
    late = "late/" * index
    rng = random.Random(f"{late}{pair.seed}/{block}")
    total = BLOCK * phase.rows
    copies = int(total * phase.copies * max(0.0, 1 - block * BLOCK / (0.5 * phase.steps)))
    rows: list[Item] = [_copy_row(rng, stream.tokenizer.vocab_size) for _ in range(copies)]
    left = total - len(rows)
    for number, task in enumerate(TASKS):
        n = round(left * phase.mix[number] / sum(phase.mix)) + 1
        rows += stream.items(task, n, pair.seed * 1_000_000 + index * 100_000 + block * 10 + number + 1, phase)
    rng.shuffle(rows)
    return [rows[i * phase.rows : (i + 1) * phase.rows] for i in range(BLOCK)]


def _copy_row(rng: random.Random, vocabulary: int) -> Item:
    """Return a copying row: a random string twice, or random keys with values followed by some of these keys with their values."""
    first = 3  # after pad, bos, eos
    if rng.random() < 0.5:
        string = [rng.randrange(first, vocabulary) for _ in range(rng.randint(8, 40))]
        return Item([BOS_ID, *string, *string, EOS_ID], range(1 + len(string), 2 + 2 * len(string)))
    pairs = [
        [rng.randrange(first, vocabulary) for _ in range(rng.randint(2, 4) + rng.randint(1, 3))]
        for _ in range(rng.randint(5, 10))
    ]
    repeated = rng.sample(pairs, rng.randint(3, 5))
    listed = [BOS_ID, *(token for pair in pairs for token in pair)]
    ids = [*listed, *(token for pair in repeated for token in pair), EOS_ID]
    return Item(ids, range(len(listed), len(ids)))


def _micro(rows: list[Item], prompt_weight: float, learned: int) -> Micro:
    """Pad to a multiple of 16 and count positions in multiples of 128, because few different shapes need few kernels."""
    length = -(-max(len(item.ids) for item in rows) // PAD_TO) * PAD_TO
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    positions, labels, weights = [], [], []
    for b, item in enumerate(rows):
        tokens[b, : len(item.ids)] = torch.tensor(item.ids)
        wanted = set(item.learned)
        for t in range(1, len(item.ids)) if prompt_weight else item.learned:
            positions.append(b * length + t - 1)
            labels.append(item.ids[t])
            weights.append((1.0 if t in wanted else prompt_weight) / learned)
    spare = -len(positions) % 128
    return Micro(
        tokens,
        torch.tensor(positions + [0] * spare),
        torch.tensor(labels + [0] * spare),
        torch.tensor(weights + [0.0] * spare),
    )
