"""scripts/real_readme.py: what it pools over folders, from tables of known seconds."""

from pathlib import Path

import pandas as pd

from scripts.real_readme import pooled_over_assisted


def write_times(folder: Path, seconds: dict[tuple[str, int], float], num_examples: int = 4) -> Path:
    """Write times.csv of a part: each answer of (rule, draft length) takes so many seconds."""
    rows = [
        {"verifier": rule, "w": None, "num_draft": k, "example": example, "tokens": 20, "seconds": answer_s}
        for (rule, k), answer_s in seconds.items()
        for example in range(num_examples)
    ]
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "times.csv", index=False)
    return folder


def test_lossless_is_pooled_at_the_draft_length_of_assisted_generation(tmp_path):
    """The others of the same pass, shorter and longer, are settings of their own."""
    times = {
        ("target", 0): 9.0,
        ("assisted", 2): 3.0,
        ("lossless", 1): 100.0,
        ("lossless", 2): 2.0,
        ("lossless", 5): 50.0,
    }
    folders = [write_times(tmp_path / name, times) for name in ("wmt-packed", "mbpp-packed")]
    sentence = pooled_over_assisted(folders)
    assert sentence.startswith("On 2 tasks together, 8 texts, answers of lossless decoding come 1.500 [1.500, 1.500] ")
    other = write_times(tmp_path / "xsum-packed", {("assisted", 1): 3.0, ("lossless", 5): 2.0})
    assert "On 2 tasks together, 8 texts" in pooled_over_assisted([*folders, other])
