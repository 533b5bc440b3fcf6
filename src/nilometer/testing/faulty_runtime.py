"""The clock, disk and network of a broker in a test cluster with faults; the launcher steers them.

Each link between two brokers consists of the connections that one of them made to the other. Who made a
connection holds and delays its bytes, in both directions; so the other side needs to know nothing. Brokers
connect from addresses of their own on the loopback interface: all other connections are of clients, and the
broker that accepted them holds and delays their bytes.

The control socket has a line for each change, a :class:`Change` as JSON, and is answered by an empty line
once the faults are in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from typing_extensions import Buffer

from nilometer.runtime import DiskLock, File, Listener, Runtime
from nilometer.runtime.handshakes import HandshakeGate, ProtocolFactory
from nilometer.runtime.network import SocketNetwork, feed
from nilometer.runtime.runtime import SystemClock
from nilometer.runtime.system_disk import SystemDisk
from nilometer.runtime.tls import ClientTls, ServerTls
from nilometer.testing.cluster import OWN_HOST
from nilometer.testing.faults import CLIENTS, BrokerFaults

T = TypeVar("T")

_BROKERS_NET: Final = "127.0.1."
HELD_BYTES_MAX: Final = 1024 * 1024
"""More of one direction of a connection is not held: then its sender waits, as for a full window."""


class Change(msgspec.Struct, frozen=True):
    faults: BrokerFaults
    reset: tuple[int, ...] = ()
    """The other ends of the links to reset."""


class FaultyBroker(msgspec.Struct, frozen=True):
    """Who a broker is, so that its links and its log directories are told apart."""

    id: int
    brokers: Mapping[int, int]
    """The ids of all brokers by their ports."""
    store: str
    """The folder of the coordination store."""
    faults: BrokerFaults
    """At the start."""


def faulty_runtime(broker: FaultyBroker, control: socket.socket) -> Runtime:
    """Return the runtime of a broker whose faults are changed through ``control``. Needs the event loop."""
    current = CurrentFaults(broker.faults)
    _Control(control, current).start()
    system = Runtime.system()
    return Runtime(
        _FaultyClock(current),
        _FaultyDisk(current, broker.store),
        FaultyNetwork(current, broker),
        system.entropy,
        system.open_files_max,
    )


class CurrentFaults:
    """The faults that are in force, and what must be told of a change."""

    def __init__(self, faults: BrokerFaults) -> None:
        self.faults = faults
        self.wires: set[_Wire] = set()
        self._changed = asyncio.Event()

    def change(self, change: Change) -> None:
        self.faults = change.faults
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for wire in list(self.wires):
            if wire.peer in change.reset:
                wire.reset()
            wire.pump()

    async def wait(self, seconds: Callable[[BrokerFaults], float]) -> None:
        """Return once as many seconds have passed since the call as the faults of the moment demand."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        while (left_s := seconds(self.faults) - (loop.time() - begun_s)) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if left_s == math.inf else left_s):
                    await self._changed.wait()


class _Control:
    def __init__(self, control: socket.socket, current: CurrentFaults) -> None:
        self._control = control
        self._current = current
        self._loop = asyncio.get_running_loop()
        self._received = b""
        control.setblocking(False)

    def start(self) -> None:
        self._loop.add_reader(self._control, self._read)

    def _read(self) -> None:
        part = self._control.recv(65_536)
        if not part:  # the launcher has ended, and this broker ends with it
            self._loop.remove_reader(self._control)
            return
        *lines, self._received = (self._received + part).split(b"\n")
        for line in lines:
            self._current.change(msgspec.json.decode(line, type=Change))
            self._control.send(b"\n")


class _FaultyClock(SystemClock):
    def __init__(self, current: CurrentFaults) -> None:
        self._current = current

    def wall_ms(self) -> int:
        return super().wall_ms() + self._current.faults.clock_ms


# The network: a wire between each transport and its protocol.


class FaultyNetwork(SocketNetwork):
    def __init__(self, current: CurrentFaults, broker: FaultyBroker) -> None:
        super().__init__(f"{_BROKERS_NET}{broker.id}")
        self._current = current
        self._brokers = broker.brokers

    async def listen(
        self,
        factory: ProtocolFactory,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        gate: HandshakeGate | None = None,
    ) -> Listener:
        return await super().listen(lambda: _Wire(factory(), self._current), host, port, tls, gate)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ClientTls | None = None
    ) -> asyncio.BaseProtocol:
        peer = self._brokers.get(port)
        if peer is None:
            return await super().connect(factory, host, port, tls)

        def takes_s(faults: BrokerFaults) -> float:
            is_cut = peer in faults.cut_to or peer in faults.cut_from
            return math.inf if is_cut else 2 * faults.slow_ms.get(peer, 0) / 1000  # there and back

        await self._current.wait(takes_s)
        wire = await super().connect(lambda: _Wire(factory(), self._current, peer), host, port, tls)
        return cast(_Wire, wire).inner


class _End:
    """An item of a direction that is no data."""


_EOF, _CLOSE, _ABORT = _End(), _End(), _End()
_Item = bytes | _End | Exception | None
"""An exception, or None, is the end of the connection as the protocol gets it."""


