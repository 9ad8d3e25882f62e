"""Train from scratch one of the tiny pairs that ship with the package: in two processes on a CPU, in one on a GPU.

    python scripts/train_tiny.py [pair=llama-tiny] [OPTION=VALUE ...]

pair=NAME       llama-tiny, qwen-tiny or gemma-tiny                      (llama-tiny)
out=FOLDER      gets target/, draft/ and training.json                   (trained/PAIR)
role=A,B        target, draft or both                                    (target,draft)
start=FOLDER    has target/ with the weights after the plain phases: training begins with the first phase that has a voice
exits=STEPS     train the pair's target this many steps further with losses at every second layer (LayerSkip), as
                drafter=early-exit needs; out gets target/, for model.target=FOLDER. Not with role=, start= or seed=
seed=N          other initial weights and rows, with the same tokenizer

A training that was interrupted continues when the same command is run again.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.tiny.make import ROLES, make, pair_of, train_exits
from scripts.tiny.pairs import Role
from scripts.tiny.ranks import is_rank, join_ranks, start_ranks
from sdbench.words import choose, exit_on_mistake, parse_words

DEFAULTS = {
    "pair": "llama-tiny",
    "out": "FOLDER",
    "role": "target,draft",
    "start": "FOLDER",
    "exits": "STEPS",
    "seed": "2",
}


def main(words: Sequence[str]) -> None:
    """Start the training processes (ranks), or run as one of them."""
    with exit_on_mistake("train_tiny", __doc__, words):
        options = parse_words(words, DEFAULTS).options
        name, seed = options.get("pair", DEFAULTS["pair"]), options.get("seed")
        pair, out = pair_of(name), Path(options.get("out", f"trained/{name}"))
        names = choose("role", options.get("role", DEFAULTS["role"]), ROLES)
        if seed is not None and not seed.isdecimal():
            raise ValueError(f"seed must be a whole number of at least 0, got {seed}")
        exits = options.get("exits")
        if exits is not None and not (exits.isdecimal() and int(exits)):
            raise ValueError(f"exits must be a whole number of steps, at least 1, got {exits}")
        ignored = [f"{option}=" for option in ("role", "start", "seed") if exits is not None and option in options]
        if ignored:
            raise ValueError(f"exits= trains the shipped target of pair= further: remove {', '.join(ignored)}")
        if not is_rank():
            raise SystemExit(start_ranks([__file__, *words], out))
        with join_ranks(out) as rank:
            start = Path(options["start"]) if "start" in options else None
            roles: list[Role] = [role for role in ROLES if role in names]
            if exits is None:
                make(pair, out, rank, roles, start, None if seed is None else int(seed))
            else:
                train_exits(name, out, rank, int(exits))


if __name__ == "__main__":
    main(sys.argv[1:])
