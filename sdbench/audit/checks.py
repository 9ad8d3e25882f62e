"""The claims that leave nothing to chance: counters, recorded laws, invariance, texts at temperature 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sdbench.audit.audit import Check
from sdbench.audit.laws import Asking, HiddenCoinsError, asked
from sdbench.audit.outcomes import UnknownLawError
from sdbench.audit.source import Sampling, Side, Source, Tables, with_states
from sdbench.audit.subject import Subject
from sdbench.audit.texts import Rounds, at_slots, told
from sdbench.draft import ModelDrafter
from sdbench.engine import Engine
from sdbench.types import DraftBlock, Evidence, Generation
from sdbench.verify import ASD, Exact

MOST = 20  # deviations that are kept in words


def counters(name: str, generations: Sequence[Generation], num_draft: int, budget: int) -> Check:
    """Sums over rounds agree with the text; none is negative, none exceeds what was drafted."""
    wrong = [f"text {n}: {said}" for n, g in enumerate(generations) for said in miscounts(g, num_draft, budget)]
    return Check(name, "counters", len(generations), wrong[:MOST])


def miscounts(g: Generation, num_draft: int, budget: int) -> Iterator[str]:
    counts = told(g.drafted), told(g.examined), told(g.accepted)
    drafts, origins = told(g.draft_tokens), told(g.origins)
    rounds = list(zip(*counts, strict=False))
    if len({len(values) for values in counts}) > 1:
        yield "rounds of drafted, examined and accepted differ in number"
    for number, (drafted, examined, accepted) in enumerate(rounds):
        if not 0 <= accepted <= examined <= drafted <= num_draft:
            yield f"round {number} says drafted {drafted}, examined {examined}, accepted {accepted}"
    num_drafted, num_accepted = sum(counts[0]), sum(counts[2])
    for origin, counted, held in (
        ("accepted", num_accepted, origins.count("accepted")),
        ("drafted", num_drafted, len(drafts)),
    ):
        if held != counted:
            yield f"{counted} tokens counted as {origin}, and {held} in the text"
    if len(origins) != len(g.tokens) or not 0 < len(g.tokens) <= budget:
        yield f"{len(g.tokens)} tokens, {len(origins)} origins, at most {budget} asked for"
    if num_accepted + len(counts[0]) - len(g.tokens) not in (0, 1):
        yield f"{len(g.tokens)} tokens from {num_accepted} drafts that stayed in {len(counts[0])} rounds"
    begin = place = 0
    for drafted, _, accepted in rounds:
        kept, block = g.tokens[begin : begin + accepted], drafts[place : place + accepted]
        if kept != block:
            yield f"drafts that stayed {list(block)} are not what the text holds, {list(kept)}"
        begin, place = begin + accepted + 1, place + drafted


def recorded(name: str, rounds: Rounds, source: Source, subject: Subject, sampling: Sampling) -> Check:
    """Each drafted token's recorded q(x) and p(x) against the models' own laws at that prefix."""
    wrong: list[str] = []
    sides: list[Side] = ["target"]
    if isinstance(subject.helper, ModelDrafter):
        sides.append("draft")
    elif isinstance(source, Tables):
        try:
            asked(subject.build_drafter(), source, 0, 1, min(subject.num_draft, subject.budget - 2))
        except HiddenCoinsError as error:
            wrong.append(str(error))
        except UnknownLawError:
            pass  # its law is not tested, which the plan says
    for side in sides:
        for part in rounds.parts(source.vocab):
            wrong += misrecorded(part, side, source, subject, sampling)
    return Check(name, "recorded q", int(rounds.is_drafted.sum()), wrong[:MOST])


def misrecorded(rounds: Rounds, side: Side, source: Source, subject: Subject, sampling: Sampling) -> Iterator[str]:
    whole, rows = rounds.whole()[:, : rounds.before.shape[1]], rounds.is_drafted
    values = rounds.p if side == "target" else rounds.q
    logits = at_slots(source.logits(side, rounds.prompts.tolist(), whole), rounds)
    own = sampling.law(logits).gather(-1, rounds.drafts[..., None])[..., 0]
    if sampling.is_greedy:
        # Rules with a greedy form of their own record the un-tempered probability; the others all mass on the best token.
        drafts = rounds.drafts[..., None]
        gap = logits.max(-1).values - logits.gather(-1, drafts)[..., 0]
        raw = logits.softmax(-1).gather(-1, drafts)[..., 0]
        is_raw = (raw - values).abs() <= subject.rounding + subject.rounding * raw
        own = torch.where((gap < subject.rounding) | is_raw, values, own)
    off = rows & ~((own - values).abs() <= subject.rounding + subject.rounding * own)
    for row, slot in off.nonzero().tolist():
        prefix = whole[row, : int(rounds.begin[row]) + slot].tolist()
        yield (
            f"{'p' if side == 'target' else 'q'} of token {int(rounds.drafts[row, slot])} behind {prefix} of prompt "
            f"{int(rounds.prompts[row])} is recorded as {float(values[row, slot]):.6g}, and is {float(own[row, slot]):.6g}"
        )


def invariance(subject: Subject, which: Sequence[int], samples: int = 4) -> list[Check]:
    """The same tokens whatever stands in the batch: its size, the order of prompts, other rules, captured steps."""
    if subject.target.dtype != torch.float64:
        return []
    number = len(subject.prompts)
    samples = samples if not subject.sampling.is_greedy else 1
    mixed = replace(subject, settings=[*subject.settings, replace(subject.settings[0], name="exact", rule=Exact())])
    traced = replace(subject)
    traced.engine = Engine(subject.target, subject.draft, subject.tokenizer, subject.vocab_size, capture="trace")
    traced.engine.capture_at_once()
    turned = {"prompts": list(subject.prompts)[::-1], "keys": list(range(number))[::-1]}
    compared: list[Check] = []
    reference = subject.decode(which, samples, look=900, batch_size=1)
    keys = [{(g.prompt, g.sample): g.tokens for g in texts} for texts in reference]
    runs: dict[str, list[list[Generation]]] = {
        "in a batch of 3": subject.decode(which, samples, look=900, batch_size=3),
        "in one batch": subject.decode(which, samples, look=900, batch_size=64),
        "beside another rule": mixed.decode([*which, len(subject.settings)], samples, look=900, batch_size=5)[:-1],
        "with steps captured": traced.decode(which, samples, look=900, batch_size=4),
    }
    last = subject.decode(which, samples, look=900, batch_size=3, **turned)
    runs["in another order"] = [[replace(g, prompt=number - 1 - g.prompt) for g in texts] for texts in last]
    for place, setting in enumerate(which):
        wrong = [
            f"sample {g.sample} of prompt {g.prompt} {where} is {list(g.tokens)}, alone {list(keys[place][g.prompt, g.sample])}"
            for where, texts in runs.items()
            for g in texts[place]
            if g.tokens != keys[place][g.prompt, g.sample]
        ]
        size = sum(len(texts[place]) for texts in runs.values())
        compared.append(Check(subject.settings[setting].name, "invariance", size, wrong[:MOST]))
    return compared


def prompts_of(subject: Subject, count: int = 12) -> list[list[int]]:
    """Texts to begin with, of many lengths."""
    if not subject.is_enumerable:
        return [list(prompt) for prompt in subject.prompts[:count]]
    generator = torch.Generator().manual_seed(7)
    lengths = [1 + number % 9 for number in range(count)]
    return [torch.randint(0, subject.vocab, (length,), generator=generator).tolist() for length in lengths]


def greedy(subject: Subject, which: Sequence[int]) -> list[Check]:
    """Texts at temperature 0 against a plain loop without a cache, of lossless rules against the target's best tokens, and of
    those with a budget against it.

    A difference where the two best logits are closer than rounding is a near-tie: counted, and no violation.
    """
    zero, checks = Sampling(0.0), []
    prompts = prompts_of(subject)
    which = [number for number in which if _works_at_zero(subject.settings[number].rule)]
    if not which:
        return []
    decoded = subject.decode(which, 1, look=901, sampling=zero, prompts=prompts)
    warp = subject.engine.warp(0.0)
    drafter = subject.engine.drafter(subject.drafter, warp, subject.drafter_options)
    for number, generations in zip(which, decoded, strict=True):
        setting, wrong, ties = subject.settings[number], [], 0
        for g in generations:
            prompt = prompts[g.prompt]
            wrong += overspent(subject, setting.rule, prompt, g)
            wanted = {"a plain loop": walk(subject, setting.rule, drafter, prompt)}
            if setting.is_lossless:
                wanted["the target alone"] = walk(subject, None, drafter, prompt)
            for who, text in wanted.items():
                if text == list(g.tokens):
                    continue
                place = next((i for i, (a, b) in enumerate(zip(text, g.tokens, strict=False)) if a != b), 0)
                if _gap(subject, [*prompt, *text[:place]]) < subject.rounding:
                    ties += 1
                else:
                    wrong.append(f"token {place} of prompt {g.prompt}: {list(g.tokens)}, and {who} says {text}")
        checks.append(Check(setting.name, "greedy", len(generations), wrong[:MOST], ties))
    return checks


def overspent(subject: Subject, rule: Any, prompt: Sequence[int], g: Generation) -> Iterator[str]:
    """The published bound of a rule with a regret budget, on what is emitted: all regrets of a text are within it."""
    if not isinstance(rule, ASD):
        return
    logits = _run(subject.target, [*prompt, *g.tokens[:-1]], len(g.tokens), subject.vocab)[0].double()
    chosen = logits.gather(-1, torch.tensor(g.tokens)[:, None])[:, 0]
    spent, budget = float((logits.max(-1).values - chosen).sum()), float(rule.budget)
    if spent > budget + subject.rounding * len(g.tokens) * (1 + float(logits.abs().max())):
        yield f"prompt {g.prompt}: {list(g.tokens)} has a regret of {spent:.6g}, and its budget is {budget:g}"


def _works_at_zero(rule: Any) -> bool:
    limits = getattr(rule, "limits", None)
    return (limits is None or limits.temperature != "above_zero") and not getattr(rule, "draws_if_greedy", True)


def _gap(subject: Subject, text: Sequence[int]) -> float:
    gaps = []
    for model in subject.models.values():
        best = _run(model, text, 1, subject.vocab)[0][0].topk(2).values
        gaps.append(float(best[0] - best[1]))
    return min(gaps)


def _run(model: Any, text: Sequence[int], keep: int, vocab: int) -> tuple[Tensor, Tensor]:
    """Logits and states of the last `keep` tokens of a text."""
    with torch.no_grad():
        logits, states = with_states(model, torch.tensor([list(text)], device=model.device))
    return logits[0, -keep:, :vocab].cpu(), states[0, -keep:].cpu()


def walk(subject: Subject, rule: Any, drafter: Any, prompt: Sequence[int]) -> list[int]:
    """One text at temperature 0: whole forwards without a cache, one row, the rule's own verdicts. None: the target alone."""
    text: list[int] = []
    state = None if rule is None else rule.init_state([torch.tensor(prompt)], "cpu")
    vocab = subject.vocab
    while len(text) < subject.budget:
        width = 0 if rule is None else min(subject.num_draft, subject.budget - len(text) - 1)
        block = _drafted(subject, drafter, [*prompt, *text], width)
        ids = [*prompt, *text, *block.tokens[0].tolist()]
        raw, states = (one[None] for one in _run(subject.target, ids, block.tokens.shape[1] + 1, vocab))
        p = raw.argmax(-1)
        if rule is None:
            emitted = [int(p[0, 0])]
        else:
            evidence = Evidence(p, block, True, raw, states)
            u = torch.full((1, block.tokens.shape[1] + 1), 0.5, dtype=torch.float64)
            verdict = rule(evidence, u, state)
            state = verdict.state
            emitted = [*block.tokens[0, : int(verdict.accepted)].tolist(), int(verdict.next_token)]
        for token in emitted:
            text.append(token)
            if token in subject.stops:
                return text
    return text


def _drafted(subject: Subject, drafter: Any, text: Sequence[int], width: int) -> DraftBlock:
    if not width:
        return DraftBlock.empty(torch.zeros(1, dtype=torch.int64))
    if isinstance(drafter, ModelDrafter):
        ids, rows = list(text), []
        for _ in range(width):
            rows.append(_run(subject.draft, ids, 1, subject.vocab))
            ids.append(int(rows[-1][0].argmax()))
        tokens = torch.tensor([ids[len(text) :]])
        logits, states = (torch.cat(side)[None] for side in zip(*rows, strict=True))
        return DraftBlock(tokens, tokens, torch.tensor([width]), logits, states)
    drafter.open(1, len(text) + width + 1, None)
    drafter.admit(0, drafter.prefill(torch.tensor(list(text)), None))
    u = torch.full((1, width), 0.5, dtype=torch.float64)
    ids = torch.tensor([list(text)])
    try:
        return drafter.draft(Asking(ids, torch.tensor([len(text)])), width, torch.tensor([width]), u, frozenset())
    finally:
        drafter.close()
