"""Frames out of bytes, answers in order, and memory that a client cannot make grow."""

from __future__ import annotations

import asyncio
import random

import pytest

from nilometer.broker import connection_memory
from nilometer.broker.connection import (
    BYTES_QUEUED_MAX,
    EAGER_FRAME_BYTES,
    FRAMES_PER_TURN_MAX,
    FRAMES_QUEUED_MAX,
    Connection,
    Response,
)
from nilometer.broker.connection_memory import (
    FETCH_BYTES_MAX,
    FETCH_BYTES_MIN,
    HELD_BYTES_MAX,
    MADE_AT_ONCE,
    ORIGINS,
    SHARE,
    STALLED_MS,
    UNREAD_MS,
    RequestMemory,
    ResponseMemory,
)
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import CloseConnection, EncodedResponse, WaitingResponse
from nilometer.broker.turns import SHARE_US, Turns
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.messages import api
from support.eventually import becomes
from support.step_clock import StepClock

FRAME_BYTES_MAX = 3_000_000


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading = True
        self.closed = False
        self.closed_handle = False
        self.aborted = False
        self.unread = 0
        self.unread_max = 0

    def write(self, data):
        self._check_alive()
        self.written.append(bytes(data))

    def _check_alive(self):
        """uvloop closes the transport of a connection that was reset before it calls ``connection_lost``."""
        if self.closed or self.closed_handle:
            raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")

    def writelines(self, list_of_data):
        self._check_alive()
        self.written.append(b"".join(bytes(part) for part in list_of_data))

    def set_write_buffer_limits(self, high=None, low=None):
        self.unread_max = high or 0

    def get_write_buffer_size(self):
        return self.unread

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name == "peername" else default

    def pause_reading(self):
        self._check_alive()
        self.reading = False

    def resume_reading(self):
        self._check_alive()
        self.reading = True

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True


class Recorder:
    """Answers each frame with itself: at once, or when the test says so for frames that begin with ``w``.

    Those that begin with ``we`` wait for an event, the others for a task.
    """

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.futures: list[asyncio.Future[Response]] = []

    def dispatch(self, frame, connection):
        data = bytes(frame)
        self.frames.append(data)
        if data[:1] in (b"w", b"W"):
            waits = data[:2] == b"we"
            self.futures.append(WaitingResponse() if waits else asyncio.get_running_loop().create_future())
            return self.futures[-1]
        return (data,)

    def may_pipeline(self, frame):
        return bytes(frame[:1]) not in (b"W", b"a")

    def connection_opened(self, connection):
        return True

    def connection_closed(self, connection):
        pass


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def open_connection(
    turns: Turns | None = None,
) -> tuple[Connection, FakeTransport, Recorder, list[str]]:
    recorder, transport, said = Recorder(), FakeTransport(), []
    connection = Connection(recorder, FRAME_BYTES_MAX, said.append, turns=turns or Turns(StepClock()))
    connection.connection_made(transport)
    return connection, transport, recorder, said


async def test_a_reply_to_a_connection_that_was_just_reset_is_dropped() -> None:
    for request in (b"wait", b"we"):
        connection, transport, recorder, said = open_connection()
        feed(connection, frame(request))
        await becomes(lambda recorder=recorder: recorder.futures, "the request is processed")
        transport.close()
        recorder.futures[0].set_result((b"late",))
        await asyncio.sleep(0)
        connection.connection_lost(ConnectionResetError())
        assert connection.closed
        assert transport.written == said == []


@pytest.mark.parametrize("replies", [(b"late",), (b"la", b"te")])
async def test_a_reply_to_a_transport_that_is_closed_without_saying_so_is_dropped(
    replies: tuple[bytes, ...],
) -> None:
    """An event loop that ends closes them."""
    connection, transport, recorder, said = open_connection()
    feed(connection, frame(b"wait"))
    await becomes(lambda: recorder.futures, "the request is processed")
    transport.closed_handle = True
    recorder.futures[0].set_result(replies)
    await asyncio.sleep(0)
    assert connection.closed
    assert transport.written == said == []


