"""Bad input of a server's engine: one sentence each, exit code 2, before any decoding."""

import re
import socket
from pathlib import Path

import pytest
from processes import free_port
from standin import Text

from sdbench.cli import main

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def refused(served_words, tmp_path, capsys):
    """The sentence of a command that must end before a text is decoded."""

    def run(*more: str, **options: object) -> str:
        capsys.readouterr()
        assert main([*served_words(tmp_path / "results", **options), *more]) == 2
        message = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sdbench: ")]
        sentences = [line for line in message if "left out" not in line and " examples, to " not in line]
        assert len(sentences) == 1, message
        assert not list((tmp_path / "results").rglob("generations-*"))
        return sentences[0]

    return run


def test_no_server_at_the_url(refused):
    assert "no server answers at http://127.0.0.1:" in refused(
        "engine=http", f"engine.url=http://127.0.0.1:{free_port()}"
    )


def test_another_model_than_the_one_named(refused, standin):
    server = standin()
    server.model = "org/other"
    assert "serves org/other, and this run asks for" in refused("engine=http", f"engine.url={server.url}")
    message = refused("engine=http", f"engine.url={server.url}", "engine.model=org/third")
    assert "engine.model=org/third is not served at" in message


def test_a_tokenizer_of_other_ids(refused, standin, raw_tokenizer):
    class Shifted:
        def encode(self, text, **options):
            ids = [index + 1 for index in raw_tokenizer.encode(text, **options).ids]
            return type("Encoding", (), {"ids": ids})

        decode = raw_tokenizer.decode

    server = standin()
    server.tokenizer = Shifted()
    assert "has other ids than that of" in refused("engine=http", f"engine.url={server.url}")


def test_ids_that_are_another_text_here(refused, standin, raw_tokenizer):
    class Otherwise:
        encode = raw_tokenizer.encode

        def decode(self, ids, **options):
            return "x" * len(ids)

    server = standin()
    server.tokenizer = Otherwise()
    assert "has other ids than that of" in refused("engine=http", f"engine.url={server.url}")


def test_a_version_without_token_ids_and_one_without_the_flag(refused, standin):
    server = standin(has_ids=False)
    assert "sends no token ids" in refused("engine=http", f"engine.url={server.url}")
    server = standin(level=None, has_counters=False)
    message = refused("engine=http", f"engine.url={server.url}")
    assert "(version 0.32.0) counts no drafts" in message
    assert "--per-request-spec-decode-metrics detailed" in message


@pytest.mark.parametrize("num_draft", [3, 7])
def test_a_server_that_drafts_more_or_less_than_num_draft(refused, standin, num_draft):
    server = standin(lambda body: Text([5] * 8, [3, 2], [5, 5]))
    message = refused("engine=http", f"engine.url={server.url}", num_draft=num_draft)
    assert "drafts 5 tokens a step: write num_draft=5" in message
    assert f"num_speculative_tokens={num_draft}" in message


def test_a_probe_leaves_room_for_a_whole_block(refused, standin):
    """A server that drafts no further than the request's end is not taken for one that drafts less."""
    server = standin(lambda body: Text([5] * 2, [0], [min(9, body["max_tokens"] - 2)]))
    assert "drafts 9 tokens a step" in refused("engine=http", f"engine.url={server.url}", num_draft=12)


def test_a_server_whose_context_is_too_short_for_an_answer(served_words, standin, tmp_path, capsys):
    """It would cut the answer there, and report it as one that reached max_new_tokens."""
    server = standin(context=40)
    words = [*served_words(tmp_path, n=1, report="off"), "engine=http", f"engine.url={server.url}"]
    assert main(words) == 2
    text = r"takes texts of 40 tokens, and this run needs (\d+) for its longest prompt and max_new_tokens=24: start it with"
    match = re.search(text, capsys.readouterr().err)
    assert match is not None
    server.context = int(match[1]) - 1
    assert main(words) == 2
    assert f"start it with at least {match[1]} (max_model_len), or lower max_new_tokens" in capsys.readouterr().err
    server.context = int(match[1])
    assert main(words) == 0


def test_a_server_that_wants_a_key(refused, standin):
    server = standin(api_key="sesame")
    words = ["engine=http", f"engine.url={server.url}"]
    sentence = 'wants a key: engine.headers.Authorization=\'Bearer KEY\' (HTTP 401: {"error": "Unauthorized"})'
    assert f"the server at {server.url} {sentence}" in refused(*words)
    message = refused(*words, "engine.headers.Authorization=Bearer barley")
    assert "does not accept this key" in message
    assert "barley" not in message


