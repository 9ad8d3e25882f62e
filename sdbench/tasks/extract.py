"""Extract programs from completions by syntax tree: remove fences and prose, keep the longest valid program, remove unused parts.

This follows evalplus's `sanitize` (Liu et al. 2023, arXiv:2305.01210, version 0.3), which is reimplemented here too. Both use
Python's own parser instead of tree-sitter. Not covered: other languages.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\2|\Z)", re.DOTALL | re.MULTILINE)
NEWLINE = re.compile(r"\r\n?|\n")
MAX_LINES = 2000  # a longer answer repeats itself, and its beginning is enough
MAX_TRIES = 500

REPAIRS: Mapping[str, str] = {
    "indentation": "the first line's indentation, or the line end before it, is put back",
    "fence": "a fenced block is taken out, or the answer ends at a fence that the protocol does not know",
    "whole": "the whole function is read by itself, beyond a stop string and without the prompt before it",
    "rest": "lines that do not parse are dropped: prose around the program, a half statement at its end",
    "given": "the row's imports and helpers that the program uses and lacks are put back",
    "unused": "statements that no test needs are dropped: prints, the answer's own tests, a main guard",
}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parse(code: str) -> ast.Module | None:
    """Return the syntax tree, or None if it is not Python."""
    tree = _tree_or_line(code)
    return None if isinstance(tree, int) else tree


def _tree_or_line(code: str) -> ast.Module | int:
    """Return the tree, or the 1-based line of the syntax error; 0 if the parser does not name one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in generated strings
            return ast.parse(code)
    except SyntaxError as error:
        return error.lineno or 0
    except (ValueError, RecursionError, MemoryError):  # ValueError: null bytes
        return 0


