"""What a run says while it runs: a bar on a terminal, plain lines elsewhere, a warning once."""

import io
import os
import pty
from contextlib import suppress

import pytest

from sdbench.prepare import progress
from sdbench.prepare.progress import Bar, warn


def fill(bar: Bar) -> None:
    with bar:
        for _ in range(4):
            bar.add(tokens=10, examined=5, accepted=4)


def test_plain_lines_say_how_far_how_fast_and_how_long(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", -1.0)
    stream = io.StringIO()
    fill(Bar("decoding", 4, stream=stream))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    for line, done in zip(lines, (1, 2, 3, 4, 4), strict=True):
        assert line.startswith(f"decoding: {done}/4 in ")
        assert "tokens/s, acceptance 0.800" in line
    assert all(line.endswith("s left") for line in lines[:4])
    assert "\x1b" not in stream.getvalue()


def test_a_pipe_is_not_flooded():
    stream = io.StringIO()
    fill(Bar("decoding", 4, stream=stream))
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("total", [0, 4])
def test_nothing_to_do_says_nothing(total):
    stream = io.StringIO()
    with Bar("decoding", total, stream=stream):
        pass
    assert bool(stream.getvalue()) == bool(total)


def test_a_terminal_has_a_bar_with_the_same_facts(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with open(theirs, "w") as stream:
        fill(Bar("decoding", 4, stream=stream))
    said = b""
    with suppress(OSError):  # what is left, piece by piece, until the other end is seen to be closed
        while piece := os.read(ours, 100_000):
            said += piece
    os.close(ours)
    for fact in ("decoding", "4/4", "tokens/s", "acceptance 0.800", "\x1b["):
        assert fact in said.decode()


def test_a_warning_is_said_once(capsys):
    for _ in range(3):
        warn("prompts were cut for this test")
    assert capsys.readouterr().err == "sdbench: warning: prompts were cut for this test\n"


def test_a_slow_pace_is_no_zero():
    bar = Bar("decoding", 4, stream=io.StringIO())
    bar.started_s -= 100
    bar.add(tokens=40)
    assert "0.4 tokens/s" in bar._line()
