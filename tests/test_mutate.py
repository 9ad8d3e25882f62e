"""The tests catch what is planted: every fault of scripts/mutate, one at a time."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "mutate"
FAULTS = runpy.run_path(str(SCRIPT))["FAULTS"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_be_planted(fault):
    assert (ROOT / fault.file).read_text().count(fault.before) == 1, (
        "the line was rewritten: say where the fault is now"
    )


@pytest.mark.long
@pytest.mark.timeout(1800)  # some ten seconds a fault; more beside other tests
def test_every_planted_fault_is_caught():
    ran = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_word_that_is_in_no_name_ends_it_before_anything_is_planted():
    ran = subprocess.run([sys.executable, SCRIPT, "seed", "sead"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", "mutate: no name of a fault contains 'sead'\n")
