"""The identity of the servers of a pass: what they report about themselves, without what each start changes."""

from types import SimpleNamespace
from typing import Any

from aiohttp import web
from standin import StandIn, Text

from sdbench.engines.served import Http
from sdbench.engines.served.identity import UNKNOWN, keys_in, where_timed, without_secrets


class Described(StandIn):
    """A stand-in that reports its configuration."""

    info: Any = None

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.get("/server_info", self._server_info)]

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response(self.info)


def test_keys_of_a_server_are_not_among_its_facts():
    """SGLang reports all its options, with its keys."""
    info = {
        "api_key": "sesame",
        "admin_api_key": None,
        "ssl_keyfile_password": "barley",
        "max_total_tokens": 4096,
        "tokenizer_path": "a",
        "internal_states": [{"hf_token": "oats", "command": "serve --api-key sesame", "load": 0.5}],
    }
    shown = without_secrets(info, keys_in({"authorization": "Bearer sesame", "X-Run": 4, "Empty": ""}))
    assert shown == {
        "api_key": "***",
        "admin_api_key": None,
        "ssl_keyfile_password": "***",
        "max_total_tokens": 4096,
        "tokenizer_path": "a",
        "internal_states": [{"hf_token": "***", "command": "***", "load": 0.5}],
    }


def test_another_start_of_a_server_is_the_same_server_and_another_configuration_is_not():
    point: Any = SimpleNamespace(cell=SimpleNamespace(verifier="exact"))
    with Described(lambda body: Text([]), None) as server:
        kind = Http(url=server.url, dialect="http")

        def identity(start: int, length: int) -> str:
            config = {"instance_id": start, "max_model_len": length}
            server.info = {"vllm_config": config, "workers": [{"internal_states": [start], "rank": 0}]}
            return where_timed(kind, [point])

        known = identity(1, 512)
        assert identity(2, 512) == known
        assert identity(2, 512) != identity(2, 1024)
        server.api_key = "sesame"
        assert identity(2, 512).endswith(f"{server.url} {UNKNOWN}"), "what it reported when it was timed counts"
        kind.headers = {"Authorization": "Bearer sesame"}
        assert identity(2, 512) == known
