"""The table of engines: its runs are valid, its rows are those of the records, and what is missing is named with its command."""

import json
import re
import shutil
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from scripts import engines_page, real_engines, real_near_ties
from sdbench.cli import main
from sdbench.cli.compose import Composer
from sdbench.records import Store, read
from tests.records.synthetic import cell, write_synthetic

COMMITTED = Path(__file__).parents[2] / "results/real"
FILES = {"target": "t.gguf", "draft": "d.gguf", "data": "humaneval.jsonl"}


@pytest.mark.slow
def test_each_run_is_one_that_sdbench_takes_and_all_of_an_engine_share_its_records():
    options = real_engines.DEFAULTS | FILES | {"python": "p", "lengths": "2,16", "p_mins": "0.5"}
    composer = Composer()
    for engine, num_runs in (("llamacpp", 3), ("llamacpp-amx", 3), ("native", 2), ("native-packed", 2), ("vllm", 2)):
        num_timed = num_runs * (3 if engine.startswith("native") else 1)
        for part, count in (("texts", num_runs), ("speed", num_timed), ("audit", 1)):
            runs = [composer.run(words) for words in real_engines.runs_of(engine, part, options)]
            assert len(runs) == count
            assert len({run.folder for run in runs}) == 1
            assert {run.temperature for run in runs} == {0.0 if part != "audit" else 1.0}
            assert all((run.timing is None) == (part != "speed") for run in runs)
    sizes = [composer.run(words).timing.batch_size for words in real_engines.runs_of("native", "speed", options)]
    assert sizes == [1, 2, 4, 1, 2, 4]
    plugins = {
        part: composer.run(words).engine.options.get("plugin")
        for part in ("texts", "audit")
        for words in real_engines.runs_of("vllm", part, options)
    }
    assert plugins == {"texts": False, "audit": True}, "vLLM on a CPU is refused at T = 1 without the plug-in"
    words = list(real_engines.runs_of("llamacpp", "texts", options))
    assert [word for run in words for word in run if "num_draft" in word] == [
        "num_draft=2",
        "num_draft=16",
        "num_draft=16",
    ]
    assert "engine.speculative.spec_draft_p_min=0.5" in words[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_rows_are_those_of_the_records(llamacpp_words, tmp_path):
    words = [word for word in llamacpp_words if word.partition("=")[0] not in ("timing", "results")]
    words += [f"results={tmp_path}/runs", "name=llamacpp", "report=off"]
    assert main([*words, "timing.examples=2", "timing.repeats=1", "engine.concurrency=[1,2,4]"]) == 0
    assert main([*words, "timing=off", "engine.speculative.spec_draft_p_min=0.5"]) == 0
    assert real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}/out"]) == 0
    table = pd.read_csv(tmp_path / "out" / "engines.csv")
    assert table["verifier"].tolist() == ["target", "draft", "lossless", "lossless"]
    assert table["p_min"].tolist()[2:] == pytest.approx([float("nan"), 0.5], nan_ok=True)
    frame = read(tmp_path / "runs" / "llamacpp").generations
    target = frame[frame["verifier"] == "target"].set_index("example")["text"]
    equal = frame[frame["verifier"] == "lossless"].apply(lambda row: row["text"] == target[row["example"]], axis=1)
    assert table["num_equal"].sum() == equal.sum() == 4
    assert table["num_compared"].tolist()[2:] == [2, 2]
    speeds = table[["tokens_per_s_1", "tokens_per_s_2", "tokens_per_s_4"]]
    assert speeds.iloc[[0, 2]].gt(0).all().all()
    assert speeds.iloc[[1, 3]].isna().all().all(), "the draft alone is not timed, nor was the p-min"
    assert table["audit"].isna().all()
    page = (tmp_path / "out" / "engines.md").read_text()
    assert table["weights"].tolist() == ["F32"] * 4
    assert "| llamacpp | K = 3, p-min 0.5 | F32 |" in page
    assert "| vllm | texts | target alone; draft alone; K = 2; " in page
    assert "| llamacpp | texts | target alone; draft alone; K = 2; " in page
    assert "| llamacpp | audit | target alone; K = 4 | 1 |" in page
    (tmp_path / "runs" / "llamacpp").rename(tmp_path / "runs" / "native")
    assert real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}/out"]) == 0
    both = pd.read_csv(tmp_path / "out" / "engines.csv")
    assert both["engine"].tolist() == ["llamacpp"] * 4 + ["native"] * 4, "rows whose records are elsewhere are kept"
    first = both[:4].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, table, check_dtype=False)


