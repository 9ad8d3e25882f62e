"""HumanEval and MBPP through the sandbox: references pass, emptied bodies fail, answers of every shape are read."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
from own import CODE, load, protocols
from styles import HUMANEVAL, MBPP, answers

import sdbench.tasks
from sdbench.config import Model
from sdbench.prepare import pair
from sdbench.prepare.pair_info import PairInfo
from sdbench.tasks import harness
from sdbench.tasks.extract import REPAIRS

TARGET = Path(__file__).parents[2] / "sdbench" / "embedded" / "llama-tiny" / "target"
KEEPS = "{% for turn in messages %}{{ turn.role + ': ' + turn.content + '\n' }}{% endfor %}"  # Qwen2.5, SmolLM2
TRIMS = KEEPS.replace("turn.content", "turn.content | trim")  # Llama 3

SHAPES = {
    "as it stands": "{code}",
    "stripped": "{stripped}",
    "ended by a fence": "{code}\n```\nThat was it.",
    "with a trailing test": "{code}\n\nprint(1)\nassert False\n",
    "whole": "{prompt}{code}",
    "whole, fenced, with chatter": "Here's a solution:\n\n```python\n{prompt}{code}\n```\n\nIt's simple.",
    "whole, with chatter": "Here's a solution:\n\n{prompt}{code}\n\nHope it's what you wanted!",
    "body, fenced": "```python\n{code}\n```",
    "with a main guard": "{code}\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n",
}


def passed(task, answer_of, metric="pass@1"):
    examples = list(task.examples())
    scores = task.score_all([(example, answer_of(example.row)) for example in examples])
    return {example.id: score.values[metric] for example, score in zip(examples, scores, strict=True)}, scores


def repairs(score):
    return {kind for kind in REPAIRS if score.flags[f"is_repaired_{kind}"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval", "mbpp", "mbpp-sanitized"])
def test_every_style_of_answer_is_read_to_the_letter_and_mended_beside_it(name):
    task, styles = load(name), HUMANEVAL if name == "humaneval" else MBPP
    asked = [(e, style, *answer) for e in task.examples() for style, answer in answers(styles, e.row).items()]
    scores = task.score_all([(example, text) for example, _, text, *_ in asked])
    for (example, style, _, literal, mended), score in zip(asked, scores, strict=True):
        assert score.values["pass@1"] == literal, (style, example.id)
        assert mended in (None, score.values["pass@1_repaired"]), (style, example.id)
        assert literal or not mended or repairs(score), style
        assert not (literal and repairs(score)), style


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        ("{stripped}", {"indentation"}),
        ("{code}\n```\n", {"fence"}),
        ("Here it is:\n{prompt}{code}\n", {"whole", "rest"}),
        ("{code}\n\nx = [1,\n", {"rest"}),
        ("{code}\n\nassert False\n", {"unused"}),
        ("{stripped}\n```\n", {"fence", "indentation"}),
    ],
)
def test_every_kind_of_repair_has_a_flag(answer, kinds):
    task = load("humaneval")
    for example in task.examples():
        code, prompt = example.row["canonical_solution"].rstrip("\n"), example.row["prompt"]
        score = task.score(example, answer.format(code=code, stripped=code.strip(), prompt=prompt))
        assert (score.values, repairs(score)) == ({"pass@1": 0.0, "pass@1_repaired": 1.0}, kinds)


@pytest.mark.parametrize(
    ("name", "protocol", "key", "answer"),
    [
        ("humaneval", "evalplus", "Own/0", "def doubled(x: List[int]):\n    return [2 * n for n in x]\n```\n"),
        ("humaneval", "evalplus", "Own/1", "def show(s):\n    return ''.join(chr(ord(c) - 1) for c in s)\n```\n"),
        ("mbpp-sanitized", "lm-eval", "3", "def root(n, sqrt=math.isqrt):\n    return sqrt(n)\n"),
    ],
)
def test_imports_and_helpers_of_the_row_are_put_back_where_nothing_else_is_wrong(name, protocol, key, answer):
    task = load(name, protocol=protocol)
    example = next(example for example in task.examples() if example.id == key)
    score = task.score(example, answer)
    assert (score.values, repairs(score)) == ({"pass@1": 0.0, "pass@1_repaired": 1.0}, {"given"})


def test_a_wrong_body_after_a_prompt_with_imports_needs_no_repair():
    values, scores = passed(load("humaneval"), lambda row: "    return None\n", "pass@1_repaired")
    assert not any(values.values())
    assert not any(map(repairs, scores))


def test_a_program_that_imports_what_is_not_here_says_so():
    task = load("humaneval")
    example = next(iter(task.examples()))
    score = task.score(example, "    import pandas\n    return pandas.Series(numbers) * 2\n")
    assert (score.values["pass@1"], score.flags["needs_missing_package"]) == (0.0, True)
    score = task.score(example, "    import numpy\n    return list(2 * numpy.array(numbers))\n")
    assert (score.values["pass@1"], score.flags["needs_missing_package"]) == (1.0, False)


def test_evalplus_reads_by_its_own_rule():
    task = load("humaneval", protocol="evalplus")
    shape = "{prompt}{code}\n\nprint(\n"
    values, _ = passed(task, shaped(shape))
    assert set(values.values()) == {1.0}


def shaped(shape):
    def answer(row):
        code = row["canonical_solution"].rstrip("\n")
        return SHAPES.get(shape, shape).format(code=code, stripped=code.strip(), prompt=row["prompt"])

    return answer


@pytest.mark.parametrize("name", ["mbpp", "mbpp-sanitized"])
@pytest.mark.parametrize(
    "form", ["{}", "{}\n[DONE]\nmore words", "```python\n{}\n```", "Sure!\n```\n{}\n```\nDone, isn't it?", "{}\n```"]
)
def test_mbpp_references_pass_in_every_form(name, form):
    values, scores = passed(load(name), lambda row: form.format(row["code"]), "pass@1_repaired")
    assert set(values.values()) == {1.0}
    assert not any(score.flags["is_extraction_failed"] for score in scores)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_humaneval_references_pass_in_every_shape(shape):
    values, _ = passed(load("humaneval"), shaped(shape), "pass@1_repaired")
    assert set(values.values()) == {1.0}, values


@pytest.mark.parametrize("protocol", protocols("humaneval"))
def test_humaneval_references_pass_under_every_protocol(protocol):
    own = {
        "evalplus": "whole",
        "bigcode": "\n{code}",
    }  # it wants a whole program; it shows the prompt without its last line end
    values, _ = passed(load("humaneval", protocol=protocol), shaped(own.get(protocol, "as it stands")))
    assert set(values.values()) == {1.0}


@pytest.fixture(scope="module")
def pair_info():
    return PairInfo.read(pair.find(Model("llama-tiny", str(TARGET), None), device="cpu", dtype="auto"))


@pytest.mark.parametrize(("is_chat", "template", "end"), [(False, KEEPS, "\n"), (True, KEEPS, "\n"), (True, TRIMS, "")])
@pytest.mark.parametrize("name", ["mbpp", "mbpp-sanitized"])
def test_mbpp_references_pass_in_the_fence_that_the_prompt_opens(pair_info, monkeypatch, name, is_chat, template, end):
    """Where the prompt shows the fence's whole line, `def` was read as the language of the fence."""
    monkeypatch.setattr(pair_info.tokenizer, "chat_template", template)
    task = load(name, protocol="llama", chat=is_chat)
    prompts = [pair_info.prompt(pair_info.ids(example.prompt)) for example in task.examples()]
    assert {prompt.rpartition("```python")[2] for prompt in prompts} == {end}
    values, _ = passed(task, lambda row: f"\n{row['code']}\n```\nThat was it.".removeprefix(end))
    assert set(values.values()) == {1.0}


