"""The prompts of a task: a row after its shots, and how a prompt that is too long is shortened."""

import bisect
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar

from sdbench.tasks.data import DataRows, Row, from_protocol, load, read_rows
from sdbench.tasks.protocol import Fields
from sdbench.types import Example, Message, Prompt

LM_EVAL_SHOT_SEED = 1234  # lm-eval's default fewshot_random_seed


@dataclass(kw_only=True)
class Prompting(DataRows):
    """Rows rendered as prompts of a protocol. Shots are read only when a prompt needs them."""

    chat: bool = from_protocol()
    shots: int = from_protocol()
    shots_split: str = "train"
    shots_data: str | None = None

    cut_field: ClassVar[str] = ""  # loses words when a prompt is too long; "": the first field of `ask` …
    cut_side: ClassVar[str] = "end"  # … at its start or its end

    def fields(self, row: Row) -> Fields:
        """Return the fields that templates may name; `answer` is the reference."""
        return {**{name: str(value) for name, value in row.items()}, "answer": str(row[self.reference])}

    @property
    def _cut_field(self) -> str:
        return self.cut_field or self.rules.asked_fields[0]

    def with_cut_field(self, fields: Fields, text: str) -> Fields:
        """Return the fields with a shorter text in `cut_field`; a task that derives other fields from it replaces them too."""
        return {**fields, self._cut_field: text}

    def examples(self) -> Iterable[Example]:
        """Return the selected rows with their prompts, in the order that the seed gives."""
        for key in self.ids:
            yield Example(key, self.rows[key], self.prompt_of(key))

    def prompt_of(self, key: str) -> Prompt:
        """Return the whole prompt of any row, selected or not."""
        return self.rules.render(self.fields(self.rows[key]), self.shots_of(key), is_chat=self.chat)

    def shots_of(self, key: str) -> list[Fields]:
        """Return the shots before a row: never the row itself, nor a row with the same question and answer. Only if the shots come
        from the data set's own split for shots, such a row is shown, as lm-eval does.
        """
        if self.rules.fixed_shots or not self.shots:
            return self._enough(self.rules.fixed_shots)
        if self.rules.shots == "drawn":
            first = [self._pool_ids[i] for i in self._drawn[key]]
        else:
            first = [shot for shot in self.rules.shot_ids if shot in self._shot_pool]
        shots = chain(first, (shot for shot in self._pool_ids if shot not in first))
        is_own_split = self.shots_data is None and not self._is_pool_asked
        shown = (self.fields(self._shot_pool[shot]) for shot in shots) if is_own_split else self.others_than(key, shots)
        return self._enough([*islice(shown, self.shots)])

    def others_than(self, key: str, shots: Iterable[str]) -> Iterator[Fields]:
        """Yield the fields of shots, without those that show the same question and answer as a row."""
        shown = self._content_of(self.fields(self.rows[key]))
        for shot in shots:
            if self._content_of(fields := self.fields(self._shot_pool[shot])) != shown:
                yield fields

    def _content_of(self, fields: Fields) -> list[str | None]:
        """Return what a prompt shows of a solved row; columns that it does not show may differ between copies."""
        return [fields.get(name) for name in (*self.rules.asked_fields, "answer")]

    def _enough(self, shots: Sequence[Fields]) -> list[Fields]:
        if len(shots) < self.shots:
            raise ValueError(f"shots must be at most {len(shots)} for {self.name} with this data, got {self.shots}")
        return list(shots[: self.shots])

    @property
    def draws_shots(self) -> bool:
        """Return whether each prompt has shots of its own, drawn for its row."""
        return bool(self.shots) and not self.rules.fixed_shots and self.rules.shots == "drawn"

    @property
    def _is_pool_asked(self) -> bool:
        """Return whether shots come from the evaluated rows: a local file without `shots_data`, or one split for both."""
        return self.shots_data is None and (self.data is not None or self.shots_split == self.split)

    @cached_property
    def _shot_pool(self) -> dict[str, Row]:
        if self._is_pool_asked:
            return self.rows
        if self.shots_data is not None:
            return self._by_id(read_rows(Path(self.shots_data), "task.shots_data"), str(self.shots_data))
        rows = load(self.dataset, self.dataset_config, self.shots_split, revision=self.revision).rows
        return self._by_id(rows, f"{self.dataset} {self.shots_split}")

    @cached_property
    def _pool_ids(self) -> list[str]:
        return [*self._shot_pool]

    @cached_property
    def _drawn(self) -> dict[str, list[int]]:
        # One random stream over the rows in order, as in lm-eval; one shot more than needed where a row may draw itself. Where
        # copies of the row leave too few, lm-eval draws again.
        rng, pool = random.Random(LM_EVAL_SHOT_SEED), list(self._shot_pool.values())
        count = min(len(pool), self.shots + self._is_pool_asked)
        drawn: dict[str, list[int]] = {}
        for key, row in self.rows.items():
            drawn[key] = rng.sample(range(len(pool)), count)
            if self._is_pool_asked and sum(pool[i] != row for i in drawn[key]) < self.shots:
                others = [i for i, other in enumerate(pool) if other != row]
                drawn[key] = rng.sample(others, min(len(others), self.shots))
        return drawn

    def fit(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Example:
        """Return the example, its prompt cut to `limit` tokens if need be: the first shots go first, then words of `cut_field`."""
        limit = min(limit, self.rules.prompt_limit or limit)
        if num_tokens(example.prompt) <= limit:
            return example
        return replace(example, prompt=self._shorten(example, num_tokens, limit), is_prompt_cut=True)

    def _shorten(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Prompt:
        shots, fields = self.shots_of(example.id), self.fields(example.row)
        words = re.findall(r"\s*\S+", fields[self._cut_field])

        def render(num_dropped: int, text: str) -> Prompt:
            return self.rules.render(self.with_cut_field(fields, text), shots[num_dropped:], is_chat=self.chat)

        def with_words(count: int) -> Prompt:
            kept = words[:count] if self.cut_side == "end" else words[len(words) - count :]
            return render(len(shots), "".join(kept))

        for num_dropped in range(1, len(shots) + 1):
            prompt = render(num_dropped, fields[self._cut_field])
            if num_tokens(prompt) <= limit:
                return prompt
        prompt = longest(with_words, len(words), num_tokens, limit)
        if num_tokens(prompt) <= limit:
            return prompt
        template = with_words(0)  # even this is too long: keep the end, which is next to the answer
        return longest(lambda count: tail(template, count), length(template), num_tokens, limit)

    @property
    def cut_rule(self) -> str:
        """Return the rule of `fit` in the words of the records."""
        limit = f"; at most {self.rules.prompt_limit} tokens" if self.rules.prompt_limit else ""
        return f"oldest shots first, then words at the {self.cut_side} of {self._cut_field}{limit}"


def longest(prompt_of: Callable[[int], Prompt], most: int, num_tokens: Callable[[Prompt], int], limit: int) -> Prompt:
    """Return the prompt of the largest count in 0..most that fits, or that of 0."""
    return prompt_of(largest(prompt_of, most, num_tokens, limit))


def largest(prompt_of: Callable[[int], Prompt], most: int, num_tokens: Callable[[Prompt], int], limit: int) -> int:
    """Return the largest count in 0..most whose prompt fits, or 0."""
    count = bisect.bisect_right(range(most + 1), limit, key=lambda k: num_tokens(prompt_of(k))) - 1
    while count > 0 and num_tokens(prompt_of(count)) > limit:  # more words may have fewer tokens
        count -= 1
    return max(count, 0)


def question_turn(prompt: Prompt) -> int:
    """Return the index of the turn with the question: the last one, or the one before an answer that is begun."""
    last = len(prompt.messages) - 1
    return last - 1 if last and prompt.messages[last].role == "assistant" else last


def length(prompt: Prompt) -> int:
    """Return the number of characters of the text, or of the turn with the question."""
    return len(prompt.text if prompt.text is not None else prompt.messages[question_turn(prompt)].content)


def without_oldest_shot(prompt: Prompt) -> Prompt | None:
    """Return the prompt without its first turns of user and assistant; None if none are before the question."""
    turns = prompt.messages
    first = 1 if turns and turns[0].role == "system" else 0
    roles = [turn.role for turn in turns[first : first + 2]]
    if roles != ["user", "assistant"] or first + 1 >= question_turn(prompt):
        return None
    return replace(prompt, messages=(*turns[:first], *turns[first + 2 :]))


def tail(prompt: Prompt, count: int) -> Prompt:
    """Return the prompt with only the last `count` characters of its text, or of the turn with the question; turns before it
    are left out.
    """
    start = length(prompt) - count
    if prompt.text is not None:
        return replace(prompt, text=prompt.text[start:])
    at = question_turn(prompt)
    turn, *begun = prompt.messages[at:]
    return replace(prompt, messages=(Message(turn.role, turn.content[start:]), *begun))


def last_part(prompt: Prompt, num_tokens: Callable[[Prompt], int], limit: int) -> Prompt:
    """Return the end of a prompt that fits: the oldest shots that are turns go first, then its beginning is cut."""
    while num_tokens(prompt) > limit and (shorter := without_oldest_shot(prompt)) is not None:
        prompt = shorter
    if num_tokens(prompt) <= limit:
        return prompt
    return longest(lambda count: tail(prompt, count), length(prompt), num_tokens, limit)
