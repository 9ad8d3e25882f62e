"""Ends inside the latency pass: a kill, Ctrl-C, SIGTERM. The visits that were written stay, and the same command makes the rest."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from nursery import is_running

from sdbench.records import read
from tests.patience import is_soon

NAME = "micro-gsm8k-tiny"


def num_parts(folder: Path) -> int:
    records = folder / "records"
    return sum(name.startswith("timings-") for name in os.listdir(records)) if records.is_dir() else 0


def wait_for_a_visit(folder: Path, before: int, pid: int) -> None:
    assert is_soon(lambda: num_parts(folder) > before or not is_running(pid), within_s=120)


def visits_of(folder: Path) -> set[tuple]:
    frame = read(folder).timings
    assert not frame.duplicated(["cell", "example", "repeat", "is_split"]).any()
    assert frame["pass_id"].nunique() == 1
    return set(frame[["cell", "example", "repeat", "is_split"]].itertuples(index=False, name=None))


@pytest.mark.parametrize(
    ("kills", "interrupts", "repeats"),
    [pytest.param(1, 2, 4, marks=pytest.mark.slow), pytest.param(20, 10, 30, marks=pytest.mark.long)],
    ids=["a few", "many"],
)
def test_whatever_ends_a_pass_the_same_command_goes_on_with_it(words, nursery, tmp_path, kills, interrupts, repeats):
    options = {"n": 3, "w": 0.3, "max_new_tokens": 8, "timing.examples": 3, "timing.repeats": repeats, "report": "off"}
    given = [word for word in words(tmp_path, **options) if word != "timing=off"]
    draw, folder = random.Random(kills), tmp_path / NAME
    ends = [signal.SIGKILL] * kills + [signal.SIGINT] * interrupts + [signal.SIGTERM] * (interrupts // 2)
    draw.shuffle(ends)
    seen: set[tuple] = set()
    num_cut = 0
    for how in ends:
        before = num_parts(folder)
        pid = nursery.start(given)
        wait_for_a_visit(folder, before, pid)
        time.sleep(draw.uniform(0, 0.02))
        is_cut = is_running(pid)
        if is_cut:
            os.kill(pid, how)
        code = nursery.ended()
        assert code == (-signal.SIGKILL if how == signal.SIGKILL else 130) or code == 0
        num_cut += code != 0
        if code == 130:
            assert "interrupted" in nursery.said.read_text()
        now = visits_of(folder)
        assert seen <= now, "a finished visit was lost"
        seen = now
    assert num_cut == len(ends), "every end hit a pass at work"
    nursery.start(given)
    assert nursery.ended() == 0, nursery.said.read_text()[-2000:]
    whole = visits_of(folder)
    cells = {cell for cell, *_ in whole}
    assert len(cells) == 4
    assert {visit for visit in whole if not visit[3]} == {
        (cell, example, repeat, False)
        for cell in cells
        for example in read(folder).generations["example"]
        for repeat in range(repeats)
    }
    assert {visit[1:3] for visit in whole if visit[3]} == {
        (example, repeats) for example in read(folder).generations["example"]
    }
    assert "Traceback" not in nursery.said.read_text()
    assert set(read(folder).calls["kind"]) >= {"draft", "verify", "target", "prefill"}
