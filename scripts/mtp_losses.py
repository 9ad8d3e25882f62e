"""results/drafters/losses.md: the layer of drafter=mtp trained with three losses for equally many steps, and one without training.

    python scripts/mtp_losses.py [losses=forward_kl,tv,overlap] [steps=200] [temperatures=0,1] [n=100] [records=results]
                                 [out=results/drafters]

For each loss `python -m sdbench.train mtp`, then lossless decoding with the trained layer, on llama-tiny and gsm8k-tiny.
*Untrained* is trained for one step at a learning rate of 1e-9, so it is still the target's last layer over a random projection of
the embedding. Results of training and decoding are kept in `records`: after an interruption the same command continues. `out` gets
losses.csv, a row per loss, temperature and position, and losses.md, the differences from the untrained layer, paired by example.
"""

import json
import sys
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

import sdbench
from scripts.healing_tables import sdbench_command
from sdbench.card import CARD
from sdbench.metrics.acceptance import by_position, rates
from sdbench.metrics.columns import estimate_of
from sdbench.metrics.markup import markdown
from sdbench.metrics.stats import paired_interval
from sdbench.metrics.text import format_interval
from sdbench.words import exit_on_mistake, parse_words

DEFAULTS = {
    "losses": "forward_kl,tv,overlap",
    "steps": "200",
    "temperatures": "0,1",
    "n": "100",
    "records": "results",
    "out": "results/drafters",
}
PAIR = ("model=llama-tiny", "model.draft=null", "task=gsm8k-tiny")
UNTRAINED = "untrained"
NUM_DRAFT = 5


def train(loss: str, steps: str, records: Path) -> Path:
    """Return the folder of the head; train it if it does not exist yet."""
    out = records / "drafters" / "losses" / (loss if loss == UNTRAINED else f"{loss}-{steps}")
    if not (out / CARD).exists():
        how = ["steps=1", "rate=1e-9", "rows=40"] if loss == UNTRAINED else [f"loss={loss}", f"steps={steps}"]
        sdbench_command("train", "mtp", *PAIR, *how, f"out={out}")
    return out


def decode(head: Path, loss: str, temperature: str, n: str, records: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rounds and the generations of the lossless cell."""
    name = f"losses-T{temperature}-{head.name}"
    choice = ["drafter=mtp", f"drafter.head={head.resolve()}", "verifier=exact", f"num_draft={NUM_DRAFT}"]
    given = [f"temperature={temperature}", f"n={n}", "timing=off", "report=off", f"results={records}", f"name={name}"]
    sdbench_command(*PAIR, *choice, *given)
    results = sdbench.read(records / name)
    generations = results.generations[results.generations["drafter"] == "mtp"]
    return results.rounds[results.rounds["cell"].isin(generations["cell"])], generations


def acceptance_of(generations: pd.DataFrame) -> pd.Series:
    """Return accepted / examined of each example."""
    sums = generations.groupby("example")[["accepted", "examined"]].sum()
    return sums["accepted"] / sums["examined"]


def text_of(lines: Sequence[Sequence[str]], sizes: Collection[int], steps: str, seconds: dict[str, int]) -> str:
    """Return the page; `sizes` are the numbers of examples behind its lines."""
    n = " to ".join(map(str, sorted({min(sizes), max(sizes)})))
    took = ", ".join(f"{loss} {spent} s" for loss, spent in seconds.items())
    about = (
        f"`drafter=mtp` on llama-tiny and gsm8k-tiny, lossless, n = {n}, {NUM_DRAFT} drafted tokens; each loss trained for {steps} "
        "steps at T = 1 from the same weights on the same texts. Acceptance of position k is that of its token where those before "
        "it were kept. The last column is the mean over examples of the acceptance less that of the untrained layer, paired by "
        f"example. Written by `python scripts/mtp_losses.py`. Trainings on one thread of a busy machine took: {took}."
    )
    head = ["loss", "T", *(f"position {k}" for k in range(1, NUM_DRAFT + 1)), "acceptance", "tokens per round"]
    table = markdown([*head, "acceptance over untrained"], [list(line) for line in lines]).rstrip()
    return f"# Losses of MTP's layer\n\n{about}\n\n{table}\n"


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("mtp_losses", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
    records, out, n, steps = Path(options["records"]), Path(options["out"]), options["n"], options["steps"]
    losses = [UNTRAINED, *options["losses"].split(",")]
    heads = {loss: train(loss, steps, records) for loss in losses}
    seconds = {loss: json.loads((heads[loss] / CARD).read_text())["seconds"] for loss in losses[1:]}
    frames, lines, sizes, untrained = [], [], set[int](), pd.Series(dtype=float)
    for temperature, loss in product(options["temperatures"].split(","), losses):
        rounds, generations = decode(heads[loss], loss, temperature, n, records)
        positions, totals, each = by_position(rounds), rates(generations), acceptance_of(generations)
        sizes.add(len(each))  # the records may hold more examples than n=
        untrained = each if loss == UNTRAINED else untrained
        gain = paired_interval(each.to_numpy(), untrained.loc[each.index].to_numpy(), bounds=(0, 1))
        frames.append(positions.assign(loss=loss, temperature=temperature).drop(columns="cell"))
        by_slot = [
            format_interval(estimate_of(row.to_dict(), "conditional"), 3) or "–" for _, row in positions.iterrows()
        ]
        by_slot += ["–"] * (NUM_DRAFT - len(by_slot))
        whole = [format_interval(totals[name], digits) for name, digits in (("acceptance", 3), ("tokens_per_round", 2))]
        lines.append([loss, temperature, *by_slot, *whole, "" if loss == UNTRAINED else format_interval(gain, 3)])
    out.mkdir(parents=True, exist_ok=True)
    pd.concat(frames).to_csv(out / "losses.csv", index=False, float_format="%.6g")
    (out / "losses.md").write_text(text_of(lines, sizes, steps, seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
