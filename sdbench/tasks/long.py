"""Long documents: an article of cnndm-tiny between sentences about bystanders, as many as fit into a prompt of `length` tokens.

A row is one of cnndm-tiny: {"article": "A fire destroyed the Tamir bridge. ...", "highlights": "Fire destroys ...", "id": "00ab"}.
Its document, with entropy=low: "Tourist Sefo Talon from Rebiton slept. Tourist Sefo Talon from Rebiton slept. A fire ..."

Three scores, each 1 for the reference: `find` (the number of people is right), `copy` (the share of the reference's names that
are in the answer letter for letter) and `sum_up` (ROUGE-L); `score` is their mean. With protocol=summary every summary has all
three; with protocol=questions each document gets one of the three questions. Not covered: facts joined from several places.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sdbench.config import nearest
from sdbench.config.checks import number, optional_integer
from sdbench.embedded.grammar.draw import Draw
from sdbench.embedded.grammar.names import Namer
from sdbench.embedded.grammar.news import bystander
from sdbench.tasks.base import Row
from sdbench.tasks.padding import largest_of_all
from sdbench.tasks.protocol import Fields, Protocol
from sdbench.tasks.summaries import CnnDm
from sdbench.types import Example, Metric, Prompt, Score

FILLER = "1"  # increase it when the same row, length and entropy give another document than before
NEW = {"low": 0.0, "mixed": 0.5, "high": 1.0}  # by entropy: the probability of a new sentence; else the first repeats
KINDS = ("find", "copy", "sum_up")
QUESTIONS = {
    "find": "How many people were led to safety?",
    "copy": "Which sentence says what happened? Copy it word for word.",
    "sum_up": "What happened, how many people are safe, and who did something about it? Answer in three short sentences.",
}
NUMBER = re.compile(r"\d+")
SENTENCE = re.compile(r"[^.]+\.")


@dataclass(kw_only=True)
class LongTiny(CnnDm):
    """Quality by input length: the same rows at every length."""

    length: int | None = None
    entropy: str = "high"
    depth: float = 1.0

    PROTOCOLS = Protocol.read("long")
    WORDS: ClassVar[tuple[str, ...]] = ("entropy",)
    usual_metric = "score"
    metrics = (Metric("score", "share"), *(Metric(kind, "share", stats="ratio") for kind in KINDS))
    scores_rows = True  # the article decides `copy`, and the id the kind of question
    padded_by = "length"

    def __post_init__(self) -> None:
        self.length = optional_integer("length", self.length, 1)
        self.depth = number("depth", self.depth, 0, 1)
        if self.entropy not in NEW:
            raise ValueError(
                f"entropy must be one of {', '.join(NEW)}, got {self.entropy} {nearest(self.entropy, NEW)}"
            )
        if self.pad_to is not None:
            raise ValueError(f"{self.name} takes length= for longer prompts, not pad_to={self.pad_to}")
        for name, usual in (("entropy", LongTiny.entropy), ("depth", LongTiny.depth)):
            if self.length is None and getattr(self, name) != usual:
                raise ValueError(f"{name}={getattr(self, name)} has no effect without sentences to add: give length=")
        super().__post_init__()

    def describe_padding(self) -> dict[str, Any]:
        padding = {} if self.length is None else {"padding": {"to": self.length, "with": f"bystanders/{FILLER}"}}
        return {"entropy": self.entropy, "depth": self.depth, **padding}

    def _lack_of(self, row: Row) -> str | None:
        """Return what a row lacks, as rows of a user's file may: the id chooses the question, and the row must hold the answer."""
        if lack := super()._lack_of(row):
            return lack
        if self.protocol == "questions" and row.get("id") is None:
            return f"has no field 'id': {self.name} with protocol=questions needs it"
        kinds = self.kinds(row)
        if "find" in kinds and not NUMBER.search(str(row["highlights"])):
            return f"has no number in its highlights: {self.name} asks for it"
        if kinds == ("copy",) and not SENTENCE.search(str(row["article"])):
            return f"has no sentence with a full stop in its article: {self.name} asks for the first"
        if "copy" in kinds and not names_of(answer_of(kinds, row)):
            where = "highlights" if len(kinds) > 1 else "first sentence"
            return f"has no capitalised word after the first of a line in its {where}: {self.name} asks for names"
        return None

    def kinds(self, row: Row) -> tuple[str, ...]:
        """Return the kinds of question that a row gets."""
        return KINDS if self.protocol == "summary" else (Draw(f"kind/{row['id']}").pick(KINDS),)

    def fields(self, row: Row) -> Fields:
        """Return the article without added sentences, the question, and its right answer."""
        kinds = self.kinds(row)
        question = " ".join(QUESTIONS[kind] for kind in kinds)
        return {"document": str(row["article"]), "question": question, "answer": answer_of(kinds, row)}

    def pad(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Prompt:
        """Return the prompt with as many sentences about bystanders as fit."""
        fields, shots = self.fields(example.row), self.shots_of(example.id)

        def with_sentences(size: int) -> Prompt:
            others = [sentence for sentence, _ in zip(self._bystanders(example.id), range(size), strict=False)]
            before = round(self.depth * size)
            document = " ".join([*others[:before], fields["document"], *others[before:]])
            return self.rules.render({**fields, "document": document}, shots, is_chat=self.chat)

        return with_sentences(largest_of_all(with_sentences, num_tokens, limit))

    def _bystanders(self, key: str) -> Iterator[str]:
        """Yield sentences for a row without end, the same ones at every length."""
        draw = Draw(f"bystanders/{self.entropy}/{key}")

        def sentence() -> str:
            namer = Namer(draw)
            return bystander(draw, namer.person(), namer.city())

        first = sentence()
        while True:
            yield sentence() if draw.chance(NEW[self.entropy]) else first

    def measure(self, example: Example, text: str) -> Score:
        reference, kinds = self.fields(example.row)["answer"], self.kinds(example.row)
        scores = {kind: self._score(kind, reference, example, text) for kind in kinds}
        mean = sum(scores.values()) / len(scores)
        values = {"score": mean, **{kind: scores.get(kind, mean) for kind in KINDS}}
        stats = {kind: (scores.get(kind, 0.0), float(kind in scores)) for kind in KINDS}
        return Score(values, stats, {"is_extraction_failed": "find" in kinds and not NUMBER.search(text)})

    def _score(self, kind: str, reference: str, example: Example, text: str) -> float:
        if kind == "find":
            given, right = NUMBER.search(text), NUMBER.search(reference)
            return float(given is not None and right is not None and given[0] == right[0])
        if kind == "copy":
            names, words = names_of(reference), set(re.findall(r"\w+", text))
            return sum(name in words for name in names) / max(1, len(names))
        return super().measure(example, text).values["rougeL"] / 100


def names_of(reference: str) -> list[str]:
    """Return the invented names in a text: its capitalised words, except at the start of a line."""
    return [word for line in reference.split("\n") for word in re.findall(r"\w+", line)[1:] if word[0].isupper()]


def answer_of(kinds: tuple[str, ...], row: Row) -> str:
    """Return the right answer to a question of one kind; for several kinds the summary, which answers them all."""
    if kinds == ("find",):
        return NUMBER.findall(str(row["highlights"]))[0]
    if kinds == ("copy",):
        return SENTENCE.findall(str(row["article"]))[0]
    return str(row["highlights"])
