"""Tasks through the whole command: prompts that are too long, and what a weaker sandbox has scored."""

import json

import pytest

from sdbench.cli import main
from sdbench.records import read

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.mark.slow
def test_a_prompt_over_the_models_limit_is_cut_by_the_recorded_rule_and_counted(words, tmp_path, capsys):
    rows = [
        {"article": "A cat sat on a mat. " * times, "highlights": "A cat sat.", "id": str(times)} for times in (2, 400)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"task": "cnndm", "task.data": path, "n": 2, "w": 0.5, "max_new_tokens": 8}
    assert main(words(tmp_path, **options)) == 0
    rule = "oldest shots first, then words at the end of article"
    assert f"1 of 2 prompts were too long for 2040 tokens and were cut: {rule}" in " ".join(
        capsys.readouterr().err.split()
    )
    results = read(tmp_path / "micro-cnndm")
    (entry,) = results.provenance.values()
    assert entry["task"]["prompt_cut"] == rule
    cut = results.generations.groupby("example")["is_prompt_cut"].unique().to_dict()
    assert {example: list(flags) for example, flags in cut.items()} == {"2": [False], "400": [True]}
    lengths = results.generations.groupby("example")["prompt_tokens"].max()
    assert 2040 - len(" mat. ") <= lengths["400"] <= 2040
    prompt = results.examples.set_index("example").loc["400", "prompt"]
    assert prompt.startswith("Summarize the following article:\n\nA cat")
    assert prompt.endswith("\n\nSummary:")


def test_a_weaker_sandbox_marks_records_and_provenance(words, tmp_path):
    options = {"task": "mbpp-tiny", "task.sandbox": "rlimit", "n": 1, "w": 0.5, "max_new_tokens": 8}
    assert main(words(tmp_path, **options)) == 0
    results = read(tmp_path / "micro-mbpp-tiny")
    (entry,) = results.provenance.values()
    assert (entry["task"]["sandbox"], entry["task"]["is_contained"]) == ("rlimit", False)
    assert results.generations["is_uncontained"].all()
    assert "sandbox rlimit" in entry["task"]["signatures"]["pass@1"]
