"""One connection to one broker: sends requests and matches the responses to them by correlation id.

Handles correlation ids, API versions and time-outs. :class:`ResponseFrames` splits the received bytes into
responses; the users of a connection (the client's connection pool, replica fetchers, forwarding to the
controller) decide what to send, and retry.

Invariants:

- Every future that is returned is resolved exactly once: by its response, by its time-out, or by
  :class:`ConnectionLost` when the connection ends.
- A request that times out ends the connection. The broker may still be working on it, and later requests
  must not wait for it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

import msgspec

from nilometer.client.settings import NO_SECURITY, ClientSecurity
from nilometer.runtime import Runtime
from nilometer.runtime.direct_future import DirectFuture
from nilometer.runtime.tls import TlsUnusable
from nilometer.version import __version__
from nilometer.wire.api_keys import ApiKey, any_api_key
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedResponse, UnsupportedVersion
from nilometer.wire.messages import (
    api,
    decode_correlation_id,
    decode_response,
    encode_request,
    request_header,
    supported_versions,
)

# The finalized features of the cluster, which brokers return with ApiVersions (KIP-584). Pure.
#
# Invariant: of two responses, the one with the higher epoch is used, whichever arrived first.

UNKNOWN_EPOCH = -1


class FinalizedFeatures(msgspec.Struct, frozen=True):
    epoch: int = UNKNOWN_EPOCH
    levels: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])

    @classmethod
    def of(cls, response: Message) -> FinalizedFeatures:
        """Read the features in an ApiVersions response; responses before version 3 have none."""
        epoch = getattr(response, "finalized_features_epoch", UNKNOWN_EPOCH)
        if epoch == UNKNOWN_EPOCH:
            return cls()
        return cls(epoch, {one.name: one.max_version_level for one in response.finalized_features})

    def newer(self, other: FinalizedFeatures) -> FinalizedFeatures:
        return other if other.epoch > self.epoch else self

    def level(self, name: str) -> int:
        """Return the level of a feature; 0 if the response did not name it."""
        return self.levels.get(name, 0)


# Splits the bytes that a broker sends into responses, without copying those that arrive whole.
#
# Provides the memory that the event loop receives into (for asyncio.BufferedProtocol), and yields whole
# frames from it, without their length prefixes. A frame that does not arrive in one piece is received into a
# buffer of exactly its size.
#
# Invariant: a frame that is yielded is valid until the next one is requested, and no longer.

RECEIVE_BYTES = 64 * 1024
RESPONSE_BYTES_MAX = 1 << 30
LENGTH_BYTES = 4


class ResponseFrames:
    """The receive buffers of one connection."""

    __slots__ = ("_filled", "_frame", "_frame_filled", "_received", "_received_view")

    def __init__(self) -> None:
        self._received = bytearray(RECEIVE_BYTES)
        self._received_view = memoryview(self._received)
        self._filled = 0
        self._frame: memoryview | None = None
        """The buffer of a frame of which a part has arrived; None if there is none."""
        self._frame_filled = 0

    def room(self) -> memoryview:
        """Return the memory for the next received bytes."""
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._received_view[self._filled :]

    def received(self, size: int) -> Iterator[memoryview]:
        """Note that ``size`` bytes were received into :meth:`room`; yield every frame that is now whole.

        Raises MalformedResponse for an impossible length.
        """
        if self._frame is None:
            self._filled += size
            yield from self._split()
            return
        self._frame_filled += size
        if self._frame_filled == len(self._frame):
            frame, self._frame = self._frame, None
            yield frame

    def _split(self) -> Iterator[memoryview]:
        """Yield every whole frame of the receive buffer; move an unfinished one to a buffer of its size."""
        view, position, end = self._received_view, 0, self._filled
        while end - position >= LENGTH_BYTES:
            size = int.from_bytes(view[position : position + LENGTH_BYTES], "big", signed=True)
            if not 0 <= size <= RESPONSE_BYTES_MAX:
                raise MalformedResponse(f"the length field of a response is {size}")
            position += LENGTH_BYTES
            if end - position < size:
                frame = memoryview(bytearray(size))
                self._frame_filled = end - position
                frame[: self._frame_filled] = view[position:end]
                self._frame = frame
                position = end
                break
            yield view[position : position + size]
            position += size
        rest = end - position
        if rest:
            self._received[:rest] = self._received[position:end]
        self._filled = rest


MakeRequest = Callable[[Api], Message]
"""Makes the request in the API version it is given: the newest that the broker and this client support."""

T = TypeVar("T")

ReadResponse = Callable[[memoryview, int], T]
"""Decodes a response frame, given the position after its correlation id. Raises MalformedResponse.

