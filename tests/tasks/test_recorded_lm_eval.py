"""Our tasks under protocol lm-eval against recorded prompts and scores of lm-evaluation-harness for the same rows and answers.

No test but the last one needs lm_eval. The file is made again by lm_eval_both.py, as its first lines say.
"""

import json
import subprocess
import sys

import pytest
from lm_eval_rows import HERE, OWN, RECORD, RECORDED, files_of
from test_lm_eval import needs_lm_eval

import sdbench.tasks
from sdbench.metrics.quality import corpus_of

RESULTS = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RECORDED)
def test_prompts_and_scores_are_the_recorded_ones(name, tmp_path, uninstall):
    uninstall("lm_eval")
    recorded, (ours, metrics) = RESULTS["tasks"][name], OWN[name]
    task = sdbench.tasks.load(ours, protocol="lm-eval", seed=None, **files_of(name, tmp_path))
    examples = list(task.examples())
    assert [example.prompt.text for example in examples] == [row["prompt"] for row in recorded["rows"]]
    assert sorted(task.stop) == sorted(recorded["until"])
    length = (
        512 if name == "gsm8k" else recorded["max_gen_toks"]
    )  # 256 in the harness, which cuts long answers: docs/guide.md
    assert task.max_new_tokens == length
    scores = task.score_all(zip(examples, [row["answer"] for row in recorded["rows"]], strict=True))
    for mine, theirs in metrics.items():
        metric = task.metric_of(mine)
        if metric.stats is None:
            values = [score.values[mine] / metric.bounds[1] for score in scores]
            assert values == pytest.approx([row["scores"][theirs] for row in recorded["rows"]], abs=1e-12)
            assert len(set(values)) > 1
        else:
            sums = [sum(column) for column in zip(*(score.stats[mine] for score in scores), strict=True)]
            assert float(corpus_of(metric)(sums)) == pytest.approx(recorded["whole"][theirs], abs=1e-12)


@needs_lm_eval
@pytest.mark.slow
def test_the_installed_harness_gives_the_recorded_prompts_and_scores():
    command = [sys.executable, str(HERE / "lm_eval_both.py"), "record"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["tasks"] == RESULTS["tasks"]
