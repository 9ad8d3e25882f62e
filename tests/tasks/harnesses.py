"""What lm-eval and evalplus themselves make of answers; run by test_parity.py with a Python that has both.

stdin: a JSON list of {"kind", "doc", "answer"}; stdout: the list of what the harness would run or compare.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace


class Hub(ModuleType):
    """`evaluate` without its hub: lm-eval's task files load a metric when they are imported."""

    def load(self, *_, **__):
        return SimpleNamespace(compute=lambda **_: ({"pass@1": 0.0}, {}))


def task_file(name):
    """lm_eval/tasks/NAME/utils.py as a module, without the rest of lm-eval."""
    place = Path(importlib.util.find_spec("lm_eval").origin).parent / "tasks" / name / "utils.py"
    spec = importlib.util.spec_from_file_location(f"lm_eval_{name}", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gsm8k(name, answer, doc):
    """[strict-match, flexible-extract] of lm_eval/tasks/gsm8k/NAME.yaml: its filters, then its exact match."""
    import yaml
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    place = Path(importlib.util.find_spec("lm_eval").origin).parent / "tasks" / "gsm8k" / f"{name}.yaml"
    task = yaml.safe_load(place.read_text())
    gold = doc["answer"] if "split" not in task["doc_to_target"] else doc["answer"].split("####")[-1].strip()
    (metric,) = task["metric_list"]
    options = {key: metric[key] for key in ("ignore_case", "ignore_punctuation", "regexes_to_ignore")}
    right = {}
    for chain in task["filter_list"]:
        first = next(dict(step) for step in chain["filter"] if step["function"] == "regex")
        first.pop("function")
        ((text,),) = RegexFilter(**first).apply([[answer]], [doc])
        right[chain["name"]] = bool(exact_match_hf_evaluate([text], [gold], **options)["exact_match"])
    return [right["strict-match"], right["flexible-extract"]]


def main():
    sys.modules["evaluate"] = Hub("evaluate")
    sys.modules["sacrebleu"] = ModuleType("sacrebleu")  # imported beside lm-eval's exact match, and not asked
    from evalplus.sanitize import sanitize

    humaneval, mbpp = task_file("humaneval"), task_file("mbpp")
    read = {
        "humaneval": lambda answer, doc: humaneval.build_predictions([[answer]], [doc])[0][0],
        "humaneval_instruct": lambda answer, doc: humaneval.build_predictions_instruct([[answer]], [doc])[0][0],
        "mbpp_instruct": lambda answer, doc: mbpp.build_predictions([[answer]], [doc])[0][0],
        **{
            name: lambda answer, doc, name=name: gsm8k(name, answer, doc)
            for name in ("gsm8k", "gsm8k-cot", "gsm8k-cot-llama")
        },
        "evalplus": lambda answer, doc: sanitize(answer, doc["entry_point"]),
    }
    json.dump([read[one["kind"]](one["answer"], one["doc"]) for one in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
