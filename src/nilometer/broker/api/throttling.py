"""Responses to clients above a quota: they tell for how long the client has to wait, and its connection is
not read for that time.

Produce and Fetch do this themselves (:mod:`nilometer.broker.produce`, :mod:`.fetch`); this module does it
for all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.spec import Request
from nilometer.broker.connection import Response
from nilometer.broker.quotas import ClientQuotas
from nilometer.runtime import Clock
from nilometer.wire.throttle_time import throttle_ms_of, with_throttle_ms


def count_request(
    quotas: ClientQuotas, request: Request, response: Response | asyncio.Future[Response], spent_us: int
) -> Response | asyncio.Future[Response]:
    """Count ``spent_us`` of the event loop for a request; return its response, with the time to wait."""
    throttle_ms = quotas.on_request(request.context, request.header.client_id, spent_us)
    if throttle_ms == 0:
        return response
    request.connection.mute(throttle_ms)
    if not isinstance(response, asyncio.Future):
        return throttled(request, response, throttle_ms)
    return _when_done(request, response, throttle_ms)


def count_refused(quotas: ClientQuotas, clock: Clock, request: Request) -> int:
    """Count the time of a Produce or Fetch request that was refused as a whole, if there are quotas.

    Returns the time (ms) for which the client has to wait, and its connection is not read.
    """
    if not quotas.limits_clients or request.context.is_broker:
        return 0
    spent_us = clock.monotonic_us() - request.began_us
    throttle_ms = quotas.on_request(request.context, request.header.client_id, spent_us)
    if throttle_ms:
        request.connection.mute(throttle_ms)
    return throttle_ms


def throttled(request: Request, response: Response, throttle_ms: int) -> Response:
    """Return the response with ``throttle_ms``, unless it has a longer time already."""
    if response is None:
        return None
    if not isinstance(response, Sequence):
        return response.with_throttle_ms(throttle_ms)
    frame, key, version = b"".join(response), request.header.api_key, request.version
    longer_ms = max(throttle_ms, throttle_ms_of(key, version, frame))
    return (with_throttle_ms(key, version, frame, longer_ms),)


def mute_as_told(request: Request, frame: bytes) -> None:
    """Mute the client's connection for the time in ``frame``: the response of the controller, with its
    length."""
    throttle_ms = throttle_ms_of(request.header.api_key, request.version, frame)
    if throttle_ms > 0:
        request.connection.mute(throttle_ms)


def _when_done(
    request: Request, response: asyncio.Future[Response], throttle_ms: int
) -> asyncio.Future[Response]:
    changed: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def finish(done: asyncio.Future[Response]) -> None:
        if changed.done():
            return
        if done.cancelled():
            changed.cancel()
        elif (error := done.exception()) is not None:
            changed.set_exception(error)
        else:
            changed.set_result(throttled(request, done.result(), throttle_ms))

    def forget(outer: asyncio.Future[Response]) -> None:
        if outer.cancelled():
            response.cancel()  # the client has gone

    response.add_done_callback(finish)
    changed.add_done_callback(forget)
    return changed