def test_a_plugin_in_the_front_end_only(refused, standin):
    """The core verifies by its own sampler: without this probe, lossless texts would be recorded under lenient names."""
    server = standin(has_plugin=True, is_core_idle=True)
    options = {"verifier": "ensemble", "w": "[0.5]", "verifier.greedy": "mixture"}
    message = refused("engine=http", f"engine.url={server.url}", "engine.plugin=true", **options)
    assert "rejects drafts at w = 0" in message


@pytest.mark.parametrize("name", ["Exact", "Ensemble"])
def test_a_plugin_with_another_version_of_a_rule(refused, standin, name):
    """It would verify by another formula than the keys of the cells say. Any rule of the run counts, lossless too."""
    server = standin(has_plugin=True, other_versions={f"sdbench.verify.{name}": "0"})
    options = {"verifier": "ensemble", "w": "[0.5]", "verifier.greedy": "mixture"}
    message = refused("engine=http", f"engine.url={server.url}", "engine.plugin=true", **options)
    assert f"HTTP 400: sdbench.verify.{name} has version 0 here and 1 in the request" in message


def test_a_port_in_use(refused, tmp_path):
    import sys

    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "print(\'{{\\"there\\": true}}\')"\n')
    fake.chmod(0o755)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refused("engine=vllm", f"engine.python={fake}", f"engine.port={port}")
    assert f"engine.port={port} of 127.0.0.1 cannot be used" in message


def test_an_interpreter_without_vllm_and_none(refused):
    import sys

    assert "has no vllm" in refused("engine=vllm", f"engine.python={sys.executable}")
    assert "engine.python names no interpreter" in refused("engine=vllm")
    assert "is not a program: name the interpreter" in refused("engine=vllm", "engine.python=/no/such/python")
    assert "is not a Python that can list its packages" in refused("engine=vllm", "engine.python=/bin/false")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (
            "engine.env.VLLM_USE_V2_MODEL_RUNNER=0",
            "and engine.env.VLLM_USE_V2_MODEL_RUNNER=0 switches it off; remove it",
        ),
        ("engine.speculative.method=medusa", "which does not draft with engine.speculative.method=medusa"),
    ],
)
def test_block_verification_without_the_runner_that_has_it(word, says, refused, vllm_python):
    message = refused("engine=vllm", f"engine.python={vllm_python}", word, verifier="block")
    assert "verifier=block needs vLLM's V2 model runner" in message
    assert says in message


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (
            "engine.args.port=8000",
            "sdbench sets engine.args.port itself, from model=, num_draft= and engine.port; remove it",
        ),
        ("engine.args.speculative_config=x", "sdbench sets engine.args.speculative_config itself"),
        ("engine.args.api_key=sesame", "set VLLM_API_KEY in the shell"),
        ("+engine.args.api-key=sesame", "set VLLM_API_KEY in the shell"),
        ("engine.args.hf_token=sesame", "set HF_TOKEN in the shell"),
        ("engine.request.tensor_parallel_size=8", "engine.args.tensor_parallel_size=VALUE starts one with it"),
        ("engine.at_once=0", "engine.at_once"),
        ("engine.host=5", "engine.host must be a text, got 5"),
        ("engine.host=null", "engine.host must be a text"),
        ("engine.health=null", "engine.health must be a text"),
        ("engine.health=health", "engine.health must begin with /"),
        ("verifier.depth=3", "depth"),
    ],
)
def test_options_that_a_started_server_cannot_take_are_refused(word, says, refused, vllm_python):
    assert says in refused("engine=vllm", f"engine.python={vllm_python}", word)


def test_a_key_with_a_line_break_is_refused_and_not_shown(refused, vllm_python, monkeypatch):
    """As from a file with line ends of another system. Every server was started, and each cell failed."""
    monkeypatch.setenv("VLLM_API_KEY", "sesame\r")
    message = refused("engine=vllm", f"engine.python={vllm_python}")
    assert "VLLM_API_KEY has a control character, such as a line break: remove it" in message
    assert "sesame" not in message


def test_one_port_is_not_enough_for_two_servers(refused, vllm_python):
    words = [f"engine.python={vllm_python}", f"engine.port={free_port()}", "engine.at_once=2"]
    assert "is one port, and engine.at_once=2 needs several" in refused("engine=vllm", *words)


