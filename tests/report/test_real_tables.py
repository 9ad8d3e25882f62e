"""scripts/real_tables.py: the parts of a run's records, each with its own examples, and tables from the committed files alone."""

import re
import shutil
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from scipy.stats import binomtest

import sdbench
from scripts import real_readme, real_tables
from scripts.real_parts import PAIR, TIMED, RealFolder, divide, own_draft
from scripts.real_readme import HEADINGS, latencies_of
from sdbench.metrics.stats import rates_interval
from sdbench.records import Store
from tests.records.synthetic import write_synthetic

COMMITTED = Path(__file__).parents[2] / "results/real"


def run_of(folder: Path, **options) -> Path:
    return write_synthetic(folder, models=(PAIR,), tasks=("humaneval",), timing_examples=0, **options)


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real") / "rules"
    return run_of(folder, ws=(0.5, 0.7), epsilons=(0.3,), num_drafts=(5, 3), temperature=0.0, n=60)


def prose() -> str:
    """The committed README, without its line breaks."""
    return " ".join((COMMITTED / "README.md").read_text().split())


def settings_of(path: Path) -> set[tuple[str, float, float]]:
    frame = pd.read_csv(path / "summary.csv").fillna({"w": -1})
    return {(row.verifier, row.w, row.num_draft) for row in frame.itertuples()}


def test_other_rules_and_lengths_of_a_folder_are_tables_of_their_own(rules, tmp_path, monkeypatch):
    decide = real_tables.decision
    monkeypatch.setattr(real_tables, "decision", lambda *given: {**decide(*given), "worst": -1.2046789})
    real_tables.main([str(rules), f"out={tmp_path}"])
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "humaneval",
        "humaneval-rules",
        "humaneval-lengths",
    }
    alone = {("target", -1, 0), ("draft", -1, 0)}
    strict = ("lossless", -1, 5)
    assert settings_of(tmp_path / "humaneval") == alone | {strict, ("ensemble", 0.5, 5), ("ensemble", 0.7, 5)}
    assert settings_of(tmp_path / "humaneval-rules") == alone | {strict, ("ensemble", 0.7, 5), ("typical", -1, 5)}
    lengths = {(rule, w, k) for rule, w in (("lossless", -1), ("ensemble", 0.5), ("ensemble", 0.7)) for k in (3, 5)}
    assert settings_of(tmp_path / "humaneval-lengths") == lengths
    assert not (tmp_path / "humaneval-rules/decisions.csv").exists()
    decisions = (tmp_path / "humaneval/decisions.csv").read_text()
    assert "-1.2046789" in decisions, "rounded once, where it is shown"
    text = (tmp_path / "README.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## T = 0",
        "## Other rules",
        "## Draft lengths",
    ]
    (row,) = (line for line in text.splitlines() if line.startswith("| humaneval | typical eps=0.3 |"))
    written = pd.read_csv(tmp_path / "humaneval-rules/summary.csv").set_index("verifier").loc["typical"]
    loss = [-100 * written[f"difference{end}"] for end in ("", "_high", "_low")]
    assert row.endswith("| {:.1f} [{:.1f}, {:.1f}] |".format(*(value + 0.0 for value in loss)))


@pytest.mark.slow
def test_drafters_are_compared_on_the_examples_that_all_have(tmp_path):
    run = run_of(tmp_path / "run", ws=(0.7,), drafters=("model", "lookup"), temperature=0.0, n=60)
    results = sdbench.read(run)
    lookup = results.generations["drafter"] == "lookup"
    few = sorted(results.generations["example"].unique())[:20]
    results.generations = results.generations[~lookup | results.generations["example"].isin(few)]
    parts = {place.name: part for place, part in divide(results)}
    assert set(parts) == {"humaneval", "humaneval-drafters"}
    assert parts["humaneval"].generations["example"].nunique() == 60
    of_drafters = parts["humaneval-drafters"].generations
    assert set(of_drafters["drafter"]) == {"model", "lookup"}
    assert set(of_drafters.groupby("cell")["example"].nunique()) == {20}
    real_tables.main([str(tmp_path / "run"), f"out={tmp_path / 'out'}"])
    assert (tmp_path / "out/ranks.svg").exists()
    assert not (tmp_path / "out/humaneval-drafters/drafters.csv").exists(), "these drafters note nothing"
    (order,) = (
        line for line in (tmp_path / "out/README.md").read_text().splitlines() if "| humaneval, T = 0 |" in line
    )
    assert {"model", "lookup"} == set(order.split("|")[2].strip().split(" > "))


@pytest.mark.slow
def test_drafters_of_another_run_join_a_part_with_add_and_replace_it_without(tmp_path):
    options = {"ws": (0.7,), "temperature": 0.0, "n": 30}
    first = run_of(tmp_path / "first", drafters=("model", "lookup"), **options)
    second = run_of(tmp_path / "second", drafters=("suffix",), **options)
    out, part = tmp_path / "out", tmp_path / "out/humaneval-drafters"
    real_tables.main([str(first), f"out={out}"])
    files = ("summary.csv", "metrics.csv", "scores.parquet")
    held = [real_tables.read_table(part / name) for name in files]
    real_tables.main([str(second), f"out={out}", "add=true"])
    for name, rows in zip(files, held, strict=True):
        pd.testing.assert_frame_equal(real_tables.read_table(part / name).iloc[: len(rows)], rows, check_dtype=False)
    assert set(pd.read_csv(part / "summary.csv")["drafter"]) == {"model", "lookup", "suffix"}
    real_tables.main([str(second), f"out={out}", "add=true"])
    assert not pd.read_csv(part / "summary.csv")["cell"].duplicated().any(), "a cell is not there twice"
    with pytest.raises(SystemExit):
        real_tables.main([str(first), f"out={out}", "add=true"])  # its sweep of w
    real_tables.main([str(second), f"out={out}"])
    assert set(pd.read_csv(part / "summary.csv")["drafter"]) == {"suffix"}


def test_seconds_and_notes_of_another_run_join_a_part_with_add(tmp_path):
    out, options = tmp_path / "out", {"ws": (0.7,), "temperature": 0.0}
    timed = {"models": (PAIR,), "tasks": ("humaneval",), "timing_examples": 3, "n": 4, **options}
    for folder, num_drafts in (("first", (2, 5)), ("second", (1, 5))):
        run = write_synthetic(tmp_path / folder / "pair-humaneval-packed", num_drafts=num_drafts, **timed)
        real_tables.main([str(run), f"out={out}", "add=true"])
    times = pd.read_csv(out / "humaneval-packed/times.csv")
    numbers = times.groupby(["verifier", "num_draft"])["example"].agg(["count", "nunique"])
    assert (numbers == 3).all(axis=None), "an example of a setting is not there twice"
    assert set(numbers.index) == {("target", 0), ("draft", 0), ("generate", 0)} | {
        (rule, k) for rule in ("lossless", "ensemble") for k in (1, 2, 5)
    }
    for name, tokens in (("universal", 40), ("intersection", 50), ("universal", 60)):
        run = run_of(tmp_path / f"{name}-{tokens}", drafters=(name, "lookup"), n=4, **options)
        with Store.open(run, config=sdbench.read(run).config) as store:
            store.add_drafter({"name": name, "shared_tokens": tokens, "target_tokens": 90})
        real_tables.main([str(run), f"out={out}", "add=true"])
    notes = pd.read_csv(out / "humaneval-drafters/drafters.csv").set_index("drafter")["shared_tokens"]
    assert notes.to_dict() == {"intersection": 50, "universal": 60}


