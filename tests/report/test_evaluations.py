"""Folders that lm-evaluation-harness wrote are reported as far as their numbers go, and what they lack is said."""

import json
import math
from pathlib import Path

import lxml.html
import pandas as pd
import pytest

from sdbench.report.command import COMMAND
from sdbench.subcommand import Exit

RATES = {name: {"value": 0.5, "low": 0.4, "high": 0.6} for name in ("acceptance", "tokens_per_round")}
RATES |= {key: {"value": None, "low": None, "high": None} for key in ("acceptance_expected", "bias")}


def write_evaluation(
    folder,
    date,
    verifier,
    scores,
    *,
    stderr=0.1,
    has_samples=True,
    target="big",
    draft="small",
    document=None,
    config=None,
    sample=None,
    quality=None,
    original=1319,
    metric="exact_match,strict-match",
    **knobs,
):
    """One evaluation in the form of lm_eval 0.4.13; `verifier` None: by its own model."""
    tasks = {
        "gsm8k": {**RATES, "n": len(scores), "tokens": 90, "seconds": 3.0, "seconds_low": 2.0, "seconds_high": None}
    }
    facts = {"target": target, "draft": draft, "checkpoints": {}, "drafter": "model", "verifier": verifier, **knobs}
    facts |= {"num_draft": 5, "is_lossless": verifier == "exact", "tasks": tasks}
    config = {**(config or {}), **({"model": "sdbench", "sdbench": facts} if verifier else {"model": "hf"})}
    name, _, filter_name = metric.partition(",")
    entry = {"alias": "gsm8k", metric: sum(scores) / len(scores) if quality is None else quality}
    document = {
        **(document or {}),
        "results": {"gsm8k": {**entry, f"{name}_stderr,{filter_name}": stderr}},
        "n-shot": {"gsm8k": 5},
        "n-samples": {"gsm8k": {"original": original, "effective": len(scores)}},
        "config": {"limit": len(scores), **config, "gen_kwargs": None},
        "model_name": target,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"results_{date}.json").write_text(json.dumps(document))
    lines = [{**(sample or {}), "doc_id": i, "filter": filter_name, name: score} for i, score in enumerate(scores)]
    if has_samples:
        (folder / f"samples_gsm8k_{date}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def report(folder, *words):
    return COMMAND([str(folder), *words])


@pytest.fixture
def folder(tmp_path):
    below = tmp_path / "out" / "big"
    write_evaluation(below, "2026-01-01T00-00-00.1", "exact", [0.0] * 10)
    write_evaluation(below, "2026-01-02T00-00-00.1", "exact", [1.0] * 8 + [0.0] * 2)
    write_evaluation(below, "2026-01-03T00-00-00.1", "ensemble", [1.0] * 6 + [0.0] * 4, w=0.5)
    write_evaluation(below, "2026-01-04T00-00-00.1", None, [1.0] * 10, stderr="N/A")
    return tmp_path / "out"


def test_scores_and_measures_are_those_of_the_newest_evaluation_of_each_setting(folder, capsys):
    assert report(folder) == Exit.DONE
    rows = pd.read_csv(folder / "evaluations.csv").set_index("setting")
    assert list(rows.index) == ["exact K=5", "ensemble w=0.5 K=5", "hf"]
    assert dict(rows["quality"]) == {"exact K=5": 0.8, "ensemble w=0.5 K=5": 0.6, "hf": 1.0}
    assert rows.at["exact K=5", "quality_high"] == pytest.approx(0.8 + 1.96 * 0.1)
    assert rows["quality_low"].isna().to_dict() == {"exact K=5": False, "ensemble w=0.5 K=5": False, "hf": True}
    assert rows["acceptance"].isna().to_dict() == {"exact K=5": False, "ensemble w=0.5 K=5": False, "hf": True}
    assert rows.at["ensemble w=0.5 K=5", "acceptance_low"] == 0.4
    assert rows.at["exact K=5", "seconds_low"] == 2.0
    unknown = rows.loc["exact K=5", ["seconds_high", "tokens_per_s", "tokens_per_s_low"]]
    assert unknown.isna().all(), "null, and missing as in files of earlier versions"
    assert "no speed-up and no recommendation can be worked out" in capsys.readouterr().out


def test_the_interval_of_a_share_ends_at_what_is_possible(tmp_path):
    """24 of 25 was 96.0 [88.2, 103.8]."""
    write_evaluation(tmp_path, "2026-01-01T00-00-00.1", "exact", [1.0] * 24 + [0.0], stderr=0.04)
    write_evaluation(tmp_path, "2026-01-02T00-00-00.1", "ensemble", [1.0] + [0.0] * 24, stderr=0.04, w=0.5)
    write_evaluation(tmp_path, "2026-01-03T00-00-00.1", "exact", [0.9, 1.0], stderr=0.04, metric="rouge,none")
    assert report(tmp_path) == Exit.DONE
    rows = pd.read_csv(tmp_path / "evaluations.csv").set_index(["metric", "setting"])
    limits = [tuple(rows.loc[key, ["quality_low", "quality_high"]]) for key in rows.index]
    half = 1.96 * 0.04
    share, other = limits[:2], limits[2]
    assert share == [pytest.approx((0.96 - half, 1)), pytest.approx((0, 0.04 + half))]
    assert other == pytest.approx((0.95 - half, 0.95 + half)), "a score that is not known to be a share"


def test_the_difference_from_lossless_is_paired_by_document(folder, capsys):
    report(folder)
    row = pd.read_csv(folder / "evaluations.csv").set_index("setting").loc["ensemble w=0.5 K=5"]
    assert row["difference"] == pytest.approx(-0.2)
    assert row["difference_low"] < -0.2 < row["difference_high"]
    assert "--log_samples" not in capsys.readouterr().out


def test_without_samples_the_difference_is_left_out_in_a_sentence(tmp_path, capsys):
    for date, verifier in (("2026-01-01T00-00-00.1", "exact"), ("2026-01-02T00-00-00.1", "ensemble")):
        write_evaluation(tmp_path, date, verifier, [1.0, 0.0], has_samples=False)
    assert report(tmp_path) == Exit.DONE
    assert pd.read_csv(tmp_path / "evaluations.csv")["difference"].isna().all()
    sentence = "need a lossless evaluation of the same documents, prompts and models, and --log_samples in both"
    assert sentence in capsys.readouterr().out


def labels_in(folder):
    tree = lxml.html.document_fromstring((folder / "report.html").read_text(encoding="utf-8"))
    return [row.text.strip() for row in tree.xpath("//tbody/tr/th")]


DTYPES = {f"{role}_dtype": "torch.float32" for role in ("target", "draft")}
SAME = {"checkpoints": {"target": "big@1"}, "numerics": DTYPES, "seed": 0, "drafter_options": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"document": {"system_instruction_sha": "ab12"}},
        {"document": {"fewshot_as_multiturn": False}},
        {"config": {"fewshot_seed": 5}},
        {"sample": {"prompt_hash": "another"}},
        {"sample": {"doc_hash": "another"}},
        {"checkpoints": {"target": "big@2"}},
        {"numerics": {**DTYPES, "target_dtype": "torch.bfloat16"}},
        {"numerics": {**DTYPES, "target_quantization": "int8"}},
        {},
    ],
)
def test_other_prompts_or_another_model_are_not_compared_with_lossless(tmp_path, change):
    """They were compared document by document, whatever the models had read."""
    same = {**SAME, "document": {"chat_template_sha": "cd34", "fewshot_as_multiturn": True}}
    same["config"], same["sample"] = {"fewshot_seed": 1234}, {"doc_hash": "a", "prompt_hash": "b"}
    other = {
        name: {**value, **change.get(name, {})} if isinstance(value, dict) else value for name, value in same.items()
    }
    write_evaluation(tmp_path, "2026-01-01T00-00-00.1", "exact", [1.0, 0.0], **same)
    write_evaluation(tmp_path, "2026-01-02T00-00-00.1", "ensemble", [1.0, 1.0], w=0.5, **other)
    assert report(tmp_path) == Exit.DONE
    rows = pd.read_csv(tmp_path / "evaluations.csv").set_index("setting")
    assert rows["difference"].isna().to_dict() == {"exact K=5": True, "ensemble w=0.5 K=5": change != {}}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"drafter_options": {"head": "ab12"}}, "drafter options head=ab12"),
        ({"seed": 7}, "seed 7"),
        ({"numerics": {"target_dtype": "torch.float16"}}, "numerics target_dtype=torch.float16"),
        ({"checkpoints": {"target": "big@2"}}, "checkpoints target=big@2"),
    ],
)
def test_evaluations_that_differ_in_what_decides_their_answers_are_all_there(tmp_path, change, name):
    """They were one setting, and the older one was left out."""
    write_evaluation(tmp_path, "2026-01-01T00-00-00.1", "exact", [0.0, 0.0], **SAME)
    write_evaluation(tmp_path, "2026-01-02T00-00-00.1", "exact", [1.0, 0.0], **{**SAME, **change})
    write_evaluation(tmp_path, "2026-01-03T00-00-00.1", "exact", [1.0, 1.0], **SAME)
    assert report(tmp_path) == Exit.DONE
    rows = pd.read_csv(tmp_path / "evaluations.csv")
    assert sorted(rows["quality"]) == [0.5, 1.0]
    assert sum(label.endswith(f", {name}") for label in labels_in(tmp_path)) == 1
    write_evaluation(tmp_path / "alone", "2026-01-01T00-00-00.1", "exact", [0.0, 0.0], **{**SAME, **change})
    report(tmp_path / "alone")
    assert labels_in(tmp_path / "alone") == ["exact K=5"]


