"""The pieces of the audit: e-values keep their promise, enumerations agree with the rules, other engines are read."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import Tensor

from sdbench.audit import pairs, transformers_backend
from sdbench.audit.checks import check_greedy
from sdbench.audit.claims import LawTest
from sdbench.audit.command import AuditOptions
from sdbench.audit.evidence import TILTS, AcceptanceEvidence, CountEvidence, least_tv
from sdbench.audit.laws import DraftedBlocks, TextLaws
from sdbench.audit.outcomes import UnknownLawError, outcomes, why_unknown
from sdbench.audit.plan import threshold
from sdbench.audit.source import Forwards, Sampling, Tables, evidence_of
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.audit.texts import RoundBatch
from sdbench.cli import main as front_door
from sdbench.types import DraftBlock, Evidence, Verdict
from sdbench.verify import ASD, Block, Cactus, Coin, Ensemble, Exact, FLy, Lenience, Sure, Typical, Within
from tests.audit.faults import Spending


def main(words):
    return front_door(["audit", *words])


ROOT = Path(__file__).parents[2]
LAW = np.array([0.4, 0.3, 0.2, 0.1])


def test_an_e_value_has_the_mean_one():
    """Σ over all counts of three samples of P(counts)·e(counts) = 1, exactly."""
    total = 0.0
    for a in range(4):
        for b in range(4 - a):
            for c in range(4 - a - b):
                seen = np.array([a, b, c, 3 - a - b - c], float)
                ways = math.factorial(3) / math.prod(math.factorial(int(one)) for one in seen)
                counts = CountEvidence(LAW, 1000)
                total += ways * float(np.prod(LAW**seen)) * float(np.exp(counts.log_e(np.append(seen, [0, 0]))))
    assert abs(total - 1) < 1e-12


@pytest.mark.parametrize(("chance", "count"), [(0.001, 1000), (0.999, 1000), (0.3, 2000), (0.5, 4_000_000)])
def test_the_stated_difference_in_acceptance_is_detected_at_both_ends(chance, count):
    """It was caught in .08 and .01 of runs at variances of 1 and of a million: tilts end at 1 and 1/64."""
    evidence, log_wanted = AcceptanceEvidence(), threshold(4)
    evidence.add_kept(np.zeros(count, bool), np.full(count, chance))
    least = evidence.least(log_wanted)
    for other in (chance - least, chance + least):
        if 0 <= other <= 1:
            kept = np.random.default_rng(0).binomial(count, other, 4000)
            log_e = logsumexp(np.array(TILTS) * kept[:, None] + evidence.log_ratio, axis=1) - np.log(len(TILTS))
            assert (log_e >= log_wanted).mean() >= 0.93
    assert any(0 <= other <= 1 for other in (chance - least, chance + least))


def test_coins_have_the_mean_one_whatever_came_before():
    coins = []
    for kept in ([True], [False]):
        one = AcceptanceEvidence()
        one.add_kept(np.array(kept), np.array([0.3]))
        coins.append(math.exp(one.log_e()))
    assert abs(0.3 * coins[0] + 0.7 * coins[1] - 1) < 1e-12


@pytest.mark.parametrize(
    "law", [[0.0, 1.0], [1.0, 0.0], [0.0003, 0.9997], [0.3, 0.7], [0.0, 0.0, 1.0], [0.2, 0.5, 0.3]]
)
def test_probabilities_that_may_be_off_leave_e_values(law):
    """Under every distribution that is off by no more: here those with mass moved from one number to another."""
    claimed, rough = np.array(law), 1e-3
    tilted = []
    for kept in range(len(law)):
        counts = AcceptanceEvidence()
        counts.add_counts(np.array([kept]), claimed[None], rough)
        tilted.append(np.exp(counts.log_ratio))
    for source, there in itertools.permutations(range(len(law)), 2):
        moved = min(rough * (len(law) - 1), claimed[source])
        actual = claimed.copy()
        actual[[source, there]] += [-moved, moved]
        assert (actual @ np.stack(tilted) <= 1 + 1e-12).all()


@pytest.mark.parametrize("most", [1, 3])
def test_a_rule_that_keeps_every_draft_as_it_claims_adds_no_evidence(most):
    """Of a million where probabilities are known to 1e-4 only; if one in a hundred is rejected, that is found."""

    def log_e(kept: NDArray[np.int64]) -> float:
        counts, law = AcceptanceEvidence(), np.zeros((len(kept), most + 1))
        law[:, -1] = 1
        counts.add_counts(kept, law, 1e-4)
        assert 0 < counts.least(10.0) < 0.01
        return counts.log_e()

    assert log_e(np.full(1_000_000, most)) < 1e-6
    assert log_e(np.where(np.arange(10_000) % 100, most, 0)) > threshold(20)


def test_what_a_law_excludes_is_infinite_evidence():
    counts = CountEvidence(np.array([0.5, 0.5, 0.0]), 100)
    counts.add(np.array([0, 1, 2]))
    assert counts.log_e() == np.inf


def test_the_stated_power_holds():
    """At the TV that is said to be found with probability .95, fresh samples find it at least that often, less noise."""
    counts, wanted = CountEvidence(np.full(16, 1 / 16), 2000), math.log(1200)
    tv = least_tv([counts], [2000], wanted)
    drawn = np.random.default_rng(9).multinomial(2000, counts.shift_evenly(tv), 1000).astype(float)
    assert (counts.log_e(drawn) >= wanted).mean() > 0.93
    assert abs(np.abs(counts.shift_evenly(tv) - counts.expected).sum() / 2 - tv) < 1e-12


@pytest.fixture(scope="module")
def tables() -> Tables:
    target, draft = pairs.random_pair()
    return Tables({"target": target, "draft": draft}, pairs.PROMPTS, pairs.VOCAB, 5)


RULES = [Exact(), Block(), FLy(window=1, entropy=0.3), Cactus(0.5), Typical(0.5, 0.9), Within(Lenience(0.3), 1, 2)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_outcomes_are_what_the_rule_does(tables, rule):
    """Of some blocks, with 20,000 coins each: how many drafts stay, to four standard errors."""
    laws, count = TextLaws(tables, Sampling(), rule, None, 3, 5), 20_000
    blocks = laws.blocks(0, 1, 3)
    generator = torch.Generator().manual_seed(2)
    for row in (0, 40, 101, 170):
        own = DraftedBlocks(*(getattr(blocks, name)[row : row + 1] for name in DraftedBlocks.__dataclass_fields__))
        text = own.context[:, None]
        evidence = evidence_of(tables, Sampling(), 0, text, own.draft)
        claimed = outcomes(rule, evidence, pairs.PROMPTS[0], text)
        many = evidence.rows(torch.zeros(count, dtype=torch.int64))
        state = rule.init_state([torch.tensor([*pairs.PROMPTS[0], int(text)])], "cpu")
        u = torch.rand(count, 4, generator=generator, dtype=torch.float64)
        verdict = rule(many, u, None if state is None else state.expand(count, -1))
        seen = torch.bincount(verdict.accepted, minlength=4) / count
        error = (claimed.accepted[0] * (1 - claimed.accepted[0]) / count).sqrt()
        assert ((seen - claimed.accepted[0]).abs() <= 4 * error + 1e-9).all()
        for kept in range(4):
            next_tokens = verdict.next_token[verdict.accepted == kept]
            if len(next_tokens) > 500:
                law = torch.bincount(next_tokens, minlength=4) / len(next_tokens)
                assert (law - claimed.following[0, kept]).abs().max() < 4 * 0.5 / len(next_tokens) ** 0.5


def test_a_state_that_no_text_tells_is_in_the_recursion(tables):
    """The law of texts is the mixture over what was spent; either half alone is another law."""
    law = TextLaws(tables, Sampling(), Spending(0.2, most=2), None, 2, 5)
    assert abs(float(law.texts(0).sum()) - 1) < 1e-12
    assert {depth: sorted(law.states(0, depth)) for depth in (1, 3)} == {1: [(0,)], 3: [(0,), (1,), (2,)]}
    for rule, most in ((Ensemble(0.2), 9), (Ensemble(1.0), 0)):
        never = TextLaws(tables, Sampling(), Spending(0.2, most=most), None, 2, 5)
        torch.testing.assert_close(never.texts(0), TextLaws(tables, Sampling(), rule, None, 2, 5).texts(0))
        assert (never.texts(0) - law.texts(0)).abs().sum() > 0.01


def test_a_state_that_nobody_wrote_down_is_no_law(tables):
    silent = type("Silent", (Ensemble,), {"init_state": Spending.init_state})(0.5)
    assert why_unknown(silent)
    with pytest.raises(UnknownLawError, match="carries a state"):
        TextLaws(tables, Sampling(), silent, None, 2, 5).texts(0)
    with pytest.raises(ValueError, match="must carry no state"):
        Coin(silent)


def test_what_a_drafter_is_sure_of_makes_every_law_unknown():
    for rule in (Sure(Exact()), Within(Sure(Exact()), 1, 2), Coin(Sure(Exact()))):
        assert str(why_unknown(rule)).endswith("depends on what the drafter is sure of")
    assert why_unknown(Within(Exact(), 1, 2)) is None


def test_the_cell_that_deviates_most_is_no_chance_hit_of_a_rare_one():
    """A cell of probability 1e-4 that one of 100 texts hits has z = 10; 75 of 50 have z = 3.5."""
    counts = CountEvidence(np.array([0.5, 0.4998, 1e-4, 1e-4, 0.0]), 100)
    counts.add(np.array([0] * 75 + [1] * 24 + [2]))
    worst = counts.worst()
    assert (worst.cells.tolist(), worst.seen, worst.expected) == ([1], 24, pytest.approx(49.98))
    counts.add(np.array([3] * 20))
    worst = counts.worst()
    assert (worst.cells.tolist(), worst.seen, worst.expected) == ([2, 3], 21, pytest.approx(0.024))
    counts.add(np.array([4]))
    assert (counts.worst().cells.tolist(), counts.worst().seen) == ([4], 1)


def test_a_first_round_that_deviates_is_named(tables):
    """Its cells are numbered by how many drafts are kept, then by three tokens."""
    test = LawTest("law", TextLaws(tables, Sampling(), Exact(), None, 2, 3), (3,), 100, with_rounds=True)
    assert test.name_of(2, 1, 2 * 4**3 + 6) == "the first round after prompt 1 keeps 2 drafts and emits 0 1 2"
    assert test.name_of(2, 0, 4**3 + 13 * 4) == "the first round after prompt 0 keeps 1 drafts and emits 3"


def test_forwards_and_tables_agree(tables):
    texts = torch.tensor([[0, 1, 2, 3, 0], [3, 3, 0, 2, 1], [0, 1, 2, 3, 0]])
    forwards = Forwards(tables.models, tables.prompts, tables.vocab)
    for side in ("target", "draft"):
        run, table = (source.outputs(side, [0, 1, 0], texts) for source in (forwards, tables))
        torch.testing.assert_close((run.logits, run.states), (table.logits, table.states))


def test_a_block_without_slots_is_the_target(tables):
    evidence = Evidence(torch.full((1, 1, 4), 0.25), DraftBlock.empty(torch.zeros(1, dtype=torch.int64)))
    assert evidence.draft.tokens.shape == (1, 0)
    alone = TextLaws(tables, Sampling(), None, None, 3, 5).texts(0)
    for rule in (Exact(), Ensemble(1.0)):
        torch.testing.assert_close(TextLaws(tables, Sampling(), rule, None, 3, 5).texts(0), alone)


def test_transformers_fault_needs_nothing_of_ours():
    text = (ROOT / "results" / "audit" / "universal_assisted_generation.py").read_text()
    assert "sdbench" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"), [("assistant", "sound"), ("ensemble", "sound"), ("universal", "violated")]
)
def test_transformers_own_generate(name: str, verdict: str):
    report = transformers_backend.audit(transformers_backend.build_mode(name), Sampling(), AuditOptions(tv=0.15))
    assert report.verdict == verdict
    assert next(row for row in report.rows if row.claim == "greedy").verdict == "sound"


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "code"), [("1.0", 0), ("0.6", 1)])
def test_texts_of_another_engine(tmp_path: Path, capsys, temperature: str, code: int):
    """Plain `generate` of transformers at temperature 1, said to be at 1 or at 0.6."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(ROOT / "sdbench" / "embedded" / "llama-tiny" / "target").float()
    torch.manual_seed(0)
    prompt = [1, 40, 50, 60]
    ids = torch.tensor([prompt]).expand(750, -1)
    with torch.no_grad():
        out = model.generate(ids, do_sample=True, top_k=0, max_new_tokens=4, eos_token_id=[], pad_token_id=0)
    lines = [json.dumps({"prompt": prompt, "tokens": row[len(prompt) :]}) for row in out.tolist()]
    file = tmp_path / "theirs.jsonl"
    file.write_text("\n".join(lines))
    argv = [f"generations={file}", "model=llama-tiny", f"temperature={temperature}", "tv=0.4", f"out={tmp_path}"]
    assert main(argv) == code
    assert capsys.readouterr().out.startswith("sound" if code == 0 else "violated")


