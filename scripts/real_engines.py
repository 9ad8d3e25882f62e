"""Which engine decodes a real pair losslessly as measured, and which is fastest? HumanEval: results/real/engines.{csv,md}.

    python scripts/real_engines.py target=TARGET.gguf draft=DRAFT.gguf data=humaneval.jsonl [binary=llama-server] [python=PYTHON]
                                   [engines=llamacpp,llamacpp-amx,native,native-packed,vllm] [parts=texts,audit,speed]
                                   [lengths=2,4,8,16] [p_mins=0.5,0.75,0.9] [threads=1] [n=164]
                                   [runs=results/real-engines] [out=results/real]

`texts`: the target alone, the draft alone and lossless decoding at each draft length at T = 0; with llama.cpp also at each
p-min, with the longest draft. `speed`: their latency pass, with 1, 2 and 4 users; a server keeps 4 slots, and the native engine
decodes batches of as many texts (`timing.batch_size`).
`audit`: texts of eight tokens at T = 1, lossless and of the target alone, tested against the target in float32. All engines have
the same draft lengths. llamacpp-amx is llama.cpp, too, with a binary= that was built to use AMX instructions (scripts/llamacpp_env
says how): it has rows and records of its own. For vllm, python= is the interpreter of scripts/vllm_env, and target= and draft= are
folders. Records are kept in `runs`, which holds one pair: run the command again after an interruption, and only what is missing is
decoded. The tables show the runs in `runs`, what `out` has of settings without records there, and the settings that still lack
texts of n=, speed or audit. A setting whose records have no times, or no audit, keeps those in `out`. A table with rows of another
pair, by the names of the files, is refused. engines_near_ties.csv has the texts of the native engine that differ from the target's:
how far apart the logits of the two tokens are where they part (`margin`), and how far rounding can move them (`explained`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

from scripts import real_pair
from scripts.engines_page import AUDIT_LENGTH, ENGINES, LEVELS, LLAMACPP, PARTS, SERVERS, page
from sdbench.files import write_whole
from sdbench.metrics.cells import settings_of
from sdbench.metrics.columns import estimate_of, spread
from sdbench.metrics.divergence import against_greedy
from sdbench.metrics.load import load_table
from sdbench.metrics.speed import latest_pass
from sdbench.metrics.summary import summarise
from sdbench.records import Results, read
from sdbench.subcommand import Exit, ends_as_ctrl_c
from sdbench.words import choose, exit_on_mistake, parse_words

AUDIT = {"n": 2, "samples": 400, "max_new_tokens": 8, "task.stop": "[]", "temperature": 1}
DTYPE = "bfloat16"
AUDIT_TV = 0.15  # total variation that 800 texts of a few prompts can show in prefixes of two tokens
VERDICTS = {0: "sound", 1: "violated", 3: "too few texts"}
TIES = ["engine", "threads", "num_draft", "example", "token", "margin", "explained"]
ORDER = ("target", "draft", "lossless")
TIMES = [*(f"tokens_per_s_{level}" for level in LEVELS), "speedup", "speedup_low", "speedup_high", "timed"]
DEFAULTS = {
    "target": "",
    "draft": "",
    "data": "",
    "binary": "llama-server",
    "python": "",
    "engines": "llamacpp",
    "parts": "texts",
    "lengths": "2,4,8,16",
    "p_mins": "0.5,0.75,0.9",
    "threads": "1",
    "n": "164",
    "runs": "results/real-engines",
    "out": "results/real",
}


def engine_words(engine: str, options: Mapping[str, str]) -> list[str]:
    """Return the options of a run that choose its engine."""
    threads = options["threads"]
    if engine in LLAMACPP:
        return ["engine=llamacpp", f"engine.binary={options['binary']}", f"engine.args.threads={threads}"]
    if engine == "vllm":
        env = {"OMP_NUM_THREADS": threads, "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        args = {"dtype": DTYPE, "max_model_len": "2048", "enforce_eager": "true"}
        started = [
            "engine=vllm",
            f"engine.python={options['python']}",
            *(f"engine.env.{k}={v}" for k, v in env.items()),
        ]
        return [*started, *(f"engine.args.{k}={v}" for k, v in args.items())]
    return ["device=cpu", f"dtype={DTYPE}", *(["model.packed=true"] if engine == "native-packed" else [])]


def folder_name(engine: str, options: Mapping[str, str]) -> str:
    """Return the name of an engine's folder of records; runs with another number of threads have a separate folder."""
    return engine if options["threads"] == "1" else f"{engine}-{options['threads']}-threads"


