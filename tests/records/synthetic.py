"""Made-up records of the real shape, written by the real writer: for tests of metrics and reports.

    folder = write_synthetic(tmp_path / "llama-tiny-gsm8k-tiny", n=40)
    results = sdbench.read(folder)

What holds in them, so that it can be tested: per examined position `expected` = 1 − w·TV and `bias` = (1 − w)·TV; the
coins are thrown with min(1, 1 − w + w·p/q) at the recorded p and q; examples have a difficulty of their own, so cells
are paired; quality falls as w falls. At temperature 0 (greedy blend) and for the joint rule `block` expected and bias
are None.
`Shape.decode` makes one generation; `write_synthetic` a whole folder with baselines, timings, calls and provenance.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from sdbench.records import CallRecord, Cell, GenerationRecord, Rounds, Store, TimingRecord
from sdbench.types import Axis, Metric

_TEXT = "the a model says that value is of speed and draft token quality with seven eggs costs more than we keep"
WORDS = _TEXT.split()
METRICS = {
    "cnndm": "rougeL",
    "xsum": "rougeL",
    "gsm8k": "strict",
    "wmt": "bleu",
    "humaneval": "pass@1",
    "mbpp": "pass@1",
}
DECLARED = {
    "cnndm": [Metric(name, "points") for name in ("rougeL", "rouge1", "rouge2", "rouge2_nostem")],
    "gsm8k": [Metric("strict", "share"), Metric("flexible", "share")],
    "wmt": [Metric("bleu", "points", stats="bleu"), Metric("chrf2", "points", stats="chrf2")],
    "humaneval": [Metric("pass@1", "share")],
}
DECLARED |= {"xsum": DECLARED["cnndm"], "mbpp": DECLARED["humaneval"]}
WS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
DRAFT_S, TARGET_S, PREFILL_S = 0.002, 0.01, 0.03
LOOKUP_S = 0.0001  # a drafted token of a drafter that is no model
MOST_COPIED = 2  # tokens that such a drafter offers
ROUGE = {"rouge1": 40.0, "rouge2": 18.0, "rougeL": 28.0, "rouge2_nostem": 17.5}


def cell(
    model: str,
    task: str,
    verifier: str,
    *,
    w: float | None = None,
    eps: float | None = None,
    num_draft: int = 5,
    temperature: float = 1.0,
    drafter: object = "model",
    **more: Any,
) -> Cell:
    """One point of a made-up sweep."""
    drafter = None if verifier in ("target", "draft", "generate") else drafter
    is_joint, plain = verifier == "block", task.removesuffix("-tiny")
    axes = [] if w is None else [Axis("w", w, 1 - w, "lossless")]
    axes += [] if eps is None else [Axis("eps", eps, eps, "exact")]
    contracts = {"metrics": [one.to_json() for one in DECLARED[plain]], "axes": [one.to_json() for one in axes]}
    given: dict[str, Any] = contracts | more
    return Cell(
        model=model,
        task=task,
        verifier=verifier,
        w=w,
        num_draft=0 if verifier in ("target", "draft", "generate") else num_draft,
        temperature=temperature,
        checkpoints={"target": f"{model}/target@0123456", "draft": f"{model}/draft@89abcde"},
        protocol="completion/1",
        law="joint/1" if is_joint else ("blend/1" if temperature == 0 else "sampled/1"),
        metric=METRICS[plain],
        is_lossless=verifier in ("lossless", "target", "generate", "block") or w == 1 or eps == 0,
        content={"dtype": "float64", "max_new_tokens": 64, "seed": 0, "top_k": None, "top_p": None, "drafter": drafter},
        **({} if eps is None else {"knobs": {"eps": eps}}),
        **given,
    )


def sweep(
    model: str,
    task: str,
    *,
    ws: Sequence[float],
    num_drafts: Sequence[int],
    temperature: float,
    epsilons: Sequence[float] = (),
    drafters: Sequence[object] = ("model",),
) -> list[Cell]:
    """Baselines, and for each drafter and draft length lossless, the ensemble over w and typical acceptance over eps."""
    look: dict[str, Any] = {"temperature": temperature}
    cells = [cell(model, task, name, **look) for name in ("target", "draft")]
    for drafter, k in product(drafters, num_drafts):
        drafting = {**look, "drafter": drafter, "num_draft": k}
        cells.append(cell(model, task, "lossless", **drafting))
        cells += [cell(model, task, "ensemble", w=w, **drafting) for w in ws]
        cells += [cell(model, task, "typical", eps=eps, **drafting) for eps in epsilons]
    return cells


def weight_of(cell: Cell) -> float:
    """How strict a made-up cell is: w, or 1 − eps."""
    return cell.w if cell.w is not None else 1.0 - float(cell.knobs.get("eps", 0.0))


@dataclass(frozen=True)
class Shape:
    """How long a made-up generation is and which noise it uses."""

    max_new_tokens: int = 64
    seed: int = 0

    def rng(self, *place: object) -> np.random.Generator:
        """Noise as a function of where it is used, so that any order and any resumption gives the same records."""
        return np.random.default_rng([self.seed, zlib.crc32(repr(place).encode())])

    def decode(self, cell: Cell, example: str, sample: int = 0) -> GenerationRecord:
        """One generation, a function of its arguments and the seed only."""
        own = self.rng(cell.key, example, sample)
        difficulty = float(self.rng("difficulty", example).beta(2, 2))
        length = int(self.rng("length", example).integers(self.max_new_tokens // 2, self.max_new_tokens + 1))
        w = weight_of(cell)
        drafted, examined, accepted, origin = [], [], [], []
        p, q, tv = [], [], []
        while len(origin) < length:
            k = min(
                cell.num_draft if cell.drafter == "model" else MOST_COPIED, cell.num_draft, length - len(origin) - 1
            )
            t = np.clip(own.beta(1.2, 4, k) * (0.4 + 1.2 * difficulty), 0, 0.5)
            q_x = own.uniform(0.05, 1, k)
            ratio = np.where(own.uniform(size=k) < 0.5, 1 - 2 * t, np.minimum(1 + 2 * t, 1 / q_x))
            kept = own.uniform(size=k) < np.minimum(1, 1 - w + w * ratio)
            num = int(np.argmin(kept)) if not kept.all() else k
            seen = min(num + 1, k)
            drafted.append(k), examined.append(seen), accepted.append(num)
            origin += [0] * num + [2 if num == k else 1]
            p += list(q_x * ratio)
            q += list(q_x)
            tv += list(t[:seen])
        is_exact = cell.law == "sampled/1" and cell.num_draft > 0
        ids = own.integers(0, len(WORDS), len(origin))
        text = " ".join(WORDS[i] for i in ids)
        scores, stats = score(cell, difficulty, w, own, len(origin))
        is_cut = length == self.max_new_tokens
        return GenerationRecord(
            cell=cell.key,
            example=example,
            sample=sample,
            prompt_tokens=20 + zlib.crc32(example.encode()) % 40,
            text=text,
            finish="length" if is_cut else "eos",
            ids=ids,
            origin=np.array(origin),
            rounds=Rounds(np.array(drafted), np.array(examined), np.array(accepted)),
            draft_ids=own.integers(0, len(WORDS), sum(drafted)),
            p=np.array(p) if cell.num_draft else None,
            q=np.array(q) if cell.num_draft else None,
            tv=np.array(tv) if cell.num_draft else None,
            expected=1 - w * np.array(tv) if is_exact else None,
            bias=(1 - w) * np.array(tv) if is_exact else None,
            scores=scores,
            stats=stats,
            flags={"is_truncated": is_cut, "is_empty": False, "is_prompt_cut": False}
            | ({"is_extraction_failed": bool(own.uniform() < 0.03)} if cell.task.startswith("gsm8k") else {}),
        )


def score(
    cell: Cell, difficulty: float, w: float, rng: np.random.Generator, length: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Values and statistics in the shape of the task's own; better for easy examples, for larger w, for the target."""
    good = (1 - 0.6 * difficulty) * (0.35 if cell.verifier == "draft" else 0.75 + 0.25 * w)
    task = cell.task.removesuffix("-tiny")
    if task == "gsm8k":
        strict = float(rng.uniform() < good)
        return {"strict": strict, "flexible": max(strict, float(rng.uniform() < 0.1))}, {}
    if task in ("humaneval", "mbpp"):
        return {"pass@1": float(rng.uniform() < good)}, {}
    if task == "wmt":
        total = [max(length - n, 1) for n in range(4)]
        correct = [int(rng.binomial(t, good ** (n + 1))) for n, t in enumerate(total)]
        chars = [max(5 * length - n, 1) for n in range(6)]
        chrf = [x for n, c in enumerate(chars) for x in (c, c, int(rng.binomial(c, good ** (n / 2 + 0.5))))]
        values = {"bleu": 100 * good**2.5, "chrf2": 100 * good}
        return values, {"bleu": [*correct, *total, length, length + 1], "chrf2": [float(x) for x in chrf]}
    return {name: float(np.clip(top * good + rng.normal(0, 3), 0, 100)) for name, top in ROUGE.items()}, {}


