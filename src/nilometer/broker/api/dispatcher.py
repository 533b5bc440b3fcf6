"""Dispatches request frames to the handlers of their APIs, turns errors into responses or a closed
connection, and counts requests and their durations by API.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import msgspec
from typing_extensions import Buffer

from nilometer.broker.api.large_requests import LARGE_BYTES, LargeRequests, Slices, division_of, is_divisible
from nilometer.broker.api.retired_versions import refuse_retired_version
from nilometer.broker.api.spec import ApiSpec, Request, ranges
from nilometer.broker.api.throttling import count_request
from nilometer.broker.connection import Connection
from nilometer.broker.quotas import ClientQuotas, ConnectionAdmission
from nilometer.broker.request_context import NO_BROKER, RequestContext
from nilometer.broker.responses import CloseConnection, Response, WaitingResponse
from nilometer.invariants import check
from nilometer.metrics import Distribution
from nilometer.runtime import Clock
from nilometer.wire import messages
from nilometer.wire.api_keys import AnyApiKey, ApiKey, api_name
from nilometer.wire.errors import MalformedMessage

# Counts requests and their durations, by API. Written by the dispatcher, read by a scrape.
#
# A request's duration ends when its response is ready to be sent; that of a waiting fetch includes its wait.


class ApiStatistics:
    """The requests of one API. ``name`` is Kafka's, as in ``Produce``."""

    __slots__ = ("by_version", "durations", "failed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.by_version: dict[int, int] = {}
        """How many requests have begun, by version; served versions only."""
        self.failed = 0
        """How many requests closed their connection in place of a response, by an error."""
        self.durations = Distribution()

    @property
    def begun(self) -> int:
        return sum(self.by_version.values())

    @property
    def in_flight(self) -> int:
        """How many requests wait for their response."""
        return self.begun - self.durations.count - self.failed

    def begin(self, version: int) -> None:
        self.by_version[version] = self.by_version.get(version, 0) + 1

    def end(self, began_us: int, now_us: int) -> None:
        self.durations.observe(now_us - began_us, now_us)


class RequestStatistics:
    """The statistics of all APIs served. Fetches of followers are counted apart from those of consumers."""

    def __init__(self, keys: Mapping[int, AnyApiKey]) -> None:
        self.of_clients = {number: ApiStatistics(api_name(key)) for number, key in keys.items()}
        """By API key, for requests of clients."""
        self.of_brokers = dict(self.of_clients)
        """By API key, for requests of brokers: the same objects, but for Fetch."""
        fetch = int(ApiKey.FETCH)
        self.of_clients[fetch] = ApiStatistics("FetchConsumer")
        self.of_brokers[fetch] = ApiStatistics("FetchFollower")

    @property
    def waiting_fetches(self) -> int:
        """How many Fetch requests wait for their response."""
        fetch = int(ApiKey.FETCH)
        return self.of_clients[fetch].in_flight + self.of_brokers[fetch].in_flight

    def all(self) -> list[ApiStatistics]:
        """Return the statistics of all APIs, each once, by name."""
        found = {one.name: one for one in (*self.of_clients.values(), *self.of_brokers.values())}
        return [found[name] for name in sorted(found)]


logger = logging.getLogger("nilometer.broker.api")

_API_VERSIONS = int(ApiKey.API_VERSIONS)
_BODIES = (msgspec.Struct, tuple)
"""What those are that are decoded as a whole."""
WHOLE_BYTES_MAX = 1024 * 1024
"""Of a client's request that is decoded at once, as those of Nilometer's own APIs are; of a smaller one that
takes some milliseconds."""


class RequestDispatcher:
    """The connections of all listeners and their requests."""

    def __init__(
        self,
        apis: Sequence[ApiSpec],
        clock: Clock,
        large: LargeRequests,
        quotas: ClientQuotas,
        admission: ConnectionAdmission,
        on_closed: Callable[[Connection], None],
        *,
        accepts_unproved_brokers: bool,
    ) -> None:
        """``on_closed`` is called with each connection that was open and has closed."""
        self.apis: Mapping[int, ApiSpec] = {
            int(spec.key): spec for spec in sorted(apis, key=lambda spec: spec.key)
        }
        check(len(self.apis) == len(apis), "each API has one specification", [spec.key for spec in apis])
        self._advertised = ranges(apis, for_brokers=accepts_unproved_brokers)
        self._clock = clock
        self._now_us = clock.monotonic_us
        self._large = large
        self._quotas = quotas
        self._admission = admission
        self._on_closed = on_closed
        self.connections: dict[Connection, None] = {}
        self.connections_accepted = 0
        self.statistics = RequestStatistics({number: spec.key for number, spec in self.apis.items()})

    def connection_opened(self, connection: Connection) -> bool:
        address, port = connection.peer
        listener = connection.context.listener
        if connection.context.security_protocol.has_tls:
            if not self._admission.go_on(listener, address):  # it waited before its handshake
                return False
        else:
            admitted = self._admission.begin(listener, address)
            if admitted is None:
                return False
            if admitted.wait_ms:
                ends = "too many connections per second from its address" if admitted.ends else None
                connection.hold(admitted.wait_ms, ends)
        connection.last_active_ms = self._clock.monotonic_ms()
        connection.context = replace(connection.context, client_address=address, client_port=port)
        self.connections[connection] = None
        self.connections_accepted += 1
        return True

    def connection_closed(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            context = connection.context
            self._admission.end(context.listener, connection.peer[0], is_broker=context.is_broker)
            self._on_closed(connection)

    def request_failed(self, error: BaseException) -> None:
        logger.error("A request failed", exc_info=error)

    def may_pipeline(self, frame: Buffer) -> bool:
        spec = self.apis.get(int.from_bytes(memoryview(frame)[:2], "big"))
        return spec is not None and spec.pipelined

    def dispatch(self, frame: Buffer, connection: Connection) -> asyncio.Future[Response] | Response:
        """Decode the request in ``frame`` and return the response of its handler, or its future.

        Raises CloseConnection for a request that can have no response.
        """
        began_us = connection.began_us
        connection.last_active_ms = began_us // 1000
        try:
            header = messages.decode_request_header(frame)  # type: ignore[arg-type]
            connection.last_api = header.api_key
            spec = self.apis.get(header.api_key)
            if spec is None:
                raise CloseConnection(f"unknown API key {header.api_key}")
            low, high = spec.versions
            if not low <= header.api_version <= high:
                return self._refuse_version(header, spec, frame)
            if len(frame) > LARGE_BYTES and is_divisible(spec, header):  # type: ignore[arg-type]
                response = self._large.serve(spec, header, cast(bytes, frame), connection, began_us)
                return self._watched(spec, header, response, connection.context, began_us)
            if spec.decode is not None:
                body = spec.decode(header.api_version, memoryview(frame), header.size)
                if not isinstance(body, _BODIES):  # a generator, which may be of a compiled module
                    slices = cast(Slices, body)
                    response = self._large.serve(
                        spec, header, cast(bytes, frame), connection, began_us, slices
                    )
                    return self._watched(spec, header, response, connection.context, began_us)
            else:
                if len(frame) > WHOLE_BYTES_MAX and not connection.context.is_broker:  # type: ignore[arg-type]
                    raise CloseConnection(
                        f"{spec.key.name} of {len(frame)} bytes (at most {WHOLE_BYTES_MAX})"  # type: ignore[arg-type]
                    )
                header, body = messages.decode_request(frame)  # type: ignore[arg-type]
        except MalformedMessage as error:
            raise CloseConnection(f"malformed request: {error.message}") from None
        api = messages.api(header.api_key, header.api_version)
        request = Request(header, body, api, connection, connection.context, began_us)
        if spec.divisions and (division := division_of(spec, request)) is not None:
            response = self._large.serve_parts(spec, request, division)
            return self._watched(spec, header, response, request.context, began_us)
        return self._measured(spec, request, began_us)

    def _measured(
        self, spec: ApiSpec, request: Request, began_us: int
    ) -> asyncio.Future[Response] | Response:
        """Handle a request; count it, and the time since ``began_us`` when its response is ready."""
        statistics = self.statistics
        header = request.header
        from_broker = request.context.broker_id != NO_BROKER
        of_api = (statistics.of_brokers if from_broker else statistics.of_clients)[header.api_key]
        of_api.begin(header.api_version)
        try:
            response = spec.handle(request)
        except CloseConnection:
            of_api.failed += 1
            raise
        except Exception as error:
            of_api.failed += 1
            logger.exception("%s version %d failed", spec.key.name, request.version)
            raise CloseConnection(f"{spec.key.name} failed: {error}") from error
        if self._quotas.limits_clients and not (
            from_broker or spec.counts_quotas or spec.exempt_from_quotas or request.context.must_authenticate
        ):
            response = count_request(self._quotas, request, response, self._now_us() - began_us)
        if isinstance(response, WaitingResponse):
            response.add_listener(partial(self._on_response, of_api, began_us))
        elif isinstance(response, asyncio.Future):
            response.add_done_callback(partial(self._on_response, of_api, began_us))
        else:
            of_api.end(began_us, self._now_us())
        return response

    def _watched(
        self,
        spec: ApiSpec,
        header: messages.RequestHeader,
        response: asyncio.Future[Response],
        context: RequestContext,
        began_us: int,
    ) -> asyncio.Future[Response]:
        """Count a large request, and the time since ``began_us`` when its response is ready."""
        statistics = self.statistics
        from_broker = context.broker_id != NO_BROKER
        of_api = (statistics.of_brokers if from_broker else statistics.of_clients)[int(spec.key)]
        of_api.begin(header.api_version)
        response.add_done_callback(partial(self._on_response, of_api, began_us))
        return response

    def _on_response(self, of_api: ApiStatistics, began_us: int, response: asyncio.Future[Response]) -> None:
        if response.cancelled() or response.exception() is not None:
            of_api.failed += 1  # the client has gone, or its connection will be closed
        else:
            of_api.end(began_us, self._now_us())

    def _refuse_version(self, header: messages.RequestHeader, spec: ApiSpec, frame: Buffer) -> Response:
        """Return UNSUPPORTED_VERSION in the format of the requested version.

        Raises CloseConnection if no format for that version is known.
        """
        if header.api_key == _API_VERSIONS:
            return (messages.encode_unsupported_api_versions(header.correlation_id, self._advertised),)
        answer = refuse_retired_version(header, frame)  # type: ignore[arg-type]
        if answer is None:
            raise CloseConnection(
                f"{spec.key.name} version {header.api_version} is not served (only {spec.versions[0]}"
                f" to {spec.versions[1]}), and there is no format for an error response"
            )
        return (answer,)
