"""Configs: every file is a run, every slip is one sentence with the way out."""

import dataclasses
from types import SimpleNamespace

import pytest

from sdbench import config, tasks
from sdbench.cli import compose_run
from sdbench.cli.command import Command, collapse, expand, parse
from sdbench.cli.compose import Composer, slug
from sdbench.config import GROUPS, KEYS, ConfigError, config_dir
from sdbench.prepare.pair import device_of
from sdbench.train.options import RECIPES
from sdbench.train.setup import run_of


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


MANY_JOBS = {"zoo", "zoo-greedy", "drafters"}  # experiments that take five seconds and more to compose
FILES = [
    pytest.param(group, path.stem, marks=[pytest.mark.slow] if path.stem in MANY_JOBS else [])
    for group in GROUPS
    for path in sorted((config_dir() / group).glob("*.yaml"))
]


@pytest.mark.parametrize(("group", "name"), FILES, ids=lambda value: value)
def test_every_file_is_a_run(composer, group, name):
    jobs = composer.jobs(Command((f"{group}={name}",)))
    runs = [composer.run(job) for job in jobs]
    rules = [tuple(rule.name for rule in run.verifiers) for run in runs]
    assert len({(run.folder, names) for run, names in zip(runs, rules, strict=True)}) == len(runs)
    if group in ("model", "task", "drafter"):
        run = runs[0]
        assert {"model": run.model, "task": run.task, "drafter": run.drafters[0]}[group].name == name
    if group == "model":
        assert runs[0].drafters[0].name == ("lookup" if runs[0].model.draft is None else "model")
    if group == "verifier":
        assert [rule.name for rule in runs[0].verifiers] == [name]


def test_the_default_is_the_tiny_llama_over_w_at_temperature_zero(composer):
    run = composer.run(())
    assert (run.model.name, run.task.name, run.verifiers[0].name, run.name) == (
        *("llama-tiny", "gsm8k-tiny", "ensemble"),
        "llama-tiny-gsm8k-tiny",
    )
    assert [setting["w"] for setting in run.verifiers[0].settings] == pytest.approx(
        sorted([*(i / 10 for i in range(11)), 0.85, 0.95])
    )
    assert (run.temperature, run.top_k, run.top_p, run.num_draft, run.margin) == (0.0, None, None, (5,), 5)


def test_the_drafter_of_a_model_without_a_draft_can_be_another(composer):
    (drafter,) = composer.run(("model=gemma-270m", "drafter=suffix")).drafters
    assert drafter.name == "suffix"


def test_the_top_level_keys_are_those_that_are_promised(composer):
    tree = composer.tree(composer.compose(()), ())
    assert sorted(tree) == sorted(KEYS)


def test_a_run_is_frozen(composer):
    with pytest.raises(dataclasses.FrozenInstanceError):
        composer.run(()).seed = 3


def test_numbers_and_lists_are_both_taken(composer):
    run = composer.run(("w=[0.3,0.5,0.3,1]", "num_draft=[3,5]"))
    assert [setting["w"] for setting in run.verifiers[0].settings] == [0.3, 0.5, 1.0]
    assert run.num_draft == (3, 5)
    assert [setting["w"] for setting in composer.run(("w=1",)).verifiers[0].settings] == [1.0]


def test_a_knob_of_the_rule_is_a_list_too(composer):
    run = composer.run(("verifier.mix=[prob,logit]", "w=[0.5,0.7]"))
    assert [(s["w"], s["mix"], s["greedy"]) for s in run.verifiers[0].settings] == [
        *((0.5, "prob", "blend"), (0.5, "logit", "blend")),
        *((0.7, "prob", "blend"), (0.7, "logit", "blend")),
    ]


def test_several_rules_each_with_their_knobs_and_w_for_those_that_have_it(composer):
    run = composer.run(("verifier=[ensemble,exact]", "w=[0.5,1]", "verifier.ensemble.mix=logit"))
    assert [rule.name for rule in run.verifiers] == ["ensemble", "exact"]
    assert [(s["w"], s["mix"]) for s in run.verifiers[0].settings] == [(0.5, "logit"), (1.0, "logit")]
    assert run.verifiers[1].settings == ({},)


def test_several_drafters_each_with_its_options(composer):
    run = composer.run(("drafter=[model,lookup]", "drafter.lookup.longest=12"))
    assert [(drafter.name, dict(drafter.options)) for drafter in run.drafters] == [
        ("model", {}),
        ("lookup", {"shortest": 2, "longest": 12}),
    ]
    assert [drafter.name for drafter in composer.run(("drafter=[suffix]",)).drafters] == ["suffix"]


