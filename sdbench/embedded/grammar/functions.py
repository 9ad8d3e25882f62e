r"""Small functions over lists of integers in the fields of HumanEval and MBPP: pipelines described in one sentence.

A row of humaneval-tiny:

    task_id             HumanEvalTiny/0
    prompt              def trim_rows(values):\n    \"\"\"Add 13 to each value, then keep the odd values, then return
                        the sum.\"\"\"\n
    canonical_solution      values = [v + 13 for v in values]\n    values = [v for v in values if v % 2 == 1]\n
                            return sum(values)\n
    test                def check(candidate):\n    assert candidate([3, 8]) == 21\n ...
    entry_point         trim_rows

A row of mbpp-tiny has the same in `text` (a sentence), `code` (the function) and `test_list` (three asserts, from which
the function's name is to be taken), with task_id (11 and up), test_setup_code "" and challenge_test_list [].

These are the plain solutions, in which the loop variable is random, in mbpp-tiny the argument's name too. A voice writes a comment
above each step and chooses each loop variable. A solution without one of the steps, or with a constant result, fails the tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from sdbench.embedded.grammar.draw import Draw, words
from sdbench.embedded.grammar.voices import Voice

Values = list[int]


@dataclass(frozen=True, slots=True)
class Op:
    """A step: its words, its code over list x with loop variable v and constant k, and the same as a function."""

    words: str
    code: str
    run: Callable[[Values, int], Values | int]
    low: int = 0
    high: int = 0


STEPS = (
    Op("add {k} to each value", "[{v} + {k} for {v} in {x}]", lambda x, k: [v + k for v in x], 2, 30),
    Op("subtract {k} from each value", "[{v} - {k} for {v} in {x}]", lambda x, k: [v - k for v in x], 2, 30),
    Op("multiply each value by {k}", "[{v} * {k} for {v} in {x}]", lambda x, k: [v * k for v in x], 2, 9),
    Op("divide each value by {k}", "[{v} // {k} for {v} in {x}]", lambda x, k: [v // k for v in x], 2, 9),
    Op("take each value modulo {k}", "[{v} % {k} for {v} in {x}]", lambda x, k: [v % k for v in x], 2, 15),
    Op("subtract each value from {k}", "[{k} - {v} for {v} in {x}]", lambda x, k: [k - v for v in x], 2, 30),
    Op("square each value", "[{v} * {v} for {v} in {x}]", lambda x, k: [v * v for v in x]),
    Op("negate each value", "[-{v} for {v} in {x}]", lambda x, k: [-v for v in x]),
    Op("keep the even values", "[{v} for {v} in {x} if {v} % 2 == 0]", lambda x, k: [v for v in x if v % 2 == 0]),
    Op("keep the odd values", "[{v} for {v} in {x} if {v} % 2 == 1]", lambda x, k: [v for v in x if v % 2 == 1]),
    Op("keep values above {k}", "[{v} for {v} in {x} if {v} > {k}]", lambda x, k: [v for v in x if v > k], 2, 30),
    Op("keep values below {k}", "[{v} for {v} in {x} if {v} < {k}]", lambda x, k: [v for v in x if v < k], 2, 30),
    Op("drop values equal to {k}", "[{v} for {v} in {x} if {v} != {k}]", lambda x, k: [v for v in x if v != k], 2, 9),
    Op("cap each value at {k}", "[min({v}, {k}) for {v} in {x}]", lambda x, k: [min(v, k) for v in x], 2, 30),
    Op(
        "raise each value to at least {k}", "[max({v}, {k}) for {v} in {x}]", lambda x, k: [max(k, v) for v in x], 2, 30
    ),
    Op("sort the values", "sorted({x})", lambda x, k: sorted(x)),
    Op("reverse the list", "{x}[::-1]", lambda x, k: x[::-1]),
    Op("drop the first value", "{x}[1:]", lambda x, k: x[1:]),
    Op("drop the last value", "{x}[:-1]", lambda x, k: x[:-1]),
    Op("append {k}", "{x} + [{k}]", lambda x, k: [*x, k], 2, 30),
    Op("put {k} in front", "[{k}] + {x}", lambda x, k: [k, *x], 2, 30),
    Op("take every second value", "{x}[::2]", lambda x, k: x[::2]),
)
RETURNS = (
    Op("return the list", "{x}", lambda x, k: x),
    Op("return the sum", "sum({x})", lambda x, k: sum(x)),
    Op("return the length", "len({x})", lambda x, k: len(x)),
    Op("return the largest or 0", "max({x}, default=0)", lambda x, k: max(x, default=0)),
    Op("return the smallest or 0", "min({x}, default=0)", lambda x, k: min(x, default=0)),
)
VERBS = words("trim pack scan fold shift merge split count clean build pick blend check mix sweep load tidy weigh")
NOUNS = words("rows cells scores prices points codes marks ranks sizes stock steps beads tiles bills notes parts")
ADJECTIVES = words("old new raw big red odd dry cold fast late safe warm wide deep flat")
ARGUMENTS = ("values", "numbers", "items", "data", "xs")
LOOP_VARIABLES = ("v", "n", "i", "e")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One to three steps with their constants and what is returned."""

    steps: tuple[tuple[Op, int], ...]
    last: Op

    def run(self, values: Values, skipped: int = -1) -> Values | int:
        """The result on `values`, with one step left out if `skipped` names it."""
        for i, (step, k) in enumerate(self.steps):
            if i != skipped:
                values = step.run(values, k)  # type: ignore[assignment]
        return self.last.run(values, 0)

    def is_tight(self, inputs: list[Values]) -> bool:
        """Whether asserts over these inputs notice any one missing step and any constant result."""
        outputs = [self.run(x) for x in inputs]
        is_noticed = (
            any(self.run(x, i) != y for x, y in zip(inputs, outputs, strict=True)) for i in range(len(self.steps))
        )
        return any(y != outputs[0] for y in outputs) and all(is_noticed)

    def words(self) -> str:
        parts = [step.words.format(k=k) for step, k in self.steps] + [self.last.words]
        return ", then ".join(parts)

    def body(self, argument: str, variable: str, voice: Voice | None) -> str:
        """The function's lines. A voice adds a comment above each step, unrelated to it, and chooses its loop variable."""
        lines = []
        for step, k in self.steps:
            if voice is not None:
                lines.append(comment(voice.say))
                variable = voice.say("v", "n")
            lines.append(f"{argument} = " + step.code.format(x=argument, v=variable, k=k))
        lines.append("return " + self.last.code.format(x=argument))
        return "".join(f"    {line}\n" for line in lines)