@pytest.mark.slow
def test_the_family_wise_error_by_simulation(tmp_path: Path):
    """100 runs raise no alarm with probability .37 at 1 %, and at most 4 with probability .997; every fault is caught."""
    command = [sys.executable, "-m", "scripts.audit_family_error", "runs=100", "power=5", f"out={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
    tree = json.loads((tmp_path / "family_error.json").read_text())
    assert tree["false_alarms"] <= 4
    assert all(one["caught"] == one["runs"] for one in tree["power"])


@pytest.mark.long
def test_a_trained_pair_is_sound(tmp_path: Path, capsys):
    argv = ["verifier=typical", "model=llama-tiny", "temperature=0.7", "top_p=0.9", "tv=0.1", f"out={tmp_path}"]
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("sound")


@dataclass(frozen=True, slots=True)
class Forgetful(ASD):
    """Every round has the whole budget again."""

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        return replace(ASD.__call__(self, evidence, u, state), state=state)


def test_a_budget_holds_for_the_text_and_not_for_each_round():
    """A plain loop says what the rule says, so that only the published bound betrays it."""
    target, draft = pairs.random_pair()
    rules = {"asd": ASD(budget=0.5, gap=4.0, mismatches=3), "forgetful": Forgetful(budget=0.5, gap=4.0, mismatches=3)}
    settings = [AuditedRule(name, rule) for name, rule in rules.items()]
    subject = Subject(settings, target, draft, pairs.PROMPTS, Sampling(0.0), num_draft=2, budget=5)
    honest, forgetful = check_greedy(subject, [0, 1])
    assert not honest.deviations
    assert forgetful.deviations
    assert all("its budget is 0.5" in message for message in forgetful.deviations)


def test_rounds_that_are_chosen_are_not_the_same_round_of_every_text():
    """Of texts with two rounds each, even steps chose the first ones only."""
    begin = torch.arange(4000) % 2 * 4
    empty = torch.zeros(4000, 1)
    rounds = RoundBatch(begin, begin, begin, *[empty] * 2, *[begin] * 3, *[empty] * 2)
    chosen = rounds.first(2000)
    assert len(chosen.begin) == 2000
    assert (chosen.begin == 0).sum().item() == pytest.approx(1000, abs=110), "five standard errors"
    assert len(rounds.first(9000).begin) == 4000
