"""lm-evaluation-harness and `task=lm-eval:NAME` over the same rows and answers; run by test_lm_eval.py with a Python that has both.

argv: names of tasks, each by itself or as `NAME OPTIONS` with options of our task as a JSON object. stdout: a JSON object, for each
of these the two prompts, limits and scores of each row, and the two scores of the whole sample. `record` instead prints what
lm-evaluation-harness gives for the tasks in RECORDED, which test_recorded_lm_eval.py reads: python tests/tasks/lm_eval_both.py
record > tests/tasks/golden/lm_eval.json
"""

import json
import logging
import sys
import warnings
from contextlib import redirect_stdout
from functools import cache
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from unittest.mock import patch

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[i]) for i in range(3)]  # this folder, tests/, and the package's
from lm_eval_rows import OWN, RECORDED, TARGET, files_of  # noqa: E402


def answers_of(rows, targets):
    """Right answers, nearly right ones, and none."""
    forms = (
        "{}",
        " {}",
        "The answer is {}.",
        "#### {}",
        "so the answer is {}.",
        "",
        "no",
        "$\\boxed{{{}}}$",
        "{} {} {}",
    )
    return [
        forms[i % len(forms)].replace("{}", str(target))
        for i, (_, target) in enumerate(zip(rows, targets, strict=True))
    ]


def canned(answers):
    """The harness's model that writes these answers, with the chat template of llama-tiny; more of them for `repeats`."""
    from lm_eval.api.model import LM
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import normalize_gen_kwargs
    from transformers import AutoTokenizer

    class Canned(LM):
        tokenizer, tokenizer_name, chat_template_args = AutoTokenizer.from_pretrained(TARGET), "llama-tiny", {}
        apply_chat_template = HFLM.apply_chat_template

        def generate_until(self, requests, disable_tqdm=False):
            repeats = len(requests) // len(answers)
            self.prompts = [request.args[0] for request in requests[::repeats]]
            options = [normalize_gen_kwargs(request.args[1]) for request in requests[::repeats]]
            self.limits = [[each["max_gen_toks"], list(filter(None, each["until"]))] for each in options]
            texts = [cut(answer, stops) for answer, (_, stops) in zip(answers, self.limits, strict=True)]
            return [each for text in texts for each in [text, *["#### 7"] * (repeats - 1)]]

        loglikelihood = loglikelihood_rolling = None

    Canned.__abstractmethods__ = frozenset()
    return Canned()


def cut(text, stops):
    """As the harness's models do."""
    for stop in stops:
        text = text.split(stop)[0]
    return text


def code_eval(*, references, predictions, k, **_):
    """The metric code_eval of `evaluate` without its processes and limits, which no answer here needs."""
    passed = [
        [passes(f"{candidate}\n{test}") for candidate in candidates]
        for test, candidates in zip(references, predictions, strict=True)
    ]
    counts = [(len(each), sum(each)) for each in passed]
    return {f"pass@{size}": np.mean([pass_at(size, *count) for count in counts]) for size in k}, passed


def passes(program):
    try:
        exec(program, {})
    except BaseException:  # noqa: BLE001 - as there
        return False
    return True


def pass_at(k, total, correct):
    """Chen et al. 2021 (arXiv:2107.03374), figure 3."""
    if total - correct < k:
        return 1.0
    return 1.0 - np.prod(1.0 - k / np.arange(total - correct + 1, total + 1))


@cache
def pair_info():
    from sdbench.config import Model
    from sdbench.prepare import pair
    from sdbench.prepare.pair_info import PairInfo

    return PairInfo.read(pair.find(Model("llama-tiny", str(TARGET), None), device="cpu", dtype="auto"))


def text_of(prompt):
    """A prompt of ours as text; turns as a run of llama-tiny reads them."""
    return prompt.text if prompt.text is not None else pair_info().prompt(pair_info().ids(prompt))


def whole_score(metric, scores):
    """The score of the whole sample: a mean, or that of the summed statistics."""
    from sdbench.metrics.quality import corpus_of

    if metric.stats is None:
        return float(np.mean([score.values[metric.name] for score in scores]))
    return float(corpus_of(metric)(np.sum([score.stats[metric.name] for score in scores], axis=0)))


def shots_of(name):
    """A file of the shots that the harness's task file itself has, which are rows of no data set here; None if it has none."""
    if name != "mbpp":
        return None
    from lm_eval.tasks.mbpp.utils import list_fewshot_samples  # loaded already, with code_eval in our sandbox

    with NamedTemporaryFile("w", suffix=".jsonl", delete=False) as file:
        file.writelines(f"{json.dumps(row)}\n" for row in list_fewshot_samples())
    return file.name


