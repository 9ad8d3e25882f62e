"""Prompts of a given length: `pad_to` puts solved examples of the same task before a prompt until it has so many tokens.

The examples are those that shots are taken from, read from a place in their order that the asked row's id decides. The nearest to
the question is the first, so a longer prompt ends in the shorter one; what room is left goes to the end of one more question with
its answer. Not covered: neutral text, and tasks of lm-evaluation-harness, which make their prompts themselves.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from typing import Any, ClassVar

from sdbench.config import ConfigError
from sdbench.embedded.grammar.draw import Draw
from sdbench.files import digest_of_data
from sdbench.tasks.prompting import Prompting, largest, longest
from sdbench.tasks.protocol import Fields
from sdbench.types import Example, Prompt

PADDING = "1"  # raise it when the same rows would pad a prompt in another way
KEYED_ROWS, KEYED_EXAMPLES = 64, 8  # of the split, and of what pads each: what a cell's key knows of the padding


@dataclass(kw_only=True)
class Padding(Prompting):
    """Prompts that may be padded; without `pad_to` they are as `Prompting` makes them."""

    pad_to: int | None = None

    padded_by: ClassVar[str] = "pad_to"  # the option that says how long prompts are to be

    @property
    def wanted_tokens(self) -> int | None:
        """How many tokens a prompt is to have; None: as many as it has."""
        return getattr(self, self.padded_by)

    def fit(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Example:
        """The example cut to `limit` tokens, or padded to at most `wanted_tokens`; a prompt that is longer than that stays."""
        fitted, wanted = super().fit(example, num_tokens, limit), self.wanted_tokens
        if wanted is None or num_tokens(fitted.prompt) >= wanted:
            return fitted
        return replace(fitted, prompt=self.pad(fitted, num_tokens, min(limit, wanted)))

    def describe_padding(self) -> dict[str, Any]:
        """What decides the padding, for the records and the keys of cells; nothing without it, so that those keys stay."""
        if self.wanted_tokens is None:
            return {}
        solved = {key: [*islice(self._solved_examples(key), KEYED_EXAMPLES)] for key in islice(self.rows, KEYED_ROWS)}
        return {"padding": {"to": self.wanted_tokens, "with": f"solved/{PADDING}/{digest_of_data(solved)}"}}

    def pad(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Prompt:
        """The prompt behind as many solved examples as there is room for, and the end of the question of one more."""
        shots, fields = self.shots_of(example.id), self.fields(example.row)

        def render(num_whole: int, *cut: Fields) -> Prompt:
            nearest_first = [*islice(self._solved_examples(example.id), num_whole)]
            return self.rules.render(fields, [*cut, *nearest_first[::-1], *shots], is_chat=self.chat)

        num_whole = largest_of_all(render, num_tokens, limit)
        last = next(islice(self._solved_examples(example.id), num_whole, None))
        words = re.findall(r"\s*\S+", last[self._cut_field])

        def with_words(size: int) -> Prompt:
            end = {**last, self._cut_field: "".join(words[len(words) - size :]).lstrip()}
            return render(num_whole, end) if size else render(num_whole)

        return longest(with_words, max(0, len(words) - 1), num_tokens, limit)

    def _solved_examples(self, key: str) -> Iterator[Fields]:
        """Solved examples for a row, never itself, without end: after the last comes the first again."""
        fixed, ids = self.rules.fixed_shots, self._pool_ids
        size = len(fixed) or len(ids)
        for number in count(Draw(f"padding/{key}").below(size)):
            index = number % size
            if fixed:
                yield fixed[index]
            elif not (self._is_pool_asked and ids[index] == key):
                yield self.fields(self._shot_pool[ids[index]])

    @cached_property
    def _pool_ids(self) -> list[str]:
        """The ids of the rows that shots are taken from; none are read where the protocol brings shots of its own."""
        ids = [] if self.rules.fixed_shots else [*self._shot_pool]
        if len(ids) <= self._is_pool_asked and not self.rules.fixed_shots:
            raise ConfigError(
                f"task.pad_to={self.pad_to} needs solved examples besides the question: give task.shots_data=FILE"
            )
        return ids


def largest_of_all(prompt_of: Callable[[int], Prompt], num_tokens: Callable[[Prompt], int], limit: int) -> int:
    """The largest count whose prompt fits, where prompts grow without end."""
    too_many = next(size for size in (2**power for power in count()) if num_tokens(prompt_of(size)) > limit)
    return largest(prompt_of, too_many, num_tokens, limit)
