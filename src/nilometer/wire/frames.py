"""Frames: a 4-byte big-endian length, then that many bytes. Splits a stream into them, and builds them as
lists of buffers, without a copy of the record sets.
"""

from __future__ import annotations

from nilometer.wire.compression import Bytes
from nilometer.wire.errors import ErrorCode, KafkaError

# Splitting a stream of bytes into frames: a 4-byte big-endian length, then that many bytes.
#
# At most one incomplete frame is buffered, and a length above the limit is rejected before any byte of that
# frame is buffered.
#
# Invariant: between calls the buffered bytes do not contain a complete frame.

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


# Frames as lists of buffers, so that record sets travel from the log to the transport without a copy.
#
# Small pieces are joined; a record set of ``COPY_BELOW`` bytes or more is kept as a separate buffer. The
# first piece starts with the length of the whole frame.

COPY_BELOW = 4096
"""Copying fewer bytes than this costs less than one more buffer for the transport to handle."""


class FrameWriter:
    """Collects the pieces of one frame. Append small pieces to the list ``small``."""

    __slots__ = ("_done", "_done_size", "small")

    def __init__(self) -> None:
        self.small: list[Bytes] = []
        self._done: list[Bytes] = []
        self._done_size = 0

    def add_records(self, buffer: Bytes) -> None:
        if len(buffer) < COPY_BELOW:
            self.small.append(buffer)
            return
        self._flush()
        self._done.append(buffer)
        self._done_size += len(buffer)

    def end_slice(self) -> int:
        """Join the small pieces of a slice; return how many there were."""
        count = len(self.small)
        self._flush()
        return count

    def finish(self) -> list[Bytes]:
        """Return the frame's buffers, in order. The writer must not be used afterwards."""
        if not self._done:
            body = b"".join(self.small)
            return [len(body).to_bytes(4, "big") + body]
        if self.small:
            self._flush()
        self._done[0] = b"".join((self._done_size.to_bytes(4, "big"), self._done[0]))
        return self._done

    def _flush(self) -> None:
        joined = b"".join(self.small)
        self._done.append(joined)
        self._done_size += len(joined)
        self.small.clear()
