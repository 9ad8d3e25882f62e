"""Answers that a real llama-server sent (build 11434), read by the whole program; and the stand-in sends what it sent."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import recording
from llamacpp_standin import LlamaCppStandIn
from recording import FILE, WORDS, Exchange, Player, Recorder, fields_of, serving, words_at
from standin import hashed
from tokenizers import Tokenizer

from sdbench import embedded
from sdbench.cli import main
from sdbench.records import read

PAIR = Path(str(embedded.__file__)).parent / "llama-tiny"
EXCHANGES = recording.read()
STREAMED = [each for each in EXCHANGES if each.path == "/completion" and each.body["stream"]]
WHOLE = [each for each in EXCHANGES if each.path == "/completion" and not each.body["stream"]]


def ids_of(exchange: Exchange) -> list[int]:
    """The ids of a text: those of its stream, or where that leaves some out, of the request that was repeated."""
    if exchange.is_complete:
        return exchange.ids
    (repeated,) = [
        each for each in WHOLE if {**each.body, "stream": True} == exchange.body and each.role == exchange.role
    ]
    return json.loads(repeated.answer)["tokens"]


@pytest.mark.parametrize("temperature", recording.TEMPERATURES)
def test_texts_and_counts_are_those_that_the_server_sent(temperature, tmp_path):
    player = Player(EXCHANGES)
    with serving(player) as url:
        assert main([*WORDS, *words_at(url), f"temperature={temperature}", f"results={tmp_path}"]) == 0
    assert player.unknown == []
    (folder,) = tmp_path.iterdir()
    results = read(folder)
    generations = results.generations.set_index(["verifier", "example"])
    ids = results.tokens.merge(results.generations[["cell", "example", "sample", "verifier"]])
    texts = {(row.verifier, row.example): list(row.ids) for row in ids.itertuples()}
    names = {tuple(prompt): name for name, prompt in prompts_of(results).items()}
    texts_sent = {
        ({"pair": "lossless", "target": "target"}[each.role], names[tuple(each.body["prompt"])]): each
        for each in STREAMED  # a server's first request is a check, of which no text is kept
        if each.body["temperature"] == temperature and tuple(each.body["prompt"]) in names
    }
    assert set(texts) == set(texts_sent)
    assert len(texts) == 6
    for (verifier, example), exchange in texts_sent.items():
        last, row = exchange.events[-1], generations.loc[verifier, example]
        assert texts[verifier, example] == ids_of(exchange)
        assert row["tokens"] == last["tokens_predicted"]
        assert (row["finish"] == "length") == (last["stop_type"] == "limit")
        if verifier == "target":
            assert row["drafted"] == 0
        elif not exchange.is_complete:
            assert np.isnan(row["drafted"]), "a token that was not sent may have been a step of its own"
        else:
            assert row["drafted"] == last["timings"]["draft_n"]
            assert row["accepted"] == last["timings"]["draft_n_accepted"]
            assert row["accepted"] + row["replaced"] + row["bonus"] == row["tokens"]


def prompts_of(results) -> dict[str, list[int]]:
    tokenizer = Tokenizer.from_file(str(PAIR / "target" / "tokenizer.json"))
    return {
        str(row.example): tokenizer.encode(row.prompt, add_special_tokens=False).ids
        for row in results.examples.itertuples()
    }


def test_the_recording_has_what_is_hard_to_read():
    assert {each.role for each in STREAMED if not each.is_complete} == {"pair", "target"}
    assert {each.events[-1]["stop_type"] for each in STREAMED} == {"eos", "limit"}
    assert "/home" not in FILE.read_text()
    assert str(Path.home()) not in FILE.read_text()
    assert "/tmp" not in FILE.read_text()


def test_the_stand_in_sends_no_field_that_the_server_does_not_send(tmp_path):
    tokenizer = Tokenizer.from_file(str(PAIR / "target" / "tokenizer.json"))
    maker = hashed(3, "12 + 30 = 42 and\n", lambda text: tokenizer.encode(text).ids)
    with ExitStack() as stack:
        servers = [LlamaCppStandIn(maker, tokenizer, recording.MODEL, left_out=left_out) for left_out in ((2,), ())]
        urls = {role: stack.enter_context(server).url for role, server in zip(("pair", "target"), servers, strict=True)}
        recorder = Recorder(urls)
        url = stack.enter_context(serving(recorder))
        assert main([*WORDS, *words_at(url), "temperature=0", f"results={tmp_path}"]) == 0
    ours, theirs = (fields_of(exchanges) for exchanges in (recorder.exchanges, EXCHANGES))
    assert {each.path for each in recorder.exchanges} == {each.path for each in EXCHANGES}
    assert ours - theirs == set()