def over_files(path, data, shots_data=None):
    """The harness's task of a YAML file as the harness builds it, but for the files that its splits are read from."""
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(path, resolve_func=True)
    files = {
        config[f"{kind}_split"]: shots_data or data for kind in ("training", "fewshot") if config.get(f"{kind}_split")
    }
    rows = {"data_files": files | {config["test_split"]: data}}
    return ConfigurableTask(config={**config, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": rows})


def compare(name, options):
    import lm_eval
    from lm_eval import evaluator
    from lm_eval.tasks import TaskManager

    evaluator.add_env_info = lambda results: None  # it lists every installed package, for each task

    import sdbench.tasks
    from sdbench.tasks import harness, harness_files

    ours = sdbench.tasks.load(f"lm-eval:{name}", seed=None, n=20, **options)
    examples = list(ours.examples())
    answers = answers_of(examples, [ours.fields(example.row)["answer"] for example in examples])
    if ours._tree.get("unsafe_code"):
        solutions = [example.row.get("canonical_solution") or example.row["code"] for example in examples]
        answers = [solution if i % 3 else "    return None" for i, solution in enumerate(solutions)]
        if "gen_prefix" in ours._tree:  # it opens a block of code
            answers = [f"{lead}{answer}\n```" for lead, answer in zip(cycle(("\n", "\n", "")), answers)]
    scores = ours.score_all(zip(examples, answers, strict=True))
    model = canned(answers)
    # A task of the harness's own: with a hub by its name, else over the same files.
    theirs = over_files(ours._file, options["data"], options.get("shots_data")) if "data" in options else name
    with patch.object(harness.CODE_EVAL, "compute", code_eval):  # which the module of the task has kept
        results = lm_eval.simple_evaluate(
            model=model,
            tasks=[theirs],
            # Its index of all its 14,000 files takes many seconds.
            task_manager=TaskManager(include_defaults=False, include_path=str(ours._file.parent)),
            limit=20,
            bootstrap_iters=0,
            confirm_run_unsafe_code=True,
            log_samples=True,
            num_fewshot=options.get("shots"),
            apply_chat_template=options.get("chat", False),
            fewshot_as_multiturn=options.get("multiturn", True),
            system_instruction=options.get("system"),
        )
    samples = results["samples"][name]
    filters = sorted({sample["filter"] for sample in samples})
    rows = []
    for i, score in enumerate(scores):
        their_values = {}
        for sample in samples:
            if sample["doc_id"] == i:
                end = f",{sample['filter']}" if len(filters) > 1 else ""
                their_values |= {f"{metric}{end}": sample[metric] for metric in sample["metrics"]}
        rows.append({"ours": dict(score.values), "theirs": their_values})
    whole = {"ours": {metric.name: whole_score(metric, scores) for metric in ours.metrics}, "theirs": {}}
    for key, value in results["results"][name].items():
        metric, comma, _ = key.partition(",")
        if comma and not metric.endswith("_stderr"):
            whole["theirs"][key if len(filters) > 1 else metric] = value
    own = None
    if options.keys() <= {"chat", "shots"} and OWN.get(name) is not None:
        own_name, pairs = OWN[name]
        words = options | ({"protocol": "cot"} if name.endswith("_cot") else {})
        if shots := shots_of(name):
            words["shots_data"] = shots
        task = sdbench.tasks.load(own_name, seed=None, n=20, **words)
        own_examples = list(task.examples())
        own_scores = task.score_all(zip(own_examples, answers, strict=True))
        own = {
            "prompts": [[text_of(a.prompt), text_of(b.prompt)] for a, b in zip(own_examples, examples, strict=True)],
            "stops": [list(task.stop), list(ours.stop)],
            "scores": [
                [a.values[mine] / task.metric_of(mine).bounds[1], b.values[theirs]]
                for a, b in zip(own_scores, scores, strict=True)
                for mine, theirs in pairs.items()
                if task.metric_of(mine).stats is None
            ]
            + [  # scores of one sentence differ by definition: ours smooth, and the harness has none
                [whole_score(task.metric_of(mine), own_scores), whole["theirs"][theirs]]
                for mine, theirs in pairs.items()
                if task.metric_of(mine).stats is not None
            ],
        }
    return {
        "own": own,
        "answers": answers,
        "prompts": [[text_of(example.prompt), text] for example, text in zip(examples, model.prompts, strict=True)],
        "limits": [[[ours.max_new_tokens, list(ours.stop)], limits] for limits in model.limits],
        "rows": rows,
        "whole": whole,
        "files": harness_files.digests_of(ours._file),
        "commit": ours.dataset_commit,
    }


def record():
    """Prompts, options and scores of the harness for the recorded tasks, with rows and answers of ours."""
    recorded = {}
    for name in RECORDED:
        with TemporaryDirectory() as folder:
            both = compare(name, files_of(name, Path(folder)))
        (limits,) = {json.dumps(theirs) for _, theirs in both["limits"]}
        recorded[name] = {
            "max_gen_toks": json.loads(limits)[0],
            "until": json.loads(limits)[1],
            "whole": both["whole"]["theirs"],
            "rows": [
                {
                    "prompt": prompt,
                    "answer": answer,
                    "scores": {k: v for k, v in row["theirs"].items() if not isinstance(v, list)},
                }
                for (_, prompt), answer, row in zip(both["prompts"], both["answers"], both["rows"], strict=True)
            ],
        }
    return {"lm_eval": version("lm_eval"), "tasks": recorded}


def main():
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    results = {}
    with redirect_stdout(sys.stderr):
        if sys.argv[1:] == ["record"]:
            results = record()
        else:
            for word in sys.argv[1:]:
                name, _, options = word.partition(" ")
                results[word] = compare(name, json.loads(options or "{}"))
    json.dump(results, sys.stdout, default=lambda value: value.item() if hasattr(value, "item") else str(value))


if __name__ == "__main__":
    main()
