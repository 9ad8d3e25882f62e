"""Answers that the target or the draft samples to the prompts of a training: anew at each step, or once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from sdbench.prepare.progress import Bar
from sdbench.train.setup import TrainingSetup, rows_of

Text: TypeAlias = tuple[list[int], list[int]]  # a prompt and the answer


@dataclass
class Answers:
    """The texts of a training, sampled by one model. `seed` and the number of a sample select the noise."""

    setup: TrainingSetup
    role: Literal["target", "draft"]
    seed: int
    kept: list[Text] = field(default_factory=list)  # an answer to each row, if they are written once

    def of_step(self, keys: Sequence[str], step: int, count: int, *, once: bool, first: int = 0) -> list[Text]:
        """Return the texts of a step, which reads the next `count` of `keys`; each is read once before any is read again.

        once: with the answers that the first call sampled for all keys. Otherwise the answers are sample number `first` + `step`.
        """
        rows = rows_of(step, count, len(keys))
        if not once:
            return self.sample([keys[row] for row in rows], first + step)
        kept = self.keep(keys, first)
        return [kept[row] for row in rows]

    def keep(self, keys: Sequence[str], number: int) -> list[Text]:
        """Return an answer to each key, sampled by the first call unless a checkpoint had them."""
        self.kept = self.kept or self.sample(keys, number, "answers")
        return self.kept

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, so that a resumed training need not sample again."""
        return {"answers": self.kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.kept = state.get("answers", [])  # checkpoints of older versions have none: the same are sampled again

    def sample(self, keys: Sequence[str], number: int, title: str = "") -> list[Text]:
        """Return a prompt with an answer for each key, with a progress bar if it has a title."""
        from sdbench.engine import Request
        from sdbench.verify import Exact

        decoder = self.setup.decoder
        ids = [self.setup.prompts.ids[key] for key in keys]
        requests = [Request(index, 0, 0, key, 0) for index, key in enumerate(keys)]
        answers: dict[int, list[int]] = {}
        with Bar(title, len(keys) if title else 0, longest=self.setup.task.max_new_tokens) as bar:
            options = decoder.options(self.role, batch_size=decoder.batch_size, is_measured=False, watch=bar.watch)
            options = replace(options, seed=self.seed * 1_000_003 + number)
            for generation in decoder.engine.stream(ids, [Exact()], requests, options, None, role=self.role):
                answers[generation.request] = list(generation.tokens)
                bar.add(tokens=len(generation.tokens))
        return [(prompt, answers[index]) for index, prompt in enumerate(ids)]
