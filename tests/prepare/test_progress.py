"""What a run says while it runs: a bar on a terminal, plain lines elsewhere, a warning once."""

import io
import os
import pty
from contextlib import suppress
from random import Random

import pytest

from sdbench.prepare import progress
from sdbench.prepare.progress import Bar, warn
from tests.patience import is_soon


def fill(bar: Bar, *, is_reported: bool = False) -> None:
    with bar:
        for _ in range(4):
            bar.add(tokens=10, examined=5, accepted=4)
            if is_reported:
                bar.report()
                bar.report()


def test_plain_lines_say_how_far_how_fast_and_how_long():
    stream = io.StringIO()
    fill(Bar("decoding", 4, stream=stream), is_reported=True)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    for line, done in zip(lines, (1, 2, 3, 4, 4), strict=True):
        assert line.startswith(f"decoding: {done}/4 in ")
        assert "tokens/s, acceptance 0.800" in line
    assert all(line.endswith("s left") for line in lines[:4])
    assert "\x1b" not in stream.getvalue()


def test_lines_come_while_no_text_has_ended(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.01)
    monkeypatch.setattr(progress, "SILENT_S", 0.02)
    stream = io.StringIO()
    with Bar("decoding", 80, stream=stream) as bar:
        assert is_soon(lambda: len(stream.getvalue().splitlines()) > 1)
        assert "0/80" in stream.getvalue()
        bar.watch(48, 0)
        bar.watch(0, 480)
        assert is_soon(lambda: "tokens/s" in stream.getvalue())
    assert "48 under way" in stream.getvalue()
    assert "tokens/s" in stream.getvalue()
    assert "s left" not in stream.getvalue()


@pytest.mark.parametrize("spread", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("rows", [4, 16, 32])
def test_what_is_left_is_right_within_a_factor_of_two_from_the_tenth_text_on(monkeypatch, rows, spread):
    """Texts of many lengths, `rows` at once; reading a prompt takes as long as 30 rounds, and a round is a second. Single texts
    decide about the last twentieth, so that the deviation of two texts is added there.
    """
    clock, random = [0.0], Random(3)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    lengths = [max(2, round(random.gammavariate(spread**-2, 100 * spread**2))) for _ in range(400)]
    bar, under_way, waiting, seen = Bar("decoding", 400, longest=512, stream=io.StringIO()), [], list(lengths), []
    while waiting or under_way:
        while waiting and len(under_way) < rows:
            under_way.append(2 * [waiting.pop()])
            clock[0] += 30 / rows
            bar.watch(1, 0)
        clock[0] += 1
        bar.watch(0, len(under_way))
        for text in under_way:
            text[1] -= 1
        for text in [text for text in under_way if not text[1]]:
            under_way.remove(text)
            bar.add(tokens=text[0])
            seen.append((bar.remaining.done, clock[0], bar.left_s()))
    for done, now_s, left_s in seen:
        truth_s = clock[0] - now_s
        more_s = 0 if done < 380 else 2 * spread * 100
        if done in range(10, 400):
            assert truth_s / 2 - more_s <= left_s <= 2 * truth_s + more_s, (done, left_s, truth_s, clock[0])
    assert seen[-1][2] == 0


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
    monkeypatch.setattr(progress, "BAR_EVERY_S", 3600)
    estimates = []
    monkeypatch.setattr(Bar, "left_s", lambda bar: estimates.append(bar.remaining.done))
    ours, theirs = pty.openpty()
    with open(theirs, "w") as stream:
        fill(Bar("decoding", 4, stream=stream))
    message = b""
    with suppress(OSError):  # what is left, piece by piece, until the other end is seen to be closed
        while piece := os.read(ours, 100_000):
            message += piece
    os.close(ours)
    assert estimates == [1, 4], "the first and the last text are shown, and what comes between now and then"
    for fact in ("decoding", "4/4", "tokens/s", "acceptance 0.800", "\x1b["):
        assert fact in message.decode()


def test_a_warning_is_printed_once(capsys):
    for _ in range(3):
        warn("prompts were cut for this test")
    assert capsys.readouterr().err == "sdbench: warning: prompts were cut for this test\n"


def test_a_slow_pace_is_no_zero():
    bar = Bar("decoding", 4, stream=io.StringIO())
    bar.started_s -= 100
    bar.add(tokens=40)
    assert "0.4 tokens/s" in bar._line()
