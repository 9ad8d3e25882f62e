"""The plug-in's adapter and knobs with torch alone: flattened laws are judged as our rules judge them row by row."""

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from fuzz import any_knobs

from sdbench.config import ConfigError
from sdbench.engines.served.plugin import refuse_for_the_plugin, request_of
from sdbench.types import DraftBlock, Evidence
from sdbench.verify import CascadeV2, Coin, Ensemble, Exact, Lenience, Typical
from tests.contracts.parts import parts

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "plugins" / "vllm"))

from sdbench_vllm import seam  # noqa: E402
from sdbench_vllm.adapter import PLACEHOLDER, FlatBatch, expand, judged, uniforms  # noqa: E402
from sdbench_vllm.knobs import LOSSLESS, rule_of  # noqa: E402
from sdbench_vllm.repairs import (  # noqa: E402
    count_texts_with_stops,
    drop_drafts_of_zeros,
    drop_drafts_without_laws,
    rewind_on_the_cpu,
)
from sdbench_vllm.seam import SEAM, differences  # noqa: E402

V = 7


class Flattened:
    """A ragged batch as vLLM hands it over. `raw` are logits at temperature 1 without a cut, target and draft."""

    def __init__(self, num_draft: list[int], seed: int, *, is_drawn: bool = True, temperature: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        count, rows = sum(num_draft), len(num_draft)
        self.num_draft, self.temperature = num_draft, temperature
        self.raw = torch.randn(2, count, V, generator=generator)
        self.logits = self.raw[0] / temperature
        self.logs = (self.raw[1] / temperature).log_softmax(-1) if is_drawn else None
        law = torch.full((count, V), 1 / V) if self.logs is None else self.logs.exp()
        self.ids = (
            torch.multinomial(law, 1, generator=generator)[:, 0].int() if count else torch.zeros(0, dtype=torch.int32)
        )
        self.bonus = torch.randint(0, V, (rows, 1), generator=generator)
        self.u = torch.rand(rows, max(num_draft, default=0) + 1, dtype=torch.float64, generator=generator)

    def judgement(self, rules, is_greedy):
        temperature = torch.full((len(self.num_draft),), self.temperature)
        batch = FlatBatch(
            *(torch.tensor(is_greedy), self.ids, self.num_draft, self.logs, self.logits, self.bonus, self.u),
            raw_logits=self.raw[0],
            temperature=temperature,
        )
        return judged(rules, batch)

    def judged(self, rules, is_greedy) -> list[list[int]]:
        out = self.judgement(rules, is_greedy).emitted
        assert out.dtype == torch.int32
        assert out.shape == self.u.shape
        rows = out.tolist()
        for row in rows:
            ended = row.index(PLACEHOLDER) if PLACEHOLDER in row else len(row)
            assert all(token == PLACEHOLDER for token in row[ended:])
        return [[token for token in row if token != PLACEHOLDER] for row in rows]

    def by_hand(self, row: int, rule, *, is_greedy: bool) -> list[int]:
        """One row alone, by the rule itself, with the evidence that the native engine has."""
        start, k = sum(self.num_draft[:row]), self.num_draft[row]
        part = slice(start, start + k)
        x = self.ids[part].long()[None]
        raw_p = torch.nn.functional.pad(self.raw[0, part], (0, 0, 0, 1))[None]
        raw_q = None if self.logs is None else self.raw[1, part][None]
        if is_greedy:
            p, q = torch.cat((self.logits[part].argmax(-1), self.bonus[row]))[None], x
        else:
            bonus = torch.nn.functional.one_hot(self.bonus[row], V).float()
            p = torch.cat((self.logits[part].softmax(-1), bonus))[None]
            q = x if self.logs is None else (self.raw[1, part] / self.temperature).softmax(-1)[None]
        evidence = Evidence(p, DraftBlock(x, q, torch.tensor([k]), raw_q), is_greedy, raw_p)
        verdict = rule(evidence, torch.cat((self.u[row, :k], self.u[row, -1:]))[None])
        return [*x[0, : int(verdict.accepted)].tolist(), int(verdict.next_token)]


RULES = [Exact(), Ensemble(w=0.0), Ensemble(w=0.4, greedy="mixture"), Ensemble(w=1.0, greedy="mixture"), Lenience(0.5)]


@pytest.mark.parametrize("is_drawn", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_mixed_ragged_batch_is_judged_as_each_row_alone(seed, is_drawn):
    shuffle = torch.Generator().manual_seed(100 + seed)
    num_draft = torch.randint(0, 5, (9,), generator=shuffle).tolist()
    batch = Flattened(num_draft, seed, is_drawn=is_drawn)
    rules = [RULES[row % len(RULES)] for row in range(9)]
    is_greedy = [bool(flag) for flag in torch.randint(0, 2, (9,), generator=shuffle)]
    expected = [batch.by_hand(row, rule, is_greedy=is_greedy[row]) for row, rule in enumerate(rules)]
    assert batch.judged(rules, is_greedy) == expected


@pytest.mark.parametrize("greedy", ["blend", "mixture"])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("is_drawn", [True, False])
def test_w_1_emits_what_the_lossless_rule_emits(temperature, greedy, is_drawn):
    """From equal laws and uniforms, token for token: a sweep decodes the two once."""
    for seed in range(50):
        batch = Flattened([4, 0, 2, 5], seed, is_drawn=is_drawn, temperature=temperature or 1.0)
        flags = [temperature == 0] * 4
        lossless = batch.judged([Exact()] * 4, flags)
        assert batch.judged([Ensemble(w=1.0, greedy=greedy)] * 4, flags) == lossless


OUTSIDE = {
    "asd": "carries a state from block to block",
    "block": "judges a block as a whole",
    "diversed": "reads a head of trained weights",  # a trained one reads hidden states too
    "fly": "judges a block as a whole",
    "judge": "judges a block as a whole",
    "sure": "keeps what the drafter is sure of",
    "within": "carries a state from block to block",
}
NAMED = [named for named in parts("verifier") if named.target.__module__.startswith("sdbench.")]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("named", [named for named in NAMED if named.name not in OUTSIDE], ids=str)
def test_every_tokenwise_rule_decides_as_in_the_native_engine(named, temperature):
    """As a request carries it, in a batch as vLLM hands it over: rules may read laws that are neither tempered nor one-hot."""
    is_greedy, num_decided = temperature == 0, 0
    for seed, setting in enumerate(named.settings()):
        rule = named.make(**setting)
        refuse_for_the_plugin(named.name, rule)
        if is_greedy and rule.limits.temperature == "above_zero":
            with pytest.raises(ValueError, match="needs a temperature above 0"):
                rule_of(request_of(rule), temperature)
            continue
        carried = rule_of(request_of(rule), temperature)
        assert carried == rule
        batch = Flattened([4, 0, 2, 5], seed, temperature=temperature or 1.0)
        judgement = batch.judgement([carried] * 4, [is_greedy] * 4)
        assert not judgement.faults
        expected = [batch.by_hand(row, rule, is_greedy=is_greedy) for row in range(4)]
        assert batch.judged([carried] * 4, [is_greedy] * 4) == expected
        num_decided += 1
    assert num_decided or named.make(**named.settings()[0]).limits.temperature == "above_zero"


@pytest.mark.parametrize("named", [named for named in NAMED if named.name in OUTSIDE], ids=str)
def test_what_the_plugin_cannot_take_is_refused_with_its_reason(named):
    with pytest.raises(ConfigError, match=OUTSIDE[named.name]):
        refuse_for_the_plugin(named.name, named.make(**named.settings()[0]))


def test_states_of_models_are_out_of_reach():
    rule = SimpleNamespace(needs=frozenset({"target_hidden"}))
    with pytest.raises(ConfigError, match="reads hidden states of the target, which vLLM's verification does not see"):
        refuse_for_the_plugin("custom", rule)


def test_a_cut_at_temperature_1_leaves_un_tempered_laws_whole():
    rule, seeds = CascadeV2(0.7), range(30)
    cut, whole = [], []
    for seed in seeds:
        batch = Flattened([4, 4], seed)
        batch.logits = batch.logits.masked_fill(batch.logits < batch.logits.topk(2).values[:, -1:], -torch.inf)
        assert batch.judged([rule] * 2, [False] * 2) == [batch.by_hand(row, rule, is_greedy=False) for row in range(2)]
        cut.append(batch.judged([rule] * 2, [False] * 2))
        batch.raw = batch.raw.clone()
        batch.raw[0] = batch.logits
        whole.append(batch.judged([rule] * 2, [False] * 2))
    assert cut != whole, "what is cut would be missing from the set"


def test_where_all_is_kept_the_engines_own_bonus_follows():
    batch = Flattened([3, 0, 1], seed=1)
    out = batch.judged([Ensemble(w=0.0)] * 3, [False] * 3)
    assert [row[-1] for row in out] == batch.bonus[:, 0].tolist()
    assert [len(row) for row in out] == [4, 1, 2]


def test_a_batch_without_drafts_is_its_bonus_tokens():
    batch = Flattened([0, 0], seed=2)
    assert batch.judged([Exact()] * 2, [True, False]) == batch.bonus.tolist()


def test_greedy_rows_follow_the_likeliest_token():
    batch = Flattened([4, 2], seed=3)
    batch.ids[:] = batch.logits.argmax(-1).int()
    assert [len(row) for row in batch.judged([Exact()] * 2, [True] * 2)] == [5, 3]
    batch.ids[0] = (batch.ids[0] + 1) % V
    first = batch.judged([Exact()] * 2, [True] * 2)[0]
    assert first == [int(batch.logits[0].argmax())]


def test_the_law_of_the_first_token_is_the_rules_own():
    """20,000 rows with one and the same laws: what comes first is distributed as v; four standard errors."""
    count, w = 20_000, 0.5
    generator = torch.Generator().manual_seed(0)
    logits, law = torch.randn(1, V, generator=generator), torch.softmax(torch.randn(1, V, generator=generator), -1)
    ids = torch.multinomial(law[0], count, replacement=True, generator=generator).int()
    u = torch.rand(count, 2, dtype=torch.float64, generator=generator)
    is_greedy, bonus = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.int64)
    laws = law.log().expand(count, V), logits.expand(count, V)
    out = judged([Ensemble(w=w)] * count, FlatBatch(is_greedy, ids, [1] * count, *laws, bonus, u)).emitted
    seen = torch.bincount(out[:, 0].long(), minlength=V) / count
    v = w * logits.softmax(-1)[0] + (1 - w) * law[0]
    assert bool(((seen - v).abs() <= 4 * (v * (1 - v) / count).sqrt() + 1e-9).all())


class Raising(Ensemble):
    """A rule that fails for one of its settings."""

    def accept(self, p, q):
        if bool((torch.as_tensor(self.w) == 0.25).any()):
            raise RuntimeError("no luck with these laws")
        return super().accept(p, q)


class Massless(Ensemble):
    """A rule that has nothing to draw from."""

    def accept(self, p, q):
        return torch.zeros_like(p)

    def replace(self, p, q):
        return torch.full_like(p, float("nan"))


@pytest.fixture(autouse=True)
def log(monkeypatch):
    """A library's `logging.config` in another test disables all loggers that exist by then."""
    monkeypatch.setattr(logging.getLogger("vllm.sdbench"), "disabled", False)


def test_a_row_at_fault_is_decoded_losslessly_and_its_neighbours_as_ever(caplog):
    batch = Flattened([3, 2, 4, 1], seed=4)
    rules = [Raising(0.5), Raising(0.25), Ensemble(0.5), Massless(0.5)]
    lossless, lenient = batch.judged([Exact()] * 4, [False] * 4), batch.judged([Ensemble(0.5)] * 4, [False] * 4)
    assert batch.judged(rules, [False] * 4) == [lenient[0], lossless[1], lenient[2], lossless[3]]
    faults = batch.judgement(rules, [False] * 4).faults
    assert set(faults) == {1, 3}
    assert "no luck with these laws" in faults[1]
    assert "no luck with these laws" in caplog.text
    assert "no token has mass" in caplog.text


@pytest.mark.parametrize("is_greedy", [False, True])
def test_logits_that_are_no_numbers_end_no_engine(caplog, is_greedy):
    batch = Flattened([2, 2], seed=4)
    sound = batch.judged([Exact()] * 2, [is_greedy] * 2)
    batch.logits[0], batch.logits[1, 0] = float("nan"), float("inf")
    first, second = batch.judged([Exact()] * 2, [is_greedy] * 2)
    assert first
    assert all(0 <= token < V for token in first)
    assert second == sound[1]
    assert "NaN or infinite at 2 positions" in caplog.text


@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize(
    "rule", [Exact(), Typical(), Ensemble(0.0, greedy="mixture")], ids=lambda rule: type(rule).__name__
)
def test_padded_drafts_are_rejected(rule, is_greedy):
    """−1 stands for a draft that is to be rejected, as under asynchronous scheduling: its token is the target's own."""
    batch = Flattened([4, 3], seed=5)
    batch.ids[2:4] = PLACEHOLDER
    short = Flattened([2, 3], seed=5)
    short.logits, short.logs = (torch.cat((x[:2], x[4:])) for x in (batch.logits, batch.logs))
    short.raw = torch.cat((batch.raw[:, :2], batch.raw[:, 4:]), 1)
    short.ids, short.u = torch.cat((batch.ids[:2], batch.ids[4:])), batch.u[:, [0, 1, 2, 4]]
    law = batch.logits[2].softmax(-1)
    token = (
        law.argmax() if is_greedy else (law.double().cumsum(-1) > batch.u[0, -1] * law.double().sum()).nonzero()[0, 0]
    )
    short.bonus = torch.stack((token[None], batch.bonus[1]))
    assert batch.judged([rule] * 2, [is_greedy] * 2) == short.judged([rule] * 2, [is_greedy] * 2)


def test_2000_requests_with_any_knobs_are_refused_in_the_front_end_or_judged():
    taken = 0
    for number, (extra, is_greedy) in enumerate(any_knobs(2000)):
        try:
            rule = rule_of(extra, 0.0 if is_greedy else 1.0)
        except ValueError:
            continue
        taken += 1
        batch = Flattened([3, 2], seed=number)
        batch.judged([rule, Exact()], [is_greedy, is_greedy])
    assert taken > 40


def test_knobs_have_the_range_and_the_kind_of_their_yaml():
    for values, says in (
        ({"k": 2.5}, "k of sdbench.verify.TopKRelaxed must be a whole number"),
        ({"k": 0}, "must be a whole number between 1 and 1000"),
        ({"slack": "both"}, "slack of sdbench.verify.TopKRelaxed cannot be both"),
        ({"delta": None}, "delta of sdbench.verify.TopKRelaxed must not be null"),
    ):
        with pytest.raises(ValueError, match=says):
            rule_of({"sdbench_rule": "sdbench.verify.TopKRelaxed", "sdbench_knobs": json.dumps(values)}, 1.0)
    with pytest.raises(ValueError, match="must be a number between 0 and 10, got 1e"):
        rule_of({"sdbench_rule": "sdbench.verify.Contrastive", "sdbench_knobs": '{"beta": 1e308, "alpha": 0}'}, 1.0)


def test_expand_repeats_rows_and_replaces_first():
    x, cu = torch.tensor([0.0, 0.7, 2.0]), torch.tensor([2, 2, 5], dtype=torch.int32)
    assert expand(x, cu, 5, 0, 1).tolist() == pytest.approx([1, 1, 2, 2, 2])
    assert expand(x.int(), cu, 5).dtype == torch.int32


def test_uniforms_of_a_request_with_a_seed_are_its_generators():
    def seeded():
        return {1: torch.Generator().manual_seed(5)}

    first, again = (uniforms(3, 4, seeded(), torch.device("cpu")) for _ in range(2))
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], again[0])
    assert first.shape == (3, 5)
    assert bool((first < 1).all())


