"""engine=vllm with a stand-in in place of vLLM: started, waited for, asked, and gone, whatever happens."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import gone, is_alive, noted

from sdbench.cli import main
from sdbench.config import Model
from sdbench.engines.served.request import ServerSetting
from sdbench.engines.served.started import Vllm
from sdbench.records import read

pytestmark = pytest.mark.usefixtures("no_figures")
NAME, ROOT = "micro-gsm8k-tiny", Path(__file__).parents[2]


@pytest.fixture
def vllm_words(vllm_python):
    return [
        f"engine.python={vllm_python}",
        "engine=vllm",
        "engine.start_s=240",
        "engine.grace_s=2",
        "engine.wait_s=0.01",
    ]


@pytest.mark.slow
def test_one_server_for_each_setting_its_arguments_in_the_provenance_and_none_left(
    served_words, vllm_words, tmp_path, monkeypatch
):
    note = tmp_path / "pids"
    monkeypatch.setenv("STANDIN_CHILD", str(note))
    assert main([*served_words(tmp_path), *vllm_words, "engine.args.max_model_len=512"]) == 0
    results = read(tmp_path / NAME)
    assert set(results.cells["verifier"]) == {"lossless", "target", "draft"}
    assert len(results.generations) == 9
    (entry,) = results.provenance.values()
    by_setting = {facts["setting"].split(" ")[0]: facts for facts in entry["servers"]}
    assert set(by_setting) == {"num_draft=3", "target", "draft"}
    pair = by_setting["num_draft=3"]
    command = " ".join(pair["command"])
    assert "--max-model-len 512" in command
    assert '"num_speculative_tokens": 3' in command
    assert '"rejection_sample_method": "standard"' in command
    assert "--speculative-config" not in " ".join(by_setting["target"]["command"])
    assert (pair["installed"]["version"], pair["installed"]["commit"]) == ("0.32.0", "g1234567")
    assert pair["started_s"] > 0
    assert gone(noted(note)), "the last server and its worker"


def test_servers_get_the_revisions_of_the_run():
    model = Model("pair", "org/big", "org/small", target_revision="v1", draft_revision="v2")
    engine = Vllm(python="py", speculative={"method": "draft_model"})
    job = SimpleNamespace(run=SimpleNamespace(model=model))
    pair = ServerSetting("pair", num_draft=3, rule="{}")
    words = list(engine.words(job, pair, 8000))
    assert words[words.index("--revision") + 1] == "v1"
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert (config["model"], config["revision"]) == ("org/small", "v2")
    words = list(engine.words(job, ServerSetting("draft"), 8000))
    assert words[words.index("--revision") + 1] == "v2"
    unpinned = SimpleNamespace(run=SimpleNamespace(model=Model("pair", "org/big", "org/small")))
    assert "revision" not in " ".join(engine.words(unpinned, pair, 8000))


@pytest.mark.slow
def test_the_key_of_the_shell_opens_the_servers_and_is_in_no_file(served_words, vllm_words, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    assert main([*served_words(tmp_path), *vllm_words]) == 0
    assert len(read(tmp_path / NAME).generations) == 9
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if b"sesame" in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_server_is_started_once_however_many_shares_there_are(
    at_once, served_words, vllm_words, tmp_path, monkeypatch
):
    """One of 70 billion weights takes minutes to start."""
    monkeypatch.setattr("sdbench.passes.quality.ROWS_AT_LEAST", 1)  # a share for each example
    monkeypatch.setattr("sdbench.passes.quality.ROWS_A_SHARE", 1)
    assert main([*served_words(tmp_path), *vllm_words, f"engine.at_once={at_once}"]) == 0
    assert len(read(tmp_path / NAME).generations) == 9
    assert len(list((tmp_path / NAME / "servers").glob("*.log"))) == 3


def test_a_server_that_dies_before_it_is_ready_says_why(served_words, vllm_words, tmp_path, capsys):
    words = [*served_words(tmp_path), *vllm_words, "engine.args.refuse_to_start=true"]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "ended with code 3 before it was ready" in message
    assert "ValueError: cannot allocate the KV cache" in message


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_costs_nothing_that_was_finished(
    served_words, vllm_words, tmp_path, capsys, monkeypatch
):
    words = [*served_words(tmp_path, batch_size=1), *vllm_words, "engine.retries=1"]
    monkeypatch.setenv("STANDIN_DIES_AFTER", "2")  # one request looks at it, one text
    assert main(words) == 1
    message = capsys.readouterr().err
    assert "ended with code 17; its log" in message
    held = len(read(tmp_path / NAME).generations)
    assert held == 1
    monkeypatch.delenv("STANDIN_DIES_AFTER")
    assert main(words) == 0
    assert len(read(tmp_path / NAME).generations) == 9


@pytest.mark.slow
def test_an_open_loop_in_which_a_server_dies_is_not_recorded(served_words, vllm_words, tmp_path, capsys, monkeypatch):
    """Its front end outlives its engine core for a second, and still lists the models."""
    plain = [word for word in served_words(tmp_path, n=2, report="off") if word != "timing=off"]
    words = [*plain, *vllm_words, "timing.examples=2", "timing.requests=12", "timing.rate=400"]
    monkeypatch.setenv("STANDIN_DIES_AFTER", "10")  # a look, a warm-up and a closed loop; then requests of the open one
    monkeypatch.setenv("STANDIN_DEATH", "dying")
    assert main(words) == 1
    assert "ended with code 17; its log" in capsys.readouterr().err
    assert read(tmp_path / NAME).open_loads.empty


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_when_the_harness_goes_so_do_the_server_and_what_it_started(how, served_words, vllm_words, tmp_path):
    note = tmp_path / "pids"
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "STANDIN_CHILD": str(note),
        "STANDIN_STEP_S": "0.5",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "sdbench", *served_words(tmp_path), *vllm_words]

    def foreground() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where the tests run in the background

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    harness = subprocess.Popen(command, env=env, preexec_fn=foreground, **quiet)
    pids = noted(note)
    assert all(map(is_alive, pids))
    harness.send_signal(how)
    assert harness.wait(120) in (-signal.SIGKILL, 130)
    assert gone(pids)
