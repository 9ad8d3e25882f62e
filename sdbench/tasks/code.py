"""What HumanEval and MBPP share: completions become programs, programs run in the sandbox, outcomes become scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from sdbench.tasks.base import DataTask, Row
from sdbench.tasks.extract import extract
from sdbench.types import Example, Score

if TYPE_CHECKING:
    from sdbench.tasks.sandbox import Sandbox

OUTCOMES = {"timeout": "is_timeout", "memory": "is_out_of_memory", "crash": "is_crash", "failed": "is_wrong"}


@dataclass(kw_only=True)
class CodeTask(DataTask):
    """pass@1 of each completion; the metrics make pass@k of an example's samples from these."""

    sandbox: str = "auto"
    timeout_s: float = 3.0
    workers: int = 2

    metric = "pass@1"
    cut_side: ClassVar[str] = "start"  # the signature and the tests stand at the end

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be a number of seconds above 0, got {self.timeout_s}")
        if not isinstance(self.workers, int) or self.workers < 1:
            raise ValueError(f"workers must be a whole number of at least 1, got {self.workers}")

    @abstractmethod
    def entry_points(self, row: Row) -> Sequence[str]:
        """Names that the tests call."""

    @abstractmethod
    def candidates(self, row: Row, completion: str) -> Sequence[str]:
        """Texts that may hold the program, the protocol's own reading first."""

    def reference_row(self, reference: str) -> Row:
        """A program has no reference text: its row goes by its id."""
        return self.rows[reference]

    def preamble(self, row: Row) -> str:
        """Code that the row gives to every answer."""
        return ""

    @abstractmethod
    def tests(self, row: Row) -> str:
        """What runs after the program."""

    def program(self, row: Row, completion: str) -> tuple[str, bool]:
        """The program, and whether extraction succeeded; what failed runs as it stands, and fails."""
        candidates = self.candidates(row, completion)
        code = extract(candidates, self.entry_points(row), self.preamble(row))
        return candidates[0] if code is None else code, code is not None

    @cached_property
    def _sandbox(self) -> Sandbox:
        from sdbench.tasks.sandbox import Sandbox  # its self-test belongs to runs that score code

        return Sandbox(backend=self.sandbox, timeout_s=self.timeout_s, workers=self.workers)

    def measure_all(self, pairs: Sequence[tuple[Example, str]]) -> list[Score]:
        from sdbench.tasks.sandbox import Program

        found = [self.program(example.row, completion) for example, completion in pairs]
        programs = [
            Program(code, self.tests(example.row)) for (code, _), (example, _) in zip(found, pairs, strict=True)
        ]
        asked = list(dict.fromkeys(programs))  # rules often write the same program: it runs once
        outcome_of = dict(zip(asked, self._sandbox.run(asked), strict=True))
        scores = []
        for (_, is_found), program in zip(found, programs, strict=True):
            outcome = outcome_of[program]
            if outcome.status == "error":
                raise RuntimeError(f"the sandbox {self._sandbox.backend} could not run a program: {outcome.detail}")
            flags = {flag: outcome.status == status for status, flag in OUTCOMES.items()}
            flags["is_uncontained"] = not self._sandbox.is_contained  # marks what sandbox=rlimit or none has scored
            passed = float(outcome.status == "passed")
            scores.append(Score({"pass@1": passed}, flags={**flags, "is_extraction_failed": not is_found}))
        return scores

    def measure(self, example: Example, text: str) -> Score:
        return self.measure_all([(example, text)])[0]

    @property
    def signatures(self) -> dict[str, str]:
        return {"pass@1": f"{self.timeout_s:g} s a program, sandbox {self.sandbox}"}

    def environment(self) -> dict[str, Any]:
        """The sandbox that holds here and what its self-test proved; refuses where none does."""
        return super().environment() | self._sandbox.record()
