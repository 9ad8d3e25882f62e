"""What the package imports is what pyproject names, and what it names is pinned."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.test_architecture import FILES, imports_of

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Imported only where an option asks for it, with a sentence that says what to install.
ON_DEMAND = {
    "torchao",
    "mlflow",
    "tensorboard",
    "wandb",
    "torchvision",
    "bitsandbytes",
    "flash_attn",
    "gguf",
    "lm_eval",
}
UNDER_WAY = {"sandbox"}  # what the sandbox's own folder is called in its workers


def plain(name: str) -> str:
    """A distribution's name as pip compares it, without its version."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", name)[0]).lower()


def test_every_package_that_is_imported_is_named():
    named = {plain(name) for name in PROJECT["dependencies"]}
    given = packages_distributions()
    for path in FILES:
        for module in {module.split(".")[0] for module, _ in imports_of(path)}:
            if module in sys.stdlib_module_names | ON_DEMAND | UNDER_WAY | {"sdbench"}:
                continue
            owners = {plain(owner) for owner in given.get(module, [])}
            assert owners & named, f"{path.name} imports {module}, which pyproject does not name"


def test_every_package_that_is_named_is_pinned():
    pins = {plain(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    extras = PROJECT["optional-dependencies"]
    groups = [
        PROJECT["dependencies"],
        *(extras[name] for name in extras if name != "parity"),
    ]  # it has its own environment
    assert not [name for group in groups for name in group if plain(name) not in pins | {"sdbench"}]