@pytest.mark.slow
def test_a_timed_native_folder_has_rows_of_what_it_decoded_and_keeps_to_its_threads(tmp_path):
    """Transformers' own generation is timed beside our cells, and has no texts. Runs with other threads are other rows."""
    options = {"temperature": 0.0, "ws": (), "num_drafts": (4,), "timing_examples": 2}
    write_synthetic(tmp_path / "runs" / "native", n=4, **options)
    write_synthetic(tmp_path / "runs" / "native-2-threads", n=3, **options)
    for threads, n in ((1, 4), (2, 3)):
        assert real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}/out", f"threads={threads}"]) == 0
        whole = pd.read_csv(tmp_path / "out" / "engines.csv")
        table = whole[whole["threads"] == threads]
        assert set(table["verifier"]) == {"target", "draft", "lossless"}
        assert set(table["n"]) == {n}
        assert table.set_index("verifier")["tokens_per_s_1"][["target", "lossless"]].gt(0).all()
    assert whole["threads"].tolist() == [1, 1, 1, 2, 2, 2]
    speeds = whole[whole["threads"] == 2].set_index("verifier")["tokens_per_s_1"]
    ratio = f"{whole[whole['threads'] == 2].set_index('verifier')['speedup']['lossless']:.2f}"
    page = (tmp_path / "out" / "engines.md").read_text()
    assert speeds["lossless"] > speeds["target"]
    assert f", 2 threads, 1 user: native, K = 4 ({speeds['lossless']:.1f} tokens/s, {ratio} times" in page
    shutil.copytree(tmp_path / "runs" / "native-2-threads", tmp_path / "runs" / "llamacpp-2-threads")
    assert real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}/out", "threads=2"]) == 0, "rows of two engines"
    assert ", 2 threads, 1 user: " in (tmp_path / "out" / "engines.md").read_text()
    assert "users: native" not in page, "with one engine's number for one user, there is nothing to compare"


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_batches_of_the_native_engine_fill_the_columns_of_several_users(tmp_path):
    """They are timed after single texts, whose speeds stay those of one user."""
    words = [
        "model=llama-tiny",
        "task=gsm8k-tiny",
        "verifier=exact",
        "num_draft=2",
        "n=4",
        "temperature=0",
        "report=off",
    ]
    words += ["max_new_tokens=8", f"results={tmp_path}/runs", "name=native", "timing.examples=4"]
    for size in (1, 2, 4):
        assert main([*words, f"timing.batch_size={size}"]) == 0
        assert real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}/{size}"]) == 0
    tables = {size: pd.read_csv(tmp_path / str(size) / "engines.csv").set_index("verifier") for size in (1, 2, 4)}
    one = ["tokens_per_s_1", "speedup"]
    pd.testing.assert_frame_equal(tables[4][one], tables[1][one])
    columns = [f"tokens_per_s_{level}" for level in (1, 2, 4)]
    assert tables[1].loc["lossless", columns].notna().tolist() == [True, False, False]
    assert tables[2].loc["lossless", columns].notna().tolist() == [True, True, False]
    timings = read(tmp_path / "runs" / "native").timings
    for verifier, level in product(("target", "lossless"), (2, 4)):
        rows = timings[(timings["verifier"] == verifier) & ~timings["is_split"]]
        rows = rows[rows["example"].map(lambda name: len(name.split("+"))) == level]
        expected = rows["tokens"].sum() / (rows["prefill_s"].sum() + rows["decode_s"].sum())
        assert tables[4].loc[verifier, f"tokens_per_s_{level}"] == pytest.approx(expected, rel=1e-5)


def test_speeds_of_several_days_name_all_of_them():
    """Only the day of single texts was named, so that speeds of another day were compared with those of that day."""
    day = 86_400.0
    timings = pd.DataFrame(
        {"cell": ["a", "a", "b"], "example": ["1", "1+2", "1"], "started_at": [0.0, day, day]},
    )
    assert real_engines.days_of(timings) == {"a": "1970-01-01 and 1970-01-02", "b": "1970-01-02"}


def test_texts_that_are_not_timed_keep_the_times_of_their_setting_and_other_settings_stay(tmp_path):
    times = {"timed": "2026-11-27", "tokens_per_s_1": 11.8, "tokens_per_s_4": 10.6, "threads": 2, "n": 40}
    ends = [f"{name}{end}" for name in ("quality", "acceptance") for end in ("", "_low", "_high")]
    rows = [("target", 0, None), ("draft", 0, None), ("lossless", 4, None), ("lossless", 8, None), ("lossless", 4, 0.5)]
    more = {"weights": "Q4_K_M", "pair": "llama-tiny", **dict.fromkeys(ends, 0.5), **times}
    table = [engine_row("llamacpp", name, k, **more | {"p_min": p_min}) for name, k, p_min in rows]
    table[2]["audit"] = "sound"
    pd.DataFrame(table).to_csv(tmp_path / "engines.csv", index=False)
    write_synthetic(
        tmp_path / "runs" / "llamacpp-2-threads", n=6, temperature=0.0, ws=(), num_drafts=(4,), timing_examples=0
    )
    assert real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}", "threads=2"]) == 0
    written = pd.read_csv(tmp_path / "engines.csv")
    assert [*zip(written["verifier"], written["num_draft"], written["p_min"].fillna(0), written["n"], strict=True)] == [
        ("target", 0, 0, 6),
        ("draft", 0, 0, 6),
        ("lossless", 4, 0, 6),
        ("lossless", 4, 0.5, 40),
        ("lossless", 8, 0, 40),
    ]
    assert (written["tokens_per_s_4"] == 10.6).all()
    assert (written["timed"] == "2026-11-27").all()
    assert written["audit"].dropna().to_dict() == {2: "sound"}


