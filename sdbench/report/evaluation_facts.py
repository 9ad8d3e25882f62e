"""What tells evaluations by lm-evaluation-harness apart: facts of a results file, as text."""

import json
import re
from collections.abc import Mapping
from typing import Any

from sdbench.errors import SECRET_NAME, without_user
from sdbench.files import digest_of

# Facts that sdbench adds to the harness's results and that are not knobs. OURS are columns of the table, empty for other models.
OURS = ["draft", "checkpoints", "numerics", "drafter_options", "seed", "chat_options"]
FACTS = ("target", *OURS, "drafter", "verifier", "num_draft", "is_lossless", "tasks")
# Facts that the label of a row may include: each only if rows that agree in all facts before it differ in this one.
NAMED_BY = [
    *("task_version", "target", "options", "chat_options", "draft", "checkpoints", "numerics"),
    *("setting", "model_options", "drafter_options", "seed"),
]
# Options of the harness's models that name a model, which is the target, or change no answer; and `header`, which may hold a key.
UNNAMED = {
    *("pretrained", "model", "path", "engine", "device", "batch_size", "max_batch_size"),
    *("num_concurrent", "max_retries", "timeout", "header"),
}
OF_A_FILE = ("version", "config_source")  # what a task's metadata hold besides --metadata and --model_args
SCORED_BY = ("filter_list", "metric_list", "process_results")  # options of a task that decide its scores
# The address or the path of an object in its text form: equal options may differ in it.
LOCATION = re.compile(r" at 0x[0-9a-f]+|(?<=<class ')/[^']*/")
SHOT_SEED = 1234  # of the harness, if the user gives no --seed


def setting_of(config: Mapping[str, Any]) -> str:
    """Return the rule with its knobs, or the harness's name of another model."""
    ours = config.get("sdbench")
    if not ours:
        return str(config["model"])
    knobs = [f"{name}={value}" for name, value in ours.items() if name not in FACTS]
    drafter = [] if ours["drafter"] == "model" else [ours["drafter"]]
    return " ".join([ours["verifier"], *knobs, *drafter, f"K={ours['num_draft']}"])


def model_options_of(config: Mapping[str, Any]) -> str:
    """Return the options and commits of one of the harness's own models; those of sdbench are facts of their own."""
    if config.get("sdbench"):
        return ""
    options = _model_args_of(config)
    is_adapted = "peft" in options or "delta" in options  # these name the model, and `pretrained` its base
    unnamed = UNNAMED - {"pretrained"} if is_adapted else UNNAMED
    words = {name: options[name] for name in sorted(options) if not (name in unnamed or SECRET_NAME.search(name))}
    commits = {name: config.get(name) or None for name in ("model_sha", "peft_sha", "delta_sha")}  # "" for a folder
    return without_user(words_of({**words, **commits}))


def _model_args_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return --model_args, which the harness keeps in the form in which it got them."""
    given = config.get("model_args") or {}
    if isinstance(given, str):
        return {name: value for name, _, value in (pair.partition("=") for pair in given.split(","))}
    return dict(given)


def words_of(fact: object) -> str:
    """Return a fact as text, empty where it is not known."""
    if isinstance(fact, Mapping):
        return " ".join(f"{name}={value}" for name, value in fact.items() if value is not None)
    return "" if fact is None else str(fact)


def task_version_of(document: Mapping[str, Any], task: str) -> str:
    """Return the version of a task and a hash of what scores its answers, as text."""
    options = document.get("configs", {}).get(task, {})
    scoring = json.dumps([options.get(name) for name in SCORED_BY], sort_keys=True)
    return f"{document.get('versions', {}).get(task)}/{digest_of(LOCATION.sub('', scoring), digits=8)}"


def options_of(document: Mapping[str, Any], task: str) -> str:
    """Return the other options on which answers depend, as text."""
    config, chat = document["config"], document.get("chat_template_sha")
    num_shots, count = document.get("n-shot", {}).get(task), document["n-samples"][task]
    seed = config.get("fewshot_seed")
    of_task = document.get("configs", {}).get(task, {})
    generation, repeats = of_task.get("generation_kwargs"), of_task.get("repeats")  # the former with --gen_kwargs
    words: dict[str, Any] = {"limit": str(config.get("limit")), "shots": str(num_shots), "chat": str(chat)}
    words["system"] = document.get("system_instruction_sha")
    has_shot_turns = chat and num_shots  # without them that option changes no prompt
    words["multiturn"] = document.get("fewshot_as_multiturn") if has_shot_turns else None
    words["fewshot_seed"] = None if seed == SHOT_SEED else seed
    if config.get("limit") is None and count["effective"] < count.get("original", 0):  # by --samples
        documents = document.get("task_hashes", {}).get(task, "")[:8]  # with --log_samples
        words["samples"] = f"{count['effective']} {documents or '(not logged, ' + str(document.get('date')) + ')'}"
    words["repeats"] = None if repeats == 1 else repeats
    words["generation_kwargs"] = json.dumps(generation, sort_keys=True) if generation else None
    model_args, is_text = _model_args_of(config), isinstance(config.get("model_args"), str)
    given = {
        name: value
        for name, value in (of_task.get("metadata") or {}).items()
        if name not in OF_A_FILE and not (name in model_args and (is_text or model_args[name] == value))
    }
    words["metadata"] = json.dumps(given, sort_keys=True) if given else None
    return words_of(words)
