"""A server that is started: its command line, its health, its death, and nobody left behind. No torch."""

import os
import signal
import sys

import pytest
from processes import HERE, environment_with_vllm, gone, is_alive, noted

from sdbench.config import ConfigError
from sdbench.serve.command import flags, look, port_of, words_of
from sdbench.serve.process import Server

SERVER = """
import http.server, os, signal, subprocess, sys, time
note, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
worker = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-S", "-c", worker], start_new_session=True)
open(note, "w").write(f"{os.getpid()} {child.pid}")
print("loading", flush=True)
if how == "dies":
    sys.exit("ValueError: cannot allocate the KV cache")
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def serve(tmp_path):
    """(server, the process ids of it and of its worker), which leaves the group and ignores TERM."""
    servers = []

    def start(how: str = "", grace_s: float = 0.5) -> tuple[Server, list[int]]:
        port, note = port_of("127.0.0.1", None), tmp_path / "pids"
        words = [sys.executable, "-S", "-c", SERVER, str(note), str(port), how]
        servers.append(Server.start(words, f"http://127.0.0.1:{port}", tmp_path / "log", env={}, grace_s=grace_s))
        return servers[-1], noted(note)

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("how", ["", "deaf"])
def test_it_is_ready_when_it_is_healthy_and_closing_leaves_nobody(how, serve):
    server, pids = serve(how)
    server.wait_until_ready("/health", 120)
    assert server.started_s > 0
    assert server.death() is None
    server.close()
    assert not any(map(is_alive, pids))


def test_a_proxy_is_not_asked_about_a_server_of_this_machine(serve, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    server, _ = serve()
    server.wait_until_ready("/health", 120)


def test_another_server_on_the_port_of_one_that_died_does_not_count(serve):
    healthy, _ = serve()
    healthy.wait_until_ready("/health", 120)
    dead, _ = serve("dies")
    dead.url = healthy.url
    dead.process.wait()
    with pytest.raises(ConfigError, match="ended with code 1 before it was ready"):
        dead.wait_until_ready("/health", 120)


def test_one_that_dies_before_it_is_ready_says_its_last_lines(serve):
    server, pids = serve("dies")
    with pytest.raises(ConfigError, match="ended with code 1 before it was ready") as told:
        server.wait_until_ready("/health", 120)
    assert "loading" in str(told.value)
    assert "ValueError: cannot allocate the KV cache" in str(told.value)
    assert gone(pids)


def test_one_that_is_never_ready_is_given_up(serve):
    server, _ = serve()
    server.url = "http://127.0.0.1:9"
    with pytest.raises(ConfigError, match=r"was not ready after engine\.start_s=0\.5 seconds"):
        server.wait_until_ready("/health", 0.5)


def test_one_that_is_killed_takes_its_workers_along(serve):
    server, pids = serve()
    os.kill(pids[0], signal.SIGKILL)
    assert gone(pids)
    assert server.process.wait(30) == 128 + signal.SIGKILL
    assert "ended with code 137 (SIGKILL); its log" in str(server.death())


def test_a_server_has_ended_while_its_supervisor_still_waits_for_its_workers(serve):
    server, pids = serve(grace_s=3)
    server.wait_until_ready("/health", 120)
    assert not server.has_ended()
    os.kill(pids[0], signal.SIGKILL)
    assert gone(pids[:1])
    assert server.has_ended()
    assert server.death() is None, "the supervisor still runs"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_when_its_supervisor_goes_so_does_it(how, serve):
    server, pids = serve()
    server.process.send_signal(how)
    assert gone(pids[:1]), "the server; a worker that left its group outlives a supervisor that is killed"
    for pid in pids[1:]:
        if how == signal.SIGTERM:
            assert gone([pid])
        elif is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_when_the_harness_is_killed_nobody_is_left(tmp_path):
    import subprocess

    note, log = tmp_path / "pids", tmp_path / "log"
    code = (
        "import sys, time\nsys.path.insert(0, sys.argv[1])\nfrom pathlib import Path\n"
        "from sdbench.serve.process import Server\n"
        "words = [sys.executable, '-S', '-c', sys.argv[2], sys.argv[3], '0', 'deaf']\n"
        "Server.start(words, 'http://127.0.0.1:9', Path(sys.argv[4]), env={}, grace_s=0.5)\ntime.sleep(1000)"
    )
    root = str(HERE.parents[1])
    harness = subprocess.Popen([sys.executable, "-c", code, root, SERVER, str(note), str(log)])
    pids = noted(note)
    assert all(map(is_alive, pids))
    harness.kill()
    harness.wait()
    assert gone(pids)


def test_a_command_that_is_no_program_is_an_end_with_a_reason(tmp_path):
    server = Server.start(["/nowhere/python"], "http://127.0.0.1:9", tmp_path / "log", env={}, grace_s=0.1)
    with pytest.raises(ConfigError, match="ended with code 127"):
        server.wait_until_ready("/health", 60)
    assert "No such file" in (tmp_path / "log").read_text()
    server.close()


def test_arguments_as_flags():
    args = {
        "tensor_parallel_size": 8,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "x": None,
        "a": {"b": 1},
        "c": [1, 2],
    }
    assert flags(args) == [
        *("--tensor-parallel-size", "8", "--enforce-eager", "--no-enable-prefix-caching"),
        *("--a", '{"b": 1}', "--c", "1", "2"),
    ]


def test_the_command_line_is_the_module_its_flags_and_what_it_speculates_with():
    words = words_of("py", "a.b", {"model": "m"}, {"num_speculative_tokens": 5})
    assert words == ["py", "-m", "a.b", "--model", "m", "--speculative-config", '{"num_speculative_tokens": 5}']
    assert "--speculative-config" not in words_of("py", "a.b", {"model": "m"}, None)


def test_a_port_in_use_is_one_sentence():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot be used"):
            port_of("127.0.0.1", taken.getsockname()[1])


def test_what_an_interpreter_has_is_asked_without_importing_it(tmp_path):
    python = environment_with_vllm(tmp_path)
    assert look(str(python), "vllm")["version"] == "0.32.0"
    assert look(str(python), "vllm")["commit"] == "g1234567"
    with pytest.raises(ConfigError, match="has no vllm"):
        look(sys.executable, "vllm")
    with pytest.raises(ConfigError, match="is not a program"):
        look("/nowhere/python", "vllm")
    with pytest.raises(ConfigError, match="is not a Python"):
        look("/bin/true", "vllm")
