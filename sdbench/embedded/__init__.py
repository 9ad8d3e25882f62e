"""The tiny tasks and pairs that ship inside the package; rows have the fields of the real data sets."""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from sdbench.embedded.grammar import functions, news, phrases, problems
from sdbench.embedded.grammar.draw import Draw
from sdbench.embedded.grammar.voices import Voice

SPLITS = {"test": 500, "validation": 100, "train": 10_000}  # rows by default; train has any number


# The generator of a task's rows, and the text that must differ between two rows.
GRAMMARS: dict[str, tuple[Callable[[Draw, int, Voice | None], dict], Callable[[dict], str]]] = {
    "cnndm-tiny": (news.article, lambda row: row["article"]),
    "xsum-tiny": (news.document, lambda row: row["document"]),
    "gsm8k-tiny": (problems.problem, lambda row: row["question"]),
    "wmt-tiny": (phrases.sentence, lambda row: row["translation"]["de"]),
    "humaneval-tiny": (functions.completion, lambda row: row["prompt"]),
    "mbpp-tiny": (functions.program, lambda row: "\n".join([row["text"], *row["test_list"]])),
}
PAIRS = ("llama-tiny", "qwen-tiny", "gemma-tiny")
ROLES = ("target", "draft")


def path(name: str, role: str) -> Path:
    """Return the folder of a model in this package, for `from_pretrained`."""
    if name not in PAIRS:
        raise ValueError(f"pair must be one of {', '.join(PAIRS)}, got {name!r}")
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}, got {role!r}")
    return Path(__file__).parent / name / role


PLAIN = "plain"  # no voice: most slots of an answer have one wording
REFERENCES = "neutral"  # the voice of the rows that a run evaluates


def rows(task: str, split: str, n: int | None = None, seed: int = 0, voice: str = REFERENCES) -> list[dict]:
    """Return the first n rows (default: 500 test, 100 validation, 10,000 train) of a split, in the real data set's fields.

    The voice (target, draft, neutral, or plain for none) decides the wording of answers; the questions do not depend on it.
    """
    if n is None:
        n = SPLITS.get(split, 0)
    if split == "test" and n > SPLITS["test"]:
        raise ValueError(f"split 'test' of {task} has {SPLITS['test']} rows, got n={n}")
    return list(islice(stream(task, split, seed, voice), n))


def stream(task: str, split: str, seed: int = 0, voice: str = REFERENCES) -> Iterator[dict]:
    """Yield rows of a split without end (test: 500): all questions differ, and no other split has a question of test."""
    if task not in GRAMMARS:
        raise ValueError(f"task must be one of {', '.join(GRAMMARS)}, got {task!r}")
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if split == "test":
        if seed:
            raise ValueError(f"the test split is fixed: its seed must be 0, got {seed}")
        return islice(_distinct(task, split, seed, voice, frozenset()), SPLITS["test"])
    return _distinct(task, split, seed, voice, test_hashes(task))


@cache
def test_hashes(task: str) -> frozenset[bytes]:
    """Return hashes of the 500 test prompts."""
    return frozenset(prompt_hash(task, row) for row in stream(task, "test"))


def prompt_hash(task: str, row: dict) -> bytes:
    """Return the hash that is equal for two rows with the same question."""
    return hashlib.sha256(GRAMMARS[task][1](row).encode()).digest()[:16]


def _distinct(task: str, split: str, seed: int, voice: str, seen: frozenset[bytes]) -> Iterator[dict]:
    draw, known = Draw(f"{task}/{split}/{seed}"), set(seen)
    speaker = None if voice == PLAIN else Voice(voice, Draw(f"{task}/{split}/{seed}/{voice}"))
    number = 0
    while True:
        if speaker:
            speaker.begin()
        row = GRAMMARS[task][0](draw, number, speaker)
        if (key := prompt_hash(task, row)) not in known:
            known.add(key)
            yield row
            number += 1
