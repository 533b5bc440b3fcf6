"""Frames as lists of buffers, so that record sets travel from the log to the transport without a copy.

Small pieces are joined; a record set of ``COPY_BELOW`` bytes or more is kept as a separate buffer. The first
piece starts with the length of the whole frame.
"""

from __future__ import annotations

from nilometer.wire.compression import Bytes

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
