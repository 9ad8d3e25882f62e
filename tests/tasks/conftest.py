import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def real_data() -> Path:
    """The folder of real rows that SDBENCH_REAL_DATA names; the project ships none of them."""
    folder = os.environ.get("SDBENCH_REAL_DATA")
    if not folder:
        pytest.skip("SDBENCH_REAL_DATA names no folder with rows of the real data sets")
    return Path(folder)
