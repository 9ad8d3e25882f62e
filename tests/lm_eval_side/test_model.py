"""Our decoding inside lm-evaluation-harness: its results are those of its own `hf` model over the same target, with our measures.

Needs the extra `lm-eval`, which is part of `dev`.
"""

import json
import math
import os
import re
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest

from sdbench import embedded
from sdbench.config import ConfigError
from sdbench.engine import generate
from sdbench.hub import HubError
from sdbench.lm_eval.__main__ import USED, main
from sdbench.report.command import COMMAND as REPORT
from sdbench.subcommand import Exit

needs_lm_eval = pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra lm-eval is not installed")
PAIR = Path(str(embedded.__file__)).parent / "llama-tiny"
PROMPT = "Question: {{question}}\\nAnswer:"


def text_of(name, output_type, prompt, target, metric, *lines):
    """The file of a task over rows of the tiny word problems; `ROWS` stands for their file."""
    return "\n".join(
        [
            f"task: {name}",
            "dataset_path: json",
            "dataset_kwargs: {data_files: {test: ROWS}}",
            "test_split: test",
            f"output_type: {output_type}",
            f'doc_to_text: "{prompt}"',
            f"doc_to_target: {target}",
            f"metric_list: [{{{metric}}}]",
            *lines,
        ]
    )


EXACT = r'metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: ["(?s).*#### "]'
ACCURACY = "metric: acc, aggregation: mean, higher_is_better: true"
PERPLEXITY = "metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false"
ANSWERS = 'generation_kwargs: {until: ["Question:"], do_sample: false, max_gen_toks: 48}'
CHOICES = 'doc_to_choice: ["{{answer}}", "no", "yes, so it is"]'
TASKS = {
    "tiny_math": text_of("tiny_math", "generate_until", PROMPT, '"{{answer}}"', EXACT, ANSWERS),
    "tiny_choice": text_of("tiny_choice", "multiple_choice", PROMPT, 0, ACCURACY, CHOICES),
    "tiny_text": text_of("tiny_text", "loglikelihood_rolling", "", '"{{answer}}"', PERPLEXITY),
}


def write_tasks(folder, limit):
    """The files of the tasks, over the first rows."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(dict(row)) + "\n" for row in embedded.rows("gsm8k-tiny", "test", n=limit)))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(text.replace("ROWS", str(rows)))


def test_without_the_extra_the_way_to_it_is_named(uninstall, capsys):
    uninstall("lm_eval")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "sdbench.lm_eval: lm_eval is not installed: pip install 'sdbench[lm-eval]'\n"


def test_a_hub_that_does_not_answer_is_one_sentence(monkeypatch, capsys):
    """It ended with a stack trace."""
    monkeypatch.setattr("sdbench.lm_eval.__main__.evaluate", Mock(side_effect=HubError("the hub fails (503)")))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "sdbench.lm_eval: the hub fails (503)\n"


@needs_lm_eval
def test_the_installed_harness_reads_no_entry_points():
    """Once it does, a package can add a model to `lm_eval` itself: register ours by one, and change docs/lm_eval.md."""
    folder = Path(str(find_spec("lm_eval").origin)).parent
    code = [path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] != "tasks"]
    assert folder / "api" / "registry.py" in code
    assert folder / "models" / "__init__.py" in code
    calls = re.compile(r"entry_points\b|\bstevedore\b|\bpkg_resources\b")
    assert [path.name for path in code if calls.search(path.read_text(encoding="utf-8"))] == []


def evaluate(folder, model, options, limit=8, **more):
    """The harness's own evaluation of three tasks over rows of the tiny word problems."""
    os.environ.setdefault("HF_HOME", str(folder / "home"))
    import lm_eval
    import lm_eval.models
    from lm_eval import evaluator
    from lm_eval.api.registry import model_registry
    from lm_eval.tasks import TaskManager

    from sdbench.lm_eval.__main__ import MODEL

    evaluator.add_env_info = lambda results: None  # it lists every installed package
    write_tasks(folder, limit)
    if "sdbench" not in model_registry:
        model_registry.register("sdbench", target=MODEL)
    return lm_eval.simple_evaluate(
        model=model,
        model_args=options,
        tasks=list(TASKS),
        task_manager=TaskManager(include_defaults=False, include_path=str(folder)),
        batch_size=8,
        bootstrap_iters=0,
        **more,
    )


