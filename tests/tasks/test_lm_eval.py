"""Tasks of lm-evaluation-harness ask and score as the harness does: the same prompts to the byte, scores to 1e-12.

Needs the extra `lm-eval`, which is part of `dev`. test_parity.py compares the tasks whose modules import more than that.
"""

import json
import math
import pickle
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from lm_eval_rows import IMPORTED, OWN, both_sides, check_both
from own import path

import sdbench.tasks
from sdbench.cli import main
from sdbench.cli.command import expand
from sdbench.config import ConfigError
from sdbench.imports import import_object
from sdbench.metrics.quality import CORPUS
from sdbench.tasks.harness import CODE_EVAL
from sdbench.tasks.harness_api import USED
from sdbench.tasks.harness_files import digests_of
from sdbench.tasks.harness_scores import statistics_of
from sdbench.tasks.sandbox import Sandbox
from sdbench.types import Example, Message, Prompt

HERE = Path(__file__).parent
needs_lm_eval = pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra lm-eval is not installed")
PAIRS = [("The cat sat on the mat.", "A cat sat on a mat."), ("It rains today.", "It rains today."), ("Go!", "")]


def load(name="gsm8k", **options):
    return sdbench.tasks.load(f"lm-eval:{name}", **{"data": path("gsm8k"), "shots": 2, **options})


def test_the_name_after_the_colon_is_an_option_of_the_file():
    assert expand(["task=lm-eval:gsm8k", "n=2"]) == [
        "task=lm-eval",
        "task.task='gsm8k'",
        "task.name='lm-eval-gsm8k'",
        "n=2",
    ]
    assert expand(["task=gsm8k"]) == ["task=gsm8k"]
    assert "lm-eval" not in sdbench.tasks.names()


def test_without_the_extra_the_way_to_it_is_named(uninstall):
    uninstall("lm_eval")
    with pytest.raises(ConfigError, match=r"need the extra lm-eval, and lm_eval is not installed: pip install"):
        load()


def aggregation(name):
    """The harness's."""
    return import_object(f"lm_eval.api.metrics.{name}")


@needs_lm_eval
@pytest.mark.parametrize("name", ["bleu", "chrf", "chrfpp", "ter"])
def test_sums_of_statistics_give_the_score_of_the_whole_sample(name):
    whole = aggregation(name)
    kept = [statistics_of(whole, pair)(pair) for pair in PAIRS]
    (corpus,) = {corpus for corpus, _ in kept}
    sums = [sum(column) for column in zip(*(numbers for _, numbers in kept), strict=True)]
    assert float(CORPUS[corpus](sums)) == pytest.approx(whole(PAIRS), abs=1e-12)


@needs_lm_eval
@pytest.mark.parametrize("items", [[0.5, math.nan, 0.25, np.float64("nan"), 0.0], [math.nan, 1], [3.0]])
def test_a_mean_without_nan_is_a_ratio_of_sums(items):
    whole = aggregation("nanmean")
    kept = [statistics_of(whole, item)(item) for item in items]
    assert {corpus for corpus, _ in kept} == {"ratio"}
    sums = [sum(column) for column in zip(*(numbers for _, numbers in kept), strict=True)]
    assert float(CORPUS["ratio"](sums)) == pytest.approx(whole(items), abs=1e-12)


@needs_lm_eval
def test_a_share_of_all_judgements_is_a_ratio_and_any_other_aggregation_is_none():
    def pooled(items):
        flat = [judgement for item in items for judgement in item]
        return sum(flat) / len(flat)

    assert statistics_of(pooled, [True, False])([True, False]) == ("ratio", (1.0, 2.0))
    assert statistics_of(lambda items: sorted(items)[0], [True]) is None
    assert statistics_of(max, 1.0) is None


