"""results/real: loads, texts and whole commands of real models are within the bounds that this project sets itself."""

from pathlib import Path

import pandas as pd
import pytest

REAL = Path(__file__).parents[2] / "results/real"
pytestmark = pytest.mark.results


SPREAD = ("cpu_s_ratio", "cpu_s_ratio_low", "cpu_s_ratio_high")


def table_of(page: str) -> list[list[str]]:
    """The cells of a page's first table, without its head."""
    lines = [line.strip("|").split("|") for line in (REAL / page).read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


def loads_of(dtype: str) -> pd.DataFrame:
    loads = pd.read_csv(REAL / "loads.csv")
    return loads[loads["dtype"] == dtype].set_index(["model", "way"])


def test_a_first_load_takes_at_most_1_3_times_as_long_as_transformers_and_a_second_one_seconds():
    loads = loads_of("bfloat16")
    first, copy = (loads.xs(way, level="way") for way in ("first", "copy"))
    assert set(first.index) == {"smollm2-135m", "gemma3-270m", "qwen-coder-1.5b"}
    assert (first["cpu_s_ratio_high"] <= 1.3).all()
    assert (copy["cpu_s"] < 5).all()
    large = first.loc["qwen-coder-1.5b"]
    assert large["turns"] == 3
    ratio, low, high, peak = (f"{large[name]:.2f}" for name in (*SPREAD, "peak"))
    page = " ".join((REAL / "README.md").read_text().split())
    assert f"takes {ratio} times the CPU-seconds ({low} to {high}) and at its peak {peak.lstrip('0')} times" in page


def test_a_load_takes_at_most_1_2_times_the_memory_of_the_weights():
    """First loads of the two small models take more, by their tokenizers, as the page says."""
    loads = loads_of("bfloat16")
    assert loads.loc["qwen-coder-1.5b", "first"]["peak"] <= 1.2
    assert (loads.xs("copy", level="way")["peak"] <= 1.2).all()
    small = [
        loads.loc[model, way]["peak"] for model in ("smollm2-135m", "gemma3-270m") for way in ("first", "transformers")
    ]
    assert small == pytest.approx([2.1, 2.6, 4.4, 5.7], abs=0.051)
    assert "it takes 2.1 and 4.4 times the weights, where transformers' takes 2.6 and 5.7" in " ".join(
        (REAL / "README.md").read_text().split()
    )


def test_a_first_load_into_float32_takes_what_the_page_says():
    loads = loads_of("float32")
    page = " ".join((REAL / "README.md").read_text().split())
    large = loads.loc["qwen-coder-1.5b", "first"]
    assert large["turns"] == 3
    assert large["cpu_s_ratio_high"] <= 1.3
    assert large["peak"] <= 1.2
    ratio, low, high = (f"{large[name]:.2f}" for name in SPREAD)
    peaks = [f"{loads.loc['qwen-coder-1.5b', way]['peak']:.2f}".lstrip("0") for way in ("first", "transformers")]
    sentence = (
        f"first load takes {ratio} times the CPU-seconds ({low} to {high}) and {peaks[0]} times the weights in memory"
    )
    assert f"{sentence} (transformers' {peaks[1]})" in page
    small = [loads.loc[name, "first"] for name in ("smollm2-135m", "gemma3-270m")]
    assert [row["cpu_s_ratio"] for row in small] == pytest.approx([0.95, 1.38], abs=0.005)
    assert [row["peak"] for row in small] == pytest.approx([0.93, 1.71], abs=0.005)
    assert "they take .95 and 1.38 times as long and .93 and 1.71 times the weights" in page


def test_greedy_texts_of_all_four_files_are_those_of_generate():
    rows = table_of("texts.md")
    assert {name for name, *_ in rows} == {
        f"{name}.gguf" for name in ("qwen-coder-1.5b", "qwen-coder-0.5b", "smollm2-135m", "gemma3-270m")
    }
    for _, alone, together, singly, kept, tokens in rows:
        assert (alone, together, singly) == ("5 of 5", "5 of 5", "5 of 5")
        count, _, drafted = kept.partition(" of ")
        assert 0 < int(count) == int(drafted) < 2 * int(tokens), "each model keeps all drafts of its own, in both"


def test_the_page_of_whole_commands_is_its_table():
    table = pd.read_csv(REAL / "runs.csv")
    shown = table.drop(columns="pair").assign(is_met=table["is_met"].map({True: "yes", False: "**no**"}))
    assert table_of("runs.md") == shown.to_numpy().tolist()
    memory = table[table["what"].str.startswith("memory")]
    shares = [float(row.measured.split()[0]) / float(row.wanted.split()[0]) for row in memory.itertuples()]
    assert len(shares) == 12, "1, 8 and 32 rows at T = 0 and 1, with plain and packed weights"
    assert all(0.85 <= share <= 1.15 for share in shares)


def test_times_that_were_measured_with_a_handicap_are_in_no_table():
    """transformers' prompts, and all of its assisted generation, where a pass was timed with weights that need no gradient."""
    for path in sorted(REAL.glob("*/summary.csv")):
        if path.parent.name == "wmt-latency" or path.parent.name.endswith(("-assisted", "-packed", "-float32")):
            continue  # timed later, without it
        cells = pd.read_csv(path)
        assert "assisted" not in set(cells["verifier"]), path
        generate = cells[cells["verifier"] == "generate"]
        assert generate["first_token_s"].isna().all(), path
        if (generate["speedup"] == 1).any():  # whole answers would be compared with those of generate
            assert cells["speedup_end_to_end"].isna().all(), path
