"""Replay: the recorded broker runs again, and is told from the tape what it was told then.

The loop runs callbacks until as many have run as before the next event, and lets that event in. A call that
differs from the one on the tape is a *divergence*: the code is another, or it has asked the world for
something past its runtime.

Offloaded jobs run on stacks of their own (greenlets), each up to its next call. The tape says when that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import greenlet
from crc32c import crc32c
from typing_extensions import Buffer

from nilometer.recorder import tape as kinds
from nilometer.recorder.failures import error_of
from nilometer.recorder.known_files import KnownFile, KnownFiles
from nilometer.recorder.recording import EXTRA, Encrypted, digest_of
from nilometer.recorder.seam import (
    ABSENT,
    Door,
    Pulls,
    SeamDisk,
    SeamEntropy,
    SeamLoggers,
    SeamObjectStore,
)
from nilometer.recorder.tape import NAMES, Entry, TapeReader
from nilometer.recorder.turn_loop import TurnLoop
from nilometer.runtime import Disk, File, Listener, Runtime
from nilometer.runtime.handshakes import HandshakeGate, ProtocolFactory
from nilometer.runtime.object_store import ObjectStore
from nilometer.runtime.tls import ClientTls, ServerTls

T = TypeVar("T")

NOT_AS_WRITTEN = "which were not those that the broker wrote there: the disk or another program changed them"


_NO_PARTNER = (LookupError, TypeError, ValueError, AssertionError, asyncio.InvalidStateError)
"""What an event raises that is about a call, a connection or a job that there is not."""
CLOCKS: tuple[int, ...] = (kinds.WALL, kinds.MONOTONIC, kinds.MONOTONIC_US, kinds.CPU)


class Diverged(BaseException):
    """The replayed broker does something that the recorded one did not do. Not an Exception, so that no
    handler of the broker catches it."""


class _Job:
    """An offloaded job; it runs only while the tape has a call of it, or its end."""

    def __init__(self, number: int, work: Callable[[], Any]) -> None:
        self.number = number
        self.result: Any = None
        self.error: Exception | None = None
        self._work = work
        self._stack = greenlet.greenlet(self._run)

    @property
    def has_ended(self) -> bool:
        return self._stack.dead

    def kill(self) -> None:
        if self._stack and not self._stack.dead:
            with contextlib.suppress(Diverged):
                self._stack.throw(Diverged())

    def go_on(self) -> None:
        self._stack.parent = greenlet.getcurrent()
        self._stack.switch()

    def leave(self) -> None:
        parent = self._stack.parent
        assert parent is not None
        parent.switch()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:
            self.error = error


class Observer(Protocol):
    """Told of the connections of a replayed broker. Observing changes nothing."""

    def on_made(self, number: int, extra: Mapping[str, Any], *, is_accepted: bool) -> None:
        """A connection is made; ``extra`` has its addresses."""
        ...

    def on_sent(self, number: int, parts: Sequence[Buffer]) -> None: ...

    def on_arrived(self, number: int, data: bytes) -> None: ...

    def on_lost(self, number: int) -> None: ...


class Replay(Door):
    """The door of a replayed broker, and the order of all that happens to it."""

    def __init__(self, frames: Iterator[bytes], folders: Sequence[str]) -> None:
        self.loop = TurnLoop()
        self.files = KnownFiles(folders, keeps_content=True)
        self.offloaded = 0
        self.tape = TapeReader(frames)
        self.observer: Observer | None = None
        self.is_looked_at = False
        """While it is, clocks stand still: the broker's state is asked for, and the tape does not go on."""
        self.retold: dict[int, bytes] | None = None
        """While a copy is made whose input has stand-ins: by the numbers of entries, the digests that differ
        for that reason. Otherwise all must be equal."""
        self.read_paths: dict[int, str] | None = None
        """While it is to be known: by the numbers of entries, the files of which they have what was read."""
        self._known_paths: dict[KnownFile, str] = {}
        self.divergence: str | None = None
        self._is_over = False
        """Whether it goes on where the recording has ended: that is no divergence."""
        self.ended: str | None = None
        """Why the recording ended, if it says so."""
        self.newest_event = "the start"
        self._serving: asyncio.Task[Any] | None = None
        self._noted = 0  # callbacks, at the last event
        self._event: tuple[int, int, bool] | None = None
        self._jobs: dict[int, _Job] = {}
        self._job_futures: dict[int, asyncio.Future[Any]] = {}
        self._job: _Job | None = None
        self._jobs_begun = 0
        self._waits = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._connecting: dict[int, ProtocolFactory] = {}
        self._listening: dict[int, tuple[ProtocolFactory, HandshakeGate | None]] = {}
        self._pulled: dict[int, Pulls] = {}
        self._protocols: dict[int, asyncio.BaseProtocol] = {}
        self._accepted: set[int] = set()
        self._connected: dict[int, asyncio.BaseProtocol] = {}
        self.clock_last = dict.fromkeys(CLOCKS, 0)
        self._clock_readings = dict.fromkeys(CLOCKS, 0)
        """How often each was the same since it last changed."""
        self._appends = 0
        """Of the event loop, since the last one that failed."""

    # --- the order

    def run(
        self,
        serve: Callable[[Runtime], Coroutine[Any, Any, Any]],
        open_files_max: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Play on until ``stop`` returns true, after any callback or event; return false at the tape's end.

        Raises Diverged, and NotARecording at what is damaged.
        """
        loop = self.loop
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(loop)
        try:
            while (head := self.tape.head) is not None and head.kind != kinds.END:
                with contextlib.suppress(Diverged):
                    self._step(head, serve, open_files_max)
                if self.tape.damage is not None:
                    raise self.tape.damage
                if self.divergence is not None:
                    if self._is_over:
                        break
                    raise Diverged(self.divergence)
                if stop():
                    return True
            head = self.tape.head
            if head is not None and self.ended is None:
                self.ended = self.tape.content().decode(errors="replace")
            return False
        finally:
            asyncio._set_running_loop(before)

    @property
    def is_at_event(self) -> bool:
        """Whether an event comes in next."""
        head = self.tape.head
        return (
            head is not None
            and head.kind != kinds.END
            and not head.job
            and head.is_event
            and self._peek_event()[0] == self.loop.executed
        )

    @property
    def next_delta_ms(self) -> int:
        """How much later the event comes in that comes next; 0 if none does."""
        return self._peek_event()[1] if self.is_at_event else 0

    @property
    def next_arrival(self) -> tuple[int, int] | None:
        """The connection and the size of the bytes that come in next; None if something else does."""
        head = self.tape.head
        if head is None or head.kind not in (kinds.DATA, kinds.BUFFER):
            return None
        self._peek_event()
        number, size = self.tape.number(), len(self.tape.content())
        self._event = None
        self.tape.back()
        return number, size

    def protocol(self, number: int) -> asyncio.BaseProtocol | None:
        """Return the broker's protocol of a connection that is open."""
        return self._protocols.get(number)

    def close(self) -> None:
        """Take down what is left of the broker, silently, as when a process is killed."""
        self._diverge("the replay is over")  # every call that it still tries ends
        self.loop.set_exception_handler(lambda _loop, _context: None)
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            self.loop.within(self._unwind)
        finally:
            logging.disable(before)
        self.loop.close()

    def _unwind(self) -> None:
        if self._serving is not None and self._serving.done() and not self._serving.cancelled():
            self._serving.exception()  # how the broker ended is no error of the replay
        for job in list(self._jobs.values()):
            job.kill()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]

    def _step(
        self, head: Entry, serve: Callable[[Runtime], Coroutine[Any, Any, Any]], open_files_max: int
    ) -> None:
        if head.job:
            due = self._noted + head.count
            if self.loop.executed < due:
                self._run_one(f"{self._describe(head)} after {due} callbacks")
            elif self.loop.executed > due:
                self._diverge(f"{self._describe(head)} came after {due} callbacks")
            else:
                self._run_job(head)
            return
        if not head.is_event:
            self._run_one(f"the call {self._describe(head)}")
            return
        due, delta_ms, is_nested = self._peek_event()
        if is_nested:
            self._diverge("an event that came within a call comes outside")
        elif self.loop.executed < due:
            self._run_one(f"{NAMES[head.kind]} after {due} callbacks")
        elif self.loop.executed > due:
            self._diverge(f"{NAMES[head.kind]} came after {due} callbacks")
        elif self._serving is None:
            self._take_event(delta_ms)
            self._serving = self.loop.create_task(serve(self.runtime(open_files_max)))
            self._serving.add_done_callback(lambda _: None)  # the recording has a callback there
            self.tape.advance()
        else:
            self._deliver(delta_ms)

    def _run_one(self, expected: str) -> None:
        if not self.loop.ready:
            self._diverge(f"nothing is left to do, where the recording has {expected}")
            return
        self.loop.run_one()

    def _peek_event(self) -> tuple[int, int, bool]:
        if self._event is None:
            count, delta_ms, is_nested = self.tape.event_head()
            self._event = (self._noted + count, delta_ms, is_nested)
        return self._event

    def _take_event(self, delta_ms: int) -> None:
        self._event = None
        self._noted = self.loop.executed
        self.loop.set_time(self.loop.now_ms + delta_ms)

    def _deliver(self, delta_ms: int) -> None:
        """Let the event in at which the tape stands."""
        head = self.tape.head
        assert head is not None
        kind = head.kind
        self._take_event(delta_ms)
        self.newest_event = NAMES[kind]
        try:
            self._let_in(kind)
        except _NO_PARTNER as error:
            self._diverge(f"{NAMES[kind]} does not fit what the broker did before: {error!r}")

    def _let_in(self, kind: int) -> None:
        tape = self.tape
        match kind:
            case kinds.TIME:
                tape.advance()
            case kinds.JOB_DONE:
                number = tape.number()
                tape.advance()
                self._end_job(number)
            case kinds.DONE:
                number = tape.number()
                succeeded, result = tape.packed()
                tape.advance()
                future = self._waiting.pop(number)
                if succeeded:
                    future.set_result(result)
                else:
                    future.set_exception(error_of(result))
            case kinds.SIGNAL:
                number = tape.number()
                tape.advance()
                self.loop.signal_handlers[number]()
            case kinds.GATE_BEGIN:
                gate = self._listening[tape.number()][1]
                address, port = tape.packed()
                tape.advance()
                assert gate is not None
                self._tell(gate.begin, address, port)
            case kinds.GATE_END:
                gate = self._listening[tape.number()][1]
                (address,) = tape.packed()
                tape.advance()
                assert gate is not None
                self._tell(gate.end, address)
            case kinds.PULL:
                pulls = self._pulled[tape.number()]
                tape.advance()
                pulls.begin(self.loop.create_future())
            case _:
                self._deliver_to_connection(kind)

    def _tell(self, function: Callable[..., object], *args: object) -> None:
        """Let the broker have what came. An error of its code goes where the event loop had it: the transport
        has ended the connection then, as the recording has it."""
        try:
            function(*args)
        except Exception as error:
            self.loop.call_exception_handler(
                {"message": "Fatal error: protocol call failed", "exception": error}
            )

    def _deliver_to_connection(self, kind: int) -> None:
        tape = self.tape
        number = tape.number()
        if kind == kinds.CONNECTION:
            origin = tape.number()
            tape.advance()
            factory = self._listening[origin >> 1][0] if origin & 1 else self._connecting[origin >> 1]
            self._protocols[number] = factory()
            if origin & 1:
                self._accepted.add(number)
            else:
                self._connected[origin >> 1] = self._protocols[number]
            return
        protocol: Any = self._protocols[number]
        match kind:
            case kinds.MADE:
                extra = made_of(tape.packed())
                tape.advance()
                if self.observer is not None:
                    self.observer.on_made(number, extra, is_accepted=number in self._accepted)
                self._tell(protocol.connection_made, ReplayTransport(self, number, extra))
            case kinds.DATA:
                data = tape.content()
                tape.advance()
                if self.observer is not None:
                    self.observer.on_arrived(number, data)
                self._tell(protocol.data_received, data)
            case kinds.BUFFER:
                data = tape.content()
                tape.advance()
                if self.observer is not None:
                    self.observer.on_arrived(number, data)
                buffer = memoryview(protocol.get_buffer(65536)).cast("B")
                buffer[: len(data)] = data
                buffer.release()
                self._tell(protocol.buffer_updated, len(data))
            case kinds.EOF:
                tape.advance()
                self._tell(protocol.eof_received)
            case kinds.LOST:
                failure = tape.packed()
                tape.advance()
                del self._protocols[number]
                self._accepted.discard(number)
                if self.observer is not None:
                    self.observer.on_lost(number)
                self._tell(protocol.connection_lost, None if failure is None else error_of(failure))
            case kinds.PAUSE:
                tape.advance()
                self._tell(protocol.pause_writing)
            case kinds.RESUME:
                tape.advance()
                self._tell(protocol.resume_writing)
            case _:
                self._diverge(f"the recording has an entry of unknown kind {kind}")

    # --- jobs

    def _run_job(self, head: Entry) -> None:
        job = self._jobs.get(head.job)
        if job is None or job.has_ended:
            self._diverge(f"the recording has {self._describe(head)}, of a job that is not there")
            return
        before, self._job = self._job, job
        entries = self.tape.entries
        if head.kind == kinds.BEGIN:
            self.tape.advance()
        job.go_on()
        self._job = before
        if self.tape.entries == entries and self.divergence is None:
            self._diverge(f"job {head.job} does not make the call {self._describe(head)}")

    def _end_job(self, number: int) -> None:
        job = self._jobs.pop(number)
        before, self._job = self._job, job
        if not job.has_ended:
            job.go_on()
        self._job = before
        if self.divergence is not None:
            return
        if not job.has_ended:
            self._diverge(f"job {number} makes more calls than in the recording")
            return
        self.offloaded -= 1
        future = self._job_futures.pop(number)
        if future.done():
            return
        if job.error is not None:
            future.set_exception(job.error)
        else:
            future.set_result(job.result)

    # --- calls

    def take(self, kind: int, doing: str) -> TapeReader:
        """Return the tape at the fields of the next call, which must be of this kind."""
        if self.divergence is not None:
            raise Diverged(self.divergence)
        mine = self._job
        while (head := self.tape.head) is not None:
            if mine is None or self._is_due(head, mine):
                break
            mine.leave()
            if self.divergence is not None:
                raise Diverged(self.divergence)
        if head is None or head.kind != kind or (mine is None and head.job):
            self._diverge(f"{doing}, where the recording has {self._describe(head)}")
            raise Diverged(self.divergence)
        return self.tape

    def _is_due(self, head: Entry, job: _Job) -> bool:
        """Whether an entry is of this job, and all callbacks before it have run. Jobs run between the turns
        of the loop, never within one."""
        return head.job == job.number and self._noted + head.count == self.loop.executed

    def end_call(self) -> None:
        """Go on after the fields of a call were read; what was told within it is told now."""
        self.tape.advance()
        if self._job is not None:
            return
        while (head := self.tape.head) is not None:
            if head.job or not head.is_event or head.kind == kinds.END:
                return
            _, delta_ms, is_nested = self._peek_event()
            if not is_nested:
                return
            self._deliver(delta_ms)

    def _diverge(self, message: str) -> None:
        if self.divergence is None:
            head = self.tape.head
            # What it did last is recorded in part: it was killed, or the recording had reached its bound.
            self._is_over = head is None or head.kind == kinds.END
            self.divergence = f"entry {self.tape.entries}: {message}"

    def expected(self, recorded: int, found: int) -> int:
        """Return the digest that what was found must have, where the tape stands."""
        if self.retold is None:
            return recorded
        if found != recorded:
            self.retold[self.tape.entries] = found.to_bytes(4, "big")
        return found

    def differ(self, message: str) -> None:
        """End the replay: a call has other arguments. Raises Diverged."""
        self._diverge(message)
        raise Diverged(self.divergence)

    def _describe(self, head: Entry | None) -> str:
        if head is None:
            return "its end"
        of = f" of job {head.job}" if head.job else ""
        return f"{NAMES.get(head.kind, head.kind)}{of}"

    def ask(self, name: str, args: Sequence[object], work: Callable[[], T]) -> T:
        tape = self.take(kinds.ASK, f"{name} {list(args)}")
        recorded_name, recorded_args, succeeded, result = tape.packed()
        if [recorded_name, recorded_args] != [name, list(args)]:
            self.differ(f"{name} {list(args)}, where the recording has {recorded_name} {recorded_args}")
        self.end_call()
        if not succeeded:
            raise error_of(result)
        return result

    def open_file(self, path: str, work: Callable[[], Any]) -> tuple[File, KnownFile]:
        tape = self.take(kinds.OPEN, f"open {path}")
        recorded, succeeded, result = tape.packed()
        if recorded != path:
            self.differ(f"open {path}, where the recording has open {recorded}")
        self.end_call()
        if not succeeded:
            raise error_of(result)
        known = self.files.opened(path, result)
        if self.read_paths is not None:
            self._known_paths[known] = path
        return ABSENT, known

    def append(
        self, known: KnownFile, buffers: Sequence[Buffer], work: Callable[[Sequence[Buffer]], int]
    ) -> int:
        length = sum(memoryview(buffer).nbytes for buffer in buffers)
        if self._job is None:
            known.append(buffers)  # a job that is replayed within may have read them
            if self._comes(kinds.APPEND_FAILED, None, self._appends):
                self._appends = 0
                self._fail_append(known)
            self._appends += 1
            return length
        tape = self.take_one_of((kinds.APPEND, kinds.APPEND_FAILED), "append")
        assert tape.head is not None
        if tape.head.kind == kinds.APPEND_FAILED:
            tape.number()
            self._fail_append(known)
        written = tape.number()
        if written != length:
            self.differ(f"append of {length} bytes, where the recording has {written}")
        self.end_call()
        known.append(buffers)
        return length

    def _fail_append(self, known: KnownFile) -> NoReturn:
        failure = self.tape.packed()
        self.end_call()
        known.forget()
        raise error_of(failure)

    def _comes(self, kind: int, of: int | None, count: int) -> bool:
        """Whether what comes next on the tape is what differs, after ``count`` calls whose results did not
        differ, and have no entries. If so, its fields up to that number were read.

        ``of``: what the entry is about, its first field.
        """
        if self.divergence is not None:
            raise Diverged(self.divergence)
        head = self.tape.head
        if head is None or head.kind != kind or head.job:
            return False
        if (of is None or self.tape.number() == of) and self.tape.number() == count:
            return True
        self.tape.back()
        return False

    def take_one_of(self, choice: Sequence[int], doing: str) -> TapeReader:
        head, mine = self.tape.head, self._job
        # What comes first may belong to others: `take` waits for the call of this job.
        while head is not None and mine is not None and not self._is_due(head, mine):
            if self.divergence is not None:
                raise Diverged(self.divergence)
            mine.leave()
            head = self.tape.head
        return self.take(head.kind if head is not None and head.kind in choice else choice[0], doing)

    def read(
        self, known: KnownFile, position: int, length: int, work: Callable[[], bytes | None]
    ) -> bytes | None:
        tape = self.take_one_of((kinds.READ, kinds.READ_KNOWN, kinds.READ_FAILED), "read")
        assert tape.head is not None
        kind = tape.head.kind
        if kind == kinds.READ_FAILED:
            failure = tape.packed()
            self.end_call()
            raise error_of(failure)
        if kind == kinds.READ:
            data = tape.content()
            if self.read_paths is not None:
                self.read_paths[tape.entries] = self._known_paths[known]
        else:
            count, crc = tape.number(), int.from_bytes(tape.raw(4), "big")
            if count == 0:
                self.end_call()
                return None
            data = known.read(position, count - 1)
            if len(data) != count - 1:
                self.differ(f"read of {count - 1} bytes at {position}, of which {len(data)} were written")
            if self.retold is not None:
                crc = self.expected(crc, crc32c(data))
            if crc32c(data) != crc:
                self.differ(f"read of {count - 1} bytes at {position}, {NOT_AS_WRITTEN}")
        self.end_call()
        return data

    def read_clock(self, kind: int) -> int:
        if self._job is not None:
            tape = self.take(kind, f"reading the clock ({NAMES[kind]})")
            tape.number()
            value = tape.signed()
            self.end_call()
            return value
        if not self._comes(kind, None, self._clock_readings[kind]):
            self._clock_readings[kind] += 1
            return self.clock_last[kind]
        self._clock_readings[kind] = 0
        value = self.clock_last[kind] = self.clock_last[kind] + self.tape.signed()
        self.end_call()
        return value

    def is_closing(self, number: int, found_open: int) -> bool:
        """Whether a connection that its own side has not found closing is closing now."""
        if not self._comes(kinds.IS_CLOSING, number, found_open):
            return False
        self.end_call()
        return True

    def size(self, work: Callable[[], int]) -> int:
        tape = self.take(kinds.SIZE, "size of a file")
        size = tape.number()
        self.end_call()
        return size

    async def wait(self, name: str, args: Sequence[object], work: Callable[[], Any]) -> Any:
        return await self.begin_wait(name, args)

    def begin_wait(self, name: str, args: Sequence[object]) -> asyncio.Future[Any]:
        self._waits += 1
        tape = self.take(kinds.WAIT, f"{name} {list(args)}")
        number = tape.number()
        recorded = tape.packed()
        if number != self._waits or recorded != [name, list(args)]:
            self.differ(f"{name} {list(args)}, where the recording has {recorded[0]} {recorded[1]}")
        future = self._waiting[number] = self.loop.create_future()
        self.end_call()
        return future

    async def pull_parts(
        self, name: str, parts: AsyncIterator[bytes], work: Callable[[AsyncIterator[bytes]], Any]
    ) -> None:
        pulls = self._pulled[self._waits + 1] = Pulls(parts)
        try:
            await self.begin_wait("upload", (name,))
        finally:
            await pulls.end()

    async def offload(self, disk: Disk, work: Callable[[], T]) -> T:
        self._jobs_begun += 1
        tape = self.take(kinds.OFFLOAD, "a job")
        number = tape.number()
        if number != self._jobs_begun:
            self.differ(f"job {self._jobs_begun}, where the recording has job {number}")
        self.offloaded += 1
        self._jobs[number] = _Job(number, work)
        future = self._job_futures[number] = self.loop.create_future()
        self.end_call()
        return await future

    # --- the runtime

    def runtime(self, open_files_max: int) -> Runtime:
        def open_object_store(uri: str, writer: str) -> ObjectStore:
            self.ask("open_object_store", (), lambda: None)
            return SeamObjectStore(self, ABSENT)

        return Runtime(
            ReplayClock(self),
            SeamDisk(self, ABSENT),
            ReplayNetwork(self),
            SeamEntropy(self, ABSENT),
            open_files_max,
            open_object_store,
            self.with_secret,
            SeamLoggers(self, ABSENT),
        )

    # --- the network

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, gate: HandshakeGate | None
    ) -> Listener:
        number = len(self._listening) + 1
        self._listening[number] = (factory, gate)
        return ReplayListener(self, await self.begin_wait("listen", (host, port)))

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        number = self._waits + 1
        self._connecting[number] = factory
        try:
            await self.begin_wait("connect", (host, port))
            return self._connected[number]
        finally:
            self._connected.pop(number, None)