class _Direction:
    """What goes one way, in order: it is held while the link is cut, and arrives later while it is slow."""

    def __init__(
        self, is_held: Callable[[], bool], delay_s: Callable[[], float], deliver: Callable[[_Item], None]
    ) -> None:
        self._is_held = is_held
        self._delay_s = delay_s
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[float, _Item]] = deque()
        """With when they were sent."""
        self._timer: asyncio.TimerHandle | None = None
        self.size = 0

    def put(self, item: _Item) -> None:
        self._items.append((self._loop.time(), item))
        self.size += len(item) if isinstance(item, bytes) else 0
        self.pump()

    def pump(self) -> None:
        """Deliver what is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._items and not self._is_held():
            sent_s, item = self._items[0]
            due_s = sent_s + self._delay_s()
            if due_s > self._loop.time():
                self._timer = self._loop.call_at(due_s, self.pump)
                return
            self._items.popleft()
            self.size -= len(item) if isinstance(item, bytes) else 0
            self._deliver(item)

    def clear(self) -> None:
        self._items.clear()
        self.size = 0


class _Wire(asyncio.Protocol):
    """Between a transport and its protocol, ``inner``, which gets another transport."""

    def __init__(self, inner: asyncio.BaseProtocol, current: CurrentFaults, peer: int | None = None) -> None:
        """``peer``: the broker that it connects to; None for a connection that is accepted."""
        self.inner = inner
        self.peer = peer
        self.transport: asyncio.Transport
        self._current = current
        self._is_reading = True
        self._reads = True
        self._writing_paused = False
        self._is_transport_full = False
        self.is_closing = False
        self._is_lost = False
        self._has_finished = False
        self.outgoing = _Direction(
            lambda: self._is_in(self._current.faults.cut_to), self._delay_s, self._send
        )
        self._incoming = _Direction(self._is_incoming_held, self._delay_s, self._receive)

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        host = transport.get_extra_info("peername")[0]
        if self.peer is None and not host.startswith(_BROKERS_NET) and host != OWN_HOST:
            self.peer = CLIENTS
        self._current.wires.add(self)
        self.inner.connection_made(_WireTransport(self))

    def data_received(self, data: bytes) -> None:
        self._incoming.put(data)
        self._balance()

    def eof_received(self) -> bool:
        self._incoming.put(_EOF)
        return True  # the inner protocol says later whether to close

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self.outgoing.clear()
        if self.is_closing:
            self._finish(exc)
        else:
            self._incoming.put(exc)
        if self._has_finished:
            self._current.wires.discard(self)

    def pause_writing(self) -> None:
        self._is_transport_full = True
        self._balance()

    def resume_writing(self) -> None:
        self._is_transport_full = False
        self._balance()

    # --- what the inner protocol calls, through its transport

    def write(self, data: bytes) -> None:
        if data and not self.is_closing and not self._is_lost:
            self.outgoing.put(data)
            self._balance()

    def read(self, *, is_reading: bool) -> None:
        self._is_reading = is_reading
        self._balance()
        if is_reading:
            self._incoming.pump()

    def close(self, how: _End) -> None:
        if self.is_closing:
            return
        self.is_closing = True
        if how is _ABORT:
            self.outgoing.clear()
        self.outgoing.put(how)
        if self._is_lost or self._is_in(self._current.faults.cut_to):
            # The system would go on sending by itself, and the protocol's connection ends at once.
            asyncio.get_running_loop().call_soon(self._finish, None)

    # --- faults

    def pump(self) -> None:
        self.outgoing.pump()
        self._incoming.pump()
        self._balance()

    def reset(self) -> None:
        if self._is_lost:
            return
        connection = self.transport.get_extra_info("socket")
        if connection is not None:  # its end is a RST
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.is_closing = True
        self.outgoing.clear()
        self._incoming.clear()
        self.transport.abort()
        self._finish(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _is_in(self, ends: Sequence[int]) -> bool:
        return self.peer is not None and self.peer in ends

    def _is_incoming_held(self) -> bool:
        return not self._is_reading or self._is_in(self._current.faults.cut_from)

    def _delay_s(self) -> float:
        return 0.0 if self.peer is None else self._current.faults.slow_ms.get(self.peer, 0) / 1000

    def _send(self, item: _Item) -> None:
        if self._is_lost or self.transport.is_closing():
            return
        if isinstance(item, bytes):
            self.transport.write(item)
        elif item is _EOF:
            self.transport.write_eof()
        elif item is _CLOSE:
            self.transport.close()
        else:
            self.transport.abort()
        self._balance()

    def _receive(self, item: _Item) -> None:
        if self._has_finished or (self.is_closing and isinstance(item, bytes | _End)):
            return
        if isinstance(item, bytes):
            feed(self.inner, item, lambda: self._has_finished or self.is_closing)
            self._balance()
        elif isinstance(item, _End):
            if not cast(asyncio.Protocol, self.inner).eof_received():
                self.close(_CLOSE)
        else:
            self._finish(item)

    def _finish(self, exc: Exception | None) -> None:
        if self._has_finished:
            return
        self._has_finished = self.is_closing = True
        if self._is_lost:
            self._current.wires.discard(self)
        self.inner.connection_lost(exc)

    def _balance(self) -> None:
        """Have the inner protocol, or the peer, wait if it sends too much."""
        if self._has_finished:
            return
        full = self._is_transport_full or self.outgoing.size > HELD_BYTES_MAX
        if full != self._writing_paused:
            self._writing_paused = full
            (self.inner.pause_writing if full else self.inner.resume_writing)()
        reads = self._is_reading and self._incoming.size <= HELD_BYTES_MAX
        if reads != self._reads and not self._is_lost and not self.transport.is_closing():
            self._reads = reads
            (self.transport.resume_reading if reads else self.transport.pause_reading)()


class _WireTransport(asyncio.Transport):
    """The transport that the inner protocol has."""

    def __init__(self, wire: _Wire) -> None:
        super().__init__()
        self._wire = wire

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._wire.transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._wire.is_closing

    def close(self) -> None:
        self._wire.close(_CLOSE)

    def abort(self) -> None:
        self._wire.close(_ABORT)

    def write(self, data: Any) -> None:
        self._wire.write(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self._wire.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return self._wire.transport.can_write_eof()

    def write_eof(self) -> None:
        self._wire.outgoing.put(_EOF)

    def pause_reading(self) -> None:
        self._wire.read(is_reading=False)

    def resume_reading(self) -> None:
        self._wire.read(is_reading=True)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._wire.transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._wire.transport.get_write_buffer_size() + self._wire.outgoing.size


# The disk: errors before an operation, and work that takes longer.

_GROWS = frozenset({"create", "append", "mkdir", "link", "replace"})
_CHANGES = _GROWS | {"write", "truncate", "sync", "rename", "remove", "lock"}


class _FaultyFile:
    """A file of the log directories, or of the store, whose operations may fail."""

    def __init__(self, file: File, strike: Callable[[str, str], None]) -> None:
        self._file = file
        self._strike = strike
        self.path = file.path
        self.size = file.size
        self.close = file.close

    def read_at(self, position: int, length: int) -> bytes:
        self._strike("read", self.path)
        return self._file.read_at(position, length)

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        self._strike("read", self.path)
        return self._file.read_at_if_cached(position, length)

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._strike("append", self.path)
        return self._file.append(buffers)

    def write_at(self, position: int, data: Buffer) -> None:
        self._strike("write", self.path)
        self._file.write_at(position, data)

    def truncate(self, size: int) -> None:
        self._strike("truncate", self.path)
        self._file.truncate(size)

    def sync(self) -> None:
        self._strike("sync", self.path)
        self._file.sync()


class _FaultyDisk(SystemDisk):
    def __init__(self, current: CurrentFaults, store: str) -> None:
        super().__init__()
        self._current = current
        self._store = store

    def _strike(self, verb: str, path: str) -> None:
        """Raise the OSError that the faults of the moment demand."""
        faults = self._current.faults
        if path.startswith(self._store):
            if faults.store:
                raise OSError(errno.EIO, "Input/output error", path)
        elif faults.disk_error and verb in _CHANGES:
            raise OSError(errno.EIO, "Input/output error", path)
        elif faults.disk_full and verb in _GROWS:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        creates = create and not super().exists(path)
        self._strike("create" if creates else "open", path)
        file = super().open(path, create=create, writable=writable, private=private)
        return _FaultyFile(file, self._strike)  # type: ignore[return-value]

    def exists(self, path: str) -> bool:
        self._strike("read", path)
        return super().exists(path)

    def list_directory(self, path: str) -> list[str]:
        self._strike("read", path)
        return super().list_directory(path)

    def make_directories(self, path: str, *, private: bool = False) -> None:
        self._strike("mkdir", path)
        super().make_directories(path, private=private)

    def rename(self, source: str, target: str) -> None:
        self._strike("rename", source)
        super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._strike("link", target)
        super().link(source, target)

    def remove(self, path: str) -> None:
        self._strike("remove", path)
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._strike("remove", path)
        super().remove_tree(path)

    def remove_empty_folder(self, path: str) -> None:
        self._strike("remove", path)
        super().remove_empty_folder(path)

    def read_file(self, path: str) -> bytes:
        self._strike("read", path)
        return super().read_file(path)

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._strike("replace", path)
        super().replace_file(path, data, sync=sync)

    def sync_directory(self, path: str) -> None:
        self._strike("sync", path)
        super().sync_directory(path)

    def lock(self, path: str) -> DiskLock:
        self._strike("lock", path)
        return super().lock(path)

    def is_locked(self, path: str) -> bool:
        self._strike("read", path)
        return super().is_locked(path)

    def free_bytes(self, path: str) -> int:
        return 0 if self._current.faults.disk_full else super().free_bytes(path)

    async def offload(self, work: Callable[[], T]) -> T:
        await self._current.wait(lambda faults: math.inf if faults.is_stalled else faults.stall_ms / 1000)
        return await super().offload(work)
