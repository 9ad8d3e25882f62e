"""results/learned: do trained heads beat a constant w? Heads, a judge and distilled drafts against untrained rules.

    python scripts/learned_tables.py [pair=llama-tiny] [task=gsm8k-tiny] [n=500] [steps=100]
                                     [parts=ensemble,trials,judge,distil,transfer,drift]
                                     [runs=results/learned-runs] [out=results/learned]

    ensemble  at T = 1: DIVERSED's head and variants that read more or less, each at several offsets, and the static ensemble
    trials    at T = 1: changes that might improve that head: the slot as a feature, a hidden layer, other prices, stronger weight
              decay, and a weight learned from single swaps instead of whole texts
    judge     at T = 0: a mined judge, the training-free divergence rule, and the static ensemble
    distil    at T = 1: drafts distilled with each loss, with the static ensemble at several w, compared with the pair's own draft
              with the static ensemble and with the published head: the cost of leniency, and the gain from equally long training
    transfer  at T = 1: the heads of three tasks on each of these tasks, as in the paper's Table 3
    drift     at T = 1: the task's head with the target at several checkpoints of further training on texts in the draft's wording

Results of training and decoding are kept in `runs`: run the command again after an interruption, and only what is missing is done.
`out` gets the files to commit: PAIR-TASK-PART.csv, a row per cell, and PAIR-TASK-PART.json, the comparisons with their intervals.

(Over 300 lines: six studies that share the code to train, decode and compare.)
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

import sdbench
from scripts.tiny.make import continue_target
from sdbench.audit.report import finite
from sdbench.config import config_dir
from sdbench.metrics.export import write_scores
from sdbench.metrics.pareto import Resampled, front_of, gain, joint, volume_of
from sdbench.metrics.summary import summarise
from sdbench.report.figures.planes import pareto
from sdbench.report.figures.style import house_style, panels, save
from sdbench.report.sweep import sweeps_of
from sdbench.train.distill import LOSSES
from sdbench.verify import Head
from sdbench.verify.head import CARD
from sdbench.words import choose, exit_on_mistake, parse_words

ROOT = Path(__file__).parents[1]
LAWS = "tv,target_entropy,draft_entropy,target_margin,draft_margin"
HEADS = {  # name -> options of python -m sdbench.train ensemble
    "published": ("features=[draft_hidden,target_hidden]",),
    "of-tv": ("features=[tv]", "hidden=8"),
    "of-entropy": ("features=[target_entropy]", "hidden=8"),
    "of-laws": (f"features=[{LAWS}]", "hidden=16"),
    "of-all": (f"features=[draft_hidden,target_hidden,{LAWS}]", "hidden=32"),
}
TRIALS = {
    "published": HEADS["published"],
    "with-slot": ("features=[draft_hidden,target_hidden,slot]",),
    "with-layer": (*HEADS["published"], "hidden=32"),
    "cheap": (*HEADS["published"], "price=0.05"),
    "dear": (*HEADS["published"], "price=1"),
    "decayed": (*HEADS["published"], "decay=0.5"),
}
OFFSETS = [6, 4, 3, 2, 1, 0, -2]
TRIED = [3, 1, 0, -2]  # offsets of each trial
STATIC = [1, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1]
STEPS = 200  # training steps of a distillation
DISTILLED = {**{loss: (loss, STEPS) for loss in LOSSES}, "forward_kl-50": ("forward_kl", 50)}  # name -> loss, steps
LOST = 0.03  # quality, on 0–1, that may be lost in exchange for acceptance
TRANSFERRED = ("gsm8k-tiny", "cnndm-tiny", "mbpp-tiny")
DRIFTED = (50, 100, 200)  # further training steps of the target
UNDER = [1, 0.95, 0.9, 0.8, 0.7, 0.5]
DEFAULTS = {
    "pair": "llama-tiny",
    "task": "gsm8k-tiny",
    "parts": "ensemble,trials,judge,distil,transfer,drift",
    "n": "500",
    "steps": "100",
    "runs": "results/learned-runs",
    "out": "results/learned",
}


def call(*words: str) -> None:
    """Run a command of the project; raise an error if it fails."""
    print("  " + " ".join(words), file=sys.stderr, flush=True)
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT)


def trained(kind: str, out: Path, done: str, *words: str) -> Path:
    """Return the folder of a training, after training if it does not exist; ValueError if it was trained with other options."""
    if not (out / done).exists():
        call("-m", "sdbench.train", kind, f"out={out}", *words)
    cards = [out / CARD, out / "distilled.json"]
    card = next(json.loads(path.read_text()) for path in cards if path.exists())
    for word in words:
        name, _, value = word.partition("=")
        if name in card and yaml.safe_load(value) != card[name]:
            raise ValueError(f"{out} was trained with {name}={card[name]}, and now {word} is asked for: delete it")
    return out


def decoded(out: Path, *words: str) -> sdbench.Results:
    """Decode what a run's records lack, and return them."""
    call("-m", "sdbench", *words, "timing=off", "report=off", f"results={out.parent}", f"name={out.name}")
    return sdbench.read(out)


