"""Tables as text for other documents: Markdown, and LaTeX with booktabs."""

from collections.abc import Iterable, Sequence

ESCAPES = {"±": r"$\pm$", "–": "--", "†": r"$^\dagger$", "×": r"$\times$", "−": "$-$"}
ESCAPES |= {letter: rf"\{letter}" for letter in "%_&#${}"}
ESCAPES |= {"~": r"\textasciitilde{}", "^": r"\^{}", "\\": r"\textbackslash{}"}


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], *, num_left: int = 0) -> str:
    """Return a table. Columns after the first `num_left` are right-aligned; 0 left-aligns all."""
    marks = ["---" if not num_left or column < num_left else "---:" for column in range(len(head))]
    lines = [_line(head), "|" + "|".join(marks) + "|", *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def booktabs(columns: str, head: Sequence[str], rows: Sequence[str]) -> str:
    """Return a tabular of LaTeX lines; `columns` as in "lrr"."""
    body = [r"\toprule", *head, *rows, r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"]) + "\n"


def tex_row(cells: Sequence[str]) -> str:
    """Return one line of a tabular from plain texts."""
    return tex_line(escape_latex(cell) for cell in cells)


def tex_line(cells: Iterable[str]) -> str:
    """Return one line of a tabular from LaTeX cells."""
    return " & ".join(cells) + r" \\"


def escape_latex(text: str) -> str:
    """Escape plain text for LaTeX."""
    return text.translate(str.maketrans(ESCAPES))
