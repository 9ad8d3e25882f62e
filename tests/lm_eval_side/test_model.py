"""Our decoding inside lm-evaluation-harness: its results are those of its own `hf` model over the same target, with our measures.

Needs the extra `lm-eval`: tests/tasks/test_parity.py runs this in the environment that scripts/parity makes.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sdbench import embedded

needs_lm_eval = pytest.mark.skipif(
    find_spec("lm_eval") is None, reason="the extra lm-eval is not installed: see scripts/parity"
)
PAIR = Path(str(embedded.__file__)).parent / "llama-tiny"
ASKED = """
task: tiny_math
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Question:"], do_sample: false, max_gen_toks: 48}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: ["(?s).*#### "]}]
"""
CHOSEN = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: ["{{answer}}", "no", "yes, so it is"]
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
READ = """
task: tiny_text
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{answer}}"
metric_list: [{metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}]
"""


def test_without_the_extra_the_way_to_it_is_named():
    if find_spec("lm_eval") is not None:
        pytest.skip("the extra is here")
    done = subprocess.run(
        [sys.executable, "-m", "sdbench.lm_eval", "run", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "sdbench.lm_eval: lm_eval is not installed: pip install 'sdbench[lm-eval]'\n"


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
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(dict(row)) + "\n" for row in embedded.rows("gsm8k-tiny", "test", n=limit)))
    for text in (ASKED, CHOSEN, READ):
        (folder / f"{text.split()[1]}.yaml").write_text(text.replace("ROWS", str(rows)))
    if "sdbench" not in model_registry:
        model_registry.register("sdbench", target=MODEL)
    return lm_eval.simple_evaluate(
        model=model,
        model_args=options,
        tasks=["tiny_math", "tiny_choice", "tiny_text"],
        task_manager=TaskManager(include_defaults=False, include_path=str(folder)),
        batch_size=8,
        bootstrap_iters=0,
        **more,
    )


OURS = {"model": "llama-tiny", "verifier": "exact", "num_draft": 5, "device": "cpu"}


@needs_lm_eval
@pytest.mark.slow
def test_lossless_decoding_at_temperature_0_gives_the_results_of_hf(tmp_path):
    ours = evaluate(tmp_path, "sdbench", OURS)
    theirs = evaluate(tmp_path, "hf", {"pretrained": str(PAIR / "target"), "dtype": "float32", "device": "cpu"})
    for task in ("tiny_math", "tiny_choice", "tiny_text"):
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
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"w": [0.5, 0.7], "verifier": "ensemble"}, "lm_eval evaluates one model at a time"),
        ({"temperature": 0.7}, "temperature is decided by lm_eval for each task: give it as --gen_kwargs"),
        ({"verifier": "exactt"}, r"verifier=exactt names no file .*did you mean exact"),
        ({"pretrained": "x"}, "pretrained is not an option"),
    ],
)
def test_what_is_no_setting_is_one_sentence(options, words):
    from sdbench.config import ConfigError
    from sdbench.lm_eval.model import SpeculativeLM

    with pytest.raises(ConfigError, match=words):
        SpeculativeLM(**{**OURS, **options})
