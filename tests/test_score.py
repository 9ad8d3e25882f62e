"""`python -m sdbench.score`: one JSON object on stdout, messages on stderr, one sentence and code 2 for mistakes."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

from sdbench.score import COMMAND, parse

ROWS = Path(__file__).parent / "tasks" / "rows"


def rows(name):
    return [json.loads(line) for line in (ROWS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def score(tmp_path, capsys):
    """Scores {id, completion} objects of a task; gives (exit code, parsed stdout or None, stderr)."""

    def run(task, predictions, *more, data=None):
        path = tmp_path / "predictions.jsonl"
        lines = [line if isinstance(line, str) else json.dumps(line) for line in predictions]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        data = ROWS / f"{data or task}.jsonl" if not isinstance(data, Path) else data
        code = COMMAND([f"task={task}", f"predictions={path}", f"data={data}", *more])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return run


def references(name, field="answer"):
    return [{"id": number, "completion": row[field]} for number, row in enumerate(rows(name))]


def test_the_object_has_the_promised_shape(score):
    code, result, err = score("gsm8k", references("gsm8k"))
    assert (code, err) == (0, "")
    assert (result["task"], result["protocol"], result["n"]) == ("gsm8k", "lm-eval", 7)
    assert set(result["metrics"]) == {"strict", "flexible", "numeric"}
    for metric in result["metrics"].values():
        assert set(metric) == {"value", "low", "high"}
        assert 0 < metric["low"] < metric["value"] == metric["high"] == 1
    assert result["flags"]["is_missing"] == 0
    assert "per_example" not in result


def test_the_object_says_which_rows_were_scored(score, tmp_path):
    _, result, _ = score("gsm8k", references("gsm8k"))
    assert (result["split"], result["dataset"], result["dataset_commit"]) == ("test", "openai/gsm8k", None)
    hashes = {result["rows_hash"], score("gsm8k", references("gsm8k"))[1]["rows_hash"]}
    assert len(hashes) == 1
    changed = tmp_path / "rows.jsonl"
    changed.write_text("".join(json.dumps({**row, "answer": "#### 1"}) + "\n" for row in rows("gsm8k")))
    hashes.add(score("gsm8k", references("gsm8k"), data=changed)[1]["rows_hash"])
    hashes.add(score("gsm8k", references("gsm8k")[:1], "n=1", "seed=null")[1]["rows_hash"])
    assert len(hashes) == 3


def test_ids_that_occur_twice_are_reported(score):
    lines = references("gsm8k")
    assert "1 of 7 ids have more lines than others, which count as samples: 2" in score("gsm8k", [*lines, lines[2]])[2]
    assert "every id has 2 lines: they count as samples" in score("gsm8k", lines * 2)[2]


@pytest.mark.parametrize("out", ["{}/no/such/folder.json", "{}"])
def test_where_the_result_goes_is_checked_before_anything_is_scored(score, tmp_path, monkeypatch, out):
    monkeypatch.setattr("sdbench.score.score_predictions", lambda *_: pytest.fail("scored first"))
    code, result, err = score("gsm8k", references("gsm8k"), f"out={out.format(tmp_path)}")
    assert (code, result) == (2, None)
    assert err.startswith("sdbench.score: out=")


def test_a_line_that_is_no_text_is_named(tmp_path, capsys):
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(b'{"id": 0, "completion": "a"}\n{"id": 1, "completion": "\xff"}\n')
    assert COMMAND(["task=gsm8k", f"predictions={path}", f"data={ROWS / 'gsm8k.jsonl'}"]) == 2
    assert "predictions.jsonl line 2 is not UTF-8 text" in capsys.readouterr().err


def test_an_id_without_prediction_counts_as_failed_and_is_reported(score):
    code, result, err = score("gsm8k", references("gsm8k")[:-2], "per_example=true")
    assert code == 0
    assert result["n"] == 7
    assert result["metrics"]["strict"]["value"] == pytest.approx(5 / 7)
    assert result["flags"]["is_missing"] == 2
    assert "2 of 7 ids have no prediction and count as failed: 5, 6" in err
    assert [one["id"] for one in result["per_example"] if one["flags"]["is_missing"]] == ["5", "6"]


def test_summaries_and_ids_of_the_data_set(score):
    predictions = [{"id": row["id"], "completion": row["highlights"]} for row in rows("cnndm")]
    _, result, _ = score("cnndm", predictions[::-1], "per_example=true")
    kinds = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    assert set(result["metrics"]) == {*kinds, *(f"{kind}_nostem" for kind in kinds)}
    assert all(metric["value"] == pytest.approx(100) for metric in result["metrics"].values())
    assert [one["id"] for one in result["per_example"]] == ["a1", "b2"]
    assert result["per_example"][0]["values"]["rougeL"] == pytest.approx(100)


def test_bleu_is_the_corpus_score_with_its_signature_between_its_limits(score):
    answers = ["The cat is asleep on the roof.", "No train runs tomorrow, she said.", "Prices rose by 3.5 per cent."]
    _, result, _ = score("wmt16", [{"id": i, "completion": f" {a}\n"} for i, a in enumerate(answers)], data="wmt")
    golds = [row["translation"]["en"] for row in rows("wmt")]
    metrics = result["metrics"]
    assert metrics["bleu"]["value"] == pytest.approx(sacrebleu.corpus_bleu(answers, [golds]).score, abs=1e-12)
    assert metrics["chrf2"]["value"] == pytest.approx(sacrebleu.corpus_chrf(answers, [golds]).score, abs=1e-12)
    assert metrics["bleu"]["low"] <= metrics["bleu"]["value"] <= metrics["bleu"]["high"]
    assert "tok:13a" in metrics["bleu_signature"]["value"]
    lowered = [sacrebleu.sentence_bleu(a, [g], lowercase=True).score for a, g in zip(answers, golds, strict=True)]
    assert metrics["diversed_sbleu"]["value"] == pytest.approx(sum(lowered) / 3)


def test_several_lines_of_one_id_are_samples_and_pass_at_k_is_unbiased(score):
    predictions = []
    for row in rows("humaneval"):
        predictions.append({"id": row["task_id"], "completion": row["canonical_solution"]})
        predictions += [{"id": row["task_id"], "completion": "    return None\n"}] * 3
    _, result, _ = score("humaneval", predictions)
    assert result["num_answers"] == 12
    values = {name: metric["value"] for name, metric in result["metrics"].items()}
    assert values.pop("pass@1_repaired") == 0.25
    assert values == pytest.approx({"pass@1": 0.25, "pass@2": 0.5, "pass@3": 0.75, "pass@4": 1.0})
    assert result["flags"]["is_wrong"] == 9


@pytest.mark.parametrize("sandbox", ["rlimit", "none"])
def test_a_weaker_sandbox_is_used_only_by_name_and_marks_the_result(score, sandbox):
    predictions = [{"id": row["task_id"], "completion": row["canonical_solution"]} for row in rows("humaneval")]
    _, result, err = score("humaneval", predictions, f"task.sandbox={sandbox}")
    assert result["metrics"]["pass@1"]["value"] == 1
    assert (result["settings"]["sandbox"], result["settings"]["is_contained"]) == (sandbox, False)
    assert result["flags"]["is_uncontained"] == 3
    assert f"sandbox={sandbox}: programs ran with little or no protection" in err
    _, result, err = score("humaneval", predictions)
    assert (result["flags"]["is_uncontained"], result["settings"]["is_contained"], err) == (0, True, "")


def test_an_id_without_samples_fails_at_every_k(score):
    first, *others = rows("humaneval")
    predictions = [{"id": row["task_id"], "completion": row["canonical_solution"]} for row in others for _ in range(2)]
    _, result, _ = score("humaneval", predictions)
    values = {name: metric["value"] for name, metric in result["metrics"].items()}
    assert values.pop("pass@1_repaired") == pytest.approx(2 / 3)
    assert values == pytest.approx({"pass@1": 2 / 3, "pass@2": 2 / 3}), first["task_id"]
    assert (result["num_answers"], result["flags"]["is_missing"]) == (4, 1)


@pytest.mark.slow
def test_mbpp_ids_are_numbers_or_texts_and_both_configurations_score(score):
    for name in ("mbpp", "mbpp-sanitized"):
        predictions = [{"id": row["task_id"], "completion": f"```python\n{row['code']}\n```"} for row in rows(name)]
        predictions[0]["id"] = str(predictions[0]["id"])
        assert score(name, predictions)[1]["metrics"]["pass@1_repaired"]["value"] == 1


@pytest.mark.parametrize("argument", ["protocol=llama", "task.protocol=llama"])
def test_a_protocol_may_be_named_and_its_own_form_is_read(score, argument):
    predictions = [
        {"id": i, "completion": f"The final answer is {r['answer'].split('#### ')[1]}."}
        for i, r in enumerate(rows("gsm8k"))
    ]
    _, result, _ = score("gsm8k", predictions, argument)
    assert result["protocol"] == "llama"
    assert result["metrics"]["strict"]["value"] == 1


def test_answers_are_cut_at_stop_strings_and_stripped(score):
    predictions = [
        {"id": i, "completion": f"\n {row['answer']}\n\nQuestion: 1?\nAnswer: #### 99"}
        for i, row in enumerate(rows("gsm8k"))
    ]
    metrics = score("gsm8k", predictions)[1]["metrics"]
    assert {metric["value"] for metric in metrics.values()} == {1.0}


def test_the_length_limit_marks_truncation_where_it_is_given(score):
    predictions = [{**line, "finish": "length" if line["id"] < 3 else "stop"} for line in references("gsm8k")]
    assert score("gsm8k", predictions)[1]["flags"]["is_truncated"] == 3


def test_tiny_tasks_score_all_their_rows(score, tmp_path):
    code = COMMAND(
        [
            "task=gsm8k-tiny",
            f"predictions={_write(tmp_path, [{'id': 0, 'completion': 'no'}])}",
            f"out={tmp_path}/s.json",
        ]
    )
    result = json.loads((tmp_path / "s.json").read_text())
    assert code == 0
    assert result["n"] == 500
    assert result["flags"]["is_missing"] == 499


def _write(folder, lines):
    path = folder / "predictions.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    return path


def test_one_row_has_no_interval_but_valid_json(score, tmp_path):
    (tmp_path / "one.jsonl").write_text(json.dumps(rows("cnndm")[0]) + "\n")
    code, result, _ = score("cnndm", [{"id": "a1", "completion": "A cat"}], data=tmp_path / "one.jsonl")
    assert code == 0
    assert result["metrics"]["rougeL"]["low"] is None


def test_scores_do_not_depend_on_the_order_of_predictions(score):
    lines = references("gsm8k")[:5]
    shuffled = random.Random(0).sample(lines, len(lines))
    assert score("gsm8k", lines)[1] == score("gsm8k", shuffled)[1]


@pytest.mark.parametrize(
    ("lines", "more", "sentence"),
    [
        (
            [{"id": 0, "completion": "a"}, "{not json"],
            [],
            "line 2 is not JSON: Expecting property name",
        ),
        (["[" * 100_000], [], "line 1 is not JSON"),
        (['{"id": ' + "1" * 5000 + "}"], [], "line 1 is not JSON"),
        ([{"id": 0}], [], "line 1 has no field 'completion'"),
        ([{"completion": "a"}], [], "line 1 has no field 'id'"),
        (["[1]"], [], "line 1 must be a JSON object, got [1]"),
        ([{"id": 0, "completion": 7}], [], "line 1: completion must be a text, got 7"),
        ([{"id": 99, "completion": "a"}], [], "line 1: id '99' is not in the data of gsm8k"),
        ([], ["protocol=lama"], "gsm8k has no protocol lama (did you mean llama?"),
        ([], ["protcol=llama"], "protcol is not an option (did you mean protocol?"),
        ([], ["per_example=perhaps"], "per_example must be true or false, got perhaps"),
        ([], ["level=95"], "level must be a number between 0 and 1, got 95"),
        ([], ["resamples=1"], "resamples must be a whole number of at least 100, got 1"),
        ([{"id": 0, "completion": "a"}, '{"id": 1,'], [], "double quotes at character 10"),
        ([], ["bootstrap_seed=x"], "bootstrap_seed must be a whole number of at least 0, got x"),
        ([], ["nonsense"], "'nonsense' is not of the form key=value"),
        ([], ["task=xsum"], "task is given twice"),
        ([], ["shots=many"], "shots must be a whole number of at least 0, got many"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(score, lines, more, sentence):
    code, result, err = score("gsm8k", lines, *more)
    assert (code, result) == (2, None)
    assert sentence in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "task= is missing"),
        (["task=gsm9k", "predictions=x"], "there is no task gsm9k (did you mean gsm8k?"),
        (["task=gsm8k"], "predictions= is missing"),
        (["task=gsm8k-tiny", "predictions=nowhere.jsonl"], "there is no file nowhere.jsonl"),
        (["task=gsm8k", f"predictions={os.devnull}", f"data={ROWS}"], "is not a file"),
        (
            ["task=gsm8k", f"predictions={os.devnull}", f"data={ROWS / 'wmt.jsonl'}"],
            "has no field 'question': gsm8k needs question, answer",
        ),
    ],
)
def test_a_mistake_in_names_is_one_sentence_and_code_2(arguments, sentence, capsys):
    assert COMMAND(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def command(*words, **options):
    words = (sys.executable, "-m", "sdbench.score", *words)
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


@pytest.mark.slow
def test_as_a_command_stdout_holds_the_object_alone(tmp_path):
    path = _write(tmp_path, references("gsm8k")[:3])
    done = command("task=gsm8k", f"predictions={path}", f"data={ROWS / 'gsm8k.jsonl'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["strict"]["value"] == pytest.approx(3 / 7)
    assert done.stdout.count("\n") == 1
    assert "4 of 7 ids have no prediction" in done.stderr
    helped = command("--help")
    assert helped.returncode == 0
    assert "predictions=FILE" in helped.stdout


@pytest.mark.slow
def test_164_real_humaneval_references_score_1_in_fifteen_seconds_as_a_command(tmp_path, children_s, real_data):
    data = real_data / "humaneval.jsonl"
    loaded = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    path = _write(tmp_path, [{"id": row["task_id"], "completion": row["canonical_solution"]} for row in loaded])
    # Not within bubblewrap, whose processes end uncounted.
    done = command("task=humaneval", f"predictions={path}", f"data={data}", "sandbox=kernel")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["n"], result["metrics"]["pass@1"]["value"]) == (164, 1)
    assert 1 < children_s() < 15


def option(word):
    name = word.partition("=")[0].removeprefix("task.").partition(".")[0]
    return parse(["task=lm-eval:gsm8k", word])[name]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("stop=Question:", "Question:"),
        ("stop=#", "#"),
        ("stop=### Step", "### Step"),
        ("stop=null", None),
        ('stop=["\\n\\n"]', ["\n\n"]),
        ('stop=["\n\n", "#"]', ["\n\n", "#"]),  # line breaks of the shell, which YAML would fold
        ('stop="\\n"', "\n"),
        ("stop=\n", "\n"),
        ("system=Note: be brief", "Note: be brief"),
        ("revision=1e5", "1e5"),
        ("task.bounds.rouge1=[0,1]", {"rouge1": [0, 1]}),
        ("bounds.exact_match,strict-match=[0,1]", {"exact_match,strict-match": [0, 1]}),
        ("task.bounds={rouge1: [0, 1]}", {"rouge1": [0, 1]}),
    ],
)
def test_texts_and_bounds_are_what_is_written(word, value):
    assert option(word) == value


@pytest.mark.parametrize("word", ["stop=\\n", "stop=['\\n\\n']", "stop=['\n']"])
def test_a_backslash_and_n_that_yaml_leaves_are_refused(word):
    with pytest.raises(ValueError, match=r"""has \\n as two characters.* such as 'stop=\["\\n\\n"\]'$"""):
        option(word)


def test_a_colon_in_a_stop_string_stops(score):
    predictions = [
        {"id": line["id"], "completion": f"{line['completion']}\nEnd: #### 0"} for line in references("gsm8k")
    ]
    code, result, _ = score("gsm8k", predictions, "stop=End:")
    assert code == 0
    assert result["metrics"]["flexible"]["value"] == 1