HF = {"pretrained": str(PAIR / "target"), "dtype": "float32", "device": "cpu"}
OURS = {"model": "llama-tiny", "verifier": "exact", "num_draft": 5, "device": "cpu"}


@needs_lm_eval
@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-tiny", "qwen-tiny", "gemma-tiny"])
def test_lossless_decoding_at_temperature_0_gives_the_results_of_hf(tmp_path, model):
    ours = evaluate(tmp_path, "sdbench", {**OURS, "model": model})
    theirs = evaluate(tmp_path, "hf", {**HF, "pretrained": str(PAIR.parent / model / "target")})
    for task in TASKS:
        for one_of_ours, one_of_theirs in zip(ours["samples"][task], theirs["samples"][task], strict=True):
            assert one_of_ours["arguments"] == one_of_theirs["arguments"]
            if task == "tiny_math":
                assert one_of_ours["resps"] == one_of_theirs["resps"]
        scores = [{k: v for k, v in each["results"][task].items() if k.endswith(",none")} for each in (ours, theirs)]
        means = [{k: v for k, v in each.items() if "_stderr" not in k} for each in scores]
        assert means[0] == pytest.approx(means[1], rel=1e-5)
    assert all(sample["resps"][0][0].strip() for sample in ours["samples"]["tiny_math"])
    info = ours["config"]["sdbench"]
    assert info["is_lossless"]
    measured = info["tasks"]["tiny_math"]
    assert measured["n"] == 8
    assert 0 < measured["acceptance"]["low"] <= measured["acceptance"]["value"] <= measured["acceptance"]["high"] <= 1
    assert measured["bias"]["value"] == pytest.approx(0, abs=1e-6)
    assert measured["tokens_per_round"]["value"] > 1
    assert "tiny_choice" not in info["tasks"]


@needs_lm_eval
@pytest.mark.slow
def test_a_lenient_rule_is_measured_at_the_temperature_of_the_harness(tmp_path):
    options = {**OURS, "verifier": "ensemble", "w": 0.5}
    ours = evaluate(tmp_path, "sdbench", options, limit=4, gen_kwargs={"do_sample": True, "temperature": 0.7})
    info = ours["config"]["sdbench"]
    assert (info["verifier"], info["w"], info["is_lossless"]) == ("ensemble", 0.5, False)
    assert info["tasks"]["tiny_math"]["bias"]["value"] > 0


