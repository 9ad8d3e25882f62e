"""Rows in the schemas of the data sets of ten tasks of lm-evaluation-harness, on a stand-in hub; nothing of theirs is copied."""

import json
import subprocess
from pathlib import Path

import hub_repos
import pytest
from hub import Hub

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "sdbench" / "embedded" / "llama-tiny" / "target"

# Name of a task -> ours and its metrics that must agree with theirs, where there is one.
OWN = {
    "gsm8k": ("gsm8k", {"strict": "exact_match,strict-match", "flexible": "exact_match,flexible-extract"}),
    "gsm8k_cot": ("gsm8k", {"strict": "exact_match,strict-match", "flexible": "exact_match,flexible-extract"}),
    "humaneval": ("humaneval", {"pass@1": "pass@1"}),
    "mbpp": ("mbpp", {"pass@1": "pass_at_1"}),
    "cnn_dailymail_abisee": ("cnndm", {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougeL"}),
    "wmt16-de-en": ("wmt16", {"bleu": "bleu", "chrf2": "chrf"}),  # of the whole sample; TER is not among ours
    "ifeval": None,
    "bbh_cot_fewshot_boolean_expressions": None,
    "longbench_qasper": None,
    "minerva_math_algebra": None,
}
IMPORTED = {  # by modules of these tasks, beyond what lm_eval itself needs: .venv-parity has them
    "ifeval": ("langdetect", "immutabledict", "nltk"),
    "longbench_qasper": ("jieba", "fuzzywuzzy", "rouge"),
    "minerva_math_algebra": ("math_verify", "sympy"),
}
NUM_ROWS = 20
# Tasks whose prompts and scores are recorded for tests without lm_eval: their prompts hold rows of ours and no shots of theirs.
RECORDED = {"gsm8k": ("openai/gsm8k", "main"), "wmt16-de-en": ("wmt/wmt16", "de-en")}
RECORD = HERE / "golden" / "lm_eval.json"


def ifeval(i):
    kinds = ["punctuation:no_comma", "detectable_format:number_highlighted_sections", "keywords:forbidden_words"]
    kinds = kinds[: 1 + i % 3]
    options = [{}, {"num_highlights": 1}, {"forbidden_words": ["no"]}]
    keys = ("num_highlights", "forbidden_words")
    given = [{key: each.get(key) for key in keys} for each in options[: len(kinds)]]
    return {
        "key": 1000 + i,
        "prompt": f"Write {i} words without a comma.",
        "instruction_id_list": kinds,
        "kwargs": given,
    }


def boolean(i):
    return {"input": f"not {'not ' * i}True is", "target": str(bool(i % 2))}


def algebra(i):
    solution = f"Then $x = {i} + 2$, so the answer is $\\boxed{{{i + 2}}}$."
    return {"problem": f"Find $x$ if $x - {i} = 2$.", "solution": solution, "level": "Level 1", "type": "Algebra"}


def paper(i):
    question = {"input": "", "context": f"We train for {i} hours. " * 20, "question": "How long is training?"}
    question |= {"answers": [f"{i} hours", f"for {i} hours"], "length": 80, "dataset": "qasper", "language": "en"}
    return question | {"all_classes": "", "_id": f"{i:08x}"}


def files_of(name: str, folder: Path) -> dict[str, str]:
    """Options with the files of a recorded task: its rows, and other rows for the shots of gsm8k."""
    id, config = RECORDED[name]
    row_of, files = hub_repos.rows()[id][config], {}
    for option, first in {"data": 0, **({"shots_data": NUM_ROWS} if name == "gsm8k" else {})}.items():
        path = folder / f"{name}-{option}.jsonl"
        lines = [json.dumps(row_of(i)) for i in range(first, first + NUM_ROWS)]
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        files[option] = str(path)
    return files


def make_hub(root: Path) -> Hub:
    """A running hub; all splits have the same rows, as no test needs others."""
    known = hub_repos.rows()
    sets = {id: known[id] for id in ("openai/gsm8k", "openai/openai_humaneval", "google-research-datasets/mbpp")}
    sets |= {id: known[id] for id in ("abisee/cnn_dailymail", "wmt/wmt16")}
    sets |= {"google/IFEval": {"default": ifeval}, "SaylorTwift/bbh": {"boolean_expressions": boolean}}
    sets |= {"EleutherAI/hendrycks_math": {"algebra": algebra}, "Xnhyacinth/LongBench": {"qasper": paper}}
    hub_repos.make_datasets(root, sets, num_rows=NUM_ROWS)
    return Hub(root).start()


def both_sides(python: str, names: list[str], root: Path, libraries: str = "") -> dict:
    """These tasks, as lm_eval_both.py takes them, in this Python, over a stand-in hub with 20 rows of each data set."""
    hub = make_hub(root)
    env = hub.env(root / "home", PYTHONPATH=f"{libraries}:{HERE.parents[1]}".lstrip(":"))
    command = [python, str(HERE / "lm_eval_both.py"), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    hub.stop()
    assert done.returncode == 0, done.stderr[-3000:]
    both = json.loads(done.stdout)
    assert sorted(both) == sorted(names)
    return both


def check_both(compared: dict) -> None:
    for name, both in compared.items():
        assert len(both["prompts"]) == 20, name
        assert all(ours == theirs for ours, theirs in both["prompts"]), name
        assert all(ours == theirs for ours, theirs in both["limits"]), (name, both["limits"][0])
        for row in both["rows"]:
            assert set(row["ours"]) == set(row["theirs"]), name
            for metric, value in row["ours"].items():
                if not isinstance(row["theirs"][metric], list):
                    assert value == pytest.approx(float(row["theirs"][metric]), abs=1e-12), (name, metric)
        assert both["whole"]["ours"] == pytest.approx(both["whole"]["theirs"], abs=1e-12), name
        assert any(value for row in both["rows"] for value in row["ours"].values()), f"{name}: some answer is right"