def knobs(**values):
    return {"sdbench_rule": "sdbench.verify.Ensemble", "sdbench_knobs": json.dumps(values)}


def test_a_request_names_its_rule():
    assert rule_of(None, 1.0) is LOSSLESS
    assert rule_of({"other": 1}, 1.0) is LOSSLESS
    assert rule_of(knobs(w=0.3), 1.0) == Ensemble(w=0.3)
    assert rule_of({"sdbench_rule": "sdbench.verify.Typical"}, 1.0) == Typical()


def test_a_rule_of_another_version_is_refused_in_a_sentence_that_fits_a_clients_message(monkeypatch):
    """A server's environment has a copy of sdbench, which would verify by the formula of its day."""
    extra = request_of(Ensemble(w=0.25))
    older = {name: text for name, text in extra.items() if name != "sdbench_version"}
    assert rule_of(extra, 1.0) == rule_of(older, 1.0) == Ensemble(w=0.25), "a client before this field is answered"
    monkeypatch.setattr(Ensemble, "version", "0")
    with pytest.raises(
        ValueError, match=r"^sdbench.verify.Ensemble has version 0 in this .* install sdbench"
    ) as caught:
        rule_of({**extra, "sdbench_knobs": "{}"}, 1.0)  # as if one had knobs that the other lacks
    assert len(str(caught.value)) <= 200
    assert rule_of(older, 1.0) == Ensemble(w=0.25)