def rules_in(folder: Path, base: str, heads: Mapping[str, Path], **knobs: Any) -> str:
    """Write a folder of configs with a rule for each head; return the options that select these rules."""
    (folder / "verifier").mkdir(parents=True, exist_ok=True)
    tree = yaml.safe_load((config_dir() / "verifier" / f"{base}.yaml").read_text())
    for name, head in heads.items():
        own = {**tree, "name": name, "head": str(head.resolve()), **knobs}
        (folder / "verifier" / f"{name}.yaml").write_text(yaml.safe_dump(own))
    return ",".join(heads)


def curve(results: sdbench.Results, name: str, head: str | None = None) -> list[str]:
    """Return the cells of a rule; for a rule with a head only those with its label, because a folder may also have cells of an
    earlier head. The lossless cell is included if it is also the strict setting of the rule.
    """
    is_strict = results.cells["also"].map(lambda also: any(labels["verifier"] == name for labels in also))
    own = results.cells[is_strict | (results.cells["verifier"] == name)]
    return list(own["cell"] if head is None else own["cell"][own["knob_head"] == head])


def compare_settings(results: sdbench.Results, heads: Mapping[str, str | None], static: str) -> dict[str, Any]:
    """Return each rule's quality minus that of the static curve at equal acceptance, and the area that each rule dominates."""
    every = {name: curve(results, name, head) for name, head in {**heads, static: None}.items()}
    plane = joint(results, [cell for cells in every.values() for cell in cells])
    comparison: dict[str, Any] = {}
    for name, cells in every.items():
        volume = volume_of(plane.of(cells))
        comparison[name] = {"hypervolume": [volume.value, volume.low, volume.high]}
        if name != static:
            comparison[name] |= {
                key: [estimate.value, estimate.low, estimate.high]
                for key, estimate in gain(plane, cells, every[static]).items()
            }
    whole = front_of(plane).points.set_index("cell")
    for name, cells in every.items():
        comparison[name]["on_the_front"] = round(float(whole.loc[cells, "probability"].max()), 4)
    return comparison


def labels_of(heads: Mapping[str, Path]) -> dict[str, str]:
    """Return the labels of these heads in the records."""
    return {name: label_of(folder) for name, folder in heads.items()}


def label_of(head: Path) -> str:
    return Head.load(str(head), "ensemble").label


def write(
    out: Path,
    name: str,
    results: Sequence[tuple[str | Mapping[str, str], sdbench.Results]],
    comparison: Mapping[str, Any],
) -> None:
    """Write the table, the comparisons and the planes. The label of `results` names the draft, or the draft of each model."""
    out.mkdir(parents=True, exist_ok=True)
    frames = []
    for label, records in results:
        frame = summarise(records)
        which = records.cells["task"].iloc[0] if label == "own" else str(label).replace(" ", "-")
        draw(records, frame, out, name if len(results) == 1 else f"{name}-{which}")
        frame.insert(0, "draft", label if isinstance(label, str) else frame["model"].map(label))
        frames.append(frame)
    pd.concat(frames).to_csv(out / f"{name}.csv", index=False)
    write_scores(out / f"{name}-scores.parquet", *(records for _, records in results))
    (out / f"{name}.json").write_text(json.dumps(finite(comparison), indent=1) + "\n")


def draw(results: sdbench.Results, summary: pd.DataFrame, out: Path, name: str) -> None:
    """Draw quality against acceptance if all cells are of one pair."""
    sweeps = sweeps_of([results], [summary])
    if len(sweeps) > 1:
        return
    with house_style():
        figure = pareto(sweeps[0])
        assert figure is not None, "there are acceptances and qualities"
        save_svg(figure, out, name)


