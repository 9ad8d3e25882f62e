"""The hook of the loop sees its phases, with their rows, and changes no text."""

from collections.abc import Iterator
from contextlib import contextmanager

import sdbench
from sdbench.verify import Ensemble, Exact
from tests.engine.models import PROMPTS, pair

OPTIONS = {"max_new_tokens": 8, "stop_ids": (), "num_draft": 3, "batch_size": 3}


def test_a_hook_sees_the_phases_of_every_round_and_changes_no_text():
    engine = sdbench.Engine(*pair("llama"))
    rules = [Exact(), Ensemble(w=0.5)]
    without = sdbench.generate(None, None, PROMPTS, rules, engine=engine, **OPTIONS)
    entered: list[str] = []
    left: list[str] = []
    rows: set[int] = set()

    @contextmanager
    def hook(phase: str, num_rows: int) -> Iterator[None]:
        entered.append(phase)
        rows.add(num_rows)
        yield
        left.append(phase)

    engine.hook = hook
    assert sdbench.generate(None, None, PROMPTS, rules, engine=engine, **OPTIONS) == without
    rounds = entered.count("round")
    assert rounds >= max(len(generation.drafted or ()) for generation in without)
    assert entered == [
        "admit",
        *["round", "draft", "score", "verify", "commit", "measure", "admit"] * rounds,
    ]
    assert left == ["admit", *["draft", "score", "verify", "measure", "commit", "round", "admit"] * rounds]
    assert rows == {0, 1, 2, 3}
