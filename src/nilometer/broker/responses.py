"""What is sent as the response to one request: a frame, pieces of one that are made while others are sent
(:class:`LongResponse`), or what a waiting request gets later (:class:`WaitingResponse`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Protocol

from nilometer.broker.turns import Turns
from nilometer.runtime.direct_future import DirectFuture
from nilometer.wire.building import Api, Message
from nilometer.wire.compression import Bytes
from nilometer.wire.messages import response_header

SENT_BYTES = 256 * 1024
"""A long response is sent in pieces of about this size, each when the client has read those before."""


class LongResponse(Protocol):
    """A response that is too large to be made at once: the connection sends it piece by piece."""

    def next(self) -> Sequence[Bytes] | None:
        """Do a bounded part of the work; return the buffers to send next, perhaps none yet, or None after the
        last ones. Raises CloseConnection if the response cannot be completed."""
        ...

    @property
    def size(self) -> int:
        """How many bytes it holds now."""
        ...

    def with_throttle_ms(self, throttle_ms: int) -> LongResponse:
        """Return the same response with this time to wait in it. Call it before :meth:`next`."""
        ...


Response = Sequence[Bytes] | LongResponse | None
"""The response to one request: buffers that form a frame, or None for no response (acks=0)."""


def whole(response: Sequence[Bytes] | LongResponse) -> bytes:
    """Return the frame of ``response``, with its length, in one piece: for what is never large."""
    if isinstance(response, Sequence):
        return b"".join(response)
    pieces: list[Bytes] = []
    while (more := response.next()) is not None:
        pieces += more
    return b"".join(pieces)


async def wait_whole(response: Sequence[Bytes] | LongResponse, turns: Turns) -> bytes:
    """Return the frame of ``response``, with its length, in one piece; a long one is made slice by slice."""
    if isinstance(response, Sequence):
        return b"".join(response)
    pieces: list[Bytes] = []
    while (more := response.next()) is not None:
        pieces += more
        await turns.wait_next()
    return b"".join(pieces)


class MadeResponse:
    """A response that has been made, and is sent piece by piece. A :class:`LongResponse`. All of it stays in
    memory until its last piece is sent."""

    def __init__(self, frame: Sequence[Bytes]) -> None:
        self._left = _sent_pieces(frame)
        self.size = sum(map(len, frame))

    def next(self) -> Sequence[Bytes] | None:
        return next(self._left, None)

    def with_throttle_ms(self, throttle_ms: int) -> LongResponse:
        raise AssertionError("its time to wait was encoded with the rest")


def _sent_pieces(frame: Iterable[Bytes]) -> Iterator[list[Bytes]]:
    """Yield the buffers that are sent together: at least ``SENT_BYTES``, but for the last ones."""
    pieces: list[Bytes] = []
    size = 0
    for buffer in frame:
        for piece in _cut(buffer):
            pieces.append(piece)
            size += len(piece)
            if size >= SENT_BYTES:
                yield pieces
                pieces, size = [], 0
    if pieces:
        yield pieces


def _cut(buffer: Bytes) -> Iterable[Bytes]:
    """Return the parts of a buffer, of ``SENT_BYTES`` at most."""
    if len(buffer) <= SENT_BYTES:
        return (buffer,)
    view = memoryview(buffer)
    return (view[start : start + SENT_BYTES] for start in range(0, len(view), SENT_BYTES))


class EncodedResponse:
    """A response whose message is encoded in slices. A :class:`LongResponse`."""

    def __init__(self, api: Api, correlation_id: int, response: Message, made_bytes: int = 0) -> None:
        """``made_bytes``: so much of ``response`` is encoded, and kept in memory, already."""
        self._api, self._correlation_id = api, correlation_id
        self._response: Message | None = response
        """None once it is encoded: it may be larger than what is sent."""
        self._made_bytes = made_bytes
        self._slices: Iterator[bytes] | None = api.response_slices(response)
        self._encoded: list[bytes] = [response_header(api, correlation_id)]
        self._left: Iterator[list[Bytes]] = iter(())
        self._on_frame: Callable[[bytes], None] | None = None
        self._encoded_bytes = 0

    @property
    def size(self) -> int:
        return max(self._made_bytes, self._encoded_bytes)

    @property
    def is_of_kept_bytes(self) -> bool:
        """Whether what the response is made of is in memory, and counts as such."""
        return self._made_bytes > 0

    def forget_encoded(self) -> None:
        """Keep nothing of what was encoded: all is encoded later."""
        assert self._response is not None, "it is not encoded as a whole"
        self._slices = self._api.response_slices(self._response)
        self._encoded = [response_header(self._api, self._correlation_id)]
        self._encoded_bytes = 0

    def hold(self, size: int) -> None:
        """Count so many bytes for what the response is made of, until it is encoded."""
        self._made_bytes = max(size, self._made_bytes)

    def on_frame(self, listener: Callable[[bytes], None]) -> None:
        """Call ``listener`` with the whole frame once it is encoded. Call this before :meth:`ready`."""
        self._on_frame = listener

    def ready(self) -> Sequence[Bytes] | EncodedResponse:
        """Return the frame if it takes one slice, else this object, which makes it later."""
        if self._encode_slice() and self._encode_slice():
            return self
        return (self._frame(),)

    def _frame(self) -> bytes:
        frame = _framed(self._encoded)
        if self._on_frame is not None:
            self._on_frame(frame)
        return frame

    def next(self) -> Sequence[Bytes] | None:
        if self._slices is not None:
            if not self._encode_slice():
                whole = [self._frame()] if self._on_frame else [_size_of(self._encoded), *self._encoded]
                self._left = _sent_pieces(whole)
                self._encoded = []
            return ()
        pieces = next(self._left, None)
        if pieces is None:
            return None
        self._encoded_bytes -= sum(map(len, pieces))
        return pieces

    def _encode_slice(self) -> bool:
        """Encode one slice; return false if there was none left."""
        assert self._slices is not None
        piece = next(self._slices, None)
        if piece is None:
            self._slices = self._response = None
            self._made_bytes = 0
            return False
        self._encoded.append(piece)
        self._encoded_bytes += len(piece)
        return True

    def with_throttle_ms(self, throttle_ms: int) -> LongResponse:
        if self._response is None or not hasattr(self._response, "throttle_time"):
            return self
        longer = max(self._response.throttle_time, timedelta(milliseconds=throttle_ms))
        changed = dataclasses.replace(self._response, throttle_time=longer)
        return EncodedResponse(self._api, self._correlation_id, changed, self._made_bytes)


class KeptResponse(EncodedResponse):
    """A response that is kept as a message, and never encoded."""

    def __init__(self, kept: list[Message], api: Api, response: Message) -> None:
        """``kept`` gets ``response`` as its only element."""
        super().__init__(api, 0, response)
        self._kept, self._message = kept, response

    def ready(self) -> Sequence[Bytes] | EncodedResponse:
        self._kept[:] = [self._message]
        return ()


def _size_of(pieces: Sequence[bytes]) -> bytes:
    return sum(map(len, pieces)).to_bytes(4, "big")


def _framed(pieces: Sequence[bytes]) -> bytes:
    return b"".join((_size_of(pieces), *pieces))


class CloseConnection(Exception):
    """No response in a format that the client understands is possible: the connection is closed, and the
    reason logged."""


class WaitingResponse(DirectFuture[Response]):
    """The response to a request that waits for another event: records, an acknowledgement.

    It leaves with that event. Since that may be an append, whose effects are being applied, its listeners
    must not process another request. It is cancelled if the client disconnects.
    """

    __slots__ = ()
