"""Fit a confidence gate, which estimates the probability that the lossless rule keeps a drafted token.

Texts are decoded losslessly with blocks of full length. The features of every drafted token are recorded; an examined token also
has a label, kept or not. Every fifth prompt is held out: there the gate's estimates are compared with the labels, for single
tokens and for the first k tokens of a block.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdbench.card import write_trained
from sdbench.draft.gate import DRAFTING, KIND, Gate, features_of, law_of
from sdbench.files import write_whole
from sdbench.metrics.stats import ratio_interval
from sdbench.prepare.heads import drafting_of
from sdbench.train.judge import HELD_OUT, Labels, calibrate, draw_reliability, fit_judge
from sdbench.train.recipes import GateRecipe
from sdbench.train.recorder import Recorder
from sdbench.train.trainer import Trainer
from sdbench.types import Evidence, Generation, Verdict
from sdbench.verify import Exact
from sdbench.verify.tokenwise import offered_slots

THRESHOLDS = (0.0, 0.5, 0.7, 0.9)  # for the table of block lengths; with 0, all blocks count


@dataclass(eq=False)
class DraftRecorder(Recorder):
    """Records the features of all drafted tokens."""

    num_ids: int = 0

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"raw_if_greedy"})

    def record(self, text: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        draft = evidence.draft
        is_offered = offered_slots(draft)
        seen = features_of(self.features, draft.tokens, law_of(draft, self.num_ids))[is_offered]
        self.rounds.append((text[:, None].expand(is_offered.shape)[is_offered].cpu(), seen.cpu()))

    def blocks(self, generations: Sequence[Generation]) -> Iterator["Drafts"]:
        """Yield the drafts of each round, text after text, without rounds after the end of a text."""
        for index, generation in enumerate(generations):
            rounds = [seen[text == index] for text, seen in self.rounds[self.first_round[index] :]]
            counts = zip(generation.drafted or (), generation.examined or (), generation.accepted or (), strict=True)
            drafted = ((seen, *n) for seen, n in zip(filter(len, rounds), (n for n in counts if n[0]), strict=True))
            for seen, offered, examined, accepted in drafted:
                slot = torch.arange(offered)
                prompt = torch.full_like(slot, generation.prompt)
                yield Drafts(seen[:offered], slot, slot < accepted, slot < examined, prompt)


@dataclass(frozen=True)
class Drafts:
    """N drafted tokens: features, slot in the block, whether kept, whether examined, number of the prompt."""

    features: Tensor  # [N,n] float64
    slot: Tensor  # [N]
    is_kept: Tensor  # [N] bool
    is_examined: Tensor  # [N] bool
    prompt: Tensor  # [N]

    @classmethod
    def empty(cls, size: int) -> "Drafts":
        """Return no drafts, whose features would have `size` numbers."""
        number, truth = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)
        return cls(torch.zeros(0, size, dtype=torch.float64), number, truth, truth, number)

    def parts(self) -> tuple[Tensor, ...]:
        return self.features, self.slot, self.is_kept, self.is_examined, self.prompt

    def __getitem__(self, rows: Tensor) -> "Drafts":
        return Drafts(*(part[rows] for part in self.parts()))

    def labels(self) -> Labels:
        """Return the examined tokens with their labels."""
        return Labels(*(part[self.is_examined] for part in (self.features, self.is_kept, self.prompt)))


class GateTraining(Trainer[GateRecipe]):
    """Records drafts in steps, then fits a gate and measures its calibration on held-out prompts."""

    name, checkpoint_every, report_every = "drafts", 1, 1

    def progress(self) -> str:
        return f"drafts {sum(len(row[0]) for row in self.rows)}"

    def step(self, step: int) -> tuple[Tensor, ...]:
        """Record the drafts of some prompts."""
        recipe, first = self.recipe, step * self.recipe.at_once
        keys = list(self.setup.prompts.ids)[first : min(first + recipe.at_once, recipe.prompts)]
        recorder = DraftRecorder(recipe.features, num_ids=self.setup.decoder.warp.vocab_size or 0)
        generations = self.setup.decode(keys, [Exact()], 1, recipe.seed, recorder)
        blocks = [*recorder.blocks(generations), Drafts.empty(len(recipe.features))]  # a step may be without drafts
        columns = [torch.cat(part) for part in zip(*(block.parts() for block in blocks), strict=True)]
        return (*columns[:-1], columns[-1] + first)

    def save(self) -> None:
        drafts = Drafts(*map(torch.cat, zip(*self.rows, strict=True)))
        is_held_out = drafts.prompt % HELD_OUT == 0
        fitted = fit_judge(drafts[~is_held_out].labels())
        weights = {name: x.double().flatten() for name, x in fitted.items()}
        gate, held_out = Gate(self.recipe.features, weights, {}), drafts[is_held_out]
        calibration = calibrate(gate.score, held_out.labels())
        calibration = {**calibration, "ece": error_of(calibration), "blocks": by_length(gate, held_out)}
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.out / "calibration.json", json.dumps(calibration, indent=1) + "\n")
        draw(calibration, self.out)
        held = {name: value for name, value in calibration.items() if name not in ("bins", "blocks")}
        facts = {"features": list(self.recipe.features), "drafts": len(drafts.slot), "held_out": held}
        write_trained(self.out, KIND, weights, facts, self.metadata())

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of a training, the drafter's class and options, and checkpoints of only the models that it reads."""
        drafter = self.setup.lossless.drafter
        assert drafter is not None, "a training decodes with a drafter"
        metadata = super().metadata()
        roles = ("target", "draft") if drafter.needs_draft else ("target",)
        checkpoints = {role: metadata["checkpoints"][role] for role in roles}
        path = f"{drafter.kind.__module__}.{drafter.kind.__qualname__}"
        return {**metadata, "checkpoints": checkpoints, "drafter": path, DRAFTING: drafting_of(self.setup.run, drafter)}