def timings(cell: Cell, record: GenerationRecord, *, pass_id: str, repeats: int, shape: Shape) -> list[TimingRecord]:
    """Seconds of one example: rounds times a round's cost, noise of 3 %, and one split repeat at the end."""
    records = []
    for repeat in range(repeats + 1):
        rng = shape.rng("time", cell.key, record.example, repeat)
        num = len(record.rounds.drafted)
        slow = 1.1 if cell.verifier == "target" else 1.0
        drafted, price = sum(record.rounds.drafted), DRAFT_S if cell.drafter == "model" else LOOKUP_S
        draft_s = num * cell.num_draft * DRAFT_S if cell.drafter == "model" else drafted * price
        rounds_s = (draft_s / num + TARGET_S) * slow * rng.lognormal(0, 0.03, num)
        is_split = repeat == repeats
        parts = {"draft_s": draft_s, "verify_s": num * TARGET_S, "rest_s": 0.05 * rounds_s.sum()}
        records.append(
            TimingRecord(
                pass_id=pass_id,
                machine="cpu-2x",
                cell=cell.key,
                example=record.example,
                repeat=repeat,
                tokens=len(record.ids),
                rounds=num,
                prefill_s=PREFILL_S,
                decode_s=float(rounds_s.sum()),
                first_token_s=PREFILL_S + float(rounds_s[0]),
                round_p50_s=float(np.quantile(rounds_s, 0.5)),
                round_p90_s=float(np.quantile(rounds_s, 0.9)),
                round_p99_s=float(np.quantile(rounds_s, 0.99)),
                started_at=1.8e9 + repeat,
                load=0.5,
                is_split=is_split,
                peak_memory_bytes=1e8,
                drafted_per_round=drafted / num,
                **(parts if is_split else {}),
            )
        )
    return records


