"""The pair of a table in results/real, identified by the names of its files. A table has rows of one pair only."""

from pathlib import Path

import pandas as pd


def pair_of(target: str, draft: str) -> str:
    """Return the name of a pair; a GGUF file and a folder with its dequantised weights have the same name."""
    return " and ".join(
        name if name.startswith("embedded:") else Path(name).name.removesuffix(".gguf") for name in (target, draft)
    )


def rows_of(file: Path, pair: str | None) -> pd.DataFrame:
    """Return the rows of a table, none if there is no such file; ValueError if they are of another pair. `pair` None: any pair."""
    if not file.is_file():
        return pd.DataFrame()
    rows = pd.read_csv(file)
    if pair is None:
        return rows
    names = set(rows["pair"].fillna("an unknown pair")) if "pair" in rows else {"an unknown pair"}
    if others := sorted(names - {pair}):
        raise ValueError(f"{file} has rows of {', '.join(others)}, not of {pair}: give another out=")
    return rows
