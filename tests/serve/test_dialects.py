"""The files of configs/engine read answers as the sources that they name write them. Nothing here was recorded from a server."""

import json

import pytest
import yaml

from sdbench.config import ConfigError, config_dir
from sdbench.engines.served import Http
from sdbench.serve.answer import AnswerReader, UnansweredError
from sdbench.serve.dialect import Dialect, all_of, at


def dialect_of(name: str) -> Dialect:
    return Dialect.check(yaml.safe_load((config_dir() / "engine" / f"{name}.yaml").read_text())["dialect"])


def read_all(name: str, chunks: list[dict]):
    reader = AnswerReader(dialect_of(name))
    for chunk in chunks:
        reader.take(json.dumps(chunk).encode())
    reader.take(b"[DONE]")
    return reader.answer()


def choice(ids, text="", **more):
    return {"choices": [{"index": 0, "text": text, "token_ids": ids, "finish_reason": None, **more}]}


VLLM = {
    "time_to_first_token_ms": 85.2,
    "generation_time_ms": 1240.5,
    "queue_time_ms": 12.3,
    "speculative_decoding": {
        "num_spec_steps": 2,
        "num_draft_tokens": 6,
        "num_accepted_draft_tokens": 2,
        "per_step_accepted": [2, 0],
        "per_step_drafted": [3, 3],
    },
}


def test_vllm_tells_steps_and_times_in_the_last_chunk():
    usage = {"choices": [], "usage": {"completion_tokens": 5}, "metrics": VLLM}
    answer = read_all(
        "http", [choice([1], prompt_token_ids=[9]), choice([2, 3, 4]), choice([5], finish_reason="stop"), usage]
    )
    assert answer.ids == (1, 2, 3, 4, 5)
    assert answer.steps == {"accepted": [2, 0], "drafted": [3, 3]}
    assert answer.totals == {"steps": 2, "drafted": 6, "accepted": 2}
    assert answer.server_s == pytest.approx({"first_token": 0.0852, "decode": 1.2405, "queue": 0.0123})
    assert answer.is_stopped


def test_vllm_without_the_flag_tells_neither():
    answer = read_all("http", [choice([1]), {"choices": [], "usage": {"completion_tokens": 1}, "metrics": None}])
    assert (answer.steps, answer.totals) == (None, None)
    assert all(value != value for value in answer.server_s.values())


def test_sglang_tells_sums_where_it_sends_them():
    info = {"spec_verify_ct": 4, "spec_draft_token_num": 12, "spec_accept_token_num": 7, "completion_tokens": 3}
    answer = read_all("sglang", [choice([1]), choice([2, 3], meta_info=info)])
    assert (answer.steps, answer.totals) == (None, {"steps": 4, "drafted": 12, "accepted": 7})
    assert read_all("sglang", [choice([1])]).totals is None


def test_tensorrt_llm_tells_a_mean_from_which_steps_follow():
    answer = read_all("tensorrt-llm", [choice([1, 2, 3]), choice([4, 5, 6], avg_decoded_tokens_per_iter=2.0)])
    assert answer.totals is not None
    assert (answer.totals["steps"], answer.totals["accepted"]) == (3, 3)
    assert answer.totals["drafted"] != answer.totals["drafted"]


def test_an_answer_that_counts_other_tokens_than_it_sent_is_none():
    with pytest.raises(UnansweredError, match="reports 3 tokens but sent 2"):
        read_all("http", [choice([1, 2]), {"choices": [], "usage": {"completion_tokens": 3}}])


def test_paths_lead_through_mappings_and_lists():
    tree = {"a": [{"b": 0}]}
    assert at(tree, "a.0.b") == 0
    assert at(tree, "a.1.b") is None
    assert at(tree, None) is None
    assert all_of(tree, {"x": "a.0.b", "y": None}, ("x", "y")) is None


def test_a_name_that_no_dialect_has_is_one_sentence():
    with pytest.raises(ConfigError, match="did you mean accepted"):
        Dialect.check({"steps": {"acepted": "x"}})
    with pytest.raises(ConfigError, match=r"engine\.dialect\.idz is not an option"):
        Dialect.check({"idz": "x"})


@pytest.mark.parametrize(
    ("dialect", "fields", "may_cache"),
    [
        ("http", {}, False),
        ("http", {"cache_salt": "mine"}, True),
        ("sglang", {}, True),
        ("tensorrt-llm", {}, True),
        ("llamacpp", {}, False),
        ("llamacpp", {"cache_prompt": True}, True),
    ],
)
def test_whether_a_timed_prompt_may_be_cached_is_known_of_every_server(dialect, fields, may_cache):
    assert Http(url="http://h:1", dialect=dialect, request=fields).may_cache_prompts is may_cache