def test_seconds_of_a_draft_length_are_those_of_the_newest_pass_that_timed_lossless_and_assisted_together(tmp_path):
    """A folder gets a pass for each machine and each call that timed more; seconds of different passes are not compared."""
    timed = [("old", "target", 0, 9.0), ("old", "assisted", 5, 3.0), ("old", "lossless", 5, 4.0)]
    timed += [("new", "assisted", 5, 1.0), ("new", "lossless", 5, 1.5), ("new", "typical", 5, 0.5)]
    timed += [("last", "target", 0, 8.0), ("last", "lossless", 5, 70.0), ("last", "lossless", 1, 60.0)]
    started = {"old": 0.0, "new": 100.0, "last": 200.0}
    rows = [
        {"pass_id": name, "cell": f"{rule}-{k}", "verifier": rule, "w": None, "num_draft": k, "example": f"{example}"}
        | {
            "tokens": 20,
            "first_tokens": 0,
            "prefill_s": 0.25,
            "decode_s": seconds + repeat / 4 - 0.25,
            "is_split": False,
        }
        | {"started_at": started[name] + repeat}
        for name, rule, k, seconds in timed
        for example, repeat in product(range(2), (-1, 1))
    ]
    times = real_tables.times_of(SimpleNamespace(timings=pd.DataFrame(rows).astype({"w": float})))  # type: ignore[arg-type]
    shown = times.groupby(["verifier", "num_draft"])["seconds"].agg(["mean", "count"]).to_dict("index")
    seconds = {
        ("target", 0): 8.0,
        ("assisted", 5): 1.0,
        ("lossless", 5): 1.5,
        ("typical", 5): 0.5,
        ("lossless", 1): 60.0,
    }
    assert shown == {setting: {"mean": mean, "count": 2} for setting, mean in seconds.items()}
    assert list(times.columns) == ["verifier", "w", "num_draft", "example", "tokens", "seconds"]


def test_what_the_jobs_of_a_run_noted_of_its_drafters_is_a_table(tmp_path):
    """Shared tokens are facts, counts are sums over jobs; `lookup` has neither, and other facts have no column."""
    run = run_of(tmp_path / "run", ws=(0.7,), drafters=("universal", "lookup"), temperature=0.0, n=10)
    shared = {"shared_tokens": 40, "target_tokens": 90}
    for blocks in (3, 4):
        with Store.open(run, config=sdbench.read(run).config) as store:
            store.add_drafter({"name": "universal", **shared})
            store.add_drafter({"name": "pruned", "dropped_layers": [1]})
            counts = {"blocks": blocks, "offered": 3 * blocks, "lost": 1, "text_s": 0.25, "rounds_at_0.4": 2}
            store.add_drafter({"name": "universal", "counts": counts})
            store.add_drafter({"name": "intersection", **shared})
    real_tables.main([str(run), f"out={tmp_path / 'out'}"])
    rows = pd.read_csv(tmp_path / "out/humaneval-drafters/drafters.csv").set_index("drafter")
    assert list(rows.columns) == ["shared_tokens", "target_tokens", "blocks", "offered", "lost", "text_s"]
    assert rows.loc["universal"].tolist() == [40, 90, 7, 21, 2, 0.5]
    assert rows.loc["intersection"].dropna().to_dict() == shared
    assert list(rows.index) == ["intersection", "universal"]


@pytest.mark.slow
def test_a_run_that_times_drafters_shows_their_prices(tmp_path):
    """Such a run has few short texts: it takes the place of no table of quality."""
    options = {"ws": (0.7,), "drafters": ("model", "lookup"), "temperature": 0.0, "n": 60}
    run = write_synthetic(tmp_path / "run", models=(PAIR,), tasks=("humaneval",), timing_examples=6, **options)
    assert "humaneval-drafters" not in {place.name for place, _ in divide(sdbench.read(run))}
    real_tables.main([str(run), f"out={tmp_path / 'out'}"])
    summary = pd.read_csv(tmp_path / "out/humaneval-prices/summary.csv").set_index(["verifier", "drafter"])
    row = summary.loc["lossless", "lookup"]
    assert 0 < row["draft_price"] < 1
    line = f"| {row['draft_price']:.1%} of a target call | {row['speedup']:.2f} ["
    text = (tmp_path / "out/README.md").read_text()
    assert line in text.partition("## Prices of drafters")[2]


@pytest.mark.parametrize("part", TIMED)
def test_records_called_after_a_timed_part_show_only_what_was_timed(part, tmp_path):
    words = {
        "models": (PAIR,),
        "tasks": ("humaneval",),
        "ws": (0.7,),
        "num_drafts": (5, 3),
        "temperature": 0.0,
        "n": 24,
    }
    run = write_synthetic(tmp_path / f"pair-humaneval-{part}", timing_examples=12, **words)
    out = tmp_path / "out"
    real_tables.main([str(run), f"out={out}"])
    assert [path.name for path in out.iterdir() if path.is_dir()] == [f"humaneval-{part}"]
    text = (out / "README.md").read_text().partition(f"## {HEADINGS[part]}")[2]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| humaneval")
    ]
    names = [row[1] for row in rows]
    assert names[:2] == ["target alone", "transformers' generate"]
    assert {"lossless K=3", "ensemble w=0.7 K=3", "lossless K=5", "ensemble w=0.7 K=5"} <= set(names)
    summary = pd.read_csv(out / f"humaneval-{part}/summary.csv").set_index(["verifier", "num_draft"])
    row = rows[names.index("lossless K=5")]
    assert row[2] == "12"
    assert row[4].startswith(f"{summary.loc[('lossless', 5), 'speedup']:.2f} [")
    assert row[-1] == "–", "it is what others are compared with"
    times = sdbench.read(run).timings.assign(answer_s=lambda frame: frame["prefill_s"] + frame["decode_s"])
    seconds = times[~times["is_split"].astype(bool)].groupby("cell")["answer_s"].sum()
    for k in (3, 5):
        strict, lenient = (seconds[summary.loc[(rule, k), "cell"]] for rule in ("lossless", "ensemble"))
        assert rows[names.index(f"ensemble w=0.7 K={k}")][-1].startswith(f"{strict / lenient:.2f} [")


def test_records_called_after_the_chat_form_are_a_form_of_their_task(tmp_path):
    run = run_of(tmp_path / "pair-humaneval-chat", ws=(0.5, 0.7), temperature=0.0, n=24)
    real_tables.main([str(run), f"out={tmp_path / 'out'}"])
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == ["humaneval-chat"]
    assert "| humaneval (chat) | 24 |" in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize(("part", "ws"), [("learned", (0.5, 0.7)), ("packed-rules", (0.7,))])