The frame's memory is reused after the call: the result must not refer to it.
"""

Versions = Mapping[int, tuple[int, int]]

DEFAULT_CLIENT_ID = "nilometer"
REQUEST_TIMEOUT_MS = 30_000
CONNECTION_SETUP_TIMEOUT_MS = 10_000
WRITE_BUFFER_BYTES = 1024 * 1024
"""With more unsent bytes than this in the transport, :attr:`Connection.writable` is false."""
CORRELATION_ID_BYTES = 4
SOFTWARE_NAME = "nilometer"
MAY_NEED = (
    "before its first response: its listener may have another security.protocol, or need a user "
    "(sasl.mechanism, sasl.jaas.config)"
)
LOGIN_WINDOW = (0.85, 0.95)
"""The part of a session's lifetime after which the login is repeated: a random point in between."""
_UNSUPPORTED_VERSION = ErrorCode.unsupported_version.to_bytes(2, "big")


class ConnectionLost(KafkaError):
    """The connection ended or could not be made. Whether the broker acted on the request is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.network_exception, message)


class NotServed(ConnectionLost):
    """The broker runs, but does not serve this client as it connects: it expects TLS or a user, or presents a
    certificate that is not accepted. A broker that ends before its first response looks the same."""


class RequestTimedOut(KafkaError):
    """No response in time. Whether the broker acted on the request is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.request_timed_out, message)


