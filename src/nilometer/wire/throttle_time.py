"""The field ``throttle_time_ms`` of an encoded response: the time for which its client has to wait (KIP-219).

It is known only when the response is ready, and it is 0 in nearly all responses; so it is written into the
frame afterwards, in the few that need it. In most responses it is the first field, in a few the last.
"""

from __future__ import annotations

import dataclasses
import functools

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import shape_of
from nilometer.wire.messages import api

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