def made_of(packed: dict[str, Any]) -> dict[str, Any]:
    """Return what is recorded of a connection, with its addresses as pairs."""
    return packed | {name: None if packed[name] is None else tuple(packed[name]) for name in EXTRA}


class ReplayClock:
    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def wall_ms(self) -> int:
        return self._read(kinds.WALL)

    def monotonic_ms(self) -> int:
        return self._read(kinds.MONOTONIC)

    def monotonic_us(self) -> int:
        return self._read(kinds.MONOTONIC_US)

    def thread_cpu_us(self) -> int:
        return self._read(kinds.CPU)

    def _read(self, kind: int) -> int:
        return self._replay.clock_last[kind] if self._replay.is_looked_at else self._replay.read_clock(kind)


class ReplayNetwork:
    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    async def listen(
        self,
        factory: ProtocolFactory,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        gate: HandshakeGate | None = None,
    ) -> Listener:
        return await self._replay.listen(factory, host, port, gate)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ClientTls | None = None
    ) -> asyncio.BaseProtocol:
        return await self._replay.connect(factory, host, port)


class ReplayListener:
    def __init__(self, replay: Replay, port: int) -> None:
        self._replay = replay
        self.port = port

    async def start(self) -> None:
        await self._replay.begin_wait("start", ())

    def close(self) -> None:
        self._replay.ask("close listener", (), lambda: None)


