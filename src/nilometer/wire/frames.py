"""Splitting a stream of bytes into frames: a 4-byte big-endian length, then that many bytes.

At most one incomplete frame is buffered, and a length above the limit is rejected before any byte of that
frame is buffered.

Invariant: between calls the buffered bytes do not contain a complete frame.
"""

from __future__ import annotations

from nilometer.wire.errors import ErrorCode, KafkaError

LENGTH_BYTES = 4

REQUEST_BYTES_MAX = 104_857_600
"""Default of ``socket.request.max.bytes``."""


class FrameTooLarge(KafkaError):
    """A frame's length is negative or above the limit. The connection must be closed."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(
            ErrorCode.invalid_request, f"frame of {length} bytes exceeds the limit of {limit} bytes"
        )
        self.length = length
        self.limit = limit


class FrameSplitter:
    """Splits the bytes of one direction of one connection."""

    __slots__ = ("_limit", "_needed", "_rest")

    def __init__(self, limit: int = REQUEST_BYTES_MAX) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._needed = LENGTH_BYTES
        """How many bytes ``_rest`` must have to contain a complete frame."""

    @property
    def buffered(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that ``data`` completes, without their lengths. Raises FrameTooLarge."""
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