def feed(connection: Connection, data: bytes, sizes=None) -> None:
    position = 0
    while position < len(data) and not connection.closed:
        room = connection.get_buffer(-1)
        count = min(len(room), len(data) - position, next(sizes) if sizes else len(data))
        room[:count] = data[position : position + count]
        connection.buffer_updated(count)
        position += count


@pytest.mark.parametrize("seed", range(8))
def test_frames_are_whole_however_the_bytes_arrive(seed):
    chance = random.Random(seed)
    frames = [
        chance.randbytes(chance.choice([0, 1, 3, 4, 5, 60, 4096, 262_143, 262_144, 262_145, 2_500_000]))
        for _ in range(40)
    ]
    frames = [b"x" + data for data in frames]

    async def run() -> None:
        connection, transport, recorder, _ = open_connection(Turns(StepClock()))
        sizes = iter(lambda: chance.choice([1, 2, 3, 5, 1000, 100_000, 10_000_000]), None)
        feed(connection, b"".join(frame(data) for data in frames), sizes)
        assert recorder.frames == frames
        assert b"".join(transport.written) == b"".join(frames)

    asyncio.run(run())


def test_a_frame_above_the_limit_closes_the_connection_unread():
    async def run() -> None:
        connection, transport, recorder, said = open_connection()
        feed(connection, frame(b"fine") + (FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
        assert recorder.frames == [b"fine"]
        assert transport.closed
        assert "socket.request.max.bytes" in said[0]

    asyncio.run(run())


def test_a_negative_length_closes_the_connection():
    async def run() -> None:
        connection, transport, _, _ = open_connection()
        feed(connection, b"\xff\xff\xff\xff")
        assert transport.closed

    asyncio.run(run())


def test_an_announced_length_takes_no_memory_before_its_bytes_arrive():
    async def run() -> None:
        connection, _, _, _ = open_connection()
        feed(connection, FRAME_BYTES_MAX.to_bytes(4, "big") + b"only this")
        assert len(connection._frame) <= 1024 * 1024

    asyncio.run(run())


def test_answers_leave_in_request_order():
    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        feed(connection, frame(b"w1") + frame(b"now") + frame(b"w2"))
        assert recorder.frames == [b"w1", b"now", b"w2"]  # pipelined
        assert transport.written == []
        recorder.futures[1].set_result((b"second",))
        await asyncio.sleep(0)
        assert transport.written == []
        recorder.futures[0].set_result((b"first",))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.written == [b"first", b"now", b"second"]

    asyncio.run(run())


def test_a_waiting_answer_leaves_with_what_ends_its_wait() -> None:
    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        feed(connection, frame(b"we1") + frame(b"we2") + frame(b"now"))
        recorder.futures[1].set_result((b"second",))
        assert transport.written == []
        recorder.futures[0].set_result((b"first",))
        assert b"".join(transport.written) == b"firstsecondnow"

    asyncio.run(run())


def test_the_end_of_a_wait_processes_no_request_at_once() -> None:
    """It may be in the middle of an append; a request of this connection could append to the same log."""

    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        feed(connection, frame(b"we1") + frame(b"a"))  # "a" is not pipelined
        recorder.futures[0].set_result((b"first",))
        assert recorder.frames == [b"we1"]
        assert transport.written == [b"first"]
        await asyncio.sleep(0)
        assert transport.written == [b"first", b"a"]

    asyncio.run(run())


def test_an_answer_that_is_made_while_its_request_is_processed_is_sent_once() -> None:
    class Immediate(Recorder):
        def dispatch(self, frame, connection):
            reply = super().dispatch(frame, connection)
            if isinstance(reply, WaitingResponse):
                reply.set_result((b"made",))
            return reply

    async def run() -> None:
        connection, transport = (
            Connection(Immediate(), FRAME_BYTES_MAX, print, turns=Turns(StepClock())),
            FakeTransport(),
        )
        connection.connection_made(transport)
        feed(connection, frame(b"we1") + frame(b"now"))
        assert b"".join(transport.written) == b"madenow"

    asyncio.run(run())


def test_a_wait_ends_when_its_client_disconnects() -> None:
    async def run() -> None:
        ended: list[str] = []
        connection, transport, recorder, _ = open_connection()
        feed(connection, frame(b"we1") + frame(b"we2"))
        for number, reply in enumerate(recorder.futures):
            assert isinstance(reply, WaitingResponse)
            reply.on_cancelled = lambda number=number: ended.append(f"wait {number}")
        recorder.futures[0].set_result((b"first",))
        connection.connection_lost(None)
        assert ended == ["wait 1"]
        assert transport.written == [b"first"]

    asyncio.run(run())


def test_a_request_that_may_not_be_passed_holds_back_the_next():
    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        feed(connection, frame(b"W1") + frame(b"next"))
        assert recorder.frames == [b"W1"]
        recorder.futures[0].set_result((b"done",))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert recorder.frames == [b"W1", b"next"]
        assert transport.written == [b"done", b"next"]

    asyncio.run(run())


def test_a_client_that_does_not_read_is_not_served_and_not_read_from():
    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        connection.pause_writing()
        feed(connection, frame(b"x" * 1000))
        assert recorder.frames == []
        assert not transport.reading
        connection.resume_writing()
        assert recorder.frames == [b"x" * 1000]
        assert transport.reading

    asyncio.run(run())


@pytest.mark.parametrize("answered_first", [False, True])
def test_a_connection_that_is_ending_reads_nothing_more_when_its_client_reads_again(answered_first):
    """A client that failed to authenticate has its answer later, and cannot try again until then."""

    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        feed(connection, frame(b"W1") + frame(b"queued"))
        connection.stop_reading()
        assert not transport.reading
        if answered_first:
            recorder.futures[0].set_result((b"refused",))
            await asyncio.sleep(0)
        connection.pause_writing()
        connection.resume_writing()
        connection.mute(1)
        await asyncio.sleep(0.01)
        assert not transport.reading
        feed(connection, frame(b"more"))
        if not answered_first:
            recorder.futures[0].set_result((b"refused",))
            await asyncio.sleep(0)
        assert recorder.frames == [b"W1"]
        assert transport.written == [b"refused"]
        connection.connection_lost(None)

    asyncio.run(run())


def test_frames_wait_in_bounded_number():
    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        feed(connection, frame(b"W"))
        sent = 0
        while transport.reading and sent <= FRAMES_QUEUED_MAX:
            feed(connection, frame(b"next"))
            sent += 1
        assert sent == FRAMES_QUEUED_MAX
        recorder.futures[0].set_result(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.reading
        assert len(recorder.frames) == 1 + sent

    asyncio.run(run())


def test_frames_wait_in_bounded_bytes():
    async def run() -> None:
        connection, transport, _, _ = open_connection()
        feed(connection, frame(b"W"))
        held = 0
        while transport.reading:
            feed(connection, frame(bytes(1_000_000)))
            held += 1_000_000
            assert held <= BYTES_QUEUED_MAX + 1_000_000

    asyncio.run(run())


def test_no_answer_is_sent_for_a_request_that_wants_none():
    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        feed(connection, frame(b"w") + frame(b"x"))
        recorder.futures[0].set_result(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.written == [b"x"]

    asyncio.run(run())


def test_a_lost_connection_cancels_what_waits():
    async def run() -> None:
        connection, _, recorder, _ = open_connection()
        feed(connection, frame(b"w"))
        connection.connection_lost(None)
        assert recorder.futures[0].cancelled()

    asyncio.run(run())


def test_what_a_client_has_sent_before_it_closed_is_handled_first() -> None:
    """As in Kafka: a producer with acks=0 sends and closes."""

    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        handle = recorder.dispatch

        def handle_alone(frame, connection):
            connection.process_alone()
            return handle(frame, connection)

        recorder.dispatch = handle_alone
        feed(connection, frame(b"w1") + frame(b"w2") + frame(b"W3") + frame(b"w4"))
        assert connection.eof_received(), "the transport stays open"
        for handled in (1, 2):
            assert recorder.frames == [b"w1", b"w2"][:handled]
            assert not transport.closed
            recorder.futures[-1].set_result(None)
            await asyncio.sleep(0.01)
        assert transport.closed, "nothing but the third request's response is waited for"

    asyncio.run(run())


def test_a_client_that_closes_does_not_wait_for_its_acknowledgements() -> None:
    async def run() -> None:
        connection, _, recorder, _ = open_connection()
        feed(connection, frame(b"w"))
        assert recorder.frames == [b"w"]
        assert not connection.eof_received()

    asyncio.run(run())


def opened(requests: RequestMemory) -> tuple[Connection, FakeTransport, Recorder, list[str]]:
    recorder, transport, said = Recorder(), FakeTransport(), []
    connection = Connection(recorder, FRAME_BYTES_MAX, said.append, requests, turns=Turns(StepClock()))
    connection.connection_made(transport)
    return connection, transport, recorder, said


WANTED = frame(bytes(range(256)) * 8000)
"""A request of 2 MB."""


async def test_buffers_ahead_of_their_bytes_come_from_one_memory() -> None:
    """A frame that finds it used up grows with its bytes instead, and is whole all the same."""
    memory = RequestMemory(lambda: 0, EAGER_FRAME_BYTES)
    first, _, of_first, _ = opened(memory)
    second, second_transport, of_second, _ = opened(memory)
    feed(first, WANTED[:10])
    assert memory.held == EAGER_FRAME_BYTES
    feed(second, WANTED[:10])
    assert len(second.get_buffer(-1)) < 5000
    feed(second, WANTED[10:10_000])
    assert not second_transport.reading, "there is no memory for more of it"
    feed(first, WANTED[10:])
    assert of_first.frames == [WANTED[4:]]
    assert second_transport.reading, "the first request has been handled"
    feed(second, WANTED[10_000:])
    assert of_second.frames == [WANTED[4:]]
    assert memory.held == 0
    feed(second, WANTED[:10])
    second.connection_lost(None)
    assert memory.held == 0


async def test_without_memory_ahead_a_length_that_comes_alone_gets_a_small_buffer() -> None:
    """An empty one would end the connection."""
    memory = RequestMemory(lambda: 0, EAGER_FRAME_BYTES)
    first, second = opened(memory)[0], opened(memory)[0]
    feed(first, WANTED[:10])
    feed(second, WANTED[:4])
    assert 0 < len(second.get_buffer(-1)) < 5000


async def test_one_request_is_accepted_though_it_is_larger_than_the_memory() -> None:
    memory = RequestMemory(lambda: 0, 1000)
    connection, transport, recorder, _ = opened(memory)
    feed(connection, WANTED)
    assert transport.reading
    assert recorder.frames == [WANTED[4:]]


async def test_requests_that_wait_behind_another_count_as_long_as_they_wait() -> None:
    memory = RequestMemory(lambda: 0, 1000)
    first, _, recorder, _ = opened(memory)
    second, second_transport, _, _ = opened(memory)
    for connection in (first, second):
        feed(connection, frame(b"Wait") + frame(b"x" * 700))
    assert memory.held == 1400
    assert not second_transport.reading
    recorder.futures[0].set_result((b"late",))
    await becomes(lambda: recorder.frames[-1] == b"x" * 700, "the next request is processed")
    await becomes(lambda: memory.held == 700, "it counts no longer")
    await becomes(lambda: second_transport.reading, "the other connection is read on")


async def test_the_client_without_progress_is_disconnected_when_others_need_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_memory, "CHECK_S", 0.001)
    now_ms = 0
    memory = RequestMemory(lambda: now_ms, EAGER_FRAME_BYTES)
    slow, slow_transport, _, said = opened(memory)
    other, other_transport, of_other, _ = opened(memory)
    feed(slow, WANTED[:10])
    now_ms = STALLED_MS - 1
    feed(other, WANTED[:10])
    feed(other, WANTED[10:10_000])
    assert not other_transport.reading
    await asyncio.sleep(0.01)
    assert not slow_transport.aborted
    now_ms = STALLED_MS
    await becomes(lambda: slow_transport.aborted, "the slow one is disconnected")
    assert "queued.max.request.bytes" in said[0]
    await becomes(lambda: other_transport.reading, "the other one is read on")
    feed(other, WANTED[10_000:])
    assert of_other.frames == [WANTED[4:]]


def test_a_closed_connection_whose_client_takes_nothing_can_still_be_ended() -> None:
    connection, transport, _, said = open_connection()
    connection.close("first")
    assert transport.closed and not transport.aborted
    connection.abort("then")
    assert transport.aborted
    assert len(said) == 1


def test_a_connection_gives_others_their_turn() -> None:
    async def run() -> None:
        connection, transport, recorder, _ = open_connection(Turns(StepClock()))
        feed(connection, frame(b"question") * 1000)
        assert len(recorder.frames) == FRAMES_PER_TURN_MAX
        assert not transport.reading
        await asyncio.sleep(0)
        assert len(recorder.frames) == 2 * FRAMES_PER_TURN_MAX
        for _ in range(1000 // FRAMES_PER_TURN_MAX):
            await asyncio.sleep(0)
        assert b"".join(transport.written) == b"question" * 1000
        assert transport.reading

    asyncio.run(run())


async def test_a_connection_whose_responses_fill_the_buffer_gives_others_their_turn() -> None:
    connection, transport, recorder, _ = open_connection()
    feed(connection, frame(b"Wait") + frame(b"x" * (transport.unread_max // 2)) * 3)
    recorder.futures[0].set_result((b"late",))
    answered: list[int] = []
    for _ in range(10):
        await asyncio.sleep(0)
        answered.append(len(recorder.frames) - 1)
    assert sorted(set(answered) - {0}) == [2, 3]


def test_a_muted_connection_sends_its_response_and_reads_no_further():
    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        feed(connection, frame(b"w1"))
        connection.mute(60_000)
        feed(connection, frame(b"2"))
        recorder.futures[0].set_result((b"w1",))
        await asyncio.sleep(0)
        assert transport.written == [b"w1"]
        assert recorder.frames == [b"w1"] and not transport.reading
        connection.mute(1)  # the longer time counts
        await asyncio.sleep(0.01)
        assert recorder.frames == [b"w1"]
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_muted_connection_goes_on_when_the_time_is_over():
    async def run() -> None:
        connection, transport, recorder, _ = open_connection()
        connection.mute(1)
        feed(connection, frame(b"1") + frame(b"2"))
        assert recorder.frames == []
        await becomes(lambda: bool(recorder.frames), "the requests are processed")
        assert recorder.frames == [b"1", b"2"] and transport.reading

    asyncio.run(run())


def test_a_connection_that_has_to_wait_first_is_read_then():
    async def run() -> None:
        connection, transport, recorder, said = open_connection()
        connection.hold(1)
        feed(connection, frame(b"1"))
        assert recorder.frames == []
        await becomes(lambda: recorder.frames == [b"1"] and transport.reading, "the request is processed")
        assert not transport.aborted and said == []

    asyncio.run(run())


def test_a_connection_that_is_to_end_reads_nothing_until_then():
    async def run() -> None:
        connection, transport, recorder, said = open_connection()
        connection.hold(1, "too many")
        feed(connection, frame(b"1"))
        await becomes(lambda: transport.aborted, "the connection is ended")
        assert recorder.frames == [] and not transport.reading
        assert "too many" in said[0]

    asyncio.run(run())


class Pieces:
    """A long response in pieces; the empty ones are work without a result."""

    def __init__(self, *pieces: bytes) -> None:
        self.left = list(pieces)

    def next(self) -> tuple[bytes, ...] | None:
        if not self.left:
            return None
        piece = self.left.pop(0)
        return (piece,) if piece else ()

    @property
    def size(self) -> int:
        return sum(map(len, self.left))

    def with_throttle_ms(self, throttle_ms: int) -> Pieces:
        return self


async def test_a_client_that_sends_large_requests_at_once_leaves_time_to_others_in_each_iteration() -> None:
    """One readable socket is read many times before the next one."""
    clock = StepClock()
    turns = Turns(clock)
    greedy, socket, recorder, _ = open_connection(turns)
    neighbour, _, answers, _ = open_connection(turns)

    class Slow(Recorder):
        def dispatch(self, frame, connection):
            clock.us += SHARE_US // 2
            return recorder.dispatch(frame, connection)

    greedy.hand_over(Slow(), FRAME_BYTES_MAX)
    for _ in range(10):
        if socket.reading:
            feed(greedy, frame(b"x" * 300_000))
    feed(neighbour, frame(b"n"))
    assert len(recorder.frames) == 2, "its share of this iteration"
    assert not socket.reading, "the third waits in memory, the others in the socket"
    assert answers.frames == [b"n"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(recorder.frames) == 3
    assert socket.reading


async def test_a_long_response_is_sent_piece_by_piece_and_the_next_ones_follow_it() -> None:
    connection, transport, recorder, _ = open_connection()
    long = Pieces(b"", b"one ", b"", b"two ")
    feed(connection, frame(b"wait") + frame(b"wnext") + frame(b"last"))
    recorder.futures[1].set_result((b"next ",))
    recorder.futures[0].set_result(long)
    await becomes(lambda: b"".join(transport.written).endswith(b"last"), "all responses are sent")
    assert b"".join(transport.written) == b"one two next last"


async def test_a_long_response_waits_for_its_reader_and_no_request_is_served_meanwhile() -> None:
    connection, transport, recorder, _ = open_connection()
    long = Pieces(b"one ", b"two ", b"three ")
    write = transport.write

    def write_and_pause(data: bytes) -> None:
        write(data)
        connection.pause_writing()

    transport.write = write_and_pause  # type: ignore[method-assign]
    feed(connection, frame(b"wait"))
    recorder.futures[0].set_result(long)
    await becomes(lambda: transport.written, "the first piece is sent")
    feed(connection, frame(b"last"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert long.left == [b"two ", b"three "]
    assert recorder.frames == [b"wait"]
    assert not transport.reading
    transport.write = write  # type: ignore[method-assign]
    connection.resume_writing()
    await becomes(lambda: recorder.frames == [b"wait", b"last"], "the next request is served")
    await becomes(lambda: transport.reading, "the socket is read again")
    assert b"".join(transport.written) == b"one two three last"


async def test_a_long_response_that_fails_ends_its_connection() -> None:
    connection, transport, recorder, said = open_connection()

    class Failing(Pieces):
        def next(self) -> tuple[bytes, ...] | None:
            raise CloseConnection("the log is gone")

    feed(connection, frame(b"wait"))
    recorder.futures[0].set_result(Failing())
    await becomes(lambda: transport.aborted, "the connection is ended")
    assert said == ["Closing the connection from 127.0.0.1:1: the log is gone"]


async def test_a_long_response_ends_with_its_connection() -> None:
    connection, transport, recorder, _ = open_connection()
    long = Pieces(*[b"piece"] * 100)
    feed(connection, frame(b"wait"))
    recorder.futures[0].set_result(long)
    await becomes(lambda: transport.written, "the first piece is sent")
    connection.connection_lost(None)
    left = len(long.left)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(long.left) == left


async def test_clients_that_do_not_read_share_a_memory_and_the_slowest_is_disconnected() -> None:
    now_ms = 0
    memory = ResponseMemory(lambda: now_ms, 1_000)
    connections: list[Connection] = []
    transports: list[FakeTransport] = []
    for _ in range(3):
        connection, transport = (
            Connection(Recorder(), 100, print, memory=memory, turns=Turns(StepClock())),
            FakeTransport(),
        )
        connection.connection_made(transport)
        transport.unread = 400
        connections.append(connection)
        transports.append(transport)
    connections[0].pause_writing()
    now_ms = UNREAD_MS - 1
    connections[1].pause_writing()
    assert memory.held == 800
    connections[2].pause_writing()
    assert memory.held == 1_200
    assert memory.is_short(), "the first has waited too short to be ended"
    now_ms = UNREAD_MS
    assert not memory.is_short()
    assert [transport.aborted for transport in transports] == [True, False, False]
    assert memory.held == 800
    connections[1].resume_writing()
    connections[2].connection_lost(None)
    assert memory.held == 0


async def test_a_large_response_is_held_until_its_last_byte_is_sent() -> None:
    """The system may take nearly all of it: the rest keeps its buffer in memory."""
    memory = ResponseMemory(lambda: 0, 1_000)
    recorder, transport = Recorder(), FakeTransport()
    connection = Connection(recorder, 2_000, print, memory=memory, turns=Turns(StepClock()))
    connection.connection_made(transport)
    usual_max, write = transport.unread_max, transport.write
    assert usual_max > 0

    def write_all_but_one(data: bytes) -> None:
        write(data)
        transport.unread = 2
        if transport.unread > transport.unread_max:
            connection.pause_writing()

    transport.write = write_all_but_one  # type: ignore[method-assign]
    feed(connection, frame(b"small"))
    assert (memory.held, transport.unread_max) == (0, usual_max)
    large = bytes(usual_max + 1)
    feed(connection, frame(b"wait"))
    recorder.futures[-1].set_result((large,))
    await becomes(lambda: transport.written[-1] == large, "it is written")
    assert memory.held == len(large)
    transport.unread = 0
    connection.resume_writing()
    assert (memory.held, transport.unread_max) == (0, usual_max)


async def test_what_is_expected_of_a_response_is_held_until_it_is_written() -> None:
    memory = ResponseMemory(lambda: 0, 1_000)
    recorder, transport = Recorder(), FakeTransport()
    connection = Connection(recorder, 100, print, memory=memory, turns=Turns(StepClock()))
    connection.connection_made(transport)
    feed(connection, frame(b"wait"))
    connection.expect(700)
    connection.expect(300)
    assert memory.held == 300
    recorder.futures[0].set_result((b"answer",))
    await becomes(lambda: transport.written == [b"answer"], "it is written")
    assert memory.held == 0
    feed(connection, frame(b"wait"))
    connection.expect(700)
    connection.connection_lost(None)
    assert memory.held == 0


async def test_a_client_that_reads_again_waits_for_memory_before_its_next_large_response_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_memory, "MEMORY_WAIT_S", 0.001)
    memory = ResponseMemory(lambda: 0, 1_000)
    slow, recorder = Connection(Recorder(), 100, print, memory=memory, turns=Turns(StepClock())), Recorder()
    slow_transport, transport = FakeTransport(), FakeTransport()
    slow.connection_made(slow_transport)
    connection = Connection(recorder, 100, print, memory=memory, turns=Turns(StepClock()))
    connection.connection_made(transport)
    feed(connection, frame(b"wait"))
    slow_transport.unread = 1_200
    slow.pause_writing()
    long = Pieces(*[b"piece"] * 3)
    recorder.futures[0].set_result(long)
    await asyncio.sleep(0)
    transport.unread = 100
    connection.pause_writing()  # what was written before
    await asyncio.sleep(0)
    transport.unread = 0
    connection.resume_writing()
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert len(long.left) == 3 and not transport.written
    slow.resume_writing()
    await becomes(lambda: not long.left, "the response is made")


async def test_who_holds_little_memory_does_not_wait_for_those_who_hold_it_all() -> None:
    memory, turns = ResponseMemory(lambda: 0, 1_000), Turns(StepClock())
    silent = LargeResponse(memory, turns, "a").connection
    memory.hold(silent, 1_001)
    assert memory.is_short() and memory.is_short_for(silent.origin)
    reads, other = LargeResponse(memory, turns, "b"), LargeResponse(memory, turns, "c")
    assert not memory.is_short_for(reads.connection.origin)
    await becomes(lambda: reads.is_answered, "it is answered")
    memory.hold(other.connection, 1_000 // ORIGINS)
    assert memory.is_short_for(other.connection.origin), "it has its share"
    memory.release(other.connection)
    memory.hold(silent, 2_001)
    assert memory.is_short_for(reads.connection.origin), "twice as much is the end for all"
    memory.release(silent)
    assert memory.held == 0 and not memory._held_by


def test_the_less_memory_is_left_the_fewer_records_a_response_has() -> None:
    memory = ResponseMemory(lambda: 0)
    assert memory.fetch_bytes_max() == FETCH_BYTES_MAX
    holder = Connection(Recorder(), 100, print, memory=memory, turns=Turns(StepClock()))
    memory.hold(holder, HELD_BYTES_MAX // 2)
    memory.hold(holder, HELD_BYTES_MAX * 3 // 4)
    assert memory.fetch_bytes_max() == HELD_BYTES_MAX // 4 // SHARE
    memory.hold(holder, HELD_BYTES_MAX)
    assert memory.fetch_bytes_max() == FETCH_BYTES_MIN
    memory.release(holder)
    assert memory.held == 0


class LargeResponse:
    """A connection that asks for a response which is made while it is encoded, in slices."""

    def __init__(self, memory: ResponseMemory, turns: Turns, address: str) -> None:
        codec = api(ApiKey.LIST_GROUPS, 4)

        def make(number: int) -> Message:
            return codec.make(
                "ListedGroup", group_id=f"group {number}", protocol_type="consumer", group_state="Empty"
            )

        self.transport, recorder = FakeTransport(), Recorder()
        context = RequestContext(client_address=address)
        self.connection = Connection(recorder, 100, print, memory=memory, turns=turns, context=context)
        self.connection.connection_made(self.transport)
        feed(self.connection, frame(b"wait"))
        response = EncodedResponse(codec, 7, codec.response(groups=LazySequence(make, range(GROUPS)))).ready()
        self.response = response
        recorder.futures[0].set_result(response)

    @property
    def is_answered(self) -> bool:
        return bool(self.transport.written)


GROUPS = 10_000


async def test_large_responses_are_encoded_two_at_once_and_origins_take_turns() -> None:
    memory, turns = ResponseMemory(lambda: 0), Turns(StepClock())
    of_a = [LargeResponse(memory, turns, "a") for _ in range(6)]
    of_b = [LargeResponse(memory, turns, "b") for _ in range(2)]
    asked = [*of_a, *of_b]
    assert all(isinstance(one.response, EncodedResponse) for one in asked), "no single slice has all of it"
    most = 0
    while not all(one.is_answered for one in of_b):
        await asyncio.sleep(0)
        begun = [one for one in asked if not one.is_answered and one.response.size]  # type: ignore[union-attr]
        most = max(most, len(begun))
    assert most == MADE_AT_ONCE
    assert sum(one.is_answered for one in of_a) < len(of_a) - 1, "who asks for many waits for the others"
    await becomes(lambda: all(one.is_answered for one in of_a), "all are answered")


async def test_a_client_that_waits_for_a_large_response_may_go() -> None:
    memory, turns = ResponseMemory(lambda: 0), Turns(StepClock())
    asked = [LargeResponse(memory, turns, "a") for _ in range(MADE_AT_ONCE + 1)]
    waits = asked[-1]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    feed(waits.connection, frame(b"ask"))
    assert waits.transport.reading, "that its client has gone is seen by reading"
    assert not waits.is_answered
    assert not waits.connection.eof_received()
    waits.connection.connection_lost(None)
    await becomes(lambda: all(one.is_answered for one in asked[:-1]), "the others are answered")
    assert memory.held == 0 and not memory._to_make


async def test_who_does_not_read_what_came_before_holds_no_place_for_a_large_response() -> None:
    memory, turns = ResponseMemory(lambda: 0), Turns(StepClock())
    silent = [LargeResponse(memory, turns, "a") for _ in range(MADE_AT_ONCE)]
    for one in silent:
        one.connection.pause_writing()
    reads = LargeResponse(memory, turns, "a")
    await becomes(lambda: reads.is_answered, "it is answered")
    silent[0].connection.resume_writing()
    await becomes(lambda: silent[0].is_answered, "it is answered, since its client reads")
    assert not silent[1].is_answered
