"""Record what a real llama-server sends, and play it back.

    python tests/serve/recording.py LLAMA_SERVER     # writes tests/serve/data/llamacpp.jsonl

starts a server with the embedded llama pair as GGUF files and a second one with its target alone, and runs sdbench against them
through a proxy. Each exchange is a line. `Player` answers the same requests with the recorded bytes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

FILE = Path(__file__).with_name("data") / "llamacpp.jsonl"
MODEL = "llama-tiny"
WORDS = ["model=llama-tiny", "task=gsm8k-tiny", "verifier=exact", "num_draft=3", "n=3", "max_new_tokens=48"]
WORDS += ["timing=off", "report=off", "batch_size=1", f"engine.model={MODEL}"]
TEMPERATURES = (0, 2.5)  # at the second, tokens end inside characters, and the stream leaves out their ids


@dataclass(frozen=True)
class Exchange:
    """A request to one of the servers (`role`: pair or target) and its answer."""

    role: str
    method: str
    path: str
    body: Any
    status: int
    kind: str  # the answer's content type
    answer: str

    @property
    def key(self) -> str:
        """What identifies a request; a run's seeds are not part of it."""
        body = {name: value for name, value in self.body.items() if name != "seed"} if self.body else None
        return json.dumps([self.role, self.method, self.path, body], sort_keys=True)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The chunks of a stream."""
        return [json.loads(line[5:]) for line in self.answer.splitlines() if line.startswith("data:")]

    @property
    def ids(self) -> list[int]:
        """The ids that a stream sends."""
        return [token for event in self.events for token in event["tokens"]]

    @property
    def is_complete(self) -> bool:
        """Whether the stream has the id of every token that it counts."""
        return len(self.ids) == self.events[-1]["tokens_predicted"]


def read() -> list[Exchange]:
    return [Exchange(**json.loads(line)) for line in FILE.read_text().splitlines()]


def fields_of(exchanges: list[Exchange]) -> set[str]:
    """The dotted names of all fields of the answers, behind the path and whether it was a stream."""
    names = set[str]()
    for each in exchanges:
        is_stream = each.kind == "text/event-stream"
        for tree in each.events if is_stream else [json.loads(each.answer)]:
            names |= {f"{each.path} {is_stream} {name}" for name in dotted(tree)}
    return names


def dotted(tree: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield f"{prefix}{name}"
            yield from dotted(value, f"{prefix}{name}.")
    if isinstance(tree, list):
        for value in tree:
            yield from dotted(value, f"{prefix}0.")


@contextmanager
def serving(handler: Any) -> Iterator[str]:
    """A server in a thread whose every request goes to `handler`; its address."""
    app, loop = web.Application(client_max_size=2**26), asyncio.new_event_loop()
    app.router.add_route("*", "/{role}/{path:.*}", handler)
    runner = web.AppRunner(app)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def words_at(url: str) -> list[str]:
    """The engine's words for both servers behind one address."""
    return ["engine=http", "engine.dialect=llamacpp", f"engine.url={url}/pair", f"engine.urls.target={url}/target"]


class Recorder:
    """A proxy that keeps every exchange."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.urls, self.exchanges = urls, list[Exchange]()

    async def __call__(self, request: web.Request) -> web.Response:
        role, path = request.match_info["role"], "/" + request.match_info["path"]
        sent = await request.read()
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, self.urls[role] + path, data=sent, headers={"Content-Type": "application/json"}
            ) as answer,
        ):
            text = await answer.text()
            body = json.loads(sent) if sent else None
            self.exchanges.append(Exchange(role, request.method, path, body, answer.status, answer.content_type, text))
            return web.Response(text=text, status=answer.status, content_type=answer.content_type)


class Player:
    """Recorded answers, in their order where a request was sent several times; the last one again after that."""

    def __init__(self, exchanges: list[Exchange]) -> None:
        self.answers: dict[str, list[Exchange]] = {}
        self.unknown: list[str] = []
        for exchange in exchanges:
            self.answers.setdefault(exchange.key, []).append(exchange)

    async def __call__(self, request: web.Request) -> web.Response:
        sent = await request.read()
        body = json.loads(sent) if sent else None
        path = "/" + request.match_info["path"]
        key = Exchange(request.match_info["role"], request.method, path, body, 0, "", "").key
        if key not in self.answers:
            self.unknown.append(key)
            return web.Response(status=404)
        answers = self.answers[key]
        exchange = answers.pop(0) if len(answers) > 1 else answers[0]
        return web.Response(text=exchange.answer, status=exchange.status, content_type=exchange.kind)


def record(binary: str, folder: Path) -> list[Exchange]:
    """Start the servers, run sdbench against them, and return what was exchanged, without paths of this machine."""
    from tests.serve.gguf_pair import pair_files
    from tests.serve.test_real_llamacpp import free_port, wait_until_healthy

    files = pair_files(folder)
    drafting = ["--model-draft", str(files["draft"]), "--spec-type", "draft-simple", "--spec-draft-n-max", "3"]
    drafting += ["--spec-draft-sampling", "probabilistic", "--spec-draft-p-min", "0", "--spec-draft-n-min", "0"]
    urls = {}
    with ExitStack() as stack:
        for role, more in (("pair", drafting), ("target", [])):
            port = free_port()
            command = [binary, "--model", str(files["target"]), "--alias", MODEL, "--port", str(port), *more]
            command += [
                "--ctx-size",
                "512",
                "--parallel",
                "1",
                "--threads",
                "1",
                "--offline",
                "--no-webui",
                "--cache-ram",
                "0",
            ]
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            stack.callback(process.kill)
            urls[role] = f"http://127.0.0.1:{port}"
        for url in urls.values():
            wait_until_healthy(url)
        recorder = Recorder(urls)
        with serving(recorder) as url:
            for temperature in TEMPERATURES:
                words = [*WORDS, *words_at(url), f"temperature={temperature}", f"results={folder}/T{temperature}"]
                subprocess.run([sys.executable, "-m", "sdbench", *words], check=True)
    return [
        Exchange(**{**asdict(exchange), "answer": exchange.answer.replace(str(folder), "FOLDER")})
        for exchange in recorder.exchanges
    ]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    with tempfile.TemporaryDirectory() as temporary:
        lines = [json.dumps(asdict(exchange), ensure_ascii=False) for exchange in record(sys.argv[1], Path(temporary))]
    FILE.write_text("\n".join(lines) + "\n")
