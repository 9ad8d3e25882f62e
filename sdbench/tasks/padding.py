"""Prompts of a given length: `pad_to` puts solved examples of the same task before a prompt until it has this many tokens.

The examples come from the rows that shots come from; the row's id decides where in their order to start. The first example is next
to the question, so a longer prompt ends with the shorter one. The room that is left goes to the end of one more question with its
answer. Not covered: neutral text, and tasks of lm-evaluation-harness, which build their own prompts.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, ClassVar

from sdbench.config import ConfigError
from sdbench.embedded.grammar.draw import Draw
from sdbench.files import digest_of_data
from sdbench.tasks.prompting import Prompting, largest, longest
from sdbench.tasks.protocol import Fields
from sdbench.types import Example, Prompt

PADDING = "1"  # increase it when the same rows pad a prompt in another way than before
KEYED_ROWS, KEYED_EXAMPLES = 64, 8  # a cell's key has a digest of so many rows, and of so many examples that pad each


@dataclass(kw_only=True)
class Padding(Prompting):
    """Prompts that may be padded; without `pad_to` they are those of `Prompting`."""

    pad_to: int | None = None

    padded_by: ClassVar[str] = "pad_to"  # the option with the length of prompts

    @property
    def padding_version(self) -> str:
        """The version of how rows pad a prompt, for the keys of cells."""
        return PADDING

    @property
    def wanted_tokens(self) -> int | None:
        """Return how many tokens a prompt is padded to; None: prompts are not padded."""
        return getattr(self, self.padded_by)

    def fit(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Example:
        """Return the example cut to `limit` tokens, or padded to at most `wanted_tokens`, which cuts nothing."""
        fitted, wanted = super().fit(example, num_tokens, limit), self.wanted_tokens
        if wanted is None or num_tokens(fitted.prompt) >= wanted:
            return fitted
        return replace(fitted, prompt=self.pad(fitted, num_tokens, min(limit, wanted)))

    def describe_padding(self) -> dict[str, Any]:
        """Return what decides the padding, for records and keys of cells; empty without padding, so that keys stay the same."""
        if self.wanted_tokens is None:
            return {}
        solved = {key: [*islice(self._solved_examples(key), KEYED_EXAMPLES)] for key in islice(self.rows, KEYED_ROWS)}
        return {
            "padding": {"to": self.wanted_tokens, "with": f"solved/{self.padding_version}/{digest_of_data(solved)}"}
        }

    def pad(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Prompt:
        """Return the prompt after as many solved examples as fit, and after the end of one more question with its answer."""
        shots, fields = self.shots_of(example.id), self.fields(example.row)

        def render(num_whole: int, *cut: Fields) -> Prompt:
            nearest_first = [*islice(self._solved_examples(example.id), num_whole)]
            return self.rules.render(fields, [*cut, *nearest_first[::-1], *shots], is_chat=self.chat)

        num_whole = largest_of_all(render, num_tokens, limit)
        last = next(islice(self._solved_examples(example.id), num_whole, None))
        words = re.findall(r"\s*\S+", last[self._cut_field])

        def with_words(size: int) -> Prompt:
            end = self.with_cut_field(last, "".join(words[len(words) - size :]).lstrip())
            return render(num_whole, end) if size else render(num_whole)

        return longest(with_words, max(0, len(words) - 1), num_tokens, limit)

    def _solved_examples(self, key: str) -> Iterator[Fields]:
        """Yield solved examples for a row without end, in a circle; never the row itself, nor a copy of it."""
        fixed = self.rules.fixed_shots
        size = len(fixed or self._pool_ids)
        start = Draw(f"padding/{key}").below(size)
        if fixed:
            yield from (fixed[number % size] for number in count(start))  # without end
        if next(self.others_than(key, self._pool_ids), None) is None:
            raise ConfigError(
                f"task.pad_to={self.pad_to} needs solved examples other than the question itself: set task.shots_data=FILE"
            )
        yield from self.others_than(key, (self._pool_ids[number % size] for number in count(start)))


def largest_of_all(prompt_of: Callable[[int], Prompt], num_tokens: Callable[[Prompt], int], limit: int) -> int:
    """Return the largest count whose prompt fits, where prompts grow without end."""
    too_many = next(size for size in (2**power for power in count()) if num_tokens(prompt_of(size)) > limit)
    return largest(prompt_of, too_many, num_tokens, limit)