def test_evaluations_without_a_draft_are_compared_beside_those_with_one(tmp_path):
    """Their draft became NaN, which is equal to nothing, and their name had 'draft nan'."""
    for number, (draft, verifier, score) in enumerate(
        [("small", "exact", 1.0), ("small", "ensemble", 0.0), (None, "exact", 1.0), (None, "ensemble", 0.0)]
    ):
        knobs = {"w": 0.5} if verifier == "ensemble" else {}
        write_evaluation(tmp_path, f"2026-01-0{number + 1}T00-00-00.1", verifier, [1.0, score], draft=draft, **knobs)
    assert report(tmp_path) == Exit.DONE
    rows = pd.read_csv(tmp_path / "evaluations.csv")
    assert rows["difference"].dropna().tolist() == [-0.5, -0.5]
    labels = ["exact K=5", "ensemble w=0.5 K=5"]
    assert labels_in(tmp_path) == [*(f"{label}, draft small" for label in labels), *labels]


def test_the_page_shows_the_table_and_runs_its_own_scripts_alone(folder):
    report(folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    tree = lxml.html.document_fromstring(page)
    (table,) = tree.xpath("//table")
    assert table.findtext("caption") == "gsm8k: exact_match,strict-match"
    assert [row.text.strip() for row in table.xpath(".//tbody/tr/th")] == ["exact K=5", "ensemble w=0.5 K=5", "hf"]
    assert "80.0" in page
    assert "python -m sdbench.report" in page
    assert report(folder, f"out={folder.parent / 'elsewhere'}") == Exit.DONE
    again = (folder.parent / "elsewhere" / "report.html").read_text(encoding="utf-8")
    assert again.replace(f" out={folder.parent / 'elsewhere'}", "") == page


def test_two_targets_are_named_and_each_is_compared_with_its_lossless_text(folder):
    """A setting of another target is another row, which page and table name; a draft that hf lacks is no difference."""
    other = folder / "other"
    write_evaluation(other, "2026-01-05T00-00-00.1", "exact", [1.0] * 10, target="other")
    write_evaluation(other, "2026-01-06T00-00-00.1", "ensemble", [1.0] * 9 + [0.0], target="other", w=0.5)
    assert report(folder) == Exit.DONE
    labels = ["exact K=5", "ensemble w=0.5 K=5", "hf"]
    labels = [*(f"{label}, target big" for label in labels), *(f"{label}, target other" for label in labels[:2])]
    tree = lxml.html.document_fromstring((folder / "report.html").read_text(encoding="utf-8"))
    assert [row.text.strip() for row in tree.xpath("//tbody/tr/th")] == labels
    assert all(f"| {label} |" in (folder / "evaluations.md").read_text() for label in labels)
    rows = pd.read_csv(folder / "evaluations.csv")
    assert rows["difference"].round(6).tolist()[1::3] == [-0.2, -0.1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["margin=1"], "margin needs the records of a run, which evaluations of lm_eval do not have: remove it"),
        (["OTHER"], "OTHER holds no evaluation of lm_eval, but another folder does: report them in two commands"),
    ],
)
def test_what_they_cannot_answer_is_one_sentence(folder, words, sentence, capsys):
    assert report(folder, *words) == Exit.BAD_CONFIG
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "KeyError: 'config'"),
        ("[]", "TypeError: "),
        ('{"config": "x", "n-samples": {}, "results": {}}', "ValueError: "),
        ('{"config": {}, "n-samples": {}, "results": {}}', "KeyError: 'model'"),
        ('{"config": {"model": "hf"}, "n-samples": {"gsm8k": {"effective": 1}}}', "KeyError: 'results'"),
    ],
)
def test_a_file_of_another_tool_is_one_sentence(text, reason, tmp_path, capsys):
    (tmp_path / "results_1.json").write_text(text)
    assert report(tmp_path) == Exit.BAD_CONFIG
    assert f"results_1.json is not a results file of lm_eval ({reason}" in capsys.readouterr().err