@needs_lm_eval
@pytest.mark.slow
def test_it_takes_at_most_half_of_the_passes_of_hf():
    root = Path(embedded.__file__).parents[2]
    words = [sys.executable, str(root / "scripts/bench_lm_eval.py"), "n=20", "repeats=1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    ours, theirs = map(int, re.search(r"ours (\d+), hf (\d+); all texts are equal", done.stdout).groups())
    assert ours <= 0.5 * theirs


CHAT = {"apply_chat_template": True, "system_instruction": "Be brief."}


@needs_lm_eval
@pytest.mark.slow
def test_the_chat_template_is_that_of_hf(tmp_path):
    ours = evaluate(tmp_path, "sdbench", OURS, limit=3, **CHAT)
    theirs = evaluate(tmp_path, "hf", HF, limit=3, **CHAT)
    for mine, other in zip(ours["samples"]["tiny_math"], theirs["samples"]["tiny_math"], strict=True):
        assert mine["arguments"] == other["arguments"]
        assert "Be brief." in mine["arguments"][0][0]
        assert mine["resps"] == other["resps"]


def command(folder, *words, keep):
    """The harness's command line over the tasks in a folder."""
    options = ",".join(f"{key}={value}" for key, value in {**OURS, "keep": keep}.items())
    arguments = ["run", "--model", "sdbench", "--model_args", options, "--tasks", "tiny_math", "--include_path", folder]
    arguments += ["--batch_size", "2", "--log_samples", *words]
    return [sys.executable, "-m", "sdbench.lm_eval", *map(str, arguments)]


def measured_in(folder):
    """The answers and the counts of the only results file in a folder, without seconds."""
    (results,) = folder.rglob("results_*.json")
    (samples,) = folder.rglob("samples_tiny_math_*.jsonl")
    info = json.loads(results.read_text())["config"]["sdbench"]["tasks"]["tiny_math"]
    answers = {sample["doc_id"]: sample["resps"] for sample in map(json.loads, samples.read_text().splitlines())}
    return answers, {key: value for key, value in info.items() if not key.startswith(("seconds", "tokens_per_s"))}


@needs_lm_eval
@pytest.mark.slow
def test_after_a_kill_the_same_command_decodes_the_rest(tmp_path, monkeypatch, capsys):
    write_tasks(tmp_path, 20)
    env = {**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(embedded.__file__).parents[2])}
    kept = tmp_path / "kept.db"
    long = ["--gen_kwargs", "max_gen_toks=80"]  # so that some answers are right
    half = command(tmp_path, "--output_path", tmp_path / "half", *long, keep=kept)
    with subprocess.Popen(half, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and num_kept(kept) < 5:
            time.sleep(0.01)
        process.kill()
    before = num_kept(kept)
    assert 5 <= before < 20
    run_here(half, monkeypatch)
    assert f"{before} of 20 answers of tiny_math were read from {kept}" in capsys.readouterr().err
    whole = command(tmp_path, "--output_path", tmp_path / "whole", *long, keep=tmp_path / "other.db")
    run_here(whole, monkeypatch)
    assert measured_in(tmp_path / "half") == measured_in(tmp_path / "whole")
    run_here([word.replace("verifier=exact", "verifier=ensemble,w=0.5") for word in whole], monkeypatch)
    check_report(tmp_path / "whole")


def check_report(folder):
    """The report of a lossless and a lenient evaluation has their scores and measures, and the difference of their samples."""
    assert REPORT([str(folder)]) == Exit.DONE
    rows = pd.read_csv(folder / "evaluations.csv")
    assert list(rows["setting"]) == ["exact K=5", "ensemble w=0.5 mix=prob greedy=blend K=5"]
    documents = [json.loads(path.read_text()) for path in sorted(folder.rglob("results_*.json"))]
    scores = [document["results"]["tiny_math"]["exact_match,none"] for document in documents]
    assert list(rows["quality"]) == pytest.approx(scores)
    assert rows["difference"].iloc[1] == pytest.approx(scores[1] - scores[0])
    assert scores[0] != scores[1]
    measured = [document["config"]["sdbench"]["tasks"]["tiny_math"] for document in documents]
    for (_, row), measures in zip(rows.iterrows(), measured, strict=True):
        assert (row["task"], row["metric"], row["n"]) == ("tiny_math", "exact_match", 20)
        for name in ("acceptance", "acceptance_expected", "tokens_per_round", "bias"):
            ends = [measures[name][end] for end in ("value", "low", "high")]
            ends = [math.nan if end is None else end for end in ends]
            assert list(row[[name, f"{name}_low", f"{name}_high"]]) == pytest.approx(ends, nan_ok=True), name
    # A lossless rule accepts a draft with probability 0 or 1 at temperature 0.
    assert measured[0]["acceptance_expected"] == pytest.approx(measured[0]["acceptance"])


def run_here(words, monkeypatch):
    """The command line in this process, which has the harness already."""
    from lm_eval import evaluator

    from sdbench.lm_eval.model import SpeculativeLM

    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)  # it lists every installed package
    monkeypatch.setattr("sdbench.lm_eval.__main__.MODEL", SpeculativeLM)  # which may be registered more than once
    monkeypatch.setattr(sys, "argv", words[2:])  # after python -m
    main()


