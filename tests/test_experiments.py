"""Experiments: each makes the records that a table or figure asks for, and the commands for what is missing do too."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import sdbench
from scripts.paper import build as paper
from scripts.paper import cells as paper_cells
from scripts.paper import numbers as paper_numbers
from scripts.paper.cells import ALL, FINETUNED, LEARNED, TINY, WS, ExhibitRow, base_of
from scripts.zoo_tables import settings_within
from sdbench.cli.command import Command, parse
from sdbench.cli.compose import Composer
from sdbench.cli.help import text
from sdbench.config import ConfigError, config_dir

ROOT = Path(__file__).parents[1]
FOLDER = config_dir() / "experiment"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


def runs_of(composer, *words):
    return [composer.run(job) for job in composer.jobs(Command(words))]


def settings_of(*runs, heads=()):
    """What paper_cells.rows_of asks for, as these runs of one pair and task make it; `heads` where the other task's counts."""
    lines = {ExhibitRow("target", None, 0)}
    for run in runs:
        is_own = run.model.distilled is None
        lines |= {ExhibitRow("draft", None, 0)} if is_own else set()
        for k in run.num_draft:
            lines.add(ExhibitRow("lossless" if is_own else FINETUNED, None, k))
            for setting in run.verifiers[0].settings:
                if run.verifiers[0].name == "ensemble":
                    lines.add(ExhibitRow("ensemble", setting["w"], k))
                if run.verifiers[0].name == LEARNED and setting["offset"] == 0:
                    task = base_of(setting["head"].removeprefix("trained:"))
                    lines.add(ExhibitRow(LEARNED, None, k, task if heads != (None,) else None))
                    assert heads != (None,) or task == base_of(run.task.name)
    return lines


def by_place(runs):
    """{(pair, task, temperature): its runs}"""
    places = {}
    for run in runs:
        places.setdefault((run.model.pair, run.task.name, run.temperature), []).append(run)
    return places


@pytest.mark.slow
@pytest.mark.parametrize("asked", ALL, ids=lambda asked: asked.name)
def test_an_experiment_makes_what_its_table_asks_for(composer, asked):
    places = by_place(runs_of(composer, f"experiment={asked.experiment}"))
    assert {place[:2] for place in places} == {(m, t) for m in asked.models for t in asked.tasks}
    for runs in places.values():
        assert {run.temperature for run in runs} == {asked.temperature}
        assert set(paper_cells.rows_of(asked)) <= settings_of(*runs, heads=asked.heads)
        assert runs[0].verifiers[0].settings[0].get("mix", "prob") == "prob"
        if asked.name.startswith("table"):
            assert {run.task.options["protocol"] for run in runs} == {"diversed"}


TWIN = ("-m", "experiment=diversed-tiny", "temperature=1.0,0.1,0.0")


@pytest.mark.slow
def test_the_tiny_twin_makes_all_of_it_but_heads_of_another_task(composer):
    assert {run.temperature for run in runs_of(composer, "experiment=diversed-tiny")} == {1.0}
    runs = [composer.run(job) for job in composer.jobs(parse(TWIN))]
    places = by_place(runs)
    assert (len(runs), len(places)) == (36, 12)
    assert {run.model.pair for run in runs} == {"llama-tiny"}
    assert {place: len({run.folder for run in own}) for place, own in places.items()} == dict.fromkeys(places, 2)
    for asked in ALL:
        for task in asked.tasks:
            made = settings_of(*places["llama-tiny", task + TINY, asked.temperature], heads=asked.heads)
            lacking = set(paper_cells.rows_of(asked)) - made
            assert {line.trained for line in lacking} <= {*asked.heads, None} - {task}
            assert {line.rule for line in lacking} <= {LEARNED}


RULES = {path.stem for path in (config_dir() / "verifier").glob("*.yaml")}
HEADS = {name for name in RULES if "trained:" in (config_dir() / "verifier" / f"{name}.yaml").read_text()}


def rules_of(composer, *words):
    (job,) = composer.jobs(parse(words))
    return {rule.name for rule in composer.run(job).verifiers}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["zoo", "zoo-greedy"])
def test_the_zoo_has_every_rule_that_its_temperature_allows_and_that_needs_no_head(composer, experiment):
    missing = RULES - rules_of(composer, f"experiment={experiment}", "model=llama-tiny", "task=gsm8k-tiny")
    assert missing == HEADS | {"sure"} | {"zoo": {"asd"}, "zoo-greedy": {"mentored"}}[experiment]