def test_the_version_of_a_rule_within_a_rule_counts(monkeypatch):
    extra = request_of(Coin(Typical()))
    assert extra["sdbench_version"] == "1 of 1"
    assert rule_of(extra, 1.0) == Coin(Typical())
    other = request_of(Coin(Typical(eps=0.2)))
    monkeypatch.setattr(Typical, "version", "2")
    with pytest.raises(
        ValueError, match=r"sdbench.verify.Coin has version 1 of 2 in this server's environment and 1 of 1"
    ):
        rule_of(other, 1.0)


@pytest.mark.parametrize(
    ("extra", "temperature", "says"),
    [
        (knobs(w=1.5), 1.0, "must be a number between 0 and 1, got 1.5"),
        (knobs(w="much"), 1.0, "must be a number between 0 and 1, got much"),
        (knobs(v=1), 1.0, "must be an object with"),
        (knobs(), 1.0, "cannot be made"),
        ({"sdbench_rule": "sdbench.verify.Mentored", "sdbench_knobs": '{"divergence": 0.1}'}, 0.0, "above 0"),
        ({"sdbench_rule": "sdbench.verify.Coin", "sdbench_knobs": '{"rule": {"eps": 1}}'}, 1.0, "must be a rule with"),
        ({"sdbench_rule": "sdbench.verify.Block"}, 1.0, "no rule of sdbench.verify"),
        ({"sdbench_rule": "os.system"}, 1.0, "no rule of sdbench.verify"),
        ({"sdbench_rule": "sdbench.verify.Tokenwise"}, 1.0, "no rule of sdbench.verify"),
        ({"sdbench_rule": 3}, 1.0, "must be texts"),
        ({"sdbench_rule": "sdbench.verify.Typical", "sdbench_version": 1}, 1.0, "must be texts"),
        ({"sdbench_knobs": "{}"}, 1.0, "without sdbench_rule"),
        ({"sdbench_rule": "sdbench.verify.Ensemble", "sdbench_knobs": "{"}, 1.0, "must be a JSON object"),
    ],
)
def test_a_knob_that_is_none_is_a_value_error(extra, temperature, says):
    with pytest.raises(ValueError, match=says):
        rule_of(extra, temperature)