def save_svg(figure: Figure, out: Path, name: str) -> None:
    for path in save(figure, out, name):
        if path.suffix != ".svg":
            path.unlink()


def ensemble(pair: str, task: str, n: str, steps: str, runs: Path, out: Path) -> None:
    heads = {name: head_of(pair, task, name, words, steps, runs) for name, words in HEADS.items()}
    against_static(f"{pair}-{task}-ensemble", pair, task, n, heads, OFFSETS, runs, out)


def trials(pair: str, task: str, n: str, steps: str, runs: Path, out: Path) -> None:
    heads = {name: head_of(pair, task, name, words, steps, runs) for name, words in TRIALS.items()}
    heads["from-swaps"] = from_swaps(pair, task, runs)
    against_static(f"{pair}-{task}-trials", pair, task, n, heads, TRIED, runs, out)


def head_of(pair: str, task: str, name: str, words: Sequence[str], steps: str, runs: Path) -> Path:
    folder = runs / "heads" / f"{pair}-{task}-{name}"
    return trained("ensemble", folder, CARD, f"model={pair}", f"task={task}", f"steps={steps}", *words)


def from_swaps(pair: str, task: str, runs: Path) -> Path:
    """Return a head whose w is high where accepting a wrong draft lowers the score; it is a judge with the opposite sign."""
    folder = runs / "judges" / f"{pair}-{task}-predicting"
    trained("judge", folder, CARD, f"model={pair}", f"task={task}", "features=[draft_hidden,target_hidden]")
    judge = Head.load(str(folder), "judge")
    turned = {name: -tensor if name in ("weight", "bias") else tensor for name, tensor in judge.weights.items()}
    out = runs / "heads" / f"{pair}-{task}-from-swaps"
    Head("ensemble", judge.features, turned, judge.card).save(out)
    return out


def against_static(
    name: str, pair: str, task: str, n: str, heads: Mapping[str, Path], offsets: Sequence[float], runs: Path, out: Path
) -> None:
    """Compare each head's curve of offsets with the static ensemble's, in one run."""
    configs = runs / f"configs-{name}"
    names = rules_in(configs, "diversed", heads, offset=list(offsets))
    results = decoded(
        runs / name,
        *("--config-dir", str(configs), f"model={pair}", f"task={task}", f"n={n}", "temperature=1"),
        *(f"verifier=[ensemble,{names}]", f"w={json.dumps(STATIC)}"),
    )
    comparison: dict[str, Any] = {"against": "ensemble", **compare_settings(results, labels_of(heads), "ensemble")}
    for head, folder in heads.items():
        card = json.loads((folder / CARD).read_text())
        comparison[head] |= {
            key: card[key] for key in ("seconds", "rollouts", "memory", "last", "held_out") if key in card
        }
        comparison[head]["head"] = label_of(folder)
        comparison[head]["is_constant"] = card["last"]["spread"] < 0.02 if "last" in card else None
    write(out, name, [("own", results)], comparison)


def judge(pair: str, task: str, n: str, steps: str, runs: Path, out: Path) -> None:
    words = (f"model={pair}", f"task={task}")
    folder = trained("judge", runs / "judges" / f"{pair}-{task}", CARD, *words)
    configs = runs / f"configs-judge-{pair}-{task}"
    names = rules_in(configs, "judge", {"mined": folder}, threshold=[0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.1])
    results = decoded(
        runs / f"{pair}-{task}-judge",
        *("--config-dir", str(configs), *words, f"n={n}", "temperature=0"),
        *(f"verifier=[ensemble,{names},fsd-kl]", f"w={json.dumps(STATIC)}"),
        "verifier.fsd-kl.threshold=[0.05,0.1,0.2,0.4,0.8,1.2,1.6,2.4,4]",
    )
    label = Head.load(str(folder), "judge").label
    comparison = {"against": "fsd-kl", **compare_settings(results, {"mined": label, "ensemble": None}, "fsd-kl")}
    comparison["held_out"] = json.loads((folder / "calibration.json").read_text())
    comparison["mined"]["head"] = label
    write(out, f"{pair}-{task}-judge", [("own", results)], comparison)


@dataclass(frozen=True)
class Arm:
    """One arm of the comparison: a draft with the static ensemble at each w, or the published head with the pair's own draft."""

    label: str
    seconds: int  # of training
    cells: Sequence[str]
    lossless: str  # the cell with the same draft at w = 1
    by_w: Mapping[float, str] | None  # None: a head's curve of offsets

    def measure(self, plane: Resampled) -> dict[str, Any]:
        figures = {"seconds": self.seconds, "within": within(plane, self.cells, self.lossless)}
        return figures if self.by_w is None else {**figures, "prices": prices(plane, self.by_w)}


