"""Simulate the audit's family-wise error and power from enumerated laws, without decoding: results/audit/family_error.{json,md}.

    python scripts/audit_family_error.py [out=results/audit] [runs=1000] [horizon=1000] [power=300]

A run is the default audit: two settings of the ensemble, two prompts, all tests that draw samples. Texts are drawn round by round
from the laws that `sdbench.audit.laws` enumerates. With a fault they are drawn from the laws of the faulty rule, and tested against
those that the rule claims.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.audit import pairs
from sdbench.audit.claims import NUM_BINS, ClaimTest, DraftTest, LawTest, RoundAcceptanceTest
from sdbench.audit.command import AuditOptions
from sdbench.audit.laws import DraftedBlocks, TextLaws
from sdbench.audit.outcomes import Outcomes, judge_in_order, keep_and_replace
from sdbench.audit.plan import RuleTests, sample
from sdbench.audit.source import Sampling, Tables
from sdbench.audit.texts import RoundBatch, SampledTexts, TextBatch
from sdbench.probs import dense
from sdbench.types import Evidence
from sdbench.verify import Ensemble
from sdbench.words import exit_on_mistake, number, parse_words

INTRODUCTION = """\
Of {runs:,} simulated default audits of sound settings, {false_alarms} raised a false alarm; at most 1 % may. Texts were drawn from
the enumerated distributions, at most {horizon:,} for each prompt and setting. The table shows how often faults whose distribution
can be enumerated were caught, by the tests of emitted texts and of how many drafts each round kept, as the engine records it; the
drafted tokens and their recorded probabilities were not tested. Written by `python scripts/audit_family_error.py`."""
DEFAULTS = {"out": "results/audit", "runs": "1000", "horizon": "1000", "power": "300"}
K, BUDGET, STOPS = 3, 5, (pairs.STOP,)
DRAFTS_A_ROUND = 2


@dataclass(frozen=True, slots=True)
class FromTheTarget(Ensemble):
    """A rule with a fault: it replaces a rejected draft from p instead of norm((p − q)+)."""

    def outcomes(self, evidence: Evidence, prompt: Sequence[int], texts: Any) -> Outcomes:
        keep, _ = keep_and_replace(Ensemble(self.w), evidence)
        return judge_in_order(evidence, keep, evidence.p[:, :-1])


@dataclass(frozen=True, slots=True)
class BonusOfTheDraft(Ensemble):
    """A rule with a fault: it draws the bonus token from q."""

    def outcomes(self, evidence: Evidence, prompt: Sequence[int], texts: Any) -> Outcomes:
        p = torch.cat((evidence.p[:, :-1], dense(evidence.draft.q, pairs.VOCAB)[:, -1:]), 1)
        return judge_in_order(replace(evidence, p=p), *keep_and_replace(Ensemble(self.w), evidence))


@dataclass(frozen=True, slots=True)
class NoStop(Ensemble):
    """A target with a fault: it never ends a text inside a block."""

    def outcomes(self, evidence: Evidence, prompt: Sequence[int], texts: Any) -> Outcomes:
        p = evidence.p.clone()
        p[:, :-1, pairs.STOP] = 0
        suppressed = replace(evidence, p=p / p.sum(-1, keepdim=True))
        return judge_in_order(suppressed, *keep_and_replace(Ensemble(self.w), suppressed))


def claim_q(change: Callable[[Any], Any]) -> Callable[[DraftedBlocks], DraftedBlocks]:
    """Return a function that changes the q of blocks, so that they claim a distribution from which they were not drawn."""
    return lambda blocks: replace(blocks, q=change(blocks.q))


def drop_unlikely(blocks: DraftedBlocks) -> DraftedBlocks:
    """Return blocks that end before their first unlikely token."""
    likely = blocks.q.gather(-1, blocks.x[..., None])[..., 0] > 0.3
    return replace(blocks, lengths=likely.long().cumprod(1).sum(1))


class SpoiltLaws(TextLaws):
    """Distributions of rounds whose blocks are not distributed as the drafter claims."""

    spoil: Callable[[DraftedBlocks], DraftedBlocks] = staticmethod(lambda blocks: blocks)

    def blocks(self, prompt: int, depth: int, width: int) -> DraftedBlocks:
        return self.spoil(super().blocks(prompt, depth, width))


FAULTS: dict[str, tuple[Any, Callable[[DraftedBlocks], DraftedBlocks]]] = {
    "residual from the wrong law": (FromTheTarget, lambda blocks: blocks),
    "bonus from q": (BonusOfTheDraft, lambda blocks: blocks),
    "end of text suppressed in the block": (NoStop, lambda blocks: blocks),
    "temperature twice in the draft": (Ensemble, claim_q(lambda q: q**0.7 / (q**0.7).sum(-1, keepdim=True))),
    "two columns of a cross-tokenizer map exchanged": (Ensemble, claim_q(lambda q: q[..., [1, 0, 2, 3]])),
    "a stop rule that looks at the sampled token and drops it": (Ensemble, drop_unlikely),
    "one-hot q claimed for a sampled draft": (Ensemble, lambda b: replace(b, q=dense(b.x, pairs.VOCAB, torch.float64))),
}


class Simulator:
    """Draws texts of one prompt and setting from the distributions of their rounds."""

    def __init__(self, laws: TextLaws, prompt: int) -> None:
        self.vocab, self.tables = laws.tables.vocab, []
        for depth in range(BUDGET):
            ends = laws.round(prompt, depth).ends
            self.tables.append((torch.cat(ends, 1).cumsum(1).numpy(), np.cumsum([0] + [e.shape[1] for e in ends])))

    def draw(self, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Return tokens [n,T], lengths [n], and rounds as columns (text, begin, accepted, emitted)."""
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
    """Draws the probability integral transform of correct drafts, which is uniform."""

    uniforms = np.random.default_rng(5)

    def add(self, texts: TextBatch, rounds: RoundBatch | None) -> None:
        assert rounds is not None, "rounds are simulated"
        for (part,) in self.parts:
            part.add(self.uniforms.integers(0, NUM_BINS, DRAFTS_A_ROUND * len(rounds.text)))