def test_records_called_after_a_part_are_one_table(part, ws, tmp_path):
    """…-learned has all settings, …-packed-rules those of other rules and one ensemble."""
    run = run_of(tmp_path / f"pair-humaneval-{part}", ws=(0.5, 0.7), epsilons=(0.3,), temperature=0.0, n=24)
    real_tables.main([str(run), f"out={tmp_path / 'out'}"])
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == [f"humaneval-{part}"]
    alone = {("target", -1, 0), ("draft", -1, 0)}
    drafting = {("lossless", -1, 5), *(("ensemble", w, 5) for w in ws), ("typical", -1, 5)}
    assert settings_of(tmp_path / f"out/humaneval-{part}") == alone | drafting
    assert f"## {HEADINGS[part]}" in (tmp_path / "out/README.md").read_text()


@pytest.mark.results
def test_the_time_of_a_setting_to_ship_is_that_of_the_latency_part(tmp_path):
    folder = tmp_path / "wmt"
    assert latencies_of(folder) == {}
    shutil.copytree(COMMITTED / "wmt-latency", tmp_path / "wmt-latency")
    known = latencies_of(folder)
    for row in pd.read_csv(COMMITTED / "wmt-latency/summary.csv").query("verifier == 'ensemble'").to_dict("records"):
        assert known[f"ensemble w={row['w']:g} K={row['num_draft']}"].startswith(f"{row['sooner']:.2f} [")
    (cells,) = (line for line in (COMMITTED / "README.md").read_text().splitlines() if line.startswith("| wmt | 300 |"))
    for w in (0.5, 0.7):  # the sweep timed w = 0.5, too, in another pass
        assert f"{known[f'ensemble w={w} K=5']} × per answer" in cells


def test_a_draft_made_of_the_target_stands_among_the_drafters_only(tmp_path):
    """A target in int8, or some of its layers, healed: the folder shows drafters, and says what "model" was."""
    run = run_of(tmp_path / "run", ws=(0.7,), drafters=("model", "lookup"), temperature=0.0, n=60)
    for name, draft, card, label in (
        ("int8", "a/b", {}, "itself (int8)"),
        ("healed", "a/healed", {"distilled": {"loss": "forward_kl", "keep_layers": 6}}, "healed (6 layers)"),
        ("distilled", "a/distilled", {"distilled": {"loss": "tv"}}, None),
    ):
        results = sdbench.read(run)
        results.cells["content"] = [(content or {}) | card for content in results.cells["content"]]
        results.config["model"] = {"target": "a/b", "draft": draft, "draft_quantization": "int8"}
        assert own_draft(results) == label
        parts = list(divide(results))
        if label is None:
            assert [place.name for place, _ in parts] == ["humaneval", "humaneval-drafters"]
            continue
        ((place, part),) = parts
        real_tables.write_part(place, part, tmp_path / name / place.name)
        drafters = pd.read_csv(tmp_path / name / place.name / "summary.csv")["drafter"]
        assert set(drafters) == {label, "lookup"}


def test_a_sampled_run_is_a_table_of_its_own(tmp_path):
    run = run_of(tmp_path / "run", ws=(0.7,), n=60)
    real_tables.main([str(run), f"out={tmp_path / 'out'}"])
    text = (tmp_path / "out/README.md").read_text()
    assert "## T = 1\n" in text
    assert "## T = 0\n" not in text
    assert "| humaneval, T = 1 | 60 |" in text


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("wmt-T1", "wmt, T = 1"),
        ("humaneval-evalplus", "humaneval (evalplus)"),
        ("gsm8k-plan-rules", "gsm8k (plan)"),
        ("xsum-chat", "xsum (chat)"),
        ("wmt-T1-learned", "wmt, T = 1"),
        ("smollm2-135m-humaneval-drafters", "smollm2-135m, humaneval"),
        ("gsm8k-lengths", "gsm8k"),
    ],
)
def test_a_folder_is_read_from_its_name(name, title):
    assert RealFolder.of(name).title == title


def test_a_folder_of_no_task_is_a_fault():
    with pytest.raises(ValueError, match="notes is not"):
        RealFolder.of("notes")


def weights_of(model: str, drafter: str) -> str:
    """What the column of a table without packed weights says."""
    file = "Q4_1 dequantised" if model.startswith("smollm2") else "Q4_K_M dequantised"
    other = "plain" if drafter.startswith("healed") else f"{file}, int8" if drafter.startswith("itself") else file
    other = "Q4_1 dequantised" if drafter in ("universal", "intersection") else other
    return file if other == file else f"{file} and {other}"


@pytest.mark.results
def test_every_table_says_how_the_weights_were_stored():
    for path in COMMITTED.glob("*/summary.csv"):
        table = pd.read_csv(path)
        assert list(table)[list(table).index("dtype") + 1] == "weights", path
        expected = [weights_of(*row) for row in zip(table["model"], table["drafter"].fillna(""), strict=True)]
        is_unpacked = ~table["weights"].str.endswith(", repacked")
        assert table["weights"].str.removesuffix(", repacked").tolist() == expected, path
        of_transformers = table["verifier"].isin(["generate", "assisted"])
        is_packed = ("packed", "packed-rules", "float32") if path.parent.name != "wmt-T1-learned" else ("learned",)
        assert (is_unpacked == (of_transformers | (RealFolder.of(path.parent.name).part not in is_packed))).all(), path


@pytest.mark.results
def test_no_lenient_setting_is_recommended_as_the_readme_says():
    sentence = "sdbench recommends no lenient setting for this pair on any task, at a margin of 5 or of 2 points"
    assert sentence in (COMMITTED.parents[1] / "README.md").read_text()
    decisions = pd.concat(map(pd.read_csv, COMMITTED.glob("*/decisions.csv")))
    assert set(decisions["margin"]) == {2, 5}
    assert set(decisions["kind"]) == {"stay", "none"}


@pytest.mark.results
def test_what_a_foreign_draft_shares_and_loses_is_what_the_documentation_says():
    rows = pd.read_csv(COMMITTED / "qwen-coder-smollm2-humaneval-drafters/drafters.csv").set_index("drafter")
    row, text = rows.loc["universal"], (COMMITTED.parents[1] / "docs/drafters.md").read_text()
    assert (rows["shared_tokens"] == row["shared_tokens"]).all()
    assert f"{row['shared_tokens']:,.0f} of {row['target_tokens']:,.0f} tokens are shared" in text
    lost = row["lost"] / (row["offered"] + row["lost"])
    assert (
        f"{row['offered']:,.0f} tokens were offered and {row['lost']:,.0f} lost ({lost:.0%})".replace("%", " %") in text
    )
    assert f"{1e3 * row['text_s'] / row['blocks']:.1f} ms a block".lstrip("0") in text