def test_the_newest_evaluation_counts_whatever_the_order_of_the_folders(tmp_path, capsys):
    """With the newer folder named first, the scores of the older one were shown."""
    new, old = str(tmp_path / "new"), str(tmp_path / "old")
    for folder, date, score in ((new, "2026-02-01T00-00-00.1", 1.0), (old, "2026-01-01T00-00-00.1", 0.0)):
        write_evaluation(Path(folder), date, "exact", [score, score])
    for folders in ([new, old], [old, new]):
        assert COMMAND([*folders, f"out={tmp_path / 'out'}"]) == Exit.DONE
        assert pd.read_csv(tmp_path / "out" / "evaluations.csv")["quality"].tolist() == [1.0]


@pytest.mark.parametrize("odd", [("exact",), ("ensemble",), ("exact", "ensemble")])
@pytest.mark.parametrize(
    ("scores", "quality"),
    [([1.0, -1.0, 0.5], 0.75), ([1.0, math.nan, 0.5], 0.75), ([1.0, math.inf, 0.5], math.inf)],
)
def test_a_score_that_is_not_the_mean_of_its_samples_or_not_finite_has_no_difference(tmp_path, scores, quality, odd):
    """RULER drops rows of other lengths, whose samples are -1: their means were compared. A NaN ended the report."""
    for number, verifier in enumerate(("exact", "ensemble")):
        values = {"scores": scores, "quality": quality} if verifier in odd else {"scores": [1.0, 0.0, 1.0]}
        write_evaluation(tmp_path, f"2026-01-0{number + 1}T00-00-00.1", verifier, **values)
    assert report(tmp_path) == Exit.DONE
    rows = pd.read_csv(tmp_path / "evaluations.csv").set_index("setting")
    assert rows["difference"].isna().all()
    assert {name for name in rows.index if rows.at[name, "quality"] == quality} == {f"{name} K=5" for name in odd}