def test_code_eval_runs_programs_in_the_sandbox():
    with Sandbox(timeout_s=1.0) as sandbox:
        CODE_EVAL.run = sandbox.run
        right, wrong, escape = "f = lambda: 1", "f = lambda: 2", "import socket; socket.socket(); f = lambda: 1"
        tests = ["assert f() == 1"] * 2
        rates, endings = CODE_EVAL.compute(references=tests, predictions=[[right, wrong], [escape, wrong]], k=[1, 2, 3])
    assert rates == {"pass@1": 0.25, "pass@2": 0.5}
    assert [ending == "passed" for ends in endings for ending in ends] == [True, False, False, False]


def test_a_name_that_only_the_test_imports_is_known_to_the_answer_as_in_code_eval():
    answer, test = "def f(): return math.sqrt(4)", "import math\nassert f() == 2"
    with Sandbox(timeout_s=1.0) as sandbox:
        CODE_EVAL.run = sandbox.run
        assert CODE_EVAL.compute(references=[test], predictions=[[answer]], k=[1])[0] == {"pass@1": 1.0}


@needs_lm_eval
def test_a_scoring_process_needs_no_rows():
    task = load(n=2)
    example, _ = task.examples()
    copy = pickle.loads(pickle.dumps(task))
    for answer in (f" {example.row['answer']}\nQuestion: 7", "#### 1e5", ""):
        assert copy.score(example, answer) == task.score(example, answer)
    assert copy.score(example, example.row["answer"]).values == {
        "exact_match,strict-match": 1.0,
        "exact_match,flexible-extract": 1.0,
    }
    assert copy.score(example, "none").flags["is_extraction_failed"]


@needs_lm_eval
@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_a_code_task_can_be_the_first_task_of_a_process(name, monkeypatch):
    """Its module runs a program when it is imported."""
    monkeypatch.delitem(sys.modules, f"lm_eval.tasks.{name}.utils", raising=False)
    monkeypatch.delattr(CODE_EVAL, "run", raising=False)
    task = load(name, data=path(name), shots=None, n=2)
    assert task.metric.startswith("pass")
    for example in task.examples():
        answer = example.row.get("canonical_solution") or example.row["code"]
        values = [task.score(example, text).values[task.metric] for text in (answer, "    return None")]
        assert values == [1.0, 0.0]