@pytest.mark.parametrize("name", CODE)
def test_empty_answers_fail_and_are_flagged(name):
    values, scores = passed(load(name), lambda row: "")
    assert set(values.values()) == {0.0}
    assert all(score.flags["is_empty"] and score.flags["is_extraction_failed"] for score in scores)


def test_time_out_crash_memory_and_wrong_answer_are_distinguished():
    task = load("humaneval", timeout_s=1.0)
    example = next(iter(task.examples()))
    answers = {
        "is_timeout": "    while True: pass\n",
        "is_wrong": "    return numbers\n",
        "is_out_of_memory": "    return [0] * 10**10\n",
        None: "    return [2 * n for n in numbers]\n",
    }
    for flag, score in zip(answers, task.score_all([(example, text) for text in answers.values()]), strict=True):
        kinds = ("is_timeout", "is_wrong", "is_out_of_memory", "is_crash")
        assert [kind for kind in kinds if score.flags[kind]] == ([] if flag is None else [flag])


def test_a_program_that_ends_before_its_tests_has_not_passed():
    task = load("humaneval")
    example = next(iter(task.examples()))
    assert task.score(example, "    import sys; sys.exit(0)\n").values["pass@1"] == 0
    assert task.score(example, "    import os; os._exit(0)\n").values["pass@1"] == 0


