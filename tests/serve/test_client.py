"""One server, asked over a socket: what an answer holds, which faults are survived, how many requests are under way. No torch."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from standin import BROKEN, StandIn, hashed
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from sdbench.config import config_dir
from sdbench.serve.answer import Answer, UnansweredError
from sdbench.serve.client import Client, Patience, _events, _seconds
from sdbench.serve.dialect import Dialect, counters_of
from sdbench.serve.pump import Pump
from sdbench.types import EngineError


def dialect_of(name: str) -> Dialect:
    import yaml

    return Dialect.check(yaml.safe_load((config_dir() / "engine" / f"{name}.yaml").read_text())["dialect"])


@pytest.fixture(scope="module")
def byte_pieces() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture
def started(byte_pieces):
    """(server, client, pump), the client as engine=http makes it, with short waits."""
    opened = []

    def start(num_draft: int = 3, *, retries: int = 4, **options: object) -> tuple[StandIn, Client, Pump]:
        maker = hashed(num_draft, "12 + 30 = 42 and\n", lambda text: byte_pieces.encode(text).ids)
        server = StandIn(maker, byte_pieces, **options).__enter__()  # type: ignore[arg-type]
        pump, client = Pump(), Client(server.url, dialect_of("http"), Patience(retries, 0.01, 5))
        pump.run(client.open())
        opened.append((server, client, pump))
        return opened[-1]

    yield start
    for server, client, pump in opened:
        pump.run(client.close())
        pump.close()
        server.__exit__()


BODY = {"model": "micro", "prompt": [1, 2, 3], "max_tokens": 20, "stop_token_ids": [], "seed": 1}


def ask(pump: Pump, client: Client, **more: object) -> Answer:
    return pump.run(client.complete({**BODY, **more}))


def test_an_answer_has_ids_steps_times_and_its_own_text(started, byte_pieces):
    server, client, pump = started(step_s=0.002)
    answer = ask(pump, client)
    assert len(answer.ids) == 20
    assert answer.text == byte_pieces.decode(list(answer.ids))
    assert answer.steps is not None
    assert len(answer.steps["accepted"]) == len(answer.steps["drafted"])
    assert answer.totals == {
        "steps": len(answer.steps["accepted"]),
        "drafted": sum(answer.steps["drafted"]),
        "accepted": sum(answer.steps["accepted"]),
    }
    assert next(count for _, count in answer.chunks) == 1
    assert sum(count for _, count in answer.chunks) == 20
    assert answer.first_token_s > 0
    assert answer.decode_s > 0
    assert answer.server_s["decode"] > 0
    assert (answer.num_asked, answer.is_stopped) == (1, False)
    assert server.seen == [BODY]


@pytest.mark.parametrize("fault", ["drop", "429", "503", "truncate", "cut", "abort", "slow", *BROKEN])
def test_a_fault_is_survived_and_the_answer_is_the_undisturbed_one(fault, started):
    server, client, pump = started()
    usual = ask(pump, client)
    server.faults = [fault]
    answer = ask(pump, client)
    assert (answer.ids, answer.text, answer.steps) == (usual.ids, usual.text, usual.steps)
    assert answer.num_asked == (1 if fault == "slow" else 2)


def test_a_text_that_the_server_cuts_at_a_limit_of_its_own_is_refused_in_one_sentence(started):
    server, client, pump = started()
    server.faults = ["length"]
    with pytest.raises(
        EngineError, match="a limit lower than max_new_tokens: it ended an answer at 2 of 20 tokens"
    ) as told:
        ask(pump, client)
    assert "\n" not in str(told.value)
    assert len(server.seen) == 1, "it would cut the same text again"
    assert len(ask(pump, client, max_tokens=2).ids) == 2


def test_an_error_page_in_another_encoding_is_read(started):
    server, client, pump = started()
    server.faults = ["latin"]
    with pytest.raises(EngineError, match="with HTTP 500: Zugriff f\ufffdr alle gesperrt"):
        ask(pump, client)


def test_a_header_may_be_a_number(started):
    server, _, pump = started()
    client = Client(server.url, dialect_of("http"), headers={"X-Tenant": 7, "X-Left-Out": None})
    pump.run(client.open())
    try:
        assert pump.run(client.get("/version")) == {"version": server.version}
        assert client._session is not None
        assert dict(client._session.headers) == {"X-Tenant": "7"}
    finally:
        pump.run(client.close())


def test_a_wait_is_as_long_as_the_server_asks(started):
    server, client, pump = started()
    server.faults = ["429", "503"]
    begin = time.monotonic()
    assert ask(pump, client).num_asked == 3
    assert time.monotonic() - begin >= 0.4


def test_only_a_server_makes_a_wait_longer_than_a_minute(started):
    _, client, _ = started()
    client.patience = Patience(wait_s=50)
    assert 25 <= client._wait_s(0, None) <= 50
    assert client._wait_s(9, None) == client._wait_s(9, 30) == 60
    with pytest.warns(UserWarning, match=r"asks for a wait of 3600 s \(Retry-After\)"):
        assert client._wait_s(0, 3600) == 3600
    assert client._wait_s(0, 3599) == 3599, "one warning a server is enough"
    headers = {"3600": 3600, "-1": 0, "inf": None, "Wed, 21 Oct 2026 07:28:00 GMT": None, None: None}
    assert {header: _seconds(header) for header in headers} == headers


def test_after_so_many_times_it_is_one_sentence(started):
    server, client, pump = started(retries=2)
    server.faults = ["drop"] * 3
    with pytest.raises(EngineError, match=r"did not answer a request in 3 tries; the last failure: ") as told:
        ask(pump, client)
    assert "\n" not in str(told.value)
    assert len(server.seen) == 3


@pytest.mark.parametrize("fault", ["400", "500"])
def test_a_refusal_is_not_asked_again(fault, started):
    server, client, pump = started()
    server.faults = [fault]
    with pytest.raises(EngineError, match=f"HTTP {fault}: w must be in"):
        ask(pump, client)
    assert len(server.seen) == 1


def test_a_silent_server_is_not_waited_for_for_ever(started):
    server, client, pump = started(retries=0)
    server.faults = ["slow"]
    client.patience = Patience(0, 0.01, 0.1)
    pump.run(client.close())
    pump.run(client.open())
    with pytest.raises(EngineError, match="did not answer a request in 1 try;"):
        ask(pump, client)


def test_servers_with_and_without_ids_are_distinguished(started):
    _, client, pump = started(has_ids=False)
    with pytest.raises(EngineError, match="sends no token ids"):
        ask(pump, client)


def test_a_prompt_may_be_longer_than_any_buffer(started):
    server, client, pump = started()
    assert len(ask(pump, client, prompt=list(range(50_000)), max_tokens=3000).ids) == 1700
    assert len(server.seen[0]["prompt"]) == 50_000


def test_a_last_event_without_a_newline_is_read():
    class Content:
        async def iter_any(self) -> AsyncIterator[bytes]:
            for piece in (b'data: {"a": 1}\n\ndata: [DO', b"NE]"):
                yield piece

    async def read_all() -> list[bytes]:
        return [event async for event in _events(Content())]  # type: ignore[arg-type]

    assert asyncio.run(read_all()) == [b'{"a": 1}', b"[DONE]"]


def test_so_many_are_under_way_and_each_user_asks_again_when_answered(started):
    server, client, pump = started(step_s=0.002)
    asks = [{**BODY, "seed": number, "max_tokens": 1 + number % 7} for number in range(20)]
    answers = list(pump.each(asks, client.complete, 4))
    assert server.most_under_way == 4
    assert sorted(one["seed"] for one, _ in answers) == list(range(20))
    assert all(len(answer.ids) == one["max_tokens"] for one, answer in answers)


def test_an_error_ends_the_others_and_what_was_answered_stays(started):
    server, client, pump = started(step_s=0.001)
    server.faults = ["", "", "500"]
    answers = pump.each([{**BODY, "seed": n} for n in range(50)], client.complete, 1)
    assert [next(answers)[0]["seed"] for _ in range(2)] == [0, 1]
    with pytest.raises(EngineError, match="HTTP 500"):
        next(answers)
    assert len(server.seen) < 6


def test_a_caller_that_stops_gives_the_rest_up(started):
    server, client, pump = started(step_s=0.001)
    answers = pump.each([{**BODY, "seed": n} for n in range(50)], client.complete, 2)
    next(answers)
    answers.close()
    time.sleep(0.2)
    seen = len(server.seen)
    time.sleep(0.2)
    assert len(server.seen) == seen < 50


def test_counters_before_and_after_are_what_was_asked_in_between(started):
    _, client, pump = started()
    before = pump.run(client.counters())
    answers = [ask(pump, client, seed=seed) for seed in range(3)]
    after = pump.run(client.counters())
    for name in ("steps", "drafted", "accepted"):
        assert after[name] - before[name] == sum(answer.totals[name] for answer in answers)


def test_counters_are_summed_over_labels_and_half_of_them_is_none():
    names = {"steps": "a_total", "drafted": "b_total", "accepted": "c_total"}
    text = '# HELP a_total x\na_total{e="0"} 2.0\na_total{e="1"} 3\nb_total 10\nc_total{e="0",f="x y"} 4.0 1700000\n'
    assert counters_of(text, names) == {"steps": 5, "drafted": 10, "accepted": 4}
    assert counters_of(text.replace("c_total", "d_total"), names) is None


def test_a_server_that_is_not_there_is_an_unanswered_page(started):
    _, client, pump = started()
    nobody = Client("http://127.0.0.1:9", client.dialect)
    pump.run(nobody.open())
    with pytest.raises(UnansweredError):
        pump.run(nobody.get("/version"))
    pump.run(nobody.close())
    assert pump.run(client.get("/nothing")) is None
