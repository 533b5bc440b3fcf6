"""Recording: a runtime around the real one that writes what comes of each call to the tape, and the event
loop of the recorded broker, which runs inside the real one.

What belongs to the runtime (sockets, handshakes, threads) runs on the real loop, its *host*, and is not
recorded. The broker's callbacks run on a :class:`TurnLoop`: what reaches the broker enters there, is written
to the tape with the number of callbacks before it, and is the same in replay.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from crc32c import crc32c
from typing_extensions import Buffer

from nilometer.recorder import tape as kinds
from nilometer.recorder.failures import failure_of
from nilometer.recorder.known_files import KnownFile, KnownFiles
from nilometer.recorder.seam import Door, Pulls, SeamDisk, SeamEntropy, SeamLoggers, SeamObjectStore
from nilometer.recorder.tape import Tape, packed, signed, varint
from nilometer.recorder.turn_loop import TurnLoop
from nilometer.runtime import Clock, Disk, File, Listener, Network, Runtime
from nilometer.runtime.handshakes import Admitted, HandshakeGate, ProtocolFactory
from nilometer.runtime.object_store import ObjectStore
from nilometer.runtime.tls import ClientTls, ServerTls

T = TypeVar("T")

_JOB: contextvars.ContextVar[bytes] = contextvars.ContextVar("job", default=b"")
"""What the entries of the offloaded job begin with that runs; empty in the event loop. Of a context, not of a
thread: a simulated job runs on the loop's own thread."""
_KIND = [bytes([kind]) for kind in range(256)]
_SIZE, _READ, _READ_KNOWN = _KIND[kinds.SIZE], _KIND[kinds.READ], _KIND[kinds.READ_KNOWN]
_APPEND = _KIND[kinds.APPEND]

DIGESTED_MAX = 4_096
"""Of larger parts of a response only the first and the last bytes are compared in replay: what is between is
read from a log, and has a CRC of its own."""
_ENDS = 256


def digest_of(parts: Sequence[Buffer]) -> tuple[int, int]:
    """Return the length of ``parts`` and the CRC-32C by which replay compares them."""
    length = crc = 0
    for part in parts:
        view = part if isinstance(part, bytes) else memoryview(part).cast("B")
        length += len(view)
        if len(view) > DIGESTED_MAX:
            crc = crc32c(view[-_ENDS:], crc32c(view[:_ENDS], crc))
        else:
            crc = crc32c(view, crc)
    return length, crc


DRAIN_S = 0.005
"""So long after it began to call its runtime, what an offloaded job has asked is written."""
_NEVER_MS = 1 << 62


def _nothing() -> None:
    pass


class RecordingLoop(TurnLoop):
    """What an event causes is written when the event is over, and what a callback does when all that waited
    have run; the event itself, before it is let in: it may end the process."""

    def __init__(self, host: asyncio.AbstractEventLoop, tape: Tape) -> None:
        super().__init__()
        self.host = host
        self._host_time = host.time
        self._tape = tape
        self._noted = 0  # callbacks, at the last event
        self._depth = 0
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = _NEVER_MS
        self.turn = threading.Lock()
        """Held by the loop in each of its turns, and by a job between its calls. So what a job finds of the
        broker's state does not depend on how fast each of the two is, but on the order on the tape."""

    @property
    def since_event(self) -> int:
        """How many callbacks have begun since the last event."""
        return self.executed - self._noted

    def enter(
        self, kind: bytes, fields: bytes, function: Callable[..., T], *args: Any, data: Buffer = b""
    ) -> T:
        """Let an event in: note it, and call ``function``, which is the broker's. After the broker's end,
        which what is left of the runtime may outlast, nothing is let in.

        ``data``: the last bytes of the last field.
        """
        if self.is_closed():
            return cast(T, None)
        if self._depth:  # it comes within a call of the broker's
            self._tape.add(b"".join((self._head(kind, True), fields, data)))
            return self.within(function, *args)
        with self.turn:
            self._tape.write(self._head(kind, False) + fields, data)
            asyncio._set_running_loop(self)
            self._depth = 1
            try:
                return function(*args)
            finally:
                self._end_turn()

    def _head(self, kind: bytes, is_within: bool) -> bytes:
        """Return what an event begins with, and let time go on."""
        now_ms = round(self._host_time() * 1000)
        callbacks = self.executed - self._noted
        passed_ms = now_ms - self.now_ms
        if passed_ms or self._timers:
            self.set_time(now_ms)
        if callbacks == passed_ms == 0:
            return kind + (b"\0\1" if is_within else b"\0\0")
        self._noted = self.executed
        return kind + varint(callbacks) + varint(signed(passed_ms) << 1 | is_within)

    def _end_turn(self) -> None:
        self._depth = 0
        asyncio._set_running_loop(self.host)
        if self._ready and not self._is_scheduled:
            self._is_scheduled = True
            self.host.call_soon(self._run)
        if self._timers and self._timers[0][0] < self._timer_ms:
            self._set_timer()
        self._tape.drain()

    def _run(self) -> None:
        """Run the callbacks that wait now; those that they add run in the next iteration of the host."""
        with self.turn:
            self._is_scheduled = False
            if round(self._host_time() * 1000) != self.now_ms:
                self._tape.add(self._head(_KIND[kinds.TIME], False))
            asyncio._set_running_loop(self)
            self._depth = 1
            try:
                for _ in range(len(self._ready)):
                    self.run_one()
            finally:
                self._end_turn()

    def _set_timer(self) -> None:
        due_s = self.next_timer_s
        if due_s is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = self._timers[0][0]
        self._timer = self.host.call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_ms = None, _NEVER_MS
        self.enter(_KIND[kinds.TIME], b"", _nothing)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self.host.add_signal_handler(
            sig, lambda: self.enter(_KIND[kinds.SIGNAL], varint(sig), callback, *args)
        )


