"""results/real: the tables and figures of real pairs, from the records of their runs.

    python scripts/real_tables.py FOLDER [FOLDER …] [out=results/real] [add=false]
    python scripts/real_tables.py [out=results/real]    # rewrites README.md and decisions.csv from the committed tables

A FOLDER holds the records of one pair and task, from one or several of `experiment=real-…`, finished or not. `out` gets folders
called [MODEL-]TASK[-FORM][-T1][-PART] (real_parts.py): the sweep of w; the parts `rules`, `lengths`, `drafters` and `prices`; and
for records called …-packed-rules, …-learned, …-latency, …-assisted, …-packed or …-float32 a part of that name. Files are
summary.csv (a row per cell), metrics.csv (every score), scores.parquet (scores and counts by an example's row in the data set, no
text) and, at T = 0, equal_texts.csv. `packed`, `float32` and parts with assisted generation also have times.csv (seconds by
example, for each draft length of one latency pass); drafters also have drafters.csv, if the run noted shared tokens or counts; a
sweep of w also has decisions.csv (what to ship at margins of 5 and 2 points, by the speeds of the task's latency part if there
is one: real_decisions.py) and the plane of acceptance and quality. With add=true, rows of cells and drafters that the records do
not hold are kept, as are rows of draft lengths in times.csv, but not those of equal_texts.csv, whose names are valid within one
run.
README.md has a row for each sweep and for each other setting, tasks.svg a panel per sweep, and ranks.svg the order of drafters
under each rule.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

import sdbench
from scripts.drafter_tables import add_prices
from scripts.real_decisions import redecide
from scripts.real_parts import MARGINS, OF_DRAFTERS, TIMED, RealFolder, divide, own_draft
from scripts.real_readme import redraw
from scripts.zoo_tables import remove_prints
from sdbench.metrics.cells import reference, table_of
from sdbench.metrics.columns import spread
from sdbench.metrics.export import metrics_of, metrics_table, write_scores
from sdbench.metrics.gain import Passes
from sdbench.metrics.recommend import Advice, decide, fastest
from sdbench.metrics.summary import summarise
from sdbench.metrics.weigh import Weighed, weigh_sweeps
from sdbench.records import Results
from sdbench.report.figures.planes import pareto
from sdbench.report.figures.style import house_style, save
from sdbench.report.sweep import sweeps_of
from sdbench.words import exit_on_mistake, parse_words

KEYS = {  # columns that identify a setting or drafter, for each table that add=true joins
    "summary.csv": ["cell"],
    "metrics.csv": ["cell"],
    "scores.parquet": ["cell"],
    "times.csv": ["num_draft"],  # all settings with the same draft length are from one pass
    "drafters.csv": ["drafter"],
}
SHARED, COUNTED = ("shared_tokens", "target_tokens"), ("blocks", "offered", "lost", "text_s")  # of drafters.csv


def decision(weighed: Weighed, advice: Advice, summary: pd.DataFrame) -> dict[str, object]:
    """Return a row of decisions.csv: the fastest safe setting, by measured or else by modelled speed, and what it costs."""
    safe = [test for test in advice.tests if test.is_safe(advice.margin)]
    best = next((test for test in safe if test.cell == advice.cell), None) or fastest(weighed, safe)
    row: dict[str, object] = {"margin": advice.margin, "kind": advice.kind, "text": advice.text}
    if best is None:
        return row
    cell = summary.set_index("cell").loc[best.cell]
    gain = weighed.gains.get(best.cell)
    sooner = None if gain is None else gain.sooner
    row |= {
        "setting": weighed.names[best.cell],
        "acceptance": cell["acceptance"],
        "change": best.change,
        "worst": best.worst,
    }
    row |= {"is_timed": gain is not None, "n": best.difference.n}
    if sooner is not None:
        row |= {**spread("sooner", sooner), "num_timed": sooner.n}
    return row


def add_sooner(summary: pd.DataFrame, results: Results) -> pd.DataFrame:
    """Return the summary with `sooner`: seconds per answer of lossless decoding, with as many drafts, divided by a setting's."""
    passes, cells = Passes.of(results.timings), table_of(results.cells)
    drafting = summary["cell"][(summary["num_draft"] > 0) & (summary["verifier"] != "lossless")]
    bases = {key: base for key in drafting if (base := reference(cells, key, "lossless"))}
    rows = {key: spread("sooner", sooner) for key, base in bases.items() if (sooner := passes.sooner(key, base))}
    return summary.join(pd.DataFrame.from_dict(rows, orient="index"), on="cell")