def num_kept(path):
    """How many answers a file holds that another process writes; 0 before it has begun."""
    try:
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute("SELECT COUNT(*) FROM answers").fetchone()[0]
    except sqlite3.Error:
        return 0


@needs_lm_eval
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"w": [0.5, 0.7], "verifier": "ensemble"}, "lm_eval evaluates one model at a time"),
        ({"temperature": 0.7}, "temperature is decided by lm_eval for each task: give it as --gen_kwargs"),
        ({"verifier": "exactt"}, r"verifier=exactt names no file .*did you mean exact"),
        ({"pretrained": "x"}, "pretrained is not an option"),
        ({"keep": "/dev/null/x.db"}, "keep=/dev/null/x.db cannot store answers"),
        ({"engine": "vllm"}, "engine=vllm is not supported in lm_eval, where sdbench decodes in this process"),
        ({"task": "gsm8k"}, "task is an option .* no effect in lm_eval: name tasks by --tasks"),
        (
            {"tokenizer": "org/big"},
            'tokenizer is not an option .* such as RULER\'s, give --metadata \'{"tokenizer": "ID"}\'',
        ),
        ({"n": 100}, "n is an option of python -m sdbench that has no effect in lm_eval: give --limit"),
        ({"samples": 4}, "samples is an option of python -m sdbench that has no effect in lm_eval: remove it"),
        ({"shard": "1/2"}, "shard is an option .* no effect"),
        (
            {"model.chat_options.enable_thinkin": False},
            r"chat_options.enable_thinkin is not used by the chat template of",
        ),
        ({"timing.cells": 3}, "timing.cells is an option .* no effect"),
        ({"experiment": "tiny"}, "experiment is an option .* no effect in lm_eval: name the pair"),
        ({"method": "learned"}, "method is an option .* no effect in lm_eval: name the rule with its head"),
        ({"drafter": "mtp"}, r"drafter=mtp needs drafter.head=trained:TASK or drafter.head=FOLDER in lm_eval"),
        (
            {"drafter": "gate"},
            r"drafter=gate needs drafter.length_head=FOLDER in lm_eval: a gate is for one temperature",
        ),
        (
            {"drafter": "gate", "drafter.length_head": "trained:gsm8k-tiny"},
            r"drafter=gate needs drafter.length_head=FOLDER in lm_eval",
        ),
        ({"drafter": "mtp", "drafter.head": "trained:wmt"}, "no head was trained for model=llama-tiny on task=wmt"),
    ],
)
def test_what_is_no_setting_is_one_sentence(options, words):
    from sdbench.config import ConfigError
    from sdbench.lm_eval.model import SpeculativeLM

    with pytest.raises(ConfigError, match=words):
        SpeculativeLM(**{**OURS, **options})


@needs_lm_eval
@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "changed", "sentence"),
    [
        ("num_draft=5", "num_draft=none", r"num_draft must be .* got none"),
        (
            "model=llama-tiny",
            f"target={PAIR / 'target'},draft={PAIR.parent / 'qwen-tiny' / 'draft'}",
            r"model\.target=\S+ and model\.draft=\S+ have different tokenizers: .*; give a draft of the same family",
        ),
    ],
    ids=["option", "draft"],
)
def test_what_is_no_setting_is_one_sentence_and_exit_2(option, changed, sentence, tmp_path):
    write_tasks(tmp_path, 2)
    out = tmp_path / "out"
    words = command(tmp_path, "--output_path", out, keep=tmp_path / "kept.db")
    words = [word.replace(option, changed) for word in words]
    env = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.search(rf"^sdbench\.lm_eval: {sentence}$", done.stderr, re.MULTILINE), done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert not out.exists()


