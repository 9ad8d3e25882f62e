"""Which server a cell needs, what a request carries, and what of an engine is in the key of a cell."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from sdbench.cli.command import parse
from sdbench.cli.compose import Composer
from sdbench.config import ConfigError
from sdbench.engines.job import join_repeated
from sdbench.engines.protocol import kind_of
from sdbench.engines.served import LlamaCpp, Vllm
from sdbench.engines.served.options import OF_A_SERVER, Http
from sdbench.engines.served.request import PLUGIN, seed_of
from sdbench.prepare.cells import points
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.provenance import config_of
from sdbench.prepare.rules import build_parts
from sdbench.prepare.task import build_task

URLS = ("engine.url=http://h:1", "engine.urls.target=http://h:2", "engine.urls.draft=http://h:3")


@pytest.fixture(scope="module")
def composer():
    return Composer()


@pytest.fixture
def planned(composer):
    def plan(*words: str):
        (overrides,) = composer.jobs(parse(["n=2", *words]))
        run = composer.run(overrides)
        kind = kind_of(run)
        pair_info = PairInfo.read(kind.find(run))
        return run, kind, kind.points(run, points(run, build_task(run), pair_info, build_parts(run)))

    return plan


def keys(made) -> set[str]:
    return {point.cell.key for point in made[2]}


@pytest.fixture
def vllm_is_there(monkeypatch):
    monkeypatch.setattr("sdbench.engines.served.started.look", lambda python, module: {"there": True})
    return ("engine=vllm", "engine.python=p")


def test_another_engine_is_another_cell_and_another_address_is_the_same(planned):
    native = planned("verifier=exact")
    http = planned("verifier=exact", "engine=http", *URLS)
    assert {point.cell.verifier for point in http[2]} == {point.cell.verifier for point in native[2]}
    assert not keys(native) & keys(http)
    elsewhere = [word.replace("//h:", "//other:") for word in URLS]
    assert keys(
        planned("verifier=exact", "engine=http", *elsewhere, "engine.retries=1", "engine.concurrency=[1,8]")
    ) == keys(http)
    assert not keys(planned("verifier=exact", "engine=http", *URLS, "engine.request.min_tokens=3")) & keys(http)
    assert {point.cell.asked for point in native[2]} == {point.cell.asked for point in http[2]}


def test_a_server_of_another_kind_is_another_cell_even_if_its_requests_are_the_same(planned):
    """The target alone was not decoded on SGLang after it was on vLLM, and SGLang's texts were compared with vLLM's."""
    vllm = planned("verifier=exact", "engine=http", *URLS)
    sglang = planned("verifier=exact", "engine=http", *URLS, "engine.dialect=sglang")
    assert not keys(vllm) & keys(sglang)


def test_fields_of_a_request_are_in_the_key_where_they_differ_from_those_of_the_engines_file(planned):
    url = URLS[0]
    penalty = "engine.dialect.request.repetition_penalty=1.1"
    for engine in ("http", "sglang"):
        run, kind, usual = planned("verifier=exact", f"engine={engine}", url)
        assert kind.decides(run, usual[0])["request"] == {}
        run, kind, changed = planned("verifier=exact", f"engine={engine}", url, penalty)
        assert kind.decides(run, changed[0])["request"] == {"repetition_penalty": 1.1}
    run, kind, made = planned("verifier=exact", "engine=http", url, "engine.dialect=llamacpp")
    request = kind.decides(run, made[0])["request"]
    assert request["mirostat"] == 0
    assert request["return_token_ids"] is None


def test_vllm_takes_every_pair_that_has_a_draft(composer, vllm_is_there, monkeypatch):
    """An option of the native engine in a pair's file is refused, and model=llama-70b had one."""
    monkeypatch.setattr(
        "sdbench.prepare.pair.find", lambda model, **options: model
    )  # reads the hub, after all refusals
    runs = [composer.run((f"model={name}", *vllm_is_there)) for name in composer.options("model")]
    runs = [run for run in runs if run.model.draft is not None]
    assert len(runs) > 10
    assert [kind_of(run).find(run).target for run in runs] == [run.model.target for run in runs]


def test_arguments_of_a_server_decide_its_texts(planned, vllm_is_there):
    plain = planned("verifier=exact", *vllm_is_there)
    wide = planned("verifier=exact", *vllm_is_there, "engine.args.dtype=float32")
    greedy = planned("verifier=exact", *vllm_is_there, "engine.speculative.draft_sample_method=greedy")
    assert not keys(plain) & keys(wide)
    assert {p.cell.verifier for p in plain[2] if p.cell.key in keys(greedy)} == {"target", "draft"}
    assert keys(planned("verifier=exact", *vllm_is_there, "engine.at_once=3", "engine.grace_s=1")) == keys(plain)
    assert not keys(planned("verifier=exact", *vllm_is_there, "+engine.env.X=1")) & keys(plain)