def distil(pair: str, task: str, n: str, steps: str, runs: Path, out: Path) -> None:
    words = (f"model={pair}", f"task={task}")
    head = head_of(pair, task, "published", HEADS["published"], steps, runs)
    configs, place = runs / f"configs-distil-{pair}-{task}", runs / f"{pair}-{task}-distil"
    name = rules_in(configs, "diversed", {"learned": head}, offset=OFFSETS)
    options = ("--config-dir", str(configs), *words, f"n={n}", "temperature=1", f"w={json.dumps(UNDER)}")
    results = decoded(place, *options, f"verifier=[ensemble,{name}]")
    seconds = {"own": 0, "learned": json.loads((head / CARD).read_text())["seconds"]}
    for label, (loss, count) in DISTILLED.items():
        folder = runs / "drafts" / f"{pair}-{task}-{label}"
        trained("draft", folder, "config.json", *words, f"loss={loss}", f"steps={count}")
        results = decoded(place, *options, f"model.draft={folder.resolve()}")
        seconds[label] = json.loads((folder / "distilled.json").read_text())["seconds"]
    arms = arms_of(results, label_of(head), seconds)
    plane = joint(results, list(dict.fromkeys(cell for arm in arms for cell in arm.cells)))
    model = results.cells.set_index("cell")["model"]
    labels = {model[cell]: arm.label for arm in arms if arm.by_w for cell in arm.cells}
    figures = {arm.label: arm.measure(plane) for arm in arms}
    write(out, f"{pair}-{task}-distil", [(labels, results)], {"lost": LOST, **figures})
    draw_arms(plane, arms, out, f"{pair}-{task}-distil")


def arms_of(results: sdbench.Results, head: str, seconds: Mapping[str, int]) -> list[Arm]:
    """Return the arm of the head, then one for each draft."""
    cells, drafts = results.cells.set_index("cell"), []
    for label in ("own", *DISTILLED):
        ours = [cell for cell in curve(results, "ensemble") if drafted_by(cells["content"][cell]) == label]
        by_w = {w: cell for cell, w in cells.loc[ours, "w"].fillna(1.0).items()}  # the lossless cell has no w
        drafts.append(Arm(label, seconds[label], ours, by_w[1], by_w))
    lossless = drafts[0].lossless
    learned = [*curve(results, "learned", head), lossless]
    return [Arm("learned", seconds["learned"], learned, lossless, None), *drafts]


def draw_arms(plane: Resampled, arms: Sequence[Arm], out: Path, name: str) -> None:
    """Write the figure of quality against acceptance, with a line per arm."""
    with house_style():
        figure, (axis,) = panels(height=2.7)
        for arm in arms:
            x, y = plane.of(arm.cells).x, plane.of(arm.cells).y
            order = np.argsort(x)
            axis.plot(x[order], 100 * y[order], ".-", label="own, learned w" if arm.by_w is None else arm.label)
        axis.set(xlabel="acceptance (accepted / examined)", ylabel="quality (%)")
        axis.legend(loc="best", title="draft")
        save_svg(figure, out, name)


def drafted_by(content: Mapping[str, Any]) -> str:
    """Return the name of a cell's distilled draft, or `own`."""
    held = content.get("distilled")
    return next((k for k, v in DISTILLED.items() if held and v == (held["loss"], held["steps"])), "own")


def prices(plane: Resampled, cells: Mapping[float, str]) -> dict[str, Any]:
    """Return for each w its acceptance, and the gain in acceptance and loss of quality relative to w = 1 with the same draft."""
    strict, out = plane.cells.index(cells[1]), {}
    for w, cell in sorted(cells.items(), reverse=True):
        at = plane.cells.index(cell)
        comparison = {
            "acceptance": (plane.x[at], plane.xs[:, at]),
            "bought": (plane.x[at] - plane.x[strict], plane.xs[:, at] - plane.xs[:, strict]),
            "lost": (plane.y[strict] - plane.y[at], plane.ys[:, strict] - plane.ys[:, at]),
        }
        out[f"{w:g}"] = {name: limits(*pair) for name, pair in comparison.items()}
    return out