def test_what_our_side_sends_is_what_the_plugin_reads():
    from sdbench.engines.served import Http

    kind = Http(url="http://h:1", plugin=True)
    extra = kind.extra(SimpleNamespace(role="pair", rule=Ensemble(w=0.25, greedy="mixture")))  # type: ignore[arg-type]
    assert rule_of(extra, 0.0) == Ensemble(w=0.25, greedy="mixture")


def test_a_seeds_generator_goes_back_where_a_prompt_is_not_yet_read():
    import numpy as np

    class Runner:
        """Rows 0 and 1 have seeds; row 1 is in the middle of its prompt, as is row 2."""

        def __init__(self) -> None:
            generators = {row: torch.Generator().manual_seed(row) for row in (0, 1)}
            self.input_batch = SimpleNamespace(num_reqs=3, generators=generators)
            self.discard_request_mask = SimpleNamespace(np=np.array([False, True, True, True]))

        def _sample(self, logits, spec_decode_metadata):
            return [float(torch.rand((), generator=one)) for one in self.input_batch.generators.values()]

        def _bookkeeping_sync(self, scheduled):
            for row in (1, 2):
                if (generator := self.input_batch.generators.get(row)) is not None:
                    generator.set_offset(generator.get_offset() - 4)  # what vLLM does, and no generator of a CPU can

    rewind_on_the_cpu(Runner)
    runner = Runner()
    first = runner._sample(None, None)
    runner._bookkeeping_sync(None)
    assert set(runner.input_batch.generators) == {0, 1}
    again = runner._sample(None, None)
    assert again[0] != first[0]
    assert again[1] == first[1]


