"""The audit's family-wise error and power, simulated from enumerated laws, without decoding: results/audit/family_error.{json,md}.

python -m scripts.audit_family_error [out=results/audit] [runs=1000] [horizon=1000] [power=300]

A run is the default audit: two settings of the ensemble, two prompts, all tests that draw samples. Texts come round by round from
the laws that `sdbench.audit.laws` enumerates; with a fault, from those of what it does, while the tests know the claim alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdbench.audit import pairs
from sdbench.audit.audit import Options, Sample, Trial, sample
from sdbench.audit.claims import BINS, AcceptanceTest, DraftTest, LawTest, Test
from sdbench.audit.laws import Blocks, Laws
from sdbench.audit.outcomes import Outcomes, in_order, judged
from sdbench.audit.source import Sampling, Tables
from sdbench.audit.texts import Rounds, Texts
from sdbench.probs import dense
from sdbench.types import Evidence
from sdbench.verify import Ensemble

INTRODUCTION = """\
Of {runs:,} simulated default audits of sound settings {false_alarms} raised an alarm; at most 1 % may. Texts were drawn from the
enumerated laws, at most {horizon:,} of a prompt and setting. Below, the same with faults whose law can be enumerated, by the tests
of emitted texts alone. `python -m scripts.audit_family_error` wrote this."""
K, BUDGET, STOPS = 3, 5, (pairs.STOP,)
DRAFTS_A_ROUND = 2


@dataclass(frozen=True, slots=True)
class FromTheTarget(Ensemble):
    """What the residual of the wrong law does."""

    def outcomes(self, evidence: Evidence, prompt: Sequence[int], texts: Any) -> Outcomes:
        keep, _ = judged(Ensemble(self.w), evidence)
        return in_order(keep, evidence.p[:, :-1], evidence.p, evidence.draft.lengths)


@dataclass(frozen=True, slots=True)
class BonusOfTheDraft(Ensemble):
    """What a bonus from q does."""

    def outcomes(self, evidence: Evidence, prompt: Sequence[int], texts: Any) -> Outcomes:
        p = torch.cat((evidence.p[:, :-1], dense(evidence.draft.q, pairs.VOCAB)[:, -1:]), 1)
        keep, replaced = judged(Ensemble(self.w), evidence)
        return in_order(keep, replaced, p, evidence.draft.lengths)


@dataclass(frozen=True, slots=True)
class NoStop(Ensemble):
    """What an end of text that is suppressed in the block does."""

    def outcomes(self, evidence: Evidence, prompt: Sequence[int], texts: Any) -> Outcomes:
        p = evidence.p.clone()
        p[:, :-1, pairs.STOP] = 0
        shown = replace(evidence, p=p / p.sum(-1, keepdim=True))
        keep, replaced = judged(Ensemble(self.w), shown)
        return in_order(keep, replaced, shown.p, evidence.draft.lengths)


def said(change: Callable[[Any], Any]) -> Callable[[Blocks], Blocks]:
    """Blocks drawn from q of which another law is said."""
    return lambda blocks: replace(blocks, q=change(blocks.q))


def dropped(blocks: Blocks) -> Blocks:
    """The first unlikely token ends the draft and is dropped."""
    likely = blocks.q.gather(-1, blocks.x[..., None])[..., 0] > 0.3
    return replace(blocks, lengths=likely.long().cumprod(1).sum(1))


class SpoiltLaws(Laws):
    """Laws of rounds whose blocks are not what they are said to be."""

    spoil: Callable[[Blocks], Blocks] = staticmethod(lambda blocks: blocks)

    def blocks(self, prompt: int, depth: int, width: int) -> Blocks:
        return self.spoil(super().blocks(prompt, depth, width))


FAULTS: dict[str, tuple[Any, Callable[[Blocks], Blocks]]] = {
    "residual from the wrong law": (FromTheTarget, lambda blocks: blocks),
    "bonus from q": (BonusOfTheDraft, lambda blocks: blocks),
    "end of text suppressed in the block": (NoStop, lambda blocks: blocks),
    "temperature twice in the draft": (Ensemble, said(lambda q: q**0.7 / (q**0.7).sum(-1, keepdim=True))),
    "two columns of a cross-tokenizer map exchanged": (Ensemble, said(lambda q: q[..., [1, 0, 2, 3]])),
    "a stop rule that looks at the sampled token and drops it": (Ensemble, dropped),
    "one-hot q claimed for a sampled draft": (Ensemble, lambda b: replace(b, q=dense(b.x, pairs.VOCAB, torch.float64))),
}


class Simulator:
    """Texts of one prompt and setting, from the laws of its rounds."""

    def __init__(self, laws: Laws, prompt: int) -> None:
        self.vocab, self.tables = laws.tables.vocab, []
        for depth in range(BUDGET):
            ends = laws.round(prompt, depth).ends
            self.tables.append((torch.cat(ends, 1).cumsum(1).numpy(), np.cumsum([0] + [e.shape[1] for e in ends])))

    def draw(self, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Tokens [n,T], lengths [n], and rounds as columns (text, begin, accepted, emitted)."""
        tokens, lengths = np.zeros((count, BUDGET), np.int64), np.zeros(count, np.int64)
        is_done, rounds = np.zeros(count, bool), []
        for depth in range(BUDGET):
            rows = np.flatnonzero((lengths == depth) & ~is_done)
            if not len(rows):
                continue
            number = np.zeros(len(rows), np.int64)
            for place in range(depth):
                number = number * self.vocab + tokens[rows, place]
            cdf, begins = self.tables[depth]
            u = generator.random(len(rows)) * cdf[number, -1]
            cell = (cdf[number] <= u[:, None]).sum(1)
            kept = np.searchsorted(begins, cell, side="right") - 1
            digits = cell - begins[kept]
            accepted, emitted = kept.copy(), kept + 1
            for place in range(min(K + 1, BUDGET - depth)):
                some = place <= kept
                token = digits // self.vocab ** np.maximum(kept - place, 0) % self.vocab
                going = some & ~is_done[rows]
                tokens[rows[going], depth + place] = token[going]
                ended = going & np.isin(token, STOPS)
                accepted = np.where(ended, np.minimum(kept, place + 1), accepted)
                emitted = np.where(ended, place + 1, emitted)
                is_done[rows[ended]] = True
            lengths[rows] += emitted
            rounds.append(np.stack((rows, np.full(len(rows), depth), accepted, emitted), 1))
        return tokens, lengths, rounds