@pytest.mark.slow
def test_all_drafters_are_those_that_the_pair_can_feed(composer):
    names = [drafter.name for drafter in composer.run(("drafter=all",)).drafters]
    assert {"model", "lookup", "suffix"} <= set(names) <= set(composer.options("drafter"))
    assert {"medusa", "mtp", "eagle", "eagle3", "block"} <= set(names), "their heads ship for this pair and task"
    other = [drafter.name for drafter in composer.run(("drafter=all", "task=cnndm-tiny")).drafters]
    assert not {"medusa", "mtp", "eagle", "eagle3", "block"} & set(other)
    without = [drafter.name for drafter in composer.run(("drafter=all", "model.draft=null")).drafters]
    assert "model" not in without
    assert {"lookup", "suffix"} <= set(without)


@pytest.mark.parametrize("words", [(), ("drafter=all",), ("drafter=[lookup,retrieval]",)])
def test_a_drafter_that_only_a_sweep_names_takes_options(composer, words):
    given = (
        "-m",
        "experiment=drafters",
        "task=gsm8k-tiny",
        "temperature=0",
        *words,
        "drafter.retrieval.corpus=pyproject.toml",
    )
    (job,) = composer.jobs(parse(given))
    options = {drafter.name: drafter.options for drafter in composer.run(job).drafters}
    assert options["retrieval"]["corpus"] == "pyproject.toml"


DRAFTERS = {
    ("drafter=[]",): r"drafter must not be an empty list: name some, as drafter=\[model,lookup\]",
    ("drafter=[model,model]",): r"drafter=\[model,model\] names model twice",
    ("drafter=[model,lokup]",): r"drafter=lokup names no file in configs/drafter \(did you mean lookup\?",
    ("drafter=[model,lookup]", "drafter.longest=3"): "drafter.longest is not an option",
    (
        "drafter=[model,lookup]",
        "drafter.lookup.longst=3",
    ): r"drafter.lookup.longst is not an option \(did you mean longest\?",
}


@pytest.mark.parametrize("words", DRAFTERS)
def test_a_slip_in_a_list_of_drafters_is_one_sentence(composer, words):
    with pytest.raises(ConfigError, match=DRAFTERS[words]):
        composer.run(composer.jobs(parse(list(words)))[0])


def test_a_class_of_ones_own_takes_nothing_from_the_default_file(composer):
    run = composer.run(
        ("verifier._target_=mine.Rule", "verifier.level=[1,2]", "verifier.kind=a", "task._target_=mine.Task")
    )
    (rule,) = run.verifiers
    assert (rule.name, rule.target) == ("rule", "mine.Rule")
    assert rule.settings == ({"level": 1.0, "kind": "a"}, {"level": 2.0, "kind": "a"})
    assert (run.task.name, dict(run.task.options)) == ("task", {})
    assert composer.run(("drafter._target_=mine.Lookup", "drafter.depth=3")).drafters[0].options == {"depth": 3}


@pytest.mark.parametrize(
    "words",
    [
        ("verifier=[ensemble,exact]", "verifier.ensemble.mix=logit"),
        ("verifier=[ensemble,exact]", "drafter=[model,lookup]", "drafter.lookup.longest=3"),
        ("verifier._target_=m.R", "verifier.a=1"),
    ],
)
def test_options_pass_through_hydra_as_they_were_typed(words):
    assert collapse(expand(words)) == list(words)


def test_a_pair_by_its_ids_gets_a_name_of_its_own(composer):
    run = composer.run(("model.target=org/big", "model.draft=org/small"))
    assert run.folder.as_posix() == "results/big+small-gsm8k-tiny"
    assert slug("/tmp/pairs/a/target") == "a-target"
    assert slug("embedded:llama-tiny/draft") == "llama-tiny-draft"


def test_the_name_leaves_out_w_and_n(composer):
    assert composer.run(("w=0.3", "n=7")).folder == composer.run(()).folder


def test_multirun_is_one_job_per_pair_and_task_with_the_list_inside(composer):
    jobs = composer.jobs(parse(["-m", "model=llama-tiny,qwen-tiny", "temperature=0,1", "w=[0.5,0.7]"]))
    runs = [composer.run(job) for job in jobs]
    assert [(run.model.name, run.temperature) for run in runs] == [
        *(("llama-tiny", 0.0), ("llama-tiny", 1.0)),
        *(("qwen-tiny", 0.0), ("qwen-tiny", 1.0)),
    ]
    assert all(len(run.verifiers[0].settings) == 2 for run in runs)