class _InFlight:
    __slots__ = ("api_key", "future", "read", "timer", "version")

    def __init__(
        self,
        api_key: int,
        version: int,
        future: asyncio.Future[Any],
        timer: asyncio.TimerHandle | None,
        read: ReadResponse[Any] | None,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.future = future
        self.timer = timer
        self.read = read
        """Decodes the response instead of the schema's decoder; None: the schema's decoder does."""


class Connection(asyncio.BufferedProtocol):
    """A connection to one broker. :meth:`open` makes one."""

    def __init__(self, host: str, port: int, client_id: str, request_timeout_ms: int) -> None:
        self.host = host
        self.port = port
        self.versions: Versions = MappingProxyType({})
        """The broker's API versions: API key to lowest and highest version."""
        self.features = FinalizedFeatures()
        self.on_lost: Callable[[Connection], None] | None = None
        self.ended_by_peer = False
        self.on_writable: Callable[[], None] | None = None
        self.last_used = 0.0
        """The event loop's time of the last request."""
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lost: ConnectionLost | None = None
        self._next_correlation_id = 0
        self._in_flight: dict[int, _InFlight] = {}
        self._first_request: int | None = None
        """The correlation id of the first request but those that prepare the connection; None before it."""
        self.writable = True
        """Whether the transport's buffer has room; ``on_writable`` is called when it has room again."""
        self._frames = ResponseFrames()
        self._session: _LoginSession | None = None
        self._held: list[bytes] | None = None
        """Frames that wait until this client has authenticated again; None while it does not do that."""

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        host: str,
        port: int,
        *,
        client_id: str = DEFAULT_CLIENT_ID,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        setup_timeout_ms: int = CONNECTION_SETUP_TIMEOUT_MS,
        before_use: Callable[[Connection], Awaitable[None]] | None = None,
        security: ClientSecurity = NO_SECURITY,
    ) -> Connection:
        """Connect, log in, request the broker's API versions and return the connection.

        ``before_use`` is called after the login and before the first request (brokers authenticate each other
        in it); if it raises, the connection is closed. Raises ConnectionLost, AuthenticationFailed, or the
        KafkaError of ApiVersions.
        """
        connection: Connection | None = None

        def make() -> Connection:
            nonlocal connection
            connection = cls(host, port, client_id, request_timeout_ms)
            return connection

        try:
            async with asyncio.timeout(setup_timeout_ms / 1000):
                await runtime.network.connect(make, host, port, security.tls)
                assert connection is not None
                if security.mechanism is not None:
                    connection._session = _LoginSession(connection, security, runtime)
                    await connection._session.begin()
                if before_use is not None:
                    await before_use(connection)
                await connection._negotiate()
        except TimeoutError:
            if connection is not None:
                connection.close()
            raise ConnectionLost(f"no connection to {host}:{port} within {setup_timeout_ms} ms") from None
        except (OSError, TlsUnusable, UnicodeError) as error:  # UnicodeError: no such name can be looked up
            lost = NotServed if isinstance(error, (ssl.SSLError, TlsUnusable)) else ConnectionLost
            raise lost(f"cannot connect to {host}:{port}: {_reason(error)}") from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        return connection

    # --- requests

    @property
    def closed(self) -> bool:
        return self._lost is not None

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def api(self, api_key: int, at_most: int | None = None) -> Api:
        """Return the codec of the newest version that both sides support, not above ``at_most``.

        Raises UnsupportedVersion if there is none.
        """
        try:
            low, high = self.versions[api_key]
        except KeyError:
            raise UnsupportedVersion(api_key, 0) from None
        own_low, own_high = supported_versions(api_key)
        version = min(high, own_high if at_most is None else min(own_high, at_most))
        if version < low or version < own_low:
            raise UnsupportedVersion(api_key, version)
        return api(api_key, version)

    async def request(
        self, api_key: int, make: MakeRequest, *, at_most: int | None = None, timeout_ms: int | None = None
    ) -> Message:
        """Send the request that ``make`` returns and wait for the response. Raises KafkaError.

        ``at_most`` limits the API version; ``timeout_ms`` replaces the connection's request timeout.
        """
        return await self.send(make(self.api(api_key, at_most)), timeout_ms=timeout_ms)

    def send(
        self, request: Message, *, timeout_ms: int | None = None, is_login: bool = False
    ) -> asyncio.Future[Message]:
        """Send at once; return the future of the response. Raises ConnectionLost if the connection ended.

        ``is_login``: a request of SASL, which does not wait while others do.
        """
        transport, correlation_id = self._begin()
        frame = encode_request(correlation_id, self._client_id, request)
        future: asyncio.Future[Message] = self._loop.create_future()
        self._expect(correlation_id, request.__api_key__, request.__version__, future, timeout_ms, None)
        if is_login:
            _write(transport, frame)
        else:
            self._write_or_hold(transport, frame)
        return future

    def send_body(
        self, codec: Api, body: bytes, read: ReadResponse[T], *, timeout_ms: int | None = None
    ) -> DirectFuture[T]:
        """Send an encoded request body; return the future of what ``read`` makes of the response.

        ``codec`` gives the API and version of ``body``. Raises ConnectionLost if the connection ended.
        """
        transport, correlation_id = self._begin()
        header = request_header(codec, correlation_id, self._client_id)
        future: DirectFuture[T] = DirectFuture()
        self._expect(correlation_id, codec.key, codec.version, future, timeout_ms, read)
        self._write_or_hold(transport, b"".join(((len(header) + len(body)).to_bytes(4, "big"), header, body)))
        return future

    def send_without_response(self, request: Message) -> None:
        """Send a request that has no response: a Produce request with acks=0.

        Raises ConnectionLost, also after a reset that ``connection_lost`` has not reported yet: no response
        would tell of it.
        """
        transport, correlation_id = self._begin()
        if transport.is_closing():
            raise ConnectionLost(f"{self.host}:{self.port}: the connection ended")
        self._write_or_hold(transport, encode_request(correlation_id, self._client_id, request))

    def _write_or_hold(self, transport: asyncio.Transport, frame: bytes) -> None:
        if self._held is None:
            _write(transport, frame)
        else:
            self._held.append(frame)

    def hold_requests(self) -> None:
        """Send no request but those of SASL until :meth:`release_requests`."""
        self._held = [] if self._held is None else self._held

    def release_requests(self) -> None:
        """Send the requests that waited, in their order."""
        held, self._held = self._held, None
        transport = self._transport
        if transport is not None and held and self._lost is None:
            _write(transport, b"".join(held))

    def close(self, reason: str = "closed by this side") -> None:
        """End the connection; requests still in flight fail with ConnectionLost. May be called again."""
        transport = self._transport
        self._fail(ConnectionLost(f"{self.host}:{self.port}: {reason}"))
        if transport is not None:
            transport.close()

    def _expect(
        self,
        correlation_id: int,
        api_key: int,
        version: int,
        future: asyncio.Future[Any],
        timeout_ms: int | None,
        read: ReadResponse[Any] | None,
    ) -> None:
        timeout_s = (self._request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        timer = self._loop.call_later(timeout_s, self._on_timeout, correlation_id)
        self._in_flight[correlation_id] = _InFlight(api_key, version, future, timer, read)

    def _begin(self) -> tuple[asyncio.Transport, int]:
        if self._lost is not None:
            raise ConnectionLost(self._lost.message)
        assert self._transport is not None
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFF_FFFF
        self.last_used = self._loop.time()
        return self._transport, correlation_id

    async def _negotiate(self) -> None:
        """Fetch the broker's API versions; retry in an older version if the broker is older (KIP-511)."""
        _, newest = supported_versions(ApiKey.API_VERSIONS)
        response = await self.send(self._api_versions_request(newest))
        if response.error_code == ErrorCode.unsupported_version:
            theirs = {key.api_key: key.max_version for key in response.api_keys}
            response = await self.send(
                self._api_versions_request(min(newest, theirs.get(ApiKey.API_VERSIONS, 0)))
            )
        if response.error_code != ErrorCode.none:
            raise KafkaError(response.error_code, f"{self.host}:{self.port} rejected ApiVersions")
        self.versions = MappingProxyType(
            {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        )
        self.features = FinalizedFeatures.of(response)
        self._first_request = self._next_correlation_id

    def _api_versions_request(self, version: int) -> Message:
        codec = api(ApiKey.API_VERSIONS, version)
        return codec.request(client_software_name=SOFTWARE_NAME, client_software_version=__version__)

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended_by_peer = self._lost is None
        reason = _reason(exc) if isinstance(exc, OSError) else "closed by the broker"
        if self.ended_by_peer and (self._first_request is None or self._first_request in self._in_flight):
            self._fail(NotServed(f"{self.host}:{self.port}: {reason} {MAY_NEED}"))
        else:
            self._fail(ConnectionLost(f"{self.host}:{self.port}: {reason}"))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        if not self.writable:
            self.writable = True
            if self.on_writable is not None:
                self.on_writable()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._frames.received(nbytes):
                self._on_frame(frame)
        except MalformedResponse as error:
            self.close(f"malformed response: {error.message}")

    def eof_received(self) -> bool:
        return False

    # --- responses

    def _on_frame(self, received: memoryview) -> None:
        frame = cast(bytes, received.toreadonly())  # The decoder only reads, and accepts nothing writable.
        correlation_id = decode_correlation_id(frame)
        waiting = self._in_flight.pop(correlation_id, None)
        if waiting is None:
            if self._lost is None:
                raise MalformedResponse(
                    f"a response to request {correlation_id}, which is not waiting for one"
                )
            return
        if waiting.timer is not None:
            waiting.timer.cancel()
        version = waiting.version
        if waiting.api_key == ApiKey.API_VERSIONS and frame[4:6] == _UNSUPPORTED_VERSION:
            version = 0  # A broker that does not support the requested version responds in 0 (KIP-511).
        try:
            if waiting.read is not None:
                response = waiting.read(received.toreadonly(), CORRELATION_ID_BYTES)
            else:
                _, response = decode_response(waiting.api_key, version, frame)
        except MalformedResponse as error:
            _reject(waiting.future, error)
            raise
        if not waiting.future.done():
            waiting.future.set_result(response)

    def _on_timeout(self, correlation_id: int) -> None:
        waiting = self._in_flight.pop(correlation_id, None)
        if waiting is None:
            return
        name = any_api_key(waiting.api_key).name
        _reject(
            waiting.future,
            RequestTimedOut(f"{self.host}:{self.port} sent no response to {name} within the request timeout"),
        )
        self.close(f"no response to {name} within the request timeout")

    def _fail(self, error: ConnectionLost) -> None:
        if self._lost is not None:
            return
        self._lost = error
        if self._session is not None:
            self._session.stop()
        in_flight, self._in_flight = self._in_flight, {}
        for waiting in in_flight.values():
            if waiting.timer is not None:
                waiting.timer.cancel()
            _reject(waiting.future, type(error)(error.message))
        self.resume_writing()
        if self.on_lost is not None:
            self.on_lost(self)


class _LoginSession:
    """Authenticates on a connection, and again before its session ends: within 85 to 95 % of its lifetime, as
    Kafka's clients do. If that fails, the connection is closed.

    Requests that are sent meanwhile wait; those that were sent before are answered as usual.
    """

    def __init__(self, connection: Connection, security: ClientSecurity, runtime: Runtime) -> None:
        self._connection = connection
        self._security = security
        self._runtime = runtime
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Log in for the first time. Raises AuthenticationFailed, ConnectionLost."""
        self._schedule(await self._log_in(hold=False))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _log_in(self, *, hold: bool) -> int:
        """Return the lifetime of the session in milliseconds. ``hold``: hold other requests meanwhile."""

        connection, mechanism = self._connection, self._security.mechanism
        assert mechanism is not None, "the protocol has SASL"
        from nilometer.client.network.sasl_login import log_in, new_exchange  # few clients log in

        client = await new_exchange(self._security, self._runtime)
        if hold:
            connection.hold_requests()
        send = functools.partial(connection.send, is_login=True)
        return await log_in(send, f"{connection.host}:{connection.port}", mechanism, client, self._runtime)

    def _schedule(self, lifetime_ms: int) -> None:
        if lifetime_ms > 0 and not self._connection.closed:
            delay_ms = lifetime_ms * self._runtime.entropy.uniform(*LOGIN_WINDOW)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_ms / 1000, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._begin_again(), name="log in again")

    async def _begin_again(self) -> None:
        try:
            lifetime_ms = await self._log_in(hold=True)
        except KafkaError as error:
            self._connection.close(f"the login could not be repeated: {error.message}")
            return
        self._connection.release_requests()
        self._schedule(lifetime_ms)


def _write(transport: asyncio.Transport, frame: bytes) -> None:
    """Write ``frame``, or nothing to a transport that a reset has closed: uvloop would raise RuntimeError.

    ``connection_lost`` follows in a later iteration of the event loop, and fails the requests in flight.
    """
    if not transport.is_closing():
        transport.write(frame)


def _reason(error: OSError | TlsUnusable | UnicodeError) -> str:
    """Return the operating system's error text: asyncio's own messages hide it."""
    if isinstance(error, UnicodeError):
        return "no host can have this name"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the broker's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, TlsUnusable):
        return str(error)
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


def _reject(future: asyncio.Future[Message], error: KafkaError) -> None:
    if not future.done():
        future.set_exception(error)
