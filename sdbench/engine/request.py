"""What is asked of the engine: one text, under one rule, with its own noise."""

from collections.abc import Sequence
from dataclasses import dataclass

from sdbench.noise import Key
from sdbench.types import Verifier


@dataclass(frozen=True, slots=True)
class Request:
    """One generation. Its output depends on the seed and on key, sample, rule and num_draft only.

    num_draft=0 is the target alone (the rule is then never asked). `prompt` and `verifier` are labels, handed through.
    """

    ids: tuple[int, ...]
    rule: Verifier
    key: Key
    sample: int = 0
    num_draft: int = 5
    prompt: int = 0
    verifier: int = 0

    def check(self, *, max_new_tokens: int, limit: int | None, vocab_size: int, is_greedy: bool, has_draft: bool) -> None:
        """A ValueError that names option, rule and value, before anything is computed."""
        if not self.ids:
            raise ValueError(f"prompt {self.prompt} (key {self.key!r}) is empty: a text starts from at least one token")
        if not 0 <= min(self.ids) <= max(self.ids) < vocab_size:
            raise ValueError(f"prompt {self.prompt} has ids outside 0 … {vocab_size - 1}, the used vocabulary")
        if self.num_draft < 0:
            raise ValueError(f"num_draft must be at least 0, got {self.num_draft}")
        if self.num_draft and not has_draft:
            raise ValueError(f"num_draft must be 0 without a draft model, got {self.num_draft}")
        if self.sample and is_greedy:
            raise ValueError(f"samples must be 1 at temperature 0, where all are equal, got sample {self.sample}")
        if limit is not None and len(self.ids) + max_new_tokens > limit:
            raise ValueError(
                f"prompt + max_new_tokens must not exceed the model's limit of {limit}, "
                f"got {len(self.ids)} + {max_new_tokens} for prompt {self.prompt}"
            )


def product(
    prompts: Sequence[Sequence[int]], rules: Sequence[Verifier], keys: Sequence[Key], num_draft: int, samples: int
) -> list[Request]:
    """Prompt × verifier × sample, in that order."""
    return [
        Request(tuple(ids), rule, keys[i], sample, num_draft, prompt=i, verifier=j)
        for i, ids in enumerate(prompts)
        for j, rule in enumerate(rules)
        for sample in range(samples)
    ]
