"""The identity of the servers of a pass: what they report about themselves, without what each start changes."""

from types import SimpleNamespace
from typing import Any

from aiohttp import web
from standin import StandIn, Text

from sdbench.engines.served import Http
from sdbench.engines.served.identity import UNKNOWN, where_timed


class Described(StandIn):
    """A stand-in that reports its configuration."""

    info: Any = None

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.get("/server_info", self._server_info)]

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response(self.info)


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