def test_the_backend_and_what_it_proved_are_recorded():
    environment = load("humaneval").environment()
    assert environment["sandbox"]
    assert "sandbox_proved" in environment
    assert "sandbox auto" in load("humaneval").signatures["pass@1"]


def test_a_task_travels_to_a_scoring_process_without_its_rows_and_its_pool():
    task = load("humaneval")
    example = next(iter(task.examples()))
    task.environment()
    copy = pickle.loads(pickle.dumps(task))
    assert "rows" not in vars(copy)
    assert copy.score(example, example.row["canonical_solution"]).values == {"pass@1": 1.0, "pass@1_repaired": 1.0}


def test_all_164_canonical_solutions_pass(real_data):
    task = sdbench.tasks.load("humaneval", data=real_data / "humaneval.jsonl")
    values, scores = passed(task, lambda row: row["canonical_solution"])
    assert len(values) == 164
    assert set(values.values()) == {1.0}
    assert not any(score.flags["is_extraction_failed"] for score in scores)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["", "    pass\n"])
def test_every_emptied_body_fails(real_data, answer):
    task = sdbench.tasks.load("humaneval", data=real_data / "humaneval.jsonl")
    values, _ = passed(task, lambda row: answer)
    assert set(values.values()) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_real_canonical_solutions_pass_in_every_shape(real_data, shape):
    task = sdbench.tasks.load("humaneval", data=real_data / "humaneval.jsonl")
    values, _ = passed(task, shaped(shape), "pass@1_repaired")
    assert set(values.values()) == {1.0}, [key for key, value in values.items() if not value]


def test_the_same_program_runs_once_and_counts_for_every_answer(monkeypatch):
    task = load("humaneval")
    examples, asked = list(task.examples()), []
    honest = task._sandbox.run
    monkeypatch.setattr(task._sandbox, "run", lambda programs: asked.extend(programs) or honest(programs))
    answer = shaped("as it stands")
    scores = task.score_all(
        [(e, text) for e in examples for text in (answer(e.row), answer(e.row), "    return None\n")]
    )
    assert len(asked) == len(set(asked)) == 2 * len(examples)
    assert [score.values["pass@1"] for score in scores] == [1.0, 1.0, 0.0] * len(examples)


@pytest.mark.slow
def test_a_program_that_the_protocol_could_not_read_runs_as_it_was_meant():
    """Without the closing fence the harness reads nothing; without a newline it writes the code behind the docstring."""
    task = load("mbpp", protocol="llama")
    (score,) = task.score_all([(example, f"\n{example.row['code']}") for example in list(task.examples())[:1]])
    assert (score.values["pass@1"], score.values["pass@1_repaired"]) == (0.0, 1.0)
    task = load("humaneval", protocol="bigcode")
    example = next(iter(task.examples()))
    (score,) = task.score_all([(example, example.row["canonical_solution"].lstrip("\n"))])
    assert score.values["pass@1_repaired"] == 1.0


def test_a_sandbox_that_fails_is_no_wrong_answer_of_the_harness(monkeypatch):
    outcome = SimpleNamespace(status="error", detail="the worker ended twice")
    monkeypatch.setattr(harness.CODE_EVAL, "run", lambda programs: [outcome] * len(programs), raising=False)
    with pytest.raises(RuntimeError, match="the sandbox could not run a program: the worker ended twice"):
        harness.CODE_EVAL.compute(references=["assert True"], predictions=[["pass"]], k=[1])