def test_a_request_whose_rule_cannot_judge_ends_with_an_error_and_no_other_does():
    """From the judge through the runner's report to the scheduler, with vLLM's parts as far as the plug-in touches them."""
    batch = Flattened([3, 2], seed=4)

    class Runner:
        def __init__(self) -> None:
            self.input_batch = SimpleNamespace(req_ids=["sound", "fault"])
            params = SimpleNamespace(extra_args=knobs(w=0.5), temperature=1.0)
            self.requests = {name: SimpleNamespace(sampling_params=params) for name in ("sound", "fault")}

        def _sample(self, logits, spec_decode_metadata):
            seam._now.rules[1] = Raising(0.25)
            metadata = SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(2), generators={})
            ids = batch.ids, batch.num_draft, 3, None
            return seam.rejection_sample(*ids, batch.logs, batch.logits, batch.bonus, metadata)

        def _bookkeeping_sync(self, scheduled):
            return ({}, None)

    class Scheduler:
        requests: ClassVar = {
            name: SimpleNamespace(num_nans_in_logits=0, status="RUNNING") for name in ("sound", "fault")
        }

        def update_from_output(self, scheduler_output, model_runner_output):
            return {name: module.check_stop(request, 8) for name, request in self.requests.items()}

    finished = SimpleNamespace(FINISHED_ERROR="ERROR")
    module = SimpleNamespace(Scheduler=Scheduler, check_stop=lambda request, most: False, RequestStatus=finished)
    seam._say_whose_rows(Runner)
    seam._end_at_fault(module)
    runner = Runner()
    out = runner._sample(None, None)
    assert out.shape == (2, 4)
    assert bool((out[:, 0] >= 0).all()), "both go on with a token"
    (nans, _) = runner._bookkeeping_sync(None)
    assert nans == {"fault": seam.AT_FAULT}
    stopped = Scheduler().update_from_output(None, SimpleNamespace(num_nans_in_logits=nans))
    assert stopped == {"sound": False, "fault": True}
    assert Scheduler.requests["fault"].status == "ERROR"