def engine_row(engine: str, verifier: str, num_draft: int, **more) -> dict:
    names = ("p_min", "audit", "timed", "num_equal", "num_compared", *(f"tokens_per_s_{level}" for level in (1, 2, 4)))
    return dict.fromkeys(names) | {"engine": engine, "verifier": verifier, "num_draft": num_draft, "threads": 1, **more}


def test_what_is_missing_is_named_setting_by_setting():
    """Some rows with texts, a speed or an audit do not stand for the others."""
    options = real_engines.DEFAULTS | {"lengths": "2,4", "p_mins": "0.5,0.9", "n": "164"}
    timed = {"tokens_per_s_1": 9.0, "tokens_per_s_2": 8.0, "tokens_per_s_4": 7.0}
    rows = [
        engine_row("llamacpp", "target", 0, n=164, **timed),
        engine_row("llamacpp", "draft", 0, n=164),
        engine_row("llamacpp", "lossless", 2, n=40, **timed),
        engine_row("llamacpp", "lossless", 4, n=164, audit="sound (n = 800)", **{**timed, "tokens_per_s_4": None}),
        engine_row("llamacpp", "lossless", 4, n=164, p_min=0.5),
        engine_row("native", "target", 0, n=164, audit="sound (n = 800)", **timed),
        engine_row("native", "lossless", 2, n=164, tokens_per_s_1=4.0),
        engine_row("native", "lossless", 4, n=164, audit="sound (n = 800)", tokens_per_s_1=4.0),
        engine_row("vllm", "target", 0, n=164, tokens_per_s_1=4.0, threads=2),
    ]
    missing = list(engines_page.missing_rows(pd.DataFrame(rows), options))
    everything = "target alone; K = 2; K = 4"
    assert [row[:3] for row in missing if row[3] == "1"] == [
        ["llamacpp", "texts", "K = 2; K = 4, p-min 0.9"],
        ["llamacpp", "audit", "target alone"],
        ["llamacpp", "speed", "K = 4; K = 4, p-min 0.5; K = 4, p-min 0.9"],
        ["native", "texts", "draft alone"],
        ["native", "speed", "K = 2; K = 4"],
        *(
            [engine, *missing]
            for engine in ("native-packed", "vllm")
            for missing in (
                ["texts", everything.replace(";", "; draft alone;", 1)],
                ["audit", "target alone; K = 4"],
                ["speed", everything],
            )
        ),
    ]
    assert ["vllm", "speed", everything, "2"] in missing, "of one user only"
    with_amx = [*rows, engine_row("llamacpp-amx", "lossless", 4, n=164, p_min=0.9)]
    assert [
        "llamacpp-amx",
        "texts",
        "target alone; draft alone; K = 2; K = 4; K = 4, p-min 0.5",
        "1",
    ] in (missing := list(engines_page.missing_rows(pd.DataFrame(with_amx), options)))
    assert {row[3] for row in missing if row[0] == "llamacpp-amx"} == {"1"}, "it has no row with two threads"
    assert engines_page.missing_text(pd.DataFrame(rows[5:8]), options | {"n": "0"}).count("| native |") == 2


ENDS = [f"{name}{end}" for name in ("quality", "acceptance", "speedup") for end in ("", "_low", "_high")]


def cells(row: dict) -> dict[str, str]:
    row = dict.fromkeys([*ENDS, "weights"]) | {"n": 40, **row}
    return dict(zip(engines_page.HEAD, engines_page.cells_of(row), strict=True))


def test_a_dash_is_what_was_not_measured_and_what_an_engine_does_not_report_has_another_mark():
    """docs/engines.md: vLLM sends no rounds of texts that end at a stop string."""
    equal = "texts equal to the target's"
    for engine, absent in {
        "llamacpp": [],
        "llamacpp-amx": [],
        "vllm": ["acceptance"],
        "native": [],
        "native-packed": [],
    }.items():
        row = cells(engine_row(engine, "lossless", 4))
        assert [name for name in row if row[name] == "n/a"] == absent
        assert {name for name in row if row[name] == "–"} == {
            *("weights", "pass@1", equal, "acceptance", *(f"tokens/s at {level}" for level in (1, 2, 4))),
            *("× the target", "audit at T = 1", "timed"),
        } - set(absent)
    for verifier in ("target", "draft"):
        row = cells(engine_row("llamacpp", verifier, 0))
        assert [name for name in row if row[name] == "n/a"] == [equal, "acceptance"]
    measured = {"acceptance": 0.9, "acceptance_low": 0.8, "acceptance_high": 1.0, "tokens_per_s_2": 3.0}
    row = cells(engine_row("vllm", "lossless", 4, **measured))
    assert (row["acceptance"], row["tokens/s at 2"]) == ("0.900 [0.800, 1.000]", "3.0")