@needs_lm_eval
def test_turns_are_those_that_a_chat_template_is_given():
    task = load(chat=True, system="Be brief.", n=1)
    (prompt,) = (example.prompt for example in task.examples())
    assert [turn.role for turn in prompt.messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert prompt.messages[-1].content.startswith("Question: ")
    assert prompt.prefix == ""
    together = load(chat=True, multiturn=False, n=1)
    assert [turn.role for example in together.examples() for turn in example.prompt.messages] == ["user"]


@needs_lm_eval
def test_the_end_of_a_long_prompt_is_kept():
    task = load(n=1)
    (example,) = task.examples()
    cut = task.fit(example, lambda prompt: len(prompt.text), 50)
    assert cut.is_prompt_cut
    assert cut.prompt == Prompt(text=example.prompt.text[-50:])


@needs_lm_eval
def test_of_turns_that_are_too_long_the_oldest_shots_go_first_and_the_system_turn_stays():
    """All shots and the system turn went, for a single token too many."""
    task = load(chat=True, system="Be brief.", n=1)
    (example,) = task.examples()
    system, _, _, *shot, question = turns = example.prompt.messages

    def size(prompt):
        return sum(len(turn.content) for turn in prompt.messages)

    def cut(limit):
        return task.fit(example, size, limit).prompt.messages

    assert cut(size(example.prompt)) == turns
    assert cut(size(example.prompt) - 1) == (system, *shot, question)
    shortest = size(Prompt(messages=(system, question)))
    assert cut(shortest) == (system, question)
    assert cut(shortest - 1) == (question,)
    assert cut(20) == (Message("user", question.content[-20:]),)
    rules = [load(n=1, **options).describe()["prompt_cut"] for options in ({"chat": True}, {})]
    assert rules == ["oldest shots first, then the end is kept", "the end is kept"]


OURS = """
task: ours
include: common
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
process_results: !function scores.judge
metric_list: [{metric: near, aggregation: mean, higher_is_better: true}]
"""


FILTERED = """
task: ours
dataset_path: org/none
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
"""
BAD_FILTER = 'filter_list: [{name: "last", filter: [{function: regexx}, {function: take_first}]}]'


ANTLR = """
from importlib.metadata import version
assert version("antlr4-python3-runtime").startswith("4.11"), "antlr4-python3-runtime==4.11 is required"
def prompt(doc):
    return doc["question"]
"""


@needs_lm_eval
@pytest.mark.parametrize("name", [pytest.param("minerva_math_algebra", marks=pytest.mark.slow), "ours"])
def test_a_task_whose_libraries_are_not_here_is_one_sentence(name, tmp_path, capsys):
    """minerva_math raises ModuleNotFoundError or, as ours, AssertionError: Hydra needs antlr4 4.9."""
    if "4.11" in version("antlr4-python3-runtime"):
        pytest.skip("antlr4 4.11 is on the path, so the library whose absence is tested is here")
    (tmp_path / "ours.yaml").write_text(FILTERED.replace('"{{question}}"', "!function checks.prompt"))
    (tmp_path / "checks.py").write_text(ANTLR)
    words = ["model=llama-tiny", f"task=lm-eval:{name}", f"task.include_path={tmp_path}", f"task.data={path('gsm8k')}"]
    assert main([*words, f"results={tmp_path / 'out'}"]) == 2
    assert re.fullmatch(
        rf"\S+ task=lm-eval:{name} cannot be imported: .*antlr4-python3-runtime==4.11\b.* required.*\n",
        capsys.readouterr().err,
    )


@needs_lm_eval
def test_a_folder_of_ones_own_is_keyed_by_its_files_and_code(tmp_path):
    (tmp_path / "ours.yaml").write_text(OURS)
    (tmp_path / "common").write_text("dataset_path: org/none\ntest_split: test\nmetadata: {version: 7}\n")
    (tmp_path / "scores.py").write_text(
        "import parts\ndef judge(doc, results):\n    return {'near': 0.5, 'odd': 'x'}\n"
    )
    (tmp_path / "parts.py").write_text("")
    sys.path.insert(0, str(tmp_path))
    with pytest.warns(UserWarning, match="cannot store odd"):
        task = load("ours", include_path=str(tmp_path), shots=None, bounds={"near": [0, 1]})
    sys.path.remove(str(tmp_path))
    described = task.describe()["harness"]
    assert sorted(described["files"]) == ["common", "ours.yaml", "parts.py", "scores.py"]
    assert (described["version"], task.metric, task.metrics[0].is_bounded) == (7, "near", True)
    assert task.score(Example("0", task.rows["0"], Prompt()), "x").values == {"near": 0.5}
    before = described["files"]
    (tmp_path / "parts.py").write_text("pass\n")
    after = task.describe()["harness"]["files"]
    assert {name for name in before if before[name] != after[name]} == {"parts.py"}


@needs_lm_eval
def test_code_is_keyed_wherever_the_harness_finds_it(tmp_path, monkeypatch):
    """Importable modules, and what they import from the folder above, were in no key."""
    package = tmp_path / "packages" / "metrics_of_ours"
    (package / "parts").mkdir(parents=True)
    for folder in (package, package / "parts"):
        (folder / "__init__.py").write_text("")
    (package / "parts" / "scores.py").write_text(
        "from .. import above\nfrom ..beside import more\ndef judge(doc, results):\n    return {'near': 0.5}\n"
    )
    (package / "above.py").write_text("")
    (package / "beside.py").write_text("more = 1\n")
    text = OURS.replace("include: common", "dataset_path: org/none\ntest_split: test")
    text = text.replace("scores.judge", "metrics_of_ours.parts.scores.judge")
    (tmp_path / "ours.yaml").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    task = load("ours", include_path=str(tmp_path), shots=None)
    before = task.describe()["harness"]["files"]
    assert sorted(before) == ["above.py", "beside.py", "ours.yaml", "scores.py"]
    (package / "above.py").write_text("pass\n")
    after = task.describe()["harness"]["files"]
    assert {name for name in before if before[name] != after[name]} == {"above.py"}


@needs_lm_eval
@pytest.mark.parametrize(
    ("line", "text", "keyed"),
    [
        ("from metrics_of_ours.text import norm", "text.py", "text.py"),
        ("import metrics_of_ours.text", "text.py", "text.py"),
        ("from metrics_of_ours import norm", "__init__.py", "metrics_of_ours/__init__.py"),
        ("from .. import norm", "__init__.py", "metrics_of_ours/__init__.py"),
        ("from helpers import norm", "parts/helpers/__init__.py", "helpers/__init__.py"),
        ("from .helpers.deep import norm", "parts/helpers/deep/__init__.py", "deep/__init__.py"),
        ("from ..other import deep", "other/deep/__init__.py", "other/deep/__init__.py"),
    ],
)
def test_code_of_the_package_itself_is_keyed(line, text, keyed, tmp_path):
    """What a module imports by the whole name of its package, and what an `__init__.py` defines, were in no key."""
    package = tmp_path / "metrics_of_ours"
    for folder in ("", "parts", "parts/helpers", "parts/helpers/deep", "other", "other/deep"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").write_text("")
    (package / "text.py").write_text("")
    (package / text).write_text("def norm(text): return text")
    (package / "parts" / "scores.py").write_text(
        f"{line}\nimport json, lm_eval.tasks\nfrom lm_eval.api import metrics\n"
    )
    (tmp_path / "ours.yaml").write_text(OURS.replace("scores.judge", "metrics_of_ours.parts.scores.judge"))
    before = digests_of(tmp_path / "ours.yaml")
    (package / text).write_text("def norm(text): return text.lower()")
    after = digests_of(tmp_path / "ours.yaml")
    (changed,) = {name for name in before if before[name] != after[name]}
    assert keyed.endswith(changed)
    assert len(before) == 3


@needs_lm_eval
def test_files_of_one_name_in_folders_of_one_name_are_all_keyed(tmp_path):
    """Of the two hashes under one name the second replaced the first."""
    for folder in ("a", "b"):
        (tmp_path / folder / "text").mkdir(parents=True)
        (tmp_path / folder / "text" / "norm.py").write_text("")
    (tmp_path / "scores.py").write_text("import a.text.norm, b.text.norm")
    (tmp_path / "ours.yaml").write_text(OURS)
    assert sorted(digests_of(tmp_path / "ours.yaml")) == ["a/text/norm.py", "b/text/norm.py", "ours.yaml", "scores.py"]


NEEDY = """
def make(tokenizer=None, **_):
    assert tokenizer, "No tokenizer or pretrained provided. Such tasks make their rows."
    import datasets
    return {"test": datasets.Dataset.from_list([{"question": tokenizer, "answer": "yes"}])}
"""


@needs_lm_eval
def test_a_task_that_makes_its_rows_with_a_tokenizer_is_one_sentence(tmp_path, capsys):
    """As those of RULER, which ended with an AssertionError and exit code 1."""
    file = tmp_path / "ours.yaml"
    file.write_text(FILTERED.replace("dataset_path: org/none", "custom_dataset: !function rows.make"))
    (tmp_path / "rows.py").write_text(NEEDY)
    words = ["model=llama-tiny", "task=lm-eval:ours", f"task.include_path={tmp_path}"]
    assert main([*words, f"results={tmp_path / 'out'}"]) == 2
    assert re.fullmatch(
        r"\S+ task=lm-eval:ours makes its rows with an option that sdbench does not give it \(No tokenizer or pretrained "
        r"provided\): give it in `metadata` of a copy of the task's file \(task.include_path=\), or rows as task.data=FILE; for "
        r"tasks of RULER, rows of one length, and `aggregation: mean` for the metric of that length in a copy\n",
        capsys.readouterr().err,
    )
    assert len(load("ours", include_path=str(tmp_path), shots=None).rows) == len(path("gsm8k").read_text().splitlines())
    file.write_text(f"{file.read_text()}metadata: {{version: 1, tokenizer: some}}\n")
    (row,) = load("ours", include_path=str(tmp_path), shots=None, data=None).rows.values()
    assert row["question"] == "some"


LENGTHS = """
def judge(doc, results):
    return {"4096": -1.0, "1024": float(doc["answer"] in results[0])}
def without_others(scores):
    kept = [score for score in scores if score != -1]
    return sum(kept) / len(kept) if kept else -1
"""


@needs_lm_eval
def test_a_task_without_a_metric_that_can_be_stored_names_what_it_needs(tmp_path):
    """As RULER, whose metrics are of a length: "headline must be a metric … (none)". Then numbers were no names of metrics."""
    (tmp_path / "scores.py").write_text(LENGTHS)
    metrics = "[{metric: '1024', aggregation: RULE}, {metric: '4096', aggregation: RULE}]"
    text = f"{FILTERED}\nprocess_results: !function scores.judge\nmetric_list: {metrics}\n"
    (tmp_path / "ours.yaml").write_text(text.replace("RULE", "!function scores.without_others"))
    options = {"include_path": str(tmp_path), "shots": None, "headline": 1024, "bounds": {1024: [0, 1]}}
    with pytest.raises(
        ConfigError, match=r"^no metric of ours can be stored per answer \(4096, 1024\): .* `aggregation: mean`"
    ):
        load("ours", **options)
    (tmp_path / "ours.yaml").write_text(text.replace("RULE", "mean"))
    task = load("ours", **options)
    assert [(metric.name, metric.is_bounded) for metric in task.metrics] == [("1024", True), ("4096", False)]
    (example, *_) = task.examples()
    assert task.score(example, example.row["answer"]).values == {"4096": -1.0, "1024": 1.0}


def write_task(folder, scores, metrics):
    """Write ours.yaml, whose answers are judged by a module with this text."""
    (folder / "scores.py").write_text(scores)
    judge = "process_results: !function scores.judge"
    (folder / "ours.yaml").write_text(f"{FILTERED}\n{judge}\nmetric_list: {metrics}\n")


NAMESAKE = """
def judge(doc, results):
    return {"near": 0.5, "bleu": (doc["answer"], results[0])}
def bleu(items):
    return 7.0
"""


@needs_lm_eval
def test_an_aggregation_of_a_task_that_is_merely_called_bleu_is_left_out(tmp_path):
    """It was computed as the harness's of that name."""
    write_task(
        tmp_path, NAMESAKE, "[{metric: near, aggregation: mean}, {metric: bleu, aggregation: !function scores.bleu}]"
    )
    with pytest.warns(UserWarning, match="cannot store bleu per answer: left out"):
        task = load("ours", include_path=str(tmp_path), shots=None)
    assert [metric.name for metric in task.metrics] == ["near"]


WITHOUT_NAN = """
def judge(doc, results):
    return {"share": len(results[0]) / 10 if results[0] else float("nan")}
"""


@needs_lm_eval
def test_an_answer_whose_score_is_nan_is_left_out_of_nanmean(tmp_path):
    """As the tasks of meddialog score an empty answer; they were refused."""
    write_task(tmp_path, WITHOUT_NAN, "[{metric: share, aggregation: nanmean, higher_is_better: true}]")
    task = load("ours", include_path=str(tmp_path), shots=None, n=3)
    assert [(metric.name, metric.stats, metric.is_bounded) for metric in task.metrics] == [("share", "ratio", False)]
    scores = task.score_all(zip(task.examples(), ["four", "", "six ab"], strict=True))
    assert [score.values["share"] for score in scores] == [0.4, 0.0, 0.6]
    sums = [sum(column) for column in zip(*(score.stats["share"] for score in scores), strict=True)]
    assert float(CORPUS["ratio"](sums)) == aggregation("nanmean")([0.4, math.nan, 0.6])


@needs_lm_eval
@pytest.mark.parametrize("option", ["data", "shots_data"])
@pytest.mark.parametrize("prompt", ['"{{question}}"', "!function prompts.show"])
def test_rows_without_a_column_that_a_task_reads_are_one_sentence(option, prompt, tmp_path, capsys):
    """The templates of a task raised what was not expected, with exit code 1."""
    text = f"{FILTERED}training_split: train\n".replace('"{{question}}"', prompt)
    (tmp_path / "ours.yaml").write_text(text)
    (tmp_path / "prompts.py").write_text("def show(doc):\n    return doc['question']\n")
    (tmp_path / "rows.jsonl").write_text('{"query": "?", "answer": "1"}\n' * 3)
    words = ["model=llama-tiny", "task=lm-eval:ours", f"task.include_path={tmp_path}", "task.shots=1", "timing=off"]
    files = {"data": path("gsm8k"), option: tmp_path / "rows.jsonl"}
    words += [f"task.{name}={file}" for name, file in files.items()]
    assert main([*words, f"results={tmp_path / 'out'}"]) == 2
    assert re.fullmatch(
        r"\S+ (task=lm-eval-ours: )?task=lm-eval:ours cannot read a row \(\w+Error: .*'question'.*\): "
        r"rows of task.data= and task.shots_data= need the "
        r"columns that the task reads\n",
        capsys.readouterr().err,
    )


@needs_lm_eval
@pytest.mark.parametrize("option", ["data", "shots_data"])
@pytest.mark.parametrize(("lacking", "number"), [("answer", 1), ("question", 0)])
def test_a_row_without_a_field_that_other_rows_have_is_one_sentence(option, lacking, number, tmp_path, capsys):
    """The harness would show and score the word None in its place."""
    rows = [{"question": "?", "answer": "#### 1"} for _ in range(3)]
    del rows[number][lacking]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    files = {"data": path("gsm8k"), option: file}
    words = ["model=llama-tiny", "task=lm-eval:gsm8k", "timing=off", f"results={tmp_path / 'out'}"]
    assert main([*words, *(f"task.{name}={value}" for name, value in files.items())]) == 2
    assert (
        f"row {number} of {file} has no field '{lacking}', which other rows have: give it, or null"
        in capsys.readouterr().err
    )


@needs_lm_eval
def test_a_number_of_workers_may_be_a_whole_float():
    task = load(workers=2.0, n=1)
    assert (task.workers, type(task.workers)) == (2, int)


@needs_lm_eval
def test_corpus_statistics_of_the_harness_have_no_bounds_whatever_is_given(tmp_path):
    """So no decision is made by them: tests/metrics/test_recommend.py."""
    (tmp_path / "ours.yaml").write_text(f"{FILTERED}\nmetric_list: [{{metric: bleu}}, {{metric: ter}}]\n")
    task = load("ours", include_path=str(tmp_path), shots=None, bounds={"bleu": [0, 100], "ter": [0, 100]})
    described = [(metric.name, metric.unit, metric.best, metric.stats, metric.is_bounded) for metric in task.metrics]
    assert described == [("bleu", "raw", "high", "bleu", False), ("ter", "raw", "low", "ratio", False)]


@needs_lm_eval
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("arc_easy", {}, r"task=lm-eval:arc_easy compares log-likelihoods \(multiple_choice\) and decodes no text"),
        ("gsm8k_cot_self_consistency", {}, r"scores 64 answers to a row together"),
        ("bbh", {}, r"task=lm-eval:bbh is a group of tasks, and a run has one task: .* such as task=lm-eval:bbh_"),
        ("gsm8q", {}, r"task=lm-eval:gsm8q is not a task of the installed lm_eval: did you mean gsm8k\?"),
        ("gsm8k", {"include_path": "nowhere"}, "task.include_path=nowhere is not a folder"),
        ("gsm8k", {"headline": "bleu"}, r"headline must be a metric of gsm8k .*exact_match,strict-match"),
        ("gsm8k", {"shots": 99}, r"shots=99 for lm-eval-gsm8k: Sample larger than population"),
        ("humaneval", {"shots": 1}, "task.shots=1 has no effect: the file of humaneval sets num_fewshot: 0"),
        ("", {}, "task=lm-eval needs the name of a task"),
    ],
)
def test_what_is_no_task_is_one_sentence(name, options, words):
    with pytest.raises(ConfigError, match=words):
        list((load(name, **options) if name else sdbench.tasks.load("lm-eval")).examples())