@pytest.mark.results
def test_other_draft_lengths_on_word_problems_are_what_the_documentation_says():
    table = pd.read_csv(COMMITTED / "gsm8k-lengths/summary.csv").set_index(["verifier", "num_draft"])
    assert table.loc["lossless", "tokens_per_round"].round(1).tolist() == [3.4, 5.8]
    assert table.loc["ensemble", "tokens_per_round"].round(1).tolist() == [3.5, 6.3]
    assert table.loc["ensemble", "w"].tolist() == [0.7, 0.7]
    losses = [(-100 * table.loc["ensemble", f"difference{end}"]).round(1).tolist() for end in ("", "_high", "_low")]
    assert losses == [[3.0, 3.0], [-5.0, -6.3], [11.3, 12.5]]
    assert (100 * table.loc["lossless", "quality"]).round().tolist() == [42, 41]


@pytest.mark.results
def test_what_rounding_alone_moves_on_word_problems_is_what_the_readme_says():
    (texts,) = pd.read_csv(COMMITTED / "gsm8k-rules/equal_texts.csv").to_dict("records")
    table = pd.read_csv(COMMITTED / "gsm8k-rules/summary.csv").set_index("verifier")
    (over_w,) = pd.read_csv(COMMITTED / "gsm8k/equal_texts.csv")["num_equal"]
    margin, explained = (f"{texts[name]:g}".lstrip("0") for name in ("margin", "explained"))
    lossless, target = (round(100 * table.loc[name, "quality"]) for name in ("lossless", "target"))
    gain, low, high = (
        f"{100 * table.loc['lossless', f'difference_from_target{end}']:.1f}" for end in ("", "_low", "_high")
    )
    assert f"{texts['num_equal']} of {texts['num']} lossless texts equal the target's own" in prose()
    assert f"where it was {over_w} in the run over w" in prose()
    assert f"at most {margin} apart where texts part, a single step of bfloat16" in prose()
    assert (
        f"rounding explains {explained}. The lossless texts solve {lossless} problems, the target alone {target}"
        in prose()
    )
    assert f"+{gain} points [{low}, {high}]; all four problems that differ go one way" in prose()
    scores = pd.read_parquet(COMMITTED / "gsm8k-rules/scores.parquet").pivot(
        index="example", columns="cell", values="score"
    )
    changes = scores[table.loc["lossless", "cell"]] - scores[table.loc["target", "cell"]]
    assert changes[changes != 0].tolist() == [1.0] * 4
    exact = f"{binomtest(4, 4).pvalue:.3f}".lstrip("0")
    assert f"an exact test gives p = {exact}, so this may be chance" in prose()


@pytest.mark.results
def test_losses_of_other_rules_on_programs_are_not_significant_and_none_excludes_five_points():
    table = pd.read_csv(COMMITTED / "humaneval-rules/summary.csv").set_index("verifier")
    rules = table.loc[["typical", "bild", "lenience", "mars"]]
    assert (rules["n"] == 164).all()
    losses = (-100 * rules["difference"]).round(1)
    assert f"losses of {losses.min()} to {losses.max()} points are not statistically significant" in prose()
    assert (rules["difference_high"] > 0).all()
    assert (-100 * rules["difference_low"] > 5).all()


@pytest.mark.results
@pytest.mark.parametrize(
    ("real", "toy"),
    [("humaneval-rules", "gemma-tiny-humaneval-tiny-T0"), ("gsm8k-rules", "llama-tiny-gsm8k-tiny-T0")],
)
def test_other_rules_have_their_most_lenient_setting_within_five_points_on_the_toy_pair(real, toy):
    zoo = pd.read_csv(COMMITTED.parent / "zoo" / toy / "summary.csv")
    within = zoo[zoo["difference_low"] > -0.05].set_index(["verifier", "value"])["tokens_per_round"]
    most, chosen = within.groupby("verifier").max(), pd.read_csv(COMMITTED / real / "summary.csv")
    for row in chosen[chosen["verifier"].isin(["typical", "mars", "lenience", "bild"])].itertuples():
        assert within.loc[row.verifier, row.value] == most[row.verifier]
    if real == "humaneval-rules":
        assert most.idxmax() == "cascade-v2"
        assert len({f"{most[rule]:.2f}" for rule in ("cascade-v2", "bild", "typical", "lenience")}) == 1
        assert f"first on programs, with {most.max():.2f} tokens a round, to two digits as many as bild" in prose()
    assert f"{most['coin']:.2f}" == f"{most['bild']:.2f}"
    assert f"{most['coin']:.2f}" in "5.53 and 4.92"


@pytest.mark.results
def test_two_more_rules_with_packed_weights_do_what_the_readme_says():
    tables = [pd.read_csv(COMMITTED / f"{task}-packed-rules/summary.csv") for task in ("humaneval", "gsm8k")]
    programs, problems = (table.set_index("verifier").loc[["cascade-v2", "coin"]] for table in tables)
    assert [table["value"].tolist() for table in (programs, problems)] == [[0.75, 0.05]] * 2
    assert [set(table["n"]) for table in (programs, problems)] == [{164}, {100}]
    rounds = [[f"{value:.2f}" for value in table["tokens_per_round"]] for table in (programs, problems)]
    losses = -100 * programs[["difference", "difference_high", "difference_low"]]
    shown = [
        "{:.1f} [{:.1f}, {:.1f}]".format(*(loss.round(1) + 0.0)).replace("-", "−") for _, loss in losses.iterrows()
    ]
    losses = -100 * problems[["difference", "difference_high", "difference_low"]]
    whole = [
        "{:.0f}{} [{:.0f}, {:.0f}]".format(loss.iloc[0], unit, *loss.iloc[1:])
        for (_, loss), unit in zip(losses.iterrows(), (" points", ""), strict=True)
    ]
    assert (
        f"they emit {rounds[0][0]} and {rounds[0][1]} tokens a round on HumanEval and score as lossless decoding does"
        in prose()
    )
    assert f"{shown[0].replace(' [', ' points [')} and {shown[1]}; on GSM8K" in prose()
    assert f"on GSM8K they emit {' and '.join(rounds[1])} and lose {' and '.join(whole)}" in prose()
    zoo = {
        toy: pd.read_csv(COMMITTED.parent / "zoo" / toy / "summary.csv")
        for toy in ("gemma-tiny-humaneval-tiny-T0", "llama-tiny-gsm8k-tiny-T0", "llama-tiny-gsm8k-tiny-T1")
    }
    is_within = {
        (toy, rule): bool(
            (table[(table["verifier"] == rule) & (table["value"] == value)]["difference_low"] > -0.05).all()
        )
        for toy, table in zoo.items()
        for rule, value in (("cascade-v2", 0.75), ("coin", 0.05))
    }
    assert [pair for pair, within in is_within.items() if not within] == [("llama-tiny-gsm8k-tiny-T0", "cascade-v2")]
    (texts,) = pd.read_csv(COMMITTED / "gsm8k-packed-rules/equal_texts.csv").to_dict("records")
    assert (texts["num_equal"], texts["num"], texts["num_measured"], texts["num_beyond"]) == (98, 100, 2, 0)
    assert (
        "98 of 100 lossless texts equal the target's, the other two are near-ties, and both solve 37 problems"
        in prose()
    )
    solved = tables[1].set_index("verifier")["quality"]
    assert solved["lossless"] == solved["target"] == 0.37


