"""HumanEval: functions to complete from signature and docstring (Chen et al. 2021, arXiv:2107.03374); 164 rows.

A row: {"task_id": "HumanEval/7", "prompt": "def twice(x):\\n    \\"\\"\\" Double. \\"\\"\\"\\n", "entry_point":
"twice", "canonical_solution": "    return 2 * x\\n", "test": "def check(candidate):\\n  assert candidate(2) == 4\\n"}.
Not covered: HumanEval+'s extra tests.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdbench.tasks.base import Row
from sdbench.tasks.code import CodeProtocol, CodeTask, to_fence
from sdbench.tasks.extract import Candidate, Definition, bound_names, fenced_blocks, names_in, parse, sanitize
from sdbench.tasks.protocol import Fields

FENCED = frozenset({"fence"})
PROTOCOLS: Mapping[str, CodeProtocol] = CodeProtocol.read(
    "humaneval",
    {
        "lm-eval": {"chat_program": to_fence},
        "llama": {"program": to_fence},
        "evalplus": {
            "program": lambda given, text, entry_points: sanitize(given + text, entry_points),
            "chat_program": lambda _, text, entry_points: sanitize(text, entry_points),
        },
    },
)


@dataclass(kw_only=True)
class HumanEval(CodeTask):
    """Program = prompt + completion, by the protocol's rule; then the row's tests."""

    PROTOCOLS = PROTOCOLS
    FIELDS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
    cut_field = "prompt"

    def fields(self, row: Row) -> Fields:
        prompt = row["prompt"]
        return {"prompt": prompt, "stripped_prompt": prompt.strip(), "answer": row["canonical_solution"]}

    def with_cut_field(self, fields: Fields, text: str) -> Fields:
        return {**fields, "prompt": text, "stripped_prompt": text.strip()}

    @property
    def padding_version(self) -> str:
        # In version 1 these protocols could not show the end of one more example: a cut of `prompt` left `stripped_prompt` whole.
        return "2" if "stripped_prompt" in self.rules.asked_fields else super().padding_version

    def entry_points(self, row: Row) -> Sequence[str]:
        """Return the function to be completed, and the prompt's helpers that the tests call (HumanEval/38 and /50)."""
        given, tests = parse(row["prompt"]), parse(row["test"])
        helpers = {name for s in given.body if isinstance(s, Definition) for name in bound_names(s)} if given else set()
        return (row["entry_point"], *sorted(helpers & names_in(tests) - {row["entry_point"]} if tests else ()))

    def preamble(self, row: Row) -> str:
        """Return the prompt's imports and helpers, for answers that leave them out."""
        given = parse(row["prompt"])
        kept = [s for s in given.body if row["entry_point"] not in bound_names(s)] if given else []
        return "\n".join(ast.unparse(statement) for statement in kept)

    def tests(self, row: Row) -> str:
        return f"{row['test']}\n\ncheck({row['entry_point']})\n"

    def candidates(self, row: Row, completion: str) -> Sequence[Candidate]:
        """Return continuations up to their stop string, and fenced blocks and whole answers beyond it."""
        stopped, prompt = self.until_stop(completion), row["prompt"]
        body = stopped.split("```")[0].rstrip()
        newline = "" if prompt.endswith("\n") else "\n"
        fence = frozenset({"fence"} if "```" in stopped else ())
        texts = [Candidate(prompt + body, fence), Candidate(f"{prompt}{newline}{body}", fence | {"indentation"})]
        for block in fenced_blocks(completion):
            texts += [Candidate(block, FENCED | {"whole"}), Candidate(f"{prompt}{newline}{block}", FENCED)]
        # An engine that strips its answers removes the first line's indentation.
        indented = f"{prompt}{newline}    {body.lstrip()}" if body.strip() else prompt
        return [*texts, Candidate(completion, frozenset({"whole"})), Candidate(indented, fence | {"indentation"})]
