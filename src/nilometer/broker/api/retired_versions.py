"""Responses, with UNSUPPORTED_VERSION, to versions that are no longer served but that clients still send.

Produce 0–2 and Fetch 0–3 carry the message formats from before record batches; ListOffsets 0 requests segment
base offsets. Without a response in the format it expects, a client sees a closed connection and retries
endlessly. The format of every other version out of range is unknown, and the connection is closed, as Kafka
does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, MalformedRequest
from nilometer.wire.messages import RequestHeader

_UNSUPPORTED = int(ErrorCode.unsupported_version)


class _Body:
    """Reads the fixed-width layouts of those versions and builds their responses.

    Raises MalformedRequest if the bytes end too early.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, layout: str) -> tuple[int, ...]:
        size = struct.calcsize(layout)
        if self._position + size > len(self._data):
            raise MalformedRequest("the request ends too early")
        values = struct.unpack_from(layout, self._data, self._position)
        self._position += size
        return values

    def skip(self, size: int) -> bytes:
        if size < 0 or self._position + size > len(self._data):
            raise MalformedRequest("the request ends too early")
        self._position += size
        return self._data[self._position - size : self._position]

    def string(self) -> bytes:
        """Read a string, and return it as it is encoded in the response: length, then bytes."""
        (length,) = self.take(">h")
        return struct.pack(">h", length) + self.skip(max(0, length))

    def topics(self, partition: Callable[[_Body], bytes]) -> bytes:
        """Read the request's topics and return those of the response; ``partition`` reads one partition and
        returns its part of the response."""
        return self._array(lambda body: body.string() + body._array(partition))

    def _array(self, item: Callable[[_Body], bytes]) -> bytes:
        (count,) = self.take(">i")
        return struct.pack(">i", max(0, count)) + b"".join(item(self) for _ in range(max(0, count)))


def refuse_retired_version(header: RequestHeader, frame: bytes) -> bytes | None:
    """Return the response's frame, with its length; None if none is due (acks=0) or its format is unknown.

    Raises MalformedRequest.
    """
    body = _Body(bytes(frame)[header.size :])
    answer: bytes | None = None
    if header.api_key == ApiKey.PRODUCE and 0 <= header.api_version <= 2:
        answer = _produce(header.api_version, body)
    elif header.api_key == ApiKey.FETCH and 0 <= header.api_version <= 3:
        answer = _fetch(header.api_version, body)
    elif header.api_key == ApiKey.LIST_OFFSETS and header.api_version == 0:
        answer = _list_offsets(body)
    if answer is None:
        return None
    return struct.pack(">ii", 4 + len(answer), header.correlation_id) + answer


def _produce(version: int, body: _Body) -> bytes | None:
    acks, _ = body.take(">hi")
    if acks == 0:
        return None
    append_time = b"\xff" * 8 if version == 2 else b""

    def partition(body: _Body) -> bytes:
        index, size = body.take(">ii")
        body.skip(max(0, size))
        return struct.pack(">ihq", index, _UNSUPPORTED, -1) + append_time

    return body.topics(partition) + (struct.pack(">i", 0) if version else b"")


def _fetch(version: int, body: _Body) -> bytes:
    body.take(">iii" if version < 3 else ">iiii")

    def partition(body: _Body) -> bytes:
        index, _, _ = body.take(">iqi")
        return struct.pack(">ihqi", index, _UNSUPPORTED, -1, 0)

    topics = body.topics(partition)
    return (struct.pack(">i", 0) if version else b"") + topics


def _list_offsets(body: _Body) -> bytes:
    body.take(">i")

    def partition(body: _Body) -> bytes:
        index, _, _ = body.take(">iqi")
        return struct.pack(">ihi", index, _UNSUPPORTED, 0)

    return body.topics(partition)