def longest_program(text: str, *, counts_comments: bool = False) -> str:
    """Return the span of lines with the most code among those that parse; empty if none does."""
    lines = NEWLINE.split(text.replace("\x00", ""))[:MAX_LINES]  # not splitlines, which also splits inside strings
    weight = [bool(line.strip()) and (counts_comments or not line.lstrip().startswith("#")) for line in lines]
    best, best_weight, tries = "", 0, 0
    for start, line in enumerate(lines):
        if not weight[start] or line[0].isspace():  # a program starts with a line of code that is not indented
            continue
        end = len(lines)
        while end > start and sum(weight[start:end]) > best_weight and tries < MAX_TRIES:
            tries += 1
            code = "\n".join(lines[start:end])
            failed_at = _tree_or_line(code)
            if not isinstance(failed_at, int):
                best, best_weight = code, sum(weight[start:end])
                break
            # Any span with the line of an error fails too; an unclosed bracket is reported where it opens.
            end = start + (failed_at - 1 if failed_at else (end - start) // 2)
    return best


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def bound_names(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement defines or changes."""
    if isinstance(statement, Definition):
        return {statement.name}
    bound: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, Definition):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            bound |= _base(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            bound |= _base(func) if isinstance(func, ast.Attribute) else set()  # table.append(...)
    return bound


def _base(node: ast.AST) -> set[str]:
    """Return the name at the start of `table[1].rows` or `table.setdefault(1, []).append`; a call of a plain name has none."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
            break
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _is_import(statement: ast.stmt) -> bool:
    """Return whether a statement is an import, or a try around imports."""
    if isinstance(statement, ast.Try):
        return bool(statement.body) and all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in statement.body)
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _calls(statement: ast.stmt) -> list[ast.Call]:
    """Return the calls of a top-level statement whose results are not used."""
    nodes = () if isinstance(statement, Definition) else ast.walk(statement)
    return [node.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]


def closure(names: Sequence[str], uses: Callable[[str], set[str]]) -> set[str]:
    """Return the names, and everything that they use directly or indirectly."""
    reached, waiting = set(names), list(names)
    while waiting:
        new = uses(waiting.pop()) - reached
        reached |= new
        waiting += new
    return reached


def reachable(tree: ast.Module, entry_points: Sequence[str]) -> list[ast.stmt]:
    """Keep imports and the definitions that the entry points need; tests, prints and main guards are removed."""
    statements = [s for s in tree.body if not (isinstance(s, ast.If) and "__name__" in names_in(s.test))]
    imported = set[str]().union(*(bound_names(statement) for statement in statements if _is_import(statement)))
    binds = [bound_names(statement) - imported for statement in statements]
    uses = [names_in(statement) for statement in statements]

    def uses_of(name: str) -> set[str]:
        return set().union(*(u for b, u in zip(binds, uses, strict=True) if name in b))

    fixed = imported | {s.name for s in statements if isinstance(s, Definition)} | set(entry_points)
    for bound, statement in zip(binds, statements, strict=True):
        for call in _calls(statement):
            # heapq.heappush(HEAP, 3) changes HEAP; print(HEAP) does not, and a function that calls an entry point tests it.
            passed = {arg.id for arg in call.args if isinstance(arg, ast.Name)} - fixed
            if passed and not closure([*names_in(call.func)], uses_of) & {"print", *entry_points}:
                bound |= passed
    wanted = closure(entry_points, uses_of)
    limits = [isinstance(s, ast.Expr) and ast.unparse(s).startswith("sys.setrecursionlimit(") for s in statements]
    body = [s for n, s in enumerate(statements) if binds[n] & wanted or _is_import(s) or limits[n]]
    body.sort(key=lambda s: not (isinstance(s, ast.ImportFrom) and s.module == "__future__"))  # these must come first
    return body


def defines(tree: ast.Module, entry_points: Sequence[str]) -> bool:
    """Return whether every entry point is defined by a function whose body is more than a docstring."""
    is_whole: dict[str, bool] = {}
    for statement in tree.body:
        is_full = not isinstance(statement, ast.FunctionDef) or not _is_bodyless(statement)
        is_whole |= dict.fromkeys(bound_names(statement), is_full)  # the last definition counts
    return all(is_whole.get(name, False) for name in entry_points)


def _is_bodyless(function: ast.FunctionDef) -> bool:
    """Return whether a function holds only docstrings and imports; HumanEval/115's prompt has both."""
    return all(isinstance(s, ast.Import | ast.ImportFrom) or _is_text(s) for s in function.body)


def fenced_blocks(text: str) -> Iterator[str]:
    """Return the contents of fenced blocks, including an open one at the end, longest first.

    Lines lose the indentation of their fence, which may be in a list, as in Markdown (CommonMark 0.31, section 4.5).
    """
    blocks = (
        re.sub(rf"^[ \t]{{0,{len(match[1])}}}", "", match[3], flags=re.MULTILINE) for match in FENCE.finditer(text)
    )
    yield from sorted(blocks, key=len, reverse=True)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that may hold the program, and the repairs (keys of REPAIRS) that made it from the answer."""

    text: str
    repairs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reading:
    """A program that defines what the tests call, and every repair that it needed."""

    code: str
    repairs: frozenset[str]


def extract(texts: Sequence[Candidate], entry_points: Sequence[str], preamble: str = "") -> Reading | None:
    """Return the first text whose longest valid program defines the entry points, reduced to what they need; else None.

    `preamble` is code that the row gives: its definitions count until the program has its own.
    """
    given = parse(preamble) or ast.Module([], [])
    for text in texts:
        is_valid = parse(text.text) is not None
        code = text.text if is_valid else longest_program(text.text)
        tree = parse(code)
        if tree is None:
            continue
        whole = ast.Module([*given.body, *tree.body], [])
        if defines(whole, entry_points):
            repairs = text.repairs if is_valid else text.repairs | {"rest"}
            return _reduce(whole, tree, entry_points, f"{preamble}\n{code}", repairs)
    return None


def _reduce(
    whole: ast.Module, program: ast.Module, entry_points: Sequence[str], code: str, repairs: frozenset[str]
) -> Reading:
    try:
        kept = reachable(whole, entry_points)
        written = "\n\n".join(ast.unparse(statement) for statement in kept) + "\n"
    except (RecursionError, ValueError):  # a sum of a thousand terms, a hexadecimal of 5,000 digits
        return Reading(code, repairs)
    is_dropped = any(s not in kept and not _is_text(s) for s in program.body)
    return Reading(written, repairs | {"unused"} if is_dropped else repairs)


def lacks_given(code: str, entry_points: Sequence[str], preamble: str) -> bool:
    """Return whether a program or its tests use names that the row's code defines and the program does not."""
    program, given = parse(code), parse(preamble)
    if program is None or given is None:
        return False
    defined, bound = (set[str]().union(*map(bound_names, tree.body)) for tree in (given, program))
    return bool((defined - bound) & (names_in(program) | set(entry_points)))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def sanitize(text: str, entry_points: Sequence[str]) -> str:
    """Return the program that evalplus would run: the longest span of lines that parses, reduced to what the entry point reaches.

    As in evalplus, the first of two definitions of a name counts; functions without `return`, decorated ones, and statements
    other than imports, definitions and assignments are removed. Unlike here, evalplus has a single entry point, although
    HumanEval's own tests also call a helper (rows 38, 50); of a text whose programs have one line each it returns the first line.
    """
    code = longest_program(text, counts_comments=True)
    tree = parse(code)
    if tree is None:
        return code
    imports = [s for s in tree.body if isinstance(s, ast.Import | ast.ImportFrom)]
    named: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if (name := _evalplus_name(statement)) is not None:
            named.setdefault(name, statement)
    wanted = closure(entry_points, lambda name: names_in(named[name]) if name in named else set())
    kept = [*imports, *(statement for name, statement in named.items() if name in wanted)]
    segments = (ast.get_source_segment(code, statement) for statement in kept)
    return "\n".join(segment for segment in segments if segment).strip() or code


def _evalplus_name(statement: ast.stmt) -> str | None:
    """Return the name that a top-level statement defines, as evalplus reads it."""
    if isinstance(statement, Definition):
        has_return = any(isinstance(node, ast.Return) for node in ast.walk(statement))
        is_kept = has_return or isinstance(statement, ast.ClassDef)
        return statement.name if is_kept and not statement.decorator_list else None
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        return target.id if isinstance(target, ast.Name) else None
    return None
