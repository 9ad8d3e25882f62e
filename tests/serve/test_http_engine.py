"""engine=http against a stand-in: the same texts and scores as our own engine, null for what it does not tell, faults survived."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from standin import Text, decoded

from sdbench.cli import main
from sdbench.metrics.load import load_table
from sdbench.metrics.summary import summarise
from sdbench.records import read
from sdbench.report.figures.planes import load as drawn
from sdbench.report.sweep import sweeps_of

pytestmark = pytest.mark.usefixtures("no_figures")
NAME = "micro-gsm8k-tiny"


def engine_words(server, target=None, draft=None) -> list[str]:
    urls = {"target": target, "draft": draft}
    named = [f"engine.urls.{role}={one.url}" for role, one in urls.items() if one is not None]
    return ["engine=http", f"engine.url={server.url}", "engine.wait_s=0.01", *named]


def texts(folder: Path) -> dict[tuple[str, str], str]:
    frame = read(folder).generations
    return {(row.verifier, row.example): row.text for row in frame.itertuples()}


@pytest.fixture(scope="module")
def native_run(served_words, tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("native")
    with pytest.MonkeyPatch.context() as patch:
        from tests.cli.conftest import no_drawing

        patch.setattr("sdbench.report.write", no_drawing)
        assert main([*served_words(results), "dtype=float64"]) == 0
    return results / NAME


def test_greedy_texts_and_scores_are_those_of_our_own_engine(native_run, served_words, standin, pair_engine, tmp_path):
    server = standin(decoded(pair_engine, 3))
    target = standin(decoded(pair_engine, 0))
    assert main([*served_words(tmp_path), *engine_words(server, target)]) == 0
    served, native = read(tmp_path / NAME), read(native_run)
    own = texts(native_run)
    assert texts(tmp_path / NAME) == {key: text for key, text in own.items() if key[0] in ("lossless", "target")}
    columns = ["verifier", "example", "tokens", "finish", native.cells["metric"].iloc[0]]
    frames = [one.generations[columns].sort_values(columns[:2], ignore_index=True) for one in (served, native)]
    assert frames[0].equals(frames[1][frames[1]["verifier"] != "draft"].reset_index(drop=True))
    assert not set(served.cells["cell"]) & set(native.cells["cell"]), "another engine is another cell"
    assert set(served.cells["asked"]) == set(native.cells["asked"]), "asked the same"


def test_each_cell_is_decoded_by_the_server_that_engine_urls_names(served_words, standin, tmp_path):
    """The address of one cell was that of all cells with the same setting."""
    lenient, lossless = standin(has_plugin=True), standin(has_plugin=True)
    words = served_words(tmp_path, verifier="ensemble", w="[0.5]", **{"verifier.greedy": "mixture"})
    urls = [*engine_words(lenient), f"engine.urls.lossless={lossless.url}"]
    assert main([*words, *urls, "engine.plugin=true"]) == 0
    for server, rule in ((lenient, "Ensemble"), (lossless, "Exact")):
        first, keep_all, *rest = (body["vllm_xargs"]["sdbench_rule"] for body in server.seen)
        assert keep_all == "sdbench.verify.Ensemble", "it shows that the plug-in runs, after the versions were compared"
        assert [first, *rest] == [f"sdbench.verify.{rule}"] * 5, "the probe and three texts"


def test_rounds_come_from_the_steps_and_what_is_not_reported_is_null(served_words, standin, tmp_path, capsys):
    server = standin()
    assert main([*served_words(tmp_path), *engine_words(server)]) == 0
    assert "draft, target left out" in capsys.readouterr().err
    results = read(tmp_path / NAME)
    (cell,) = results.cells["cell"]
    frame = results.generations
    assert (frame["accepted"] + frame["replaced"] + frame["bonus"] == frame["tokens"]).all()
    assert (results.rounds["drafted"] <= 3).all()
    assert frame[["tv_sum", "expected_sum", "bias_sum"]].isna().all().all()
    assert results.tokens[["draft_ids", "p", "q", "tv", "expected", "bias"]].isna().all().all()
    summary = pd.read_csv(tmp_path / NAME / "summary.csv").set_index("cell").loc[cell]
    assert 0 <= summary["acceptance"] <= 1
    assert summary[["acceptance_expected", "bias", "tv"]].isna().all()
    (entry,) = results.provenance.values()
    assert entry["servers"][0]["version"] == "0.32.0"
    assert entry["servers"][0]["counts"] == "steps"


def test_what_is_held_is_not_asked_again_and_no_server_is_needed_then(served_words, standin, tmp_path, capsys):
    server = standin()
    words = [*served_words(tmp_path), *engine_words(server)]
    assert main(words) == 0
    asked = len(server.seen)
    server.faults = ["500"]
    assert main(words) == 0
    assert len(server.seen) == asked
    assert "nothing to decode" in capsys.readouterr().err


def test_the_value_of_a_header_is_in_no_file_and_another_value_continues(served_words, standin, tmp_path, capsys):
    words = [*served_words(tmp_path), *engine_words(standin())]
    assert main([*words, "engine.headers.Authorization=sesame"]) == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if b"sesame" in path.read_bytes()]
    config = read(tmp_path / NAME).config
    assert config["engine"]["options"]["headers"] == {"Authorization": "***"}
    assert config["command"].endswith(" 'engine.headers.Authorization=***'")
    assert main([*words, "engine.headers.Authorization=another"]) == 0
    assert "nothing to decode" in capsys.readouterr().err


FAULTS = ["slow", "drop", "429", "503", "truncate", "cut", "drop", "429"]


@pytest.mark.slow
def test_every_fault_is_survived_and_nothing_is_counted_twice(served_words, standin, tmp_path):
    quiet, faulty = standin(), standin()
    faulty.faults = ["", *FAULTS]  # the first request looks at the server
    for name, server in (("quiet", quiet), ("faulty", faulty)):
        assert main([*served_words(tmp_path / name, n=6, batch_size=4), *engine_words(server)]) == 0
    assert not faulty.faults, "all of them happened"
    assert len(faulty.seen) > len(quiet.seen)
    one, other = (read(tmp_path / name / NAME).generations for name in ("quiet", "faulty"))
    columns = ["example", "text", "tokens", "drafted", "examined", "accepted"]
    assert one[columns].equals(other[columns])
    assert len(other) == 6


@pytest.mark.slow
def test_a_server_that_never_answers_ends_the_run_in_one_sentence_and_the_command_goes_on_later(
    served_words, standin, tmp_path, capsys
):
    server = standin()
    words = [*served_words(tmp_path, batch_size=1), *engine_words(server), "engine.retries=2"]
    server.faults = ["", "", "503", "503", "503"]
    assert main(words) == 1
    message = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sdbench: the server")]
    assert len(message) == 1
    assert "did not answer a request in 3 tries; the last failure: HTTP 503" in message[0]
    held = len(read(tmp_path / NAME).generations)
    assert held == 1
    asked = len(server.seen)
    assert main(words) == 0
    assert len(read(tmp_path / NAME).generations) == 3
    assert len(server.seen) == asked + 3, "one to look at it, and what was missing"


def test_token_ids_that_no_model_has_are_never_a_text(served_words, standin, tmp_path, capsys):
    server = standin()
    server.faults = ["", "ids"]
    assert main([*served_words(tmp_path, batch_size=1), *engine_words(server)]) == 1
    assert "answers with the token id 1000000, but the model has" in capsys.readouterr().err


def test_a_text_that_the_server_cuts_short_is_never_recorded(served_words, standin, tmp_path, capsys):
    """It was recorded as one that reached max_new_tokens."""
    server = standin()
    words = [*served_words(tmp_path, batch_size=1), *engine_words(server)]
    server.faults = ["", "", "length"]  # the first request looks at the server
    assert main(words) == 1
    assert "it ended an answer at 2 of 24 tokens" in capsys.readouterr().err
    assert len(read(tmp_path / NAME).generations) == 1
    server.faults = ["", "abort"]
    assert main(words) == 0
    assert read(tmp_path / NAME).generations["tokens"].gt(2).tolist() == [True] * 3


def test_a_retry_waits_as_long_as_the_server_asks(raw_tokenizer, standin):
    import time

    from sdbench.engines.served import Http
    from sdbench.serve.client import Client
    from sdbench.serve.pump import Pump

    server, pump = standin(), Pump()
    server.faults = ["429"]
    client = Client(server.url, Http(url=server.url).dialect)
    pump.run(client.open())
    begin = time.monotonic()
    answer = pump.run(client.complete({"prompt": [1], "max_tokens": 4, "stop_token_ids": []}))
    assert time.monotonic() - begin >= 0.2
    assert answer.num_asked == 2
    pump.run(client.close())
    pump.close()


@pytest.mark.parametrize(("level", "has_counters", "source"), [("summary", True, "requests"), (None, True, "server")])
def test_without_steps_acceptance_is_pooled_and_marked(
    level, has_counters, source, served_words, standin, tmp_path, capsys
):
    server = standin(level=level, has_counters=has_counters)
    assert main([*served_words(tmp_path), *engine_words(server)]) == 0
    assert "acceptance is pooled" in capsys.readouterr().err
    results = read(tmp_path / NAME)
    (row,) = results.pooled.to_dict("records")
    assert (row["source"], row["texts"]) == (source, 3)
    assert 0 < row["accepted"] <= row["drafted"]
    frame = results.generations
    assert frame[["rounds", "drafted", "examined", "accepted", "replaced", "bonus"]].isna().all().all()
    assert (frame["tokens"] > 0).all()
    summary = pd.read_csv(tmp_path / NAME / "summary.csv")
    assert summary["acceptance"].isna().all()
    assert summary["pooled_block_acceptance"].iloc[0] == pytest.approx(row["accepted"] / row["drafted"])
    assert summary["pooled_texts"].iloc[0] == 3


def test_pooled_counts_are_those_of_the_server_that_was_asked_last(served_words, standin, tmp_path):
    """They were averaged with those from before force=true."""
    words = served_words(tmp_path, report="off")
    for text in (Text([5] * 8, [1, 2, 1], [3] * 3), Text([5] * 9, [3, 3], [3, 3])):
        server = standin(lambda body, text=text: text, level="summary")
        assert main([*words, *engine_words(server), "force=true"]) == 0
    results = read(tmp_path / NAME)
    assert results.pooled[["texts", "drafted", "accepted"]].to_numpy().tolist() == [[3, 18, 18]]


def test_counts_of_a_block_that_was_cut_off_are_those_of_its_texts(served_words, standin, tmp_path):
    """The sums that came with the texts were lost with the block."""
    server = standin(lambda body: Text([5] * 8, [1, 2, 1], [3] * 3), level="summary")
    server.faults = ["", "", "", "400"]  # the probe and two texts are answered
    words = [*served_words(tmp_path, report="off", batch_size=1), *engine_words(server)]
    assert main(words) == 1
    assert read(tmp_path / NAME).pooled["texts"].tolist() == [2]
    assert main(words) == 0
    results = read(tmp_path / NAME)
    assert sorted(results.pooled["texts"]) == [1, 2]
    assert len(results.generations) == 3


def test_the_latency_pass_is_a_closed_loop_at_each_concurrency(served_words, standin, tmp_path):
    server, target = standin(step_s=0.001), standin(num_draft=0, step_s=0.001)
    timing = ["timing.examples=4", "engine.concurrency=[1,9]"]
    words = [word for word in served_words(tmp_path, n=4) if word != "timing=off"]
    assert main([*words, *engine_words(server, target), *timing]) == 0
    assert server.most_under_way == 9, "examples are asked in a cycle: four of them give nine users work"
    results = read(tmp_path / NAME)
    loads, timings = results.loads, results.timings
    assert set(loads["concurrency"]) == {1, 9}
    sizes = loads.groupby(["cell", "concurrency"]).size().unstack()
    assert (sizes[1] == 4).all()
    assert (sizes[9] == 28).all(), "whole cycles, three requests of each user or more"
    reached = loads.groupby("concurrency")["reached"].mean()
    assert 0.8 < reached[1] <= 1
    assert 7 < reached[9] <= 9
    assert set(timings["cell"]) == set(loads["cell"])
    assert len(timings) == 8
    assert (loads["first_token_s"] > 0).all()
    assert (loads["block_s"] >= loads["held_s"]).all()
    assert (loads["held_s"] >= loads["decode_s"]).all() or (loads["held_tokens"] <= loads["tokens"]).all()
    assert (loads["server_decode_s"] > 0).all()
    summary = pd.read_csv(tmp_path / NAME / "summary.csv").set_index("verifier")
    assert summary.at["target", "speedup"] == pytest.approx(1)
    assert summary.at["lossless", "speedup"] > 0
    table = load_table(loads)
    assert len(table) == 4
    assert table["reached"].gt(0).all()
    assert table["tokens_per_s_all"].gt(0).all()
    figure = drawn(sweeps_of([results], [summarise(results)])[0])
    assert figure is not None
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["1 at once", "9 at once"]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim(), "what load costs is seen by comparing panels"
    asked = len(server.seen)
    assert main([*words, *engine_words(server, target), *timing]) == 0
    assert len(server.seen) == asked, "what is timed is not timed again"
    salts = [body["cache_salt"] for body in server.seen if "cache_salt" in body]
    assert len(salts) == len(set(salts)) >= 32, "each timed prompt is read anew"
    assert len(salts) < len(server.seen), "those of the quality pass are not timed"


@pytest.mark.parametrize(("num_loops", "is_disturbed"), [(1, False), (3, True)])
def test_a_loop_of_users_with_a_failed_request_is_sent_again(
    num_loops, is_disturbed, served_words, standin, tmp_path, capsys
):
    """Its speed under load was lost at the first failure."""
    server = standin()
    before, loop = 1 + 2 + 1 + 2, 10  # a look, two texts, a warm-up, a single user; then three users
    server.faults = [""] * before + ["", "429", *[""] * (loop - 1)] * num_loops
    words = [word for word in served_words(tmp_path, n=2, report="off") if word != "timing=off"]
    words += [*engine_words(server), "timing.examples=2", "timing.repeats=1", "engine.concurrency=[1,3]"]
    assert main(words) == 0
    assert len(server.seen) == before + (loop + 1) * num_loops + (1 if is_disturbed else loop)
    loads = read(tmp_path / NAME).loads.query("concurrency == 3")
    assert len(loads) == loop
    assert loads["held_s"].isna().tolist() == [is_disturbed] * loop
    assert ("were repeated alone" in capsys.readouterr().err) == is_disturbed


def test_a_requeued_job_with_force_times_servers_once(served_words, standin, tmp_path, monkeypatch):
    monkeypatch.setenv("ENVIRONMENT", "BATCH")
    monkeypatch.setattr("sdbench.passes.job.name_batch_job", lambda _: None)
    options = {"n": 2, "max_new_tokens": 8, "force": "true", "report": "off"}
    words = [word for word in served_words(tmp_path, **options) if word != "timing=off"]
    server = standin()
    for job, num_passes in (("7", 1), ("7", 1), ("8", 2)):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        assert main([*words, *engine_words(server), "timing.examples=2"]) == 0
        assert read(tmp_path / NAME).loads["pass_id"].nunique() == num_passes


def timed_at(words, *servers) -> int:
    return main([*words, *engine_words(*servers), "timing.examples=4", "timing.repeats=1"])


@pytest.mark.slow
def test_another_server_begins_another_latency_pass_and_says_so(served_words, standin, tmp_path, capsys):
    words = [word for word in served_words(tmp_path, n=4) if word != "timing=off"]
    server, target = standin(step_s=0.002), standin(num_draft=0, step_s=0.002)
    assert timed_at(words, server) == 0
    capsys.readouterr()
    slow = standin(step_s=0.01)
    assert timed_at(words, slow, target) == 0
    assert "a new latency pass begins" in capsys.readouterr().err
    timings = read(tmp_path / NAME).timings
    by_pass = {name: set(part["verifier"]) for name, part in timings.groupby("pass_id")}
    assert sorted(map(len, by_pass.values())) == [1, 2], "no pass has cells of two nodes"
    asked = len(slow.seen)
    assert timed_at(words, slow, target) == 0
    assert len(slow.seen) == asked, "the same servers: the pass goes on, and lacks nothing"
    slow.version = "0.32.1"
    assert timed_at(words, slow, target) == 0
    assert "a new latency pass begins" in capsys.readouterr().err
    assert len(slow.seen) > asked
    asked, slow.version = len(slow.seen), server.version
    assert timed_at(words, slow, target) == 0
    assert "after those of this machine" in capsys.readouterr().err, "the speeds shown are those of the newer pass"
    assert len(slow.seen) == asked


@pytest.mark.slow
def test_what_was_timed_on_servers_that_are_gone_is_not_missed(served_words, standin, tmp_path):
    words = [word for word in served_words(tmp_path, n=4) if word != "timing=off"]
    server = standin()
    assert timed_at(words, server) == 0
    address = server.url
    server.__exit__()
    held = len(read(tmp_path / NAME).timings)
    options = ["engine=http", f"engine.url={address}", "timing.examples=4", "timing.repeats=1"]
    assert main([*words, *options]) == 0
    assert len(read(tmp_path / NAME).timings) == held


def test_what_was_timed_on_a_server_behind_a_gateway_that_is_gone_is_not_missed(served_words, standin, tmp_path):
    """Its 502 gave the pass another identity."""
    words = [word for word in served_words(tmp_path, n=4) if word != "timing=off"]
    server = standin()
    assert timed_at(words, server) == 0
    held = len(read(tmp_path / NAME).timings)
    server.is_gone = True
    assert timed_at(words, server) == 0
    assert len(read(tmp_path / NAME).timings) == held


def test_a_server_that_still_starts_is_not_one_at_another_address(served_words, standin, tmp_path, capsys):
    server = standin(is_gone=True)
    assert main([*served_words(tmp_path), *engine_words(server)]) == 2
    assert f"the server at {server.url} did not answer sdbench's first requests: HTTP 502" in capsys.readouterr().err


def test_empty_answers_of_the_target_leave_speeds_empty(served_words, standin, tmp_path):
    """Every report ended with a ZeroDivisionError."""
    words = [word for word in served_words(tmp_path, n=2) if word != "timing=off"]
    server, target = standin(), standin(lambda body: Text([]))
    given = [f"engine.urls.target={target.url}", "timing.examples=2", "timing.repeats=1", "engine.concurrency=[1,2]"]
    assert main([*words, *engine_words(server), *given]) == 0
    loads = read(tmp_path / NAME).loads.query("verifier == 'target'")
    assert loads["held_tokens"].eq(0).all()
    assert loads["held_s"].gt(0).all(), "an answer without a token took time, too"
    assert load_table(read(tmp_path / NAME).loads)["speedup_all"].isna().all()


def test_a_lenient_server_without_a_lossless_one_has_a_table_and_no_recommendation(
    served_words, standin, tmp_path, capsys
):
    server = standin()
    options = {"verifier": "fly", "verifier.entropy": 0.3, "verifier.window": 2}
    assert main([*served_words(tmp_path, **options), *engine_words(server)]) == 0
    output = capsys.readouterr()
    assert "lossless, draft, target left out" in output.err
    assert "none: there is no lossless run to compare with" in output.out


@pytest.mark.slow
def test_a_page_is_made_of_records_with_nulls(served_words, standin, tmp_path, monkeypatch):
    monkeypatch.undo()
    server = standin()
    assert main([*served_words(tmp_path), *engine_words(server)]) == 0
    page = (tmp_path / NAME / "report.html").read_text()
    assert "lossless" in page
    assert "NaN" not in page.partition("<script")[0]


@pytest.mark.slow
def test_the_native_engine_imports_nothing_of_servers(tmp_path):
    code = (
        "import sys\nfrom sdbench.cli import main\n"
        "code = main(['--plan', 'model=llama-tiny', 'n=1', 'w=1', 'results=RESULTS'])\n"
        "from sdbench.engines.native import decode, kind, timing\nfrom sdbench.passes import finish, quality\n"
        "there = [name for name in sys.modules if name.startswith(('sdbench.serve', 'sdbench.engines.served'))]\n"
        "sys.exit(code or ', '.join(there) or 0)"
    ).replace("RESULTS", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_sweep_goes_to_a_server_with_the_plugin_rule_by_request(served_words, standin, tmp_path):
    server = standin(has_plugin=True)
    options = {"verifier": "ensemble", "w": "[0.5,1]", "verifier.greedy": "mixture"}
    assert main([*served_words(tmp_path, **options), *engine_words(server), "engine.plugin=true"]) == 0
    asked = [body["vllm_xargs"] for body in server.seen]
    assert {extra["sdbench_rule"] for extra in asked} == {"sdbench.verify.Exact", "sdbench.verify.Ensemble"}
    results = read(tmp_path / NAME)
    assert len(results.generations) == 6, "w = 1 is the lossless cell"
    summary = pd.read_csv(tmp_path / NAME / "summary.csv").set_index("verifier")
    assert summary["also"].dropna().to_dict() == {"lossless": "ensemble w=1"}


def test_a_request_carries_the_version_of_its_rule_and_an_older_plugin_that_compares_none_is_a_warning(
    served_words, standin, tmp_path, capsys
):
    options = {"verifier": "coin", "temperature": 1}
    for name, versions, warnings in (("new", {"sdbench.verify.Ensemble": "1"}, 0), ("old", None, 1)):
        server = standin(has_plugin=True, other_versions=versions)
        assert main([*served_words(tmp_path / name, **options), *engine_words(server), "engine.plugin=true"]) == 0
        assert (
            capsys.readouterr().err.count("has an older plug-in, which cannot tell whether its rules are") == warnings
        )
        shown = {body["vllm_xargs"]["sdbench_rule"]: body["vllm_xargs"]["sdbench_version"] for body in server.seen}
        assert shown["sdbench.verify.Coin"] == "1 of 1"