@pytest.mark.parametrize(
    ("metric", "shown", "difference"),
    [
        ("exact_match,strict-match", "65.0", "−10.0"),
        ("acc,none", "65.0", "−10.0"),
        ("bits_per_byte,none", "0.650", "−0.100"),
    ],
)
def test_only_metrics_that_are_known_to_be_shares_are_shown_in_points(tmp_path, metric, shown, difference):
    """A loss in bits may lie between 0 and 1 too."""
    write_evaluation(tmp_path, "2026-01-01T00-00-00.1", "exact", [0.5, 1.0], metric=metric)
    write_evaluation(tmp_path, "2026-01-02T00-00-00.1", "ensemble", [0.3, 1.0], metric=metric)
    assert report(tmp_path) == Exit.DONE
    tree = lxml.html.parse(str(tmp_path / "report.html"))
    cells = [each.text_content().split() for each in tree.xpath("//tbody/tr[last()]/td")]
    assert [each[0] for each in cells[:2]] == [shown, difference]
    is_share = metric != "bits_per_byte,none"
    assert ("points" in tree.xpath("string(//thead)")) == is_share


def test_options_of_the_chat_template_name_and_pair_evaluations(tmp_path):
    """Of two that differ in them the older was left out."""
    for number, (verifier, thinks, score) in enumerate(
        [("exact", False, 0.0), ("exact", True, 1.0), ("ensemble", False, 1.0)]
    ):
        options, document = {"enable_thinking": thinks}, {"chat_template_sha": "cd34"}
        date = f"2026-01-0{number + 1}T00-00-00.1"
        write_evaluation(tmp_path / "chat", date, verifier, [1.0, score], chat_options=options, document=document)
        write_evaluation(tmp_path / "plain", date, verifier, [1.0, score], chat_options=options)
    assert report(tmp_path / "chat") == Exit.DONE
    rows = pd.read_csv(tmp_path / "chat" / "evaluations.csv").set_index(["setting", "chat_options"])
    assert sorted(rows.index) == [
        ("ensemble K=5", "enable_thinking=False"),
        ("exact K=5", "enable_thinking=False"),
        ("exact K=5", "enable_thinking=True"),
    ]
    assert rows["difference"].dropna().to_dict() == {("ensemble K=5", "enable_thinking=False"): 0.5}
    assert "exact K=5, chat options enable_thinking=True" in labels_in(tmp_path / "chat")
    assert report(tmp_path / "plain") == Exit.DONE
    assert labels_in(tmp_path / "plain") == ["exact K=5", "ensemble K=5"], "without a chat template they change nothing"