def test_the_page_says_what_an_audit_without_its_total_variation_leaves_open():
    note = r"\* By an earlier version of the audit"
    for audit, shown in (
        ("sound (n = 800)", r"sound (n = 800) \*"),
        ("sound (n = 800, TV 0.15)", "sound (n = 800, TV 0.15)"),
    ):
        row = dict.fromkeys([*ENDS, "weights"]) | engine_row("llamacpp", "lossless", 4, audit=audit, n=40)
        page = engines_page.page(pd.DataFrame([row]), real_engines.DEFAULTS)
        assert f"| {shown} |" in page
        assert (note in page) == ("TV" not in audit)


def test_an_audit_is_shown_with_rows_whose_records_are_elsewhere(tmp_path):
    rows = [
        ("llamacpp", "target", 0),
        ("llamacpp", "draft", 0),
        ("llamacpp", "lossless", 2),
        ("llamacpp", "lossless", 4),
    ]
    ends = [f"{name}{end}" for name in ("quality", "acceptance") for end in ("", "_low", "_high")]
    more = {"n": 40, "weights": "Q4_K_M", **dict.fromkeys(ends, 0.5)}
    table = [
        engine_row(*row, threads=threads, **more) for threads in (1, 2) for row in [*rows, ("native", "lossless", 4)]
    ]
    table.append(engine_row("llamacpp", "lossless", 4, **more | {"p_min": 0.5}))
    pd.DataFrame(table).to_csv(tmp_path / "engines.csv", index=False)
    (tmp_path / "runs" / "llamacpp-audit").mkdir(parents=True)
    (tmp_path / "runs" / "llamacpp-audit" / "audit.json").write_text('{"target": "sound", "lossless": "violated"}')
    assert real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}"]) == 0
    written = pd.read_csv(tmp_path / "engines.csv").dropna(subset="audit")
    assert set(zip(written["verifier"], written["num_draft"], written["audit"], strict=True)) == {
        ("target", 0, "sound"),
        ("lossless", 4, "violated"),
    }
    assert (written["engine"] == "llamacpp").all()
    assert (written["threads"] == 1).all()
    assert written["p_min"].isna().all()


@pytest.mark.results
def test_the_committed_page_is_that_of_its_table_and_each_row_says_what_was_compared(tmp_path):
    shutil.copy(COMMITTED / "engines.csv", tmp_path)
    table = pd.read_csv(COMMITTED / "engines.csv")
    assert real_engines.main([f"runs={tmp_path}/none", f"out={tmp_path}"]) == 0
    for name in ("engines.csv", "engines.md"):
        assert (tmp_path / name).read_text() == (COMMITTED / name).read_text()
    assert not table.duplicated(["engine", "verifier", "num_draft", "p_min", "threads"]).any()
    lossless = table[table["verifier"] == "lossless"]
    assert (lossless["num_compared"] == lossless["n"]).all()
    assert lossless["num_equal"].between(0, lossless["n"]).all()
    for _, rows in table.groupby(["engine", "threads"]):
        assert (rows["verifier"] == "target").sum() == 1
    audited = table[table["audit"].notna()]
    assert set(zip(audited["engine"], audited["verifier"], strict=True)) == set(
        product(("llamacpp", "llamacpp-amx", "native", "vllm"), ("target", "lossless"))
    )
    assert audited["audit"].str.startswith("sound (n = 800").all(), "what results/README.md says"
    of_today = audited[audited["audit"].str.contains(r"TV 0\.15")]
    assert set(zip(of_today["engine"], of_today["verifier"], strict=True)) >= set(
        product(("llamacpp-amx", "native", "vllm"), ("target", "lossless"))
    )
    of_llamacpp = audited[(audited["engine"] == "llamacpp") & (audited["verifier"] == "lossless")]
    is_restricted = "prefixes of two tokens its audit, which is an older one, would have missed is not known" in (
        (COMMITTED.parent / "README.md").read_text()
    )
    assert is_restricted != of_llamacpp["audit"].str.contains("TV").all()
    assert (COMMITTED / "../../docs/engines.md").is_file(), "a link of the page"
    assert table.groupby("engine")["weights"].unique().map(list).loc[["llamacpp", "native"]].to_dict() == {
        "llamacpp": ["Q4_K_M"],
        "native": ["bfloat16 (dequantised)"],
    }