@needs_lm_eval
@pytest.mark.slow
def test_a_file_of_use_cache_of_another_setting_is_one_sentence_and_exit_2(tmp_path, monkeypatch, capsys):
    write_tasks(tmp_path, 2)
    file = tmp_path / "answers"
    words = command(tmp_path, "--output_path", tmp_path / "out", "--use_cache", file, keep=tmp_path / "kept.db")
    run_here(words, monkeypatch)
    with pytest.raises(SystemExit) as ended:
        run_here([word.replace("verifier=exact", "verifier=ensemble,w=0.5") for word in words], monkeypatch)
    assert ended.value.code == 2
    sentence = f"--use_cache={file} holds answers that may be of another setting or model: give another file, or keep="
    assert capsys.readouterr().err.count(f"\nsdbench.lm_eval: {sentence}") == 1
    run_here(words, monkeypatch)


@needs_lm_eval
@pytest.mark.parametrize("path", USED)
def test_a_version_without_what_is_used_is_one_sentence_and_exit_2(path, without, capsys):
    without(path, USED)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert re.fullmatch(
        rf"sdbench\.lm_eval: lm_eval \S+ has no {path.replace(':', '.').rstrip('.')}, which .*\n", printed
    )


@needs_lm_eval
def test_options_of_answers_that_we_do_not_have_are_refused():
    from sdbench.lm_eval.options import AnswerOptions, run_of

    plain = {"until": ["Q:"], "do_sample": True, "temperature": 1.0}
    options = AnswerOptions.of("task", {**plain, "top_k": 0, "num_beams": 1, "repetition_penalty": 1.0}, 1000)
    assert (options.top_k, options.temperature) == (None, 1.0)
    for name, value in (("repetition_penalty", 1.1), ("min_p", 0.1), ("num_beams", 10), ("max_length", 9)):
        with pytest.raises(ConfigError, match=rf"^{name}={value} of task is not supported: "):
            AnswerOptions.of("task", {**plain, name: value}, 1000)
    for given, sentence in (
        (
            {"temperature": None, "top_p": 0.9},
            "^do_sample=true of task needs a temperature above 0",
        ),  # it was greedy, without top_p
        ({"temperature": 0}, "^do_sample=true of task needs a temperature above 0"),
        ({"top_k": -1}, "^top_k must be at least 1 or None, got -1 in the generation options of task"),
        ({"top_p": 0}, "^top_p must be in "),
        ({"temperature": 1e-7}, "^temperature must be 0, or at least "),
    ):
        with pytest.raises(ConfigError, match=sentence):
            AnswerOptions.of("task", {k: v for k, v in {**plain, **given}.items() if v is not None}, 1000)
    for given, sentence in (
        ({"max_gen_toks": "abc"}, "^the generation options of task have an invalid value: "),
        ({"temperature": None}, "^the generation options of task have an invalid value: "),
        ({"temperature": "hot"}, "^the generation options of task have an invalid value: "),
        ({"max_gen_toks": 0}, "^max_gen_toks=0 of task must be at least 1"),
        ({"max_gen_toks": -5}, "^max_gen_toks=-5 of task must be at least 1"),
        ({"top_p": "x"}, "^top_p=x of task must be a number"),
        ({"top_k": True}, "^top_k=true of task must be a whole number"),
        ({"top_k": 40.5}, "^top_k=40.5 of task must be a whole number"),
        ({"until": 5}, r"^until=\[5\] of task must be strings"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            AnswerOptions.of("task", {**plain, **given}, 1000)
    for given, sentence in (
        ({"decode": "nucleus"}, "decode is decided by lm_eval for each task"),
        ({"model": "llama-tiny", "model.distilled": "overlap"}, r"model\.distilled=overlap belongs to a task"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            run_of({"verifier": "exact", **given})


@needs_lm_eval
def test_a_value_arrives_whole():
    """A path of more than 80 characters was cut."""
    from sdbench.lm_eval.options import run_of

    path = "/models/" + "a-long-folder/" * 12 + "target"
    run = run_of({"target": path, "draft": "org/small", "model.packed": False, "num_draft": [3], "verifier": "exact"})
    assert (run.model.target, run.model.packed, run.num_draft) == (path, False, (3,))


@needs_lm_eval
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"verifier": "diversed", "verifier.head": "trained:gsm8k-tiny", "verifier.offset": 0}, "heads"),
        ({"drafter": "mtp", "drafter.head": "trained:gsm8k-tiny"}, "drafters/mtp"),
    ],
)
def test_a_trained_head_is_that_of_no_temperature(options, kind, tmp_path, monkeypatch):
    """They were read as folders called trained:TASK. The tasks decide the temperature, and the configuration says 0."""
    from sdbench.lm_eval.options import run_of

    monkeypatch.chdir(tmp_path)
    greedy = tmp_path / "results" / kind / "llama-tiny-gsm8k-tiny-T0"
    greedy.mkdir(parents=True)
    (greedy / "head.json").write_text("{}")
    run = run_of({**OURS, **options})
    head = run.drafters[0].options.get("head") or run.verifiers[0].settings[0]["head"]
    assert Path(head) == PAIR.parent / kind / "llama-tiny" / "gsm8k-tiny"
    assert run.temperature == 0


