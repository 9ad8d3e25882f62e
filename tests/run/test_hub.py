"""The command line with pairs and data sets of a stand-in hub under the real ids: gates, faults, sizes, and a whole run."""

import subprocess
import sys

import pytest
from test_options import save_huge
from watched import sdbench

import sdbench as package

CNNDM = ["model=llama", "task=cnndm", "w=0.7", "n=2", "task.max_new_tokens=8"]


@pytest.fixture
def failing(hub):
    """The hub answers 500 to whatever has one of these words in its path."""

    def fail(*words: str) -> None:
        hub.fail = lambda method, path, count: 500 if any(word in path for word in words) else None

    yield fail
    hub.fail = None


@pytest.mark.parametrize(
    ("token", "says"), [(None, "then set HF_TOKEN"), ("hf_ungranted", "has no access yet"), ("hf_dead", "refuses")]
)
def test_a_gated_pair_says_what_to_do_before_anything_heavy_is_imported(hub, tmp_path, token, says):
    done = sdbench(CNNDM, cwd=tmp_path, env=hub.env(tmp_path / "home", token))
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert says in done.err
    assert "model=llama-tiny" in done.err
    if token != "hf_dead":
        assert f"accept its licence at {hub.url}/meta-llama/Llama-3.1-8B-Instruct" in done.err
    assert not done.modules & {"torch", "transformers", "datasets", "pandas"}
    assert done.seconds < 2
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "path"), [(["model=qwen"], "Qwen/Qwen3-8B"), (["task=wmt14"], "datasets/wmt/wmt14")], ids=["pair", "rows"]
)
def test_a_fault_of_the_hub_is_one_sentence_and_no_fault_of_the_configuration(hub, failing, tmp_path, words, path):
    failing(path)
    done = sdbench(words, cwd=tmp_path, env=hub.env(tmp_path / "home"))
    assert done.code == 1
    assert done.err.startswith("sdbench: the hub fails (500) for ")
    assert done.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_pair_that_does_not_fit_is_refused_without_a_byte_of_its_weights(hub, tmp_path):
    (hub.root / "models" / "org").mkdir(exist_ok=True)
    save_huge(hub.root / "models" / "org" / "huge", [1_000_000, 405_000])
    words = ["model.target=org/huge", "model.draft=Qwen/Qwen3-0.6B", "device=cpu"]
    done = sdbench(words, cwd=tmp_path, env=hub.env(tmp_path / "home"))
    assert done.code == 2
    assert done.err.startswith("sdbench: org/huge (405 B weights in float32) and Qwen/Qwen3-0.6B")
    assert done.err.count("\n") == 1
    assert not list((tmp_path / "home").rglob("*.safetensors"))
    assert not done.modules & {"torch", "transformers"}


def test_a_gated_pair_on_a_hub_data_set_runs_end_to_end(hub, tmp_path):
    begin = len(hub.log)
    command = [sys.executable, "-m", "sdbench", *CNNDM, "timing=off"]
    env = hub.env(tmp_path / "home", "hf_granted")
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = package.read(tmp_path / "results" / "llama-cnndm")
    assert len(results.generations) == 2 * 4
    assert set(results.cells.verifier) == {"target", "draft", "lossless", "ensemble"}
    assert not [line for line in hub.log[begin:] if "train-" in line or "validation-" in line]
