"""The tests catch what is planted: every fault of scripts/mutate, one at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # some ten seconds a fault; more beside other tests
def test_every_planted_fault_is_caught():
    ran = subprocess.run([sys.executable, ROOT / "scripts" / "mutate"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
