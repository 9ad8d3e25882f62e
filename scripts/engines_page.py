"""The page of `real_engines.py`, from its table alone: a row for each setting, the fastest ones, and what is not measured yet."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import pandas as pd

from sdbench.metrics.columns import estimate_of
from sdbench.metrics.markup import markdown
from sdbench.metrics.text import format_interval

LLAMACPP = ("llamacpp", "llamacpp-amx")  # one engine, built without AMX instructions and with them
ENGINES = (*LLAMACPP, "native", "native-packed", "vllm")
SERVERS = (*LLAMACPP, "vllm")
PARTS = ("texts", "audit", "speed")
LEVELS = (1, 2, 4)  # users of a server
AUDIT_LENGTH = "4"
HEAD = (
    "engine",
    "setting",
    "weights",
    "n",
    "pass@1",
    "texts equal to the target's",
    "acceptance",
    *(f"tokens/s at {level}" for level in LEVELS),
    "× the target",
    "audit at T = 1",
    "threads",
    "timed",
)
INTRODUCTION = """\
# Engines on a real pair

HumanEval through lm-evaluation-harness's prompts at T = 0, written by `python scripts/real_engines.py` from the records of
each engine. A dash: not measured. "n/a": the engine does not report it ([what each engine reports](../../docs/engines.md)), or
there is nothing to report: the target and the draft alone draft nothing and are compared with no other text. The engines do
not compute with the same weights: llama.cpp multiplies by the quantised ones of the files, native by the same weights
dequantised to bfloat16 (native-packed has them in oneDNN's layout, `model.packed=true`), vLLM by a folder's in bfloat16; so
speeds and texts of two engines differ by their weights, too. llamacpp-amx is the same server, built to use the AMX
instructions of its processor. vLLM has no acceptance here, because it sends no counts of a text that ends at a stop string.
Texts are compared with those of the target alone of the same engine: lossless *as measured* is a setting with all of them.
Tokens per second at 1 are those of decoding; at 2 and 4 users, each of whom waits for an answer before the next request, those
of all users together, prompts included. A server keeps 4 slots, however many users there are. The native engines, which are no
servers, decode 2 and 4 texts in a batch instead, which is not refilled while its last texts end. *× the target* divides the
tokens per second of one user by those of the target alone in the same latency pass. Of the native engines each draft length
has a pass of its own, with the target alone (the faster of theirs and transformers' `generate`), so it is not the ratio of two
rows. A server has one pass, in which its settings are timed one after another, the target alone first. Speeds of rows that
were timed on different days are those of different machines, or of one in another state, and are not compared. The texts of a
row may have been decoded on another day than its speeds were measured. The audit at T = 1 says with "TV 0.15" that such a
total variation between prefixes of two tokens would have been detected with probability .95. vLLM was audited with sdbench's
plug-in inside; without it vLLM's CPU build does not sample correctly at T = 1 ([audit/vllm.md](../audit/vllm.md)). Its texts at
T = 0 and its speeds are those without the plug-in. The column n is the number of texts behind pass@1, equal texts and acceptance;
speeds are of the first eight of them.
"""
EARLIER_AUDIT = """\
\\* By an earlier version of the audit, which tested first tokens, prefixes of two tokens, and the shares of all tokens by their
cumulative probability. llama.cpp draws the first token of a text without a draft, so that its speculation is tested by the other
two alone. Of the shares a total variation of .05 would have been detected with probability .95; how large a deviation between
prefixes of two tokens would have been missed is not known.
"""
HIGHEST = (
    "Highest speed that was measured, the draft alone left out; the next ones may differ from it by chance only:\n"
)
NOT_MEASURED, NOT_REPORTED = "–", "n/a"


class Setting(NamedTuple):
    verifier: str
    num_draft: int
    p_min: float | None = None

    def __str__(self) -> str:
        name = f"K = {self.num_draft}" if self.verifier == "lossless" else f"{self.verifier} alone"
        return name + (f", p-min {self.p_min:g}" if self.p_min is not None else "")


def setting_of(row: Mapping[str, Any]) -> Setting:
    return Setting(row["verifier"], int(row["num_draft"]), float(row["p_min"]) if pd.notna(row["p_min"]) else None)


def wanted_settings(engine: str, part: str, options: Mapping[str, str]) -> list[Setting]:
    """Return the settings of an engine that a part of the script measures."""
    target, lengths = Setting("target", 0), [int(length) for length in options["lengths"].split(",")]
    if part == "audit":
        return [target, Setting("lossless", int(AUDIT_LENGTH))]
    p_mins = [float(p_min) for p_min in options["p_mins"].split(",")] if engine in LLAMACPP else []
    drafting = [Setting("lossless", length) for length in lengths]
    drafting += [Setting("lossless", lengths[-1], p_min) for p_min in p_mins]
    return [target, *([Setting("draft", 0)] if part == "texts" else []), *drafting]


def is_measured(row: Mapping[str, Any], part: str, n: int) -> bool:
    if part == "texts":
        return row["n"] >= n
    if part == "audit":
        return isinstance(row["audit"], str)
    return all(pd.notna(row[f"tokens_per_s_{level}"]) for level in LEVELS)


def missing_rows(table: pd.DataFrame, options: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield what is not measured yet: engine, part, the settings that lack it, and threads.

    Not every processor has AMX, so llamacpp-amx lacks nothing with a number of threads of which the table has no row.
    """
    rows = {
        (row["engine"], int(row["threads"]), setting_of(row)): row for row in table.astype(object).to_dict("records")
    }
    present = {(engine, threads) for engine, threads, _ in rows}
    for engine, threads in product(ENGINES, sorted({int(options["threads"]), *table["threads"].astype(int)})):
        if engine == "llamacpp-amx" and (engine, threads) not in present:
            continue
        for part in PARTS:
            missing = [
                str(setting)
                for setting in wanted_settings(engine, part, options)
                if (row := rows.get((engine, threads, setting))) is None
                or not is_measured(row, part, int(options["n"]))
            ]
            if missing:
                yield [engine, part, "; ".join(missing), str(threads)]


def missing_text(table: pd.DataFrame, options: Mapping[str, str]) -> str:
    """Return the settings that lack texts, the audit or a speed, and the command that measures them."""
    levels = ", ".join(map(str, LEVELS[:-1])) + f" and {LEVELS[-1]}"
    about = (
        f"Not measured yet: `texts` is lacking where a setting has fewer than {options['n']}, `speed` where one of the columns at "
        f"{levels} users is empty. A row is measured by\n\n"
        f"    python scripts/real_engines.py target=… draft=… data=humaneval.jsonl n={options['n']} engines=ENGINE parts=PART "
        "threads=THREADS\n\n"
        "with binary=FILE for llamacpp and llamacpp-amx, which are two builds of llama-server, and with python=FILE and folders as "
        "target= and draft= for vllm.\n"
    )
    rows = list(missing_rows(table, options))
    return "\n".join([about, markdown(("engine", "part", "settings", "threads"), rows, num_left=3)]) if rows else ""


def fastest(table: pd.DataFrame) -> Iterator[str]:
    """Yield a line about the fastest setting, except the draft alone, for each day, number of threads and number of users."""
    usable = table[(table["verifier"] != "draft") & table["timed"].notna()].reset_index(drop=True)
    days = sorted(set(usable["timed"]))
    for day, threads, level in product(days, sorted(set(usable["threads"])), LEVELS):
        column = f"tokens_per_s_{level}"
        rows = usable[(usable["timed"] == day) & (usable["threads"] == threads) & usable[column].notna()]
        if len(rows) < 2:
            continue
        best = rows.loc[rows[column].astype(float).idxmax()]
        is_alone = (rows["engine"] == best["engine"]) & (rows["verifier"] == "target") & (best["verifier"] != "target")
        alone = rows[is_alone][column]
        times = best[column] / alone.iloc[0] if len(alone) else float("nan")
        if level == 1 and len(alone) and pd.notna(best.get("speedup")):
            times = best["speedup"]  # measured within one pass, while the two rows may be from different passes
        ratio = f", {times:.2f} times its target alone" if pd.notna(times) else ""
        yield (
            f"- {day}, {threads:g} thread{'s' * (threads > 1)}, {level} user{'s' * (level > 1)}: "
            f"{best['engine']}, {setting_of(best)} ({best[column]:.1f} tokens/s{ratio})."
        )


def is_reported(row: Mapping[str, Any], column: str) -> bool:
    """Return whether a measurement can fill a column of this row. vLLM sends no counts of texts that end at a stop string."""
    is_of_drafts = column in ("num_equal", "acceptance")
    return not is_of_drafts or (row["verifier"] == "lossless" and (column, row["engine"]) != ("acceptance", "vllm"))


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """Return a row of the table as text."""
    speeds = {f"tokens_per_s_{level}": row[f"tokens_per_s_{level}"] for level in LEVELS}
    texts = {
        "weights": row["weights"],
        "n": str(int(row["n"])),
        "quality": format_interval(estimate_of(row, "quality"), 1, scale=100),
        "num_equal": f"{int(row['num_equal'])} of {int(row['num_compared'])}" if pd.notna(row["num_equal"]) else None,
        "acceptance": format_interval(estimate_of(row, "acceptance"), 3),
        **{name: f"{speed:.1f}" if pd.notna(speed) else None for name, speed in speeds.items()},
        "speedup": format_interval(estimate_of(row, "speedup"), 2),
        "audit": f"{row['audit']} \\*" if is_of_earlier_audit(row) else row["audit"],
        "threads": str(int(row["threads"])),
        "timed": row["timed"],
    }
    marks = {name: NOT_MEASURED if is_reported(row, name) else NOT_REPORTED for name in texts}
    shown = [text if isinstance(text, str) and text else marks[name] for name, text in texts.items()]
    return [row["engine"], str(setting_of(row)), *shown]


def is_of_earlier_audit(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a verdict that does not state the total variation between prefixes of two tokens."""
    return isinstance(row["audit"], str) and "TV" not in row["audit"]


def page(table: pd.DataFrame, options: Mapping[str, str]) -> str:
    """Return the whole page. `options` are those of the script, since n, lengths, p-mins and threads decide what is missing."""
    rows = table.to_dict("records")
    parts = [INTRODUCTION, markdown(HEAD, [cells_of(row) for row in rows], num_left=3)]
    parts += [EARLIER_AUDIT] if any(map(is_of_earlier_audit, rows)) else []
    best: Sequence[str] = list(fastest(table))
    parts += [HIGHEST, "\n".join(best) + "\n"] if best else []
    return "\n".join([*parts, missing_text(table, options)])
