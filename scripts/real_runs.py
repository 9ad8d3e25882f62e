"""results/real/runs.md: does `python -m sdbench` keep its promises with a real pair? Memory, a kill, a second dtype, its estimates.

    python scripts/real_runs.py TARGET DRAFT data=humaneval.jsonl [parts=memory,kill,lines] [rows=1,8,32] [temperatures=0,1]
                                [dtype=bfloat16] [n=3] [tokens=48] [runs=FOLDER] [out=results/real]

TARGET and DRAFT are GGUF files or folders; each figure is measured on whole commands, `python -m sdbench`, in separate processes.

- memory: for each of `rows` and `temperatures` (1 with top_p=.95), the memory that --plan states for a batch of so many rows, and
  the peak of the run's memory minus that of a run of a toy pair, which imports the same libraries. With plain weights in `dtype`,
  and with model.packed=true.
- kill: a run of n problems is killed (SIGKILL) when its first texts are recorded, and the same command continues; then the same is
  done in float32 in the same folder. The records must equal those of an undisturbed folder, in texts and counts, and the page must
  name both dtypes.
- lines: when a run of LINES prints its first line, and by which factor its "s left" differ from the time that the rest then took,
  from the tenth text to ten seconds before its end.

`runs` keeps the records, and must be empty or new, because a run that finds its texts decodes none. `out` gets runs.csv and
runs.md; rows of parts that are not measured are kept, and rows of another pair are refused. The exit status is 1 if a figure misses
its bound.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

from scripts import real_pair
from sdbench.files import write_whole
from sdbench.metrics.markup import markdown
from sdbench.records import read
from sdbench.subcommand import Exit
from sdbench.words import choose, exit_on_mistake, parse_words

DEFAULTS = {
    "parts": "memory,kill,lines",
    "rows": "1,8,32",
    "temperatures": "0,1",
    "dtype": "bfloat16",
    "n": "3",
    "tokens": "48",
    "runs": "",
    "out": "results/real",
}
DTYPES = ("bfloat16", "float32")
BOUND = 0.15  # largest deviation, as a share of the planned memory
GIB = 2**30
PLANNED = re.compile(r"memory: ([\d.]+) GiB of weights \+ ([\d.]+) of keys and values \+ ([\d.]+) of distributions")
LINES: dict[str, object] = {"n": 16, "max_new_tokens": 256}  # answers of different lengths
FIRST_LINE_S, FACTOR = 10, 2  # bounds of the first line and of "s left"
LEAST_TEXTS, LEAST_LEFT_S = 10, 10  # estimates before so many texts, or with fewer seconds left, are not judged
PROGRESS = re.compile(r"decoding: (\d+)/(\d+) in ([\d.]+) s(?:.*?, (\d+) s left)?")
COLUMNS = ("what", "wanted", "measured", "is_met")


@dataclass(frozen=True)
class Pair:
    """The options that all commands share, and what follows from them."""

    target: str
    draft: str
    data: str
    tokens: int

    def command(self, folder: Path, **options: object) -> list[str]:
        words = {
            "model.target": self.target,
            "model.draft": self.draft,
            "model.name": "pair",
            "task": "humaneval",
            "task.data": self.data,
            "task.seed": "null",
            "temperature": 0,
            "w": 0.5,
            "max_new_tokens": self.tokens,
            "timing": "off",
            "report": "off",
            "results": folder,
        }
        return [sys.executable, "-m", "sdbench", *(f"{key}={value}" for key, value in (words | options).items())]


@dataclass(frozen=True)
class Row:
    what: str
    wanted: str
    measured: str
    is_met: bool


def run(command: list[str]) -> tuple[str, int]:
    """Run a command to its end; return its output and its peak of memory in bytes. RuntimeError if it fails."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {text[-2000:]}")
    return text, usage.ru_maxrss * 1024