def error_of(calibration: Mapping[str, Any]) -> float | None:
    """Return the expected calibration error: the mean over bins of |probability − share|, weighted by the tokens of the bin."""
    total = sum(b["n"] * abs(b["said"] - b["good"]) for b in calibration["bins"])
    return round(total / calibration["labels"], 4) if calibration["labels"] else None


def by_length(gate: Gate, drafts: Drafts) -> list[dict[str, Any]]:
    """Return how estimates compare with outcomes over the first k drafts of a block, for each threshold and k.

    Of the blocks whose first k estimates all exceed the threshold: `said` is the mean product of these estimates, and `good` is
    the share of blocks whose first k drafts were all kept, with an interval by bootstrap over prompts.
    """
    estimates = gate.score(drafts.features).sigmoid()
    starts = (drafts.slot == 0).nonzero()[:, 0].tolist()
    bounds = list(zip(starts, [*starts[1:], len(drafts.slot)], strict=True))
    rows = []
    for threshold in THRESHOLDS:
        for k in range(1, int(drafts.slot.max()) + 2 if len(drafts.slot) else 1):
            firsts = [a for a, b in bounds if b - a >= k and bool((estimates[a : a + k] > threshold).all())]
            if not firsts:
                continue
            products = torch.stack([estimates[a : a + k].prod() for a in firsts]).numpy()
            is_good = torch.stack([drafts.is_kept[a : a + k].all() for a in firsts]).double().numpy()
            prompts = np.unique(drafts.prompt[firsts].numpy(), return_inverse=True)[1]
            share = ratio_interval(np.bincount(prompts, is_good), np.bincount(prompts), bounds=(0, 1))
            ends = (
                {"low": round(share.low, 4), "high": round(share.high, 4)}
                if share.n > 1
                else {"low": None, "high": None}
            )
            shares = {"said": round(float(products.mean()), 4), "good": round(float(is_good.mean()), 4), **ends}
            rows.append({"above": threshold, "drafts": k, "n": len(firsts), "prompts": share.n, **shares})
    return rows


def draw(calibration: Mapping[str, Any], folder: Path) -> None:
    """Write the figure: the share of drafts kept by estimate, and the share of blocks kept by number of drafts."""
    from sdbench.report.figures.style import CYCLE, PAGE, house_style, panels, save

    with house_style():
        figure, (left, right) = panels(2, width=PAGE)
        draw_reliability(left, calibration["bins"])
        left.set_xlabel("estimate of the gate")
        left.set_ylabel("share of drafts that were kept")
        left.set_title(
            f"{calibration['labels']} drafts of {calibration['prompts']} prompts held out, ECE {calibration['ece']}"
        )
        for number, threshold in enumerate(THRESHOLDS):
            rows = [row for row in calibration["blocks"] if row["above"] == threshold and row["low"] is not None]
            x, colour = [row["drafts"] + 0.06 * number for row in rows], CYCLE[number]
            label = f"estimates > {threshold:g}" if threshold else "all blocks"
            right.plot(x, [row["good"] for row in rows], color=colour, marker="o", markersize=4, label=label)
            right.vlines(x, [row["low"] for row in rows], [row["high"] for row in rows], color=colour, linewidth=0.8)
            right.plot(x, [row["said"] for row in rows], color=colour, linestyle=":")
        right.set_xlabel("drafts from the first (dotted: product of estimates)")
        right.set_ylabel("share of blocks that kept them all")
        right.legend()
        save(figure, folder, "calibration")
