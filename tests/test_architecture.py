"""The table of who may import whom: arrows point one way, hydra has one room, light packages stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sdbench"

LEFT = {"types", "probs", "noise", "verify", "lm", "draft", "engine"}
LEAVES = {"files", "errors", "imports"}  # they import nothing of sdbench; every room may use them
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "types": set(),
    "files": set(),
    "errors": set(),
    "imports": set(),
    "probs": {"types"},
    "noise": set(),
    "verify": {"types", "probs"},
    "lm": {"types", "probs", "embedded", "hub", "config"},
    "draft": {"types", "probs", "lm", "config"},
    "engine": {"types", "probs", "noise", "lm", "draft", "verify"},
    "train": LEFT | {"embedded", "tasks", "config", "hub", "metrics", "prepare", "engines", "passes", "cli", "report"},
    "embedded": set(),
    "tasks": {"types", "embedded", "config", "hub"},
    "records": set(),
    "metrics": {"types", "records"},
    "report": {"types", "records", "metrics", "config", "words"},
    "config": set(),
    "words": {"config"},
    "hub": {"config"},
    "plan": {"config", "records"},
    "trackers": {"metrics"},
    "runs": {"records"},
    "score": {"types", "tasks", "metrics", "config", "hub", "words"},
    "evaluate_adapter": {"types", "metrics"},
    "serve": {"types", "config"},
    "prepare": LEFT | {"embedded", "tasks", "records", "config", "hub"},
    "engines": LEFT | {"tasks", "records", "metrics", "config", "plan", "hub", "serve", "prepare"},
    "passes": LEFT
    | {"tasks", "records", "metrics", "report", "config", "plan", "hub", "trackers", "prepare", "engines"},
    "cli": LEFT | {"records", "config", "plan", "hub", "prepare", "engines", "passes"},
    "audit": LEFT | {"config", "hub", "metrics", "prepare", "engines", "passes", "cli"},
    "__main__": {"cli", "config"},
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
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[tuple[str, int]]:
    """(module, line) of every import outside `if TYPE_CHECKING`, relative ones resolved."""
    imports: set[tuple[str, int]] = set()
    package = ["sdbench", *path.relative_to(PACKAGE).parts[:-1]]

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            imports.update((alias.name, node.lineno) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            imports.add((module, node.lineno))
            imports.update((f"{module}.{alias.name}", node.lineno) for alias in node.names if module == "sdbench")
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return imports


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
