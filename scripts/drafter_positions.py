"""results/drafters/positions.md: trained drafters by position of the draft, by draft length, and by the task of their training.

    python scripts/drafter_positions.py [parts=lengths,domains] [n=100] [records=results] [out=results/drafters]

`lengths` decodes word problems at T = 0 and T = 1 with the lossless rule and 1 to 5 drafted tokens per round. `domains` trains each
head for word problems, for summaries and for programs, by its documented command. With the lossless rule and the ensemble at
w = 0.7 it decodes each task at T = 0 with the heads trained for each of the tasks, and at T = 1 with those trained for the same
task. The pair is llama-tiny. Results of training and decoding are kept in `records`: after an interruption the same command
continues. `out` gets lengths.csv, by_position.csv, domains.csv and positions.md.
"""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

import sdbench
from scripts.healing_tables import sdbench_command
from sdbench.card import CARD
from sdbench.metrics.acceptance import by_position
from sdbench.metrics.columns import estimate_of
from sdbench.metrics.markup import markdown
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import format_interval
from sdbench.records import Results
from sdbench.words import choose, exit_on_mistake, parse_words

PARTS = ("lengths", "domains")
DEFAULTS = {"parts": ",".join(PARTS), "n": "100", "records": "results", "out": "results/drafters"}
DRAFTERS = ("model", "pruned", "medusa", "mtp", "eagle", "eagle3", "block")
HEADS = ("medusa", "mtp", "eagle", "eagle3", "block")
OPTIONS = {"medusa": ("once=0",)}  # options of the trainings, as for the heads that ship
LENGTHS = (1, 2, 3, 4, 5)
DOMAINS = {"gsm8k-tiny": "word problems", "cnndm-tiny": "summaries", "humaneval-tiny": "programs"}
MEASURES = ("acceptance", "tokens_per_round")
SPREADS = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
LOSSES = [f"{name}{end}" for name in ("quality", "difference") for end in ("", "_low", "_high")]
OF_DOMAINS = ["trained_for", "task", "temperature", "drafter", "verifier", "n", *SPREADS, *LOSSES]
COLUMNS = ["temperature", "drafter", "num_draft", "n", *SPREADS]


def run(name: str, records: Path, *words: str) -> Results:
    """Return the records of a run; only what is missing is decoded."""
    sdbench_command("model=llama-tiny", "timing=off", "report=off", f"results={records}", f"name={name}", *words)
    return sdbench.read(records / name)


def settings_of(results: Results) -> pd.DataFrame:
    """Return a row for each drafter and draft length of a run, without the baselines."""
    summary = summarise(results)
    return summary[summary["drafter"].notna()]


