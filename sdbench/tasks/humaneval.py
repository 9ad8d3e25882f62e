"""HumanEval: functions to complete from signature and docstring (Chen et al. 2021, arXiv:2107.03374); 164 rows.

A row: {"task_id": "HumanEval/7", "prompt": "def twice(x):\\n    \\"\\"\\" Double. \\"\\"\\"\\n", "entry_point":
"twice", "canonical_solution": "    return 2 * x\\n", "test": "def check(candidate):\\n  assert candidate(2) == 4\\n"}.
Not covered: HumanEval+'s extra tests.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdbench.tasks.base import Row
from sdbench.tasks.code import CodeProtocol, CodeTask, continue_prompt, to_fence
from sdbench.tasks.evalplus import sanitize
from sdbench.tasks.extract import Candidate, Definition, bound_names, fenced_blocks, names_in, parse
from sdbench.tasks.protocol import Fields

LM_EVAL_STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
LM_EVAL_ASK = (
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{prompt}\n```\n"
)
LM_EVAL_BEGIN = "Here is the completed function:\n```python\n{prompt}\n"
FENCED = frozenset({"fence"})
EVALPLUS_STOP = ("<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(", "\nprint(")


PROTOCOLS: Mapping[str, CodeProtocol] = {
    "lm-eval": CodeProtocol(
        source="lm-evaluation-harness humaneval 1.0; the chat form is its humaneval_instruct 4.0",
        given="{prompt}",
        program=continue_prompt,
        chat_program=to_fence,
        ask="{prompt}",
        answer="{answer}",
        chat_ask=LM_EVAL_ASK,
        chat_answer="{answer}\n```",
        chat_prefix=LM_EVAL_BEGIN,
        max_new_tokens=1024,
        stop=LM_EVAL_STOP,
    ),
    "llama": CodeProtocol(
        source="lm-evaluation-harness humaneval_instruct 4.0, after Meta's Llama 3.1 evaluations; one turn",
        given="{prompt}",
        program=to_fence,
        ask=LM_EVAL_ASK + LM_EVAL_BEGIN,
        answer="{answer}\n```",
        chat_ask=LM_EVAL_ASK,
        chat_answer="{answer}\n```",
        chat_prefix=LM_EVAL_BEGIN,
        is_chat=True,
        max_new_tokens=1024,
        stop=LM_EVAL_STOP,
    ),
    "bigcode": CodeProtocol(
        source="bigcode-evaluation-harness humaneval; the prompt without outer whitespace",
        given="{stripped_prompt}",
        program=continue_prompt,
        ask="{stripped_prompt}",
        answer="\n{answer}",
        max_new_tokens=512,
        stop=("\nclass", "\ndef", "\n#", "\n@", "\nprint", "\nif", "\n```", "<file_sep>"),
    ),
    "evalplus": CodeProtocol(
        source="evalplus 0.3 (arXiv:2305.01210), its chat form and its sanitize; HumanEval's own tests",
        given="{stripped_prompt}\n",
        program=lambda given, text, entry_points: sanitize(given + text, entry_points),
        chat_program=lambda _, text, entry_points: sanitize(text, entry_points),
        ask="{stripped_prompt}\n",
        answer="{answer}",
        chat_ask=(
            "Please provide a self-contained Python script that solves the following problem in a markdown code "
            "block:\n```\n{stripped_prompt}\n```\n"
        ),
        chat_answer="{stripped_prompt}\n{answer}\n```",
        chat_prefix=(
            "Below is a Python script with a self-contained function that solves the problem and passes corresponding "
            "tests:\n```python\n"
        ),
        is_chat=True,
        max_new_tokens=768,
        stop=(*EVALPLUS_STOP, "\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert "),
        chat_stop=(*EVALPLUS_STOP, "\n```\n"),
    ),
    "diversed": CodeProtocol(
        source="DIVERSED, released code (arXiv:2604.07622); its grader is absent: read as lm-eval reads",
        given="{prompt}",
        program=continue_prompt,
        ask="Write a Python function to solve the following problem:\n\n{prompt}",
        answer="{answer}",
        max_new_tokens=128,
        stop=LM_EVAL_STOP,
        prompt_limit=2048,
    ),
}


@dataclass(kw_only=True)
class HumanEval(CodeTask):
    """Program = prompt + completion, by the protocol's own rule; then the row's own tests."""

    PROTOCOLS = PROTOCOLS
    FIELDS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
    cut_field = "prompt"

    def fields(self, row: Row) -> Fields:
        prompt = row["prompt"]
        return {"prompt": prompt, "stripped_prompt": prompt.strip(), "answer": row["canonical_solution"]}

    def entry_points(self, row: Row) -> Sequence[str]:
        """The function asked for, and what else of the prompt the tests call (HumanEval/38 and /50)."""
        given, tests = parse(row["prompt"]), parse(row["test"])
        helpers = {name for s in given.body if isinstance(s, Definition) for name in bound_names(s)} if given else set()
        return (row["entry_point"], *sorted(helpers & names_in(tests) - {row["entry_point"]} if tests else ()))

    def preamble(self, row: Row) -> str:
        """The prompt's imports and helpers, for answers that leave them out."""
        given = parse(row["prompt"])
        kept = [s for s in given.body if row["entry_point"] not in bound_names(s)] if given else []
        return "\n".join(ast.unparse(statement) for statement in kept)

    def tests(self, row: Row) -> str:
        return f"{row['test']}\n\ncheck({row['entry_point']})\n"

    def candidates(self, row: Row, completion: str) -> Sequence[Candidate]:
        """Stop strings end a continuation; they would behead an answer that states the whole function, read whole."""
        stopped, prompt = self.until_stop(completion), row["prompt"]
        body = stopped.split("```")[0].rstrip()
        newline = "" if prompt.endswith("\n") else "\n"
        fence = frozenset({"fence"} if "```" in stopped else ())
        texts = [Candidate(prompt + body, fence), Candidate(f"{prompt}{newline}{body}", fence | {"indentation"})]
        for block in fenced_blocks(completion):
            texts += [Candidate(block, FENCED | {"whole"}), Candidate(f"{prompt}{newline}{block}", FENCED)]
        # An engine that strips its answers has taken the first line's indentation.
        indented = f"{prompt}{newline}    {body.lstrip()}" if body.strip() else prompt
        return [*texts, Candidate(completion, frozenset({"whole"})), Candidate(indented, fence | {"indentation"})]