def within(plane: Resampled, cells: Sequence[str], strict: str) -> list[float]:
    """Return the largest acceptance at which a curve, with straight lines between its cells, loses at most LOST against `strict`.

    `strict` is the lossless cell of the same draft. The lossless cells of all drafts have the same distribution, the target's; they
    differ only by chance.
    """
    own, base = plane.of(cells), plane.of([strict])
    draws = [reached(x, y, floor) for x, y, floor in zip(own.xs, own.ys, base.ys[:, 0] - LOST, strict=True)]
    return limits(reached(own.x, own.y, base.y[0] - LOST), np.array(draws))


def reached(x: np.ndarray, y: np.ndarray, floor: float) -> float:
    """Return the largest x at which the curve through the points is at or above the floor; 0 if it is always below."""
    order = np.argsort(x)
    x, y = x[order], y[order]
    high = np.flatnonzero(y >= floor)
    if not len(high):
        return 0.0
    last = high[-1]
    if last + 1 == len(x):
        return float(x[last])
    return float(x[last] + (x[last + 1] - x[last]) * (y[last] - floor) / (y[last] - y[last + 1]))


def limits(value: float, draws: np.ndarray) -> list[float]:
    """Return a value with the interval of its resamples."""
    return [float(value), *(float(v) for v in np.quantile(draws, [0.025, 0.975]))]


def transfer(pair: str, task: str, n: str, steps: str, runs: Path, out: Path) -> None:
    """Evaluate the head of every task on every task; `task` is ignored."""
    heads = {
        f"of-{own.removesuffix('-tiny')}": head_of(pair, own, "published", HEADS["published"], steps, runs)
        for own in TRANSFERRED
    }
    configs = runs / f"configs-transfer-{pair}"
    names = rules_in(configs, "diversed", heads, offset=[2, 0])
    every: list[tuple[str, sdbench.Results]] = []
    comparison: dict[str, Any] = {}
    for other in TRANSFERRED:
        results = decoded(
            runs / f"{pair}-{other}-transfer",
            *("--config-dir", str(configs), f"model={pair}", f"task={other}", f"n={n}", "temperature=1"),
            *(f"verifier=[ensemble,{names}]", f"w={json.dumps(UNDER)}"),
        )
        every.append(("own", results))
        comparison[other] = compare_settings(results, labels_of(heads), "ensemble")
    write(out, f"{pair}-transfer", every, comparison)


def drift(pair: str, task: str, n: str, steps: str, runs: Path, out: Path) -> None:
    head = head_of(pair, task, "published", HEADS["published"], steps, runs)
    loaded = Head.load(str(head), "ensemble")
    own = {name: value for name, value in loaded.card.items() if name != "checkpoints"}  # of whichever target there is
    frozen = runs / "heads" / f"{pair}-{task}-frozen"
    Head("ensemble", loaded.features, loaded.weights, own).save(frozen)
    configs = runs / f"configs-drift-{pair}-{task}"
    names = rules_in(configs, "diversed", {"frozen": frozen}, offset=[2, 0])
    every: list[tuple[str, sdbench.Results]] = []
    comparison: dict[str, Any] = {}
    for step in (0, *DRIFTED):
        target = (
            f"embedded:{pair}/target"
            if not step
            else str(continue_target(pair, runs / "targets" / pair, step).resolve())
        )
        results = decoded(
            runs / f"{pair}-{task}-drift-{step}",
            *("--config-dir", str(configs), f"model={pair}", f"model.target={target}", f"task={task}", f"n={n}"),
            *("temperature=1", f"verifier=[ensemble,{names}]", f"w={json.dumps(UNDER)}"),
        )
        every.append((f"step {step}", results))
        comparison[str(step)] = compare_settings(results, labels_of({"frozen": frozen}), "ensemble")
    write(out, f"{pair}-{task}-drift", every, comparison)


PARTS = {
    "ensemble": ensemble,
    "trials": trials,
    "judge": judge,
    "distil": distil,
    "transfer": transfer,
    "drift": drift,
}


def main(arguments: list[str]) -> None:
    with exit_on_mistake("learned_tables", __doc__, arguments):
        options = DEFAULTS | dict(parse_words(arguments, DEFAULTS).options)
        parts = choose("parts", options["parts"], PARTS)
    for part in parts:
        PARTS[part](
            options["pair"],
            options["task"],
            options["n"],
            options["steps"],
            Path(options["runs"]),
            Path(options["out"]),
        )


if __name__ == "__main__":
    main(sys.argv[1:])