class ReplayTransport:
    def __init__(self, replay: Replay, number: int, extra: dict[str, Any]) -> None:
        self._replay = replay
        self._number = number
        self._extra = extra
        self._encrypted = Encrypted(extra["certificate"]) if extra["has_tls"] else None
        self._is_closing = False
        self._open = 0  # how often it was found not to be closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._encrypted or default
        return self._extra.get(name, default)

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Sequence[Buffer]) -> None:
        tape = self._take(kinds.WRITE, "write")
        length, crc = digest_of(list_of_data)
        recorded = tape.number()
        recorded_crc = int.from_bytes(tape.raw(4), "big")
        recorded_crc = self._replay.expected(recorded_crc, crc)
        if (length, crc) != (recorded, recorded_crc):
            self._replay.differ(
                f"connection {self._number} is sent {length} bytes with digest {crc:08x}, in the recording "
                f"{recorded} with {recorded_crc:08x}"
            )
        if self._replay.observer is not None:
            self._replay.observer.on_sent(self._number, list_of_data)
        self._replay.end_call()
        self._raise_failure()

    def _take(self, kind: int, doing: str) -> TapeReader:
        tape = self._replay.take(kind, f"{doing} to connection {self._number}")
        number = tape.number()
        if number != self._number:
            self._replay.differ(f"{doing} to connection {self._number}, in the recording to {number}")
        return tape

    def is_closing(self) -> bool:
        if not self._is_closing:
            self._is_closing = self._replay.is_closing(self._number, self._open)
            if not self._is_closing:
                self._open += 1
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        size = self._take(kinds.UNSENT, "get_write_buffer_size").number()
        self._replay.end_call()
        return size

    def _do(self, name: str) -> None:
        recorded = self._take(kinds.TRANSPORT, name).packed()
        if recorded != name:
            self._replay.differ(f"{name} of connection {self._number}, in the recording {recorded}")
        self._replay.end_call()
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise what the call that was just made has raised, if it has."""
        head = self._replay.tape.head
        if head is not None and head.kind == kinds.FAILED:
            failure = self._take(kinds.FAILED, "a failure").packed()
            self._replay.end_call()
            raise error_of(failure)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._do("set_write_buffer_limits")

    def pause_reading(self) -> None:
        self._do("pause_reading")

    def resume_reading(self) -> None:
        self._do("resume_reading")

    def close(self) -> None:
        self._do("close")

    def abort(self) -> None:
        self._do("abort")

    def can_write_eof(self) -> bool:
        return not self._extra["has_tls"]

    def write_eof(self) -> None:
        self._do("write_eof")
