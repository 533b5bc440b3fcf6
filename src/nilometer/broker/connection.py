"""One client's connection: splits bytes into frames, and sends responses in the order of the requests.

Framing, order and back-pressure are handled here; the dispatcher processes the requests. Invariants:

- Responses leave in request order. The response to a fetch that waits for data is sent as soon as the next
  request arrives. Produce requests and offset commits are processed while earlier ones still wait for their
  acknowledgement (pipelining); any other request is processed alone, as with Kafka's muted channels.
- Memory held for one connection is bounded: a frame above the limit closes the connection before it is
  read; a large frame's buffer grows with the bytes that arrive, not with the length announced, and out of
  the memory that all connections share; while the client does not read, none of its requests are processed
  and its socket is not read.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from typing_extensions import Buffer

from nilometer.broker.connection_memory import RequestMemory, ResponseMemory
from nilometer.broker.rejected_batches import RejectedBatches, RejectedTotal
from nilometer.broker.request_context import ANONYMOUS_CONTEXT, RequestContext
from nilometer.broker.responses import (
    SENT_BYTES,
    CloseConnection,
    EncodedResponse,
    LongResponse,
    MadeResponse,
    Response,
    WaitingResponse,
)
from nilometer.broker.turns import HAVE_TO_WAIT, SHARE_US, SLICE_US, Turns
from nilometer.cluster.cluster_secret import ClusterSecret, ProofExchange
from nilometer.runtime.runtime import SystemClock
from nilometer.wire.api_keys import api_name
from nilometer.wire.compression import Bytes

SCRATCH_BYTES = 256 * 1024
FRAMES_PER_TURN_MAX = 64
"""How many requests of one connection are processed before other connections are served."""
FRAMES_QUEUED_MAX = 64
"""How many undecoded frames one connection may queue before its socket is no longer read."""
BYTES_QUEUED_MAX = 8 * 1024 * 1024
GATHER_BYTES_MAX = 256 * 1024
"""Responses are gathered into one write up to this size."""
WRITE_BUFFER_BYTES = 256 * 1024
"""A client that leaves more than this unread is sent nothing more until it has read most of it. Of thousands
of clients each may leave less (:meth:`~nilometer.broker.connection_memory.ResponseMemory.open`)."""
LARGE_UNREAD_BYTES = 1
"""So much of a large response may be left without a pause. With 0 a transport with TLS would pause at once,
even if nothing is left, and resume while it writes."""
EAGER_FRAME_BYTES = 1024 * 1024
"""A frame gets a buffer of up to this size as soon as its length has arrived, if there is memory for it."""
CONNECTIONS = "connections"
"""What turns are called in which connections are opened and closed."""
CLOSED_HANDLE = "the handler is closed"
"""The end of uvloop's message when a transport is used that it has closed."""
SMALL_BYTES = 4 * 1024
"""One queued request of less is not counted as memory: of 10,000 connections they are 40 MB at most."""
FIRST_BUFFER_BYTES = 4096
"""The first buffer of a frame if there is not; and by so much it grows while the socket is not read, since
bytes that have been read before may follow."""

CLIENT_ID_BYTES_MAX = 64
"""So much of a client id tells apart who takes turns."""
_SIZE = struct.Struct(">I").unpack_from

Origin = tuple[str, str]
"""Whose a request is: principal and address."""

_scratch = bytearray(SCRATCH_BYTES)
_scratch_view = memoryview(_scratch)
"""The receive buffer of all connections: the event loop fills and empties it in one step."""


class Dispatcher(Protocol):
    def dispatch(self, frame: Buffer, connection: Connection) -> asyncio.Future[Response] | Response:
        """Process one request; return its response or the response's future. Raises CloseConnection."""
        ...

    def may_pipeline(self, frame: Buffer) -> bool:
        """Whether the request may be processed while earlier requests wait for their responses."""
        ...

    def request_failed(self, error: BaseException) -> None:
        """Report the unexpected error of a future that ``dispatch`` returned; its connection is closed."""
        ...

    def connection_opened(self, connection: Connection) -> bool: ...

    def connection_closed(self, connection: Connection) -> None: ...