@pytest.mark.results
def test_what_llamacpp_keeps_is_what_the_pages_say():
    table = pd.read_csv(COMMITTED / "engines.csv")
    rows = table[(table["engine"] == "llamacpp") & (table["n"] == 164)].set_index("num_draft")
    drafting = [rows.loc[k] for k in (2, 4, 8)]
    kept = [f"{row['acceptance']:.2f} [{row['acceptance_low']:.2f}, {row['acceptance_high']:.2f}]" for row in drafting]
    kept = [text.replace("0.", ".") for text in kept]
    parted = [int(row["num_compared"] - row["num_equal"]) for row in drafting]
    of_llamacpp = table[(table["engine"] == "llamacpp") & (table["verifier"] == "lossless") & table["p_min"].isna()]
    counts = of_llamacpp.set_index(["threads", "num_draft"])[["num_equal", "num_compared"]].astype(int)
    same, of = counts["num_equal"], counts["num_compared"]
    differ = of - same
    results, engines = (
        " ".join((COMMITTED / page).read_text().split()) for page in ("../README.md", "../../docs/engines.md")
    )
    parts = [f"{differ[key]} of {of[key]}" for key in ((1, 4), (2, 2), (2, 4), (2, 8))]
    assert (
        f"At K = 2 with one thread (all {same[1, 2]} texts); its texts differ from the target's own in {parts[0]} at K = 4 with "
        f"one thread, and with two in {parts[1]} at K = 2, {parts[2]} at K = 4 and {parts[3]} at K = 8."
    ) in results
    assert (of[[(2, 16), (1, 2), (1, 4), (1, 8)]] == same[1, 2]).all()
    assert (
        f"on HumanEval's {of[2, 4]} problems {same[2, 2]} texts were equal at K = 2, {same[2, 4]} at K = 4 and {same[2, 8]} at "
        f"K = 8, and on {of[2, 16]} of them {same[2, 16]} at K = 16. With one thread, "
        f"on the {of[1, 2]}, all were at K = 2, {same[1, 4]} at K = 4 and {same[1, 8]} at K = 8"
    ) in engines
    target, *rates = (f"{100 * row['quality']:.1f}" for row in (rows[rows["verifier"] == "target"].iloc[0], *drafting))
    readme = " ".join((COMMITTED / "README.md").read_text().split())
    assert f"keeps {kept[0]} of the drafts on HumanEval's 164 problems at K = 2, {kept[1]} at K = 4" in readme
    assert f"{kept[1]} at K = 4 and {kept[2]} at K = 8" in readme
    assert f"in {parted[0]} of 164 at K = 2, in {parted[1]} at K = 4 and in {parted[2]} at K = 8" in readme
    assert f"Pass@1 is {target} [46.6, 61.7] for the target alone, {rates[0]} at K = 2, {rates[1]} at K = 4" in readme
    assert f"{rates[1]} at K = 4 and {rates[2]} at K = 8" in readme


@pytest.mark.results
def test_what_a_server_with_amx_keeps_is_what_the_pages_say():
    table = pd.read_csv(COMMITTED / "engines.csv")
    rows = table[(table["engine"] == "llamacpp-amx") & (table["threads"] == 2) & (table["n"] == 164)]
    (target,) = rows[rows["verifier"] == "target"].to_dict("records")
    plain_k = rows[(rows["verifier"] == "lossless") & rows["p_min"].isna()].set_index("num_draft")
    assert plain_k.index.tolist() == [2, 4, 8, 16]
    by = rows[rows["p_min"].notna()].sort_values("p_min")
    assert by["p_min"].tolist() == [0.5, 0.75, 0.9]
    assert (by["num_compared"] == 164).all()
    assert (plain_k["num_compared"] == 164).all()
    (same,) = plain_k["num_equal"].astype(int).unique()
    with_p_min, differ = by["num_equal"].astype(int).tolist(), (164 - by["num_equal"]).astype(int).tolist()
    plain, real, engines = (
        " ".join((COMMITTED / page).read_text().split())
        for page in ("../README.md", "README.md", "../../docs/engines.md")
    )
    kept = "{}, {} and {} with".format(*with_p_min)
    assert f"wrote {same} of the 164 as its target alone at each of K = 2, 4, 8 and 16, and {kept}" in engines
    assert f"on another processor, {164 - same} of 164 differ at each of K = 2, 4, 8 and 16." in plain
    kinds = "{}, {} and {} with a p-min of .5".format(*differ)
    assert f"It is {164 - same} of 164 texts at each of K = 2, 4, 8 and 16, and {kinds}" in real
    ends = ("acceptance", "acceptance_low", "acceptance_high")
    first, low, high = (f"{plain_k.loc[4, end]:.2f}"[1:] for end in ends)
    others = "{}, {} and {}".format(*(f"{rate:.2f}"[1:] for rate in by["acceptance"]))
    assert f"At K = 4 {first} [{low}, {high}] of the drafts are kept, and {others} at K = 16" in real
    (rate,) = {f"{100 * quality:.1f}" for quality in plain_k["quality"]}
    alone, *rates = (f"{100 * quality:.1f}" for quality in (target["quality"], *by["quality"]))
    assert f"Pass@1 is {alone} [47.8, 62.9] for the target alone, {rate} at K = 2, 4, 8 and 16, and {rates[0]}" in real


