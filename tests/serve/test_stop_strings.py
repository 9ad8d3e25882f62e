"""A task with more stop strings than a server takes: the same texts and counts as on a server that takes them all."""

import json
import shutil

import pandas as pd
import pytest
from standin import hashed

from sdbench.cli import main
from sdbench.records import read
from sdbench.serve.rounds import steps_within
from sdbench.types import EngineError
from tests.cli.micro import END

pytestmark = pytest.mark.usefixtures("no_figures")
NAME = "micro-gsm8k-tiny"
STOPS = "task.stop=['@1','@2','@3','@4','and']"


def words_of(served_words, results, server, **options) -> list[str]:
    words = served_words(results, max_new_tokens=40, **options)
    return [*words, STOPS, "engine=http", f"engine.url={server.url}", "engine.wait_s=0.01"]


def test_acceptance_is_pooled_where_a_stop_string_ends_a_text_without_its_counts(
    served_words, standin, tmp_path, capsys
):
    """It was empty without a warning."""
    assert main([*words_of(served_words, tmp_path, standin()), "task.stop=['and']"]) == 0
    assert "reports no rounds of a text that ends at a stop string: acceptance is pooled" in capsys.readouterr().err
    results = read(tmp_path / NAME)
    assert results.generations["rounds"].isna().all()
    (summary,) = pd.read_csv(tmp_path / NAME / "summary.csv").to_dict("records")
    assert pd.isna(summary["acceptance"])
    assert 0 < summary["pooled_block_acceptance"] < 1
    assert (summary["pooled_from"], summary["pooled_texts"]) == ("server", 3)


def test_nothing_is_pooled_where_no_text_ends_at_a_stop_string(served_words, standin, tmp_path, capsys):
    assert main([*words_of(served_words, tmp_path, standin()), "task.stop=['@1']"]) == 0
    assert "reports no rounds" not in capsys.readouterr().err
    (summary,) = pd.read_csv(tmp_path / NAME / "summary.csv").to_dict("records")
    assert summary["acceptance"] > 0
    assert pd.isna(summary["pooled_block_acceptance"])


def test_the_plugin_sends_counts_of_texts_that_end_at_a_stop_string(served_words, standin, tmp_path):
    server = standin(has_plugin=True)
    assert main([*words_of(served_words, tmp_path, server), "task.stop=['and']", "engine.plugin=true"]) == 0
    assert read(tmp_path / NAME).generations["rounds"].notna().all()
    assert [len(body["stop"]) for body in server.seen] == [0, 0, 0, 1, 1, 1], "the probes draft whatever the text is"


def test_a_text_ends_where_the_server_draws_a_special_token_that_is_a_stop_string(
    served_pair, served_words, raw_tokenizer, standin, tmp_path
):
    """The checkpoint names another end of text, so that the stop string alone ends it: by its id, for no text contains it."""
    target = shutil.copytree(served_pair / "target", tmp_path / "target")
    path = target / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": 0}))
    end = raw_tokenizer.token_to_id(END)
    server = standin(hashed(3, f"12 + 30{END} = 42", lambda text: raw_tokenizer.encode(text).ids))
    server.model = str(target)
    words = [word.replace(f"{served_pair}/target", str(target)) for word in served_words(tmp_path, max_new_tokens=40)]
    words += [f"task.stop=['{END}']", "engine=http", f"engine.url={server.url}", "engine.wait_s=0.01"]
    assert main(words) == 0
    results = read(tmp_path / NAME)
    assert set(results.generations["finish"]) == {"eos"}
    assert {tuple(ids) for ids in results.tokens["ids"]} == {tuple(raw_tokenizer.encode(f"12 + 30{END}").ids)}
    assert set(results.generations["text"]) == {"12 + 30"}
    assert {tuple(body["stop_token_ids"]) for body in server.seen if body["stop"]} == {(0, end)}


@pytest.mark.slow
def test_texts_and_counts_are_those_of_a_server_that_takes_all_stop_strings(served_words, standin, tmp_path):
    limited, free = standin(), standin(most_stops=9, has_plugin=True)  # which has the counts of a text that it ends
    assert main(words_of(served_words, tmp_path / "limited", limited)) == 0
    words = ["engine.dialect.most_stops=9", "engine.plugin=true"]
    assert main([*words_of(served_words, tmp_path / "free", free), *words]) == 0
    assert {len(body["stop"]) for body in limited.seen} == {0, 4}
    assert {len(body["stop"]) for body in free.seen} == {0, 5}
    one, other = (read(tmp_path / name / NAME) for name in ("limited", "free"))
    columns = ["example", "text", "tokens", "finish", "rounds", "drafted", "examined", "accepted", "replaced", "bonus"]
    assert one.generations[columns].equals(other.generations[columns])
    assert (one.generations["finish"] == "stop").all()
    assert (one.generations["tokens"] < 40).all()
    assert one.rounds[["drafted", "examined", "accepted"]].equals(other.rounds[["drafted", "examined", "accepted"]])


def test_a_timed_request_ends_at_its_stop_string(served_words, standin, tmp_path):
    """The stand-in would go on for 40 tokens; the client closes the connection."""
    server = standin(step_s=0.001)
    words = [word for word in words_of(served_words, tmp_path, server) if word != "timing=off"]
    assert main([*words, "timing.examples=2", "timing.repeats=1", "timing.rate=200", "timing.requests=4"]) == 0
    results = read(tmp_path / NAME)
    (tokens,) = set(results.generations["tokens"])
    assert set(results.loads["tokens"]) == set(results.open_loads["tokens"]) == {tokens}
    assert (results.open_loads["failure"] == "").all()
    assert results.loads["decode_s"].gt(0).all()
    assert results.loads["server_decode_s"].isna().all(), "a server reports its times at its own end"


@pytest.mark.slow
def test_a_started_server_is_given_room_for_all_stop_strings(served_words, vllm_python, tmp_path):
    words = [f"engine.python={vllm_python}", "engine=vllm", "engine.start_s=240", "engine.grace_s=2"]
    assert main([*served_words(tmp_path), STOPS.replace("and", "@5"), *words]) == 0
    assert len(read(tmp_path / NAME).generations) == 9


def test_a_limit_that_is_no_number(served_words, standin, tmp_path, capsys):
    assert main([*words_of(served_words, tmp_path, standin()), "engine.dialect.most_stops=-1"]) == 2
    assert "engine.dialect.most_stops must be a whole number" in capsys.readouterr().err


def test_steps_beyond_the_end_are_left_out():
    assert steps_within(9, 9, [3, 1, 1], [3, 3, 3]) == ([3, 1, 1], [3, 3, 3])
    assert steps_within(6, 9, [3, 1, 1], [3, 3, 3]) == ([3, 1], [3, 3])
    assert steps_within(5, 9, [3, 1, 1], [3, 3, 3]) == ([3], [3])
    assert steps_within(1, 9, [3, 1, 1], [3, 3, 3]) == ([], [])
    assert steps_within(5, 9, [3, 1], [3, 3]) is None, "two steps without drafts lie somewhere"
    with pytest.raises(EngineError, match="its counts do not belong to this text"):
        steps_within(2, 5, [3, 3], [3, 3])
