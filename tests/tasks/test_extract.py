"""Programs out of answers, by syntax tree."""

import ast
import random

import pytest

from sdbench.tasks import extract as package
from sdbench.tasks.extract import Candidate, fenced_blocks, longest_program

CODE = "import math\n\n\ndef helper(x):\n    return math.sqrt(x)\n\n\ndef main(x):\n    return helper(x)\n"


def extract(texts, entry_points, preamble=""):
    """The code alone."""
    reading = package.extract([Candidate(text) for text in texts], entry_points, preamble)
    return None if reading is None else reading.code


def names(code):
    return [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


@pytest.mark.parametrize(
    "answer",
    [
        CODE,
        f"```python\n{CODE}```",
        f"Sure! Here's the code:\n\n```python\n{CODE}```\n\nIt's simple, isn't it?",
        f"~~~\n{CODE}~~~",
        f"```\n{CODE}",
        f"Here's the function:\n\n{CODE}\nI hope it helps: it's what you asked for.",
        f"{CODE}\nprint(main(4))\nassert main(4) == 2\n",
        f"{CODE}\nif __name__ == '__main__':\n    main(int(input()))\n",
        f"{CODE}\ndef broken(:\n    pass",
        f"{CODE}\ndef unfinished(x):\n    return [x, ",
        f'{CODE}\n"""never closed',
        f"def broken(:\n\n{CODE}",
        f"```bash\npip install x\n```\nThen:\n```python\n{CODE}```",
        f"  ```python\n{CODE}  ```",
    ],
)
def test_fences_and_chatter_go_and_the_program_stays(answer):
    program = extract([*fenced_blocks(answer), answer], ["main"])
    assert program is not None
    assert names(program) == ["helper", "main"]
    assert "import math" in program
    assert "print" not in program
    assert "assert" not in program
    assert "input" not in program


def test_only_what_the_entry_point_needs_is_kept():
    code = (
        "from __future__ import annotations\nimport sys\nsys.setrecursionlimit(10000)\n"
        "LIMIT = 3\nTABLE = {}\nTABLE[1] = LIMIT\nUNUSED = 4\n"
        "for i in range(3):\n    TABLE[i] = i\n"
        "import heapq\nHEAP = []\nheapq.heappush(HEAP, 3)\nTABLE.setdefault(1, []).append(2)\n"
        "class Node:\n    pass\nclass Other:\n    pass\n"
        "def unused(): return main(1)\n"
        "def check(table): assert unused() == table[1]\n"
        "def main(x):\n    return TABLE[x], HEAP, Node()\n"
        "main(2)\nmain(HEAP)\nmain(2).pop(HEAP)\nprint(HEAP)\ncheck(TABLE)\nrun(main, Node)\nunittest.main()\n"
    )
    program = extract([code], ["main"])
    assert program is not None
    assert names(program) == ["Node", "main"]
    assert program.startswith("from __future__")
    assert "TABLE[1] = LIMIT" in program
    assert "for i in range(3)" in program
    assert "heapq.heappush(HEAP, 3)" in program
    assert "TABLE.setdefault(1, []).append(2)" in program
    assert "setrecursionlimit" in program
    for gone in ("UNUSED", "unused", "Other", "unittest", "main(2)", "main(HEAP)", "print", "check", "run"):
        assert gone not in program


def test_an_entry_point_without_a_body_is_no_answer():
    assert extract(['def main(x):\n    """Only words."""\n'], ["main"]) is None
    assert extract(['def main(x):\n    import math\n    """Only words."""\n'], ["main"]) is None
    assert extract(["def other(x):\n    return x\n"], ["main"]) is None
    assert extract([""], ["main"]) is None


def test_definitions_of_the_row_count_until_the_answer_has_its_own():
    given = "from typing import List\ndef helper(x):\n    return 1\n"
    program = extract(["def main(x: List) -> int:\n    return helper(x)\n"], ["main"], given)
    assert program is not None
    assert "List" in program.splitlines()[0]
    scope: dict = {}
    exec(program, scope)
    assert scope["main"](0) == 1


def test_assigned_and_async_entry_points_count():
    assert extract(["main = lambda x: x\n"], ["main"])
    assert extract(["async def main(x):\n    return x\n"], ["main"])


def test_longest_program_is_the_longest_of_several():
    text = "a = 1\nthis is no code\nb = 2\nc = 3\nd = 4\nneither this\ne = 5\nf = 6"
    assert longest_program(text) == "b = 2\nc = 3\nd = 4"
    assert longest_program("no code here at all") == ""


@pytest.mark.parametrize(
    "text", ["\x00", "(" * 5000, "def f(:\n" * 2000, "x = 1\n" * 5000 + "(", '"""' * 999, "a b\n" * 2000]
)
@pytest.mark.timeout(60)
def test_hostile_text_ends_soon_and_without_an_error(text):
    extract([text, *fenced_blocks(text)], ["main"])


@pytest.mark.parametrize("value", ["1" + " + 1" * 2000, "0x" + "f" * 5000, "'a\\x0cb\u2028c'"])
def test_what_cannot_be_unparsed_stays_as_it_is(value):
    program = extract([f"Sure:\ndef main(x):\n    return {value}\n"], ["main"], "import math\n")
    assert program is not None
    scope: dict = {}
    exec(program, scope)
    assert scope["main"](0) == eval(value)
    assert "math" in scope


def test_no_text_raises():
    rng, pieces = (
        random.Random(0),
        [*CODE.split(" "), "\n", "```", "(", "'", "\\", "\t", "lambda:", "0x", "\x00", "é", "async "],
    )
    for _ in range(300):
        text = " ".join(rng.choices(pieces, k=rng.randint(0, 40)))
        extract([text, *fenced_blocks(text)], ["main"], text)


def test_invalid_escapes_give_no_warning(recwarn):
    assert extract(["def main(x):\n    return '\\d'\n"], ["main"])
    assert not recwarn.list