def memory(pair: Pair, folder: Path, options: dict[str, str]) -> Iterator[Row]:
    """Yield the planned and the measured peak for each number of rows."""
    small = ("n=1", "w=null", "max_new_tokens=2", "timing=off", "report=off", f"results={folder / 'imports'}")
    _, imports = run([sys.executable, "-m", "sdbench", "model=llama-tiny", "task=gsm8k-tiny", *small])
    layouts: dict[str, dict[str, object]] = {"": {}, ", packed weights": {"model.packed": "true"}}
    numbers, dtype = map(int, options["rows"].split(",")), options["dtype"]
    for count, ((name, packed), temperature, rows) in enumerate(
        product(layouts.items(), options["temperatures"].split(","), numbers)
    ):
        sampling: dict[str, object] = {"temperature": temperature, "top_p": 0.95} if temperature == "1" else {}
        named = f", T = {temperature}" * bool(sampling) + f", {dtype}" * (dtype != DEFAULTS["dtype"]) + name
        where = folder / f"memory-{count}"
        words = pair.command(where, n=rows, batch_size=rows, dtype=dtype, **packed, **sampling)
        line = PLANNED.search(run([*words, "--plan"])[0])
        assert line, "--plan says no memory"
        planned, measured = sum(map(float, line.groups())), (run(words)[1] - imports) / GIB
        is_met = abs(measured / planned - 1) <= BOUND
        yield Row(f"memory of {rows} rows{named}", f"{planned:.2f} GiB ± 15 %", f"{measured:.2f} GiB", is_met)


