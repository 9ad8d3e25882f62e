"""evalplus's `sanitize` (Liu et al. 2023, arXiv:2305.01210; version 0.3), on Python's own parser instead of tree-sitter.

The longest span of lines that parses, reduced to imports and to what the entry point reaches. Its peculiarities are kept: of
two definitions of a name the first counts, a function without `return` and a decorated one go, statements other than imports,
definitions and assignments go. Not kept: it knows one entry point, and HumanEval's own tests call a helper too (rows 38, 50);
of a text whose programs have one line each it takes the first line as it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from sdbench.tasks.extract import longest_program, names_in, parse

Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


def sanitize(text: str, entry_points: Sequence[str]) -> str:
    """The program that evalplus would run."""
    code = longest_program(text, counts_comments=True)
    tree = parse(code)
    if tree is None:
        return code
    imports = [s for s in tree.body if isinstance(s, ast.Import | ast.ImportFrom)]
    named: dict[str, Named] = {}
    for statement in tree.body:
        if (name := _name(statement)) is not None:
            named.setdefault(name[0], name[1])
    wanted = _reachable(entry_points, named)
    kept = [*imports, *(statement for name, statement in named.items() if name in wanted)]
    segments = (ast.get_source_segment(code, statement) for statement in kept)
    return "\n".join(segment for segment in segments if segment).strip() or code


def _name(statement: ast.stmt) -> tuple[str, Named] | None:
    """The name that a top-level statement defines for evalplus, and the statement."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if statement.decorator_list:
            return None
        returns = any(isinstance(node, ast.Return) for node in ast.walk(statement))
        return (statement.name, statement) if returns or isinstance(statement, ast.ClassDef) else None
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        return (target.id, statement) if isinstance(target, ast.Name) else None
    return None


def _reachable(entry_points: Sequence[str], named: dict[str, Named]) -> set[str]:
    """The entry points, and what they need directly or not."""
    reached, waiting = set(entry_points), list(entry_points)
    while waiting:
        statement = named.get(waiting.pop())
        new = names_in(statement) - reached if statement is not None else set()
        reached |= new
        waiting += new
    return reached
