"""The paper's tables: the cells of a column agree in prompts, sampling, models, numerics and engine; they draft by the draft."""

from dataclasses import replace

import pytest

import sdbench
from scripts.paper import cells as paper_cells
from scripts.paper import numbers as paper_numbers
from scripts.paper import tables as paper_tables
from tests.records.synthetic import Shape, sweep

OPTIONS = {"resamples": 50}
TASK, PAIR = "gsm8k-tiny", "llama-tiny"
TABLE1 = paper_cells.TABLES[0]


def cells_of(
    *, ws=(0.5, 0.7), rules=None, drafters=("model",), seed=0, protocol="completion/1", draft="draft", **content
):
    """Cells of one command; without `rules` those of every rule."""
    cells = sweep(PAIR, TASK, ws=ws, num_drafts=(5,), temperature=1.0, drafters=drafters)
    kept = [cell for cell in cells if rules is None or cell.verifier in rules]
    checkpoints = {"target": f"{PAIR}/target@0123456", "draft": f"{PAIR}/{draft}@89abcde"}
    reads = {"target": ("target",), "draft": ("draft",)}
    return [
        replace(
            cell,
            protocol=protocol,
            checkpoints={role: checkpoints[role] for role in reads.get(cell.verifier, ("target", "draft"))},
            content={**cell.content, "seed": seed, **content},
        )
        for cell in kept
    ]


def measure(folder, *commands):
    """The rows of a folder with these cells; of each command with as many examples as stand beside it."""
    with sdbench.records.Store.open(folder, config={}, provenance={}) as store:
        for cells, n in commands:
            store.add_cells(cells)
            store.append_generations([Shape().decode(cell, str(i)) for cell in cells for i in range(n)])
    return paper_numbers.measure_cells([sdbench.read(folder)], **OPTIONS)


def keys(cells):
    return {cell.key for cell in cells}


def test_only_the_pair_s_own_draft_counts(tmp_path):
    drafters = ({"name": "retrieval", "longest": 8}, {"name": "model", "length": "threshold"}, "lookup")
    own = cells_of()
    table = measure(tmp_path / "a", (cells_of(drafters=drafters), 9), (own, 4))
    assert set(table["cell"]) == keys(own)


OTHERS = {
    "top-p": {"top_p": 0.9},
    "top-k": {"top_k": 20},
    "the draft's quantisation": {"draft_quantization": "int8"},
    "the target's dtype": {"target_dtype": "torch.float16"},
    "the draft's checkpoint": {"draft": "other"},
    "the engine": {"engine": {"name": "vllm", "rule": "{}", "args": {"dtype": "bfloat16"}}},
    "the prompts": {"shown": "other"},
    "the protocol": {"protocol": "lm-eval"},
}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_a_column_has_cells_of_one_kind_alone_and_their_own_lossless_one(options, tmp_path):
    drafting = ("lossless", "ensemble")
    first, second = cells_of(rules=drafting), cells_of(rules=drafting, ws=(0.3, 0.5, 0.7), **options)
    table = measure(tmp_path / "both", (first, 8), (second, 7))
    alone = [measure(tmp_path / f"{n}", (cells, n)) for cells, n in ((first, 8), (second, 7))]
    is_first = set(table["cell"]) == keys(first)
    assert is_first or set(table["cell"]) == keys(second)
    assert table.equals(alone[0] if is_first else alone[1])
    assert is_first == ({"top_p", "top_k"} & set(options) != set()), (
        "without top-k and top-p, then the most texts: 28, not 24"
    )


def test_seeds_of_one_kind_are_still_one_row(tmp_path):
    table = measure(tmp_path / "seeds", *((cells_of(seed=seed), 5) for seed in (0, 1, 2)))
    assert len(table) == 5
    assert set(table["num_seeds"]) == {3}


def test_the_paper_s_own_prompt_comes_first_and_what_lacks_there_is_missing(tmp_path):
    table = measure(tmp_path / "a", (cells_of(), 9), (cells_of(protocol="diversed", rules=("lossless", "target")), 4))
    assert dict(zip(table["verifier"], table["protocol"], strict=True)) == {
        "lossless": "diversed",
        "target": "diversed",
    }
    (static,) = [
        gap
        for gap in paper_cells.missing(TABLE1, table, {})
        if gap.task == TASK and gap.model == PAIR and "method=static" in gap.command
    ]
    assert "ensemble w=0.5 K=5" in static.settings
    assert "lossless K=5" not in static.settings


def test_a_table_names_the_options_of_a_column(tmp_path):
    cells = cells_of(top_p=0.9, target_dtype="torch.bfloat16", draft_quantization="int8")
    rows = paper_tables.measured_entries(TABLE1, measure(tmp_path / "a", (cells, 4)))
    assert rows[0].cells[0][0] == f"{TASK}, completion/1, top_p=0.9, bfloat16, plain and int8"