def times_of(results: Results) -> pd.DataFrame:
    """Return a row for each setting and example that were timed together: tokens, and seconds with the prompt; repeats averaged.

    Settings with the same draft length are from one pass: the newest with both lossless decoding and assisted generation; if there
    is none, the newest with lossless decoding, or with the target alone.
    """
    passes, key = Passes.of(results.timings), ["verifier", "w", "num_draft"]
    settings = results.timings.drop_duplicates("cell").set_index("cell")[key]
    frames = []
    for _, alike in settings.groupby("num_draft"):
        cells = [*alike.index[alike["verifier"].isin(["lossless", "target"])], *alike.index]
        pair = passes.newest(cells[0], alike.index[alike["verifier"] == "assisted"].tolist())
        timed = passes.newest(cells[0], cells) if pair is None else pair
        frames += [] if timed is None else [timed[timed.index.isin(cells, level="cell")]]
    times = pd.concat(frames).reset_index().join(settings, on="cell").rename(columns={"total_s": "seconds"})
    return times[[*key, "example", "tokens", "seconds"]].sort_values([*key, "example"], ignore_index=True)


def facts_of_drafters(results: Results) -> pd.DataFrame:
    """Return a row for each drafter for which jobs noted the tokens shared with the draft, or counts. Counts are summed over jobs
    and include what an interrupted job decoded in vain.
    """
    rows: dict[str, dict[str, float]] = {}
    for provenance in results.provenance.values():
        for entry in provenance.get("drafters", []):
            row = rows.setdefault(entry["name"], {})
            row |= {name: entry[name] for name in SHARED if name in entry}
            counts = {name: count for name, count in entry.get("counts", {}).items() if name in COUNTED}
            row |= {name: row.get(name, 0) + count for name, count in counts.items()}
    facts = [{"drafter": name, **row} for name, row in sorted(rows.items()) if row]
    return pd.DataFrame(facts).reindex(columns=["drafter", *SHARED, *COUNTED])


def write(run: Path, out: Path, *, is_added: bool = False) -> None:
    """Write the tables and figures of a run's records, part by part."""
    for place, results in divide(sdbench.read(run)):
        folder = out / place.name
        if is_added and not place.part:
            raise ValueError(f"add=true cannot join {place.name}: settings to ship are chosen among those of one run")
        held = {path: read_table(path) for name in KEYS if (path := folder / name).exists() and is_added}
        write_part(place, results, folder)
        for path, rows in held.items():
            write_table(path, join(rows, read_table(path), KEYS[path.name]))


def read_table(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def write_table(path: Path, rows: pd.DataFrame) -> None:
    if path.suffix == ".parquet":
        rows.to_parquet(path, index=False, compression="zstd")
    else:
        rows.to_csv(path, index=False, float_format="%.6g")


def join(held: pd.DataFrame, new: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the rows of both tables; of rows with the same `keys`, only the new ones."""
    held_keys, new_keys = (pd.MultiIndex.from_frame(rows[keys].fillna(-1)) for rows in (held, new))
    return pd.concat([held[~held_keys.isin(new_keys)], new])


def write_part(place: RealFolder, results: Results, folder: Path) -> None:
    """Write one folder of results/real."""
    summary = summarise(results)
    folder.mkdir(parents=True, exist_ok=True)
    if place.part in OF_DRAFTERS and (own := own_draft(results)):
        summary["drafter"] = summary["drafter"].replace("model", own)
    if place.part == "prices":
        add_prices(summary, results)
    if place.part in TIMED:
        summary = add_sooner(summary, results)
    timed = set(results.timings["cell"].map(results.cells.set_index("cell")["verifier"]))
    if place.part in ("packed", "float32") or (place.part in TIMED and "assisted" in timed):
        times_of(results).to_csv(folder / "times.csv", index=False, float_format="%.6g")
    summary.to_csv(folder / "summary.csv", index=False, float_format="%.6g")
    write_scores(folder / "scores.parquet", results)
    scores = metrics_table(results, metrics_of(results))
    scores[["cell", "metric", "value", "low", "high", "n"]].to_csv(
        folder / "metrics.csv", index=False, float_format="%.6g"
    )
    (sweep,) = sweeps_of([results], [summary])
    if sweep.equal_texts:
        pd.DataFrame(map(asdict, sweep.equal_texts)).to_csv(folder / "equal_texts.csv", index=False)
    facts = facts_of_drafters(results)
    if place.part == "drafters" and len(facts):
        facts.to_csv(folder / "drafters.csv", index=False, float_format="%.6g")
    if place.part:
        return
    (weighed,) = weigh_sweeps(results)
    rows = [decision(weighed, decide(weighed, margin), summary) for margin in MARGINS]
    pd.DataFrame(rows).to_csv(folder / "decisions.csv", index=False, float_format="%.8g")
    with house_style():
        figure = pareto(sweep)
        if figure is not None:
            save(figure, folder, "pareto")
    remove_prints(folder)


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("real_tables", __doc__, words):
        given = parse_words(words, {"out": "results/real", "add": "false"})
        if (add := given.options.get("add", "false")) not in ("true", "false"):
            raise ValueError(f"add must be true or false, got {add}")
        out = Path(given.options.get("out", "results/real"))
        out.mkdir(parents=True, exist_ok=True)
        for run in map(Path, given.paths):
            write(run, out, is_added=add == "true")
    redecide(out)
    redraw(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
