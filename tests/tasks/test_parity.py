"""Our literal readings are the harnesses' own: lm-eval's filter functions and evalplus's `sanitize`, on one corpus of answers.

Deliberate differences, none of which this corpus holds against us:
- the tests run after a program with builtins and names of their own, so that it cannot patch them; harnesses share one scope;
- MBPP's rows bring their imports and set-up code, which lm-eval leaves out;
- of an answer in the fence that the prompt of MBPP's protocol llama opens, lm-eval drops the first word as the fence's language,
  be it `def`; we do only if it ends its line, so such an answer is compared with what lm-eval reads after a line end;
- under evalplus helpers that HumanEval's own tests call are kept (rows 38 and 50): evalplus has other tests;
- lm-eval deletes all up to the last mark by a pattern of quadratic time, we by a search; the corpus has no long answers;
- evalplus is read by Python's parser instead of tree-sitter, so its programs are compared as syntax trees, and where it
  finds no program it runs the answer's first line, which fails.
"""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
from lm_eval_rows import IMPORTED, both_sides, check_both
from own import load
from styles import GSM8K, HUMANEVAL, MBPP, answers

from sdbench.types import Example, Prompt

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.mark.long
def test_tasks_of_lm_eval_that_import_more_agree(python, tmp_path):
    """The tasks that test_lm_eval.py leaves out, in an environment that has their modules."""
    formulas = Path(python).parents[1] / "math"  # a grammar of formulas, in a version that Hydra does not take
    check_both(both_sides(python, list(IMPORTED), tmp_path, str(formulas)))


def harness(python, asked):
    """What the harness makes of (kind, row, answer)."""
    given = json.dumps([{"kind": kind, "doc": row, "answer": answer} for kind, row, answer in asked])
    done = subprocess.run(
        [python, str(HERE / "harnesses.py")], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def corpus(task, styles):
    return [(row, style, text) for row in task.rows.values() for style, (text, *_) in answers(styles, row).items()]


@pytest.mark.parametrize(
    ("name", "options", "kind", "styles"),
    [
        ("humaneval", {"protocol": "lm-eval"}, "humaneval", HUMANEVAL),
        ("humaneval", {"protocol": "lm-eval", "chat": True}, "humaneval_instruct", HUMANEVAL),
        ("humaneval", {"protocol": "llama"}, "humaneval_instruct", HUMANEVAL),
        ("mbpp", {"protocol": "llama"}, "mbpp_instruct", MBPP),
        ("mbpp-sanitized", {"protocol": "llama"}, "mbpp_instruct", MBPP),
    ],
)
def test_the_literal_program_is_lm_evals_to_the_letter(python, name, options, kind, styles):
    task = load(name, **options)
    asked = corpus(task, styles)
    theirs = harness(python, [(kind, dict(row), shown_to(kind, task.until_stop(text))) for row, _, text in asked])
    for (row, style, text), program in zip(asked, theirs, strict=True):
        assert task.literal(row, text) == program, style


def shown_to(kind, text):
    """The answer with a line end before it where lm-eval would drop a word of code."""
    return f"\n{text}" if kind == "mbpp_instruct" and re.match(r"\w+(?!\w|\s*\n)", text) else text


def test_mbpp_under_lm_eval_is_the_answer_up_to_its_stop_string():
    """lm-eval has no filter there: what it runs is what was generated."""
    task = load("mbpp")
    for row, style, text in corpus(task, MBPP):
        assert task.literal(row, text) == text.split("[DONE]")[0], style


@pytest.mark.parametrize(
    ("protocol", "kind"), [("lm-eval", "gsm8k"), ("cot", "gsm8k-cot"), ("llama", "gsm8k-cot-llama")]
)
def test_strict_and_flexible_are_lm_evals_filters_and_its_exact_match(python, protocol, kind):
    task = load("gsm8k", protocol=protocol)
    asked = [
        (key, row, style, form.format(n=row["answer"].split("####")[-1].strip(), reference=row["answer"]))
        for key, row in task.rows.items()
        for style, form in GSM8K.items()
    ]
    theirs = harness(python, [(kind, dict(row), task.until_stop(text)) for _, row, _, text in asked])
    assert {tuple(each) for each in theirs} >= {(True, True), (False, True), (False, False)}, (
        "the corpus tells readings apart"
    )
    for (key, row, style, text), right in zip(asked, theirs, strict=True):
        values = task.score(Example(key, row, Prompt()), text).values
        assert [bool(values["strict"]), bool(values["flexible"])] == right, (style, text)


def tree(code, name):
    """The program without its layout; None where it does not define the function asked for, and so fails in any case."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    return ast.dump(tree) if any(getattr(statement, "name", "") == name for statement in tree.body) else None


def test_evalplus_is_read_as_its_own_sanitize_does(python):
    task = load("humaneval", protocol="evalplus")
    asked = [(row, style, text) for row, style, text in corpus(task, HUMANEVAL) if len(task.entry_points(row)) == 1]
    theirs = harness(python, [("evalplus", dict(row), task.until_stop(text)) for row, _, text in asked])
    for (row, style, text), program in zip(asked, theirs, strict=True):
        assert tree(task.literal(row, text), row["entry_point"]) == tree(program, row["entry_point"]), style