@pytest.fixture
def short_model(monkeypatch):
    """A model whose answers have four tokens, and what its warnings say."""
    from lm_eval.api.instance import Instance

    from sdbench.lm_eval.model import SpeculativeLM

    monkeypatch.setattr("sdbench.prepare.progress._printed", set())

    def make(**model_options):
        model = SpeculativeLM(**{**OURS, **model_options})

        def answer(task="task", **options):
            arguments = ("Question: 1 + 1?\nAnswer:", {"until": ["Q"], "max_gen_toks": 4, **options})
            return model.generate_until([Instance("generate_until", {}, arguments, 0, (task, 0, 1))])

        return model, answer

    return make


@needs_lm_eval
def test_all_answers_of_a_task_are_decoded_in_one_call(monkeypatch):
    from lm_eval.api.instance import Instance

    from sdbench.lm_eval.model import SpeculativeLM

    model, spy = SpeculativeLM(**OURS, batch_size=3), Mock(wraps=generate)
    monkeypatch.setattr("sdbench.lm_eval.model.generate", spy)
    prompts = [f"Question: {number} + 1?\nAnswer:" for number in range(5)]
    options = {"until": ["Q"], "max_gen_toks": 4}
    model.generate_until(
        [Instance("generate_until", {}, (prompt, options), 0, ("task", i, 1)) for i, prompt in enumerate(prompts)]
    )
    (call,) = spy.call_args_list
    assert call.args[2] == [model.tok_encode(prompt) for prompt in prompts]
    assert call.kwargs["batch_size"] == 3


def requests_of(tasks, **options):
    """Three requests of each of several tasks, in turns."""
    from lm_eval.api.instance import Instance

    arguments = {"until": ["Q"], "max_gen_toks": 12, **options}
    names = [(task, number) for number in range(3) for task in tasks]
    rows = embedded.rows("gsm8k-tiny", "test", n=len(names))
    return [
        Instance("generate_until", {}, (row["question"], arguments), 0, (*name, 1))
        for name, row in zip(names, rows, strict=True)
    ]


