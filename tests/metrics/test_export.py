"""Other tools can read what is exported, and it says what the summary says."""

import json
from copy import copy

import pandas as pd
import pytest
import yaml
from huggingface_hub.repocard_data import model_index_to_eval_results

from sdbench.metrics import acceptance, export, quality
from sdbench.metrics.cells import metric_of, table_of
from sdbench.metrics.export import write_scores
from sdbench.metrics.markup import escape_latex
from sdbench.metrics.recommend import recommend
from sdbench.metrics.stats import ratio_interval
from sdbench.metrics.summary import summarise


@pytest.fixture(scope="module")
def summary(results):
    return summarise(results, resamples=500)


@pytest.fixture(scope="module")
def folder(results, summary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    assert {path.name for path in export.export(results, summary, folder)} == {path.name for path in folder.iterdir()}
    return folder


def test_csv_and_parquet_hold_the_same_rows(folder, summary):
    csv, parquet = pd.read_csv(folder / "summary.csv"), pd.read_parquet(folder / "summary.parquet")
    assert list(csv.columns) == list(parquet.columns) == list(summary.columns)
    pd.testing.assert_series_equal(csv["acceptance"], parquet["acceptance"])
    assert csv["w"].isna().sum() == summary["w"].isna().sum()


@pytest.mark.parametrize("kind", ["results", "translations"])
@pytest.mark.slow
def test_the_intervals_that_the_caption_names_can_be_worked_out_again_from_the_scores(kind, request, tmp_path):
    results = request.getfixturevalue(kind)
    cells, frame = table_of(results.cells), pd.read_parquet(export.write_scores(tmp_path / "scores.parquet", results))
    assert set(frame["cell"]) == set(results.generations["cell"])
    assert not frame.map(lambda value: isinstance(value, str) and value in set(results.generations["text"])).any().any()
    for key, part in results.generations.groupby("cell"):
        metric, own = metric_of(cells, key), frame[frame["cell"] == key]
        own = own.rename(columns={"score": metric.name, "stats": f"stats_{metric.name}"})
        old, new = (quality.quality(quality.rows_of(each, metric), metric, resamples=1000) for each in (part, own))
        assert (new.value, new.low, new.high) == pytest.approx((old.value, old.low, old.high), rel=1e-6, nan_ok=True)
        if cells.at[key, "num_draft"]:
            for name, columns in {
                "acceptance": ["accepted", "examined"],
                "tokens_per_round": ["tokens", "rounds"],
            }.items():
                sums = own.groupby("example")[columns].sum().to_numpy(float)
                bounds = (0, 1) if name == "acceptance" else None
                old, new = acceptance.rates(part)[name], ratio_interval(*sums.T, bounds=bounds)
                assert (new.value, new.low, new.high) == pytest.approx((old.value, old.low, old.high), rel=0.02)


def test_scores_of_a_cell_that_two_folders_hold_are_written_once(results):
    assert export.scores_of_texts(results, results).equals(export.scores_of_texts(results))


def test_markdown_has_a_line_for_each_cell_and_no_nan(folder, summary):
    text = (folder / "summary.md").read_text()
    lines = text.splitlines()
    assert len(lines) == len(summary) + 2
    assert len({line.count("|") for line in lines}) == 1
    assert "nan" not in text.lower().replace("ensemble", "")


def test_latex_is_booktabs_with_equal_columns(folder, summary):
    text = (folder / "summary.tex").read_text()
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == len(summary) + 1
    assert len({line.count("&") for line in rows}) == 1


def test_rows_of_several_drafters_tasks_and_options_can_be_told_apart(summary):
    """Each row is named by the columns before its numbers; what all rows share has no column."""
    others = [
        summary.assign(task="wmt-tiny", temperature=0.25),
        summary.assign(drafter="lookup").query("num_draft > 0"),
        summary.assign(knobs="mix=logit").query("verifier == 'ensemble'"),
    ]
    rows = pd.concat([summary, *others], ignore_index=True)
    rows["cell"] = rows.index.astype(str)
    lines = export.table(rows)
    head = list(lines.columns[: list(lines.columns).index("n")])
    assert head == ["task", "temperature", "drafter", "rule", "setting", "K"]
    assert not lines.duplicated(head).any()
    assert export.table(summary).columns[0] == "rule"
    assert export.to_latex(rows).splitlines()[0].endswith("{lllll" + "r" * (len(lines.columns) - 5) + "}")


def test_the_model_index_is_what_the_hub_reads(folder, summary):
    (model,) = yaml.safe_load((folder / "model-index.yaml").read_text())["model-index"]
    assert model["name"] == "llama-tiny"
    assert len(model["results"]) == summary["quality"].notna().sum()
    for entry in model["results"]:
        assert set(entry) == {"task", "dataset", "metrics"}
        assert {"type", "value"} <= set(entry["metrics"][0])


def test_the_hubs_own_reader_takes_the_model_index(folder, summary):
    index = yaml.safe_load((folder / "model-index.yaml").read_text())["model-index"]
    name, evaluated = model_index_to_eval_results(index)
    assert name == "llama-tiny"
    assert [result.metric_value for result in evaluated] == pytest.approx(summary["quality"].dropna().tolist())
    assert {(result.task_type, result.dataset_name, result.metric_type) for result in evaluated} == {
        ("text-generation", "gsm8k-tiny", "strict"),
    }
    assert len({result.metric_name for result in evaluated}) == len(evaluated)


def test_results_json_has_lm_evals_shape(folder, summary):
    document = json.loads((folder / "results.json").read_text())
    row = summary[(summary["verifier"] == "ensemble") & (summary["w"] == 0.5) & (summary["num_draft"] == 5)].iloc[0]
    entry = document["results"]["gsm8k-tiny@ensemble w=0.5 K=5 T=1"]
    assert entry["strict,none"] == pytest.approx(row["quality"])
    assert entry["flexible,none"] >= entry["strict,none"]
    assert document["n-samples"]["gsm8k-tiny@ensemble w=0.5 K=5 T=1"] == {"effective": 60}


def test_the_same_records_give_the_same_bytes(results, summary, folder, tmp_path):
    export.export(results, summary, tmp_path)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_the_decision_is_machine_readable(results, summary):
    advice = recommend(results, 45.0, resamples=500)
    data = json.loads(export.to_results_json(results, summary, export.metrics_of(results, resamples=200), advice))
    assert data["recommended"] == "gsm8k-tiny@ensemble w=0 K=5 T=1"
    assert data["margin"] == 45.0
    tests = [(test["num_draft"], test["setting"].split()[1]) for test in data["tests"]]
    assert tests == [(k, f"w={w:g}") for k in (3, 5) for w in (0.9, 0.7, 0.5, 0.3, 0.0)]
    assert all(test["is_passed"] for test in data["tests"])
    entry = data["results"][data["recommended"]]
    (decision,) = data["recommendations"]
    assert decision["decision"] == "ship"
    for end in ("", "_low", "_high"):
        assert entry[f"speedup_over_lossless{end}"] == pytest.approx(decision[f"speedup_over_lossless{end}"])


def test_every_refused_setting_has_the_number_of_examples_it_needs(results, summary):
    advice = recommend(results, 5.0, resamples=500)
    data = json.loads(export.to_results_json(results, summary, export.metrics_of(results, resamples=200), advice))
    refused = [test for test in data["tests"] if not test["is_passed"]]
    assert refused
    assert all(test["examples_needed"] for test in refused)
    assert all("examples_needed" not in test for test in data["tests"] if test["is_passed"])


def test_speed_over_lossless_is_against_the_best_draft_length(summary):
    lossless = summary[summary["verifier"].isin(["lossless", "block"])]
    best = lossless.loc[lossless["speedup"].idxmax()]
    assert best["speedup_over_lossless"] == pytest.approx(1)
    own = summary[summary["verifier"] == "ensemble"]
    assert own["speedup_over_lossless"].to_numpy() == pytest.approx((own["speedup"] / best["speedup"]).to_numpy())


def test_a_speed_that_was_not_timed_is_marked_as_modelled(summary):
    timed = ["speedup", "speedup_low", "speedup_high"]
    untimed = summary.assign(**{name: float("nan") for name in timed})
    lines = export.table(untimed)
    swept = lines[lines["rule"] == "ensemble"]
    assert swept["speed-up"].str.fullmatch(r"~\d\.\d{3}").all()


def test_scores_hold_the_counts_of_long_texts(results, tmp_path):
    long = copy(results)
    long.__dict__["generations"] = results.generations.assign(drafted=81_920)
    assert set(pd.read_parquet(write_scores(tmp_path / "scores.parquet", long))["drafted"]) == {81_920}


def test_latex_escapes_what_it_would_read_otherwise():
    assert escape_latex(r"~1.2 {a}_b^c \\ 5%") == (
        r"\textasciitilde{}1.2 \{a\}\_b\^{}c \textbackslash{}\textbackslash{} 5\%"
    )
