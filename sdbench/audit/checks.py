"""The claims that need no samples: counters, recorded probabilities, invariance, texts at temperature 0."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from sdbench.audit.laws import (
    HiddenRandomnessError,
    begin_rows,
    claims_draft_law,
    draft_afresh,
    query_drafter,
    reads_history,
)
from sdbench.audit.outcomes import UnknownLawError
from sdbench.audit.report import ExactCheck
from sdbench.audit.source import ModelOutputs, Sampling, Side, Source, Tables, run_model
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.audit.texts import RoundBatch, require_rounds
from sdbench.types import DraftBlock, Evidence, Generation, needs_of
from sdbench.verify import Exact

MAX_DEVIATIONS = 20  # that are reported


def check_counters(name: str, generations: Sequence[Generation], num_draft: int, budget: int) -> ExactCheck:
    """Check that sums over rounds agree with the text; none is negative, none exceeds what was drafted."""
    wrong = [f"text {n}: {error}" for n, g in enumerate(generations) for error in counter_errors(g, num_draft, budget)]
    return ExactCheck(name, "counters", len(generations), wrong[:MAX_DEVIATIONS])


def counter_errors(g: Generation, num_draft: int, budget: int) -> Iterator[str]:
    counts = require_rounds(g.drafted), require_rounds(g.examined), require_rounds(g.accepted)
    drafts, origins = require_rounds(g.draft_tokens), require_rounds(g.origins)
    rounds = list(zip(*counts, strict=False))
    if len({len(values) for values in counts}) > 1:
        yield "drafted, examined and accepted have different numbers of rounds"
    for number, (drafted, examined, accepted) in enumerate(rounds):
        if not 0 <= accepted <= examined <= drafted <= num_draft:
            yield f"round {number} has drafted {drafted}, examined {examined}, accepted {accepted}"
    num_drafted, num_accepted = sum(counts[0]), sum(counts[2])
    num_kept = origins.count("accepted") + origins.count("sure")
    in_text = {"accepted": (num_accepted, num_kept), "drafted": (num_drafted, len(drafts))}
    for name, (counted, present) in in_text.items():
        if present != counted:
            yield f"{counted} tokens are counted as {name}, but the text has {present}"
    if len(origins) != len(g.tokens) or not 0 < len(g.tokens) <= budget:
        yield f"the text has {len(g.tokens)} tokens and {len(origins)} origins; at most {budget} were requested"
    if num_accepted + len(counts[0]) - len(g.tokens) not in (0, 1):
        yield f"{num_accepted} accepted drafts in {len(counts[0])} rounds do not add up to {len(g.tokens)} tokens"
    begin = first = 0
    for drafted, _, accepted in rounds:
        kept, block = g.tokens[begin : begin + accepted], drafts[first : first + accepted]
        if kept != block:
            yield f"the accepted drafts are {list(block)}, but the text has {list(kept)}"
        begin, first = begin + accepted + 1, first + drafted


def check_recorded(name: str, rounds: RoundBatch, source: Source, subject: Subject) -> ExactCheck:
    """Check each drafted token's recorded q(x) and p(x) against the models' own distributions at that prefix."""
    wrong: list[str] = []
    sides: list[Side] = ["target"]
    if claims_draft_law(subject.helper):
        sides.append("draft")
    elif isinstance(source, Tables):
        try:
            query_drafter(subject.build_drafter(), source, 0, 1, min(subject.num_draft, subject.budget - 2))
        except HiddenRandomnessError as error:
            wrong.append(str(error))
        except UnknownLawError:
            pass  # its law is not tested, as the plan reports
    for side in sides:
        for part in rounds.parts(source.vocab):
            wrong += recorded_errors(part, side, source, subject)
    return ExactCheck(name, "recorded q", int(rounds.is_drafted.sum()), wrong[:MAX_DEVIATIONS])


def recorded_errors(rounds: RoundBatch, side: Side, source: Source, subject: Subject) -> Iterator[str]:
    whole, sampling, rounding = rounds.whole()[:, : rounds.before.shape[1]], subject.sampling, subject.rounding
    symbol, values = ("p", rounds.p) if side == "target" else ("q", rounds.q)
    logits = rounds.at_drafts(source.outputs(side, rounds.prompts.tolist(), whole).logits)
    drafts = rounds.drafts[..., None]
    wanted = sampling.law(logits).gather(-1, drafts)[..., 0]
    if sampling.is_greedy:
        # Rules with their own greedy form record the un-tempered probability; the others record 1 for the best token, else 0.
        gap = logits.max(-1).values - logits.gather(-1, drafts)[..., 0]
        raw = logits.softmax(-1).gather(-1, drafts)[..., 0]
        is_raw = (raw - values).abs() <= rounding + rounding * raw
        wanted = torch.where((gap < subject.logit_rounding) | is_raw, values, wanted)
    is_off = rounds.is_drafted & ~((wanted - values).abs() <= rounding + rounding * wanted)
    for row, slot in is_off.nonzero().tolist():
        prefix = whole[row, : int(rounds.begin[row]) + slot].tolist()
        yield (
            f"{symbol} of token {int(rounds.drafts[row, slot])} after {prefix} of prompt {int(rounds.prompts[row])} is "
            f"recorded as {float(values[row, slot]):.6g}, but is {float(wanted[row, slot]):.6g}"
        )


def check_invariance(subject: Subject, which: Sequence[int], samples: int = 4) -> list[ExactCheck]:
    """Check that tokens are the same in any batch: of any size, in any order, beside other rules, with captured steps."""
    if not subject.is_exact:
        return []
    count = len(subject.prompts)
    samples = samples if not subject.sampling.is_greedy else 1
    mixed, traced = replace(subject, settings=[*subject.settings, AuditedRule("exact", Exact())]), replace(subject)
    traced.engine = subject.make_engine(capture="trace")
    traced.helper = traced.build_drafter()  # a drafter runs the draft model of the engine for which it was built
    traced.engine.capture_at_once()
    reversed_order = {"prompts": list(subject.prompts)[::-1], "keys": list(range(count))[::-1]}
    alone = subject.decode(which, samples, look=900, batch_size=1)
    runs: dict[str, list[list[Generation]]] = {
        "in a batch of 3": subject.decode(which, samples, look=900, batch_size=3),
        "in one batch": subject.decode(which, samples, look=900, batch_size=64),
        "beside another rule": mixed.decode([*which, len(subject.settings)], samples, look=900, batch_size=5)[:-1],
        "with steps captured": traced.decode(which, samples, look=900, batch_size=4),
    }
    last = subject.decode(which, samples, look=900, batch_size=3, **reversed_order)
    runs["in another order"] = [[replace(g, prompt=count - 1 - g.prompt) for g in texts] for texts in last]
    compared: list[ExactCheck] = []
    for index, setting in enumerate(which):
        wanted = {(g.prompt, g.sample): list(g.tokens) for g in alone[index]}
        wrong = [
            f"sample {g.sample} of prompt {g.prompt} is {list(g.tokens)} {where}, but {wanted[g.prompt, g.sample]} alone"
            for where, texts in runs.items()
            for g in texts[index]
            if list(g.tokens) != wanted[g.prompt, g.sample]
        ]
        size = sum(len(texts[index]) for texts in runs.values())
        compared.append(ExactCheck(subject.settings[setting].name, "invariance", size, wrong[:MAX_DEVIATIONS]))
    return compared


def greedy_prompts(subject: Subject, count: int = 12) -> list[list[int]]:
    """Return prompts of many lengths."""
    if not subject.is_enumerable:
        return [list(prompt) for prompt in subject.prompts[:count]]
    generator = torch.Generator().manual_seed(7)
    lengths = [1 + number % 9 for number in range(count)]
    return [torch.randint(0, subject.vocab, (length,), generator=generator).tolist() for length in lengths]


def check_greedy(subject: Subject, which: Sequence[int]) -> list[ExactCheck]:
    """Compare texts at temperature 0 with a plain loop without a cache. Texts of a lossless rule are also compared with the
    target's best tokens, and texts of a rule with a budget are checked against the budget.

    A difference that rounding explains is a near-tie: counted, but not a violation.
    """
    zero, compared = Sampling(0.0), []
    prompts = greedy_prompts(subject)
    which = [number for number in which if subject.settings[number].has_greedy_text]
    if not which:
        return []
    decoded = subject.decode(which, 1, look=901, sampling=zero, prompts=prompts)
    drafter = subject.build_drafter(zero)
    for number, generations in zip(which, decoded, strict=True):
        setting, wrong, ties = subject.settings[number], [], 0
        for g in generations:
            prompt = prompts[g.prompt]
            wrong += budget_errors(subject, setting.rule, prompt, g)
            expected = {"a plain loop": plain_text(subject, setting.rule, drafter, prompt)}
            if setting.is_lossless:
                expected["the target alone"] = plain_text(subject, None, drafter, prompt)
            is_tie = False
            for source, text in expected.items():
                if text == list(g.tokens):
                    continue
                pairs = list(zip(text, g.tokens, strict=False))
                first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
                if pairs[first:] and is_near_tie(subject, setting, [*prompt, *text[:first]], pairs[first]):
                    is_tie = True
                else:
                    wrong.append(f"token {first} of prompt {g.prompt}: {list(g.tokens)}, but {source} gives {text}")
            ties += is_tie
        compared.append(ExactCheck(setting.name, "greedy", len(generations), wrong[:MAX_DEVIATIONS], ties))
    return compared


def budget_errors(subject: Subject, rule: Any, prompt: Sequence[int], g: Generation) -> Iterator[str]:
    """Check that every text keeps to the budget of a rule that declares one by its method `spending`."""
    if not hasattr(rule, "spending"):
        return
    logits = last_outputs(subject.target, [*prompt, *g.tokens[:-1]], len(g.tokens), subject.vocab).logits.double()
    spent, budget = rule.spending(logits, torch.tensor(g.tokens))
    if spent > budget + subject.rounding * len(g.tokens) * (1 + float(logits.abs().max())):
        yield f"prompt {g.prompt}: {list(g.tokens)} has a regret of {spent:.6g}, but its budget is {budget:g}"


def is_near_tie(subject: Subject, setting: AuditedRule, prefix: Sequence[int], tokens: Sequence[int]) -> bool:
    """Return whether rounding explains that two texts continue a prefix with different tokens.

    Under a lossless rule both tokens must be as good as the target's best. A lenient rule may compare anything with a
    threshold, so the two best logits of either model must be close.
    """
    if setting.is_lossless:
        logits = last_outputs(subject.target, prefix, 1, subject.vocab).logits[0]
        return float(logits.max() - logits[list(tokens)].min()) < subject.logit_rounding
    best = [last_outputs(model, prefix, 1, subject.vocab).logits[0].topk(2).values for model in subject.models.values()]
    return min(float(first - second) for first, second in best) < subject.threshold_rounding


def last_outputs(model: Any, text: Sequence[int], keep: int, vocab: int) -> ModelOutputs:
    """Return logits [keep,V] and states [keep,·] of the last tokens of a text."""
    out = run_model(model, torch.tensor([list(text)], device=model.device))
    return ModelOutputs(out.logits[0, -keep:, :vocab].cpu(), out.states[0, -keep:].cpu())


@torch.inference_mode()
def plain_text(subject: Subject, rule: Any, drafter: Any, prompt: Sequence[int]) -> list[int]:
    """Decode one row at temperature 0 without a cache, with the rule's own verdicts; rule None: the target alone."""
    text: list[int] = []
    state = None if rule is None else rule.init_state([torch.tensor(prompt)], "cpu")
    keeps_row = rule is not None and reads_history(drafter)
    if keeps_row:
        begin_rows(drafter, subject.engine.target, torch.tensor([list(prompt)]), len(prompt) + subject.budget + 1)
    while len(text) < subject.budget:
        width = 0 if rule is None else min(subject.num_draft, subject.budget - len(text) - 1)
        draft_behind = _draft_in_row if keeps_row else _draft_greedily
        block = draft_behind(subject, drafter, [*prompt, *text], width, frozenset({"raw"}) | needs_of(rule))
        ids = [*prompt, *text, *block.tokens[0].tolist()]
        target = last_outputs(subject.target, ids, block.tokens.shape[1] + 1, subject.vocab)
        p = target.logits.argmax(-1)
        if rule is None:
            emitted = [int(p[0])]
        else:
            evidence = Evidence(p[None], block, True, target.logits[None], target.states[None])
            verdict = rule(evidence, torch.full(p[None].shape, 0.5).double(), state)
            state = verdict.state
            emitted = [*block.tokens[0, : int(verdict.accepted)].tolist(), int(verdict.next_token)]
            if keeps_row:
                filled = [*emitted, *[0] * (block.tokens.shape[1] + 1 - len(emitted))]
                drafter.observe(torch.tensor([filled]), evidence, verdict)
        for token in emitted:
            text.append(token)
            if token in subject.stops:
                return text
    return text