@pytest.mark.results
@pytest.mark.parametrize(("folder", "points"), [("humaneval-T1", 100), ("wmt-T1", 1)])
def test_sampled_settings_lose_what_the_readmes_say(folder, points):
    table = pd.read_csv(COMMITTED / folder / "summary.csv")
    table.index = table["w"].where(table["verifier"] == "ensemble", table["verifier"])  # 0.9, or "draft"
    losses = -points * table[["difference", "difference_high", "difference_low"]]
    unit = "points of pass@1" if points == 100 else "points of BLEU"
    loss, low, high = losses.loc[0.9]
    for page in (COMMITTED / "README.md", COMMITTED.parents[1] / "README.md"):
        assert f"{loss:.1f} {unit} " in (text := " ".join(page.read_text().split()))
        assert f"[{low:.1f}, {high:.1f}]" in text
    for setting in (0.7, 0.5, "draft"):
        loss, low, high = losses.loc[setting]
        assert f"{loss:.1f} [{low:.1f}, {high:.1f}]" in prose()
    rounds = [f"{table.loc[name, 'tokens_per_round']:.2f}" for name in (0.9, 0.7, 0.5, "lossless")]
    assert re.search(
        "{}, {} and {} tokens a round (?:where .{{0,40}} )?(?:instead of|emits) {}".format(*rounds), prose()
    )


@pytest.mark.results
def test_the_knees_on_programs_are_where_the_readme_says():
    losses = {}
    for task in ("humaneval", "mbpp"):
        table = pd.read_csv(COMMITTED / task / "summary.csv").query("verifier == 'ensemble' and num_draft == 5")
        losses[task] = -100 * table.set_index("w")[["difference", "difference_high", "difference_low"]]
    assert (losses["humaneval"]["difference_high"] < 0).all(), "no loss is shown at any w"
    loss, low, high = (f"{x:.1f}".replace("-", "−") for x in losses["humaneval"].loc[0])
    assert f"not even at w = 0, which scores {loss} points less [{low}, {high}]" in prose()
    mbpp = losses["mbpp"]["difference_high"]
    assert mbpp[0.3] > 0 > mbpp[0.5]
    assert "On MBPP w = 0.3 loses 10.0 points [4.5, 15.8]: the knee is between 0.5 and 0.3" in prose()


@pytest.mark.results
def test_the_other_rules_and_those_that_were_not_run_emit_on_the_toy_pair_at_t_1_what_the_readme_says():
    zoo = pd.read_csv(COMMITTED.parent / "zoo/llama-tiny-gsm8k-tiny-T1/summary.csv")
    most = zoo[zoo["difference_low"] > -0.05].groupby("verifier")["tokens_per_round"].max().map("{:.2f}".format)
    assert "at T = 1 they emit {typical}, {mars} and {lenience} tokens a round".format(**most) in prose()
    assert (
        "and `bild` {bild} as well. So do `cascade-v2` ({0}) and `coin` ({coin}).".format(most["cascade-v2"], **most)
        in prose()
    )
    assert "`typical`, `mars` and `lenience` keep" in (COMMITTED.parent / "zoo/README.md").read_text()


@pytest.mark.results
def test_without_packing_too_answers_of_lossless_decoding_come_sooner_than_those_of_assisted_generation():
    names = ["humaneval-assisted", "gsm8k-assisted", "wmt-latency"]
    folders = [COMMITTED / name for name in names]
    sentence = real_readme.pooled_over_assisted(folders)
    assert sentence in (COMMITTED / "README.md").read_text()
    ratio, low, high = map(float, re.findall(r"\d\.\d{3}", sentence))
    assert ratio >= 1.05
    assert low > 1
    without = re.findall(r"\d\.\d{3}", real_readme.pooled_over_assisted([folders[0], folders[2]]))
    for text in (prose(), (COMMITTED.parent / "README.md").read_text()):
        assert f"{ratio:.3f} [{low:.3f}, {high:.3f}] times as" in text
        assert "{} [{}, {}]".format(*without) in text
    times = [pd.read_csv(folder / "times.csv") for folder in folders]
    seconds = sum(
        table[table["num_draft"] == k].groupby("verifier")["seconds"].sum()
        for table, k in zip(times, (5, 5, 1), strict=True)
    )
    lossless, assisted = seconds["lossless"], seconds["assisted"]
    assert f"{lossless:.1f} seconds losslessly and {assisted:.1f} with assisted generation" in prose()
    tokens = [table.groupby("verifier")["tokens"].mean().round() for table in times]
    assert [(x["target"], x["assisted"]) for x in tokens] == [(50, 50), (184, 180), (17, 17)]
    row = pd.read_csv(folders[1] / "summary.csv").set_index("verifier").loc["assisted"]
    sooner = (1 / row[f"sooner{end}"] for end in ("", "_high", "_low"))
    assert row["num_timed"] == 10
    assert "Lossless answers come {:.2f} [{:.2f}, {:.2f}] times as soon".format(*sooner) in prose()


@pytest.mark.results
def test_relaxing_the_plan_alone_gains_and_loses_what_the_readme_says():
    table = pd.read_csv(COMMITTED / "gsm8k-plan-rules/summary.csv").set_index("verifier")
    assert (table["n"] == 50).all()
    lossless, within, everywhere = table.loc[["lossless", "within", "topk-relaxed"], "tokens_per_round"]
    assert 0.6 < (within - lossless) / (everywhere - lossless) < 0.7
    losses = {
        rule: [f"{-100 * table.loc[rule, f'difference{end}']:.1f}".replace("-", "−") for end in ("", "_high", "_low")]
        for rule in ("topk-relaxed", "within")
    }
    (a, b, c), (d, e, f) = losses.values()
    assert f"at {lossless:.2f} tokens a round" in prose()
    assert f"emits {everywhere:.2f} and loses {a} points [{b}, {c}]" in prose()
    assert f"{within:.2f} for {d} [{e}, {f}]" in prose()


@pytest.mark.results
def test_what_w_costs_with_a_pruned_target_stands_beside_what_it_costs_with_copies():
    table = pd.read_csv(COMMITTED / "humaneval-drafters/summary.csv").set_index(["verifier", "drafter"])
    lossless, lenient = table.loc[("lossless", "pruned")], table.loc[("ensemble", "pruned")]
    assert lenient["tokens_per_round"] - lossless["tokens_per_round"] < 0.02
    loss = "{:.1f} points [{:.1f}, {:.1f}]".format(
        *(-100 * lenient[f"difference{end}"] for end in ("", "_high", "_low"))
    )
    assert f"pruned emits {lenient['tokens_per_round']:.2f} (the intervals overlap), no more than losslessly" in prose()
    assert f"and loses {loss}" in prose()
    assert (
        f"a pruned target gains nothing and loses {loss.replace(' points', '')}"
        in (COMMITTED.parent / "README.md").read_text()
    )


