"""Compare the time of lossless answers at temperature 0 in lm-evaluation-harness: sdbench's model and `hf`, in turns.

    python scripts/bench_lm_eval.py [model=llama-tiny] [n=60] [batch=16] [repeats=5] [num_draft=5]
                                    [draft=FOLDER] [drafter=model] [head=FOLDER] [out=FOLDER]

Both decode the same prompts of the tiny word problems, 48 new tokens at most, on the CPU in float32; texts must be equal. Prints
the ratio of seconds (ours / hf) of each turn, its median and range, and the number of target passes per row, which is one per token
without a draft. `draft=FOLDER` uses another draft model, for example from `python -m sdbench.train draft`. `drafter=` uses another
drafter, for example `mtp`, whose head comes with the pair. `out` gets lm_eval.csv with a row for each setting; rows of other
settings in it are kept. Needs the extra lm-eval.
"""

import statistics
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
import torch

from sdbench import embedded
from sdbench.config import ConfigError
from sdbench.config.checks import require_lm_eval
from sdbench.words import exit_on_mistake, parse_words

OPTIONS = {
    "model": "llama-tiny",
    "n": "60",
    "batch": "16",
    "repeats": "5",
    "num_draft": "5",
    "draft": "",
    "drafter": "model",
    "head": "",
    "out": "",
}
SETTING = [
    "model",
    "draft",
    "drafter",
    "head",
    "num_draft",
    "n",
    "batch",
    "threads",
]  # columns of lm_eval.csv that identify a row
GENERATION = {"until": ["Question:"], "do_sample": False, "max_gen_toks": 48}


def models_of(options: dict[str, str]) -> dict[str, Any]:
    """Return our model and the harness's, with the same target."""
    try:
        require_lm_eval(["lm_eval.models.huggingface:HFLM", "lm_eval.api.instance:Instance"])
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'sdbench[lm-eval]'") from None
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    from sdbench.lm_eval.model import SpeculativeLM

    shared = {"device": "cpu", "batch_size": int(options["batch"]), "dtype": "float32"}
    ours = SpeculativeLM(
        model=options["model"],
        draft=options["draft"] or None,  # None: the pair's
        verifier="exact",
        num_draft=int(options["num_draft"]),
        drafter=options["drafter"],
        **({"drafter.head": options["head"]} if options["head"] else {}),
        **shared,
    )
    folder = Path(str(embedded.__file__)).parent / options["model"] / "target"
    return {"ours": ours, "hf": HFLM(pretrained=str(folder), **shared)}


def requests_of(count: int) -> list[Any]:
    """Return the harness's requests for the first tiny word problems."""
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]

    rows = list(embedded.rows("gsm8k-tiny", "test", n=count))
    return [
        Instance("generate_until", dict(row), (f"Question: {row['question']}\nAnswer:", GENERATION), 0, ("math", i, 1))
        for i, row in enumerate(rows)
    ]


def main(words: list[str]) -> None:
    with exit_on_mistake("bench_lm_eval", __doc__, words):
        options = OPTIONS | dict(parse_words(words, OPTIONS).options)
        models = models_of(options)
    requests, repeats = requests_of(int(options["n"])), int(options["repeats"])
    ratios: list[float] = []
    for turn in range(-1, repeats):  # the first one warms up
        seconds, texts = {}, {}
        for name, model in models.items():
            begin = time.perf_counter()
            texts[name] = model.generate_until(requests, disable_tqdm=True)
            seconds[name] = time.perf_counter() - begin
        differing = sum(mine != other for mine, other in zip(texts["ours"], texts["hf"], strict=True))
        if differing:
            raise SystemExit(f"bench_lm_eval: {differing} of {len(requests)} texts differ from those of hf")
        if turn >= 0:
            ratios.append(seconds["ours"] / seconds["hf"])
            print(f"ours {seconds['ours']:.2f} s, hf {seconds['hf']:.2f} s, ratio {ratios[-1]:.3f}", flush=True)
    low, high = min(ratios), max(ratios)
    print(f"ratio: median {statistics.median(ratios):.3f}, from {low:.3f} to {high:.3f} in {repeats} turns")
    counts = [count for counts in models["ours"].counts.values() for count in counts]  # of the last turn
    passes, tokens = (sum(count[name] for count in counts) for name in ("rounds", "tokens"))
    print(f"passes of the target over a row: ours {passes}, hf {tokens}; all texts are equal")
    if options["out"]:
        setting = {name: options.get(name) for name in SETTING} | {
            "draft": options["draft"] or None,
            "head": options["head"] or None,
            "threads": torch.get_num_threads(),
        }
        figures = {"ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high, "turns": repeats}
        counted = {"passes": passes, "passes_of_hf": tokens, "day": f"{date.today()}"}
        write(Path(options["out"]), setting | counted | figures)


def write(out: Path, row: dict[str, Any]) -> None:
    """Add a row to lm_eval.csv, or replace the row with the same setting."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "lm_eval.csv"
    rows = pd.read_csv(path, dtype=str) if path.exists() else pd.DataFrame()
    rows = pd.concat([rows, pd.DataFrame([{name: _text(value) for name, value in row.items()}])])
    rows.drop_duplicates(SETTING, keep="last").sort_values(SETTING).to_csv(path, index=False)


def _text(value: Any) -> str | None:
    return f"{value:.3f}" if isinstance(value, float) else None if value is None else str(value)


if __name__ == "__main__":
    main(sys.argv[1:])
