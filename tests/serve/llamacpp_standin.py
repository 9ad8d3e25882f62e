"""A server of llama.cpp's kind for tests: chunks as build 11434 sends them, a token each, with the sums so far.

As llama.cpp it draws the first token without a draft, counts a step whole when its first token is sent, and leaves out of a stream
the ids of tokens that end inside a character. As a program it takes the command line of llama-server, and needs no torch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from aiohttp import web
from standin import StandIn, Text, _send, hashed, start_child

BUILD = "b11434-515e85511"
PROMPT_MS, TOKEN_MS = 12.5, 2.0


@dataclass
class LlamaCppStandIn(StandIn):
    """`left_out`: positions of tokens whose ids a stream does not send. `slots`: as it reports them."""

    left_out: tuple[int, ...] = ()
    slots: int = 1
    most_stops: int = 10**6

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/props", self._props), web.post("/completion", self._complete)]

    async def _props(self, request: web.Request) -> web.Response:
        self._refuse_without_key(request)
        size = {} if self.context is None else {"default_generation_settings": {"n_ctx": self.context}}
        return web.json_response({"total_slots": self.slots, "model_path": self.model, "build_info": BUILD, **size})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "owned_by": "llamacpp"}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        self._refuse_without_key(request)
        body = await request.json()
        ids = self.tokenizer.encode(body["content"], add_special_tokens=body["add_special"]).ids
        return web.json_response({"tokens": ids})

    async def _answered(self, request: web.Request, body: dict[str, Any], fault: str) -> web.StreamResponse:
        if body["stream"]:
            return await super()._answered(request, body, fault)
        text = self.maker(body)
        return web.json_response(self._last(text, body, tokens=text.ids))

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        text: Text,
        body: dict[str, Any],
        fault: str,
        begin: float,
    ) -> None:
        sums, waiting = sums_of(text), []
        begins = {0, *accumulate((kept + 1 for kept in text.accepted or [0] * len(text.ids)), initial=1)}
        for count, (token, drafts) in enumerate(zip(text.ids, sums, strict=True), start=1):
            waiting.append(token)
            if count - 1 in begins:  # a step computes all its tokens at once
                await asyncio.sleep(self.step_s)
            if count - 1 in self.left_out:
                continue
            content, waiting = self._text(waiting, fault), []
            chunk = {"index": 0, "content": content, "tokens": [token], "stop": False, "id_slot": 0}
            counts = {"tokens_predicted": count, "tokens_evaluated": len(body["prompt"])}
            await _send(response, {**chunk, **counts, "timings": timings(count, drafts)})
            if fault == "twice" and count == 4:
                await _send(response, {**chunk, **counts, "timings": timings(count, drafts)})
        await _send(response, self._last(text, body, tokens=[]))
        await response.write_eof()
        self.served += 1

    def _last(self, text: Text, body: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
        count = len(text.ids)
        ended = "limit" if count >= body["max_tokens"] else "eos"
        last = {"index": 0, "content": "", "tokens": tokens, "stop": True, "stop_type": ended, "truncated": False}
        return {**last, "tokens_predicted": count, "timings": timings(count, sums_of(text)[-1])}


def sums_of(text: Text) -> list[tuple[int, int]]:
    """Drafted and accepted by each token."""
    drafted = accepted = 0
    sums = [(0, 0)]
    for kept, offered in zip(text.accepted or (), text.drafted or (), strict=True):
        drafted, accepted = drafted + offered, accepted + kept
        sums += [(drafted, accepted)] * (kept + 1)
    return [*sums, *[(drafted, accepted)] * len(text.ids)][: len(text.ids)]


def timings(count: int, drafts: tuple[int, int]) -> dict[str, Any]:
    """Without drafts so far, llama.cpp sends no counts of them."""
    times = {"cache_n": 0, "prompt_n": 7, "prompt_ms": PROMPT_MS, "predicted_n": count}
    times["predicted_ms"] = TOKEN_MS * count
    return {**times, **({"draft_n": drafts[0], "draft_n_accepted": drafts[1]} if drafts[0] else {})}


def main(words: list[str]) -> None:
    """llama-server's command line, of which only this counts."""
    if "--version" in words:
        print(
            "version: 0.6.0-dev (build 11434, commit 515e85511)\nbuilt with GNU 12.2.0 for Linux x86_64",
            file=sys.stderr,
        )
        return
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--spec-draft-n-max", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--ctx-size", type=int, default=None)
    given, rest = parser.parse_known_args(words)
    print(f"stand-in with {words}", file=sys.stderr, flush=True)
    if "--refuse-to-start" in rest:
        print("error: invalid argument: --refuse-to-start", file=sys.stderr)
        sys.exit(1)
    tokenizer = Tokenizer.from_file(os.environ["STANDIN_TOKENIZER"])
    length = int(os.environ.get("STANDIN_DRAFTS", given.spec_draft_n_max))
    maker = hashed(length, "12 + 30 = 42\n", lambda text: tokenizer.encode(text).ids)
    if child := os.environ.get("STANDIN_CHILD"):
        start_child(Path(child))
    server = LlamaCppStandIn(maker, tokenizer, given.model, given.host, given.port)
    server.slots = given.parallel
    if died := os.environ.get("STANDIN_DIES_AFTER"):
        server.faults = [""] * int(died) + ["die"]
    server.context = given.ctx_size and given.ctx_size // given.parallel
    server.api_key = os.environ.get("LLAMA_API_KEY", "").partition(",")[0] or None
    web.run_app(server.app(), host=given.host, port=given.port, print=lambda *_: None)


if __name__ == "__main__":
    main(sys.argv[1:])
