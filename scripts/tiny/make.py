"""Train a whole pair: tokenizer, target and draft, and record the cost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from scripts.tiny.data import texts
from scripts.tiny.loop import Trained, fit
from scripts.tiny.pairs import MAX_LENGTH, PAIRS, TASKS, Pair, PairRecipe, Phase, Role
from scripts.tiny.ranks import Rank
from scripts.tiny.tokenizer import train_tokenizer
from sdbench import embedded

CONTINUED = 1000  # steps of the warm-up and cosine in `continue_target`, which runs some of them
EXIT_SHARE = 0.5  # of the loss, in `train_exits`
ROLES: tuple[Role, ...] = ("target", "draft")


def pair_of(name: str) -> Pair:
    """Return the pair called `name`."""
    if name not in PAIRS:
        raise ValueError(f"pair must be one of {', '.join(PAIRS)}, got {name!r}")
    return PAIRS[name]


def tokenizer_of(pair: Pair) -> PreTrainedTokenizerFast:
    """Train and return the pair's tokenizer. It is a function of the pair alone, so every rank gets the same one."""
    rows = [t for task in TASKS for t in texts(task, "train", pair.tokenizer_rows, pair.seed, "plain")]
    return train_tokenizer((t.prompt + t.completion for t in rows), pair.vocabulary, MAX_LENGTH)


def continue_target(name: str, out: Path, step: int) -> Path:
    """Train the pair's shipped target further in the draft's voice; return the folder of its weights at `step`."""
    pair, folder = pair_of(name), out / f"target-{step}"
    if not (folder / "config.json").exists():
        phase = Phase(CONTINUED, rate=0.3, mix=pair.target_recipe.phases[-1].mix, voice="draft")
        pair = replace(pair, target_recipe=PairRecipe((phase,)), seed=pair.seed + 100)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(embedded.path(name, "target"))
        fit(pair, "target", tokenizer, out, Rank(), until=step, start=embedded.path(name, "target"))
        tokenizer.save_pretrained(out / "target-partial")
        (out / "target-partial").rename(folder)
    return folder


def train_exits(name: str, out: Path, rank: Rank, steps: int) -> None:
    """Train the pair's shipped target further with losses at every second layer, for `drafter=early-exit`: `out/target`."""
    pair, start = pair_of(name), embedded.path(name, "target")
    phase = replace(pair.target_recipe.phases[-1], steps=steps, rate=0.5)
    pair = replace(pair, target_recipe=PairRecipe((phase,), exit_share=EXIT_SHARE), seed=pair.seed + 200)
    trained = fit(pair, "target", PreTrainedTokenizerFast.from_pretrained(start), out, rank, start=start)
    if rank.index == 0:
        took = {**_costs(trained, steps, rank), "exit_share": EXIT_SHARE, "started_from": f"embedded:{name}/target"}
        (out / "training.json").write_text(json.dumps({"target": took}, indent=1) + "\n")


def _costs(trained: Trained, steps: int, rank: Rank) -> dict[str, object]:
    """Return the cost of a training."""
    return {
        "steps": steps,
        "tokens": trained.tokens,
        "loss": round(trained.loss, 4),
        "seconds": round(trained.seconds),
        "processes": rank.world,
        "device": rank.device,
        "torch": torch.__version__,
    }


def make(
    pair: Pair,
    out: Path,
    rank: Rank,
    roles: Sequence[Role] = ROLES,
    start: Path | None = None,
    seed: int | None = None,
) -> None:
    """Train each role, from its checkpoint if there is one; write steps, tokens, loss and seconds to `training.json`.

    With `start`, a model whose recipe has plain phases begins after them, from the weights in `start/<role>`; the cost of these
    phases is in `start/training.json`. With `seed`, initial weights and rows differ, but not the pair's tokenizer.
    """
    tokenizer, log = tokenizer_of(pair), out / "training.json"
    pair = pair if seed is None else replace(pair, seed=seed)
    for role in roles:
        folder = start / role if start and pair.recipe(role).plain_steps else None
        trained = fit(pair, role, tokenizer, out, rank, start=folder)
        if rank.index == 0:
            took = _costs(trained, pair.recipe(role).steps, rank)
            if start and folder:
                before = json.loads((start / "training.json").read_text())[role]
                took |= {"began_at_step": pair.recipe(role).plain_steps, "before": before}
            before = json.loads(log.read_text()) if log.exists() else {}
            log.write_text(json.dumps(before | {role: took}, indent=1) + "\n")
