"""The stand-in hub, for every test that loads what is usually downloaded."""

import os
import resource
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

GRANTED, UNGRANTED = "hf_granted", "hf_ungranted"


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """Tiny checkpoints under the real ids and rows in the real schemas: `subprocess.run(..., env=hub.env(home, "hf_granted"))`."""
    from hub import Hub
    from hub_repos import GATED, make_datasets, make_models

    root = tmp_path_factory.mktemp("hub")
    make_models(root)
    make_datasets(root)
    running = Hub(root, GATED, {GRANTED: set(GATED), UNGRANTED: set()}).start()
    yield running
    running.stop()


@pytest.fixture
def real_data() -> Path:
    """The folder of real rows that SDBENCH_REAL_DATA names."""
    folder = os.environ.get("SDBENCH_REAL_DATA")
    if not folder:
        pytest.skip(
            "SDBENCH_REAL_DATA names no folder with rows of the real data sets: they are not the project's to give out; "
            "rows of its own cover the same code"
        )
    return Path(folder)


@pytest.fixture
def children_s() -> Callable[[], float]:
    """Seconds of processor that ended child processes have taken: what a command costs on an idle core, however full
    the machine is."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    begin = used()
    return lambda: used() - begin


@pytest.fixture
def without(monkeypatch) -> Callable[[str, Sequence[str]], None]:
    """Make a library look like a version without one `module:name`: what else of its module is used, `paths`, stays."""

    def remove(path: str, paths: Sequence[str]) -> None:
        for each in paths:
            import_module(each.partition(":")[0])  # its modules use one another while they are imported
        module, _, name = path.partition(":")
        owner, _, attribute = name.rpartition(".")
        if not name:
            monkeypatch.setitem(sys.modules, module, None)
        elif not owner:
            monkeypatch.delattr(import_module(module), attribute)
        else:
            beside = [each.rpartition(".")[2] for each in paths if each.startswith(f"{module}:{owner}.")]
            rest = {each: None for each in beside if each != attribute}
            monkeypatch.setattr(import_module(module), owner, SimpleNamespace(**rest))

    return remove


@pytest.fixture
def uninstall(monkeypatch) -> Callable[[str], None]:
    """Make a package look as if it were not installed."""

    class Absent:
        def __init__(self, package: str) -> None:
            self.package = package

        def find_spec(self, name: str, *_: object) -> None:
            if name == self.package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def remove(package: str) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "meta_path", [Absent(package), *sys.meta_path])

    return remove


@pytest.fixture(scope="session")
def one_nursery(tmp_path_factory):
    from nursery import Nursery

    running = Nursery(tmp_path_factory.mktemp("nursery") / "said")
    yield running
    running.close()


@pytest.fixture
def nursery(one_nursery):
    """Whole commands in forks of one process, with parts written often; what they say is the test's own."""
    one_nursery.said.write_text("")
    return one_nursery