class EvenDrafts(DraftTest):
    """The transform of honest drafts is uniform: drawn as such."""

    coins = np.random.default_rng(5)

    def add(self, texts: Texts, rounds: Rounds | None) -> None:
        assert rounds is not None, "rounds are simulated"
        for part in self.parts:
            part.add(self.coins.integers(0, BINS, DRAFTS_A_ROUND * len(rounds.text)))


def samples(simulators: Sequence[Simulator], count: int, generator: np.random.Generator) -> Sample:
    """`count` texts of every prompt."""
    drawn = [simulator.draw(count, generator) for simulator in simulators]
    prompts = torch.arange(len(drawn)).repeat_interleave(count)
    tokens = torch.from_numpy(np.concatenate([one[0] for one in drawn]))
    lengths = torch.from_numpy(np.concatenate([one[1] for one in drawn]))
    columns = np.concatenate(
        [part + np.array([number * count, 0, 0, 0]) for number, one in enumerate(drawn) for part in one[2]]
    )
    text, begin, accepted, emitted = torch.from_numpy(columns[np.lexsort((columns[:, 1], columns[:, 0]))]).unbind(1)
    before = torch.where(torch.arange(BUDGET) < begin[:, None], tokens[text], 0)
    nothing = torch.zeros(len(text), K, dtype=torch.int64)
    nan = torch.full(nothing.shape, torch.nan, dtype=torch.float64)
    rounds = Rounds(text, prompts[text], begin, before, nothing, accepted, accepted, emitted, nan, nan)
    return Texts(prompts, tokens, lengths, torch.full_like(tokens, -1)), rounds


def trials(claimed: Sequence[tuple[Laws, Laws | None]], horizon: int) -> list[Trial]:
    """The tests of the default audit."""
    made = []
    for place, (laws, alone) in enumerate(claimed):
        tests: list[Test] = [LawTest("law", laws, STOPS, horizon, with_rounds=True), AcceptanceTest(laws, STOPS)]
        tests += [] if alone is None else [LawTest("losslessness", alone, STOPS, horizon)]
        tests.append(EvenDrafts("q", horizon * 2 * BUDGET))
        made.append(Trial(place, tests))
    return made


def main(argv: Sequence[str]) -> int:
    given = dict(word.split("=", 1) for word in argv)
    out, runs = Path(given.get("out", "results/audit")), int(given.get("runs", 1000))
    horizon, num_power = int(given.get("horizon", 1000)), int(given.get("power", 300))
    begun = time.perf_counter()
    target, draft = pairs.random_pair()
    tables = Tables({"target": target, "draft": draft}, pairs.PROMPTS, pairs.VOCAB, BUDGET)
    alone = Laws(tables, Sampling(), None, None, K, BUDGET)
    own = [Laws(tables, Sampling(), Ensemble(w), None, K, BUDGET) for w in (1.0, 0.5)]
    claimed = [(own[0], alone), (own[1], None)]
    generator = np.random.default_rng(0)

    def refuted(actual: Sequence[Laws]) -> tuple[bool, int]:
        simulators = [[Simulator(laws, prompt) for prompt in range(2)] for laws in actual]
        rows, texts = sample(
            ["w=1", "w=0.5"],
            trials(claimed, horizon),
            Options(),
            horizon=horizon,
            draw=lambda which, count, look: [samples(simulators[place], count, generator) for place in which],
        )
        broken = [row.note for row in rows if row.claim == "runs"]
        assert not broken, broken[0]
        return any(row.verdict == "violated" for row in rows), texts

    alarms = sum(refuted(own)[0] for _ in range(runs))
    lines = []
    for name, (rule, spoil) in FAULTS.items():
        actual = [SpoiltLaws(tables, Sampling(), rule(w), None, K, BUDGET) for w in (1.0, 0.5)]
        for laws in actual:
            laws.spoil = spoil
        found = [refuted(actual) for _ in range(num_power)]
        lines.append({"fault": name, "runs": num_power, "caught": sum(one for one, _ in found)})
        lines[-1]["median_texts"] = float(np.median([texts for _, texts in found]))
        print(lines[-1], file=sys.stderr, flush=True)
    tree = {"runs": runs, "false_alarms": alarms, "horizon": horizon, "power": lines}
    tree["seconds"] = round(time.perf_counter() - begun, 1)
    out.mkdir(parents=True, exist_ok=True)
    (out / "family_error.json").write_text(json.dumps(tree, indent=1) + "\n")
    (out / "family_error.md").write_text(page(tree))
    return int(alarms > 0.01 * runs)


def page(tree: dict[str, Any]) -> str:
    rows = [
        f"| {one['fault']} | {one['caught']} of {one['runs']} | {one['median_texts']:,.0f} |" for one in tree["power"]
    ]
    return "\n".join(
        [
            "# The audit's family-wise error and power",
            "",
            INTRODUCTION.format(**tree),
            "",
            "| fault | caught | texts drawn, median |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