def samples(simulators: Sequence[Simulator], count: int, generator: np.random.Generator) -> SampledTexts:
    """Return `count` texts of every prompt."""
    drawn = [simulator.draw(count, generator) for simulator in simulators]
    prompts = torch.arange(len(drawn)).repeat_interleave(count)
    tokens = torch.from_numpy(np.concatenate([texts for texts, _, _ in drawn]))
    lengths = torch.from_numpy(np.concatenate([sizes for _, sizes, _ in drawn]))
    columns = np.concatenate(
        [part + np.array([number * count, 0, 0, 0]) for number, (_, _, rounds) in enumerate(drawn) for part in rounds]
    )
    text, begin, accepted, emitted = torch.from_numpy(columns[np.lexsort((columns[:, 1], columns[:, 0]))]).unbind(1)
    before = torch.where(torch.arange(BUDGET) < begin[:, None], tokens[text], 0)
    nothing = torch.zeros(len(text), K, dtype=torch.int64)
    nan = torch.full(nothing.shape, torch.nan, dtype=torch.float64)
    rounds = RoundBatch(text, prompts[text], begin, before, nothing, accepted, accepted, emitted, nan, nan)
    return TextBatch(prompts, tokens, lengths, torch.full_like(tokens, -1)), rounds


def build_tests(claimed: Sequence[tuple[TextLaws, TextLaws | None]], horizon: int) -> list[RuleTests]:
    """Return the tests of the default audit."""
    built = []
    for place, (laws, alone) in enumerate(claimed):
        tests: list[ClaimTest] = [
            LawTest("law", laws, STOPS, horizon, with_rounds=True),
            RoundAcceptanceTest(laws=laws, stops=STOPS),
        ]
        tests += [] if alone is None else [LawTest("losslessness", alone, STOPS, horizon)]
        tests.append(EvenDrafts("q", horizon * 2 * BUDGET, source=laws.tables, sampling=laws.sampling))
        built.append(RuleTests(place, tests))
    return built


def main(argv: Sequence[str]) -> int:
    with exit_on_mistake("audit_family_error", __doc__, argv):
        given = parse_words(argv, DEFAULTS)
        runs, horizon, num_power = (
            int(number(given, name) or int(DEFAULTS[name])) for name in ("runs", "horizon", "power")
        )
    out = Path(given.options.get("out", DEFAULTS["out"]))
    begun = time.perf_counter()
    target, draft = pairs.random_pair()
    tables = Tables({"target": target, "draft": draft}, pairs.PROMPTS, pairs.VOCAB, BUDGET)
    alone = TextLaws(tables, Sampling(), None, None, K, BUDGET)
    laws = [TextLaws(tables, Sampling(), Ensemble(w), None, K, BUDGET) for w in (1.0, 0.5)]
    claimed = [(laws[0], alone), (laws[1], None)]
    generator = np.random.default_rng(0)

    def refute(actual: Sequence[TextLaws]) -> tuple[bool, int]:
        simulators = [[Simulator(laws, prompt) for prompt in range(2)] for laws in actual]
        rows, texts = sample(
            ["w=1", "w=0.5"],
            build_tests(claimed, horizon),
            AuditOptions(),
            horizon=horizon,
            draw=lambda which, count, look: [samples(simulators[place], count, generator) for place in which],
        )
        broken = [row.note for row in rows if row.claim == "runs"]
        assert not broken, broken[0]
        return any(row.verdict == "violated" for row in rows), texts

    alarms = sum(refute(laws)[0] for _ in range(runs))
    lines = []
    for name, (rule, spoil) in FAULTS.items():
        actual = [SpoiltLaws(tables, Sampling(), rule(w), None, K, BUDGET) for w in (1.0, 0.5)]
        for spoilt in actual:
            spoilt.spoil = spoil
        results = [refute(actual) for _ in range(num_power)]
        lines.append({"fault": name, "runs": num_power, "caught": sum(is_caught for is_caught, _ in results)})
        lines[-1]["median_texts"] = float(np.median([texts for _, texts in results]))
        print(lines[-1], file=sys.stderr, flush=True)
    tree = {"runs": runs, "false_alarms": alarms, "horizon": horizon, "power": lines}
    tree["seconds"] = round(time.perf_counter() - begun, 1)
    out.mkdir(parents=True, exist_ok=True)
    (out / "family_error.json").write_text(json.dumps(tree, indent=1) + "\n")
    (out / "family_error.md").write_text(page(tree))
    return int(alarms > 0.01 * runs)


def page(tree: dict[str, Any]) -> str:
    rows = [
        f"| {line['fault']} | {line['caught']} of {line['runs']} | {line['median_texts']:,.0f} |"
        for line in tree["power"]
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
