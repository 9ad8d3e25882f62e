"""What is installed: all of the package, its configs and its pairs, and nothing that only a checkout has."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
MIB = 2**20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that the checkout gets no build folders."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", build, out], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return next(out.glob("*.whl"))


def tracked() -> list[str]:
    """What git holds of the package and of what builds it."""
    files = ("sdbench", "configs", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
    listed = subprocess.run(["git", "ls-files", "-z", *files], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def test_it_holds_the_package_and_its_configs_and_nothing_else(wheel):
    wanted = {f"sdbench/{name}" if name.startswith("configs/") else name for name in tracked()}
    wanted = {name for name in wanted if name.startswith("sdbench/")}
    held = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_it_carries_its_licence(wheel):
    (name,) = [name for name in ZipFile(wheel).namelist() if name.endswith("/LICENSE")]
    assert ZipFile(wheel).read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_weights_of_all_pairs_are_forty_megabytes_at_most(wheel):
    sizes = {info.filename: info.file_size for info in ZipFile(wheel).infolist()}
    weights = [size for name, size in sizes.items() if name.endswith(".safetensors")]
    heads = [
        name
        for name in sizes
        if any(f"/{kind}/" in name for kind in ("heads", "judges", "drafters", "gates"))
        and name.endswith(".safetensors")
    ]
    assert len(weights) - len(heads) == 6
    assert sum(weights) <= 40 * MIB


@pytest.mark.slow
def test_it_runs_without_the_checkout(wheel, tmp_path):
    installed, work = tmp_path / "installed", tmp_path / "work"
    ZipFile(wheel).extractall(installed)
    work.mkdir()

    def python(*words: str) -> str:
        env = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *words], cwd=work, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    assert python("-c", "import sdbench; print(sdbench.__file__)") == f"{installed}/sdbench/__init__.py\n"
    python("-m", "sdbench", "model=gemma-tiny", "task=wmt-tiny", "w=0.5", "n=2", "timing=off")
    assert (work / "results/gemma-tiny-wmt-tiny/report.html").exists()
