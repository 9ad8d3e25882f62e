"""scripts/drafter_tables.py: how drafters are ranked, and tables and figure from a summary alone."""

from pathlib import Path

import pandas as pd
import pytest

from scripts import drafter_tables
from scripts.drafter_tables import COLUMNS, order_of, redraw, reversals
from scripts.drafter_variants import HEADINGS, POLICIES, VARIANTS, variants_of

DRAFTERS = Path(__file__).parents[2] / "results" / "drafters"


def run_of(values: dict[str, tuple[float, float, float]], width: float = 0.1) -> pd.DataFrame:
    """{drafter: tokens per round with lossless, ensemble, typical}"""
    rows = [
        {
            "task": "gsm8k-tiny",
            "temperature": 0.0,
            "drafter": drafter,
            "verifier": rule,
            "n": 20,
            "acceptance": 0.5,
            "quality": 0.9,
            **{f"tokens_per_round{end}": value + add for end, add in (("", 0), ("_low", -width), ("_high", width))},
        }
        for drafter, numbers in values.items()
        for rule, value in zip(drafter_tables.RULES, numbers, strict=True)
    ]
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


RUN = run_of({"model": (2.0, 4.0, 2.0), "lookup": (3.0, 3.0, 2.1), "new": (1.0, 1.0, 1.0)})


def test_drafters_are_ranked_rule_by_rule():
    assert order_of(RUN, "lossless", "tokens_per_round") == ["lookup", "model", "new"]
    assert order_of(RUN, "ensemble", "tokens_per_round") == ["model", "lookup", "new"]


def test_a_reversal_needs_intervals_apart_on_both_sides():
    assert reversals(RUN, "ensemble", "tokens_per_round") == ["model above lookup"]
    assert reversals(RUN, "typical", "tokens_per_round") == []
    wide = run_of({"model": (2.0, 4.0, 2.0), "lookup": (3.0, 3.0, 2.1)}, width=0.6)
    assert reversals(wide, "ensemble", "tokens_per_round") == []


