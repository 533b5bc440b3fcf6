"""Splits the bytes that a broker sends into responses, without copying those that arrive whole.

Provides the memory that the event loop receives into (for asyncio.BufferedProtocol), and yields whole frames
from it, without their length prefixes. A frame that does not arrive in one piece is received into a buffer of
exactly its size.

Invariant: a frame that is yielded is valid until the next one is requested, and no longer.
"""

from __future__ import annotations

from collections.abc import Iterator

from nilometer.wire.errors import MalformedResponse

RECEIVE_BYTES = 64 * 1024
RESPONSE_BYTES_MAX = 1 << 30
LENGTH_BYTES = 4


class ResponseFrames:
    """The receive buffers of one connection."""

    __slots__ = ("_filled", "_frame", "_frame_filled", "_received", "_received_view")

    def __init__(self) -> None:
        self._received = bytearray(RECEIVE_BYTES)
        self._received_view = memoryview(self._received)
        self._filled = 0
        self._frame: memoryview | None = None
        """The buffer of a frame of which a part has arrived; None if there is none."""
        self._frame_filled = 0

    def room(self) -> memoryview:
        """Return the memory for the next received bytes."""
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._received_view[self._filled :]

    def received(self, size: int) -> Iterator[memoryview]:
        """Note that ``size`` bytes were received into :meth:`room`; yield every frame that is now whole.

        Raises MalformedResponse for an impossible length.
        """
        if self._frame is None:
            self._filled += size
            yield from self._split()
            return
        self._frame_filled += size
        if self._frame_filled == len(self._frame):
            frame, self._frame = self._frame, None
            yield frame

    def _split(self) -> Iterator[memoryview]:
        """Yield every whole frame of the receive buffer; move an unfinished one to a buffer of its size."""
        view, position, end = self._received_view, 0, self._filled
        while end - position >= LENGTH_BYTES:
            size = int.from_bytes(view[position : position + LENGTH_BYTES], "big", signed=True)
            if not 0 <= size <= RESPONSE_BYTES_MAX:
                raise MalformedResponse(f"the length field of a response is {size}")
            position += LENGTH_BYTES
            if end - position < size:
                frame = memoryview(bytearray(size))
                self._frame_filled = end - position
                frame[: self._frame_filled] = view[position:end]
                self._frame = frame
                position = end
                break
            yield view[position : position + size]
            position += size
        rest = end - position
        if rest:
            self._received[:rest] = self._received[position:end]
        self._filled = rest
