"""A broker whose responses a test determines: real sockets and frames, without a log.

A test gives a handler per API; a handler gets the request and the API's version and returns the response,
or SILENCE (no response), or HANG_UP (the connection is closed instead). Handlers may be coroutines.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from nilometer.wire.api_keys import AnyApiKey, ApiKey, any_api_key
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, api, decode_request, encode_response, supported_versions

SILENCE = object()
HANG_UP = object()

Handler = Callable[[Any, Api], Any]


class ScriptedBroker:
    def __init__(self, node_id: int = 1, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.node_id = node_id
        self.host = "127.0.0.1"
        self.port = 0
        self.handlers: dict[int, Handler] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
        }
        self.versions = versions or {}
        """The API versions to advertise, instead of all that the schemas have."""
        self.requests: list[tuple[AnyApiKey, Any]] = []
        """All received requests except ApiVersions, in order."""
        self.topics: dict[str, list[tuple[int, int]]] = {}
        """The content of Metadata responses: topic to (leader, leader epoch) of each partition."""
        self.peers: list[ScriptedBroker] = [self]
        self.writers: list[asyncio.StreamWriter] = []
        self.topic_ids: dict[str, Any] = {}
        self._arrival = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ScriptedBroker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self) -> None:
        """Close every connection."""
        for writer in self.writers:
            writer.close()
        self.writers.clear()

    def count(self, key: int) -> int:
        return sum(1 for seen, _ in self.requests if seen == key)

    async def wait_for(self, key: int, count: int) -> None:
        """Wait until ``count`` requests of an API have been received."""
        while self.count(key) < count:
            self._arrival.clear()
            await self._arrival.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                await self._answer(await reader.readexactly(size), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError, _HungUp):
            writer.close()  # by the client, by the test, or by a handler

    async def _answer(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        header, request = decode_request(frame)
        key = any_api_key(header.api_key)
        if key != ApiKey.API_VERSIONS:
            self.requests.append((key, request))
            self._arrival.set()
        answer = self.handlers[key](request, api(key, header.api_version))
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is HANG_UP:
            raise _HungUp
        if answer is SILENCE:
            return
        writer.write(encode_response(header.correlation_id, key, answer.__version__, answer))

    def _api_versions(self, _request: Any, codec: Api) -> Any:
        served = {key: self.versions.get(key, supported_versions(key)) for key in sorted(self.handlers)}
        keys = tuple(
            codec.make("ApiVersion", api_key=key, min_version=low, max_version=high)
            for key, (low, high) in served.items()
        )
        return codec.response(error_code=ErrorCode.none, api_keys=keys)

    def _metadata(self, request: Any, codec: Api) -> Any:
        wanted = sorted(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        return codec.response(
            brokers=tuple(
                codec.make("MetadataResponseBroker", node_id=peer.node_id, host=peer.host, port=peer.port)
                for peer in self.peers
            ),
            cluster_id="scripted",
            controller_id=self.peers[0].node_id,
            topics=tuple(self._topic(codec, name) for name in wanted),
        )

    def _topic(self, codec: Api, name: str) -> Any:
        leaders = self.topics.get(name)
        return codec.make(
            "MetadataResponseTopic",
            error_code=ErrorCode.none if leaders is not None else ErrorCode.unknown_topic_or_partition,
            name=name,
            topic_id=self.topic_ids.get(name),
            partitions=tuple(
                codec.make(
                    "MetadataResponsePartition",
                    error_code=ErrorCode.none,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=epoch,
                    replica_nodes=(leader,),
                    isr_nodes=(leader,),
                )
                for index, (leader, epoch) in enumerate(leaders or ())
            ),
        )


class _HungUp(Exception):
    """The handler wants the connection closed."""
