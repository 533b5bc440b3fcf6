"""The process that owns a test cluster: it forks the brokers, and outlives the test process to clean up.

``python -m nilometer.testing.launcher FD PARENT`` reads requests from the socket FD: one JSON object per
line, ``{"operation": …}``, each answered by one line, ``{"result": …}`` or ``{"error": "…"}``. The operations
are the methods of :class:`Launcher` whose names begin with ``on_``.

When the socket is closed, or the process PARENT has ended, the launcher kills its brokers, removes the data
folder and ends. If the launcher itself is killed, the system kills its brokers. Brokers are forked, since an
import of the broker's modules takes longer than its start.

A port is bound here before its broker starts, and stays bound (but does not listen) until the cluster ends:
no other process can get it, not even while the broker is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from nilometer.broker.process import run_broker
from nilometer.broker.status_file import NOT_READY
from nilometer.local.first_users import write_users
from nilometer.local.local_cluster import READY_TIMEOUT_S, BrokerProcess, LaunchFailed, wait_all_registered
from nilometer.local.secure_cluster import PROTOCOL, SecureFolder
from nilometer.runtime import Runtime
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage.directories import log_directory
from nilometer.storage.directories.log_directory import MetaProperties
from nilometer.storage.names import META_PROPERTIES
from nilometer.testing.cluster import HOST
from nilometer.testing.faults import BrokerFaults

with contextlib.suppress(ImportError):  # there is no uvloop for some systems
    importlib.import_module("uvloop")  # once here, and not in every broker

STOP_TIMEOUT_S = 30.0
FAULTS_TIMEOUT_S = 30.0
PARENT_CHECK_S = 1.0
"""How often the parent's end is checked. It closes the socket too, unless a process that it forked has it."""
_POLL_S = 0.01
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Sent by what ends a whole tree of processes, as CI does: the launcher must clean up after the others."""
_PR_SET_PDEATHSIG = 1


class ParentEnded(Exception):
    """The test process has ended, or has closed its socket."""


@dataclass(slots=True)
class _Broker:
    """One broker of the cluster; ``pid`` is None while it does not run."""

    id: int
    reservation: socket.socket
    settings: dict[str, str]
    log_path: Path
    log_start: int = 0
    """The size of the log file when the process was started."""
    pid: int | None = None
    ready_fd: int = -1
    is_paused: bool = False
    control: socket.socket | None = None
    """Changes the faults of the running broker; None in a cluster without faults."""
    faults: dict[str, Any] = field(default_factory=dict[str, Any])
    unanswered: int = 0
    """How many changes of its faults it has not confirmed."""

    @property
    def port(self) -> int:
        return self.reservation.getsockname()[1]


class Launcher:
    def __init__(self, control: socket.socket, parent_pid: int) -> None:
        self._control = control
        self._parent_pid = parent_pid
        self._received = b""
        self._folder: Path | None = None
        self._brokers: dict[int, _Broker] = {}
        self._connection: dict[str, str] = {}
        """The settings by which clients connect."""
        self._has_faults = False

    def serve(self) -> None:
        """Perform requests until the parent ends; then clean up."""
        try:
            while True:
                request = json.loads(self._next_line())
                operation = getattr(self, "on_" + request.pop("operation"))
                try:
                    response = {"result": operation(**request)}
                except (LaunchFailed, OSError) as error:
                    response = {"error": str(error)}
                self._control.sendall(json.dumps(response).encode() + b"\n")
        except (ParentEnded, ConnectionError):
            return
        finally:
            self.on_close()

    # --- operations

    def on_open(
        self,
        brokers: int,
        settings: dict[str, str],
        cluster_id: str | None,
        secure: bool,
        faults: bool,
    ) -> dict[str, Any]:
        """Create the data folder and reserve the ports.

        Returns the folder, the ports by broker id, and the settings that clients need to connect, which are
        none unless the cluster is ``secure``.
        """
        self._has_faults = faults
        self._folder = Path(tempfile.mkdtemp(prefix="nilometer-"))
        security = SecureFolder(self._folder)
        if secure:
            security.create()
            asyncio.run(write_users(security, f"local:{self._store}", cluster_id))
            self._connection = security.admin_settings()
        listener = PROTOCOL.value if secure else "PLAINTEXT"
        for broker_id in range(1, brokers + 1):
            reservation = _reserve_port()
            log_dir = self._folder / f"broker-{broker_id}"
            if cluster_id is not None:
                _write_identity(log_dir, broker_id, cluster_id)
            own = {
                "node.id": str(broker_id),
                "listeners": f"{listener}://{HOST}:{reservation.getsockname()[1]}",
                "log.dirs": str(log_dir),
                "nilometer.coordination": f"local:{self._store}",
            }
            if secure:
                security.issue(broker_id, HOST)
                own |= security.broker_settings(broker_id)
            log_path = self._folder / f"broker-{broker_id}.log"
            self._brokers[broker_id] = _Broker(broker_id, reservation, settings | own, log_path)
        return {
            "folder": str(self._folder),
            "ports": {broker_id: broker.port for broker_id, broker in self._brokers.items()},
            "connection": self._connection,
        }

    def on_start(self, broker_ids: Sequence[int]) -> None:
        """Start those of the brokers that do not run; return once all running brokers are ready.

        Raises LaunchFailed.
        """
        starting = [broker for one in broker_ids if not self._is_running(broker := self._brokers[one])]
        for broker in starting:
            self._fork(broker)
        for broker in starting:
            self._wait_ready(broker)
        wait_all_registered(self._processes, self._connection)

    def on_kill(self, broker_id: int) -> None:
        self._end(self._brokers[broker_id], signal.SIGKILL)

    def on_stop(self, broker_id: int) -> None:
        """Stop a broker with SIGTERM. Raises LaunchFailed if it ended only by SIGKILL, after 30 s."""
        self._end(self._brokers[broker_id], signal.SIGTERM)

    def on_pause(self, broker_id: int) -> None:
        self._signal(self._brokers[broker_id], signal.SIGSTOP)
        self._brokers[broker_id].is_paused = True

    def on_resume(self, broker_id: int) -> None:
        self._signal(self._brokers[broker_id], signal.SIGCONT)
        self._brokers[broker_id].is_paused = False

    def on_faults(self, broker_id: int, faults: dict[str, Any], reset: list[int]) -> None:
        """Give a broker these faults, once it runs; return when they are in force. Raises LaunchFailed."""
        broker = self._brokers[broker_id]
        broker.faults = faults
        if broker.control is None or not self._is_running(broker):
            return
        broker.unanswered += 1
        broker.control.sendall(json.dumps({"faults": faults, "reset": reset}).encode() + b"\n")
        if not broker.is_paused:
            self._wait_in_force(broker, broker.control)

    def on_running(self) -> list[int]:
        """Return the ids of the brokers whose processes run and are not paused."""
        return [
            broker.id
            for broker in self._brokers.values()
            if self._is_running(broker) and not broker.is_paused
        ]

    def on_close(self) -> None:
        """Kill all brokers and remove the data folder."""
        for broker in self._brokers.values():
            if self._is_running(broker):
                self._end(broker, signal.SIGKILL)
        for broker in self._brokers.values():
            broker.reservation.close()
            if broker.control is not None:
                broker.control.close()
        self._brokers = {}
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder)

    @property
    def _store(self) -> Path:
        assert self._folder is not None
        return self._folder / "coordination"

    # --- one broker

    def _wait_in_force(self, broker: _Broker, control: socket.socket) -> None:
        """Wait until a broker has answered all changes of its faults. Raises LaunchFailed, ParentEnded."""
        deadline = time.monotonic() + FAULTS_TIMEOUT_S
        while broker.unanswered:
            if not self._wait_readable(control.fileno(), deadline):
                raise LaunchFailed(f"broker {broker.id} did not take its faults for {FAULTS_TIMEOUT_S:.0f} s")
            answered = control.recv(65_536)
            if not answered:
                return  # it has ended
            broker.unanswered -= len(answered)

    def _fork(self, broker: _Broker) -> None:
        read_end, write_end = os.pipe()
        broker.log_start = broker.log_path.stat().st_size if broker.log_path.exists() else 0
        theirs = self._new_control(broker) if self._has_faults else None
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            self._become_broker(broker, write_end, theirs)
        os.close(write_end)
        if theirs is not None:
            theirs.close()
        broker.pid, broker.ready_fd, broker.is_paused = pid, read_end, False

    def _new_control(self, broker: _Broker) -> socket.socket:
        """Return the end of the broker that is about to be forked."""
        if broker.control is not None:
            broker.control.close()
        broker.control, theirs = socket.socketpair()
        broker.unanswered = 0
        return theirs

    def _become_broker(self, broker: _Broker, ready_fd: int, control: socket.socket | None) -> NoReturn:
        """Run the broker in this process, which was just forked."""
        code = 1
        try:
            log = os.open(broker.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            for number in _IGNORED:
                signal.signal(number, signal.SIG_DFL)
            launcher_pid = os.getppid()
            _end_with_parent()
            if os.getppid() == launcher_pid:
                self._control.close()
                make_runtime = Runtime.system if control is None else self._runtime(broker, control)
                for other in self._brokers.values():
                    other.reservation.close()
                    if other.control is not None:
                        other.control.close()
                code = run_broker(None, broker.settings, ready_fd, make_runtime=make_runtime)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _runtime(self, broker: _Broker, control: socket.socket) -> Callable[[], Runtime]:
        """Return what makes the runtime of a broker with faults."""
        from nilometer.testing.faulty_runtime import FaultyBroker, faulty_runtime  # few clusters have faults

        brokers = {other.port: other.id for other in self._brokers.values()}
        faults = msgspec.convert(broker.faults, BrokerFaults, strict=False)
        described = FaultyBroker(broker.id, brokers, str(self._store), faults)
        return partial(faulty_runtime, described, control)

    def _wait_ready(self, broker: _Broker) -> None:
        """Wait until the broker has reported that it is ready. Raises LaunchFailed, ParentEnded."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        try:
            said = b""
            while not said.endswith(b"\n"):
                if not self._wait_readable(broker.ready_fd, deadline):
                    raise LaunchFailed(f"broker {broker.id} was not ready after {READY_TIMEOUT_S:.0f} s")
                part = os.read(broker.ready_fd, 1000)
                if not part:
                    os.waitpid(broker.pid or 0, 0)
                    broker.pid = None
                    raise LaunchFailed(f"broker {broker.id} did not start: {_last_line(broker)}")
                said += part
        finally:
            os.close(broker.ready_fd)
            broker.ready_fd = -1
        reason = said.decode().strip()
        if reason.startswith(NOT_READY):
            raise LaunchFailed(f"broker {broker.id} is not ready: {reason.removeprefix(NOT_READY)}")

    def _is_running(self, broker: _Broker) -> bool:
        if broker.pid is None:
            return False
        ended, _ = os.waitpid(broker.pid, os.WNOHANG)
        if ended:
            broker.pid = None
        return broker.pid is not None

    def _signal(self, broker: _Broker, number: signal.Signals) -> None:
        if not self._is_running(broker):
            raise LaunchFailed(f"broker {broker.id} does not run")
        os.kill(broker.pid or 0, number)

    def _end(self, broker: _Broker, number: signal.Signals) -> None:
        """Send ``number`` and wait for the end of the process; a broker that is down is left alone."""
        if not self._is_running(broker):
            return
        pid = broker.pid or 0
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)  # a paused process does not handle SIGTERM
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self._is_running(broker):
            if number != signal.SIGKILL and time.monotonic() > deadline:
                self._end(broker, signal.SIGKILL)
                raise LaunchFailed(
                    f"broker {broker.id} had not stopped after {STOP_TIMEOUT_S:.0f} s and was killed"
                )
            time.sleep(_POLL_S)

    def _processes(self) -> list[BrokerProcess]:
        """Return the brokers that should respond: those that were started, and are not paused."""
        found: list[BrokerProcess] = []
        for broker in self._brokers.values():
            if broker.pid is not None and not broker.is_paused:
                state = "running" if self._is_running(broker) else "down"
                reason = None if state == "running" else _last_line(broker)
                found.append(BrokerProcess(broker.id, HOST, broker.port, broker.pid, state, reason))
        return found

    # --- the parent

    def _next_line(self) -> bytes:
        """Return the next request. Raises ParentEnded."""
        while b"\n" not in self._received:
            self._wait_readable(self._control.fileno(), None)
            part = self._receive()
            if not part:
                raise ParentEnded
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _wait_readable(self, descriptor: int, deadline: float | None) -> bool:
        """Wait until ``descriptor`` is readable; return False at ``deadline``. Raises ParentEnded."""
        while True:
            ready, _, _ = select.select([descriptor, self._control], [], [], PARENT_CHECK_S)
            if descriptor in ready:
                return True
            if os.getppid() != self._parent_pid or (self._control in ready and self._is_closed()):
                raise ParentEnded
            if deadline is not None and time.monotonic() > deadline:
                return False

    def _is_closed(self) -> bool:
        return not self._receive(1, socket.MSG_PEEK)

    def _receive(self, count: int = 65_536, flags: int = 0) -> bytes:
        """Return bytes of the socket; none if it is closed."""
        try:
            return self._control.recv(count, flags)
        except ConnectionError:
            return b""


def _reserve_port() -> socket.socket:
    """Return a socket bound to a free port. A broker can bind it too, since this socket does not listen."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((HOST, 0))
    return reservation


def _write_identity(log_dir: Path, broker_id: int, cluster_id: str) -> None:
    """Mark a new log directory as one of this cluster: the first broker then creates it with that id."""
    log_dir.mkdir()
    identity = MetaProperties(broker_id, cluster_id, log_directory.new_directory_id(uuid.uuid4()))
    log_directory.write_meta_properties(SystemDisk(), str(log_dir / META_PROPERTIES), identity)


def _end_with_parent() -> None:
    """Have the system kill this process when its parent ends, where the system can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _last_line(broker: _Broker) -> str:
    """Return the last line that the broker's process wrote."""
    with open(broker.log_path, "rb") as log:
        log.seek(broker.log_start)
        lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def main() -> None:
    descriptor, parent_pid = (int(argument) for argument in sys.argv[1:])
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # else the first collection in each broker copies every page with an object
    Launcher(control, parent_pid).serve()


if __name__ == "__main__":
    main()
