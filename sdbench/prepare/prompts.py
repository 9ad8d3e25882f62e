"""The prompts of a run as ids, cut to the available length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdbench.config import ConfigError, Run
from sdbench.prepare.progress import warn

if TYPE_CHECKING:
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.rules import Parts
    from sdbench.tasks.base import DataTask
    from sdbench.types import Example, Prompt


@dataclass(frozen=True)
class Prompts:
    """The examples of a run and their prompts as token ids, by example id in the order of the subset, cut to the length limit."""

    examples: Mapping[str, Example]
    ids: Mapping[str, list[int]]

    @classmethod
    def make(cls, task: DataTask, pair_info: PairInfo, run: Run, parts: Parts) -> Prompts:
        """Build the prompts. A prompt that leaves no room for the answer is cut by the protocol's rule; a warning counts these."""
        longest = pair_info.limit(parts)
        limit = longest - task.max_new_tokens
        if limit < 1:
            raise ConfigError(
                f"max_new_tokens={task.max_new_tokens} leaves no room for a prompt: {run.model.name} takes {longest} tokens"
                f" in all{pair_info.why_limited(parts)}; write a max_new_tokens well below that"
            )
        limit = min(limit, task.rules.prompt_limit or limit)
        examples = list(task.examples())

        def num_tokens(prompt: Prompt) -> int:
            return len(pair_info.ids(prompt))

        if task.wanted_tokens is not None:
            _refuse_padding(task, task.wanted_tokens, max(num_tokens(example.prompt) for example in examples), limit)
        fitted = {example.id: task.fit(example, num_tokens, limit) for example in examples}
        num_cut = sum(example.is_prompt_cut for example in fitted.values())
        if num_cut:
            warn(f"{num_cut} of {len(fitted)} prompts were too long for {limit} tokens and were cut: {task.cut_rule}")
        mine = list(fitted)[run.shard.index :: run.shard.count]
        return cls({key: fitted[key] for key in mine}, {key: pair_info.ids(fitted[key].prompt) for key in mine})

    def texts(self, key: str, task: DataTask, pair_info: PairInfo) -> tuple[str, str]:
        """Return (the prompt as the model read it, the reference answer), as texts for readers of the records."""
        return pair_info.prompt(self.ids[key]), task.fields(self.examples[key].row)["answer"]


def _refuse_padding(task: DataTask, wanted: int, longest: int, limit: int) -> None:
    """Raise if the requested length of padded prompts is above the limit, or below the longest prompt without padding."""
    option = f"task.{task.padded_by}={wanted}"
    if wanted > limit:
        raise ConfigError(
            f"{option} is more than the {limit} tokens that a prompt may have beside max_new_tokens={task.max_new_tokens}"
        )
    if longest > wanted:
        raise ConfigError(
            f"{option} is shorter than the longest prompt of task={task.name}, which has {longest} tokens"
        )