def test_readme_and_figure_come_from_the_summary_alone(tmp_path):
    RUN.to_csv(tmp_path / "summary.csv", index=False)
    (tmp_path / "README.md").write_text(f"# Mine\n\nWords.\n\n{drafter_tables.MARKER}\nold")
    redraw(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Mine\n\nWords.\n")
    assert "old" not in text
    assert "model above lookup" in text
    assert text.count("| new |") == 4, "three rules, and the table of sources"
    assert (tmp_path / "ranks.svg").stat().st_size > 1000


def test_prices_and_speedups_that_were_timed_separately_join_the_table_of_their_run(tmp_path):
    other = RUN.assign(temperature=1.0)
    pd.concat([RUN, other]).to_csv(tmp_path / "summary.csv", index=False)
    speeds = RUN[["task", "temperature", "drafter", "verifier"]].assign(
        batch_size=1, num_timed=4, draft_ms=0.25, draft_price=0.125, speedup=1.5, speedup_low=1.4, speedup_high=1.6
    )
    later = speeds.assign(batch_size=8, speedup=0.5)
    pd.concat([speeds[speeds["drafter"] != "new"], later]).to_csv(tmp_path / "speeds.csv", index=False)
    redraw(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert drafter_tables.SPEEDS in text
    first, second = text.split("## gsm8k-tiny, T = ")[1:]
    lines = {tuple(cells[:2]): cells for line in first.splitlines() if len(cells := line.strip("| ").split(" | ")) > 3}
    head = lines["drafter", "rule"]
    price, speed = head.index("price of a draft"), head.index("speed-up")
    line = lines["model", "typical"]
    assert (line[price], line[speed]) == ("0.25 ms, 12% of a target call", "1.50 [1.40, 1.60]")
    assert (lines["new", "typical"][price], lines["new", "typical"][speed]) == ("–", "–")
    assert "speed-up" not in second
    assert pd.read_csv(tmp_path / "summary.csv")["speedup"].isna().all(), "it has what its own runs measured"


def test_a_run_that_was_timed_itself_keeps_its_speeds(tmp_path):
    timed = RUN.assign(speedup=2.0, speedup_low=1.9, speedup_high=2.1, draft_ms=1.0, draft_price=0.5, num_timed=3)
    timed.assign(batch_size=1, speedup=1.0).to_csv(tmp_path / "speeds.csv", index=False)
    table = timed.copy()
    assert not drafter_tables.add_speeds(table, tmp_path / "speeds.csv")
    assert not drafter_tables.add_speeds(table, tmp_path / "none.csv")
    assert table.equals(timed)


def test_length_policies_and_quantised_pairs_have_tables_of_their_own(tmp_path):
    """They draft up to eight tokens, or with the target itself: they take no part in the order of drafters."""
    more = run_of({"model (value)": (9.0, 9.0, 9.0), "itself (int8)": (8.0, 8.0, 8.0), "healed": (5.0, 5.0, 5.0)})
    pd.concat([RUN, more]).to_csv(tmp_path / "summary.csv", index=False)
    redraw(tmp_path)
    above, *sections = (tmp_path / "README.md").read_text().split("\n## ")
    assert "| gsm8k-tiny, T = 0 | healed > lookup > model > new |" in above
    assert "| model (value) | no figure | – |" in above
    assert "| itself (int8) | –" not in above
    titles = ["gsm8k-tiny, T = 0", *(f"{heading}: gsm8k-tiny, T = 0" for heading in HEADINGS.values())]
    assert [section.partition("\n")[0] for section in sections] == titles
    assert ["healed" in section for section in sections] == [True, False, False]
    assert ["model (value)" in section for section in sections] == [False, True, False]
    assert ["itself (int8)" in section for section in sections] == [False, False, True]


def test_a_variant_is_the_draft_model_with_more_words(tmp_path):
    lengths = variants_of(["lengths"])
    assert [variant.words for variant in lengths.values()] == [(f"drafter.length={name}",) for name in POLICIES]
    assert set(variants_of(["healed", "quantised"])) == {"healed", "itself (int8)", "itself (target in int8)"}
    assert VARIANTS["healed"].words_in(tmp_path) == [f"model.draft={tmp_path}/drafts/llama-tiny-gsm8k-tiny-pruned-3"]
    assert not set(VARIANTS) & set(drafter_tables.PARTS)


def test_a_drafter_measured_again_keeps_the_rows_of_others(tmp_path):
    RUN.to_csv(tmp_path / "summary.csv", index=False)
    table = drafter_tables.merge(tmp_path / "summary.csv", run_of({"new": (7.0, 8.0, 9.0), "block": (4.0, 4.0, 4.0)}))
    assert order_of(table, "lossless", "tokens_per_round") == ["new", "block", "lookup", "model"]
    assert len(table) == len(RUN) + len(drafter_tables.RULES)


def test_a_mistaken_word_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        drafter_tables.main(["task=gsm8k-tiny"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("drafter_tables: task is not an option")
    with pytest.raises(SystemExit) as caught:
        drafter_tables.main(["parts=length"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("drafter_tables: parts must be among shipped, foreign, int8, lengths,")
    with pytest.raises(SystemExit) as caught:
        drafter_tables.main(["timing=false", "tasks=none", f"out={tmp_path}"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("drafter_tables: timing must be among on, off, got false")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["drafters=block", "parts=trained"], "drafters= runs these drafters with the pair's own draft, and no parts"),
        (["drafters=block", "parts=shipped"], "drafters= runs these drafters with the pair's own draft, and no parts"),
        (["drafters=lookup,universal"], "drafters=universal takes a draft of another tokenizer: give parts=foreign"),
    ],
)
def test_drafters_that_would_not_be_measured_are_refused(words, reason, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        drafter_tables.main([*words, "tasks=none", f"records={tmp_path / 'records'}", f"out={tmp_path}"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"drafter_tables: {reason}")
    assert not (tmp_path / "records").exists(), "nothing was trained"


@pytest.mark.results
def test_every_length_policy_has_its_rows():
    summary = pd.read_csv(DRAFTERS / "summary.csv")
    for temperature in (0, 1):
        rows = summary[(summary["task"] == "gsm8k-tiny") & (summary["temperature"] == temperature)]
        rows = rows.set_index(["drafter", "verifier"])
        constant = rows.loc[("model (constant)", "lossless")]
        for policy in POLICIES[1:]:
            for rule in drafter_tables.RULES:
                assert rows.loc[(f"model ({policy})", rule), "n"] >= 100
        for policy in ("heuristic", "value"):
            row = rows.loc[(f"model ({policy})", "lossless")]
            assert row["drafted_per_round_high"] < constant["drafted_per_round_low"] / 1.5, "it drafts far less"
            assert row["tokens_per_round_low"] > 0.75 * constant["tokens_per_round_high"], "and emits nearly as much"


@pytest.mark.results
def test_healed_drafts_emit_more_per_round_than_unhealed_ones_of_the_same_layers():
    table = pd.read_csv(DRAFTERS / "healed.csv").set_index(["layers", "temperature", "verifier", "is_healed"])
    settings = {key[:3] for key in table.index}
    assert settings == {(layers, T, rule) for layers in (3, 6, 9) for T in (0, 1) for rule in ("lossless", "ensemble")}
    for setting in settings:
        healed, unhealed = table.loc[(*setting, True)], table.loc[(*setting, False)]
        assert healed["tokens_per_round_low"] > unhealed["tokens_per_round_high"], setting
