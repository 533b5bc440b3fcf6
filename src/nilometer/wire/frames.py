"""Cutting a stream of bytes into frames: a 4-byte big-endian length, then that many bytes.

Pure: bytes go in as they arrive, whole frames come out. Never holds more than one incomplete frame,
and refuses a length above its limit before a single byte of that frame is kept.

Invariant: ``buffered`` bytes never hold a complete frame between calls.
"""

from __future__ import annotations

from nilometer.wire.errors import ErrorCode, KafkaError

LENGTH_BYTES = 4

REQUEST_BYTES_MAX = 104_857_600
"""Default of ``socket.request.max.bytes``."""


class FrameTooLarge(KafkaError):
    """The announced length is negative or above the limit: the stream cannot be followed any further."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(ErrorCode.invalid_request, f"frame of {length} bytes, the limit is {limit}")
        self.length = length
        self.limit = limit


class FrameSplitter:
    """One per connection and direction."""

    __slots__ = ("_limit", "_needed", "_rest")

    def __init__(self, limit: int = REQUEST_BYTES_MAX) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._needed = LENGTH_BYTES
        """How many bytes ``_rest`` must have before it is worth looking at again."""

    @property
    def buffered(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """All frames completed by ``data``, without their lengths. Raises FrameTooLarge."""
        rest = self._rest
        if not rest:
            frames, consumed = self._split(data)
            if consumed < len(data):
                rest += memoryview(data)[consumed:]
            return frames
        rest += data
        if len(rest) < self._needed:
            return []
        frames, consumed = self._split(rest)
        del rest[:consumed]
        return frames

    def _split(self, data: bytes | bytearray) -> tuple[list[bytes], int]:
        frames: list[bytes] = []
        position, end = 0, len(data)
        self._needed = LENGTH_BYTES
        with memoryview(data) as view:
            while end - position >= LENGTH_BYTES:
                length = int.from_bytes(view[position : position + LENGTH_BYTES], "big", signed=True)
                if not 0 <= length <= self._limit:
                    raise FrameTooLarge(length, self._limit)
                frame_end = position + LENGTH_BYTES + length
                if frame_end > end:
                    self._needed = frame_end - position
                    break
                frames.append(bytes(view[position + LENGTH_BYTES : frame_end]))
                position = frame_end
        return frames, position