@pytest.mark.slow
def test_all_rules_follow_the_options_of_the_run(composer):
    greedy = rules_of(composer, "verifier=all", "w=0.5")
    assert greedy - rules_of(composer, "verifier=all", "num_draft=3") == {"fly"}
    with_head = rules_of(composer, "verifier=all", "verifier.judge.head=trained:gsm8k-tiny")
    assert with_head - greedy == {"judge"}


@pytest.mark.slow
def test_the_command_for_what_is_missing_makes_it(composer):
    empty = paper_numbers.measure_cells([])
    for asked in ALL:
        wanted = {line.name: line for line in paper_cells.rows_of(asked)}
        for lacking in paper_cells.missing(asked, empty, {}):
            command = parse(shlex.split(lacking.command)[3:])
            (run,) = [composer.run(job) for job in composer.jobs(command)]
            assert (run.model.pair, run.task.name, run.temperature) == (lacking.model, lacking.task, asked.temperature)
            assert {wanted[name] for name in lacking.settings} <= settings_of(run, heads=asked.heads)
        for line in wanted.values():
            method = paper_cells.method_of(asked, line)
            tiny = paper_cells.command_of(asked, "llama-tiny", asked.tasks[0] + TINY, {}, method)
            (run,) = [composer.run(job) for job in composer.jobs(parse(shlex.split(tiny)[3:]))]
            assert line in settings_of(run, heads=asked.heads)
            assert (run.model.pair, run.timing) == ("llama-tiny", None)


def test_a_study_is_narrowed_by_pair_task_and_n(composer):
    words = ("experiment=diversed-table2", "model=qwen", "task=xsum", "n=7")
    assert {run.model.name for run in runs_of(composer, *words)} == {"qwen", "qwen+forward_kl"}
    (run,) = runs_of(composer, *words, "method=static")
    assert (run.model.name, run.task.name, run.n, run.temperature) == ("qwen", "xsum", 7, 0.1)


@pytest.mark.parametrize("experiment", ["diversed-table1", "diversed-table2", "diversed-table3", "diversed-tiny"])
def test_w_narrows_the_method_that_has_it(composer, experiment):
    pair = "llama" if "table" in experiment else "llama-tiny"
    words = (f"experiment={experiment}", f"model={pair}", f"task=gsm8k{'-tiny' * (pair != 'llama')}")
    first, *others = runs_of(composer, *words, "w=0.7")
    assert [setting["w"] for setting in first.verifiers[0].settings] == [0.7]
    assert others == runs_of(composer, *words)[1:]
    with pytest.raises(ConfigError, match="takes no w"):
        runs_of(composer, *words, "method=learned", "w=0.7")


def test_decode_replaces_the_temperatures_of_an_experiment(composer):
    jobs = composer.jobs(Command(("experiment=drafters", "decode=low", "drafter=model", "verifier=exact")))
    assert [composer.run(job).temperature for job in jobs] == [0.1] * 3
    jobs = composer.jobs(
        Command(("experiment=drafters", "decode=low", "drafter=model", "verifier=exact", "temperature=1"))
    )
    assert [composer.run(job).temperature for job in jobs] == [1] * 3


def thresholds_of(rule):
    (setting,) = rule.settings
    return setting["eps"], setting["delta"]


def test_an_experiment_is_narrowed_by_rule(composer):
    words = ("experiment=drafters", "task=gsm8k-tiny", "temperature=1", "drafter=model")
    ((exact,), (typical,), (alone, again)) = (
        runs_of(composer, *words, f"verifier={rule}")[0].verifiers for rule in ("exact", "typical", "[exact,typical]")
    )
    assert (exact.name, alone.name) == ("exact", "exact")
    assert thresholds_of(typical) == thresholds_of(again) == (0.3, 0.2)
    (run,) = runs_of(composer, *words, "verifier=typical", "verifier.eps=0.1")
    assert thresholds_of(run.verifiers[0]) == (0.1, 0.2)
    with pytest.raises(ConfigError, match="takes no w"):
        runs_of(composer, *words, "verifier=exact", "w=0.5")
    for rule, marker in {"typical": None, "within": "####"}.items():
        (run,) = runs_of(composer, "experiment=zoo", "model=llama-tiny", "task=gsm8k-tiny", f"verifier={rule}")
        assert run.verifiers[0].settings[0].get("end") == marker


def test_an_experiment_is_narrowed_by_drafter(composer):
    for drafter in ("medusa", "[medusa]"):
        (run,) = runs_of(composer, "experiment=real-smollm2-trained", f"drafter={drafter}")
        assert [(one.name, one.options["head"]) for one in run.drafters] == [("medusa", "trained:gsm8k")]
        assert [rule.name for rule in run.verifiers] == ["ensemble", "typical"]
    (run,) = runs_of(composer, "experiment=real-smollm2-trained", "drafter=lookup")
    assert [one.name for one in run.drafters] == ["lookup"]