def test_the_command_line_narrows_an_experiment(composer):
    jobs = composer.jobs(parse(["experiment=tiny", "task=gsm8k-tiny"]))
    assert [composer.run(job).model.name for job in jobs] == ["llama-tiny", "qwen-tiny", "gemma-tiny"]


def test_a_folder_of_ones_own_adds_files(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [llama-tiny, _self_]\nname: mine\ntarget: org/mine\n")
    composer = Composer(str(tmp_path))
    run = composer.run(composer.jobs(Command(("model=mine",)))[0])
    assert (run.model.name, run.model.target) == ("mine", "org/mine")


@pytest.fixture
def sure(tmp_path) -> Composer:
    """A rule whose knobs stand under `knobs:` alone, beside another that has a default."""
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "certain.yaml").write_text(
        "name: certain\n_target_: mine.Sure\nfloor: 0.5\nknobs:\n  eps: {low: 0, high: 1, sweep: [0.1, 0.2]}\n"
        "  w: {low: 0, high: 1, sweep: [0.5]}\n  floor: {low: 0, high: 1}\n"
    )
    return Composer(str(tmp_path))


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("verifier=typical", "verifier.eps=0.3"),
        ("experiment=real-gsm8k", "verifier.mix=logit", "n=3"),
        ("verifier._target_=mine.Rule", "verifier.level=[1,2]"),
    ],
)
def test_one_run_is_composed_once(monkeypatch, words):
    composer, compositions = Composer(), []
    compose = composer.hydra.compose_config
    monkeypatch.setattr(composer.hydra, "compose_config", lambda *a, **k: compositions.append(a) or compose(*a, **k))
    (job,) = composer.jobs(parse(list(words)))
    assert composer.run(job) == composer.run(job)
    composer.yaml([job])
    assert len(compositions) == 1


def test_a_target_alone_is_refused_with_the_ways_on(composer):
    with pytest.raises(ConfigError, match=r"model.target=org/big has no draft: give model.draft=ID.*model.draft=null"):
        composer.run(("model.target=org/big",))
    for words in (("model=qwen",), ("experiment=real-wmt",), ("model.draft=null",), ("model.draft=org/small",)):
        assert composer.run((*words, "model.target=org/big")).model.target == "org/big"


def eps_of(composer: Composer, *words: str) -> list[object]:
    """The values of eps, of every job and rule that has it."""
    runs = [composer.run(job) for job in composer.jobs(parse(list(words)))]
    return [knob.values for run in runs for rule in run.verifiers for knob in rule.knobs if knob.name == "eps"]


def test_a_file_with_the_name_of_one_of_the_package_is_refused(tmp_path):
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "ensemble.yaml").write_text("name: ensemble\n_target_: mine.Rule\n")
    with pytest.raises(ConfigError, match=r"ensemble.yaml has the same name as a file of the package"):
        Composer(str(tmp_path))


@pytest.mark.slow
def test_a_knob_that_only_its_line_under_knobs_names_is_set_as_any_other(sure):
    assert eps_of(sure, "verifier=certain") == [(0.1, 0.2)]
    assert eps_of(sure, "verifier=certain", "verifier.eps=0.3") == [(0.3,)]
    assert eps_of(sure, "verifier=certain", "verifier.eps=[0.3,0.4]", "w=0.5") == [(0.3, 0.4)]
    assert eps_of(sure, "verifier=[ensemble,certain]", "verifier.certain.eps=0.3") == [(0.3,)]
    assert eps_of(sure, "-m", "verifier=certain", "verifier.eps=0.3,0.4") == [(0.3,), (0.4,)]
    for words, message in (
        (
            ["verifier=certain", "verifier.esp=0.3"],
            "verifier.esp is not an option (did you mean eps? choices: eps, floor)",
        ),
        (["verifier=certain", "verifier.w=0.3"], "write w=VALUE"),
        (["verifier=certain", "eps=0.3"], "eps is not an option: write verifier.eps=VALUE"),
        (["verifier=ensemble", "eps=0.3"], "eps is not an option (choices: model"),
        (["verifier=certain", "verifier.eps=3"], "verifier.eps must be a number between 0 and 1, got 3"),
        (["verifier=[ensemble,certain]", "verifier.eps=0.3"], "verifier.eps is not an option"),
    ):
        with pytest.raises(ConfigError) as caught:
            eps_of(sure, *words)
        assert message in str(caught.value)


