"""A server of vLLM's kind for tests: real HTTP over a socket, answers from a pair's own engine or from a hash, faults on demand.

As vLLM it draws the first token without a draft, counts each later step whole, past the end of the text too, and sends ids.
In a test: `with StandIn(Answers(...)) as server`. As a program it takes vLLM's own command line, and needs no torch.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Text:
    """What a model answers: ids, uncut; accepted and drafted by step, or None where it does not speculate."""

    ids: list[int]
    accepted: list[int] | None = None
    drafted: list[int] | None = None
    has_stop: bool = False  # whether a stop string of the request ended it


BROKEN = {  # sent after the second step
    "ended": b"data: [DONE]\n\n",
    "bytes": b'data: {"choices": [{"text": "\xff", "token_ids": [5]}]}\n\n',
    "number": b"data: 5\n\n",
    "list": b'data: {"choices": 5}\n\n',
    "scalar": b'data: {"choices": [{"token_ids": 5}]}\n\n',
    "text": b'data: {"choices": [{"text": 5, "token_ids": [5]}]}\n\n',
    "steps": b'data: {"choices": [], "metrics": {"speculative_decoding": {"per_step_accepted": 5, "per_step_drafted": "x"}}}\n\n'
    b"data: [DONE]\n\n",
    "time": b'data: {"choices": [], "metrics": {"time_to_first_token_ms": "soon"}}\n\ndata: [DONE]\n\n',
}
Maker = Callable[[dict[str, Any]], Text]


def hashed(num_draft: int, text: str, encode: Callable[[str], list[int]]) -> Maker:
    """The same text for every prompt; of each step a hash says how much was accepted. Nothing is computed."""

    def answer(body: dict[str, Any]) -> Text:
        ids = (encode(text) * 100)[: body["max_tokens"]]
        if not num_draft:
            return Text(ids)
        digest = hashlib.sha256(json.dumps([body["prompt"], body.get("seed")]).encode()).digest()
        accepted, place = [], 0
        while 1 + sum(accepted) + len(accepted) < len(ids):
            accepted.append(digest[place % 32] % (num_draft + 1))
            place += 1
        return Text(ids, accepted, [num_draft] * len(accepted))

    return answer


def decoded(engine: Any, num_draft: int) -> Maker:
    """What the lossless rule of our own engine writes, counted as vLLM counts it."""
    from sdbench import generate
    from sdbench.verify import Exact

    lock = threading.Lock()

    def more(body: dict[str, Any], prompt: list[int], count: int, k: int) -> Any:
        options = {"temperature": body["temperature"], "seed": body.get("seed") or 0, "stop_ids": (), "measure": False}
        with lock:
            (one,) = generate(
                None, None, [prompt], [Exact()], num_draft=k, max_new_tokens=count, engine=engine, **options
            )
        return one

    def answer(body: dict[str, Any]) -> Text:
        prompt, most, stops = body["prompt"], body["max_tokens"], set(body["stop_token_ids"])
        if not num_draft:
            return Text(until(list(more(body, prompt, most, 0).tokens), stops))
        ids = list(more(body, prompt, 1, 0).tokens)
        rest = more(body, [*prompt, *ids], most + num_draft, num_draft)
        text = until([*ids, *rest.tokens], stops)[:most]
        accepted, drafted, count = [], [], 1
        for kept, offered in zip(rest.accepted, rest.drafted, strict=True):
            if count >= len(text):
                break
            accepted.append(kept)
            drafted.append(offered)
            count += kept + 1
        return Text(text, accepted, drafted)

    return answer


def until(ids: Sequence[int], stops: set[int]) -> list[int]:
    end = next((place for place, token in enumerate(ids, start=1) if token in stops), len(ids))
    return list(ids[:end])


@dataclass
class StandIn:
    """`faults`: what happens to the next completions, one each, in order. `seen`: their bodies."""

    maker: Maker
    tokenizer: Any  # of the tokenizers library
    model: str = "micro"
    host: str = "127.0.0.1"
    port: int = 0
    level: str | None = "detailed"  # of --per-request-spec-decode-metrics
    has_counters: bool = True
    has_ids: bool = True
    version: str = "0.32.0"
    has_plugin: bool = False  # sdbench's: then a made-up rule is a client's mistake, and w = 0 keeps every draft
    other_versions: dict[str, str] | None = field(
        default_factory=dict
    )  # of its rules; None: an older one, which compares none
    is_core_idle: bool = False  # only the front end has the plug-in
    most_stops: int = 4  # vLLM's VLLM_MAX_STOP_STRINGS
    context: int | None = None  # tokens of the longest text; None: it does not tell
    api_key: str | None = None
    faults: list[str] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)
    is_gone: bool = False  # a gateway answers for it, with 502 to everything
    num_refused: int = 0  # requests of any kind that are answered with 429 from now on
    step_s: float = 0.0
    served: int = 0
    under_way: int = 0
    most_under_way: int = 0
    counters: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("drafts", "draft_tokens", "accepted_tokens"), 0)
    )

    # In a test: a thread with its own loop.
    def __enter__(self) -> StandIn:
        self._loop = asyncio.new_event_loop()
        self._runner = web.AppRunner(self.app(), handler_cancellation=True, shutdown_timeout=0.5)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26, middlewares=[self._gateway])
        shared = [
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.post("/tokenize", self._tokenize),
        ]
        app.add_routes([*shared, *self.routes()])
        return app

    @web.middleware
    async def _gateway(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.num_refused:
            self.num_refused -= 1
            return web.Response(status=429)
        return web.Response(status=502, text="Bad Gateway") if self.is_gone else await handler(request)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/version", self._version),
            web.get("/metrics", self._metrics),
            web.post("/v1/completions", self._complete),
        ]

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    def _refuse_without_key(self, request: web.Request) -> None:
        if self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            raise web.HTTPUnauthorized(text='{"error": "Unauthorized"}', content_type="application/json")

    async def _models(self, request: web.Request) -> web.Response:
        self._refuse_without_key(request)
        size = {} if self.context is None else {"max_model_len": self.context}
        return web.json_response({"data": [{"id": self.model, "root": self.model, **size}]})

    async def _metrics(self, _: web.Request) -> web.Response:
        if not self.has_counters:
            raise web.HTTPNotFound
        lines = [
            f'vllm:spec_decode_num_{name}_total{{engine="0"}} {float(value)}' for name, value in self.counters.items()
        ]
        return web.Response(text="# HELP of a test\n" + "\n".join(lines))

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = self.tokenizer.encode(body["prompt"], add_special_tokens=body["add_special_tokens"]).ids
        return web.json_response({"tokens": ids, "count": len(ids)})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self._refuse_without_key(request)
        body = await request.json()
        if self.has_plugin and (message := self._plugin_refuses(body.get("vllm_xargs", {}))):
            return web.json_response({"error": {"message": message}}, status=400)
        if len(body.get("stop", ())) > self.most_stops:
            message = f"stop: List should have at most {self.most_stops} items"
            return web.json_response({"error": {"message": message}}, status=400)
        self.seen.append(body)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self._answered(request, body, self.faults.pop(0) if self.faults else "")
        finally:
            self.under_way -= 1

    def _plugin_refuses(self, extra: dict[str, str]) -> str | None:
        """What sdbench's plug-in says of a made-up rule, or of a rule of another version than its copy of sdbench has."""
        rule, version = extra.get("sdbench_rule", "sdbench.verify.Exact"), extra.get("sdbench_version")
        if not rule.startswith("sdbench.verify."):
            return f"sdbench_rule={rule!r} is no rule"
        if version is None or self.other_versions is None:
            return None
        here = self.other_versions.get(rule, version if version != "none" else "1")
        return None if here == version else f"{rule} has version {here} here and {version} in the request"

    async def _answered(self, request: web.Request, body: dict[str, Any], fault: str) -> web.StreamResponse:
        if fault in ("429", "503"):
            return web.json_response({"error": {"message": "busy"}}, status=int(fault), headers={"Retry-After": "0.2"})
        if fault == "crowded":
            self.num_refused = 3
            return web.Response(status=429)
        if fault == "latin":
            return web.Response(status=500, body="Zugriff für alle gesperrt".encode("latin-1"))
        if fault in ("400", "500"):
            return web.json_response({"error": {"message": "w must be in [0, 1]"}}, status=int(fault))
        if fault == "gone":
            self.is_gone = True
            return web.Response(status=502, text="Bad Gateway")
        if fault == "die":
            os._exit(17)
        if fault == "dying":  # as vLLM's front end, which outlives its engine core
            threading.Timer(1.0, os._exit, [17]).start()
            return web.json_response({"error": {"message": "the engine core has died"}}, status=500)
        if fault == "drop":
            assert request.transport is not None
            request.transport.close()
        if fault == "slow":
            await asyncio.sleep(0.5)
        begin = time.perf_counter()
        text = self._stopped(await asyncio.to_thread(self.maker, body), body)
        knobs = json.loads(body.get("vllm_xargs", {}).get("sdbench_knobs", "{}"))
        if self.has_plugin and not self.is_core_idle and knobs.get("w") == 0 and text.drafted:
            k = text.drafted[0]
            steps = -(-(len(text.ids) - 1) // (k + 1))
            text = Text(text.ids, [k] * steps, [k] * steps)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._stream(request, response, text, body, fault, begin)
        return response

    def _stopped(self, text: Text, body: dict[str, Any]) -> Text:
        """The text up to the token that completes a stop string of the request; the step with it is counted whole."""
        ends = (n for n in range(1, len(text.ids)) if self._has_stop(text.ids[:n], body.get("stop", ())))
        count = next(ends, None)
        if count is None:
            return text
        ids, begin, size = text.ids[:count], 1, 0
        for kept in text.accepted or ():
            if begin >= count:
                break
            begin, size = begin + kept + 1, size + 1
        return Text(ids, text.accepted and text.accepted[:size], text.drafted and text.drafted[:size], has_stop=True)

    def _has_stop(self, ids: Sequence[int], stops: Sequence[str]) -> bool:
        text = self._text(ids, "")
        return any(stop in text for stop in stops)

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        text: Text,
        body: dict[str, Any],
        fault: str,
        begin: float,
    ) -> None:
        steps = [1, *(kept + 1 for kept in text.accepted or [0] * len(text.ids))]
        ids = [10**6] * len(text.ids) if fault == "ids" else text.ids
        ids = ids[:2] if fault in ("abort", "length") else ids
        place, first_s = 0, 0.0
        for number, size in enumerate(steps):
            new = ids[place : place + size]
            if not new:
                break
            place += size
            await asyncio.sleep(self.step_s)
            first_s = first_s or time.perf_counter() - begin
            is_last = place >= len(ids)
            ended = None if not is_last else "length" if len(ids) >= body["max_tokens"] else "stop"
            ended = fault if is_last and fault in ("abort", "length") else ended
            choice = {"index": 0, "text": self._text(new, fault), "finish_reason": ended}
            await _send(response, {"choices": [choice | ({"token_ids": new} if self.has_ids else {})]})
            if number == 1 and fault in BROKEN:
                await response.write(BROKEN[fault])
                return
            if fault in ("truncate", "cut") and number == 1:
                if fault == "cut":  # in the middle of a line
                    await response.write(b'data: {"choices": [{"tok')
                assert request.transport is not None
                request.transport.close() if fault == "truncate" else await response.write_eof()
                return
        spent_s = time.perf_counter() - begin
        self._count(text)
        await _send(
            response,
            {
                "choices": [],
                "usage": {"completion_tokens": len(ids)},
                "metrics": self._metrics_of(text, first_s, spent_s),
            },
        )
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        self.served += 1

    def _text(self, ids: list[int], fault: str) -> str:
        return "?" if fault == "ids" else self.tokenizer.decode(ids, skip_special_tokens=True)

    def _count(self, text: Text) -> None:
        if text.accepted is not None and text.drafted is not None:
            for name, value in zip(
                self.counters, (len(text.accepted), sum(text.drafted), sum(text.accepted)), strict=True
            ):
                self.counters[name] += value

    def _metrics_of(self, text: Text, first_s: float, spent_s: float) -> dict[str, Any]:
        times = {
            "time_to_first_token_ms": 1000 * first_s,
            "generation_time_ms": 1000 * (spent_s - first_s),
            "queue_time_ms": 0.0,
        }
        # vLLM looks for stop strings outside its engine core, which sends counts only with texts that it ended itself.
        is_lost = text.has_stop and (not self.has_plugin or self.is_core_idle)
        if self.level is None or text.accepted is None or text.drafted is None or is_lost:
            return {**times, "speculative_decoding": None}
        sums = {"num_spec_steps": len(text.accepted), "num_draft_tokens": sum(text.drafted)}
        told = {**sums, "num_accepted_draft_tokens": sum(text.accepted)}
        if self.level == "detailed":
            told |= {"per_step_accepted": text.accepted, "per_step_drafted": text.drafted}
        return {**times, "speculative_decoding": told}


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(chunk)}\n\n".encode())


