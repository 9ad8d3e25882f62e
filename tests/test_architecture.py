"""The table of who may import whom: arrows point one way, hydra has one room, light packages stay light."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

PACKAGE = Path(__file__).parents[1] / "sdbench"

LEFT = {"types", "probs", "noise", "verify", "lm", "draft", "engine"}
LEAVES = {"files", "errors", "imports"}  # they import nothing of sdbench; every room may use them
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "types": set(),
    "files": set(),
    "errors": set(),
    "imports": set(),
    "probs": {"types", "config"},
    "noise": set(),
    "card": set(),
    "verify": {"types", "probs", "card"},
    "lm": {"types", "probs", "embedded", "hub", "config"},
    "draft": {"types", "probs", "lm", "config", "records", "card"},
    "engine": {"types", "probs", "noise", "lm", "draft", "verify"},
    "train": LEFT
    | {"tasks", "card", "config", "hub", "metrics", "prepare", "engines", "report", "words", "subcommand"},
    "embedded": set(),
    "tasks": {"types", "embedded", "config", "hub"},
    "records": set(),
    "metrics": {"types", "records"},
    "report": {"types", "records", "metrics", "config", "words", "subcommand"},
    "config": set(),
    "words": {"config", "subcommand"},
    "hub": {"config"},
    "plan": {"config", "records"},
    "trackers": {"metrics"},
    "subcommand": {"config"},
    "runs": {"records", "subcommand"},
    "score": {"types", "tasks", "metrics", "config", "hub", "words", "subcommand"},
    "evaluate_adapter": {"types", "metrics"},
    "serve": {"types", "config"},
    "prepare": LEFT | {"embedded", "tasks", "records", "config", "hub"},
    "engines": LEFT | {"tasks", "records", "metrics", "config", "plan", "hub", "serve", "prepare"},
    "passes": LEFT
    | {
        "tasks",
        "records",
        "metrics",
        "report",
        "config",
        "plan",
        "hub",
        "trackers",
        "prepare",
        "engines",
        "subcommand",
    },
    "cli": {"records", "config", "plan", "hub", "words", "subcommand", "lm", "prepare", "engines", "passes"},
    "audit": LEFT | {"config", "hub", "words", "subcommand", "metrics", "prepare", "engines"},
    "lm_eval": {"config", "engine", "metrics", "types", "probs", "cli", "prepare", "engines"},
    "__main__": {"cli", "report", "train", "config", "hub", "subcommand"},
}
# Annotations may name what the program must not load: these count only at run time.
TORCH_FREE = (
    "tasks",
    "metrics",
    "report",
    "records",
    "config",
    "plan",
    "embedded",
    "types",
    "score",
    "evaluate_adapter",
    "runs",
    "hub",
    "trackers",
    "words",
    "serve",
)


def room(path: Path) -> str:
    if path.name == "__main__.py":
        return "__main__"  # programs: the front door, and its aliases
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def import_nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import outside `if TYPE_CHECKING`."""
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return
    if isinstance(tree, ast.Import | ast.ImportFrom):
        yield tree
    for child in ast.iter_child_nodes(tree):
        yield from import_nodes(child)


def module_of(node: ast.ImportFrom, path: Path) -> str:
    """The module that names are taken from, a relative one resolved."""
    package = ["sdbench", *path.relative_to(PACKAGE).parts[:-1]]
    base = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


def imports_of(path: Path) -> set[tuple[str, int]]:
    """(module, line) of every import outside `if TYPE_CHECKING`."""
    imports: set[tuple[str, int]] = set()
    for node in import_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imports.update((alias.name, node.lineno) for alias in node.names)
        else:
            module = module_of(node, path)
            imports.add((module, node.lineno))
            imports.update((f"{module}.{alias.name}", node.lineno) for alias in node.names if module == "sdbench")
    return imports


def files_imported_by(path: Path, files: Mapping[str, Path]) -> set[str]:
    """Modules of the package that a file imports: of a package's names, those that are files count as themselves."""
    modules: set[str] = set()
    for node in import_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        else:
            module = module_of(node, path)
            names = {f"{module}.{alias.name}" for alias in node.names}
            modules |= (names & set(files)) | ({module} if names - set(files) else set())
    return modules & set(files)


FILES = sorted(path for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path):
    here = room(path)
    assert here in MAY_IMPORT, f"{here} has no line in the table: say who may import whom"
    for module, line in imports_of(path):
        if not module.startswith("sdbench."):
            continue
        there = module.split(".")[1]
        if not ((PACKAGE / there).is_dir() or (PACKAGE / f"{there}.py").exists()):
            continue  # a name from sdbench/__init__, not a module
        assert there == here or there in MAY_IMPORT[here] | LEAVES, f"{path.name}:{line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_hydra_lives_in_cli_only(path):
    if room(path) == "cli":
        return
    strays = [f"{m}:{n}" for m, n in imports_of(path) if m.split(".")[0] in ("hydra", "omegaconf", "submitit")]
    assert not strays