@pytest.mark.results
@pytest.mark.parametrize("folder", ["humaneval-assisted", "humaneval-packed"])
def test_the_guide_compares_with_assisted_generation_as_the_times_do(folder):
    times = pd.read_csv(COMMITTED / folder / "times.csv").query("num_draft == 5 and verifier != 'ensemble'")
    seconds = times.pivot_table(index="example", columns="verifier", values="seconds")
    ratio = rates_interval(seconds[["assisted", "lossless"]].to_numpy(), (1, -1))
    value, low, high = (f"{number:.2f}".removeprefix("0") for number in (ratio.value, ratio.low, ratio.high))
    assert f"{value} [{low}, {high}] times as fast" in (COMMITTED.parents[1] / "docs/guide.md").read_text()


@pytest.mark.results
def test_the_first_tokens_of_translation_come_when_the_readme_says():
    table = pd.read_csv(COMMITTED / "wmt-latency/summary.csv").query("num_draft < 2").set_index("verifier")
    medians = table.loc[["lossless", "assisted", "generate"], "first_token_s"]
    shown = (f"{seconds:.2f}".lstrip("0") for seconds in medians)
    words = "after {} seconds, with assisted generation after {} and with `generate` after {} (medians)"
    assert words.format(*shown) in prose()


@pytest.mark.results
def test_speeds_of_translation_in_the_list_of_results_are_those_of_the_latency_pass():
    table = pd.read_csv(COMMITTED / "wmt-latency/summary.csv").set_index("num_draft")
    lossless, weights = table[table["verifier"] == "lossless"], table[table["w"] == 0.5]
    text = (COMMITTED.parent / "README.md").read_text().partition("On translation only with one or two")[2]
    row = text.partition("|")[0].replace("w = 0.5 ", "")
    for num_draft in (1, 2, 5):
        lenient = [weights.loc[num_draft, f"speedup{end}"] for end in ("", "_low", "_high")]
        numbers = [f"{speed:.2f}".removeprefix("0") for speed in (lossless.loc[num_draft, "speedup"], *lenient)]
        assert "{} and {} [{}, {}]".format(*numbers) in row
    guide = " ".join((COMMITTED.parents[1] / "docs/guide.md").read_text().split())
    short, long = (
        "{:.2f} [{:.2f}, {:.2f}]".format(*(lossless.loc[k, f"speedup{end}"] for end in ("", "_low", "_high")))
        for k in (1, 5)
    )
    long = long.replace("0.", ".")
    assert f"{short} times as fast as the target alone with K = 1 and {long} times with K = 5" in guide


@pytest.mark.results
def test_retrieval_from_general_code_gains_and_loses_what_the_documentation_says():
    table = (
        pd.read_csv(COMMITTED / "humaneval-drafters/summary.csv").query("drafter == 'retrieval'").set_index("verifier")
    )
    assert table["tokens_per_round"].round(2).to_dict() == {"lossless": 1.26, "ensemble": 1.3, "typical": 1.51}
    losses = {
        rule: [round(-100 * table.loc[rule, f"difference{end}"], 1) for end in ("", "_high", "_low")]
        for rule in ("ensemble", "typical")
    }
    assert losses == {
        "ensemble": pytest.approx([10.0, 0.4, 23.1]),
        "typical": pytest.approx([17.5, 7.2, 31.95], abs=0.06),
    }


@pytest.mark.results
def test_the_committed_tables_are_those_of_the_committed_files(tmp_path):
    shutil.copytree(COMMITTED, tmp_path / "real")
    real_tables.main([f"out={tmp_path / 'real'}"])
    assert (tmp_path / "real/README.md").read_text() == (COMMITTED / "README.md").read_text()