OF_TASK = {
    "metric_list": [{"metric": "exact_match", "aggregation": "def mean(x): ..."}],
    "filter_list": [{"name": "a"}],
}


@pytest.mark.parametrize(
    ("version", "change", "is_same"),
    [
        (4, {}, False),
        (3, {"metric_list": [{"metric": "exact_match", "aggregation": "def mean(x): return 1"}]}, False),
        (3, {"filter_list": [{"name": "b"}]}, False),
        (3, {"process_results": "def judge(doc, results): ..."}, False),
        (3, {"metadata": {"verifier": "exact"}, "description": "Another."}, True),
        (3, {}, True),
    ],
)
def test_a_task_that_scores_in_another_way_is_named_and_not_compared(tmp_path, version, change, is_same):
    """It was compared with the old one, and a newer evaluation took the place of the older."""
    for number, verifier in enumerate(("exact", "ensemble", "ensemble")):
        options = OF_TASK if number < 2 else OF_TASK | change
        document = {"versions": {"gsm8k": 3 if number < 2 else version}, "configs": {"gsm8k": options}}
        date, config = f"2026-01-0{number + 1}T00-00-00.1", {"model_args": {"verifier": "exact"}}
        write_evaluation(tmp_path, date, verifier, [1.0, 0.0], document=document, config=config)
    assert report(tmp_path) == Exit.DONE
    rows = pd.read_csv(tmp_path / "evaluations.csv")
    assert len(rows) == (2 if is_same else 3)
    assert rows["difference"].notna().sum() == 1
    assert {", task version " in label for label in labels_in(tmp_path)} == {not is_same}