@pytest.mark.parametrize(
    "name", [name for name in TORCH_FREE if (PACKAGE / name).exists() or (PACKAGE / f"{name}.py").exists()]
)
def test_importing_it_brings_no_torch(name):
    modules = [f"sdbench.{name}"]
    if (PACKAGE / name).is_dir():
        modules += [
            ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            for path in (PACKAGE / name).rglob("*.py")
            if path.name not in ("__init__.py", "__main__.py")
        ]
    code = f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\nsys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or f"{name} imports torch"


def test_importing_sdbench_is_light():
    heavy = {"torch", "transformers", "pandas", "numpy", "hydra"}
    code = f"import sys, sdbench\nloaded = {heavy!r} & set(sys.modules)\nsys.exit(str(loaded) if loaded else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


BANNED = {"told", "said", "made", "found", "asked", "own", "one", "place", "thing"}
IRREGULAR = {
    *(
        "begun",
        "bound",
        "broken",
        "brought",
        "built",
        "chosen",
        "done",
        "drawn",
        "given",
        "held",
        "hidden",
        "kept",
        "known",
    ),
    *("laid", "led", "left", "meant", "met", "paid", "seen", "sent", "shown", "spent", "taken", "thought", "torn"),
    *("understood", "unread", "won", "worn", "written"),
}
NO_PARTICIPLES = {"embed", "exceed", "proceed", "speed", "succeed"}
# Words that others read: columns and methods of records, and figures, whose files are called as their functions.
PUBLISHED = {"records": "asked held", "report": "bound predicted"}


def is_participle(name: str) -> bool:
    """`drawn` and `_weighed` are; `drawn_rows` and `speed` are not."""
    word = name.strip("_")
    is_regular = len(word) > 4 and word.endswith("ed") and "_" not in word and word not in NO_PARTICIPLES
    return is_regular or word in IRREGULAR


def names_to_avoid(tree: ast.AST, *, is_class_body: bool = False) -> set[str]:
    """Names that a file binds (variables, attributes, parameters, functions) and that say nothing: see STYLE, Words."""
    names: set[str] = set()
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        is_property = any("property" in ast.unparse(decorator) for decorator in tree.decorator_list)
        names = {tree.name} if is_participle(tree.name) and not is_property else {tree.name} & BANNED
    elif isinstance(tree, ast.arg):
        names = {tree.arg} & BANNED
    elif isinstance(tree, ast.Name | ast.Attribute) and isinstance(tree.ctx, ast.Store):
        name = tree.id if isinstance(tree, ast.Name) else tree.attr
        is_column = name == "asked" and (is_class_body or isinstance(tree, ast.Attribute))  # of the records
        names = {name} if name.strip("_") in BANNED and not is_column else set()
    inside = isinstance(tree, ast.ClassDef) or (is_class_body and isinstance(tree, ast.AnnAssign))
    return names.union(*(names_to_avoid(child, is_class_body=inside) for child in ast.iter_child_nodes(tree)))


@pytest.mark.parametrize("room_name", sorted({room(path) for path in FILES}))
def test_names_say_what_they_are(room_name):
    names = {name for path in FILES if room(path) == room_name for name in names_to_avoid(ast.parse(path.read_text()))}
    new = names - set(PUBLISHED.get(room_name, "").split())
    assert not new, f"{room_name}: rename {', '.join(sorted(new))} (a function is a verb or x_of, a variable a noun)"


def file_name(path: Path) -> str:
    """The module of a file, dotted."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_files_never_import_each_other_in_a_circle():
    """Imports inside functions count too; those for annotations alone do not."""
    files = {file_name(path): path for path in FILES}
    waiting = {name: files_imported_by(path, files) - {name} for name, path in files.items()}
    while free := {name for name, needs in waiting.items() if not needs}:
        waiting = {name: needs - free for name, needs in waiting.items() if name not in free}
    assert not waiting, f"these files import each other, or what does: {', '.join(sorted(waiting))}"


def class_names(path: Path) -> set[str]:
    """Classes of a file and its CamelCase aliases."""
    tree = ast.parse(path.read_text())
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    targets = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    aliases = {node.id for node in targets if isinstance(node, ast.Name)}
    return classes | {name for name in aliases if name[0].isupper() and not name.isupper()}


def test_a_class_name_stands_once_in_the_package():
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for name in class_names(path):
            homes.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert not twice, f"give each its own name: {twice}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_of_over_300_lines_gives_its_reason(path):
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    assert text.count("\n") <= 300 or "lines" in docstring, "split it, or say in its first lines why it is so long"


DRAFTER_LINES = 150
LONG_DRAFTERS = {"mtp.py": "three drafters over the same trained layer: MTP, Eagle and Eagle3"}


def test_a_drafter_is_a_file_of_at_most_150_lines():
    configs = (PACKAGE.parent / "configs" / "drafter").glob("*.yaml")
    targets = [yaml.safe_load(path.read_text())["_target_"] for path in configs]
    files = {PACKAGE.parent / f"{target.rpartition('.')[0].replace('.', '/')}.py" for target in targets}
    too_long = {path.name for path in files if path.read_text().count("\n") > DRAFTER_LINES}
    assert too_long == set(LONG_DRAFTERS), "shorten it, or name it with its reason"