@needs_lm_eval
def test_tasks_with_equal_options_are_decoded_together(tmp_path, monkeypatch):
    """They were decoded one after another, so that the batch ran empty at the end of each."""
    from sdbench.engine.loop import BatchRun
    from sdbench.lm_eval.model import SpeculativeLM

    spy, rounds, whole_round = Mock(wraps=generate), [], BatchRun._round
    monkeypatch.setattr("sdbench.lm_eval.model.generate", spy)
    monkeypatch.setattr(BatchRun, "_round", lambda run, batch: rounds.append(batch) or whole_round(run, batch))

    usual, keeping = (SpeculativeLM(**OURS, batch_size=6, **keep) for keep in ({}, {"keep": str(tmp_path / "kept.db")}))

    def decode(requests, model=usual):
        """Texts by task and number, whole counts by task, and how many calls and rounds it took."""
        spy.reset_mock()
        rounds.clear()
        answers = model.generate_until(requests)
        counts = {
            task: [{name: value for name, value in each.items() if isinstance(value, int)} for each in part]
            for task, part in model.counts.items()
        }
        by_place = {(each.task_name, each.doc_id): text for each, text in zip(requests, answers, strict=True)}
        return by_place, counts, spy.call_count, len(rounds)

    requests = requests_of(("a", "b"))
    texts, counts, num_calls, num_rounds = decode(requests)
    alone = [decode([each for each in requests if each.task_name == task]) for task in ("a", "b")]
    assert texts == alone[0][0] | alone[1][0]
    assert counts == alone[0][1] | alone[1][1]
    assert num_calls == 1
    assert num_rounds == max(each[3] for each in alone) < sum(each[3] for each in alone)
    assert len(set(texts.values())) == 6
    # Other options are another call, and so is each task that is sampled, whose random numbers are those of its numbers.
    assert decode([*requests, *requests_of(("c",), max_gen_toks=5)])[2] == 2
    sampled = requests_of(("a", "b"), do_sample=True, temperature=1.0)
    texts, _, num_calls, _ = decode(sampled)
    assert num_calls == 2
    assert texts == decode(sampled[::2])[0] | decode(sampled[1::2])[0]
    # Of kept answers only the other tasks are decoded.
    decode(requests[::2], keeping)
    again = decode(requests, keeping)
    assert again[:2] == decode(requests)[:2]
    assert again[3] == alone[1][3]


@needs_lm_eval
def test_the_measures_are_those_of_one_evaluation(short_model):
    """A model that is evaluated twice pooled them."""
    model, answer = short_model()
    answer("other")
    answer()  # after an evaluation that has failed
    first = model.get_model_info()["sdbench"]
    assert {name: measures["n"] for name, measures in first["tasks"].items()} == {"task": 1}
    assert model.get_model_info()["sdbench"]["tasks"] == {}
    answer()
    assert model.get_model_info()["sdbench"]["tasks"]["task"]["tokens"] == first["tasks"]["task"]["tokens"]


@needs_lm_eval
def test_the_facts_of_an_evaluation_have_all_that_decides_its_answers(short_model):
    options = {"seed": 7, "dtype": "float64", "drafter": "lookup", "drafter.longest": 6}
    options["model.chat_options.bos_token"] = "x"
    facts = short_model(**options)[0].get_model_info()["sdbench"]
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["seed"], facts["drafter"], facts["drafter_options"]) == (7, "lookup", {"shortest": 2, "longest": 6})
    assert facts["chat_options"] == {"bos_token": "x"}
    assert {name: facts["numerics"][name] for name in ("target_dtype", "target_quantization", "draft_dtype")} == {
        "target_dtype": "torch.float64",
        "target_quantization": None,
        "draft_dtype": "torch.float64",
    }
    head = str(PAIR.parent / "heads" / "llama-tiny" / "gsm8k-tiny")
    learned = short_model(**{"verifier": "diversed", "verifier.head": head, "verifier.offset": 0})[0].get_model_info()
    assert learned["sdbench"]["head"].startswith("gsm8k-tiny@")


@needs_lm_eval
def test_the_batch_that_fits_is_that_of_the_sampling_of_the_task(short_model, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "sdbench.lm_eval.model.rows_that_fit",
        lambda run, pair, length: seen.append((run.temperature, run.top_k, run.top_p)) or 2,
    )
    _, answer = short_model()
    answer(do_sample=True, temperature=0.7, top_p=0.9, top_k=5)
    answer(do_sample=False)
    assert seen == [(0.7, 5, 0.9), (0.0, None, None)]