class Connection:
    __slots__ = (
        "_answered_bytes",
        "_client_has_ended",
        "_close_reason",
        "_dispatcher",
        "_draining",
        "_expected_bytes",
        "_flow",
        "_flow_of",
        "_frame",
        "_frame_bytes_max",
        "_frame_filled",
        "_frame_size",
        "_handled_bytes",
        "_has_tls",
        "_head",
        "_holds_requests",
        "_is_ending",
        "_is_next_turn_scheduled",
        "_lacks_memory",
        "_last_blocks_pipeline",
        "_last_bytes",
        "_last_may_pipeline",
        "_log",
        "_long",
        "_long_is_made",
        "_memory",
        "_must_process_alone",
        "_muted",
        "_outgoing",
        "_outgoing_bytes",
        "_queue",
        "_queued_bytes",
        "_read_paused",
        "_requests",
        "_share_began_us",
        "_share_iteration",
        "_transport",
        "_turns",
        "_unread_bytes_max",
        "_unsent_bytes",
        "_waiting",
        "_waits_to_make",
        "_write_paused",
        "began_us",
        "certificate",
        "closed",
        "complete_early",
        "context",
        "last_active_ms",
        "last_api",
        "peer",
        "pending_proof",
        "proof_begun",
        "refused_as_broker",
        "rejected_batches",
    )
    # So many attributes are found faster than in a dictionary.

    def __init__(
        self,
        dispatcher: Dispatcher,
        frame_bytes_max: int,
        log: Callable[[str], None],
        requests: RequestMemory | None = None,
        context: RequestContext = ANONYMOUS_CONTEXT,
        turns: Turns | None = None,
        memory: ResponseMemory | None = None,
        rejected: RejectedTotal | None = None,
    ) -> None:
        """``context``: of the listener, without the client's address. ``turns``, ``memory``,
        ``requests``, ``rejected``: of all connections."""
        self._dispatcher = dispatcher
        clock = SystemClock()
        self._requests = RequestMemory(clock.monotonic_ms) if requests is None else requests
        self._holds_requests = False
        self._lacks_memory = False  # for more of the frame that is arriving
        self._handled_bytes = 0  # of a large request that is being handled
        self._turns = Turns(clock) if turns is None else turns
        self._memory = ResponseMemory(clock.monotonic_ms) if memory is None else memory
        self._frame_bytes_max = frame_bytes_max
        self._log = log
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()  # the part of a frame (or of its length) seen so far, while small
        self._frame: bytearray | None = None  # a large frame being filled in place
        self._frame_size = 0
        self._frame_filled = 0
        self._queue: deque[Bytes] = deque()
        self._queued_bytes = 0
        self._waiting: deque[asyncio.Future[Response]] = deque()  # responses to send, oldest first
        self._last_may_pipeline = False  # the last request in progress, as far as its API says
        self._last_blocks_pipeline = False  # it allows no pipelining
        self._must_process_alone = False
        self._outgoing: list[Bytes] = []
        self._outgoing_bytes = 0
        self._answered_bytes = 0  # in this slice
        self._unread_bytes_max = WRITE_BUFFER_BYTES
        self._unsent_bytes = 0
        """Of what was written last, if it was large and is not sent as a whole: all of it is in memory."""
        self._expected_bytes = 0  # of a response that is being made
        self.began_us = 0
        """When the present request began to be handled, on the monotonic clock (microseconds)."""
        self.last_api = -1
        """The API key of the last request; each dispatcher sets it."""
        self._last_bytes = 0
        self._long: LongResponse | None = None
        """The response that is being sent piece by piece; the next ones follow it."""
        self._long_is_made = False
        self._waits_to_make = False  # for its turn among large responses: meanwhile the client may go
        self._has_tls = False
        self._write_paused = False
        self._read_paused = False
        self._draining = False
        self._is_next_turn_scheduled = False
        self._share_iteration = self._share_began_us = 0
        """The iteration of the event loop in which this connection was served last, and since when."""
        self._is_ending = False  # nothing more is read or dispatched
        self._client_has_ended = False  # not all that it has sent is handled yet
        self._muted: asyncio.TimerHandle | None = None
        self._close_reason: str | None = None
        self.peer: tuple[str, int] = ("", 0)
        self.certificate: bytes | None = None
        """The peer's verified certificate, in DER; None if it has none, or no TLS."""
        self.context: RequestContext = context
        """The client of this connection; replaced as a whole when it opens, and when the peer authenticates
        or has proved that it is a broker."""
        self._flow = ("", "")  # whose turns its requests take, and for which context that was found
        self._flow_of: RequestContext | None = None
        self.proof_begun = False
        self.pending_proof: tuple[ProofExchange, ClusterSecret] | None = None
        """The exchange that the peer's proof must match, and the secret."""
        self.refused_as_broker = False
        self.complete_early: Callable[[], None] | None = None
        """Ends the wait of the waiting request and sends its response; None if the request cannot do so."""
        self.rejected_batches = RejectedBatches(rejected)
        self.last_active_ms = 0
        self.closed = False

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not derived from it
        self._unread_bytes_max = min(WRITE_BUFFER_BYTES, self._memory.open(self))
        self._transport.set_write_buffer_limits(high=self._unread_bytes_max)
        peer = transport.get_extra_info("peername")
        self.peer = (peer[0], peer[1]) if peer else ("", 0)
        encrypted = transport.get_extra_info("ssl_object")
        self._has_tls = encrypted is not None
        self.certificate = None if encrypted is None else encrypted.getpeercert(True)
        if not self._dispatcher.connection_opened(self):
            self.close("too many connections")
        self._turns.note(CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._frame = None
        self._requests.release(self)
        self.rejected_batches.forget_all()
        self._queue.clear()
        if self._muted is not None:
            self._muted.cancel()
        for future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._long = None
        self._memory.close(self)
        self._dispatcher.connection_closed(self)
        # A transport with TLS holds its protocol: the two, and OpenSSL's buffers, would stay until they are
        # found as garbage.
        self._transport = None
        self.complete_early = None
        self._turns.note(CONNECTIONS)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled :]
        return _scratch_view

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._frame_filled += nbytes
            if self._frame_filled == self._frame_size:
                frame, self._frame = self._frame, None
                self._enqueue(memoryview(frame).toreadonly())  # the decoder accepts only read-only buffers
            elif self._frame_filled == len(self._frame):
                self._grow_frame(self._frame)
        else:
            self._split(nbytes)
        if self._queue:
            self._handle_queued()
        if self._close_reason:
            self.close(self._close_reason)
        self._turns.note(self)

    def eof_received(self) -> bool:
        """Return whether to keep the connection although its client has closed it: until the batches are
        appended that it has sent, as in Kafka. With acks=0 a producer sends and closes."""
        # A transport with TLS is closed in any case.
        self._client_has_ended = not self.closed and not self._has_tls and self._has_unfinished
        return self._client_has_ended

    def pause_writing(self) -> None:
        self._write_paused = True
        self._hold_memory()
        self._balance_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._leave_unread(self._unread_bytes_max)
        if self._waits_to_make:
            self._memory.release(self)
            self._memory.wait_to_make(self)
            return
        if self._long is not None:
            self._hold_memory(has_progressed=not self._long_is_made)
            self._turns.call(self._send_long)
            return
        self._memory.release(self)
        self._send_responses()
        self._handle_queued()

    # --- bytes to frames

    def _split(self, end: int) -> None:
        """Take the frames from the first ``end`` bytes of the scratch buffer."""
        data, position, head = _scratch_view, 0, self._head
        if not head and end > 4 and _SIZE(data)[0] == end - 4 <= self._frame_bytes_max:
            self._enqueue(bytes(data[4:end]))  # the usual case: one whole request
            return
        if head:
            need = 4 - len(head)
            if need > 0:
                head += data[: min(need, end)]
                position = min(need, end)
                if len(head) < 4:
                    return
            (size,) = _SIZE(head)
            if size > self._frame_bytes_max:
                self._refuse_size(size)
                return
            take = min(size - (len(head) - 4), end - position)
            head += data[position : position + take]
            position += take
            if len(head) - 4 < size:
                self._begin_frame(size, memoryview(bytes(head))[4:])
                return
            self._head = bytearray()
            self._enqueue(bytes(head)[4:])
        while end - position >= 4:
            (size,) = _SIZE(data, position)
            if size > self._frame_bytes_max:
                self._refuse_size(size)
                return
            if end - position - 4 < size:
                self._begin_frame(size, data[position + 4 : end])
                return
            position += 4
            self._enqueue(bytes(data[position : position + size]))
            position += size
        if position < end:
            self._head = bytearray(data[position:end])

    def _refuse_size(self, size: int) -> None:
        """Close the connection once the frames before the one of this size are dispatched."""
        self._close_reason = (
            f"sent a request of {size} bytes; socket.request.max.bytes is {self._frame_bytes_max}"
        )

    def _begin_frame(self, size: int, seen: memoryview) -> None:
        self._head = bytearray()
        eager = min(size, EAGER_FRAME_BYTES)
        if not self._requests.has_room_ahead(self, eager):
            eager = min(size, max(FIRST_BUFFER_BYTES, 2 * len(seen)))
        frame = bytearray(eager)
        frame[: len(seen)] = seen
        self._frame, self._frame_size, self._frame_filled = frame, size, len(seen)
        self._hold_requests(has_progressed=True)

    def _grow_frame(self, frame: bytearray) -> None:
        filled = len(frame)
        size = min(self._frame_size, 4 * filled)
        if not (self.context.is_broker or self._requests.has_room(self, size - filled)):
            size = min(self._frame_size, filled + FIRST_BUFFER_BYTES)
            self._lacks_memory = True
            self._requests.wait(self)
            self._balance_reading()
        grown = bytearray(size)
        grown[:filled] = frame
        self._frame = grown
        self._hold_requests()

    def read_on(self) -> None:
        self._lacks_memory = False
        self._balance_reading()

    def handle_alone(self, size: int) -> None:
        """Delay the dispatch of later requests of this connection until the current one has its response, and
        hold its ``size`` bytes until :meth:`has_handled`. The handler of a large request calls this."""
        self.process_alone()
        self._handled_bytes = size

    def has_handled(self) -> None:
        self._handled_bytes = 0
        if not self.closed:
            self._hold_requests()

    def _hold_requests(self, *, has_progressed: bool = False) -> None:
        """Note how many bytes of requests are in memory: arriving, queued or being handled. Those of brokers
        do not count, so that replication goes on whatever clients do."""
        if self.context.is_broker:
            return
        arriving = 0 if self._frame is None else len(self._frame)
        size = arriving + self._queued_bytes + self._handled_bytes
        if size or self._holds_requests:
            self._holds_requests = size > 0
            self._requests.hold(self, size, has_progressed=has_progressed)

    # --- requests and responses

    @property
    def has_queued(self) -> bool:
        """Whether more requests have arrived whole."""
        return bool(self._queue)

    def _enqueue(self, frame: Bytes) -> None:
        self._queue.append(frame)
        self._queued_bytes += len(frame)

    def _handle_queued(self) -> None:
        """Dispatch queued frames at once, or when it is the client's turn if many connections have some.
        Brokers do not wait: replication goes on whatever clients do."""
        turns = self._turns
        if self.context.is_broker or self._close_reason:
            self._dispatch_queued()
            return
        if (now_us := turns.arrive()) != HAVE_TO_WAIT:
            # One readable socket is read up to 32 times before the next one.
            if self._share_iteration != turns.iteration:
                self._share_iteration, self._share_began_us = turns.iteration, now_us
            if now_us - self._share_began_us < SHARE_US:
                self._dispatch_queued(now_us)
                return
            self._schedule_next_turn()
        elif not self._is_next_turn_scheduled:
            self._is_next_turn_scheduled = True
            if self._flow_of is not self.context:
                self._flow, self._flow_of = self._find_flow(), self.context
            turns.call_in_turn(*self._flow, self._next_turn)
        if self._queued_bytes >= SMALL_BYTES or len(self._queue) > 1:  # a small request costs more to count
            self._hold_requests(has_progressed=True)
            self._balance_reading()

    def _find_flow(self) -> tuple[str, str]:
        """Return whose turns the requests of this connection take: the client, which is the principal that
        has logged in, or else the address; and the client id in the header of the next request.

        That is looked at once: clients do not change it.
        """
        principal = self.context.principal
        client = self.peer[0] if principal == ANONYMOUS_CONTEXT.principal else str(principal)
        frame = self._queue[0] if self._queue else b""
        size = int.from_bytes(frame[8:10], "big", signed=True)
        return client, bytes(frame[10 : 10 + max(0, min(size, CLIENT_ID_BYTES_MAX))]).decode("latin-1")

    def _dispatch_queued(self, now_us: int | None = None) -> None:
        """Dispatch queued frames, until the order of requests, a client that does not read, or the share of
        this connection (``FRAMES_PER_TURN_MAX``) stops it. ``now_us``: None if it has to be asked for."""
        if self._draining or self._is_ending:
            return
        self._draining = True
        taken, self._answered_bytes = 0, 0
        queue = self._queue
        began_us = self.began_us = self._turns.now_us() if now_us is None else now_us
        try:
            while (
                queue
                and self._muted is None
                and not self._write_paused
                and self._long is None
                and not self.closed
            ):
                if taken:
                    self.began_us = self._turns.now_us()
                    if (
                        taken == FRAMES_PER_TURN_MAX
                        or self._answered_bytes >= self._unread_bytes_max
                        or self.began_us - began_us >= SLICE_US
                    ):
                        self._schedule_next_turn()
                        break
                frame = queue[0]
                if self._waiting:
                    if self._last_blocks_pipeline or not self._dispatcher.may_pipeline(frame):
                        self._complete_waiting_fetch()
                        break
                    if len(self._waiting) >= FRAMES_QUEUED_MAX:
                        break
                queue.popleft()
                self._last_bytes = len(frame)
                self._queued_bytes -= self._last_bytes
                self._serve(frame)
                taken += 1
        finally:
            self._draining = False
        self._flush()
        if queue or self._holds_requests or self._handled_bytes:
            self._hold_requests(has_progressed=taken > 0)
        if queue or self._read_paused or self._long is not None:
            self._balance_reading()
        if self._client_has_ended and not self._has_unfinished:
            self.close()

    @property
    def _has_unfinished(self) -> bool:
        """Whether a request that may be pipelined, a Produce request say, waits to be handled, or is being
        handled. One that only waits for its acknowledgement is not."""
        if self._waiting and self._last_blocks_pipeline:
            return self._last_may_pipeline
        return bool(self._queue) and self._dispatcher.may_pipeline(self._queue[0])

    def expect(self, size: int) -> None:
        """Hold ``size`` bytes of memory for the response that is being made, until it is written."""
        if size != self._expected_bytes and not self.closed:
            self._expected_bytes = size
            self._hold_memory(has_progressed=True)

    def _hold_memory(self, *, has_progressed: bool = False, is_made: bool = True) -> None:
        """Note how many bytes of responses wait for the client to read. ``has_progressed``: whether it has
        read some, or more of its response was made; ``is_made``: whether that is encoded as a whole."""
        transport = self._transport
        size = 0 if transport is None else transport.get_write_buffer_size()
        size = max(size, self._unsent_bytes) + self._expected_bytes
        if has_progressed:
            self._memory.release(self)
        size += 0 if self._long is None else self._long.size
        if size or not is_made:
            self._memory.hold(self, size, is_made=is_made)

    @property
    def _may_write(self) -> bool:
        """Whether the client reads, and no earlier response is being sent piece by piece."""
        return not self._write_paused and self._long is None

    def _schedule_next_turn(self) -> None:
        if not self._is_next_turn_scheduled:
            self._is_next_turn_scheduled = True
            self._turns.call(self._next_turn)

    def _next_turn(self) -> None:
        self._is_next_turn_scheduled = False
        if not self.closed:
            self._dispatch_queued()
            self._turns.note(self)

    @property
    def origin(self) -> Origin:
        return str(self.context.principal), self.context.client_address

    @property
    def client(self) -> str:
        """Who the client is, for messages."""
        return f"{self.context.principal} at {self.peer[0]}:{self.peer[1]}"

    @property
    def kind(self) -> str:
        """The API of the last request; without any, the work is about the connection itself."""
        return CONNECTIONS if self.last_api < 0 else api_name(self.last_api)

    def describe(self) -> str:
        """Say what a turn was about that this connection took."""
        return f"{self.kind} of {self._last_bytes} bytes from {self.client}"

    def _complete_waiting_fetch(self) -> None:
        """Send the response to a fetch that only waits for more data: another request has arrived after
        it."""
        complete_early, self.complete_early = self.complete_early, None
        if complete_early is not None:
            asyncio.get_running_loop().call_soon(complete_early)

    def process_alone(self) -> None:
        """Delay the dispatch of later requests of this connection until the current one has its response.

        The handler of the current request calls this.
        """
        self._must_process_alone = True

    def hand_over(self, dispatcher: Dispatcher, frame_bytes_max: int) -> None:
        """Have ``dispatcher`` process the later requests, with frames of up to ``frame_bytes_max``."""
        self._dispatcher, self._frame_bytes_max = dispatcher, frame_bytes_max

    def mute(self, duration_ms: int) -> None:
        """Read and process no more requests for this time from now on: the client is above a quota."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + duration_ms / 1000
        if self.closed or (self._muted is not None and self._muted.when() >= ends):
            return
        if self._muted is not None:
            self._muted.cancel()
        self._muted = loop.call_at(ends, self._unmute)
        self._balance_reading()

    def _unmute(self) -> None:
        self._muted = None
        self._handle_queued()

    def hold(self, duration_ms: int, end: str | None = None) -> None:
        """Read nothing from the start for this time; then close it if ``end`` is given, the reason."""
        loop = asyncio.get_running_loop()
        done = self._unmute if end is None else lambda: self.abort(end)
        self._muted = loop.call_later(duration_ms / 1000, done)
        loop.call_soon(self._balance_reading)  # a transport begins to read after it has been connected

    def stop_reading(self) -> None:
        """Read nothing more, and drop the requests that are queued: the connection ends soon."""
        self._queue.clear()
        self._is_ending = True
        self._balance_reading()

    def _serve(self, frame: Bytes) -> None:
        self._must_process_alone = False
        try:
            response = self._dispatcher.dispatch(frame, self)
        except CloseConnection as reason:
            self.close(str(reason))
            return
        if isinstance(response, asyncio.Future):
            self._last_may_pipeline = self._dispatcher.may_pipeline(frame)
            self._last_blocks_pipeline = self._must_process_alone or not self._last_may_pipeline
            self._waiting.append(response)
            if isinstance(response, WaitingResponse):
                response.add_listener(self._on_response)
            else:
                response.add_done_callback(self._on_response)
        elif not self._waiting and self._long is None:
            if response is not None:
                self._write(response)
        else:
            done: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            done.set_result(response)
            self._waiting.append(done)

    def _on_response(self, _reply: asyncio.Future[Response]) -> None:
        """Send the responses that are ready. Later requests are processed in the next iteration of the event
        loop, since a waiting response may be made while another connection's request is processed."""
        if self.closed:
            return
        self._send_responses()
        if (self._queue or self._read_paused or self._client_has_ended) and not self._draining:
            self._schedule_next_turn()

    def _send_responses(self) -> None:
        while self._waiting and self._waiting[0].done() and self._may_write and not self.closed:
            if not self._write_next_response():
                error = self._waiting[0].exception()
                assert error is not None
                if not isinstance(error, CloseConnection):
                    self._dispatcher.request_failed(error)
                self.close(str(error) or repr(error))

    def _write_next_response(self) -> bool:
        """Write the oldest response, whose future is done; false if it failed: then no later one can be
        sent."""
        future = self._waiting[0]
        if not future.cancelled() and future.exception() is not None:
            return False
        self._waiting.popleft()
        response = None if future.cancelled() else future.result()
        if response is not None:
            self._write(response)
        return True

    def _write(self, response: Sequence[Bytes] | LongResponse) -> None:
        """Gather responses that are ready together, so that many small ones take one system call."""
        if self._expected_bytes:
            self._expected_bytes = 0
            self._memory.release(self)
        if not isinstance(response, (tuple, list)):
            self._begin_long(cast(LongResponse, response))
            return
        # A transport with TLS encrypts all that is written to it, and does not count what it has encrypted.
        if self._has_tls and sum(map(len, response)) > SENT_BYTES:
            self._begin_long(MadeResponse(response))
            return
        for buffer in response:
            size = len(buffer)
            self._outgoing.append(buffer)
            self._outgoing_bytes += size
            self._answered_bytes += size
        if not self._draining or self._outgoing_bytes >= GATHER_BYTES_MAX:
            self._flush()

    def _begin_long(self, response: LongResponse) -> None:
        self._long, self._long_is_made = response, isinstance(response, MadeResponse)
        if self._long_is_made or (isinstance(response, EncodedResponse) and response.is_of_kept_bytes):
            self._hold_memory()
        elif not self.context.is_broker:
            if isinstance(response, EncodedResponse):
                response.forget_encoded()
            self._waits_to_make = True
            self._memory.wait_to_make(self)
            return
        self._turns.call(self._send_long)

    def make_on(self) -> None:
        """Encode the response that has waited for it; if the client does not read, when it does."""
        if self._write_paused or self.closed:
            return
        self._waits_to_make = False
        self._hold_memory(is_made=False)
        self._balance_reading()
        self._turns.call(self._send_long)

    def _send_long(self) -> None:
        """Send the next piece of a long response; those after it when the client has read this one."""
        if self._long is None or self._write_paused or self.closed:
            return
        try:
            buffers = self._long.next()
        except CloseConnection as reason:
            self.abort(str(reason))
            return
        if buffers is None:
            self._long = None
            self._memory.release(self)
            self._send_responses()
            self._dispatch_queued()
        else:
            self._outgoing += buffers
            self._outgoing_bytes += sum(map(len, buffers))
            self._flush()
            self._hold_memory(
                has_progressed=not self._long_is_made, is_made=self._long_is_made or bool(buffers)
            )
            if not self._write_paused and not self.closed:
                self._turns.call(self._send_long)
        self._turns.note(self)

    def _flush(self) -> None:
        outgoing, size, transport = self._outgoing, self._outgoing_bytes, self._transport
        if outgoing:
            self._outgoing, self._outgoing_bytes = [], 0
        # uvloop reports a reset in a later iteration than it closes the transport; a write in between raises.
        if not outgoing or transport is None or self.closed or transport.is_closing():
            return
        try:
            if size > self._unread_bytes_max:
                self._leave_unread(LARGE_UNREAD_BYTES, size)
            if len(outgoing) == 1:
                transport.write(outgoing[0])  # type: ignore[arg-type]
            else:
                transport.writelines(outgoing)  # type: ignore[arg-type]
            if self._unsent_bytes and not self._write_paused:
                self._leave_unread(self._unread_bytes_max)
        except RuntimeError as error:
            self._end_if_closed(error)

    def _leave_unread(self, bytes_max: int, written: int = 0) -> None:
        """Let the client leave so many bytes unread before its connection is paused: nothing of a large
        response, ``written``, since its buffer stays in memory until its last byte has been sent."""
        if written or self._unsent_bytes:
            self._unsent_bytes = written
            if self._transport is not None:
                self._transport.set_write_buffer_limits(high=bytes_max)

    def _balance_reading(self) -> None:
        full = (
            self._is_ending
            or not (self._may_write or self._waits_to_make)
            or self._muted is not None
            or self._lacks_memory
            or (self._is_next_turn_scheduled and bool(self._queue))  # in the socket they cost nothing
            or len(self._queue) >= FRAMES_QUEUED_MAX
            or self._queued_bytes >= BYTES_QUEUED_MAX
        )
        if not full and self._queue and not (self.context.is_broker or self._requests.has_room(self, 0)):
            self._requests.wait(self)
            full = True
        transport = self._transport
        if full == self._read_paused or transport is None or self.closed or transport.is_closing():
            return
        self._read_paused = full
        try:
            if full:
                transport.pause_reading()
            else:
                transport.resume_reading()
        except RuntimeError as error:
            self._end_if_closed(error)

    def _end_if_closed(self, error: RuntimeError) -> None:
        """End the connection if its transport is closed: an event loop that ends closes all of them, and
        ``is_closing`` does not tell. Raises ``error`` if it says something else."""
        if CLOSED_HANDLE not in str(error):
            raise error
        self._end(None)

    def close(self, reason: str | None = None) -> None:
        """Close the connection after the finished responses are written; ``reason`` is logged."""
        if self.closed:
            return
        # Responses finished in this step of the event loop are not written yet.
        while self._may_write and self._waiting and self._waiting[0].done() and self._write_next_response():
            pass
        self._flush()
        self._end(reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the connection now, without waiting until the client has read; ``reason`` is logged."""
        if not self.closed:
            self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str | None) -> None:
        self.closed = True
        if reason:
            self._log(f"Closing the connection from {self.peer[0]}:{self.peer[1]}: {reason}")


class ServedConnection(Connection, asyncio.BufferedProtocol):
    """A connection of an event loop, which wants this base; a compiled class cannot have it."""

    __slots__ = ()
