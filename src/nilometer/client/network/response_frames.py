"""What a broker sends, cut into responses, each received once and copied at most once more, by its decoder.

Memory of its own for an event loop to receive into (as an asyncio.BufferedProtocol hands it out), and whole
frames out of it, without their lengths. A frame that did not come in one piece is received into a buffer of
exactly its size.

Invariant: a frame that is handed out stays as it is until the next one is asked for, and no longer.
"""

from __future__ import annotations

from collections.abc import Iterator

from nilometer.wire.errors import MalformedResponse

RECEIVE_BYTES = 64 * 1024
RESPONSE_BYTES_MAX = 1 << 30
LENGTH_BYTES = 4


class ResponseFrames:
    """One per connection."""

    __slots__ = ("_filled", "_frame", "_frame_filled", "_received", "_received_view")

    def __init__(self) -> None:
        self._received = bytearray(RECEIVE_BYTES)
        self._received_view = memoryview(self._received)
        self._filled = 0
        self._frame: memoryview | None = None
        """One that did not come in one piece."""
        self._frame_filled = 0

    def room(self) -> memoryview:
        """Where what comes next belongs."""
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._received_view[self._filled :]

    def received(self, size: int) -> Iterator[memoryview]:
        """So many bytes have come: every frame that is whole now. Raises MalformedResponse."""
        if self._frame is None:
            self._filled += size
            yield from self._split()
            return
        self._frame_filled += size
        if self._frame_filled == len(self._frame):
            frame, self._frame = self._frame, None
            yield frame

    def _split(self) -> Iterator[memoryview]:
        """Take every whole frame out of what was received; give an unfinished one a buffer of its own."""
        view, position, end = self._received_view, 0, self._filled
        while end - position >= LENGTH_BYTES:
            size = int.from_bytes(view[position : position + LENGTH_BYTES], "big", signed=True)
            if not 0 <= size <= RESPONSE_BYTES_MAX:
                raise MalformedResponse(f"a response of {size} bytes was announced")
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