def measure_lengths(n: str, records: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row for each temperature, drafter and draft length, and one for each position of the longest drafts."""
    lengths, positions = [], []
    for temperature in ("0", "1"):
        choice = [f"drafter=[{','.join(DRAFTERS)}]", f"num_draft=[{','.join(map(str, LENGTHS))}]", "task=gsm8k-tiny"]
        choice += ["verifier=exact", f"temperature={temperature}", f"n={n}"]
        results = run(f"positions-T{temperature}", records, *choice)
        table = settings_of(results)
        lengths.append(table.reindex(columns=COLUMNS))
        longest = table[table["num_draft"] == max(LENGTHS)].set_index("cell")["drafter"]
        slots = by_position(results.rounds[results.rounds["cell"].isin(longest.index)])
        positions.append(slots.assign(drafter=slots["cell"].map(longest), temperature=float(temperature)))
    return pd.concat(lengths), pd.concat(positions).drop(columns="cell")


def train(drafter: str, task: str, records: Path) -> Path:
    """Return the folder of a head, trained if it does not exist yet."""
    out = records / "heads" / f"{drafter}-llama-tiny-{task}"
    if not (out / CARD).exists():
        words = ["model=llama-tiny", "model.draft=null", f"task={task}", f"out={out}", *OPTIONS.get(drafter, ())]
        sdbench_command("train", drafter, *words)
    return out.resolve()


def measure_domains(n: str, records: Path) -> pd.DataFrame:
    """Return a row for each head, task of its training, task that it drafts, temperature and rule."""
    frames = []
    for trained in DOMAINS:
        heads = [f"drafter.{drafter}.head={train(drafter, trained, records)}" for drafter in HEADS]
        for task, temperature in product(DOMAINS, (0, 1)):
            if temperature == 0 or task == trained:
                choice = [f"task={task}", f"drafter=[{','.join(HEADS)}]", *heads, "model.draft=null", f"n={n}"]
                choice += [f"temperature={temperature}", "verifier=[exact,ensemble]", "w=0.7"]
                table = settings_of(run(f"domains-{trained}-on-{task}-T{temperature}", records, *choice))
                frames.append(table.assign(trained_for=trained).reindex(columns=OF_DOMAINS))
    return pd.concat(frames)


def measured(row: pd.Series, name: str, digits: int = 2, scale: float = 1) -> str:
    return format_interval(estimate_of(row.to_dict(), name), digits, scale=scale) or "–"


def text_of_lengths(lengths: pd.DataFrame, positions: pd.DataFrame) -> list[str]:
    by_length, by_slot = [], []
    for (temperature, drafter), rows in lengths.groupby(["temperature", "drafter"], sort=False):
        cells = [measured(row, "tokens_per_round") for _, row in rows.sort_values("num_draft").iterrows()]
        by_length.append([str(drafter), f"{temperature:g}", *cells])
    by_drafter = {key: rows.set_index("slot") for key, rows in positions.groupby(["temperature", "drafter"])}
    for temperature, drafter in sorted(by_drafter, key=lambda key: (key[0], DRAFTERS.index(key[1]))):
        slots = by_drafter[temperature, drafter]
        cells = [measured(slots.loc[k], "conditional") if k in slots.index else "–" for k in LENGTHS]
        by_slot.append([str(drafter), f"{temperature:g}", *cells])
    return [
        "## Tokens per round by the number of drafted tokens, on word problems",
        "",
        markdown(["drafter", "T", *(f"K = {k}" for k in LENGTHS)], by_length),
        "## Acceptance by position, of drafts of five tokens",
        "",
        "The share of tokens at each position that the target kept, of those whose predecessors it kept.",
        "",
        markdown(["drafter", "T", *(f"position {k}" for k in LENGTHS)], by_slot),
    ]


def text_of_domains(domains: pd.DataFrame) -> list[str]:
    lines = []
    is_strict = (domains["verifier"] == "lossless") & (domains["temperature"] == 0)
    for (drafter, trained), rows in domains[is_strict].groupby(["drafter", "trained_for"], sort=False):
        tasks = rows.set_index("task")
        cells = [measured(tasks.loc[task], name) for task in DOMAINS for name in MEASURES]
        lines.append([str(drafter), DOMAINS[str(trained)], *cells])
    named = [f"{what}: {name.replace('_', ' ')}" for what in DOMAINS.values() for name in MEASURES]
    return [
        "## Heads on the task of their training and on others",
        "",
        "Lossless, five drafted tokens at T = 0; a head was trained with 200 steps on the target's own answers to one task.",
        "",
        markdown(["drafter", "trained for", *named], lines),
        *text_of_losses(domains[domains["trained_for"] == domains["task"]]),
    ]


def text_of_losses(domains: pd.DataFrame) -> list[str]:
    """Return what the ensemble gains and loses with each head on the task of its training."""
    lines = []
    for (temperature, task, drafter), rows in domains.groupby(["temperature", "task", "drafter"], sort=False):
        rules = rows.set_index("verifier")
        strict, lenient = rules.loc["lossless"], rules.loc["ensemble"]
        rounds = [measured(row, "tokens_per_round") for row in (strict, lenient)]
        points = 100 if strict["quality"] <= 1 else 1
        scores = [measured(row, "quality", 1, points) for row in (strict, lenient)]
        loss = measured(lenient, "difference", 1, points)
        lines.append([DOMAINS[str(task)], f"{temperature:g}", str(drafter), *rounds, *scores, loss])
    columns = ["tokens per round", "at w = 0.7", "quality", "at w = 0.7", "difference"]
    return [
        "## Heads with the ensemble at w = 0.7, on the task of their training",
        "",
        "Quality, in points: solved examples, or ROUGE-L of summaries. The difference from lossless is paired by example.",
        "",
        markdown(["task", "T", "drafter", *columns], lines),
    ]


def text_of(out: Path) -> str:
    """Return the page, from the tables that exist in `out`."""
    parts = [
        "# Trained drafters by position, draft length and task",
        "",
        "llama-tiny, the lossless rule unless another is named, with 95 % intervals over examples.",
        "Written by `python scripts/drafter_positions.py`.",
        "",
    ]
    if (out / "lengths.csv").exists():
        parts += text_of_lengths(*(pd.read_csv(out / f"{name}.csv") for name in ("lengths", "by_position")))
    if (out / "domains.csv").exists():
        parts += text_of_domains(pd.read_csv(out / "domains.csv"))
    return "\n".join(parts)


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("drafter_positions", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
        parts = choose("parts", options["parts"], PARTS)
    records, out, n = Path(options["records"]), Path(options["out"]), options["n"]
    out.mkdir(parents=True, exist_ok=True)
    tables: dict[str, pd.DataFrame] = {}
    if "lengths" in parts:
        tables["lengths"], tables["by_position"] = measure_lengths(n, records)
    if "domains" in parts:
        tables["domains"] = measure_domains(n, records)
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    (out / "positions.md").write_text(text_of(out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