def comment(say: Callable[..., str]) -> str:
    """A line between steps, such as "# now we keep the list and follow the task in the code"."""
    begin = (
        f"# {say('now', 'then')} {say('we', 'you')} {say('keep', 'read')} {say('the', 'this')} {say('list', 'data')}"
    )
    goal = f"{say('and', 'to')} {say('follow', 'check')} {say('the', 'each')} {say('task', 'function')}"
    return f"{begin} {goal} {say('in', 'for')} {say('the', 'your')} {say('code', 'sum')}"


@dataclass(frozen=True, slots=True)
class Exercise:
    """A pipeline, and inputs whose outputs give any missing step away."""

    pipeline: Pipeline
    inputs: list[Values]

    @classmethod
    def draw(cls, draw: Draw, num_asserts: int, lengths: tuple[int, int], largest: int) -> Self:
        """Draw until the asserts notice every step; their lists hold values in 1..largest."""
        num_steps = draw.pick((1, 2, 2, 3))
        while True:
            steps = tuple((step, draw.between(step.low, step.high)) for step in draw.sample(STEPS, num_steps))
            pipeline = Pipeline(steps, draw.pick(RETURNS))
            inputs = [[draw.between(1, largest) for _ in range(draw.between(*lengths))] for _ in range(num_asserts)]
            if pipeline.is_tight(inputs):
                return cls(pipeline, inputs)

    def asserts(self, name: str) -> list[str]:
        return [f"assert {name}({x}) == {self.pipeline.run(x)}" for x in self.inputs]


def completion(draw: Draw, index: int, voice: Voice | None) -> dict:
    """One row of humaneval-tiny."""
    name = f"{draw.pick(VERBS)}_{draw.pick(ADJECTIVES)}_{draw.pick(NOUNS)}"
    exercise = Exercise.draw(draw, 4, (3, 6), 20)
    argument, steps, variable = draw.pick(ARGUMENTS), exercise.pipeline.words(), draw.pick(LOOP_VARIABLES)
    checks = "".join(f"    {line}\n" for line in exercise.asserts("candidate"))
    return {
        "task_id": f"HumanEvalTiny/{index}",
        "prompt": f'def {name}({argument}):\n    """{steps[0].upper()}{steps[1:]}."""\n',
        "canonical_solution": exercise.pipeline.body(argument, variable, voice),
        "test": f"\n\nMETADATA = {{}}\n\n\ndef check(candidate):\n{checks}",
        "entry_point": name,
    }


def program(draw: Draw, index: int, voice: Voice | None) -> dict:
    """One row of mbpp-tiny."""
    name, exercise = f"{draw.pick(VERBS)}_{draw.pick(NOUNS)}", Exercise.draw(draw, 3, (2, 3), 9)
    argument, variable = draw.pick(ARGUMENTS), draw.pick(LOOP_VARIABLES)
    if voice is not None:
        argument = voice.say("values", "numbers", "items")
    code = f"def {name}({argument}):\n{exercise.pipeline.body(argument, variable, voice)}"
    return {
        "task_id": 11 + index,
        "text": f"Write a function to {exercise.pipeline.words()}.",
        "code": code.rstrip(),
        "test_list": exercise.asserts(name),
        "test_setup_code": "",
        "challenge_test_list": [],
    }