def call_costs(
    model: str, *, pass_id: str, num_drafts: Sequence[int], drafters: Sequence[str] = ("model",)
) -> list[CallRecord]:
    """Costs of one call, the same the timings are made of."""
    costs = [("target", 1, TARGET_S, ""), ("prefill", 64, PREFILL_S, "")]
    costs += [("draft", 1, DRAFT_S if drafter == "model" else LOOKUP_S, drafter) for drafter in drafters]
    costs += [("verify", k + 1, TARGET_S, "") for k in num_drafts]
    return [CallRecord(pass_id, "cpu-2x", model, kind, num, cost, 20, drafter) for kind, num, cost, drafter in costs]


def write_synthetic(
    folder: Path,
    *,
    models: Sequence[str] = ("llama-tiny",),
    tasks: Sequence[str] = ("gsm8k-tiny",),
    ws: Sequence[float] = WS,
    num_drafts: Sequence[int] = (5,),
    n: int = 20,
    samples: int = 1,
    temperature: float = 1.0,
    max_new_tokens: int = 64,
    timing_examples: int = 6,
    repeats: int = 3,
    is_block_too: bool = False,
    epsilons: Sequence[float] = (),
    drafters: Sequence[object] = ("model",),
    margin: float | dict[str, float] | None = None,
    seed: int = 0,
) -> Path:
    """A finished results folder; `timing_examples=0` leaves the latency pass out."""
    shape = Shape(max_new_tokens, seed)
    provenance = {
        "versions": {"sdbench": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "git": "0123456789abcdef",
        "checkpoints": {"target": "llama-tiny/target@0123456", "draft": "llama-tiny/draft@89abcde"},
        "device": "cpu",
        "driver": None,
        "load": [0.5, 0.4, 0.3],
        "sandbox": "kernel",
        "w": "the weight of the target's law: w=1 is lossless, w=0 keeps every draft",
        "command": "python -m sdbench",
    }
    config = {"model": models[0], "task": tasks[0], "w": list(ws), "num_draft": list(num_drafts), "n": n, "seed": seed}
    config |= {} if margin is None else {"margin": margin}
    with Store.open(folder, config=config, provenance=provenance) as store:
        for model in models:
            store.add_vocabulary(model, "words", lambda: [f" {word}" for word in WORDS])
            for task in tasks:
                look = {"ws": ws, "num_drafts": num_drafts, "epsilons": epsilons, "drafters": drafters}
                cells = sweep(model, task, temperature=temperature, **look)
                if is_block_too:
                    cells += [cell(model, task, "block", num_draft=k, temperature=temperature) for k in num_drafts]
                cells = [replace(c, content={**c.content, "seed": seed}) for c in cells]
                store.add_cells(cells)
                store.add_examples(cells[0].asked, map(str, range(n)), texts_of)
                keys = [(c, f"{i}", s) for i in range(n) for s in range(samples) for c in cells]
                for start in range(0, len(keys), 500):
                    store.append_generations([shape.decode(*key) for key in keys[start : start + 500]])
                if timing_examples:
                    _latency_pass(store, cells, model, task, shape, timing_examples, repeats, num_drafts)
        store.compact()
    return folder


def texts_of(example: str) -> tuple[str, str]:
    """A prompt and its reference."""
    return f"Question {example}: what is {example} + {example}?\nAnswer:", f"It is {example}.\n#### {example}"


def _latency_pass(store, cells, model, task, shape, examples, repeats, num_drafts) -> None:
    plain = replace(cell(model, task, "generate", temperature=cells[0].temperature), content=cells[0].content)
    store.add_cells([plain])
    pass_id = f"pass-{model}-{task}"
    for c in [*cells, plain]:
        for i in range(examples):
            store.append(timings(c, shape.decode(c, f"{i}"), pass_id=pass_id, repeats=repeats, shape=shape))
    names = list(dict.fromkeys(c.drafter for c in cells if c.num_draft))
    store.append(call_costs(model, pass_id=pass_id, num_drafts=num_drafts, drafters=names))