@pytest.mark.results
@pytest.mark.parametrize(
    ("task", "verifier", "value", "num_draft", "column", "shown"),
    [
        ("humaneval-assisted", "assisted", None, 5, "speedup_end_to_end", "1.46 [1.34, 1.60]"),
        ("humaneval-assisted", "lossless", None, 5, "speedup_end_to_end", "1.53 [1.41, 1.67]"),
        ("humaneval-assisted", "assisted", None, 5, "sooner", ".95 [.91, .99] times as soon"),
        ("wmt", "typical", 0.05, 1, "speedup", "1.42 [1.37, 1.49]"),
        ("wmt", "typical", 0.05, 2, "speedup", "1.50 [1.40, 1.60]"),
        ("wmt", "typical", 0.05, 5, "speedup", "1.37 [1.25, 1.50]"),
        ("wmt", "typical", 0.05, 5, "time_ratio", "1.14 times as soon [1.01, 1.29]"),
        ("wmt", "target", None, 0, "speedup", ".98 [.94, 1.01]"),
        ("wmt", "lossless", None, 1, "speedup", "1.19 [1.14, 1.24]"),
        ("wmt", "lossless", None, 2, "speedup", "1.13 [1.04, 1.23]"),
        ("wmt", "lossless", None, 5, "speedup", ".77 [.69, .86]"),
        ("wmt", "ensemble", 0.5, 1, "speedup", "1.25 [1.17, 1.33]"),
        ("wmt", "ensemble", 0.5, 2, "speedup", "1.22 [1.13, 1.31]"),
        ("wmt", "ensemble", 0.5, 5, "speedup", ".94 [.83, 1.07]"),
        ("wmt", "ensemble", 0.5, 5, "sooner", "1.16 times as soon as those of lossless decoding [1.06, 1.26]"),
        ("wmt", "lossless", None, 1, "speedup_end_to_end", "1.17 [1.13, 1.21]"),
        ("wmt", "assisted", None, 1, "speedup_end_to_end", "1.14 [1.07, 1.21]"),
        ("wmt", "assisted", None, 1, "sooner", ".97 [.92, 1.01]"),
        ("humaneval-packed", "lossless", None, 5, "speedup_end_to_end", "1.44 [1.31, 1.57]"),
        ("humaneval-packed", "assisted", None, 5, "speedup_end_to_end", "1.28 [1.17, 1.40]"),
        ("humaneval-packed", "generate", None, 0, "speedup_end_to_end", ".89 [.86, .92]"),
        ("humaneval-packed", "assisted", None, 5, "sooner", ".91 times as soon [.83, 1.01]"),
        ("humaneval-packed", "ensemble", 0.5, 5, "speedup_over_lossless", "1.05 [.99, 1.12]"),
        ("mbpp-packed", "lossless", None, 5, "speedup_end_to_end", "1.36 [1.13, 1.64]"),
        ("mbpp-packed", "assisted", None, 5, "speedup_end_to_end", "1.24 [1.05, 1.46]"),
        ("mbpp-packed", "generate", None, 0, "speedup_end_to_end", ".93 [.90, .96]"),
        ("mbpp-packed", "assisted", None, 5, "sooner", ".91 times as soon as a lossless one [.88, .94]"),
        ("mbpp-packed", "ensemble", 0.7, 5, "speedup_over_lossless", ".98 [.86, 1.12]"),
        ("mbpp-packed", "ensemble", 0.5, 5, "speedup_over_lossless", "1.01 [.89, 1.14]"),
        ("mbpp-packed", "typical", 0.05, 5, "speedup_over_lossless", "1.11 [.99, 1.24]"),
        ("humaneval-packed", "typical", 0.05, 5, "speedup_over_lossless", "1.18 [1.10, 1.27]"),
        ("xsum-packed", "lossless", None, 5, "speedup_end_to_end", "1.13 [1.02, 1.26]"),
        ("xsum-packed", "ensemble", 0.5, 5, "speedup_end_to_end", "1.26 [1.15, 1.38]"),
        ("xsum-packed", "typical", 0.05, 5, "speedup_end_to_end", "1.46 [1.37, 1.56]"),
        ("xsum-packed", "assisted", None, 5, "speedup_end_to_end", ".96 [.86, 1.07]"),
        ("xsum-packed", "generate", None, 0, "speedup_end_to_end", ".86 [.84, .89]"),
        ("xsum-packed", "assisted", None, 5, "sooner", ".85 times as soon as a lossless one [.81, .89]"),
        ("gsm8k-packed", "assisted", None, 5, "sooner", ".69 times as soon as a lossless one [.62, .77]"),
        ("gsm8k-packed", "generate", None, 0, "speedup", ".65 [.63, .68]"),
        ("gsm8k-packed", "lossless", None, 5, "speedup_end_to_end", "1.22 [1.14, 1.31]"),
        ("gsm8k-packed", "assisted", None, 5, "speedup_end_to_end", ".87 [.83, .92]"),
        ("gsm8k-packed", "ensemble", 0.7, 5, "speedup_over_lossless", "1.04 [.98, 1.10]"),
        ("gsm8k-packed", "ensemble", 0.5, 5, "speedup_over_lossless", "1.11 [1.04, 1.17]"),
        ("gsm8k-packed", "typical", 0.05, 5, "speedup_over_lossless", "1.21 [1.15, 1.28]"),
        ("cnndm-packed", "assisted", None, 5, "sooner", ".73 times as soon as a lossless one [.71, .76]"),
        ("cnndm-packed", "generate", None, 0, "speedup", ".67 [.65, .69]"),
        ("cnndm-packed", "lossless", None, 5, "speedup_end_to_end", "1.12 [1.03, 1.21]"),
        ("cnndm-packed", "assisted", None, 5, "speedup_end_to_end", ".82 [.76, .88]"),
        ("cnndm-packed", "ensemble", 0.7, 5, "speedup_over_lossless", "1.19 [1.08, 1.32]"),
        ("cnndm-packed", "ensemble", 0.5, 5, "speedup_over_lossless", "1.27 [1.15, 1.39]"),
        ("cnndm-packed", "typical", 0.05, 5, "speedup_over_lossless", "1.41 [1.27, 1.57]"),
        ("wmt-float32", "generate", None, 0, "speedup", ".93 [.88, .98]"),
        ("wmt-float32", "assisted", None, 5, "speedup", ".40 [.36, .44]"),
        ("wmt-float32", "lossless", None, 5, "speedup", ".63 [.55, .73]"),
        ("wmt-float32", "ensemble", 0.7, 5, "speedup", ".73 [.63, .83]"),
        ("wmt-float32", "ensemble", 0.5, 5, "speedup", ".76 [.67, .85]"),
        ("wmt-float32", "typical", 0.05, 5, "speedup", "1.13 [1.04, 1.23]"),
        ("wmt-float32", "assisted", None, 5, "sooner", ".68 times as soon as a lossless one [.63, .73]"),
        ("humaneval", "lossless", None, 5, "speedup", "1.54 [1.40, 1.70]"),
        ("humaneval", "ensemble", 0.9, 5, "speedup", "1.52 [1.40, 1.64]"),
        ("humaneval", "ensemble", 0.7, 5, "speedup", "1.58 [1.48, 1.69]"),
        ("humaneval", "ensemble", 0.5, 5, "speedup", "1.63 [1.54, 1.73]"),
        ("humaneval", "typical", 0.05, 5, "speedup", "1.85 [1.74, 1.96]"),
        ("humaneval", "typical", 0.05, 5, "speedup_over_lossless", "1.20 [1.10, 1.31]"),
        ("humaneval", "ensemble", 0.5, 5, "speedup_over_lossless", "1.06 [.98, 1.15]"),
        ("humaneval", "ensemble", 0.9, 5, "speedup_over_lossless", ".98 [.94, 1.02]"),
        ("humaneval", "ensemble", 0.9, 5, "sooner", "1.00 times as soon [.95, 1.05]"),
        ("mbpp", "lossless", None, 5, "speedup", "1.50 [1.24, 1.80]"),
        ("mbpp", "ensemble", 0.9, 5, "speedup", "1.57 [1.27, 1.94]"),
        ("mbpp", "ensemble", 0.7, 5, "speedup", "1.51 [1.40, 1.63]"),
        ("mbpp", "ensemble", 0.5, 5, "speedup", "1.53 [1.39, 1.68]"),
        ("mbpp", "typical", 0.05, 5, "speedup", "1.71 [1.55, 1.89]"),
        ("mbpp", "generate", None, 0, "speedup", ".97 [.91, 1.03]"),
        ("mbpp", "typical", 0.05, 5, "speedup_over_lossless", "1.14 [1.02, 1.28]"),
        ("mbpp", "ensemble", 0.9, 5, "speedup_over_lossless", "1.05 [.99, 1.10]"),
        ("mbpp", "ensemble", 0.9, 5, "sooner", "1.04 times as soon [.99, 1.11]"),
        ("mbpp", "ensemble", 0.7, 5, "sooner", "1.31 times as soon with w = 0.7, within [.81, 2.13]"),
        ("gsm8k", "lossless", None, 5, "speedup", "1.43 [1.32, 1.55]"),
        ("gsm8k", "ensemble", 0.7, 5, "speedup", "1.58 [1.38, 1.82]"),
        ("gsm8k", "ensemble", 0.5, 5, "speedup", "1.57 [1.48, 1.67]"),
        ("gsm8k", "typical", 0.05, 5, "speedup", "1.69 [1.61, 1.78]"),
        ("gsm8k", "generate", None, 0, "speedup", "1.00 [.96, 1.04]"),
        ("gsm8k", "ensemble", 0.7, 5, "speedup_over_lossless", "1.11 [1.01, 1.22]"),
        ("gsm8k", "ensemble", 0.5, 5, "speedup_over_lossless", "1.10 [1.04, 1.16]"),
        ("gsm8k", "typical", 0.05, 5, "speedup_over_lossless", "1.19 [1.12, 1.26]"),
        ("gsm8k", "ensemble", 0.7, 5, "sooner", "1.29 times as soon [1.06, 1.56]"),
        ("xsum", "lossless", None, 5, "speedup", "1.13 [1.01, 1.27]"),
        ("xsum", "ensemble", 0.7, 5, "speedup", "1.23 [1.11, 1.36]"),
        ("xsum", "ensemble", 0.5, 5, "speedup", "1.38 [1.24, 1.54]"),
        ("xsum", "typical", 0.05, 5, "speedup", "1.69 [1.64, 1.75]"),
        ("xsum", "ensemble", 0.5, 5, "speedup_over_lossless", "1.22 [1.11, 1.33]"),
        ("xsum", "typical", 0.05, 5, "speedup_over_lossless", "1.50 [1.36, 1.65]"),
        ("cnndm", "lossless", None, 5, "speedup", "1.40 [1.27, 1.55]"),
        ("cnndm", "ensemble", 0.7, 5, "speedup", "1.58 [1.43, 1.74]"),
        ("cnndm", "ensemble", 0.5, 5, "speedup", "1.59 [1.44, 1.74]"),
        ("cnndm", "typical", 0.05, 5, "speedup", "1.86 [1.76, 1.97]"),
        ("cnndm", "ensemble", 0.7, 5, "speedup_over_lossless", "1.12 [1.04, 1.22]"),
        ("cnndm", "ensemble", 0.5, 5, "speedup_over_lossless", "1.13 [1.06, 1.21]"),
        ("cnndm", "typical", 0.05, 5, "speedup_over_lossless", "1.33 [1.19, 1.48]"),
        ("cnndm", "ensemble", 0.5, 5, "sooner", "1.12 times as soon as lossless decoding [1.04, 1.19]"),
    ],
)
def test_speed_ups_at_batch_1_are_what_the_readme_says(task, verifier, value, num_draft, column, shown):
    assert shown in prose()
    name = task if task.endswith(("-assisted", "-packed", "-float32")) else f"{task}-latency"
    table = pd.read_csv(COMMITTED / name / "summary.csv")
    rows = table[(table["verifier"] == verifier) & (table["num_draft"] == num_draft)]
    (row,) = rows[rows["value"] == value].to_dict("records") if value else rows.to_dict("records")
    assert row["num_timed"] == 24
    estimate, low, high = (float(number) for number in re.findall(r"\d*\.\d+", shown.replace("w = 0.7", "")))
    expected = [row[column], row[f"{column}_low"], row[f"{column}_high"]]
    assert [estimate, low, high] == pytest.approx(expected, abs=0.00501)


