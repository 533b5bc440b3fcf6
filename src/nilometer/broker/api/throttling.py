"""Responses to clients above a quota: they tell for how long the client has to wait, and its connection is
not read for that time.

Produce and Fetch do this themselves (:mod:`.produce`, :mod:`.fetch`); this module does it for all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.spec import Request
from nilometer.broker.connection import Reply
from nilometer.broker.quotas import ClientQuotas
from nilometer.runtime import Clock
from nilometer.wire.throttle_time import throttle_ms_of, with_throttle_ms


def count_request(
    quotas: ClientQuotas, request: Request, reply: Reply | asyncio.Future[Reply], spent_us: int
) -> Reply | asyncio.Future[Reply]:
    """Count ``spent_us`` of the event loop for a request; return its reply, with the time to wait."""
    throttle_ms = quotas.on_request(request.context, request.header.client_id, spent_us)
    if throttle_ms == 0:
        return reply
    request.connection.mute(throttle_ms)
    if not isinstance(reply, asyncio.Future):
        return throttled(request, reply, throttle_ms)
    return _when_done(request, reply, throttle_ms)


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


def throttled(request: Request, reply: Reply, throttle_ms: int) -> Reply:
    """Return the reply with ``throttle_ms``, unless it has a longer time already."""
    if reply is None:
        return None
    if not isinstance(reply, Sequence):
        return reply.with_throttle_ms(throttle_ms)
    frame, key, version = b"".join(reply), request.header.api_key, request.version
    longer_ms = max(throttle_ms, throttle_ms_of(key, version, frame))
    return (with_throttle_ms(key, version, frame, longer_ms),)


def mute_as_told(request: Request, frame: bytes) -> None:
    """Mute the client's connection for the time in ``frame``: the response of the controller, with its
    length."""
    throttle_ms = throttle_ms_of(request.header.api_key, request.version, frame)
    if throttle_ms > 0:
        request.connection.mute(throttle_ms)


def _when_done(request: Request, reply: asyncio.Future[Reply], throttle_ms: int) -> asyncio.Future[Reply]:
    changed: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def finish(done: asyncio.Future[Reply]) -> None:
        if changed.done():
            return
        if done.cancelled():
            changed.cancel()
        elif (error := done.exception()) is not None:
            changed.set_exception(error)
        else:
            changed.set_result(throttled(request, done.result(), throttle_ms))

    def forget(outer: asyncio.Future[Reply]) -> None:
        if outer.cancelled():
            reply.cancel()  # the client has gone

    reply.add_done_callback(finish)
    changed.add_done_callback(forget)
    return changed