@pytest.mark.slow
def test_the_real_pair_has_an_experiment_for_each_of_the_six_tasks(composer):
    rows = {"humaneval": 164, "mbpp": 250, "gsm8k": 100, "wmt": 300, "xsum": 150, "cnndm": 40}
    for task, n in rows.items():
        (run,) = runs_of(composer, f"experiment=real-{task}")
        assert (run.task.name, run.n, run.dtype, run.temperature) == (task, n, "bfloat16", 0)
        assert run.model.name == "qwen-coder-small"
        assert {0.3, 0.5, 0.7, 0.9} <= {setting["w"] for setting in run.verifiers[0].settings}
        (run,) = runs_of(composer, f"experiment=real-{task}", "decode=sampling", "top_p=0.95", "model=smollm2")
        assert (run.model.name, run.temperature, run.top_p) == ("smollm2", 1, 0.95)


@pytest.mark.parametrize("task", ["humaneval", "gsm8k"])
def test_other_rules_and_lengths_share_the_folder_of_the_real_task(composer, task):
    (base,) = runs_of(composer, f"experiment=real-{task}")
    (rules,) = runs_of(composer, f"experiment=real-{task}-rules")
    (lengths,) = runs_of(composer, f"experiment=real-{task}-lengths")
    for run in (rules, lengths):
        same = ("folder", "model", "task", "n", "temperature", "dtype", "seed")
        assert [getattr(run, name) for name in same] == [getattr(base, name) for name in same]
    assert (lengths.num_draft, [s["w"] for s in lengths.verifiers[0].settings]) == ((3, 8), [0.7])
    (tiny,) = (ROOT / "results/zoo").glob(f"*{task}-tiny-T0")
    within = settings_within(pd.read_csv(tiny / "summary.csv")).set_index("verifier")
    assert [rule.name for rule in rules.verifiers] == ["typical", "mars", "lenience", "bild"]
    for rule in rules.verifiers:
        (setting,) = rule.settings
        assert setting[within.at[rule.name, "knob"]] == float(within.at[rule.name, "value"])


@pytest.mark.parametrize(("task", "n"), [("humaneval", 164), ("wmt", 300)])
def test_sampled_real_runs_have_a_folder_of_their_own(composer, task, n):
    (run,) = runs_of(composer, f"experiment=real-{task}-sampled")
    assert (run.name, run.n) == (f"qwen-coder-small-{task}-T1", n)
    assert (run.temperature, run.top_p, run.dtype) == (1, 0.95, "bfloat16")
    assert [setting["w"] for setting in run.verifiers[0].settings] == [0.5, 0.7, 0.9]


@pytest.mark.slow
def test_real_drafters_and_models_without_a_sibling(composer):
    (base,) = runs_of(composer, "experiment=real-humaneval")
    (run,) = runs_of(composer, "experiment=real-humaneval-drafters")
    assert (run.folder, run.model, run.n) == (base.folder, base.model, 40)
    assert [rule.name for rule in run.verifiers] == ["ensemble", "typical"]
    assert {"model", "hybrid", "tiers", "lookup", "suffix", "early-exit", "pruned"} == {d.name for d in run.drafters}
    for name, model in (("smollm2", "smollm2-135m"), ("gemma", "gemma-270m")):
        (run,) = runs_of(composer, f"experiment=real-{name}")
        assert (run.name, run.n, run.temperature) == (f"{model}-humaneval", 40, 0)
        assert (run.model.draft, run.model.draft_quantization) == (run.model.target, "int8")
        assert [drafter.name for drafter in run.drafters] == ["lookup", "suffix", "early-exit", "pruned", "model"]
    (run,) = runs_of(composer, "experiment=real-humaneval-foreign")
    assert (run.model.name, run.model.target, run.n) == ("qwen-coder-smollm2", base.model.target, 40)
    assert run.model.draft == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert run.folder != base.folder
    assert [drafter.name for drafter in run.drafters] == ["universal", "intersection"]
    assert [rule.name for rule in run.verifiers] == ["ensemble", "typical"]
    (run,) = runs_of(composer, "experiment=real-humaneval-retrieval", "drafter.corpus=pyproject.toml")
    assert (run.folder, run.model.target, run.model.draft, run.n) == (base.folder, base.model.target, None, 40)
    assert [(drafter.name, drafter.options["corpus"]) for drafter in run.drafters] == [("retrieval", "pyproject.toml")]
    (run,) = runs_of(composer, "experiment=real-humaneval-evalplus")
    assert (run.name, run.task.options["protocol"]) == ("qwen-coder-small-humaneval-evalplus", "evalplus")
    assert run.task.options["chat"] is True


