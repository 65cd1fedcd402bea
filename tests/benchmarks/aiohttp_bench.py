"""`deploy bench` with aiohttp instead of its own connections, for `client_cost.py --aiohttp`.

    python tests/benchmarks/aiohttp_bench.py bench URL --workload FILE …

Everything but HTTP is the same: schedule, events and metrics. aiohttp must be installed in the same environment.
"""

import asyncio
from collections.abc import Callable, Sequence

import aiohttp

from orchestrator.bench import benchmark
from orchestrator.bench.streamed_response import StreamedResponse
from orchestrator.cli.main import main
from orchestrator.core.secrets import Secret
from orchestrator.core.url import Address
from orchestrator.engine.endpoints import authorization


class AiohttpConnections:
    """The interface of `bench.connection.Connections`, with aiohttp."""

    def __init__(self, address: Address, *, key: Secret | None, clock: Callable[[], float]) -> None:
        self._url = address.url
        self._headers = {**authorization(key), "Content-Type": "application/json"}
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    def head(self, _method: str, path: str, _length: int) -> bytes:
        return path.encode()  # the first part of a request is its path

    async def send(self, request: Sequence[bytes], answer: StreamedResponse) -> None:
        path, *body = request
        try:
            async with self._open().post(self._url + path.decode(), data=b"".join(body)) as response:
                answer.framing.status = response.status
                async for data in response.content.iter_any():
                    now = self._clock()
                    for event in answer._events.feed(data):
                        answer._process_event(event, now)
        except aiohttp.ClientError as error:
            answer.fail("reset", str(error))

    async def fetch(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        async with self._open().request(method, self._url + path, data=body) as response:
            return response.status, await response.read()

    def close(self) -> None:
        if self._session is not None:
            self._closing = asyncio.ensure_future(self._session.close())

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._session


benchmark.Connections = AiohttpConnections  # type: ignore[assignment,misc]
main()