@dataclass
class Counts:
    """Of vLLM's the fields of one kind each."""

    num_draft_tokens: int
    per_step_accepted: list[int]


def test_counts_come_with_every_output_of_a_request_with_stop_strings_as_they_were_then():
    """vLLM sends them with the last output of its engine core, which a text that ends at a stop string does not have."""
    names = ("stop", "none", "other")
    stops = dict(zip(names, (["\n\n"], [], ["\n\n"]), strict=True))
    running = {
        name: SimpleNamespace(spec_decode_metrics=Counts(3, [2]), sampling_params=SimpleNamespace(stop=stops[name]))
        for name in names
    }
    running["other"].spec_decode_metrics = None  # a server that does not count them

    class Scheduler:
        requests = running

        def update_from_output(self, scheduler_output, model_runner_output):
            outputs = [SimpleNamespace(request_id=name, spec_decode_metrics=None) for name in (*names, "gone")]
            return {0: SimpleNamespace(outputs=outputs)}

    count_texts_with_stops(Scheduler)
    stopped, *others = Scheduler().update_from_output(None, None)[0].outputs
    running["stop"].spec_decode_metrics.per_step_accepted.append(1)
    assert stopped.spec_decode_metrics == Counts(3, [2]), "not those of the next step"
    assert [output.spec_decode_metrics for output in others] == [None] * 3