@pytest.mark.results
def test_the_speeds_of_one_day_are_what_the_pages_say():
    table = pd.read_csv(COMMITTED / "engines.csv").query("threads == 2")
    day = table[(table["timed"] == "2026-12-01") & (table["verifier"] != "draft")]
    prose = " ".join((COMMITTED / "README.md").read_text().split())
    assert "**All engines on one day** (2026-12-01," in prose
    settings = ["engine", "verifier", "num_draft"]
    fastest = [tuple(day.loc[day[f"tokens_per_s_{level}"].idxmax(), settings]) for level in (1, 2, 4)]
    assert fastest == [("llamacpp-amx", "target", 0), ("vllm", "lossless", 2), ("vllm", "lossless", 2)]
    targets = day[day["verifier"] == "target"].set_index("engine")
    first = targets["tokens_per_s_1"].map("{:.1f}".format)
    assert f"has the highest speed, {first['llamacpp-amx']} tokens per second, and drafting does not pay" in prose
    assert (
        f"vLLM's target alone writes {first['vllm']} tokens per second and the native engine's {first['native']},"
        in prose
    )
    best = day[(day["engine"] == "vllm") & (day["num_draft"] == 2)].iloc[0]
    both = [f"{best[f'tokens_per_s_{level}']:.1f}" for level in (2, 4)]
    times = [f"{best[f'tokens_per_s_{level}'] / targets.loc['vllm', f'tokens_per_s_{level}']:.2f}" for level in (2, 4)]
    assert (
        f"without an interval): {both[0]} and {both[1]} tokens per second of all users together, {times[0]} and {times[1]} "
        "times vLLM's target" in prose
    )
    other = [f"{targets.loc['llamacpp-amx', f'tokens_per_s_{level}']:.1f}" for level in (2, 4)]
    assert f"llama.cpp's target alone writes {other[0]} and {other[1]}." in prose
    alone = [f"{targets.loc['native', f'tokens_per_s_{level}']:.1f}" for level in (2, 4)]
    four = day[(day["engine"] == "native") & (day["num_draft"] == 4)].iloc[0]
    four_speeds = [f"{four[f'tokens_per_s_{level}']:.1f}" for level in (2, 4)]
    assert f"writes {alone[0]} and {alone[1]} alone, and {four_speeds[0]} and {four_speeds[1]} at K = 4." in prose
    assert set(day[day["engine"] == "native"]["num_draft"]) == {0, 2, 4}, "the others were not timed that day"