@pytest.mark.slow
def test_files_of_a_real_experiment_go_to_the_folder_of_its_own_pair(composer):
    """Files without the name of their pair would join the records of another pair."""
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`real-[\w-]+`(?:, )?)+) \| `([\w-]+)` \|", readme, re.MULTILINE)
    names = {experiment: name for experiments, name in rows for experiment in re.findall(r"`([\w-]+)`", experiments)}
    assert len(names) == 6
    for experiment in (name for name in NAMES if name.startswith("real-")):
        corpus = ["drafter.corpus=pyproject.toml"] if experiment.endswith("-retrieval") else []
        (run,) = runs_of(composer, f"experiment={experiment}", *corpus)
        assert run.model.name == names.get(experiment, "qwen-coder-small")
    assert "| all others | `qwen-coder-small` |" in readme


def test_rows_of_humaneval_are_drawn_and_those_of_the_other_real_tasks_are_the_first(composer):
    """results/real/README.md says "the first 24" of a pass over fewer rows than the task has."""
    for task, seed in {"humaneval": 42, "mbpp": None, "gsm8k": None, "wmt": None, "xsum": None, "cnndm": None}.items():
        (run,) = runs_of(composer, f"experiment=real-{task}")
        assert run.task.options["seed"] == seed


def test_the_guide_s_lenient_span_is_marked_in_the_prompt_of_the_real_task(composer):
    guide = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    (line,) = (line for line in guide.splitlines() if "verifier=within" in line and "python -m sdbench" in line)
    (run,) = runs_of(composer, *shlex.split(line)[3:])
    (rule,) = run.verifiers
    assert [(s["begin"], s["end"], s["rule.delta"]) for s in rule.settings] == [
        ("Answer", "####", 0.3),
        ("Answer", "####", 0.6),
    ]
    protocol = (config_dir().parent / "sdbench/tasks/protocols/gsm8k.yaml").read_text(encoding="utf-8")
    assert protocol.partition("\nlm-eval:")[2].partition("\n\n")[0].count("\\nAnswer:") == 1
    assert run.task.options["protocol"] == "lm-eval"


def test_help_and_readme_name_every_experiment():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = next(line for line in text().splitlines() if line.strip().startswith("experiment=") and "NAME" not in line)
    assert listed.split("=", 1)[1].split() == NAMES
    assert [name for name in NAMES if not re.search(rf"^\| [^|]*`{name}`", readme, re.MULTILINE)] == []
    assert {asked.experiment for asked in ALL} < set(NAMES)


def test_the_settings_of_a_table_belong_to_the_default_sweep(composer):
    run = composer.run(())
    assert set(WS) <= {round(setting["w"], 6) for setting in run.verifiers[0].settings}


@pytest.mark.long  # its quick stand-in: test_the_tiny_twin_makes_all_of_it
def test_the_tiny_twin_fills_the_paper(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sdbench", *TWIN, "method=static"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    paper.build_paper([tmp_path / "results"], tmp_path / "figures", resamples=500)
    results = [sdbench.read(folder) for folder in paper.folders_of([tmp_path / "results"])]
    cells = paper_numbers.measure_cells(results, resamples=500)
    lacking = [one for asked in ALL for one in paper_cells.missing(asked, cells, {})]
    untrained = {one.command.partition("method=")[2].split()[0] for one in lacking if one.model == "llama-tiny"}
    assert {one.model for one in lacking} == {"llama", "qwen", "llama-tiny"}
    assert untrained == {"learned", "finetuned", "transfer"}


SWEPT = {path.stem for path in FOLDER.glob("*.yaml") if re.search(r"^ +temperature: ", path.read_text(), re.MULTILINE)}


@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name.startswith("zoo") else [])
        for name in sorted(set(NAMES) - SWEPT)
    ],
)
def test_decode_on_the_command_line_is_that_of_every_experiment(composer, experiment):
    job = composer.jobs(parse([f"experiment={experiment}", "decode=transformers"]))[0]
    tree = composer.tree(composer.compose(job), job)
    assert (tree["temperature"], tree["top_k"]) == (1.0, 50)


def test_several_experiments_are_several_commands(composer):
    with pytest.raises(ConfigError, match=r"^experiment= takes one name: run the command once for each$"):
        composer.jobs(parse(["-m", "experiment=zoo,zoo-greedy"]))


def test_timing_is_turned_on_once(composer):
    with pytest.raises(
        ConfigError, match=r"^timing=on sets all options of the latency pass back, also timing\.examples=30: remove"
    ):
        composer.jobs(parse(["timing.examples=30", "timing=on"]))
