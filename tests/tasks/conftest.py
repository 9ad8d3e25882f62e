import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def python():
    """A Python that has both harnesses: this one, the one named, or that of scripts/parity."""
    if named := os.environ.get("SDBENCH_PARITY_PYTHON"):
        return named
    if all(map(find_spec, ("lm_eval", "evalplus"))):
        return sys.executable
    done = subprocess.run(["bash", str(ROOT / "scripts" / "parity")], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the extra `parity` is absent, and scripts/parity cannot make it: {done.stderr.strip()[-200:]}")
    return str(ROOT / ".venv-parity" / "bin" / "python")
