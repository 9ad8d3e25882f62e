"""A whole run of `task=lm-eval:NAME` over local rows: its records, its key and its scores are those of the harness's task."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from test_model import needs_lm_eval, text_of

from sdbench import embedded
from sdbench.files import digest_of_file
from sdbench.records import read

MARKED = r'metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: ["(?s).*#### "]'
LENGTH = 'generation_kwargs: {until: ["Question:"], do_sample: false, max_gen_toks: 80}'
PROMPT = "Question: {{question}}\\nAnswer:"


@needs_lm_eval
@pytest.mark.slow
def test_a_run_of_a_task_of_the_harness_keeps_its_prompts_version_files_and_scores(tmp_path):
    folder, rows = tmp_path / "tasks", embedded.rows("gsm8k-tiny", "test", n=6)
    folder.mkdir()
    (tmp_path / "rows.json").write_text(json.dumps([dict(row) for row in rows]))
    lines = [LENGTH, "metadata: {version: 3}"]
    text = text_of("tiny_math", "generate_until", PROMPT, '"{{answer}}"', MARKED, *lines)
    (folder / "tiny_math.yaml").write_text(text.replace("ROWS", str(tmp_path / "rows.json")))
    words = ["model=llama-tiny", "task=lm-eval:tiny_math", f"task.include_path={folder}", "task.seed=null", "w=0.5"]
    words += ["timing=off", f"results={tmp_path / 'results'}", "device=cpu", "report=false"]
    env = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "sdbench", *words], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (run,) = (path for path in (tmp_path / "results").iterdir() if path.is_dir())
    results = read(run)
    prompts = [f"Question: {row['question']}\nAnswer:" for row in rows]
    assert [prompt.removeprefix("<s>") for prompt in results.examples["prompt"]] == prompts
    assert list(results.examples["reference"]) == [row["answer"] for row in rows]
    for cell in map(json.loads, (path.read_text() for path in run.glob("records/cell-*.json"))):
        described = cell["content"]["task"]["harness"]
        assert (described["task"], described["version"]) == ("tiny_math", 3)
        assert described["files"] == {"tiny_math.yaml": digest_of_file(folder / "tiny_math.yaml")}
    answers = results.generations
    assert set(answers["example"]) == {str(index) for index in range(len(rows))}
    assert set(answers["verifier"]) >= {"ensemble", "lossless"}
    number = dict(enumerate(row["answer"].split("#### ")[-1] for row in rows))
    for _, answer in answers.iterrows():
        assert answer["exact_match"] == (answer["text"].split("#### ")[-1] == number[int(answer["example"])])
    assert set(answers["exact_match"]) == {0.0, 1.0}
    (entry,) = results.provenance.values()
    assert entry["task"]["lm_eval"] == version("lm_eval")