@pytest.mark.parametrize("sides", [({}, {"max_seq_lengths": [8192]}), ({"a": 1}, {"a": 2})])
def test_evaluations_with_other_metadata_are_two_settings(tmp_path, sides):
    """RULER's rows of another length took the place of the first ones, with a score of -1."""
    for number, given in enumerate(sides):
        metadata = {"version": 1, "config_source": f"/at/{number}", "draft": "small", **given}
        document = {"configs": {"gsm8k": {"metadata": metadata}}}
        date, config = f"2026-01-0{number + 1}T00-00-00.1", {"model_args": "draft=small,w=1"}
        write_evaluation(tmp_path, date, "exact", [1.0, 0.0], document=document, config=config)
    assert report(tmp_path) == Exit.DONE
    first, second = labels_in(tmp_path)
    assert (f"metadata={json.dumps(sides[0])}" in first) == bool(sides[0])
    assert f"metadata={json.dumps(sides[1])}" in second


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        (
            [{"pretrained": "big", "dtype": "float32", "device": "cpu"}, {"pretrained": "big", "dtype": "bfloat16"}],
            ["hf, model options dtype=float32", "hf, model options dtype=bfloat16"],
        ),
        (
            ["peft=ada,pretrained=one", "peft=ada,pretrained=two"],
            [f"hf, model options peft=ada pretrained={name}" for name in ("one", "two")],
        ),
        ([{"pretrained": "big", "batch_size": 1}, {"pretrained": "big", "batch_size": 8}], ["hf"]),
        (["a=1,b=2,max_retries=3,token=sesame", "b=2,a=1,auth_token=sesame"], ["hf"]),
        (
            ["peft=ada,batch_size=1,base_url=http://ann:sesame@node/v1", "peft=ada,base_url=http://node/v2"],
            [f"hf, model options base_url=http://node/v{number} peft=ada" for number in (1, 2)],
        ),
    ],
)
def test_another_model_of_the_harness_is_named_by_its_options(tmp_path, given, labels):
    """The second evaluation took the place of the first."""
    for number, options in enumerate(given):
        write_evaluation(tmp_path, f"2026-01-0{number + 1}T00-00-00.1", None, [1.0], config={"model_args": options})
    assert report(tmp_path) == Exit.DONE
    assert labels_in(tmp_path) == labels
    assert "sesame" not in (tmp_path / "evaluations.csv").read_text()


def test_other_commits_of_a_model_of_the_harness_are_two_settings(tmp_path):
    for number in (1, 2):
        config = {"model_sha": f"c{number}", "peft_sha": ""}
        write_evaluation(tmp_path, f"2026-01-0{number}T00-00-00.1", None, [1.0], config=config)
    assert report(tmp_path) == Exit.DONE
    assert labels_in(tmp_path) == ["hf, model options model_sha=c1", "hf, model options model_sha=c2"]


def test_documents_that_samples_chose_and_no_file_names_are_never_taken_for_equal(tmp_path):
    for number in (1, 2):
        config, document = {"limit": None}, {"date": number}
        date = f"2026-01-0{number}T00-00-00.1"
        write_evaluation(tmp_path, date, "exact", [1.0], config=config, document=document, has_samples=False)
    assert report(tmp_path) == Exit.DONE
    assert [label[-2] for label in labels_in(tmp_path)] == ["1", "2"]