@needs_lm_eval
@pytest.mark.parametrize(
    ("filters", "is_refused"),
    [
        (None, False),
        ([["take_first"]], False),
        ([["lowercase", "take_first"], ["take_first"]], False),
        ([["take_first"], ["majority_vote", "take_first"]], True),
        ([["take_first_k", "take_first"]], True),
        ([["lowercase"]], True),
    ],
)
def test_repeats_are_refused_unless_all_filters_take_the_first_answer(filters, is_refused, tmp_path):
    names = ("a", "b")
    steps = [[{"function": step, **({"k": 2} if step[-1] == "k" else {})} for step in each] for each in filters or ()]
    listed = json.dumps([{"name": name, "filter": each} for name, each in zip(names, steps, strict=False)])
    metric = "metric_list: [{metric: exact_match}]\nrepeats: 4"
    text = f"{FILTERED}\n{metric}\n" + ("" if filters is None else f"filter_list: {listed}\n")
    (tmp_path / "ours.yaml").write_text(text)
    if is_refused:
        with pytest.raises(ConfigError, match="task=lm-eval:ours scores 4 answers to a row together"):
            load("ours", include_path=str(tmp_path), shots=None)
    else:
        assert load("ours", include_path=str(tmp_path), shots=None, n=1).metric.startswith("exact_match")


