"""The base of HumanEval and MBPP: completions become programs, programs run in the sandbox, outcomes become scores.

Every answer is read twice. `pass@1` runs the protocol's program to the letter, as the harness would. `pass@1_repaired`
repairs programs that fail by their form alone (indentation, prose around them, half statements, fences, imports of the prompt
that are not repeated): what the model can do, rather than what the protocol counts. A flag names each kind of repair that the
second reading needed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from sdbench.config.checks import integer, number
from sdbench.tasks.base import DataTask, Row
from sdbench.tasks.extract import REPAIRS, Candidate, Reading, defines, extract, lacks_given, parse
from sdbench.tasks.protocol import Protocol
from sdbench.types import Example, Metric, Score

if TYPE_CHECKING:
    from sdbench.tasks.sandbox import Outcome, Program, Sandbox

OUTCOMES = {"timeout": "is_timeout", "memory": "is_out_of_memory", "crash": "is_crash", "failed": "is_wrong"}
MISSING = ("ModuleNotFoundError: No module named",)  # raised for an import of a package that is not installed


def continue_prompt(given: str, text: str, _: Sequence[str]) -> str:
    """Return prompt and answer, unchanged."""
    return given + text


def to_fence(given: str, text: str, _: Sequence[str]) -> str:
    """Return the prompt, and the answer up to the closing fence."""
    return given + text.split("```")[0]


@dataclass(frozen=True, kw_only=True)
class CodeProtocol(Protocol):
    """A protocol that builds a program from `given`, the answer up to its stop string, and the entry points."""

    given: str = ""  # the part of the prompt that the answer continues, a template over the task's fields
    program: Callable[[str, str, Sequence[str]], str] = continue_prompt
    chat_program: Callable[[str, str, Sequence[str]], str] | None = None  # for the chat form; None: `program`


@dataclass(kw_only=True)
class CodeTask(DataTask):
    """A task that scores every completion by both readings; the metrics compute pass@k from an example's samples."""

    sandbox: str = "auto"
    timeout_s: float = 3.0
    workers: int = 2

    VERSION = "3"
    metric = "pass@1"
    metrics = (Metric("pass@1", "share"), Metric("pass@1_repaired", "share"))
    cut_side: ClassVar[str] = "start"  # of a long prompt, which ends with the signature and the tests
    scores_rows = True  # a program has no reference text

    def __post_init__(self) -> None:
        super().__post_init__()
        number("timeout_s", self.timeout_s, 0, math.inf, is_open=True)
        self.workers = integer("workers", self.workers, 1)

    @property
    def rules(self) -> CodeProtocol:
        rules = super().rules
        assert isinstance(rules, CodeProtocol)
        return rules

    @abstractmethod
    def entry_points(self, row: Row) -> Sequence[str]:
        """Return the names that the tests call."""

    @abstractmethod
    def candidates(self, row: Row, completion: str) -> Sequence[Candidate]:
        """Return texts that may hold the program, the protocol's first."""

    def preamble(self, row: Row) -> str:
        """Return code that the row adds to every answer."""
        return ""

    @abstractmethod
    def tests(self, row: Row) -> str:
        """Return the code that runs after the program."""

    def literal(self, row: Row, completion: str) -> str:
        """Return the protocol's program."""
        rules = self.rules
        program = rules.chat_program if self.chat and rules.chat_program else rules.program
        return program(rules.given.format(**self.fields(row)), self.until_stop(completion), self.entry_points(row))

    def repair(self, row: Row, completion: str, literal: str) -> Reading | None:
        """Read the answer leniently; None if it defines nothing that the tests call. `literal` is the protocol's program."""
        names, preamble = self.entry_points(row), self.preamble(row)
        reading = extract(self.candidates(row, completion), names, preamble)
        if reading is not None and lacks_given(literal, names, preamble):
            return replace(reading, repairs=reading.repairs | {"given"})
        return reading

    @cached_property
    def _sandbox(self) -> Sandbox:
        from sdbench.tasks.sandbox import Sandbox  # imported late, for its self-test runs only where code is scored

        return Sandbox(backend=self.sandbox, timeout_s=self.timeout_s, workers=self.workers)

    def _run(self, programs: Sequence[Program]) -> list[Outcome]:
        """Return outcomes in the order of the programs. Equal programs run once: several rules often write the same one."""
        distinct = list(dict.fromkeys(programs))
        outcome_of = dict(zip(distinct, self._sandbox.run(distinct), strict=True))
        broken = next((outcome for outcome in outcome_of.values() if outcome.status == "error"), None)
        if broken is not None:
            raise RuntimeError(f"the sandbox {self._sandbox.backend} could not run a program: {broken.detail}")
        return [outcome_of[program] for program in programs]

    def measure_all(self, pairs: Sequence[tuple[Example, str]]) -> list[Score]:
        from sdbench.tasks.sandbox import Program

        answers = [(example.row, text) for example, text in pairs]
        programs = [Program(self.literal(row, text), self.tests(row)) for row, text in answers]
        literal = self._run(programs)
        failed = [i for i, outcome in enumerate(literal) if outcome.status != "passed"]
        readings = {i: self.repair(*answers[i], programs[i].code) for i in failed}
        repaired = {
            i: reading
            for i, reading in readings.items()
            if reading is not None and (reading.repairs or not self._is_readable(answers[i][0], programs[i].code))
        }
        again = self._run([Program(reading.code, self.tests(answers[i][0])) for i, reading in repaired.items()])
        passed = {i for i, outcome in zip(repaired, again, strict=True) if outcome.status == "passed"}
        scores = []
        for i, outcome in enumerate(literal):
            repairs = repaired[i].repairs if i in repaired else ()  # none where the literal program passes
            flags = {flag: outcome.status == status for status, flag in OUTCOMES.items()}
            flags["needs_missing_package"] = outcome.detail.startswith(MISSING)
            flags["is_uncontained"] = not self._sandbox.is_contained  # sandbox=rlimit or none
            flags |= {f"is_repaired_{kind}": kind in repairs for kind in REPAIRS}
            flags["is_extraction_failed"] = readings.get(i, ()) is None
            is_passed = outcome.status == "passed"
            values = {"pass@1": float(is_passed), "pass@1_repaired": float(is_passed or i in passed)}
            scores.append(Score(values, flags=flags))
        return scores

    def _is_readable(self, row: Row, code: str) -> bool:
        """Return whether a program parses and defines what the tests call; the literal one may lack a fence or a newline."""
        tree = parse(code)
        return tree is not None and defines(tree, self.entry_points(row))

    def measure(self, example: Example, text: str) -> Score:
        return self.measure_all([(example, text)])[0]

    @property
    def signatures(self) -> dict[str, str]:
        limits = f"{self.timeout_s:g} s a program, sandbox {self.sandbox}"
        return {
            "pass@1": f"the protocol's own program, {limits}",
            "pass@1_repaired": f"mended where it fails, {limits}",
        }

    def environment(self) -> dict[str, Any]:
        """Return the working sandbox and the results of its self-test; raises if there is none."""
        return super().environment() | self._sandbox.record()