def _draft_in_row(subject: Subject, drafter: Any, text: Sequence[int], width: int, needs: frozenset[str]) -> DraftBlock:
    """Return the draft of a drafter that has followed this text from its prompt."""
    ids, u = torch.tensor([list(text)]), torch.full((1, width), 0.5).double()
    context: Any = SimpleNamespace(tokens=ids, lengths=torch.tensor([len(text)]), longest=len(text))
    with torch.inference_mode():
        return drafter.draft(context, width, torch.tensor([width]), u, needs)


def _draft_greedily(
    subject: Subject, drafter: Any, text: Sequence[int], width: int, needs: frozenset[str]
) -> DraftBlock:
    if not width:
        return DraftBlock.empty(torch.zeros(1, dtype=torch.int64))
    if not claims_draft_law(drafter) or getattr(drafter, "varies_length", False):
        return draft_afresh(
            drafter,
            subject.engine.target,
            torch.tensor(list(text)),
            torch.zeros(1, 0, dtype=torch.int64),
            torch.full((1, width), 0.5).double(),
            needs,
        )
    ids, steps = list(text), []
    for _ in range(width):
        steps.append(last_outputs(subject.draft, ids, 1, subject.vocab))
        ids.append(int(steps[-1].logits.argmax()))
    tokens = torch.tensor([ids[len(text) :]])
    logits, states = (torch.cat([getattr(step, name) for step in steps])[None] for name in ("logits", "states"))
    return DraftBlock(tokens, tokens, torch.tensor([width]), logits, states)
