"""MBPP: small programs from a sentence and three asserts (Austin et al. 2021, arXiv:2108.07732); 500 or 257 rows.

A row of "full": {"task_id": 11, "text": "Write a function to double x.", "code": "def twice(x):\\n    return 2 * x",
"test_list": ["assert twice(2) == 4", ...], "test_setup_code": "", "challenge_test_list": []}.
A row of "sanitized" has `prompt` for `text` and `test_imports` for `test_setup_code`.
Not covered: MBPP+, challenge tests.
"""

import ast
import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdbench.tasks.base import Row
from sdbench.tasks.code import CodeProtocol, CodeTask
from sdbench.tasks.extract import Candidate, bound_names, fenced_blocks, parse
from sdbench.tasks.protocol import Fields

LANGUAGE = re.compile(r"(?:\w+(?=\s*\n))?\n?")


def first_block(_given: str, text: str, _entry_points: Sequence[str]) -> str:
    """lm-eval's `extract_code_blocks` for mbpp_instruct, whose prompt opens the fence; empty without a closing fence.

    The prompt ends in "```python\\n" as text and with chat templates that do not trim, so the answer begins with the program.
    lm-eval drops its first word (`def`, `import`) as a language; here only a word that ends its line is one.
    """
    block = _block(f"```{text}")
    return block if block is not None else _block(text.replace("```python", "```")) or ""


def _block(text: str) -> str | None:
    """The text between the first two fences, after the language, which ends its line. In linear time; lm-eval's pattern is
    "```(?:\\w+)?\\n?(.*?)\\n?```".
    """
    begin = text.find("```")
    opened = LANGUAGE.match(text, begin + 3) if begin >= 0 else None
    end = text.find("```", opened.end()) if opened else -1
    return None if opened is None or end < 0 else text[opened.end() : end].removesuffix("\n")


PROTOCOLS: Mapping[str, CodeProtocol] = CodeProtocol.read("mbpp", {"llama": {"program": first_block}})


@dataclass(kw_only=True)
class MBPP(CodeTask):
    """Program = the answer, by the protocol's rule; then the row's imports and asserts. For both configurations of the data."""

    PROTOCOLS = PROTOCOLS
    FIELDS = ("task_id", "code", "test_list")
    cut_field = "text"

    def fields(self, row: Row) -> Fields:
        tests = list(row["test_list"])
        return {
            "text": row["prompt"] if row.get("text") is None else row["text"],
            "tests": "\n".join(tests[:3]),
            "first_test": tests[0] if tests else "",
            "test_list": str(tests),
            "answer": row["code"],  # keeps the carriage returns of the data, as all harnesses do
        }

    def _lack_of(self, row: Row) -> str | None:
        if row.get("text") is None and row.get("prompt") is None:
            return "has neither 'text' nor 'prompt'"
        if lack := super()._lack_of(row):
            return lack
        tests = row["test_list"]
        is_list = isinstance(tests, Sequence) and not isinstance(tests, str)
        if is_list and tests and all(isinstance(test, str) and test.strip() for test in tests):
            return None
        return "has no list of asserts in 'test_list'"

    def entry_points(self, row: Row) -> Sequence[str]:
        """Return the functions that the asserts call and the reference defines."""
        tests, reference = (
            parse(code) or ast.Module([], [])
            for code in ("\n".join(row["test_list"]), row["code"].replace("\r\n", "\n"))
        )
        called = {n.func.id for n in ast.walk(tests) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        defined = {name for statement in reference.body for name in bound_names(statement)}
        return sorted((called & defined) or (called - set(dir(builtins))))

    def preamble(self, row: Row) -> str:
        return "\n".join(row.get("test_imports") or [])

    def tests(self, row: Row) -> str:
        return "\n".join([row.get("test_setup_code") or "", *(row.get("test_imports") or []), *row["test_list"]]) + "\n"

    def candidates(self, row: Row, completion: str) -> Sequence[Candidate]:
        """Return the answer up to its stop string or to the end of the fence that the prompt opened; its fences; all of it."""
        text = self.until_stop(completion)
        fence = frozenset({"fence"} if "```" in text else ())
        blocks = [Candidate(block, frozenset({"fence"})) for block in fenced_blocks(completion)]
        whole = Candidate(completion, frozenset({"whole"} if completion != text else ()))
        return [Candidate(text.split("```")[0].strip("\n").rstrip(), fence), *blocks, Candidate(text), whole]
