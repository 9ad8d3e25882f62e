"""The pair of a table in results/real, by the names of its files: a table of one pair takes no rows of another."""

from pathlib import Path

import pandas as pd


def pair_of(target: str, draft: str) -> str:
    """Return the name of a pair: a GGUF file and a folder with its weights dequantised have one name."""
    return " and ".join(
        name if name.startswith("embedded:") else Path(name).name.removesuffix(".gguf") for name in (target, draft)
    )


def rows_of(file: Path, pair: str | None) -> pd.DataFrame:
    """Return the rows of a table, none if there is no such file; a ValueError if they are of another pair. None: of any pair."""
    if not file.is_file():
        return pd.DataFrame()
    rows = pd.read_csv(file)
    if pair is None:
        return rows
    names = set(rows["pair"].fillna("an unknown pair")) if "pair" in rows else {"an unknown pair"}
    if others := sorted(names - {pair}):
        raise ValueError(f"{file} has rows of {', '.join(others)}, not of {pair}: give another out=")
    return rows