URL = "engine.url=http://127.0.0.1:9"
SLIPS = [
    (("verifier=ensemble", "w=0.5"), "verifier=ensemble is not a rule that this server has"),
    (("verifier=block", "engine.plugin=true"), "judges a block as a whole"),
    (("verifier=fly", "verifier.entropy=0.3", "verifier.window=2", "engine.plugin=true"), "judges a block as a whole"),
    (("num_draft=[3,5]",), "engine.url is one server with one rule at one draft length, and this run needs 2"),
    (
        ("engine.request.num_speculative_tokens=3",),
        "engine.request.num_speculative_tokens is set when a server starts",
    ),
    (("engine.request.temperature=1",), "sdbench sets engine.request.temperature itself"),
    (("engine.request.stream_options={}",), "sdbench sets engine.request.stream_options itself"),
    (
        ("verifier=ensemble", "w=0.5", "engine.plugin=true", "engine.request.vllm_xargs={a: 1}"),
        "sdbench sets engine.request.vllm_xargs itself",
    ),
    (("engine.args.tensor_parallel_size=8",), "engine.args is not an option"),
    (("dtype=float64",), "dtype=float64 is an option of engine=native"),
    (("model.quantization=bnb-int8",), "model.quantization is an option of engine=native"),
    (("model.packed=true",), "model.packed is an option of engine=native"),
    (("engine.wait_s=61",), "engine.wait_s must be a number between 0 and 60"),
    (("engine.concurrency=0",), "engine.concurrency must be a whole number"),
    (("engine.concurrency=[]",), "engine.concurrency must not be an empty list"),
    (("engine.headers.X-User='a\r'",), "engine.headers.X-User has a control character"),
]


@pytest.mark.parametrize(("words", "says"), SLIPS, ids=lambda value: str(value)[:40])
def test_options_that_no_server_can_take_are_refused(words, says, refused):
    options = dict(word.split("=", 1) for word in words)
    assert says in refused("engine=http", URL, **options)


def test_an_address_is_needed_and_one_with_a_scheme(refused):
    assert "engine.url is missing" in refused("engine=http")
    assert "must begin with http:// or https://" in refused("engine=http", "engine.url=localhost:8000")
    message = refused("engine=http", "engine.urls.target=http://ann:sesame@node:8000")
    assert "engine.urls.target has a user's name or password" in message
    assert "sesame" not in message
    assert "is an option of engine=http" in refused("engine=vllm", URL)


def test_what_the_plugin_refuses_ends_before_a_text(refused, standin):
    server = standin()
    server.faults = ["400"]
    assert "HTTP 400: w must be in [0, 1]" in refused("engine=http", f"engine.url={server.url}")


def test_a_server_that_takes_any_rule_has_no_plugin(refused, standin):
    words = ["engine=http", f"engine.url={standin().url}", "engine.plugin=true"]
    message = refused(*words, verifier="ensemble", w=0.5, **{"verifier.greedy": "mixture"})
    assert "accepts a made-up rule, so sdbench's plug-in is missing" in message


def test_results_of_a_refused_run_hold_no_text(refused, tmp_path):
    refused("engine=http", f"engine.url=http://127.0.0.1:{free_port()}")
    assert not list(Path(tmp_path).rglob("tokens-*"))


TRACES = [
    ("", "has no arrival times: give at least two different times in seconds"),
    ("3\n3\n", "has 1 arrival time: give at least two"),
    ("0\n2\n1.5\n", "must ascend, and line 3 is 1.5 after 2"),
    ("0\nsoon\n", "line 2 of timing.trace="),
    ('{"timestamp": 3}\n', "is not an arrival time"),
]


@pytest.mark.parametrize(("text", "says"), TRACES)
def test_a_file_that_is_no_trace(text, says, refused, tmp_path):
    (tmp_path / "trace").write_text(text)
    assert says in refused("engine=http", URL, timing=f"{{trace: '{tmp_path}/trace'}}")


def test_a_trace_that_is_missing_and_a_rate_of_an_engine_that_serves_nobody(refused, tmp_path):
    message = refused("engine=http", URL, timing=f"{{trace: '{tmp_path}/none'}}")
    assert "/none cannot be read: No such file" in message
    message = refused(timing="{rate: 1}")
    assert "timing.rate sends requests to a server as they arrive, which engine=native does not do" in message
    assert "use engine=http engine.url=URL, engine=vllm or engine=llamacpp" in message