def test_timing_may_be_off_or_changed(composer):
    assert composer.run(("timing=off",)).timing is None
    assert composer.run(("timing=false",)).timing is None
    timing = composer.run(("timing.examples=20", "timing.repeats=4")).timing
    assert (timing.examples, timing.repeats, timing.batch_size) == (20, 4, 1)


def test_rates_are_numbers_and_bounds_are_seconds(composer):
    timing = composer.run(("timing.rate=2", "timing.slo={ttft: 500ms, tpot: .05, e2el: 300s}")).timing
    assert timing.rate == (2,)
    assert timing.slo == {"ttft": 0.5, "tpot": 0.05, "e2el": 300}
    most = composer.run(("timing.rate=2", "timing.slo={ttft: 20, tpot: 1, e2el: 100}")).timing
    assert most.slo == {"ttft": 20, "tpot": 1, "e2el": 100}
    assert composer.run(("timing.rate=2", "timing.slo={tpot: 2s}")).timing.slo == {"tpot": 2}
    both = composer.run(("timing.trace=FILE", "timing.rate=2", "timing.requests=9")).timing
    assert (both.requests, timing.requests) == (9, None), "beside a trace the number is that of the rate"


def test_shards_split(composer):
    assert composer.run(("shard=3/8",)).shard == config.Shard(3, 8)


BAD = {
    "w=0.5,0.7": "write w=[0.5,0.7]",
    "num_draft=3,5": "write num_draft=[3,5]",
    "model=llama-tiny,qwen-tiny": "add -m",
    "w=1.5": "w must be a number between 0 and 1, got 1.5",
    "w=a": "w must be a number between 0 and 1, got a",
    "w=true": "w must be a number between 0 and 1, got true",
    "w=[]": "must not be an empty list",
    "model=lama-tiny": "did you mean llama-tiny?",
    "verfier=exact": "did you mean verifier?",
    "model.targt=x": "did you mean target?",
    "timing.exmples=3": "did you mean examples?",
    "verifier.mix=prop": "did you mean prob?",
    "verifier.w=0.5": "write w=VALUE",
    "verifier.mox=prob": "(did you mean mix? choices: mix, greedy)",
    "device=gpu": "choices: auto, cpu, cuda",
    "dtype=float31": "did you mean float32?",
    "num_draft=0": "between 1 and 256, got 0",
    "n=0": "n must be a whole number of at least 1, got 0",
    "n=2.5": "n must be a whole number",
    "top_p=0": "above 0",
    "temperature=-1": "temperature",
    "temperature=1e-7": "temperature must be 0, or between 1e-06 and 100, got 1e-07",
    "shard=8/8": "shard=0/8",
    "name=a/b": "folder name",
    "margin=-1": "margin must be a number above 0 and at most 100, got -1",
    "margin=0": "above 0",
    "margin={cnndm: 1}": "margin has no value for task gsm8k-tiny: add gsm8k-tiny: POINTS, or default: POINTS",
    "margin={gsm8k: 0}": "margin of gsm8k must be a number above 0 and at most 100, got 0",
    "margin=[1]": "margin must be a number, or numbers by task as margin={gsm8k-tiny: 1}, got [1]",
    "margin={gsm8k: 1": "cannot be read",
    "seed=null": "seed",
    "force=maybe": "true or false",
    "~w": "w=null",
    "w": "not KEY=VALUE",
    "w=[0.5": "cannot be read",
    "batch_size=0": "batch_size",
    "w.x=3": "write w=VALUE",
    "timing=3": "timing.examples=20",
    "timing.batch_size=16": "timing.examples=16 or more",
    "timing.rate=0": "timing.rate must be a number above 0",
    "timing.rate=[1,-2]": "timing.rate must be a number above 0 and at most 1e+06, got -2",
    "timing.rate=fast": "timing.rate must be a number",
    "timing.ramp=[1]": "timing.ramp must be two or more different rates, as [0.5,1,2], got [1]",
    "timing.ramp=[1,2,1]": "timing.ramp must be two or more different rates, as [0.5,1,2], got [1, 2, 1]",
    f"timing.rate={10**400}": "timing.rate must be a number above 0",
    "timing.ramp=[1,0]": "timing.ramp must be a number above 0",
    "timing.tokens=20": "timing.tokens needs requests that arrive at a rate: add timing.rate=[0.5,1]",
    "timing.prefix_cache=true": "timing.prefix_cache needs requests that arrive at a rate",
    "timing.requests=0": "timing.requests must be a whole number",
    "timing.requests=9": "timing.ramp, and neither is given: add timing.rate=[0.5,1], or remove timing.requests",
    "timing.slo={ttft: 1}": "add timing.rate=[0.5,1], or timing.trace=FILE",
    "timing.slo=500ms": "timing.slo must be limits by name, as {ttft: 0.5, tpot: 50ms}, got 500ms",
    "timing.slo={tttf: 1}": "timing.slo.tttf is not an option (did you mean ttft? choices: ttft, tpot, e2el)",
    "timing.slo={ttft: 500}": "timing.slo.ttft=500 has no unit and would be 500 seconds: write 500ms, or 500s if that is meant",
    "timing.slo={ttft: 50}": "timing.slo.ttft=50 has no unit and would be 50 seconds: write 50ms, or 50s if that is meant",
    "timing.slo={tpot: 50}": "timing.slo.tpot=50 has no unit and would be 50 seconds: write 50ms, or 50s if that is meant",
    "timing.slo={tpot: 2.5}": "timing.slo.tpot=2.5 has no unit and would be 2.5 seconds: write 2.5ms, or 2.5s if that is meant",
    "timing.slo={e2el: 2000}": "has no unit and would be 2000 seconds: write 2000ms, or 2000s if that is meant",
    "timing.slo={tpot: inf}": "timing.slo.tpot must be a number above 0",
    "timing.slo={ttft: fast}": "or a number with its unit as 500ms, got fast",
    "timing.slo={tpot: 0}": "timing.slo.tpot must be a number above 0",
    "model=null": "names no file",
    "w=${nothing}": "nothing",
    "verifier=typicl": "(did you mean typical?",
    "verifier=cascade": "names no file in configs/verifier",
}


