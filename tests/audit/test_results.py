"""The committed figures of the audit are what was promised; scripts/audit_*.py and bench_audit.py make them anew."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from scripts import audit_family_error
from scripts.audit_matrix import (
    DRAFTERS_RULES,
    OF_DRAFTERS,
    TRAINED_SAMPLES,
    WARPERS,
    combinations,
    command_line,
    drafters_of,
    kept_lines,
    main,
    missing_of,
    names,
    page,
    run,
    settings_of,
    valid_lines,
)
from scripts.audit_power import least_power
from scripts.drafter_variants import AUDITED, POLICIES
from tests.audit.faults import FAULTS, HONEST

RESULTS = Path(__file__).parents[2] / "results"


def tree(name: str):
    return json.loads((RESULTS / name).read_text())


@pytest.mark.results
@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_each_fault_is_caught_with_power_99(fault):
    """Decoded, or simulated where its law can be enumerated."""
    lines = [*tree("audit/power.json")["faults"], *tree("audit/family_error.json")["power"]]
    own = [line for line in lines if line["fault"] == fault]
    assert min(line["runs"] for line in own) >= 300
    assert max(least_power(line["caught"], line["runs"]) for line in own) >= 0.99


@pytest.mark.results
@pytest.mark.parametrize("fault", [fault.name for fault in [*FAULTS, *HONEST]])
def test_each_fault_was_audited_whole_at_three_seeds(fault):
    lines = [line for line in tree("audit/faults.json") if line["fault"] == fault]
    assert len(lines) == 3
    assert {line["verdict"] for line in lines} == {"sound" if fault.startswith("none") else "violated"}


IN_THE_MATRIX = {
    "model"
}  # other drafters, a quarter of an hour each with all rules, are audited with two rules on llama-tiny
RULES = set(names("verifier")) - {"sure"}  # which is for drafter=tiers alone


@pytest.mark.results
def test_the_matrix_is_whole_and_without_a_false_alarm():
    lines = [line for line in tree("audit/matrix.json")["lines"] if line["rule"] in RULES]
    combinations = {(line["drafter"], line["temperature"], line["warper"]) for line in lines}
    wanted = {(temperature, warper) for temperature in ("0.7", "1") for warper in WARPERS} | {("0", "")}
    assert combinations == {(drafter, *one) for drafter in IN_THE_MATRIX for one in wanted}
    assert {line["rule"] for line in lines} == RULES
    assert len(lines) == len(combinations) * len(RULES)
    assert {line["verdict"] for line in lines} == {"sound", "not applicable"}


@pytest.mark.results
def test_every_drafter_was_found_sound_on_a_trained_pair():
    lines = tree("audit/drafters-llama-tiny.json")["lines"]
    audited = {(line["drafter"], line["temperature"], line["warper"], line["rule"]) for line in lines}
    drafters = {line["drafter"] for line in lines}
    assert set(names("drafter")) <= drafters <= {*names("drafter"), *AUDITED}
    assert audited == {(name, *at, rule) for name in drafters for at in OF_DRAFTERS for rule in DRAFTERS_RULES}
    assert len(lines) == len(audited)
    assert {line["verdict"] for line in lines} == {"sound"}
    assert max(line["found_tv"] or 0 for line in lines) <= 0.05, "a larger TV than this would have been detected"


@pytest.mark.results
@pytest.mark.parametrize(
    ("name", "pair"),
    [("matrix", "the tiny random pair"), ("matrix-llama-tiny", "llama-tiny"), ("drafters-llama-tiny", "llama-tiny")],
)
def test_a_page_names_the_counts_of_its_power(name, pair):
    stored = tree(f"audit/{name}.json")
    text = page(stored["lines"], stored["seconds"], pair)
    assert (RESULTS / f"audit/{name}.md").read_text() == text
    assert f"between {'prefixes of two' if name == 'matrix' else 'first'} tokens would have been detected" in text


@pytest.mark.results
def test_the_matrix_takes_less_than_half_an_hour():
    matrix = tree("audit/matrix.json")
    assert matrix["seconds"] < 1800


def test_every_drafter_is_audited_by_itself_on_a_trained_pair():
    """At T = 0, at 1 and there with top-p, lossless and lenient in one batch, each with what it needs."""
    drafters = drafters_of("all", "llama-tiny")
    policies = [f"model ({name})" for name in POLICIES[1:]]
    assert set(drafters) >= {*names("drafter"), *policies, "model (int8)"}
    assert not {"healed", "distilled"} & set(drafters)
    batches = list(combinations("llama-tiny", DRAFTERS_RULES, drafters))
    samplings = [("0", ""), ("1", ""), ("1", "top_p=0.8")]
    assert batches == [(name, *sampling, DRAFTERS_RULES) for name in drafters for sampling in samplings]
    lines = {drafter: command_line(rules, drafter, T, warper, "llama-tiny") for drafter, T, warper, rules in batches}
    assert "top_p=0.8" in lines["block"]
    assert {"drafter=model", "drafter.length=value"} <= set(lines["model (value)"])
    assert {"drafter=model", "model.draft_quantization=int8"} <= set(lines["model (int8)"])
    assert all("verifier=[exact,ensemble]" in words and "model=llama-tiny" in words for words in lines.values())
    without_draft = {name for name, words in lines.items() if "model.draft=null" in words}
    assert without_draft >= {"lookup", "suffix", "early-exit", "pruned", "retrieval", "medusa", "mtp", "eagle"}
    assert not without_draft & {"model", "hybrid", "tiers"}
    foreign = {name for name, words in lines.items() if "model.draft=embedded:qwen-tiny/draft" in words}
    assert foreign == {"intersection", "universal"}
    assert [name for name, words in lines.items() if any(word.startswith("drafter.corpus=") for word in words)] == [
        "retrieval"
    ]
    with pytest.raises(ValueError, match="drafters= needs a trained pair: give model=NAME"):
        drafters_of("all", "")


def test_the_matrix_audits_the_draft_model_alone():
    samplings = [("0", ""), *((temperature, warper) for temperature in ("0.7", "1") for warper in WARPERS)]
    assert list(combinations("", ["exact"])) == [("model", *sampling, ["exact"]) for sampling in samplings]


def test_where_no_rule_is_able_each_has_its_reason():
    lines = run("model", "1", "", ["sure", "asd"], 0.08)
    assert [(line["drafter"], line["rule"], line["verdict"]) for line in lines] == [
        ("model", rule, "not applicable") for rule in ("sure", "asd")
    ]
    assert all(line["why"] for line in lines)
    assert "| `asd` | – |" in page(lines, 1.0)


@pytest.mark.slow
def test_lines_with_too_few_samples_are_audited_again_and_others_are_kept(tmp_path):
    """With missing=on and without drafters=; processes of a real call."""
    samplings = [batch[:3] for batch in combinations("", ["sure"])]
    line = {"verdict": "sound", "claims": 3, "found_tv": 0.07, "view": "prefixes of two tokens"}
    lines = [
        {"drafter": name, "temperature": T, "warper": warper, "rule": "sure", **line} for name, T, warper in samplings
    ]
    lines[0]["verdict"] = lines[1]["verdict"] = "too few"
    lines.append({**lines[0], "rule": "typical"})
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps({"lines": lines, "seconds": 5.0, "tv": 0.08}))
    assert main(["missing=on", "rules=sure", "workers=1", f"out={tmp_path}"]) == 0
    written = json.loads(path.read_text())["lines"]
    assert written[:-2] == [{"tv": 0.08, **line} for line in lines[2:]], (
        "those of this call that were sound, and the other rule's"
    )
    assert [(line["temperature"], line["verdict"]) for line in written[-2:]] == [
        ("0", "not applicable"),
        ("0.7", "not applicable"),
    ]


def test_only_what_is_missing_is_audited():
    lines = [{"drafter": "lookup", "temperature": "1", "warper": "", "rule": rule} for rule in ("exact", "typical")]
    batches = [("lookup", "1", warper, DRAFTERS_RULES) for warper in ("", "top_p=0.8")]
    assert list(missing_of(batches, lines)) == [
        ("lookup", "1", "", ["ensemble"]),
        ("lookup", "1", "top_p=0.8", [*DRAFTERS_RULES]),
    ]
    assert list(missing_of(batches[:1], [*lines, {**lines[0], "rule": "ensemble"}])) == []


def test_lines_of_another_tv_number_of_samples_or_version_are_audited_again():
    batches = [("lookup", "1", "", ["exact", "coin"]), ("lookup", "0", "", ["exact"])]
    settings = {rule: settings_of(rule, 0.1, 500, "llama-tiny") for rule in ("exact", "coin")}
    assert settings["exact"] == {"tv": 0.1, "samples": 500, "version": "1"}
    assert settings["coin"]["version"] == "1 of 1", "a coin and the rule within it"
    assert settings_of("diversed", 0.1, 500, "")["samples"] is None, "the random pair takes what its tv needs"

    def line(rule: str, temperature: str = "1", **changed: object) -> dict[str, Any]:
        at = {"drafter": "lookup", "temperature": temperature, "warper": "", "rule": rule, "verdict": "sound"}
        return {**at, **settings[rule], **changed}

    def left(*lines: dict[str, Any]) -> list[tuple[str, list[str]]]:
        held = valid_lines(lines, batches, 0.1, 500, "llama-tiny")
        return [(temperature, list(rules)) for _, temperature, _, rules in missing_of(batches, held)]

    assert left(line("exact"), line("coin"), line("exact", "0")) == []
    for changed in ({"tv": 0.08}, {"samples": 1000}, {"version": "0"}, {"verdict": "too few"}):
        assert left(line("exact", **changed), line("coin"), line("exact", "0")) == [("1", ["exact"])]
    assert left(line("exact"), line("coin", version="1 of 0"), line("exact", "0")) == [("1", ["coin"])]
    other = line("exact", "0.7", tv=0.2)
    assert valid_lines([other], batches, 0.1, 500, "llama-tiny") == [other], "of no combination of this call"
    older = [{**line(rule), "tv": 0.1} for rule in ("exact", "coin")]
    for stored in older:
        del stored["samples"], stored["version"]
    assert left(*older, line("exact", "0")) == [("1", ["exact", "coin"])]
    held = valid_lines(older, batches, 0.1, TRAINED_SAMPLES, "llama-tiny")
    assert held == older, "older files have the usual samples and name no version"


def test_lines_of_an_older_file_get_the_tv_of_its_header(tmp_path):
    """The file was given the tv of the last call for all of its lines."""
    line = {"drafter": "model", "temperature": "1", "warper": "", "verdict": "sound"}
    lines = [{**line, "rule": "exact"}, {**line, "rule": "typical", "tv": 0.05}]
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps({"lines": lines, "seconds": 5.0, "tv": 0.1}))
    assert [(held["rule"], held["tv"]) for held in kept_lines(path, [])[0]] == [("exact", 0.1), ("typical", 0.05)]


def test_missing_is_on_or_off(tmp_path, capsys):
    with pytest.raises(SystemExit) as ending:
        main(["missing=true", f"out={tmp_path}"])
    assert ending.value.code == 2
    assert "missing must be among on, off, got true" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_drafters_that_are_audited_again_keep_the_lines_of_others(tmp_path):
    def line(drafter: str, rule: str) -> dict[str, Any]:
        return {"drafter": drafter, "rule": rule, "temperature": "1", "warper": "", "verdict": "sound", "claims": 3}

    held = [line(drafter, rule) for drafter in ("lookup", "suffix", "tiers") for rule in DRAFTERS_RULES]
    path = tmp_path / "drafters.json"
    path.write_text(json.dumps({"lines": held, "seconds": 5.0}))
    assert kept_lines(path, DRAFTERS_RULES, ["lookup"]) == (held[2:], 5.0)
    assert sorted(kept_lines(path, ["exact"], ["lookup"])[0], key=held.index) == held[1:]
    assert kept_lines(path, DRAFTERS_RULES, ["lookup", "suffix", "tiers"]) == ([], 0)
    assert "| tiers, T=1 | sound | sound |" in page(held, 5.0), (
        "where there are more drafters than rules, each has a line"
    )


@pytest.mark.results
def test_false_alarms_are_rare():
    family = tree("audit/family_error.json")
    assert family["runs"] >= 1000
    assert family["false_alarms"] <= 0.01 * family["runs"]


@pytest.mark.results
def test_the_page_of_false_alarms_is_that_of_its_table_and_names_what_its_tests_read():
    """RoundAcceptanceTest, and LawTest with rounds, read how many drafts were kept."""
    page = audit_family_error.page(tree("audit/family_error.json"))
    assert (RESULTS / "audit/family_error.md").read_text() == page
    assert "emitted texts and of how many drafts each round kept" in page


@pytest.mark.results
@pytest.mark.parametrize(("what", "most"), [("audit", 20), ("testing", 1.2), ("help", 2)])
def test_the_default_audit_is_quick(what, most):
    assert median(tree("benchmarks/audit.json")["runs"][what]) <= most


def test_rules_that_are_audited_again_keep_the_lines_of_others():
    path = RESULTS / "audit/matrix-llama-tiny.json"
    stored = json.loads(path.read_text())
    lines, seconds = kept_lines(path, ["exact"])
    assert lines == [{"tv": stored["tv"], **line} for line in stored["lines"] if line["rule"] != "exact"]
    assert seconds == stored["seconds"]
    assert kept_lines(path, names("verifier")) == ([], 0)
    assert kept_lines(path.with_name("none.json"), ["exact"]) == ([], 0)
