"""One micro pair for all tests of the runner."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def micro_pair(tmp_path_factory) -> Path:
    from micro import save_pair

    return save_pair(tmp_path_factory.mktemp("micro"))