@needs_lm_eval
@pytest.mark.parametrize(
    ("model_options", "options", "torch_seed", "is_warned"),
    [
        ({}, {"do_sample": True, "temperature": 1.0}, 42, True),
        ({}, {"do_sample": True, "temperature": 1.0}, 1234, False),
        ({"seed": 0}, {"do_sample": True, "temperature": 1.0}, 42, False),
        ({}, {"do_sample": False}, 42, False),
        ({"verifier": "ensemble", "w": 0.5, "verifier.greedy": "mixture"}, {"do_sample": False}, 42, True),
    ],
)
def test_a_seed_of_the_harness_without_effect_is_one_warning(
    model_options, options, torch_seed, is_warned, short_model, monkeypatch, capsys
):
    monkeypatch.setattr("torch.initial_seed", lambda: torch_seed)
    _, answer = short_model(**model_options)
    answer(**options)
    answer(**options)
    warning = "lm_eval's --seed does not change sampled answers of sdbench: give seed= in --model_args"
    assert capsys.readouterr().err.count(warning) == is_warned


@needs_lm_eval
def test_the_limits_of_a_rule_are_those_at_the_temperature_of_the_task():
    from lm_eval.api.instance import Instance

    from sdbench.lm_eval.model import SpeculativeLM

    def ask(model, **options):
        arguments = ("Question: 1 + 1?\nAnswer:", {"until": ["Q"], "max_gen_toks": 4, **options})
        return model.generate_until([Instance("generate_until", {}, arguments, 0, ("task", 0, 1))])

    common = {"target": str(PAIR / "target"), "draft": str(PAIR / "draft"), "num_draft": 3}
    sampled = SpeculativeLM(**common, verifier="mentored", **{"verifier.divergence": 0.2})
    assert len(ask(sampled, do_sample=True, temperature=1.0)) == 1
    with pytest.raises(ConfigError, match=r"^verifier=mentored"):
        ask(sampled, do_sample=False)
    greedy = SpeculativeLM(**common, verifier="asd", **{"verifier.budget": 1.0})
    assert len(ask(greedy, do_sample=False)) == 1
    with pytest.raises(ConfigError, match=r"^verifier=asd"):
        ask(greedy, do_sample=True, temperature=1.0)


@pytest.mark.results
def test_the_table_of_docs_lm_eval_is_that_of_the_committed_figures():
    """Its rows, and that a draft distilled for longer takes less than half the time of `hf`, and no other setting does."""
    root = Path(__file__).parents[2]
    rows = pd.read_csv(root / "results" / "benchmarks" / "lm_eval.csv")
    text = (root / "docs" / "lm_eval.md").read_text()
    names = {
        "model": "its own",
        "mtp": "none: the `mtp` head that ships with the package",
        "eagle3": "none: the `eagle3` head that ships with the package",
    }

    distilled = {
        "distilled": "distilled on word problems, 200 steps",
        "distilled600": "distilled on word problems, 600 steps",
    }

    def short(value: float) -> str:
        return f"{value:.2f}"

    for row in rows.itertuples():
        name = distilled.get(row.draft) or names[row.drafter]
        spread = f"({short(row.ratio_low)} to {short(row.ratio_high)})"
        line = f"| {name} | {row.num_draft} | {row.passes:,} | {short(row.ratio).lstrip('0')} {spread} |"
        assert line in text
    assert text.count("| distilled on word problems, ") + text.count("head that ships with the package |") + text.count(
        "| its own |"
    ) == len(rows)
    assert set(rows.passes_of_hf) == {2880}
    assert set(rows.turns[~rows.num_draft.isin([7, 9])]) == {5}
    assert set(rows.turns[rows.num_draft.isin([7, 9])]) == {9}
    assert set(rows[rows.ratio < 0.5].draft) == {"distilled600"}
    assert rows[rows.draft == "distilled600"].ratio.max() < 0.5
    assert rows.groupby(rows.draft == "distilled600").day.nunique().tolist() == [1, 1]