def test_values_of_headers_and_variables_are_not_recorded(composer, vllm_is_there):
    words = [*vllm_is_there, "engine.env.VLLM_API_KEY=sesame", "+engine.headers.Authorization='Bearer sesame'", "n=2"]
    (overrides,) = composer.jobs(parse(words))
    config = config_of(composer.run(overrides), words)
    assert config["engine"]["options"]["env"] == {"VLLM_API_KEY": "***"}
    assert config["engine"]["options"]["headers"] == {"Authorization": "***"}
    assert config["command"] == (
        "python -m sdbench engine=vllm engine.python=p 'engine.env.VLLM_API_KEY=***' '+engine.headers.Authorization=***' n=2"
    )
    assert "sesame" not in str(config)


def test_a_started_server_is_sent_the_key_of_its_environment(monkeypatch):
    """Its processes inherit the variable, and refuse every request without the key."""
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    monkeypatch.setenv("LLAMA_API_KEY", "first,second")
    assert Vllm().headers == {"Authorization": "Bearer sesame"}
    assert LlamaCpp().headers == {"Authorization": "Bearer first"}
    assert Vllm(env={"VLLM_API_KEY": "barley"}, headers={"X": 1}).headers == {"X": 1, "Authorization": "Bearer barley"}
    assert Vllm(headers={"authorization": "Basic x"}).headers == {"authorization": "Basic x"}
    assert Http(url="http://h:1").headers == {}, "another server does not get it"
    monkeypatch.delenv("VLLM_API_KEY")
    assert Vllm().headers == {}


def test_a_rule_of_the_server_is_its_command_line(planned, vllm_is_there):
    run, kind, made = planned(
        "verifier=fly", "verifier.entropy=0.3", "verifier.window=2", "num_draft=4", *vllm_is_there
    )
    by_name = {point.cell.verifier: kind.setting(run, point) for point in made}
    assert json.loads(by_name["fly"].rule) == {
        "rejection_sample_method": "fly",
        "fly_entropy_threshold": 0.3,
        "fly_window_size": 2,
        "fly_entropy_top_k": 3,
    }
    assert json.loads(by_name["lossless"].rule) == {"rejection_sample_method": "standard"}
    assert by_name["target"].num_draft == 0
    assert len(set(by_name.values())) == 4


def test_block_verification_runs_on_the_runner_that_has_it(planned, vllm_is_there):
    """vLLM's V1 runner, which it takes where there is no Triton, ignores the method and verifies token by token."""
    run, kind, made = planned("verifier=block", *vllm_is_there)
    job, by_name = SimpleNamespace(task=SimpleNamespace(stop=())), {point.cell.verifier: point for point in made}
    for name in ("block", "lossless", "target"):
        variables = kind.environment(job, kind.setting(run, by_name[name]))
        assert variables == ({"VLLM_USE_V2_MODEL_RUNNER": "1"} if name == "block" else {})
        assert ("runner" in kind.decides(run, by_name[name])) == (name == "block"), "older ones may be the V1 runner's"


def test_with_the_plugin_one_server_takes_a_whole_sweep(planned):
    run, kind, made = planned("w=[0,0.5,1]", "temperature=1", "engine=http", "engine.plugin=true", *URLS)
    pair = [point for point in made if point.role == "pair"]
    assert len(pair) == 4
    assert {kind.setting(run, point).rule for point in pair} == {PLUGIN}
    extras = {point.cell.w: kind.extra(point) for point in pair if point.cell.verifier == "ensemble"}
    assert extras[0.5]["sdbench_rule"] == "sdbench.verify.Ensemble"
    assert json.loads(extras[0.5]["sdbench_knobs"]) == {"w": 0.5, "mix": "prob", "greedy": "blend"}
    assert not any(kind.extra(point) for point in made if point.role == "target")


def with_rule(inner, **rules):
    """A server whose YAML names one rule more."""

    def checked(self):
        inner(self)
        self.rules |= rules

    return checked


def test_w_1_is_the_lossless_cell_where_the_plugin_computes_both(planned, monkeypatch):
    """A rule of the server's own is started with another command line: its texts are decoded."""
    words = ("w=[0.5,1]", "temperature=1", "engine=http", *URLS)
    _, _, made = planned(*words, "engine.plugin=true")
    keys = {point.cell.verifier: point.cell.key for point in made if point.cell.verifier in ("lossless", "target")}
    same = {point.cell.w: point.cell.same_as for point in made if point.cell.verifier == "ensemble"}
    assert same == {0.5: None, 1.0: keys["lossless"]}
    joined = join_repeated(made)
    assert [point.cell.w for point in joined if point.cell.verifier == "ensemble"] == [0.5]
    (lossless,) = (point.cell for point in joined if point.cell.verifier == "lossless")
    assert list(lossless.also) == [point.cell.key for point in made if point.cell.w == 1]
    monkeypatch.setattr(Http, "__post_init__", with_rule(Http.__post_init__, ensemble={"weight": "$w"}))
    _, _, made = planned("w=1", *words[1:], "engine.urls.ensemble=http://h:4")
    assert {point.cell.same_as for point in made} == {None}
    assert len(join_repeated(made)) == len(made)