def runs_of(engine: str, part: str, options: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the options of each run of a part; all runs of an engine share its records, except those of the audit."""
    pair = [f"model.target={options['target']}", f"model.draft={options['draft']}", "model.name=pair", "verifier=exact"]
    task = ["task=humaneval", "task.protocol=lm-eval", f"task.data={options['data']}", "report=off"]
    shared = [*pair, *task, *engine_words(engine, options), f"results={options['runs']}"]
    if part == "audit":
        yield [
            *shared,
            f"name={folder_name(engine, options)}-audit",
            "timing=off",
            f"num_draft={AUDIT_LENGTH}",
            *(f"{k}={v}" for k, v in AUDIT.items()),
            *(["engine.request.cache_prompt=true"] if engine in LLAMACPP else []),  # 400 texts follow each prompt
            *(["engine.plugin=true"] if engine == "vllm" else []),  # sdbench refuses the CPU build at T = 1 without it
        ]
        return
    shared += [f"name={folder_name(engine, options)}", f"n={options['n']}", "temperature=0"]
    if part == "texts":
        timings = [["timing=off"]]
    elif engine in SERVERS:
        timings = [["timing.cells=99", f"engine.concurrency=[{','.join(map(str, LEVELS))}]"]]
    else:
        timings = [["timing.cells=99", f"timing.batch_size={level}"] for level in LEVELS]
    lengths = options["lengths"].split(",")
    for length in lengths:  # the target alone is decoded once: its cell is the same in all runs
        for timing in timings:
            yield [*shared, f"num_draft={length}", *timing]
    for p_min in options["p_mins"].split(",") if engine in LLAMACPP else ():
        yield [*shared, f"num_draft={lengths[-1]}", f"engine.speculative.spec_draft_p_min={p_min}", *timings[0]]


def measure(options: Mapping[str, str], engines: Sequence[str], parts: Sequence[str]) -> None:
    """Decode what the records of these parts lack; the first run that fails ends the script."""
    env = os.environ | {"OMP_NUM_THREADS": options["threads"]}
    for engine in engines:
        for part in parts:
            for words in runs_of(engine, part, options):
                run_to_its_end([sys.executable, "-m", "sdbench", *words], env)
            if part == "audit":
                audit(engine, options)


def refuse_other_pair(engine: str, options: Mapping[str, str]) -> None:
    """Raise ValueError if the records of an engine are of another target or draft than the options name."""
    for end in ("", "-audit"):
        folder = Path(options["runs"]) / f"{folder_name(engine, options)}{end}"
        configs = read(folder).configs.values() if (folder / "records").is_dir() else ()
        for model, role in ((config.get("model") or {}, role) for config in configs for role in ("target", "draft")):
            held, given = str(model.get(role) or ""), options[role]
            if held and Path(held).resolve() != Path(given).resolve():
                raise ValueError(f"{folder} holds records of {role}={held}, not of {role}={given}: give another runs=")


def refuse_two_pairs(folder: Path, results: Results) -> None:
    """Raise ValueError if a folder holds records of two targets or drafts, because their rows and verdicts would be mixed."""
    for role in ("target", "draft"):
        column = results.cells.get(f"checkpoint_{role}", pd.Series(dtype=object))
        if len(names := sorted(column.dropna().unique())) > 1:
            raise ValueError(
                f"{folder} holds records of several {role}s ({', '.join(names)}): give each pair its own runs="
            )


def pair_of_records(options: Mapping[str, str]) -> str | None:
    """Return the pair of all records in `runs`, None if there are none; a ValueError if there are several pairs."""
    names = [f"{folder_name(engine, options)}{end}" for engine in ENGINES for end in ("", "-audit")]
    folders = [folder for name in names if ((folder := Path(options["runs"]) / name) / "records").is_dir()]
    models = [config.get("model") for folder in folders for config in read(folder).configs.values()]
    pairs = {
        real_pair.pair_of(str(model["target"]), str(model["draft"])) if isinstance(model, Mapping) else str(model)
        for model in filter(None, models)
    }
    if len(pairs) > 1:
        raise ValueError(
            f"{options['runs']} holds records of several pairs ({', '.join(sorted(pairs))}): give each pair its own runs="
        )
    return next(iter(pairs), None)


def run_to_its_end(command: list[str], env: Mapping[str, str]) -> None:
    """Run a command; CalledProcessError if it fails. After an interruption, wait until it has written what it decoded."""
    process = subprocess.Popen(command, env=env, start_new_session=True)  # Ctrl-C reaches it only once, from here
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)


def audit(engine: str, options: Mapping[str, str]) -> None:
    """Test the texts at T = 1 of the target alone and of lossless decoding; write audit.json beside their records."""
    folder = Path(options["runs"]) / f"{folder_name(engine, options)}-audit"
    results, verdicts = read(folder), {}
    prompts = results.examples.set_index("example")["prompt"]
    for cell, texts in results.tokens.groupby("cell"):
        name = str(results.cells.set_index("cell")["verifier"][cell])
        if name == "draft":
            continue
        lines = [
            json.dumps({"prompt": prompts[row.example], "tokens": [int(i) for i in row.ids]})
            for row in texts.itertuples()
        ]
        file = folder / f"{name}.jsonl"
        file.write_text("\n".join(lines) + "\n")
        words = [f"generations={file}", f"model.target={options['target']}", "model.draft=null", "model.name=pair"]
        words += ["temperature=1", "dtype=float32", "device=cpu", f"tv={AUDIT_TV}", f"out={folder / name}"]
        done = subprocess.run([sys.executable, "-m", "sdbench.audit", *words], check=False)
        if done.returncode not in VERDICTS:
            raise subprocess.CalledProcessError(done.returncode, "sdbench.audit")
        verdicts[name] = f"{VERDICTS[done.returncode]} (n = {len(texts)}, TV {AUDIT_TV})"
    write_whole(folder / "audit.json", json.dumps(verdicts, indent=1) + "\n")


def weights_of(engine: str, cell: Mapping[str, Any]) -> str | None:
    """Return the weights that an engine multiplies by (llama.cpp uses the file's own); None if the records do not tell."""
    settings = settings_of(cell)
    if engine in LLAMACPP:
        return settings["weights"]
    if engine == "vllm":
        return DTYPE
    how = [word for word in ("dequantised", "repacked") if word in (settings["weights"] or "")]
    return f"{settings['dtype']} ({', '.join(how)})" if how else settings["dtype"]


def of_batches(timings: pd.DataFrame, size: int) -> pd.DataFrame:
    """Return the timings of batches of a size, in whose names "+" joins those of the examples."""
    return timings[timings["example"].str.count(r"\+") + 1 == size]


def batch_speeds(timings: pd.DataFrame, size: int) -> dict[str, float]:
    """Return the tokens per second of each cell in batches of a size, prompts included, by its newest pass."""
    sums = latest_pass(of_batches(timings, size)).groupby("cell")[["tokens", "prefill_s", "decode_s"]].sum()
    return (sums["tokens"] / (sums["prefill_s"] + sums["decode_s"])).to_dict()


def days_of(timings: pd.DataFrame) -> dict[str, str]:
    """Return the day on which each cell was timed last; of several days at several batch sizes all, because their speeds differ."""
    days: dict[str, set[str]] = {}
    for level in LEVELS:
        newest = pd.to_datetime(of_batches(timings, level).groupby("cell")["started_at"].max(), unit="s")
        for cell, day in newest.dt.strftime("%Y-%m-%d").items():
            days.setdefault(str(cell), set()).add(day)
    return {cell: " and ".join(sorted(each)) for cell, each in days.items()}


def rows_of(engine: str, results: Results) -> list[dict[str, Any]]:
    """Return a row for each cell of an engine's records; values that were not reported by the engine or not measured are null."""
    cells = {cell["cell"]: cell for cell in results.cells.to_dict("records")}
    followed = against_greedy(results).groupby("cell")["is_same"].agg(["sum", "size"])
    if engine in SERVERS and len(results.loads):
        loads = load_table(results.loads).set_index(["cell", "concurrency"])["tokens_per_s_all"].to_dict()
    else:
        batches = {level: batch_speeds(results.timings, level) for level in LEVELS[1:]}
        loads = {(cell, level): speed for level, speeds in batches.items() for cell, speed in speeds.items()}
    rows = []
    days = days_of(results.timings)
    results = copy(results)  # without timings of batches, because a summary has the speeds of the newest pass
    vars(results)["timings"] = of_batches(results.timings, 1)
    table = summarise(results)
    for cell in table[table["n"].notna()].to_dict(
        "records"
    ):  # transformers' own generation is timed together with ours, but has no scores
        key, name = cell["cell"], cell["verifier"]
        p_min = ((cells[key]["content"].get("engine") or {}).get("speculative") or {}).get("spec_draft_p_min")
        is_pair = name == "lossless"
        row: dict[str, Any] = {"engine": engine, "weights": weights_of(engine, cells[key]), "verifier": name}
        row |= {"num_draft": cell["num_draft"], "n": cell["n"]}
        row |= {"p_min": p_min if is_pair and p_min else None}
        row |= spread("quality", estimate_of(cell, "quality"))
        row |= {
            "num_equal": followed["sum"].get(key) if is_pair else None,
            "num_compared": followed["size"].get(key) if is_pair else None,
        }
        row |= spread("acceptance", estimate_of(cell, "acceptance"))
        a_round = cell["tokens_per_round"] if pd.notna(cell["tokens_per_round"]) else cell.get("pooled_tokens_per_step")
        row |= {"tokens_per_round": a_round, "tokens_per_s_1": cell["tokens_per_s"]}
        row |= {f"tokens_per_s_{level}": loads.get((key, level)) for level in LEVELS[1:]}
        row |= spread("speedup", estimate_of(cell, "speedup"))
        rows.append({**row, "audit": None, "timed": days.get(key)})
    return rows


def with_kept(new: pd.DataFrame, kept: pd.DataFrame) -> pd.DataFrame:
    """Return the new rows of an engine, with kept times where they have none and the kept audit, and the kept rows of other
    settings, in order.
    """
    earlier = {setting_of(row): row for row in kept.to_dict("records")}
    rows = []
    for row in new.to_dict("records"):
        before = earlier.pop(setting_of(row), {})
        lacking = ["audit", *([] if pd.notna(row["timed"]) else TIMES)]
        rows.append(row | {name: before.get(name) for name in lacking})
    rows += earlier.values()
    return pd.DataFrame(sorted(rows, key=lambda row: (ORDER.index(row["verifier"]), *setting_of(row))))


def near_ties_of(path: Path, folders: Mapping[str, Path], threads: int) -> pd.DataFrame:
    """Return the measured margins of texts that differ from the target's, and those that the file beside `path` has of others."""
    file = path.with_name("engines_near_ties.csv")
    kept = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=TIES)
    tables = []
    for engine in (name for name in folders if name.startswith("native")):
        new = (
            read(folders[engine]).partings.assign(engine=engine, threads=threads).sort_values(["num_draft", "example"])
        )
        kept = kept[~((kept["engine"] == engine) & (kept["threads"] == threads))] if len(new) else kept
        tables.append(new[TIES])
    return pd.concat([rows for rows in (kept, *tables) if len(rows)] or [kept], ignore_index=True)


def setting_of(row: Mapping[str, Any]) -> tuple[str, float, float]:
    """Return what identifies a row of an engine with a number of threads; no p-min is 0."""
    return str(row["verifier"]), float(row["num_draft"]), float(row["p_min"]) if pd.notna(row["p_min"]) else 0.0


def write(options: Mapping[str, str]) -> None:
    """Write engines.csv and engines.md to `out` from the records in `runs`; ValueError if neither folder has a row.

    Settings without records in `runs` keep their rows of engines.csv; their records may be on another machine.
    """
    runs, path, pair = Path(options["runs"]), Path(options["out"]) / "engines.csv", pair_of_records(options)
    kept = real_pair.rows_of(path, pair)
    threads = int(options["threads"])
    folders = {engine: runs / folder_name(engine, options) for engine in ENGINES}
    folders = {engine: folder for engine, folder in folders.items() if folder.exists()}
    if not folders and kept.empty:
        raise ValueError(f"there are no records below {runs}: give target=, draft= and data= to make some")
    tables, ties = [], near_ties_of(path, folders, threads)
    for engine in ENGINES:
        before = kept[kept["engine"] == engine] if len(kept) else pd.DataFrame(columns=["threads"])
        is_replaced = (before["threads"] == threads) & (engine in folders)
        tables.append(before[~is_replaced])
        if engine in folders:
            results = read(folders[engine])
            refuse_two_pairs(folders[engine], results)
            new = pd.DataFrame(rows_of(engine, results)).assign(threads=threads, pair=pair)
            tables.append(with_kept(new, before[is_replaced]))
    table = pd.concat([rows.astype(object) for rows in tables if len(rows)], ignore_index=True).infer_objects()
    table["audit"] = table["audit"].astype(object)
    for engine in ENGINES:  # an audit has separate records, so it is also shown with rows that were measured elsewhere
        file = runs / f"{folder_name(engine, options)}-audit" / "audit.json"
        verdicts = json.loads(file.read_text()) if file.exists() else {}
        is_plain = (table["verifier"] == "target") | (
            (table["num_draft"].astype(int) == int(AUDIT_LENGTH)) & table["p_min"].isna()
        )
        audited = table[is_plain & (table["engine"] == engine) & (table["threads"] == threads)]
        for index, name in audited["verifier"].items():
            table.loc[index, "audit"] = verdicts.get(name, table.loc[index, "audit"])
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.6g")
    if len(ties):
        ties.to_csv(path.with_name("engines_near_ties.csv"), index=False, float_format="%.6g")
    write_whole(path.with_suffix(".md"), page(table, options))


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("real_engines", __doc__, words):
        given = parse_words(words, {name: value or "FILE" for name, value in DEFAULTS.items()})
        if given.paths:
            raise ValueError(f"{given.paths[0]} is no option: write NAME=VALUE")
        options = DEFAULTS | dict(given.options)
        engines, parts = choose("engines", options["engines"], ENGINES), choose("parts", options["parts"], PARTS)
        missing = [name for name in ("target", "draft", "data") if not options[name]]
        if missing and len(missing) < 3:
            raise ValueError(f"{missing[0]} names no file: the records are made from target=, draft= and data=")
        for name in ("threads", "n"):
            if not options[name].isdecimal() or not int(options[name]):
                raise ValueError(f"{name} must be a whole number above 0, got {options[name]}")
        for name, kind, what in (("lengths", int, "whole numbers, as 2,4"), ("p_mins", float, "numbers, as 0.5,0.9")):
            try:
                list(map(kind, options[name].split(",")))
            except ValueError:
                raise ValueError(f"{name} must be {what}, got {options[name]}") from None
        if not missing and "vllm" in engines and not options["python"]:
            raise ValueError("python names no interpreter: scripts/vllm_env makes an environment that has vllm")
        if not missing:
            for engine in engines:
                refuse_other_pair(engine, options)
            pair = real_pair.pair_of(options["target"], options["draft"])
            real_pair.rows_of(Path(options["out"]) / "engines.csv", pair)
    try:
        with ends_as_ctrl_c():
            if not missing:
                measure(options, engines, parts)
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:
        print("real_engines: interrupted; run the same command again to continue", file=sys.stderr)
        return Exit.INTERRUPTED
    with exit_on_mistake("real_engines", __doc__, words):
        write(options)
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
