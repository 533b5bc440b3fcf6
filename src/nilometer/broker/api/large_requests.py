"""Large requests: each is served as long work, slice by slice, while the event loop serves other clients.

The body is decoded in slices, and divided as the API's specification says (``ApiSpec.divisions``); the parts
are handled one after another, as requests of their own, and the response is merged from theirs. What happens
between two parts is what happens between two requests.

A quota of request time slows a large request down while it runs, not only the ones after it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta
from typing import Any

from nilometer.broker.api.spec import ApiSpec, PartOfRequest, Request
from nilometer.broker.connection import Connection, Response
from nilometer.broker.connection_memory import ResponseMemory
from nilometer.broker.quotas import ClientQuotas
from nilometer.broker.responses import CloseConnection, EncodedResponse, wait_whole
from nilometer.broker.rooms import WAIT_S, Place, Room
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import HAVE_TO_WAIT, LongWork, Turns
from nilometer.runtime import Clock
from nilometer.wire import messages
from nilometer.wire.api_keys import api_name
from nilometer.wire.errors import MalformedMessage
from nilometer.wire.large_requests import (
    Division,
    Merged,
    Repeated,
    can_decode_in_slices,
    decode_in_slices,
    divide,
    division_for,
    has_more_than,
    has_repetitions,
)

logger = logging.getLogger("nilometer.broker.api")

Slices = Generator[int, None, Any]
"""Yields how many elements were decoded since the last step; returns the body."""

LARGE_BYTES = 16 * 1024
"""A request above this size is decoded in slices. A smaller one that is handled in parts counts as one of
this size."""
AT_ONCE_BYTES = 4 * 1024 * 1024
"""So many bytes of large requests are handled at once, or one request; its values and its response take some
ten times as much. The others wait, and all wait while clients do not read their responses."""
DECISIONS_BYTES = 1024 * 1024
"""The same for those that the controller decides, one after another: of many small elements."""
PARKED_BYTES_MAX = 8 * 1024 * 1024
"""So many bytes of requests of many elements that wait have given their place to others; their values stay in
memory. Further ones keep their place."""
MADE_BYTES = 64 * 1024
"""A response to a large request counts as memory that its connection holds once so much of it is made."""


def is_divisible(spec: ApiSpec, header: messages.RequestHeader) -> bool:
    """Whether requests of this API and version are decoded in slices."""
    if spec.decode is not None:
        return False
    return can_decode_in_slices(messages.api(header.api_key, header.api_version).request_type)


def division_of(spec: ApiSpec, request: Request) -> Division | None:
    """Return how the request is divided; None if it has few elements and no repetition to leave out, or is
    handled as a whole."""
    division = division_for(spec.divisions, request.api.request_type)
    if division is None:
        return None
    body, path = request.body, division.request
    if has_more_than(body, path, division.elements_max):
        return division
    leaves_out = division.repeated is Repeated.AT_MOST_TWICE and has_more_than(body, path, 1)
    return division if leaves_out and has_repetitions(body, path) else None


class LargeRequests:
    def __init__(
        self, clock: Clock, tasks: Tasks, turns: Turns, memory: ResponseMemory, quotas: ClientQuotas
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._turns = turns
        self._memory = memory
        self._quotas = quotas
        self._room = Room(AT_ONCE_BYTES)
        self._parked_bytes = 0
        self._room_of_decisions = Room(DECISIONS_BYTES)
        """Of what the controller decides. It is kept while that waits: a request's values stay in memory."""
        self._made: dict[Connection, int] = {}
        """By connection, which has one such request at a time, the bytes of its response that are made; the
        oldest request first."""

    def serve(
        self,
        spec: ApiSpec,
        header: messages.RequestHeader,
        frame: bytes,
        connection: Connection,
        began_us: int,
        slices: Slices | None = None,
    ) -> asyncio.Future[Response]:
        """Decode and handle the request in ``frame``; return the future of its response. ``slices`` decode
        the body, if the API has a decoder of its own.

        The future's exception is CloseConnection if there can be none.
        """
        connection.handle_alone(len(frame))
        work = self._serve_in_turn(spec, header, frame, connection, began_us, slices)
        return self._tasks.spawn(work, kind=api_name(header.api_key))

    def serve_parts(self, spec: ApiSpec, request: Request, division: Division) -> asyncio.Future[Response]:
        """Handle a decoded request in parts; return the future of its response."""
        request.connection.process_alone()
        name = api_name(request.header.api_key)

        def serve(work: LongWork, _place: Place) -> Awaitable[Response]:
            return self._serve_parts(spec, request, division, work)

        return self._tasks.spawn(self._in_turn(spec, request.connection, LARGE_BYTES, serve), kind=name)

    async def _serve_in_turn(
        self,
        spec: ApiSpec,
        header: messages.RequestHeader,
        frame: bytes,
        connection: Connection,
        began_us: int,
        slices: Slices | None,
    ) -> Response:
        def serve(work: LongWork, place: Place) -> Awaitable[Response]:
            return self._serve(spec, header, frame, connection, began_us, slices, work, place)

        try:
            return await self._in_turn(spec, connection, len(frame), serve)
        finally:
            connection.has_handled()

    async def _in_turn(
        self,
        spec: ApiSpec,
        connection: Connection,
        size: int,
        serve: Callable[[LongWork, Place], Awaitable[Response]],
    ) -> Response:
        """Wait until there is memory for a request that counts as ``size`` bytes, and for its turn among all
        long work if many have arrived; then handle it. Brokers do not wait for memory."""
        if connection.context.is_broker:
            size = 0
        room = self._room_of_decisions if spec.forwardable else self._room
        place = Place(room, connection.origin)
        await place.enter(size, self._memory)
        parked = [0]

        def park() -> None:
            """Make room, unless too many have done so: other requests of a client end no such wait."""
            if self._parked_bytes + place.size > PARKED_BYTES_MAX:
                return
            parked[0] += place.size
            self._parked_bytes += place.size
            place.leave()

        # Others are handled when this request is done, or waits for what is not decided here. What has many
        # elements keeps its values meanwhile.
        has_many = spec.divisions or spec.handle_long is not None
        on_wait = None if spec.forwardable else park if has_many else place.leave
        try:
            if self._turns.arrive() == HAVE_TO_WAIT:
                await self._turns.wait_next()
            return await serve(LongWork(self._turns, on_wait), place)
        finally:
            self._parked_bytes -= parked[0]
            place.leave()

    async def _serve(
        self,
        spec: ApiSpec,
        header: messages.RequestHeader,
        frame: bytes,
        connection: Connection,
        began_us: int,
        slices: Slices | None,
        work: LongWork,
        place: Place,
    ) -> Response:
        api = messages.api(header.api_key, header.api_version)
        division = division_for(spec.divisions, api.request_type)
        try:
            if slices is None:
                path = () if division is None else division.request
                position = messages.body_position(header, frame)
                slices = decode_in_slices(api.request_type, frame, position, path, spec.elements_max)
            body = await work.go_through(slices, place.grow)
        except MalformedMessage as error:
            raise CloseConnection(f"malformed request: {error.message}") from None
        del frame
        request = Request(header, body, api, connection, connection.context, began_us)
        del body
        if spec.handle_long is not None:
            return await spec.handle_long(request, work)
        if division is not None:
            return await self._serve_parts(spec, request, division, work)
        response = _handle(spec, request)
        return await work.wait(response) if isinstance(response, asyncio.Future) else response

    async def _serve_parts(
        self, spec: ApiSpec, request: Request, division: Division, work: LongWork
    ) -> Response:
        try:
            return await self._make_in_parts(spec, request, division, work)
        finally:
            self._made.pop(request.connection, None)

    async def _make_in_parts(
        self, spec: ApiSpec, request: Request, division: Division, work: LongWork
    ) -> Response:
        clock, made_bytes = self._clock, 0
        merged = Merged(request.api.response_type, division.response)
        began_ms = clock.monotonic_ms()
        throttle_ms = 0
        for body, elements in divide(request.body, division):
            if body is None:
                await work.step(elements)
                continue
            part_began_us = clock.monotonic_us()
            part = request.part(_with_time_left(body, clock.monotonic_ms() - began_ms), part_began_us)
            response = _handle(spec, part)
            spent_us = clock.monotonic_us() - part_began_us
            frame = await work.wait(response) if isinstance(response, asyncio.Future) else response
            for more_bytes in merged.add(await self._message(part, frame)):
                made_bytes += more_bytes
                if made_bytes >= self._made.get(request.connection, 0) + MADE_BYTES:
                    await self._hold(
                        request, made_bytes, is_read_only=division.repeated is Repeated.AT_MOST_TWICE
                    )
                await work.step(1)
            throttle_ms = self._throttle_ms(spec, request, spent_us)
            if throttle_ms:
                await asyncio.sleep(throttle_ms / 1000)
            await work.step(elements)
        made_bytes = self._made.get(request.connection, 0)  # fewer are not worth to be counted
        response = EncodedResponse(request.api, request.header.correlation_id, merged.message(), made_bytes)
        return response.with_throttle_ms(throttle_ms) if throttle_ms else response

    async def _hold(self, request: Request, size: int, *, is_read_only: bool) -> None:
        """Let the connection hold ``size`` bytes for the response that is being made; wait while memory is
        short. Only the oldest of such requests goes on then, unless it is short for what clients do not read:
        of those one is disconnected soon. Brokers do not wait. Raises CloseConnection if the client has gone
        that only asked."""
        connection, memory = request.connection, self._memory
        if connection.context.is_broker:
            return
        self._made[connection] = size
        connection.expect(size)
        while not (is_read_only and connection.closed) and memory.is_short_for(connection.origin):
            if next(iter(self._made)) is connection and not memory.is_short_without(sum(self._made.values())):
                break
            await asyncio.sleep(WAIT_S)
        if is_read_only and connection.closed:
            raise CloseConnection("its client has gone")

    async def _message(self, part: PartOfRequest, response: Response) -> messages.Message:
        """Return the response to a part: made here, or by the controller, to which it was forwarded."""
        if not response:
            return part.made.pop()  # its lazy parts refer to the part: both would stay as garbage
        frame = await wait_whole(response, self._turns)
        return messages.decode_response(part.header.api_key, part.version, frame[4:])[1]

    def _throttle_ms(self, spec: ApiSpec, request: Request, spent_us: int) -> int:
        """Count the time of a part for its client's quota; return how long (ms) the client has to wait."""
        quotas = self._quotas
        if not quotas.limits_clients or request.context.is_broker or spec.exempt_from_quotas:
            return 0
        return quotas.on_request(request.context, request.header.client_id, spent_us)


def _with_time_left(body: messages.Message, spent_ms: int) -> messages.Message:
    """Return the part of a request with what is left of its timeout."""
    timeout: timedelta | None = getattr(body, "timeout", None)
    if timeout is None or not spent_ms:
        return body
    return dataclasses.replace(body, timeout=max(timedelta(0), timeout - timedelta(milliseconds=spent_ms)))


def _handle(spec: ApiSpec, request: Request) -> Response | asyncio.Future[Response]:
    try:
        return spec.handle(request)
    except CloseConnection:
        raise
    except Exception as error:
        logger.exception("%s version %d failed", spec.key.name, request.version)
        raise CloseConnection(f"{spec.key.name} failed: {error}") from error
