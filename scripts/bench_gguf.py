"""Measure CPU-seconds and memory of loading a GGUF file, compared with transformers' loader, in fresh processes in turn.

    python scripts/bench_gguf.py FILE.gguf [FILE.gguf …] [dtype=bfloat16] [repeats=3] [out=results/real]

Each turn loads model and tokenizer of a file in three ways, each in its own process: `first` by sdbench with an empty cache, which
dequantises the weights and keeps the copy; `copy` by sdbench from that copy; `transformers` by its `from_pretrained(gguf_file=…)`,
dequantised into the same dtype. `out` gets loads.csv, a row per file, dtype and way: median CPU-seconds with and without the
tokenizer, their ratio to transformers' in the same turn with its range, and the peak of memory during the load as a multiple of the
weights in the dtype, once for all pages and once for pages that no file backs (read every few milliseconds). Imports do not count.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

from sdbench.words import exit_on_mistake, parse_words

WAYS = ("first", "copy", "transformers")
OPTIONS = {"dtype": "bfloat16", "repeats": "3", "out": "results/real", "way": "first"}
PAUSE_S = 0.004  # between two readings of the memory


def memory_of(field: str) -> int:
    """Return a field of this process's status in bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def load_ours(path: str, dtype: str) -> tuple[Any, float]:
    """Load a model with sdbench; return it and its CPU-seconds without the tokenizer."""
    from sdbench.lm.load import find, load_model, load_tokenizer

    checkpoint = find(path)
    load_tokenizer(checkpoint)
    begun = time.process_time()
    return load_model(checkpoint, device="cpu", dtype=dtype), time.process_time() - begun


def load_theirs(path: str, dtype: str) -> tuple[Any, float]:
    """Load a model with transformers; return the same as `load_ours`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    file = Path(path)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    begun = time.process_time()
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    options = {"dtype": getattr(torch, dtype), "quantization_config": GgufConfig(dequantize=True)}
    return from_pretrained(file.parent, gguf_file=file.name, **options), time.process_time() - begun


def measure(path: str, dtype: str, way: str) -> dict[str, float]:
    """Load a file in a fresh process; return seconds, and bytes without those of the imports."""
    import gguf  # noqa: F401
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    transformers.utils.logging.disable_progress_bar()
    before, anonymous = {name: memory_of(name) for name in ("VmRSS", "RssAnon")}, [0]
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(PAUSE_S):
            anonymous[0] = max(anonymous[0], memory_of("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.process_time()
    model, model_s = (load_theirs if way == "transformers" else load_ours)(path, dtype)
    cpu_s = time.process_time() - begun
    is_done.set()
    watcher.join()
    weights = sum({weight.data_ptr(): weight.nbytes for weight in model.state_dict().values()}.values())
    return {
        "cpu_s": cpu_s,
        "model_cpu_s": model_s,
        "peak": (memory_of("VmHWM") - before["VmRSS"]) / weights,
        "anonymous": (anonymous[0] - before["RssAnon"]) / weights,
    }


def measure_apart(path: str, dtype: str, way: str, home: str) -> dict[str, float]:
    """Call `measure` in a new process with its cache in a folder."""
    command = [sys.executable, __file__, path, f"dtype={dtype}", f"way={way}", "repeats=0"]
    done = subprocess.run(command, env=os.environ | {"HF_HOME": home}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench_gguf: {way} of {Path(path).name} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(path: str, dtype: str, repeats: int) -> list[dict[str, Any]]:
    """Return a row for each way to load a file."""
    turns: dict[str, list[dict[str, float]]] = defaultdict(list)
    for turn in range(repeats):
        with tempfile.TemporaryDirectory() as home:
            order = WAYS if turn % 2 == 0 else (WAYS[2], *WAYS[:2])  # a copy exists after the first load only
            for way in order:
                turns[way].append(measure_apart(path, dtype, way, home))
                print(Path(path).name, turn + 1, way, *(f"{k} {v:.2f}" for k, v in turns[way][-1].items()), flush=True)
    rows = []
    for way in WAYS:
        row: dict[str, Any] = {"model": Path(path).stem, "dtype": dtype, "way": way, "turns": repeats}
        row |= {name: statistics.median(turn[name] for turn in turns[way]) for name in turns[way][0]}
        for name in ("cpu_s", "model_cpu_s"):
            pairs = zip(turns[way], turns["transformers"], strict=True)
            ratios = [ours[name] / theirs[name] for ours, theirs in pairs]
            names = f"{name}_ratio", f"{name}_ratio_low", f"{name}_ratio_high"
            row |= dict(zip(names, (statistics.median(ratios), min(ratios), max(ratios)), strict=True))
        rows.append(row)
    return rows


def main(words: list[str]) -> None:
    with exit_on_mistake("bench_gguf", __doc__, words):
        given = parse_words(words, OPTIONS)
        options = OPTIONS | dict(given.options)
        if not given.paths:
            raise ValueError("name at least one GGUF file")
        for path in given.paths:
            if not path.endswith(".gguf") or not Path(path).is_file():
                raise ValueError(f"{path} is not a .gguf file on this machine")
        repeats = int(options["repeats"])
    if repeats == 0:  # one load in this process, for the call above
        print(json.dumps(measure(given.paths[0], options["dtype"], options["way"])))
        return
    out = Path(options["out"], "loads.csv")
    out.parent.mkdir(parents=True, exist_ok=True)
    for path in given.paths:
        rows = pd.DataFrame(compare(path, options["dtype"], repeats))
        if out.is_file():  # rows of other files and dtypes stay
            rows = pd.concat([pd.read_csv(out), rows]).drop_duplicates(["model", "dtype", "way"], keep="last")
        rows.to_csv(out, index=False, float_format="%.3f")
    print(pd.read_csv(out).to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