@pytest.mark.parametrize("word", BAD)
def test_a_slip_is_one_sentence_with_the_way_out(composer, word):
    with pytest.raises(ConfigError) as caught:
        composer.run(composer.jobs(Command((word,)))[0])
    assert BAD[word] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_list_of_seeds_is_a_job_a_seed(composer):
    command = parse(["seed=[0, 1,2]", "w=0.5"])
    assert [composer.run(job).seed for job in composer.jobs(command)] == [0, 1, 2]
    assert len({composer.run(job).folder for job in composer.jobs(command)}) == 1
    with pytest.raises(ConfigError, match="seed must be a whole number"):
        composer.run(composer.jobs(parse(["seed=[]"]))[0])


def test_a_margin_may_differ_by_task_and_an_experiment_may_say_it(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\n# margins by task\nmargin: {gsm8k: 1, cnndm: 0.5}\n"
    (tmp_path / "experiment" / "margins.yaml").write_text(text)
    composer = Composer(str(tmp_path))

    def margin(*words):
        return composer.run(composer.jobs(Command(words))[0]).margin

    assert margin("margin={gsm8k-tiny: 1, cnndm-tiny: 0.5}") == {"gsm8k-tiny": 1, "cnndm-tiny": 0.5}
    assert margin("margin={default: 2}") == {"default": 2}
    assert margin("experiment=margins") == {"gsm8k": 1, "cnndm": 0.5}
    assert margin("experiment=margins", "margin={xsum: 2}") == {"gsm8k": 1, "cnndm": 0.5, "xsum": 2}
    assert margin("experiment=margins", "margin=3") == 3


@pytest.mark.parametrize(
    "words", [("task.bounds={rouge1: [0, 1], 4096: [0, 1]}",), ("task.bounds.rouge1=[0,1]", "task.bounds.4096=[0,1]")]
)
def test_bounds_of_metrics_may_be_given_as_docs_lm_eval_says(composer, words):
    run = composer.run(composer.jobs(Command(("task=lm-eval:gsm8k", *words)))[0])
    bounds = {str(name): list(ends) for name, ends in run.task.options["bounds"].items()}
    assert bounds == {"rouge1": [0, 1], "4096": [0, 1]}


def test_a_mapping_whose_file_leaves_its_keys_open_may_be_given_as_a_whole(composer):
    options = composer.run(composer.jobs(Command(("model.chat_options={strict: true}",)))[0]).model.chat_options
    assert options == {"strict": True}


COMBINED = {
    ("verifier=exact", "w=0.5"): "verifier=exact takes no w",
    ("temperature=0", "samples=2"): "samples=2 at temperature=0",
    ("verifier=[ensemble,ensemble]",): "names ensemble twice",
    ("verifier=[exact,ensemble]", "verifier.exact.name=ensemble"): "verifier names ensemble twice",
    ("verifier=[ensemble,nothing]",): "verifier=nothing names no file",
    ("verifier=[exact]", "w=0.5"): "verifier=exact takes no w",
    ("verifier.name=lossless",): "runs have a cell of that name",
    ("verifier=[ensemble,exact]", "verifier.mix=logit"): "choices: ensemble, exact",
    ("timing=off", "timing.examples=20"): "remove one of the two",
    ("timing.trace=FILE", "timing.requests=9"): "timing.trace has its own number; remove timing.requests",
    ("temperature=0", "top_k=5"): "top_k=5 has no effect at temperature=0",
    ("verifier=typical", "verifier.epz=0.1"): "did you mean eps",
    ("verifier=lenience", "verifier.lenience=0"): "verifier.lenience must be a number above 0 and at most 1, got 0",
    ("verifier=lossy", "verifier.alpha=1.5"): "verifier.alpha must be a number between 0 and 1, got 1.5",
    ("verifier=topk-relaxed", "verifier.k=2.5"): "verifier.k must be a whole number between 1 and 1000, got 2.5",
    ("verifier=fsd-js", "w=0.5"): "verifier=fsd-js takes no w, got w=0.5",
    ("verifier=coin", "verifier.rule.delta=2"): "verifier.rule.delta must be a number between 0 and 1, got 2",
    ("verifier=coin", "verifier.rule.dleta=0.2"): "verifier.rule.dleta is not an option .did you mean rule.delta",
    ("verifier=within", "verifier.begin=true"): "verifier.begin must be a text, got true",
}


@pytest.mark.parametrize("words", COMBINED, ids=" ".join)
def test_an_impossible_combination_is_one_sentence(composer, words):
    with pytest.raises(ConfigError, match=COMBINED[words]):
        composer.run(composer.jobs(Command(words))[0])


ESCAPED = [
    ("task=gsm8k", 'task.stop=["\\n"]'),
    ("task=gsm8k", "task.stop=a\\tb"),
    ("task=lm-eval:gsm8k", 'task.system="Be brief.\\r"'),
    ("verifier=within", "verifier.begin='\\n'"),
    ("verifier=[within,exact]", "verifier.within.end=\\n"),
]


@pytest.mark.parametrize("words", ESCAPED, ids=" ".join)
def test_a_backslash_and_a_letter_are_no_line_break(composer, words):
    with pytest.raises(ConfigError, match=r"as two characters.*, such as \$'(task|verifier)\.[a-z.]+="):
        composer.run(words)


def test_a_line_break_that_the_shell_reads_is_a_stop_string(composer):
    assert composer.run(("task=gsm8k", 'task.stop=["\n\n"]')).task.options["stop"] == ["\n\n"]


@pytest.mark.parametrize("word", ["task=glob(*-tiny)", "w=interval(0,1)"])
def test_a_sweep_without_values_is_one_sentence(composer, word):
    key = word.partition("=")[0]
    with pytest.raises(ConfigError, match=rf" names no values: write them as a list, {key}=A,B$"):
        composer.jobs(Command((word,), is_multirun=True))


IGNORED = ["task.split=validation", "task.shots_split=test", "task.revision=v1", "task.dataset_config=socratic"]


@pytest.mark.parametrize("word", IGNORED)
def test_options_of_the_hub_are_refused_beside_a_file(composer, word):
    composer.run(("task=gsm8k", word, "task.data=null"))
    with pytest.raises(ConfigError, match=rf"^{word} has no effect beside task\.data=rows\.jsonl"):
        composer.run(("task=gsm8k", word, "task.data=rows.jsonl"))
    option, _, value = word.removeprefix("task.").partition("=")
    with pytest.raises(ConfigError, match=rf"^{word} has no effect beside task\.data=rows\.jsonl"):
        tasks.load("gsm8k", data="rows.jsonl", **{option: value})


def test_a_training_names_its_split_beside_a_file():
    words = ["task=gsm8k-tiny", "task.data=rows.jsonl"]
    assert run_of(words, RECIPES["ensemble"](), compose_run).task.options["split"] == "train"


def test_a_device_without_float64_is_refused_and_never_chosen(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"^device=mps has no float64, in which sdbench adds and draws: use device=cpu$"
    ):
        device_of("mps")
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: SimpleNamespace(type="mps"))
    assert device_of("auto") == "cpu"
