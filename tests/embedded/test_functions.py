"""humaneval-tiny and mbpp-tiny: solutions pass their own tests, and the tests notice what is missing."""

import pytest

from sdbench import embedded


def passes(program: str) -> bool:
    """Runs a program the grammar made; only rows of this package come here."""
    try:
        exec(program, {})
    except Exception:  # noqa: BLE001  whatever goes wrong, the program does not pass
        return False
    return True


def humaneval(row: dict, body: str) -> str:
    return f"{row['prompt']}{body}{row['test']}\ncheck({row['entry_point']})\n"


def mbpp(row: dict, code: str) -> str:
    return "\n".join([row["test_setup_code"], code, *row["test_list"]])


def test_every_canonical_solution_passes_and_an_empty_body_fails():
    for row in embedded.rows("humaneval-tiny", "test", voice="neutral"):
        assert passes(humaneval(row, row["canonical_solution"])), row
        assert not passes(humaneval(row, "    pass\n")), row


def test_every_program_passes_its_three_asserts_and_an_empty_body_fails():
    for row in embedded.rows("mbpp-tiny", "test", voice="neutral"):
        assert passes(mbpp(row, row["code"])), row
        assert not passes(mbpp(row, row["code"].split("\n")[0] + "\n    pass")), row


@pytest.mark.parametrize("task", ["humaneval-tiny", "mbpp-tiny"])
def test_leaving_out_any_one_line_fails(task):
    for row in embedded.rows(task, "test", 150, voice="neutral"):
        head, lines = ("", row["canonical_solution"]) if task == "humaneval-tiny" else row["code"].split("\n", 1)
        lines = [line for line in lines.rstrip("\n").split("\n") if not line.lstrip().startswith("#")]
        for i in range(len(lines)):
            fewer = "".join(f"{line}\n" for line in lines[:i] + lines[i + 1 :]) or "    pass\n"
            program = humaneval(row, fewer) if task == "humaneval-tiny" else mbpp(row, f"{head}\n{fewer}")
            assert not passes(program), (row, i)


def test_a_prompt_ends_where_the_body_begins():
    for row in embedded.rows("humaneval-tiny", "test", voice="neutral"):
        assert row["prompt"].endswith('"""\n')
        assert row["canonical_solution"].startswith("    ")
        assert row["canonical_solution"].endswith("\n")
        assert f"def {row['entry_point']}(" in row["prompt"]
        assert row["test"].count("    assert candidate(") == 4


def test_the_asserts_name_the_function_and_the_code_is_short():
    for row in embedded.rows("mbpp-tiny", "test", voice="neutral"):
        name = row["code"].removeprefix("def ").split("(")[0]
        assert all(line.startswith(f"assert {name}([") for line in row["test_list"])
        assert row["text"].startswith("Write a function to ")
        assert row["challenge_test_list"] == []
