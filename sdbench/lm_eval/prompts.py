"""The prompts of an evaluation as ids, by task, with the options by which their answers are decoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sdbench.lm_eval.options import AnswerOptions
from sdbench.prepare.progress import warn


@dataclass(frozen=True)
class TaskPrompts:
    """The prompts of one task whose answers have the same options, cut to the available length."""

    task: str
    options: AnswerOptions
    indices: Sequence[int]  # of the requests among those of all tasks
    requests: Sequence[Any]
    ids: Sequence[list[int]]
    is_cut: Sequence[bool]

    @classmethod
    def make(
        cls, task: str, options: AnswerOptions, requests: dict[int, Any], encode: Callable[[str], list[int]]
    ) -> TaskPrompts:
        """Tokenize the prompts. Of a prompt that is too long, the last tokens are kept with a warning, as by the harness's `hf`."""
        texts = [encode(str(request.args[0])) for request in requests.values()]
        is_cut = [len(ids) > options.room for ids in texts]
        if num_cut := sum(is_cut):
            length = options.max_new_tokens
            warn(
                f"{num_cut} of {len(texts)} prompts of {task} were too long for {options.room} tokens and lost their beginning: "
                f"the pair takes {options.room + length} tokens, of which max_gen_toks={length} are for the answer"
            )
        ids = [text[-options.room :] for text in texts]
        return cls(task, options, list(requests), list(requests.values()), ids, is_cut)


def prompts_by_task(requests: Sequence[Any], encode: Callable[[str], list[int]], limit: int) -> list[TaskPrompts]:
    """Group requests by their task and its options; raise ConfigError for options that are not supported."""
    groups: dict[tuple[str, str], dict[int, Any]] = {}
    for index, request in enumerate(requests):
        given = json.dumps(request.args[1], sort_keys=True)
        groups.setdefault((str(request.task_name), given), {})[index] = request
    options = [AnswerOptions.of(task, json.loads(given), limit) for task, given in groups]
    return [
        TaskPrompts.make(task, each, group, encode)
        for each, ((task, _), group) in zip(options, groups.items(), strict=True)
    ]
