"""The prompts of an evaluation as ids, grouped by the options with which their answers are decoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sdbench.lm_eval.options import AnswerOptions
from sdbench.prepare.progress import warn


@dataclass(frozen=True)
class TaskPrompt:
    """A prompt as ids, cut to the available length."""

    task: str
    number: int  # among the prompts of its task
    index: int  # of its request among those of all tasks
    request: Any
    ids: list[int]
    is_cut: bool


@dataclass(frozen=True)
class PromptGroup:
    """Prompts whose answers are decoded together, with the same options."""

    options: AnswerOptions
    prompts: Sequence[TaskPrompt]


def group_prompts(
    requests: Sequence[Any],
    encode: Callable[[str], list[int]],
    limit: int,
    is_sampled: Callable[[AnswerOptions], bool],
) -> list[PromptGroup]:
    """Group the prompts of all tasks by their options; raise ConfigError for options that are not supported.

    Tasks whose answers are sampled stay apart, because the random numbers of an answer depend on its number within its task.
    """
    by_task: dict[tuple[str, str], dict[int, Any]] = {}
    for index, request in enumerate(requests):
        given = json.dumps(request.args[1], sort_keys=True)
        by_task.setdefault((str(request.task_name), given), {})[index] = request
    options_of = {(task, given): AnswerOptions.of(task, json.loads(given), limit) for task, given in by_task}
    groups: dict[Any, list[TaskPrompt]] = {}
    for key, options in options_of.items():
        prompts = _prompts_of(key[0], options, by_task[key], encode)
        groups.setdefault((options, key if is_sampled(options) else None), []).extend(prompts)
    return [PromptGroup(options, prompts) for (options, _), prompts in groups.items()]


def _prompts_of(
    task: str, options: AnswerOptions, requests: Mapping[int, Any], encode: Callable[[str], list[int]]
) -> list[TaskPrompt]:
    """Tokenize the prompts of a task. Of a prompt that is too long, the last tokens are kept with a warning, as by the harness's
    `hf`.
    """
    texts = [encode(str(request.args[0])) for request in requests.values()]
    is_cut = [len(ids) > options.room for ids in texts]
    if num_cut := sum(is_cut):
        length = options.max_new_tokens
        warn(
            f"{num_cut} of {len(texts)} prompts of {task} were too long for {options.room} tokens and lost their beginning: "
            f"the pair takes {options.room + length} tokens, of which max_gen_toks={length} are for the answer"
        )
    return [
        TaskPrompt(task, number, index, request, texts[number][-options.room :], is_cut[number])
        for number, (index, request) in enumerate(requests.items())
    ]
