"""Each request under way is an open file: the client's limit is raised, or refused, and is never a failure of the server."""

import os
import resource
import subprocess
import sys

import pytest

from sdbench.cli import main
from sdbench.serve.file_limit import OTHERS, allow_requests

LIMITED = """
import resource, sys
from sdbench.serve.file_limit import allow_requests
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300))
allow_requests(int(sys.argv[1]), "timing.rate")
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.fixture
def soft_limit():
    """Set the soft limit of this process so many files above those that are open; it is restored afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def set_to(more: int) -> int:
        limit = len(os.listdir("/dev/fd")) + more
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        return limit

    yield set_to
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("count", [200, 201])
def test_the_soft_limit_is_raised_to_the_hard_one_which_is_refused_if_too_low(count):
    done = subprocess.run([sys.executable, "-c", LIMITED, str(count)], capture_output=True, text=True, check=False)
    if count + OTHERS <= 300:
        assert done.stdout.split() == ["300", "300"], done.stderr
    else:
        assert done.returncode
        assert "ConfigError: timing.rate allows 201 requests at a time, but this process may open" in done.stderr
        assert "only 300 files: send fewer requests, or raise the limit (ulimit -Hn)" in done.stderr


def test_a_limit_that_suffices_stays(soft_limit):
    limit = soft_limit(500)
    allow_requests(limit - OTHERS, "batch_size")
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit


LIMITS = [
    ("batch_size=201", "batch_size allows 201 requests"),
    ("engine.concurrency=[1,201]", "engine.concurrency allows 201 requests"),
    ("timing={rate: 5, requests: 201}", "timing.rate allows 201 requests"),
]


@pytest.mark.parametrize(("word", "says"), LIMITS)
def test_each_option_with_too_many_requests_at_a_time_is_refused_before_a_text(
    word, says, served_words, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 300))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    words = [each for each in served_words(tmp_path) if each != "timing=off"]
    assert main([*words, "engine=http", "engine.url=http://127.0.0.1:9", word]) == 2
    assert f"sdbench: {says} at a time" in capsys.readouterr().err