def test_an_evaluation_without_scores_has_none(tmp_path):
    """With --predict_only the harness writes 999 in place of each score."""
    write_evaluation(tmp_path, "2026-01-01T00-00-00.1", "exact", [1.0], metric="bypass,none", quality=999)
    assert report(tmp_path) == Exit.DONE
    (row,) = pd.read_csv(tmp_path / "evaluations.csv").to_dict("records")
    assert math.isnan(row["quality"])
    assert row["acceptance"] == 0.5
    assert "999" not in (tmp_path / "evaluations.md").read_text()


GENERATION = {"until": ["<|im_end|>"], "max_gen_toks": 256}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"generation_kwargs": {**GENERATION, "max_gen_toks": 1024}},
            'generation_kwargs={"max_gen_toks": 1024, "until": ["<|im_end|>"]}',
        ),
        ({"repeats": 4}, 'repeats=4 generation_kwargs={"max_gen_toks": 256, "until": ["<|im_end|>"]}'),
        ({}, None),
    ],
)
def test_a_task_with_other_generation_options_is_named_and_not_compared(tmp_path, change, words):
    """Only --gen_kwargs counted, so those in the file of a task did not."""
    for number, verifier in enumerate(("exact", "ensemble", "ensemble")):
        options = {"generation_kwargs": GENERATION, "repeats": 1} | (change if number == 2 else {})
        document = {"configs": {"gsm8k": options}}
        write_evaluation(tmp_path, f"2026-01-0{number + 1}T00-00-00.1", verifier, [1.0, 0.0], document=document)
    assert report(tmp_path) == Exit.DONE
    rows = pd.read_csv(tmp_path / "evaluations.csv")
    assert len(rows) == (2 if words is None else 3)
    assert rows["difference"].notna().sum() == 1
    assert sum(words is not None and label.endswith(words) for label in labels_in(tmp_path)) == len(rows) - 2
    lines = (tmp_path / "evaluations.md").read_text().splitlines()
    assert len({line.count("|") - line.count(r"\|") for line in lines}) == 1


def test_where_an_object_without_source_lies_is_no_version_of_its_task(tmp_path):
    for number, (folder, address, verifier) in enumerate(
        [("/home/a/tasks/", "0x7f01", "exact"), ("/home/b/", "0x7f02", "ensemble")]
    ):
        functions = f"<class '{folder}utils.Last'>", f"functools.partial(<function f at {address}>)"
        steps = [{"function": function} for function in functions]
        document = {"versions": {"gsm8k": 3}, "configs": {"gsm8k": {"filter_list": [{"filter": steps}]}}}
        write_evaluation(tmp_path, f"2026-01-0{number + 1}T00-00-00.1", verifier, [1.0, 0.0], document=document)
    assert report(tmp_path) == Exit.DONE
    assert pd.read_csv(tmp_path / "evaluations.csv")["task_version"].nunique() == 1


def test_evaluations_of_chosen_documents_do_not_replace_that_of_all(tmp_path):
    """An evaluation with --samples took the place of the one before it, and its difference was lost."""
    hashes = [{}, {"task_hashes": {"gsm8k": "ab12cd34ef"}}, {"task_hashes": {"gsm8k": "56789abcde"}}, {}]
    for number, (scores, document) in enumerate(zip([[1.0, 0.0], [1.0], [0.0], [0.0]], hashes, strict=True)):
        document["date"] = number
        date, config = f"2026-01-0{number + 1}T00-00-00.1", {"limit": None}
        write_evaluation(tmp_path, date, "exact", scores, config=config, document=document, original=2)
    assert report(tmp_path) == Exit.DONE
    named = dict(zip(labels_in(tmp_path), pd.read_csv(tmp_path / "evaluations.csv")["quality"], strict=True))
    options = "exact K=5, options limit=None shots=5 chat=None"
    assert named == {
        options: 0.5,
        f"{options} samples=1 (not logged, 3)": 0.0,
        f"{options} samples=1 56789abc": 0.0,
        f"{options} samples=1 ab12cd34": 1.0,
    }
