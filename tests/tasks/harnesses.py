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


def main():
    sys.modules["evaluate"] = Hub("evaluate")
    from evalplus.sanitize import sanitize

    humaneval, mbpp = task_file("humaneval"), task_file("mbpp")
    read = {
        "humaneval": lambda answer, doc: humaneval.build_predictions([[answer]], [doc])[0][0],
        "humaneval_instruct": lambda answer, doc: humaneval.build_predictions_instruct([[answer]], [doc])[0][0],
        "mbpp_instruct": lambda answer, doc: mbpp.build_predictions([[answer]], [doc])[0][0],
        "evalplus": lambda answer, doc: sanitize(answer, doc["entry_point"]),
    }
    json.dump([read[one["kind"]](one["answer"], one["doc"]) for one in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