@pytest.mark.results
def test_texts_of_the_native_engine_that_differ_from_the_targets_are_near_ties():
    prose = " ".join((COMMITTED / "README.md").read_text().split())
    ties = pd.read_csv(COMMITTED / "engines_near_ties.csv").query("engine == 'native' and threads == 2")
    rows = pd.read_csv(COMMITTED / "engines.csv").query("engine == 'native' and threads == 2").set_index("num_draft")
    lossless = rows[rows["verifier"] == "lossless"]
    parted = (lossless["num_compared"] - lossless["num_equal"]).astype(int)
    assert ties["num_draft"].value_counts().to_dict() == parted.to_dict()
    assert (ties["margin"] <= ties["explained"]).all()
    two, four, eight, sixteen = parted[[2, 4, 8, 16]]
    counts = f"in {two} of 164 at K = 2, {four} at K = 4, {eight} at K = 8 and {sixteen} at K = 16"
    assert f"{counts}. The run measured each of these {len(ties)} texts" in prose
    largest, explained = (f"{number:.2f}"[1:] for number in (ties["margin"].max(), ties["explained"].min()))
    assert (
        f"the logits of the two tokens are at most {largest} apart, and rounding in bfloat16 explains {explained}"
        in prose
    )
    target = rows[rows["verifier"] == "target"].iloc[0]
    assert {f"{100 * quality:.1f}" for quality in [target["quality"], *lossless["quality"][[2, 4, 8]]]} == {"53.0"}
    interval = f"[{100 * target['quality_low']:.1f}, {100 * target['quality_high']:.1f}]"
    last, kept = (
        f"{100 * lossless['quality'][16]:.1f}",
        lossless.loc[4, ["acceptance", "acceptance_low", "acceptance_high"]],
    )
    assert f"Pass@1 is 53.0 {interval} for the target alone and at K = 2, 4 and 8, and {last} at K = 16" in prose
    assert "{:.2f} [{:.2f}, {:.2f}] of the drafts are kept at K = 4.".format(*kept).replace("0.", ".") in prose


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["targt=x"], "targt is not an option"),
        (["target=x", "draft=y"], "data names no file"),
        (["target=x", "draft=y", "data=z", "engines=vllm"], "python names no interpreter"),
        (["engines=tgi"], "engines must be among llamacpp, llamacpp-amx, native, native-packed, vllm, got tgi"),
        (["runs=/no/such", "out=/no/such"], "there are no records below /no/such"),
        (["threads=two"], "threads must be a whole number above 0, got two"),
        (["n=0"], "n must be a whole number above 0, got 0"),
        (["lengths=2;4"], "lengths must be whole numbers, as 2,4, got 2;4"),
        (["p_mins=low"], "p_mins must be numbers, as 0.5,0.9, got low"),
        (["x.gguf"], "x.gguf is no option"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        real_engines.main(words)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("end", ["", "-audit"])
@pytest.mark.parametrize("other", ["target", "draft"])
def test_a_second_pair_in_one_folder_of_runs_is_refused(end, other, tmp_path, capsys):
    """Its texts were tested against the first pair's target. Another path to the same file is the same."""
    named = {role: str(tmp_path / f"{role}.gguf") for role in ("target", "draft")}
    with Store.open(tmp_path / "runs" / f"llamacpp{end}", config={"model": named}):
        pass
    options = {"runs": str(tmp_path / "runs"), **named}
    real_engines.refuse_other_pair("llamacpp", real_engines.DEFAULTS | options)
    real_engines.refuse_other_pair("native", real_engines.DEFAULTS | options | {other: "b.gguf"})
    same = {other: f"{tmp_path}/runs/../{other}.gguf"}
    real_engines.refuse_other_pair("llamacpp", real_engines.DEFAULTS | options | same)
    words = [f"{name}={value}" for name, value in (options | {"data": "d", other: "b.gguf"}).items()]
    with pytest.raises(SystemExit) as ended:
        real_engines.main(words)
    assert ended.value.code == 2
    sentence = f"llamacpp{end} holds records of {other}={named[other]}, not of {other}=b.gguf: give another runs="
    assert sentence in capsys.readouterr().err


def test_a_table_of_two_targets_in_one_folder_is_refused(tmp_path, capsys):
    home = write_synthetic(tmp_path / "runs" / "native", n=2, ws=(), temperature=0.0, timing_examples=0)
    with Store.open(home, config={}) as store:
        store.add_cells([cell("other", "gsm8k-tiny", "target", temperature=0.0)])
    with pytest.raises(SystemExit) as ended:
        real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}/out"])
    assert ended.value.code == 2
    assert "holds records of several targets (" in capsys.readouterr().err


def records_of(folder, target, draft):
    """Records that no command would plan: their configuration names the pair."""
    home = write_synthetic(folder, n=2, ws=(), temperature=0.0, timing_examples=0)
    for file in (home / "records").glob("run-*.json"):
        run = json.loads(file.read_text())
        run["config"]["model"] = {"target": target, "draft": draft}
        file.write_text(json.dumps(run))


def test_rows_of_another_pair_are_refused_where_the_table_is_written(tmp_path, capsys):
    """Before, they joined the first pair's rows, and the fastest setting was looked for among both."""
    records_of(tmp_path / "runs" / "native", "x/big-1.5b.gguf", "small.gguf")
    records_of(tmp_path / "other" / "llamacpp", "big-1.gguf", "small.gguf")
    records_of(tmp_path / "same" / "llamacpp", "big-1.5b", "y/small")
    assert real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}/out"]) == 0
    before = (tmp_path / "out" / "engines.csv").read_text()
    files = ["target=big-1.gguf", "draft=small.gguf", "data=d"]
    for words in ([f"runs={tmp_path}/other"], [f"runs={tmp_path}/none", *files]):
        with pytest.raises(SystemExit) as ended:
            real_engines.main([*words, f"out={tmp_path}/out"])
        assert ended.value.code == 2
        assert "has rows of big-1.5b and small, not of big-1 and small: give another out=" in capsys.readouterr().err
    assert (tmp_path / "out" / "engines.csv").read_text() == before
    assert real_engines.main([f"runs={tmp_path}/same", f"out={tmp_path}/out"]) == 0
    table = pd.read_csv(tmp_path / "out" / "engines.csv")
    assert set(table["engine"]) == {"native", "llamacpp"}
    assert set(table["pair"]) == {"big-1.5b and small"}
    (tmp_path / "other" / "llamacpp").rename(tmp_path / "runs" / "llamacpp")
    with pytest.raises(SystemExit):
        real_engines.main([f"runs={tmp_path}/runs", f"out={tmp_path}/fresh"])
    assert "holds records of several pairs (big-1 and small, big-1.5b and small)" in capsys.readouterr().err


