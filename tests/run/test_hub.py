"""The command line with a gated pair and a downloaded data set, from a stand-in hub under the real ids."""

import subprocess
import sys

COMMAND = [sys.executable, "-m", "sdbench", "model=llama", "task=cnndm", "w=0.7", "n=2", "task.max_new_tokens=8"]


def test_a_gated_pair_on_a_hub_data_set_runs_end_to_end_and_without_a_token_says_what_to_do(hub, tmp_path):
    refused = subprocess.run(
        COMMAND, env=hub.env(tmp_path / "a"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    words = " ".join(refused.stderr.split())
    assert f"accept its licence at {hub.url}/meta-llama/Llama-3.1-8B-Instruct, then set HF_TOKEN" in words
    assert "model=llama-tiny" in words
    assert "Traceback" not in words

    begin = len(hub.log)
    env = hub.env(tmp_path / "b", "hf_granted")
    done = subprocess.run([*COMMAND, "timing=off"], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    import sdbench

    results = sdbench.read(tmp_path / "results" / "llama-cnndm")
    assert len(results.generations) == 2 * 4
    assert set(results.cells.verifier) == {"target", "draft", "lossless", "ensemble"}
    assert not [line for line in hub.log[begin:] if "train-" in line or "validation-" in line]
