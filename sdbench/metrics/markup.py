"""Tables as text for other people's documents: Markdown, and LaTeX in booktabs."""

from collections.abc import Iterable, Sequence

ESCAPES = {"±": r"$\pm$", "–": "--", "†": r"$^\dagger$", "×": r"$\times$", "−": "$-$"}
ESCAPES |= {letter: rf"\{letter}" for letter in "%_&#$"}


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], *, num_left: int = 0) -> str:
    """A table; columns after the first `num_left` are set flush right, all are left alone where that is 0."""
    marks = ["---" if not num_left or column < num_left else "---:" for column in range(len(head))]
    lines = [_line(head), "|" + "|".join(marks) + "|", *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def booktabs(columns: str, head: Sequence[str], rows: Sequence[str]) -> str:
    """A tabular of lines that are LaTeX already; `columns` as in "lrr"."""
    body = [r"\toprule", *head, *rows, r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"]) + "\n"


def tex_row(cells: Sequence[str]) -> str:
    """One line of a tabular from plain texts."""
    return tex_line(escape_latex(cell) for cell in cells)


def tex_line(cells: Iterable[str]) -> str:
    """One line of a tabular from cells that are LaTeX already."""
    return " & ".join(cells) + r" \\"


def escape_latex(text: str) -> str:
    """Plain text as LaTeX."""
    return text.translate(str.maketrans(ESCAPES))