def test_near_ties_are_looked_for_in_every_lossless_setting(monkeypatch):
    """`real_near_ties.py` reads the records of an engine with several draft lengths."""
    cells = [("target", 0, "t"), ("lossless", 2, "a"), ("lossless", 4, "b"), ("draft", 0, "d")]
    texts = {"t": ([1, 2], [3]), "a": ([1, 2], [4]), "b": ([1, 5], [3, 6]), "d": ([7], [7])}
    tokens = [(key, f"x{i}", 0, ids) for key, both in texts.items() for i, ids in enumerate(both)]
    results = SimpleNamespace(
        cells=pd.DataFrame(cells, columns=["verifier", "num_draft", "cell"]),
        tokens=pd.DataFrame(tokens, columns=["cell", "example", "sample", "ids"]),
        examples=pd.DataFrame({"example": ["x0", "x1"], "prompt": ["p0", "p1"]}),
    )
    monkeypatch.setattr("sdbench.read", lambda folder: results)
    table = real_near_ties.differing(Path("folder"))
    rows = table[["num_draft", "example", "lossless", "prompt"]].to_numpy().tolist()
    assert sorted(rows, key=str) == [[2, "x1", [4], "p1"], [4, "x0", [1, 5], "p0"], [4, "x1", [3, 6], "p1"]]


@pytest.mark.results
def test_drafting_pays_in_vllm_and_its_speeds_are_compared_within_a_day():
    rows = pd.read_csv(COMMITTED / "engines.csv").query("engine == 'vllm' and threads == 2 and verifier != 'draft'")
    rows = rows.set_index("num_draft")
    for level, lengths in ((1, [2, 4, 8]), (2, [2]), (4, [2])):
        speeds = rows[f"tokens_per_s_{level}"]
        assert (speeds[lengths] > speeds[0]).all()
        assert speeds[16] < speeds[0]
        assert level == 1 or speeds.idxmax() == 2
    prose = " ".join((COMMITTED / "README.md").read_text().split())
    same = {length: f"{rows['num_equal'][length]:.0f}" for length in (2, 4, 8, 16)}
    assert rows["num_compared"][[2, 4, 8]].eq(164).all()
    assert f"vLLM's texts equal its target's own in {same[2]} of 164 at K = 2, {same[4]} at 4" in prose
    assert f"{same[8]} at 8" in prose
    assert f"and {same[16]} at 16 (decoded" in prose
    score, low, high = (f"{100 * rows[f'quality{end}'][0]:.1f}" for end in ("", "_low", "_high"))
    rates = [f"{100 * rows['quality'][length]:.1f}" for length in (2, 4, 8)]
    assert f"Pass@1 is {score} [{low}, {high}] for the target alone, {rates[0]} at K = 2, {rates[1]} at 4" in prose
    assert f"{rates[2]} at 8" in prose
    page = (COMMITTED / "engines.md").read_text()
    assert f"- {rows['timed'].iloc[0]}, 2 threads, 2 users: vllm, K = 2 (" in page
    assert page.count("2 threads, 1 user: ") == 3, "a line for each day"


@pytest.mark.results
@pytest.mark.parametrize(
    ("engine", "shown"),
    [
        ("vllm", {2: "1.39 [1.29, 1.51]", 4: "1.45 [1.21, 1.74]", 8: "1.38 [1.08, 1.77]", 16: ".83 [.63, 1.09]"}),
        ("native", {2: "1.45 [1.31, 1.61]", 4: "1.41 [1.24, 1.60]"}),
        (
            "llamacpp-amx",
            {2: ".72 [.66, .78]", 4: ".74 [.61, .90]", 8: ".68 [.53, .86]", (16, 0): ".48 [.35, .66]"}
            | {(16, 0.5): ".59 [.43, .79]", (16, 0.75): ".81 [.74, .88]", (16, 0.9): ".73 [.67, .80]"},
        ),
        ("native-packed", {2: "1.42 [1.34, 1.51]", 4: "1.40 [1.34, 1.48]", 8: "1.40 [1.07, 1.84]"}),
    ],
)
def test_speed_ups_of_engines_are_what_the_readme_says(engine, shown):
    prose = " ".join((COMMITTED / "README.md").read_text().split())
    rows = pd.read_csv(COMMITTED / "engines.csv").query("engine == @engine and verifier == 'lossless' and threads == 2")
    rows = rows.assign(p_min=rows["p_min"].fillna(0)).set_index(["num_draft", "p_min"])
    shown = {key if isinstance(key, tuple) else (key, 0): text for key, text in shown.items()}
    assert set(rows.index[rows["speedup"].notna()]) == set(shown)
    for key, text in shown.items():
        assert text in prose
        numbers = [float(number) for number in re.findall(r"\d*\.\d+", text)]
        expected = rows.loc[key, ["speedup", "speedup_low", "speedup_high"]].tolist()
        assert numbers == pytest.approx(expected, abs=0.00501)