def kill(pair: Pair, folder: Path, options: dict[str, str]) -> Iterator[Row]:
    """Yield how the records of a killed run compare with those of an undisturbed one, for one dtype, then another in the same
    folder.
    """
    from tests.records.equality import RESUMED, assert_same_records

    num, killed, undisturbed = int(options["n"]), folder / "killed", folder / "undisturbed"
    for count, dtype in enumerate(DTYPES, 1):
        before = num_texts(killed)
        commands = [pair.command(where, n=num, batch_size=1, dtype=dtype) for where in (killed, undisturbed)]
        process = subprocess.Popen(commands[0], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while num_texts(killed) == before and process.poll() is None:
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        was_killed, held = process.wait() == -signal.SIGKILL, num_texts(killed) - before
        for command in commands:
            run(command)
        whole, num_cells = num_texts(killed), len(read(undisturbed / "pair-humaneval").cells)
        try:
            assert_same_records(killed / "pair-humaneval", undisturbed / "pair-humaneval", tolerance=RESUMED)
            compared = "equal to"
        except AssertionError as error:
            compared = f"other than ({error})"
        is_met = was_killed and 0 < held < num_cells * num // count and compared == "equal to"
        wanted = f"{num_cells * num} texts, equal to those of an undisturbed run"
        measured = f"{whole} texts, {held} of them before the kill, {compared} those of an undisturbed run"
        yield Row(f"kill -9 and the same command again, {dtype}", wanted, measured, is_met and whole == num_cells * num)
    run([sys.executable, "-m", "sdbench", "report", str(killed / "pair-humaneval")])
    page = (killed / "pair-humaneval" / "report.html").read_text()
    named = [dtype for dtype in DTYPES if dtype in page]
    yield Row("dtypes on the page of one folder", " and ".join(DTYPES), " and ".join(named), len(named) == len(DTYPES))


def lines(pair: Pair, folder: Path, options: dict[str, str]) -> Iterator[Row]:
    """Yield when the first line was printed, and the estimate of the seconds left that was most wrong."""
    started_s, first_s, printed = time.monotonic(), float("nan"), []
    command = pair.command(folder / "lines", dtype=options["dtype"], **LINES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not printed:
                first_s = time.monotonic() - started_s
            printed.append(line)
    text = "".join(printed)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {text[-2000:]}")
    yield Row("first line of a run", f"within {FIRST_LINE_S} s", f"{first_s:.1f} s", first_s <= FIRST_LINE_S)
    factors = factors_of(text)
    measured = f"at most {max(factors):.2f}, in {len(factors)} lines"
    yield Row('factor between "s left" and what was left', f"at most {FACTOR}", measured, max(factors) <= FACTOR)


def factors_of(text: str) -> list[float]:
    """Return for each estimate that is judged the factor, at least 1, between it and the seconds that were really left."""
    lines_of_run = [tuple(float(x or 0) for x in match) for match in PROGRESS.findall(text)]
    end_s = lines_of_run[-1][2] if lines_of_run else 0.0
    judged = [
        (left_s, end_s - s) for done, _, s, left_s in lines_of_run if done >= LEAST_TEXTS and end_s - s >= LEAST_LEFT_S
    ]
    factors = [max(left_s / true_s, true_s / max(left_s, 1)) for left_s, true_s in judged]
    if not factors:
        raise RuntimeError(f"the run of {LINES['n']} problems ended before an estimate could be judged")
    return factors


def num_texts(folder: Path) -> int:
    """Return how many texts all parts of the records hold; a text that was written twice counts twice."""
    import pyarrow.parquet as pq

    parts = (folder / "pair-humaneval" / "records").glob("generations-*.parquet")
    return sum(pq.read_metadata(part).num_rows for part in parts)


PARTS = {"memory": memory, "kill": kill, "lines": lines}


def write(out: Path, rows: list[Row], pair: str) -> None:
    """Add rows of a pair to those of `out`; a row with the same name is replaced in its position."""
    path, table = out / "runs.csv", pd.DataFrame([vars(row) for row in rows], columns=COLUMNS).assign(pair=pair)
    if len(others := real_pair.rows_of(path, pair)):
        table = pd.concat([others, table])
        order = table["what"].unique()
        table = table.drop_duplicates("what", keep="last").set_index("what").loc[order].reset_index()
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)
    head = ["what", "wanted", "measured", "met"]
    cells = [[*map(str, row[:3]), "yes" if row[3] else "**no**"] for row in table.itertuples(index=False)]
    about = (
        "Whole commands on the real pair, HumanEval, on the CPU, in bfloat16 and at T = 0 where a row says nothing else. Memory:\n"
        "`--plan`'s sum of weights, keys and values and distributions, and the peak of the run beyond that of a toy pair's run,\n"
        "which imports the same libraries; at T = 1 with top_p = 0.95. Estimates of the seconds left are those from the\n"
        "tenth text to ten seconds before the end, of a run of 16 problems with answers of at most 256 tokens.\n"
        "Written by `python scripts/real_runs.py`."
    )
    write_whole(out / "runs.md", f"# What the command promises\n\n{about}\n\n{markdown(head, cells, num_left=4)}")


def main(words: list[str]) -> int:
    with exit_on_mistake("real_runs", __doc__, words):
        given = parse_words(words, {**DEFAULTS, "data": ""})
        if len(given.paths) != 2 or "data" not in given.options:
            raise ValueError("give TARGET, DRAFT and data=humaneval.jsonl")
        options = DEFAULTS | dict(given.options)
        parts = choose("parts", options["parts"], PARTS)
        for name in ("rows", "n", "tokens"):
            numbers = options[name].split(",") if name == "rows" else [options[name]]
            if not all(number.isdecimal() and int(number) for number in numbers):
                raise ValueError(
                    f"{name} must be a whole number above 0, rows also several with commas, got {options[name]}"
                )
        choose("temperatures", options["temperatures"], ("0", "1"))
        if options["dtype"] not in DTYPES:
            raise ValueError(f"dtype must be {' or '.join(DTYPES)}, got {options['dtype']}")
        if options["runs"] and Path(options["runs"]).is_dir() and any(Path(options["runs"]).iterdir()):
            raise ValueError(f"{options['runs']} is not empty: give another runs=, or none")
        pair_name = real_pair.pair_of(*given.paths)
        real_pair.rows_of(Path(options["out"]) / "runs.csv", pair_name)
    pair = Pair(*given.paths, options["data"], int(options["tokens"]))
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for part in parts:
                for row in PARTS[part](pair, Path(options["runs"] or folder), options):
                    rows.append(row)
                    print(row, flush=True)
                    write(Path(options["out"]), rows, pair_name)
    except RuntimeError as error:
        print(f"real_runs: {error}", file=sys.stderr)
        return Exit.FAILED
    return int(not all(row.is_met for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