@pytest.mark.parametrize("is_async", [False, True])
def test_zeros_in_place_of_drafts_are_never_kept(is_async):
    """Near the drafter's longest context vLLM drafts token 0 for the whole batch, and w = 0 kept all of them."""
    batch = Flattened([3, 2], seed=4, is_drawn=False)

    class Runner:
        use_async_scheduling = is_async

        def __init__(self) -> None:
            self.input_batch = SimpleNamespace(req_ids=["a", "b"])
            params = SimpleNamespace(extra_args=knobs(w=0.0), temperature=1.0)
            self.requests = {name: SimpleNamespace(sampling_params=params) for name in ("a", "b")}
            self._draft_token_ids = torch.zeros(2, 3, dtype=torch.int32)

        def _copy_draft_token_ids_to_cpu(self, scheduler_output, zeros_only=False):
            """vLLM's reads their shape."""
            assert self._draft_token_ids.shape == (2, 3)

        def _sample(self, logits, spec_decode_metadata):
            metadata = SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(2), generators={})
            ids = torch.zeros_like(batch.ids), batch.num_draft, 3, None
            return seam.rejection_sample(*ids, None, batch.logits, batch.bonus, metadata)

        def _bookkeeping_sync(self, scheduled):
            return ({}, None)

    seam._say_whose_rows(Runner)
    drop_drafts_of_zeros(Runner)
    runner = Runner()
    runner._copy_draft_token_ids_to_cpu(None, zeros_only=True)
    if is_async:
        assert runner._draft_token_ids.shape == (2, 3), "slots are reserved"
        assert (runner._sample(None, None)[:, 1:] == PLACEHOLDER).all(), "one token each, the target's"
        runner._copy_draft_token_ids_to_cpu(None)
        assert (runner._sample(None, None)[:, :3] == torch.tensor([[0, 0, 0], [0, 0, int(batch.bonus[1])]])).all()
    else:
        assert runner._draft_token_ids == [[], []]


@pytest.mark.parametrize("lost", ["", "b", "ab", "abc"])
def test_only_the_drafts_whose_laws_are_lost_are_dropped(lost, monkeypatch):
    """vLLM drops the laws of the whole batch if those of a request are lost, and every sampled draft then counts as certain."""
    names, rules = list("abc"), [Ensemble(0.5), Ensemble(0.3), Ensemble(0.7)]
    batch = Flattened([3, 2, 3], seed=4)
    batch.u[:, :-1] *= 0.5  # so that some drafts are kept
    parts = dict(zip(names, batch.logs.split(batch.num_draft), strict=True))
    monkeypatch.setattr("sdbench_vllm.adapter.uniforms", lambda *_: batch.u)

    class Runner:
        """Of vLLM's, the look-up of laws, which returns None if those of any request are lost."""

        def __init__(self) -> None:
            self.input_batch = SimpleNamespace(req_ids=names)
            self.drafter = SimpleNamespace(_enable_probabilistic_draft_probs=True)
            self.requests = {
                name: SimpleNamespace(
                    sampling_params=SimpleNamespace(extra_args=knobs(w=float(rule.w)), temperature=1.0)
                )
                for name, rule in zip(names, rules, strict=True)
            }
            self._draft_prob_req_ids = [name for name in names if name not in lost] or None
            self._draft_probs = None
            if self._draft_prob_req_ids:
                held = [parts[name] for name in self._draft_prob_req_ids]
                self._draft_probs = torch.stack([torch.nn.functional.pad(x, (0, 0, 0, 3 - len(x))) for x in held])

        def _get_spec_decode_draft_probs(self, spec_decode_metadata):
            if self._draft_probs is None:
                return None
            pairs = list(zip(self.input_batch.req_ids, spec_decode_metadata.num_draft_tokens, strict=True))
            if any(name not in self._draft_prob_req_ids for name, count in pairs if count):
                return None
            rows = [self._draft_probs[self._draft_prob_req_ids.index(name), :count] for name, count in pairs if count]
            return torch.cat(rows) if rows else None

        def _sample(self, logits, spec_decode_metadata):
            laws = self._get_spec_decode_draft_probs(spec_decode_metadata)
            metadata = SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(3), generators={})
            ids = spec_decode_metadata.draft_token_ids, batch.num_draft, 3, None
            return seam.rejection_sample(*ids, laws, batch.logits, batch.bonus, metadata)

        def _bookkeeping_sync(self, scheduled):
            return ({}, None)

    seam._say_whose_rows(Runner)
    drop_drafts_without_laws(Runner)
    metadata = SimpleNamespace(draft_token_ids=batch.ids, num_draft_tokens=batch.num_draft)
    emitted = [[token for token in row if token != PLACEHOLDER] for row in Runner()._sample(None, metadata).tolist()]
    by_rule = [batch.by_hand(row, rule, is_greedy=False) for row, rule in enumerate(rules)]
    assert all(len(row) > 1 for row in by_rule), "a draft of each is kept by its rule"
    for name, row, expected in zip(names, emitted, by_rule, strict=True):
        assert (len(row) == 1) if name in lost else (row == expected)


