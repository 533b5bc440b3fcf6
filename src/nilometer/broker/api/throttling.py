"""Responses to clients above a quota: they tell for how long the client has to wait, and its connection is
not read for that time.

Produce and Fetch do this themselves (:mod:`nilometer.broker.produce`, :mod:`.fetch`); this module does it
for all others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Sequence

from nilometer.broker.api.spec import Request
from nilometer.broker.quotas import ClientQuotas
from nilometer.broker.responses import Response
from nilometer.runtime import Clock
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import shape_of
from nilometer.wire.messages import api

# The field ``throttle_time_ms`` of an encoded response: the time for which its client has to wait (KIP-219).
#
# It is known only when the response is ready, and it is 0 in nearly all responses; so it is written into the
# frame afterwards, in the few that need it. In most responses it is the first field, in a few the last.

_FIELD = "throttle_time"
_LENGTH_BYTES = 4
_ERROR_CODE_BYTES = 2
_THROTTLE_TIME_BYTES = 4
_NO_TAGS_BYTES = 1
_FIRST_FLEXIBLE_API_VERSIONS = 3


def throttle_ms_of(api_key: int, version: int, frame: bytes) -> int:
    """Return the throttle time (ms) in a response frame (with its length); 0 if it has no such field."""
    position = _position(api_key, version, frame)
    return 0 if position is None else int.from_bytes(frame[position : position + 4], "big", signed=True)


def with_throttle_ms(api_key: int, version: int, frame: bytes, throttle_ms: int) -> bytes:
    """Return the frame with the throttle time ``throttle_ms``, if it has such a field.

    Not for Produce, whose encoder writes the field.
    """
    position = _position(api_key, version, frame)
    if position is None:
        return frame
    return frame[:position] + min(throttle_ms, 2**31 - 1).to_bytes(4, "big") + frame[position + 4 :]


def _position(api_key: int, version: int, frame: bytes) -> int | None:
    first = _first_position(api_key, version)
    if first is not None and first < 0:
        return len(frame) + first
    if api_key != ApiKey.API_VERSIONS or first is None:
        return first
    return _after_api_keys(frame, first + _ERROR_CODE_BYTES, version)


@functools.cache
def _first_position(api_key: int, version: int) -> int | None:
    """Return where the field is, or (ApiVersions) where the fields begin; None if there is no such field.

    Negative: counted from the end of the frame.
    """
    codec = api(api_key, version)
    if not dataclasses.is_dataclass(codec.response_type):
        return None  # one of Nilometer's own
    names = [field.name for field in dataclasses.fields(codec.response_type)]
    if _FIELD not in names:
        return None
    header = _LENGTH_BYTES + 4 + (1 if codec.flexible_response_header else 0)
    before = names[: names.index(_FIELD)]
    if api_key == ApiKey.API_VERSIONS or not before:
        return header
    if before == ["error_code"]:
        return header + _ERROR_CODE_BYTES
    shape = shape_of(codec.response_type)
    if names[-1] == _FIELD and not shape.tagged:
        return -_THROTTLE_TIME_BYTES - (_NO_TAGS_BYTES if shape.flexible else 0)
    raise ValueError(f"the throttle time of API {api_key} has no fixed position")


def _after_api_keys(frame: bytes, position: int, version: int) -> int:
    if version < _FIRST_FLEXIBLE_API_VERSIONS:
        count = int.from_bytes(frame[position : position + 4], "big")
        return position + 4 + 6 * count
    count = shift = 0
    while True:
        byte = frame[position]
        position += 1
        count |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return position + 7 * (count - 1)


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