@pytest.mark.results
def test_lossless_answers_come_sooner_than_assisted_ones_on_all_tasks_with_packed_weights():
    folders = sorted(COMMITTED.glob("*-packed"))
    value = re.findall(r"\d\.\d+", real_readme.pooled_over_assisted(folders).partition("come")[2])[0]
    assert f"make the passes shorter ({float(value):.2f} on five tasks, below)" in prose()
    others = [folder for folder in folders if folder.name in ("gsm8k-packed", "cnndm-packed")]  # of another processor
    for timed in (folders, others, [folder for folder in folders if folder not in others]):
        sentence = real_readme.pooled_over_assisted(timed)
        value, low = (float(number) for number in re.findall(r"\d+\.\d+", sentence)[:2])
        assert low >= 1.05
        assert f"{value:.2f} times as fast [{low:.2f}, " in prose()


@pytest.mark.results
@pytest.mark.parametrize(
    ("folder", "verifier", "w", "column", "scale", "shown"),
    [
        ("xsum-lighteval", "lossless", None, "truncated_rate", 100, "77 % [68, 85]"),
        ("xsum-lighteval", "lossless", None, "acceptance", 1, ".79 [.77, .81]"),
        ("xsum-lighteval", "ensemble", 0.5, "acceptance", 1, ".89 [.88, .91]"),
        ("xsum-lighteval", "ensemble", 0.7, "difference", 1, "w = 0.7 scores −0.1 points [−1.4, 1.2]"),
        ("xsum-lighteval", "ensemble", 0.5, "difference", 1, "w = 0.5 −0.1 [−1.1, 0.9]"),
        ("xsum-lighteval", "ensemble", 0.3, "difference", 1, "w = 0.3 −0.7 [−1.8, 0.2]"),
        ("xsum-lighteval", "draft", None, "difference", 1, "−0.9 [−2.2, 0.3]"),
        ("xsum-chat", "lossless", None, "truncated_rate", 100, "32 % [21, 45]"),
        ("xsum-chat", "lossless", None, "acceptance", 1, ".83 [.80, .86]"),
        ("xsum-chat", "ensemble", 0.3, "acceptance", 1, "w = 0.3 .96 [.94, .96]"),
        ("xsum-chat", "ensemble", 0.7, "difference", 1, "w = 0.7 scores −0.1 points [−3.6, 3.4]"),
        ("xsum-chat", "ensemble", 0.5, "difference", 1, "w = 0.5 −0.2 [−2.3, 2.1]"),
        ("xsum-chat", "ensemble", 0.3, "difference", 1, "w = 0.3 −0.9 [−2.3, 0.5]"),
        ("xsum-chat", "draft", None, "difference", 1, "the draft alone −0.6 [−2.0, 0.9]"),
        ("cnndm", "lossless", None, "acceptance", 1, ".89 [.84, .91]"),
        ("cnndm", "draft", None, "difference", 1, "0.8 points [−2.2, 3.7]"),
    ],
)
def test_what_runs_of_summaries_can_tell_is_what_the_readme_says(folder, verifier, w, column, scale, shown):
    assert shown in prose()
    table = pd.read_csv(COMMITTED / folder / "summary.csv")
    rows = table[table["verifier"] == verifier]
    (row,) = rows[rows["w"] == w].to_dict("records") if w else rows.to_dict("records")
    stated = [float(number) for number in re.findall(r"-?\d*\.?\d+", shown.replace("−", "-").split(f"w = {w} ")[-1])]
    expected = [scale * row[f"{column}{end}"] for end in ("", "_low", "_high")]
    digits = len(shown.rstrip("]").rpartition(".")[2]) if "." in shown else 0
    assert stated == pytest.approx(expected, abs=0.50001 * 10**-digits)


@pytest.mark.results
@pytest.mark.parametrize(
    ("model", "drafter", "price", "shown"),
    [
        ("gemma-270m-", "suffix", None, "1.58 times as fast as Gemma 3 270M alone [1.14, 2.19]"),
        ("gemma-270m-", "lookup", None, "1.47 [1.04, 2.09]"),
        ("gemma-270m-", "itself (int8)", 0.89, ".99 [0.89, 1.10]"),
        ("smollm2-135m-", "suffix", None, "SmolLM2-135M [1.16, 1.75]"),
        ("smollm2-135m-", "lookup", None, "1.38 [1.10, 1.72]"),
        ("smollm2-135m-", "itself (int8)", 0.74, "1.13 [1.04, 1.23]"),
        ("", "model", 0.47, None),
        ("", "lookup", 0.003, "`lookup` 1.04 [1.02, 1.07]"),
    ],
)
def test_prices_of_drafters_are_what_the_readme_says(model, drafter, price, shown):
    table = pd.read_csv(COMMITTED / f"{model}humaneval-prices/summary.csv")
    row = table[table["verifier"] == "lossless"].set_index("drafter").loc[drafter]
    assert price is None or row["draft_price"] == pytest.approx(price, abs=0.005)
    if shown is not None:
        assert shown in prose()
        low, high = (float(number) for number in re.findall(r"\d*\.\d+", shown)[-2:])
        assert (row["speedup_low"], row["speedup_high"]) == pytest.approx((low, high), abs=0.00501)