def test_drafts_come_with_log_laws_at_temperature_0_too():
    seen = []

    class Proposer:
        _enable_probabilistic_draft_probs = True

        def _sample_draft_tokens(self, hidden_states, sampling_metadata):
            seen.append(sampling_metadata)
            return draw(hidden_states, sampling_metadata)

    def inner(logits, sampling_metadata):
        logits.div_(sampling_metadata.temperature.clamp_min(1)[:, None])
        return logits.argmax(-1), logits.softmax(-1)

    draw = seam.with_log_laws(inner)
    seam._draft_by_laws(Proposer)
    logits = 50 * torch.randn(3, V, generator=torch.Generator().manual_seed(0))
    tokens, logs = Proposer()._sample_draft_tokens(logits.clone(), Metadata(all_greedy=True))
    assert not seen[0].all_greedy
    assert torch.equal(tokens, logits.argmax(-1))
    assert torch.equal(logs, logits.log_softmax(-1))


def test_logits_are_kept_before_the_cut_where_a_rule_reads_them_and_a_step_without_drafts_is_not_cut():
    calls = []

    def inner(logits, cu_num_draft_tokens, sampling_metadata):
        calls.append(len(logits))
        return logits.div_(2).masked_fill_(logits < logits.max(), -torch.inf)

    constrain, metadata = seam.keeping_raw_logits(inner), Metadata(all_greedy=False, all_random=True)
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(0))
    for rules, is_kept in (([Exact()], False), ([Exact(), CascadeV2(0.5)], True), ([Ensemble(0.5)], False)):
        seam._now.rules = rules
        constrain(logits.clone(), None, metadata)
        assert (seam._now.raw_logits is not None) == is_kept
        assert not is_kept or torch.equal(seam._now.raw_logits, logits)
    seam._now.rules = seam._now.raw_logits = None
    assert constrain(logits[:0], None, metadata).shape == (0, V)
    assert calls == [3, 3, 3], "vLLM's cut by top_k ends its CPU engine where it has nothing to cut"


@dataclass(frozen=True)
class Metadata:
    """Of vLLM's the fields that decide how drafts are drawn."""

    all_greedy: bool
    all_random: bool = False
    temperature: torch.Tensor | None = None


def test_without_the_known_vllm_the_seam_is_refused():
    (line,) = differences()
    assert "the plug-in knows 0.32.x" in line
    assert all(":" in path for path in SEAM)


@pytest.mark.parametrize("asked", ["", "other"])
def test_it_is_off_unless_it_is_named(asked, monkeypatch):
    from sdbench_vllm import register

    monkeypatch.setenv("VLLM_PLUGINS", asked)
    register()
    assert "vllm" not in sys.modules