@needs_lm_eval
@pytest.mark.slow
def test_the_first_of_several_answers_is_scored_as_by_the_harness(tmp_path):
    folder = Path(str(find_spec("lm_eval").origin)).parent / "tasks" / "gsm8k"
    (tmp_path / "thrice.yaml").write_text(f"include: {folder}/gsm8k.yaml\ntask: gsm8k_thrice\nrepeats: 3\n")
    rows = [{"question": f"What is {i} + 1?", "answer": f"It is so. #### {i + 1}"} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = dict.fromkeys(("data", "shots_data"), str(tmp_path / "rows.jsonl"))
    word = f"gsm8k_thrice {json.dumps({**files, 'include_path': str(tmp_path)})}"
    done = subprocess.run(
        [sys.executable, str(HERE / "lm_eval_both.py"), word], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check_both(json.loads(done.stdout))


@needs_lm_eval
def test_an_unknown_filter_is_refused(tmp_path):
    (tmp_path / "ours.yaml").write_text(f"{FILTERED}\n{BAD_FILTER}\n")
    with pytest.raises(ConfigError, match=r"uses a filter that lm_eval does not have, regexx \(did you mean regex\?"):
        load("ours", include_path=str(tmp_path), shots=None)


@needs_lm_eval
@pytest.mark.parametrize("path", USED)
def test_a_version_without_what_is_used_is_refused_by_its_name(path, without):
    without(path, USED)
    with pytest.raises(ConfigError) as caught:
        load()
    assert re.fullmatch(
        rf"lm_eval \S+ has no {path.replace(':', '.').rstrip('.')}, which sdbench uses: install lm-eval \S+ or a later 0.4",
        str(caught.value),
    )


@needs_lm_eval
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param(
            "gsm8q", "gsm8q is not a task of the installed lm_eval: did you mean gsm8k?", marks=pytest.mark.slow
        ),
        pytest.param("bbh", "bbh is a group of tasks, and a run has one task: ", marks=pytest.mark.slow),
        ("arc_easy", "arc_easy compares log-likelihoods (multiple_choice) and decodes no text"),
        ("ours", "ours uses a filter that lm_eval does not have, regexx (did you mean regex?"),
        ("gsm8k", "has no lm_eval.api.task.ConfigurableTask.process_results, which sdbench uses"),
    ],
)
def test_a_refused_task_costs_one_line_exit_2_and_no_file(name, sentence, tmp_path, capsys, without):
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "ours.yaml").write_text(f"{FILTERED}\n{BAD_FILTER}\n")
    if name == "gsm8k":
        without("lm_eval.api.task:ConfigurableTask.process_results", USED)
    words = ["model=llama-tiny", f"task=lm-eval:{name}", f"task.include_path={folder}", f"task.data={path('gsm8k')}"]
    assert main([*words, f"results={tmp_path / 'results'}"]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == [folder]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return both_sides(sys.executable, [name for name in OWN if name not in IMPORTED], tmp_path_factory.mktemp("hub"))


@needs_lm_eval
@pytest.mark.slow
def test_prompts_and_scores_are_the_harnesss(compared):
    check_both(compared)
    assert all(both["commit"] for both in compared.values())


@needs_lm_eval
@pytest.mark.slow
def test_shots_and_chat_templates_are_the_harnesss(tmp_path):
    """The file of mbpp_instruct begins the answer, so the last turn is the assistant's."""
    cases = [
        'gsm8k {"shots": 3}',
        'gsm8k {"chat": true}',
        'gsm8k {"chat": true, "shots": 3, "system": "Be brief."}',
        'gsm8k {"chat": true, "multiturn": false, "system": "Be brief."}',
        'mbpp_instruct {"chat": true, "system": "Be brief."}',
        'mbpp_instruct {"chat": true, "multiturn": false}',
    ]
    check_both(both_sides(sys.executable, cases, tmp_path))


@needs_lm_eval
@pytest.mark.slow
def test_our_tasks_agree_in_the_chat_form_with_shots(tmp_path):
    cases = [f'{name} {{"chat": true, "shots": 2}}' for name in ("gsm8k", "mbpp", "wmt16-de-en")]
    for name, both in both_sides(sys.executable, cases, tmp_path).items():
        assert all(ours == theirs for ours, theirs in both["own"]["prompts"]), name


@needs_lm_eval
@pytest.mark.slow
def test_our_tasks_agree_under_protocol_lm_eval(compared):
    agreeing = {name: both["own"] for name, both in compared.items() if both["own"]}
    assert {OWN[name][0] for name in agreeing} == {"gsm8k", "humaneval", "mbpp", "cnndm", "wmt16"}  # all but xsum
    assert all(own["scores"] for own in agreeing.values())
    for name, own in agreeing.items():
        assert all(ours == theirs for ours, theirs in own["prompts"]), name
        assert sorted(own["stops"][0]) == sorted(own["stops"][1]), name
        for ours, theirs in own["scores"]:
            assert ours == pytest.approx(theirs, abs=1e-12), name


@needs_lm_eval
@pytest.mark.slow
def test_xsum_is_compared_with_nothing_because_the_harness_has_it_only_as_a_python_class():
    folder = Path(str(find_spec("lm_eval").origin)).parent / "tasks"
    mentions = [path for path in folder.rglob("*.yaml") if "xsum" in path.read_text(encoding="utf-8").lower()]
    assert [path.relative_to(folder).as_posix() for path in mentions] == ["unitxt/xsum.yaml"]
    with pytest.raises(ConfigError, match="task=lm-eval:xsum is a Python class"):
        load("xsum")


@needs_lm_eval
@pytest.mark.slow
def test_real_rows_give_the_harnesss_prompts_and_scores(real_data):
    gsm8k = {"data": f"{real_data}/gsm8k_test_first100.jsonl"}
    files = {
        "gsm8k": gsm8k | {"shots_data": f"{real_data}/gsm8k_train.jsonl"},
        "gsm8k_cot": gsm8k,
        "humaneval": {"data": f"{real_data}/humaneval.jsonl"},
    }
    words = [f"{name} {json.dumps(options)}" for name, options in files.items()]
    done = subprocess.run(
        [sys.executable, str(HERE / "lm_eval_both.py"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check_both(json.loads(done.stdout))
