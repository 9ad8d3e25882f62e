"""A whole pair: tokenizer, target, draft, and what making them took."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from sdbench import embedded
from sdbench.train.data import texts
from sdbench.train.loop import fit
from sdbench.train.pairs import MAX_LENGTH, PAIRS, TASKS, Pair, Part, Recipe, Role
from sdbench.train.place import Place
from sdbench.train.tokenizer import train_tokenizer

GOES_ON = 1000  # steps of a warm-up and a cosine, of which some are made
ROLES: tuple[Role, ...] = ("target", "draft")


def pair_of(name: str) -> Pair:
    """The pair called `name`."""
    if name not in PAIRS:
        raise ValueError(f"pair must be one of {', '.join(PAIRS)}, got {name!r}")
    return PAIRS[name]


def tokenizer_of(pair: Pair) -> PreTrainedTokenizerFast:
    """The pair's tokenizer, trained anew: a function of the pair alone, so every rank has the same."""
    rows = [t for task in TASKS for t in texts(task, "train", pair.tokenizer_rows, pair.seed, "plain")]
    return train_tokenizer((t.prompt + t.completion for t in rows), pair.vocabulary, MAX_LENGTH)


def gone_on(name: str, out: Path, step: int) -> Path:
    """The pair's shipped target, trained on in the draft's voice, at one of its steps: resumed where an earlier one stopped."""
    pair, folder = pair_of(name), out / f"target-{step}"
    if not (folder / "config.json").exists():
        rows = Part(GOES_ON, rate=0.3, mix=pair.target_recipe.parts[-1].mix, voice="draft")
        pair = replace(pair, target_recipe=Recipe((rows,)), seed=pair.seed + 100)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(embedded.path(name, "target"))
        fit(pair, "target", tokenizer, out, Place(), until=step, start=embedded.path(name, "target"))
        tokenizer.save_pretrained(out / "target-partial")
        (out / "target-partial").rename(folder)
    return folder


def make(
    pair: Pair,
    out: Path,
    place: Place,
    roles: Sequence[Role] = ROLES,
    start: Path | None = None,
    seed: int | None = None,
) -> None:
    """Train each role, from its checkpoint if there is one; `training.json` says what it took.

    With `start`, a model whose recipe has plain parts begins behind them, from the weights in `start/<role>`;
    what those took stands in `start/training.json`. With `seed`, first weights and rows are others; the tokenizer is the pair's.
    """
    tokenizer, log = tokenizer_of(pair), out / "training.json"
    pair = pair if seed is None else replace(pair, seed=seed)
    for role in roles:
        folder = start / role if start and pair.recipe(role).plain_steps else None
        trained = fit(pair, role, tokenizer, out, place, start=folder)
        if place.rank == 0:
            took = {"steps": pair.recipe(role).steps, "tokens": trained.tokens, "loss": round(trained.loss, 4)}
            took |= {"seconds": round(trained.seconds), "processes": place.world, "device": place.device}
            took |= {"torch": torch.__version__}
            if start and folder:
                before = json.loads((start / "training.json").read_text())[role]
                took |= {"began_at_step": pair.recipe(role).plain_steps, "before": before}
            told = json.loads(log.read_text()) if log.exists() else {}
            log.write_text(json.dumps(told | {role: took}, indent=1) + "\n")
