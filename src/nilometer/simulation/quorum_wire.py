"""How the nodes of a simulated metadata quorum ask each other: by frames over the connections of the
simulated network. A cut, slow or reset link does to them what it does to the brokers' other connections.

A frame is a length, and a pickled value: requests and responses are the structs of the product. The real wire
has Kafka's messages instead.

Invariants: a response belongs to one request, by its number; a request that is not answered in time ends its
connection, as Kafka's client does, so that a later response is not read.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

from nilometer.coordination.quorum.peers import Fetched, PeerUnavailable, Request
from nilometer.raft.control_records import VoterEntry
from nilometer.raft.voters import VoterKey
from nilometer.replication.epochs import NO_DIVERGENCE
from nilometer.runtime import Listener, Runtime

REQUEST_TIMEOUT_S = 2.0
"""``controller.quorum.request.timeout.ms``."""
_LENGTH = struct.Struct(">I")
Serve = Callable[[Request], Awaitable[Any]]


class _Frames(asyncio.Protocol):
    """One end of a connection."""

    def __init__(self) -> None:
        self._received = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received)
            end = _LENGTH.size + length
            if len(received) < end:
                return
            frame = pickle.loads(bytes(received[_LENGTH.size : end]))
            del received[:end]
            self.on_frame(frame)

    def on_frame(self, frame: Any) -> None:
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send(self, frame: Any) -> None:
        """Send it, if the connection is still open."""
        if self.transport is not None and self.is_open:
            data = pickle.dumps(frame)
            self.transport.write(_LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class _Served(_Frames):
    def __init__(self, serve: Serve) -> None:
        super().__init__()
        self._serve = serve
        self._answering: set[asyncio.Task[None]] = set()

    def on_frame(self, frame: Any) -> None:
        task = asyncio.create_task(self._answer(*frame))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, number: int, request: Request) -> None:
        try:
            response = await self._serve(request)
        except PeerUnavailable as error:
            self.send((number, None, str(error)))
        else:
            self.send((number, response, None))


def _read(response: Any) -> Any:
    """Return the response as its sender had it: the product knows NO_DIVERGENCE by its identity."""
    if isinstance(response, Fetched) and response.response.diverging == NO_DIVERGENCE:
        return response._replace(response=response.response._replace(diverging=NO_DIVERGENCE))
    return response


class _Asking(_Frames):
    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}

    def on_frame(self, frame: Any) -> None:
        number, response, error = frame
        future = self._open.pop(number, None)
        if future is not None and not future.done():
            if error is None:
                future.set_result(_read(response))
            else:
                future.set_exception(PeerUnavailable(error))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        still_open, self._open = self._open, {}
        for future in still_open.values():
            if not future.done():
                future.set_exception(PeerUnavailable("the connection was lost"))

    async def ask(self, request: Request) -> Any:
        if not self.is_open:
            raise PeerUnavailable("the connection was lost")
        number = next(self._numbers)
        future = self._open[number] = asyncio.get_running_loop().create_future()
        self.send((number, request))
        try:
            return await future
        finally:
            self._open.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # it is known, also if the request was given up at the same moment


class SimulatedPeers:
    """The other nodes, as one process reaches them; one connection to each."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._connections: dict[VoterKey, _Asking] = {}
        self._connecting: dict[VoterKey, asyncio.Lock] = {}

    async def ask(self, to: VoterEntry, request: Request) -> Any:
        connection: _Asking | None = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                connection = await self._connection(to)
                return await connection.ask(request)
        except TimeoutError as error:
            if connection is not None:
                connection.close()
            raise PeerUnavailable(f"{to.key} did not answer within {REQUEST_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise PeerUnavailable(f"{to.key} cannot be reached: {error}") from error

    async def _connection(self, to: VoterEntry) -> _Asking:
        async with self._connecting.setdefault(to.key, asyncio.Lock()):
            known = self._connections.get(to.key)
            if known is not None and known.is_open:
                return known
            (endpoint,) = to.endpoints
            made = await self._runtime.network.connect(_Asking, endpoint.host, endpoint.port)
            assert isinstance(made, _Asking)
            self._connections[to.key] = made
            return made


async def serve_peers(runtime: Runtime, port: int, serve: Serve) -> Listener:
    """Listen for the other nodes, and answer each request with what ``serve`` returns."""
    listener = await runtime.network.listen(lambda: _Served(serve), "", port)
    await listener.start()
    return listener