class Recorder(Door):
    """The door of a recorded broker."""

    def __init__(self, loop: RecordingLoop, tape: Tape, folders: Sequence[str]) -> None:
        """``folders``: where no other process writes."""
        self.loop = loop
        self.tape = tape
        self.files = KnownFiles(folders, keeps_content=False)
        self.offloaded = 0
        self._jobs = 0
        self._waits = 0
        self._appends = 0
        """Of the event loop, since the last one that failed."""
        self._is_draining = False

    def note(self, *parts: bytes) -> None:
        """Add an entry. In an offloaded job it is one of the job."""
        job = _JOB.get()
        if not job:
            self.tape.add_parts(parts)
        else:
            self.tape.add_parts((job, varint(self.loop.since_event), *parts))
            if not self._is_draining:  # the loop may have nothing to do meanwhile
                self._is_draining = True
                host = self.loop.host
                host.call_soon_threadsafe(host.call_later, DRAIN_S, self._drain)

    def _drain(self) -> None:
        self._is_draining = False
        self.tape.drain()

    # --- calls

    def ask(self, name: str, args: Sequence[object], work: Callable[[], T]) -> T:
        if not _JOB.get():
            self.tape.drain()  # it may hang, or be the last
        try:
            result = self._apart(work) if _JOB.get() else _on_host(self.loop, work)
        except Exception as error:
            self.note(_KIND[kinds.ASK], self.tape.packed([name, args, False, failure_of(error)]))
            raise
        self.note(_KIND[kinds.ASK], self.tape.packed([name, args, True, result]))
        return result

    def _apart(self, work: Callable[[], T]) -> T:
        """Do what may take long; the loop goes on meanwhile."""
        if not _JOB.get():
            return work()
        self.loop.turn.release()
        try:
            return work()
        finally:
            self.loop.turn.acquire()

    def open_file(self, path: str, work: Callable[[], File]) -> tuple[File, KnownFile]:
        try:
            file = self._apart(work)
            known = self.files.get(path) or self.files.opened(path, self._apart(file.size))
        except OSError as error:
            self.note(_KIND[kinds.OPEN], self.tape.packed([path, False, failure_of(error)]))
            raise
        self.note(_KIND[kinds.OPEN], self.tape.packed([path, True, known.known_from]))
        return file, known

    def append(
        self, known: KnownFile, buffers: Sequence[Buffer], work: Callable[[Sequence[Buffer]], int]
    ) -> int:
        if not _JOB.get():
            try:
                written = work(buffers)
            except OSError as error:
                self._note_failed_append(known, self._appends, error)
                self._appends = 0
                raise
            self._appends += 1
            return written
        try:
            written = self._apart(lambda: work(buffers))
        except OSError as error:
            self._note_failed_append(known, 0, error)
            raise
        self.note(_APPEND, varint(written))
        return written

    def _note_failed_append(self, known: KnownFile, appends: int, error: OSError) -> None:
        known.forget()
        self.note(_KIND[kinds.APPEND_FAILED], varint(appends), self.tape.packed(failure_of(error)))

    def read(
        self, known: KnownFile, position: int, length: int, work: Callable[[], bytes | None]
    ) -> bytes | None:
        try:
            data = self._apart(work)
        except OSError as error:
            self.note(_KIND[kinds.READ_FAILED], self.tape.packed(failure_of(error)))
            raise
        if data is None:
            self.note(_READ_KNOWN, varint(0), bytes(4))
        elif position >= known.known_from:
            self.note(_READ_KNOWN, varint(len(data) + 1), crc32c(data).to_bytes(4, "big"))
        else:
            self.note(_READ, varint(len(data)), data)
        return data

    def size(self, work: Callable[[], int]) -> int:
        size = self._apart(work)
        self.note(_SIZE, varint(size))
        return size

    # --- calls that take time

    async def wait(self, name: str, args: Sequence[object], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.wait_numbered(name, args, lambda _: work(), lambda result: result)

    async def wait_numbered(
        self,
        name: str,
        args: Sequence[object],
        work: Callable[[int], Coroutine[Any, Any, T]],
        told: Callable[[T], object],
    ) -> T:
        """Wait for ``work``, which gets the number of this call. ``told`` makes what is recorded of the
        result."""
        self._waits += 1
        number = self._waits
        self.note(_KIND[kinds.WAIT], varint(number), self.tape.packed([name, args]))
        future: asyncio.Future[T] = self.loop.create_future()
        doing = self.loop.host.create_task(work(number))

        def on_done(done: asyncio.Task[T]) -> None:
            if future.done() or done.cancelled():
                return
            error = done.exception()
            if error is None:
                fields = self.tape.packed([True, told(done.result())])
                self.loop.enter(_KIND[kinds.DONE], varint(number) + fields, future.set_result, done.result())
            else:
                fields = self.tape.packed([False, failure_of(error)])
                self.loop.enter(_KIND[kinds.DONE], varint(number) + fields, future.set_exception, error)

        doing.add_done_callback(on_done)
        try:
            return await future
        except asyncio.CancelledError:
            self.loop.host.call_soon(doing.cancel)
            raise

    async def pull_parts(
        self, name: str, parts: AsyncIterator[bytes], work: Callable[[AsyncIterator[bytes]], Any]
    ) -> None:
        pulls = Pulls(parts)

        async def pulled(number: int) -> AsyncIterator[bytes]:
            while True:
                part: asyncio.Future[bytes | None] = self.loop.host.create_future()
                self.loop.enter(_KIND[kinds.PULL], varint(number), pulls.begin, part)
                data = await part
                if data is None:
                    return
                yield data

        try:
            await self.wait_numbered("upload", (name,), lambda number: work(pulled(number)), lambda _: None)
        finally:
            await pulls.end()

    async def offload(self, disk: Disk, work: Callable[[], T]) -> T:
        self._jobs += 1
        number = self._jobs
        prefix = _KIND[kinds.JOB] + varint(number)
        self.note(_KIND[kinds.OFFLOAD], varint(number))
        self.offloaded += 1
        future: asyncio.Future[T] = self.loop.create_future()

        def run() -> T:
            _JOB.set(prefix)
            with self.loop.turn:
                self.note(_KIND[kinds.BEGIN])  # what it reads before its first call, it reads now
                return work()

        def end(done: asyncio.Task[T]) -> None:
            self.offloaded -= 1
            if future.done():
                done.exception()
            elif (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        doing = self.loop.host.create_task(disk.offload(run))
        doing.add_done_callback(
            lambda done: self.loop.enter(_KIND[kinds.JOB_DONE], varint(number), end, done)
        )
        return await future

    # --- the runtime

    def runtime(self, system: Runtime) -> Runtime:
        """Return the runtime of a recorded broker, around ``system``."""

        def open_object_store(uri: str, writer: str) -> ObjectStore:
            stores: list[ObjectStore] = []

            def work() -> None:
                stores.append(system.open_object_store(uri, writer))

            self.ask("open_object_store", (), work)
            return SeamObjectStore(self, stores[0])

        return Runtime(
            RecordingClock(self, system.clock),
            SeamDisk(self, system.disk),
            RecordingNetwork(self, system.network),
            SeamEntropy(self, system.entropy),
            system.open_files_max,
            open_object_store,
            self.with_secret,
            SeamLoggers(self, system.loggers),
        )


STEP_US = 32
"""The clock of short durations goes on in such steps while it is recorded: fewer readings differ."""


class RecordingClock:
    """Invariant: of a thread that is not the event loop's each reading is an entry; of the loop's, each that
    differs from the one before, with the number of those that did not."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._add = recorder.tape.add
        self._wall = self._monotonic = self._monotonic_us = self._cpu = 0
        self._walls = self._monotonics = self._monotonics_us = self._cpus = 0
        self._short_us = [
            _KIND[kinds.MONOTONIC_US] + b"\0" + varint(signed(step * STEP_US)) for step in range(64)
        ]

    def wall_ms(self) -> int:
        now = self._clock.wall_ms()
        if _JOB.get():
            return self._elsewhere(kinds.WALL, now)
        if now == self._wall:
            self._walls += 1
            return now
        self._add(_KIND[kinds.WALL] + varint(self._walls) + varint(signed(now - self._wall)))
        self._wall, self._walls = now, 0
        return now

    def monotonic_ms(self) -> int:
        now = self._clock.monotonic_ms()
        if _JOB.get():
            return self._elsewhere(kinds.MONOTONIC, now)
        if now == self._monotonic:
            self._monotonics += 1
            return now
        self._add(_KIND[kinds.MONOTONIC] + varint(self._monotonics) + varint(signed(now - self._monotonic)))
        self._monotonic, self._monotonics = now, 0
        return now

    def monotonic_us(self) -> int:
        now = self._clock.monotonic_us() // STEP_US * STEP_US
        if _JOB.get():
            return self._elsewhere(kinds.MONOTONIC_US, now)
        step = now - self._monotonic_us
        if step == 0:
            self._monotonics_us += 1
            return now
        if self._monotonics_us == 0 and 0 < step < 64 * STEP_US:
            self._add(self._short_us[step // STEP_US])
        else:
            self._add(_KIND[kinds.MONOTONIC_US] + varint(self._monotonics_us) + varint(signed(step)))
        self._monotonic_us, self._monotonics_us = now, 0
        return now

    def thread_cpu_us(self) -> int:
        now = self._clock.thread_cpu_us()
        if _JOB.get():
            return self._elsewhere(kinds.CPU, now)
        if now == self._cpu:
            self._cpus += 1
            return now
        self._add(_KIND[kinds.CPU] + varint(self._cpus) + varint(signed(now - self._cpu)))
        self._cpu, self._cpus = now, 0
        return now

    def _elsewhere(self, kind: int, now: int) -> int:
        self._recorder.note(_KIND[kind], b"\0", varint(signed(now)))
        return now


# The network.

EXTRA = ("peername", "sockname")


class RecordingNetwork:
    def __init__(self, recorder: Recorder, network: Network) -> None:
        self._recorder = recorder
        self._network = network
        self._connections = 0
        self._listeners = 0

    async def listen(
        self,
        factory: ProtocolFactory,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        gate: HandshakeGate | None = None,
    ) -> Listener:
        self._listeners += 1
        number = self._listeners
        listener = await self._recorder.wait_numbered(
            "listen",
            (host, port),
            lambda _: self._network.listen(
                lambda: self._accept(number, factory),
                host,
                port,
                tls,
                None if gate is None else _RecordedGate(self._recorder, number, gate),
            ),
            lambda listener: listener.port,
        )
        return _RecordedListener(self._recorder, listener)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ClientTls | None = None
    ) -> asyncio.BaseProtocol:
        return await self._recorder.wait_numbered(
            "connect",
            (host, port),
            lambda number: self._connect(number, factory, host, port, tls),
            lambda _: None,
        )

    async def _connect(
        self, number: int, factory: ProtocolFactory, host: str, port: int, tls: ClientTls | None
    ) -> asyncio.BaseProtocol:
        protocol = await self._network.connect(lambda: self._new(False, number, factory), host, port, tls)
        return cast("_Recorded", protocol).inner

    def _accept(self, listener: int, factory: ProtocolFactory) -> asyncio.BaseProtocol:
        return self._new(True, listener, factory)

    def _new(self, is_accepted: bool, origin: int, factory: ProtocolFactory) -> asyncio.BaseProtocol:
        self._connections += 1
        number = varint(self._connections)
        loop = self._recorder.loop
        if loop.is_closed():
            return asyncio.Protocol()
        inner = loop.enter(_KIND[kinds.CONNECTION], number + varint(origin << 1 | is_accepted), factory)
        if isinstance(inner, asyncio.BufferedProtocol):
            return _RecordedBuffered(self._recorder, number, inner)
        return _RecordedStream(self._recorder, number, cast(asyncio.Protocol, inner))


class _RecordedListener:
    def __init__(self, recorder: Recorder, listener: Listener) -> None:
        self._recorder = recorder
        self._listener = listener
        self.port = listener.port

    async def start(self) -> None:
        await self._recorder.wait("start", (), self._listener.start)

    def close(self) -> None:
        # Noted first: the handshakes that it ends are told to the broker meanwhile.
        self._recorder.note(_KIND[kinds.ASK], packed(["close listener", (), True, None]))
        _on_host(self._recorder.loop, self._listener.close)


def _on_host(loop: RecordingLoop, function: Callable[[], T]) -> T:
    """Call what belongs to the runtime, and may ask for the running loop."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop.host)
    try:
        return function()
    finally:
        asyncio._set_running_loop(before)


class _RecordedGate:
    def __init__(self, recorder: Recorder, listener: int, gate: HandshakeGate) -> None:
        self._loop = recorder.loop
        self._listener = varint(listener)
        self._gate = gate

    def begin(self, address: str, port: int) -> Admitted | None:
        fields = self._listener + packed([address, port])
        return self._loop.enter(_KIND[kinds.GATE_BEGIN], fields, self._gate.begin, address, port)

    def end(self, address: str) -> None:
        fields = self._listener + packed([address])
        self._loop.enter(_KIND[kinds.GATE_END], fields, self._gate.end, address)


class _Recorded:
    """A protocol around the broker's: what the transport tells it is an event."""

    def __init__(
        self, recorder: Recorder, number: bytes, inner: asyncio.Protocol | asyncio.BufferedProtocol
    ) -> None:
        self._recorder = recorder
        self._loop = recorder.loop
        self._number = number
        self.inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wrapped = RecordedTransport(self._recorder, self._number, cast(asyncio.Transport, transport))
        fields = self._number + self._recorder.tape.packed(wrapped.extra)
        self._loop.enter(_KIND[kinds.MADE], fields, self.inner.connection_made, wrapped)

    def connection_lost(self, exc: Exception | None) -> None:
        told = self._recorder.tape.packed(None if exc is None else failure_of(exc))
        self._loop.enter(_KIND[kinds.LOST], self._number + told, self.inner.connection_lost, exc)

    def pause_writing(self) -> None:
        self._loop.enter(_KIND[kinds.PAUSE], self._number, self.inner.pause_writing)

    def resume_writing(self) -> None:
        self._loop.enter(_KIND[kinds.RESUME], self._number, self.inner.resume_writing)

    def eof_received(self) -> bool | None:
        return self._loop.enter(_KIND[kinds.EOF], self._number, self.inner.eof_received)


class _RecordedStream(_Recorded, asyncio.Protocol):
    inner: asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        copied = bytes(data)
        fields = self._number + varint(len(copied))
        self._loop.enter(_KIND[kinds.DATA], fields, self.inner.data_received, copied, data=copied)


class _RecordedBuffered(_Recorded, asyncio.BufferedProtocol):
    inner: asyncio.BufferedProtocol
    _buffer: memoryview | None = None

    def __init__(self, recorder: Recorder, number: bytes, inner: asyncio.BufferedProtocol) -> None:
        super().__init__(recorder, number, inner)
        self._updated = inner.buffer_updated

    def get_buffer(self, sizehint: int) -> memoryview:
        self._buffer = memoryview(self.inner.get_buffer(sizehint))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self._buffer is not None
        data, self._buffer = self._buffer[:nbytes], None
        fields = self._number + varint(nbytes)
        self._loop.enter(_KIND[kinds.BUFFER], fields, self._updated, nbytes, data=data)


class Encrypted:
    """What a connection with TLS tells of it."""

    def __init__(self, certificate: bytes | None) -> None:
        self._certificate = certificate

    def getpeercert(self, binary_form: bool = False) -> bytes | None:
        return self._certificate


class RecordedTransport:
    """A transport around the real one. What is written is recorded as a digest."""

    def __init__(self, recorder: Recorder, number: bytes, transport: asyncio.Transport) -> None:
        self._recorder = recorder
        self._note = recorder.tape.add_parts
        self._number = number
        self._transport = transport
        encrypted = transport.get_extra_info("ssl_object")
        self.extra: dict[str, Any] = {name: transport.get_extra_info(name) for name in EXTRA}
        self.extra["certificate"] = None if encrypted is None else encrypted.getpeercert(True)
        self.extra["has_tls"] = encrypted is not None
        self._encrypted = None if encrypted is None else Encrypted(self.extra["certificate"])
        self._is_closing = False
        self._open = 0  # how often it was found not to be closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._encrypted or default
        return self.extra.get(name, default)

    def write(self, data: Buffer) -> None:
        self._note_written((data,))
        try:
            self._transport.write(data)  # type: ignore[arg-type]
        except Exception as error:
            self._note_failure(error)
            raise

    def writelines(self, list_of_data: Sequence[Buffer]) -> None:
        self._note_written(list_of_data)
        try:
            self._transport.writelines(list_of_data)  # type: ignore[arg-type]
        except Exception as error:
            self._note_failure(error)
            raise

    def _note_written(self, parts: Sequence[Buffer]) -> None:
        length, crc = digest_of(parts)
        self._note((_KIND[kinds.WRITE], self._number, varint(length), crc.to_bytes(4, "big")))

    def _note_failure(self, error: Exception) -> None:
        """``error``: uvloop's, of a handle that is closed."""
        failure = self._recorder.tape.packed(failure_of(error))
        self._note((_KIND[kinds.FAILED], self._number, failure))

    def is_closing(self) -> bool:
        if not self._is_closing:
            self._is_closing = self._transport.is_closing()
            if not self._is_closing:
                self._open += 1
                return False
            self._note((_KIND[kinds.IS_CLOSING], self._number, varint(self._open)))
        return True

    def get_write_buffer_size(self) -> int:
        size = self._transport.get_write_buffer_size()
        self._note((_KIND[kinds.UNSENT], self._number, varint(size)))
        return size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._do("set_write_buffer_limits", lambda: self._transport.set_write_buffer_limits(high, low))

    def pause_reading(self) -> None:
        self._do("pause_reading", self._transport.pause_reading)

    def resume_reading(self) -> None:
        self._do("resume_reading", self._transport.resume_reading)

    def close(self) -> None:
        self._do("close", self._transport.close)

    def abort(self) -> None:
        self._do("abort", self._transport.abort)

    def can_write_eof(self) -> bool:
        return not self.extra["has_tls"]

    def write_eof(self) -> None:
        self._do("write_eof", self._transport.write_eof)

    def _do(self, name: str, work: Callable[[], object]) -> None:
        # Noted first: what the transport tells the broker meanwhile comes after it.
        self._note((_KIND[kinds.TRANSPORT], self._number, packed(name)))
        try:
            work()
        except Exception as error:
            self._note_failure(error)
            raise


OnHost = Callable[[Callable[[], Any]], Any]
"""Calls a function as the code of the host: what it starts is not recorded."""


async def record(
    serve: Callable[[Runtime, OnHost], Coroutine[Any, Any, T]],
    system: Runtime,
    tape: Tape,
    folders: Sequence[str],
) -> T:
    """Run ``serve`` with a runtime that is recorded; return its result.

    ``folders``: the log directories, in which no other process writes.
    """
    host = asyncio.get_running_loop()
    loop = RecordingLoop(host, tape)
    recorder = Recorder(loop, tape, folders)
    ended: asyncio.Future[T] = host.create_future()

    def begin() -> None:
        serving = serve(recorder.runtime(system), lambda function: _on_host(loop, function))
        loop.create_task(serving).add_done_callback(end)

    def end(done: asyncio.Task[T]) -> None:
        if ended.done():
            return
        if done.cancelled():
            ended.cancel()
        elif (error := done.exception()) is not None:
            ended.set_exception(error)
        else:
            ended.set_result(done.result())

    loop.enter(_KIND[kinds.TIME], b"", begin)
    try:
        return await ended
    finally:
        tape.on_end = lambda _: None  # that it has ended, its log says
        tape.end("the broker has ended")
        await _end_tasks(loop)
        loop.close()


async def _end_tasks(loop: RecordingLoop) -> None:
    """Cancel what the broker has left running, as ``asyncio.run`` does with the tasks of its own loop."""
    left = asyncio.all_tasks(loop)
    ended = loop.host.create_future()

    def cancel() -> None:
        for task in left:
            task.cancel()
        asyncio.gather(*left, return_exceptions=True).add_done_callback(lambda _: ended.set_result(None))

    if left:
        loop.enter(_KIND[kinds.TIME], b"", cancel)
        await ended