def main(words: list[str]) -> None:
    """vLLM's command line, of which only this counts."""
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--speculative-config", type=json.loads, default={})
    parser.add_argument("--per-request-spec-decode-metrics", default=None)
    parser.add_argument("--max-model-len", type=int, default=None)
    given, rest = parser.parse_known_args(words)
    if "--refuse-to-start" in rest:
        print("first line\nValueError: cannot allocate the KV cache", file=sys.stderr)
        sys.exit(3)
    print(f"stand-in with {words}", file=sys.stderr, flush=True)
    tokenizer = Tokenizer.from_file(str(Path(given.model) / "tokenizer.json"))
    maker = hashed(
        given.speculative_config.get("num_speculative_tokens", 0),
        "12 + 30 = 42\n",
        lambda text: tokenizer.encode(text).ids,
    )
    server = StandIn(maker, tokenizer, given.model, given.host, given.port, given.per_request_spec_decode_metrics)
    server.has_plugin = "sdbench" in os.environ.get("VLLM_PLUGINS", "").split(",")
    server.most_stops = int(os.environ.get("VLLM_MAX_STOP_STRINGS", "4"))
    server.context, server.api_key = given.max_model_len, os.environ.get("VLLM_API_KEY")
    server.step_s = float(os.environ.get("STANDIN_STEP_S", "0"))
    if died := os.environ.get("STANDIN_DIES_AFTER"):
        server.faults = [""] * int(died) + [os.environ.get("STANDIN_DEATH", "die")]
    if child := os.environ.get("STANDIN_CHILD"):
        start_child(Path(child))
    web.run_app(server.app(), host=given.host, port=given.port, print=lambda *_: None)


def start_child(note: Path) -> None:
    """A worker in a session of its own that ignores TERM, as an engine core that hangs."""
    import subprocess

    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    worker = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    note.write_text(f"{os.getpid()} {worker.pid}")


if __name__ == "__main__":
    main(sys.argv[1:])