def test_cells_that_share_a_setting_keep_their_addresses(planned):
    """With the plug-in every rule needs the same of a server; texts of another server are not taken for those of lossless."""
    words = ("w=[0.5,1]", "temperature=1", "engine=http", "engine.plugin=true", *URLS)
    run, kind, made = planned(*words, "engine.urls.lossless=http://h:4/v1")
    urls = {(point.cell.verifier, kind.setting(run, point).url) for point in made}
    assert urls == {
        (name, f"http://h:{port}") for port, name in enumerate(("ensemble", "target", "draft", "lossless"), 1)
    }
    assert {point.cell.same_as for point in made} == {None}


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
@pytest.mark.parametrize("rule", [("verifier=block",), ("verifier=fly", "verifier.entropy=0.3", "verifier.window=4")])
def test_a_server_of_another_kind_has_no_rules_of_vllm(planned, engine, rule):
    assert planned("verifier=exact", f"engine={engine}", URLS[0])[2]
    with pytest.raises(ConfigError, match=r"is not a rule that this server has"):
        planned(*rule, "num_draft=5", f"engine={engine}", URLS[0])


def test_a_started_server_gets_all_stop_strings_with_room_for_them_or_none(planned, vllm_is_there):
    job = SimpleNamespace(task=SimpleNamespace(stop=tuple("abcdef")))
    for words, stops, variables in (
        ((), list("abcdef"), {"VLLM_MAX_STOP_STRINGS": "6"}),
        (("engine.dialect.most_stops=0",), [], {}),
    ):
        run, kind, made = planned("verifier=exact", *vllm_is_there, *words)
        assert kind.stops_sent(job) == stops
        assert kind.environment(job, kind.setting(run, made[0])) == variables


def test_a_server_of_engine_urls_has_one_setting(planned):
    words = ("verifier=fly", "verifier.window=4", "num_draft=5", "engine=http", URLS[0], "engine.urls.fly=http://h:4")
    assert len(planned(*words, "verifier.entropy=0.3")[2])
    lossless = "engine.urls.lossless=http://h:5"
    for more in (("verifier.entropy=[0.1,0.3]",), ("verifier.entropy=0.3", "num_draft=[3,5]", lossless)):
        with pytest.raises(
            ConfigError,
            match=r"^engine.url and engine.urls give 2 settings .* to the server at http://h:[45], which has one: ",
        ):
            planned(*words, *more)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("flly", "did you mean fly?"), ("exact", r"verifier=exact is called lossless")],
)
def test_a_server_for_no_cell_of_the_run_is_refused(planned, name, hint):
    words = ("verifier=fly", "verifier.entropy=0.3", "num_draft=5", "engine=http", URLS[0])
    with pytest.raises(ConfigError, match=rf"^engine\.urls\.{name} names no cell of this run .*{hint}"):
        planned(*words, f"engine.urls.{name}=http://h:4")


def test_cells_without_a_server_are_left_out_and_named(planned, capsys):
    _, _, made = planned(
        "verifier=fly", "num_draft=5", "verifier.entropy=0.3", "verifier.window=4", "engine=http", URLS[0]
    )
    assert {point.cell.verifier for point in made} == {"fly"}
    assert "lossless, draft, target left out" in capsys.readouterr().err


def test_seeds_are_equal_for_cells_of_an_example_and_differ_between_samples():
    def item(cell, sample):
        return SimpleNamespace(cell=cell, example="7", sample=sample)

    assert seed_of(0, item("a", 0)) == seed_of(0, item("b", 0))
    assert len({seed_of(0, item("a", 0)), seed_of(0, item("a", 1)), seed_of(1, item("a", 0))}) == 3
    assert 0 <= seed_of(0, item("a", 0)) < 2**31


def test_what_a_server_is_started_with_is_no_field_of_a_request():
    assert {"num_speculative_tokens", "rejection_sample_method", "tensor_parallel_size"} <= set(OF_A_SERVER)


def test_a_variable_of_null_is_left_out():
    """It was set to the text None, which is a value to many programs."""
    variables: dict[str, Any] = {"CUDA_VISIBLE_DEVICES": None, "OMP_NUM_THREADS": 1}
    job: Any = None  # llama.cpp's servers get nothing of it
    assert LlamaCpp(env=variables).environment(job, job) == {"OMP_NUM_THREADS": "1"}
