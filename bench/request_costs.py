"""What the worst legal request of each API costs a broker, beside Apache Kafka: ``bench.request_costs``.

For each API that clients may send, each array of the request's newest version is filled with distinct
elements up to ``--bytes``. The request is sent alone, while another client sends ApiVersions every few
milliseconds. A row says how much processor time the process used and how long the other client waited at
most, here and in Apache Kafka, and the longest turn of the API's requests so far by the broker's own
measurement. Both systems get a round of requests of a tenth of the size before the one that is measured.
A Kafka that still works on a request a minute later is started again, so that the next row is of its own
request.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.brokers.nilometer_broker import NilometerBroker
from tests.support.brokers.turns import longest_turns_ms
from tests.support.kafka.apache_kafka import JVM_AS_SHIPPED, ApacheKafka
from tests.support.wire.filled_requests import Case, cases

from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey, api_name

BYTES = 1_000_000
TIMEOUT_S = 10.0
"""A request without a response by then gets none: it waits for a change, or for minutes."""
PULSE_S = 0.005
IDLE_S = 0.2
IDLE_TIMEOUT_S = 60.0


class Cost(NamedTuple):
    cpu_s: float
    neighbour_ms: float
    rss_mb: float
    outcome: str
    is_done: bool
    """False: the process still worked on the request `IDLE_TIMEOUT_S` later."""


class Pulse:
    """Another client: how long it waits at most."""

    def __init__(self, bootstrap: str) -> None:
        self._socket = connect(bootstrap)
        self._is_over = threading.Event()
        self.longest_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        codec = messages.api(ApiKey.API_VERSIONS, 0)
        self._frame = messages.encode_request(1, "pulse", codec.request())
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            began = time.perf_counter()
            self._socket.sendall(self._frame)
            with contextlib.suppress(OSError):
                read_frame(self._socket)
            self.longest_s = max(self.longest_s, time.perf_counter() - began)
            time.sleep(PULSE_S)

    def stop(self) -> float:
        self._is_over.set()
        self._thread.join(TIMEOUT_S)
        self._socket.close()
        return self.longest_s


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def read_frame(source: socket.socket) -> int:
    """Read one response; return its size, 0 if the broker has closed the connection."""
    head = b""
    while len(head) < 4:
        more = source.recv(4 - len(head))
        if not more:
            return 0
        head += more
    (size,) = struct.unpack(">i", head)
    left = size
    while left:
        more = source.recv(min(left, 1 << 20))
        if not more:
            return 0
        left -= len(more)
    return size


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def measure(case: Case, bootstrap: str, pid: int) -> Cost:
    pulse = Pulse(bootstrap)
    began = cpu_s(pid)
    with connect(bootstrap) as client:
        try:
            client.sendall(case.frame)
            size = read_frame(client)
            outcome = f"{size} bytes" if size else "closed"
        except TimeoutError:
            outcome = f"none in {TIMEOUT_S:.0f} s"
        except OSError:
            outcome = "closed"
    neighbour_ms = pulse.stop() * 1000
    is_done = wait_idle(pid)
    return Cost(cpu_s(pid) - began, neighbour_ms, rss_mb(pid), outcome, is_done)


def wait_idle(pid: int) -> bool:
    """Wait until the process is done with the request, which may go on after its client has gone.

    Returns:
        whether it was done within `IDLE_TIMEOUT_S`.
    """
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    used_s = cpu_s(pid)
    while time.monotonic() < deadline:
        time.sleep(IDLE_S)
        before_s, used_s = used_s, cpu_s(pid)
        if used_s - before_s < IDLE_S / 4:
            return True
    return False


class WarmKafka:
    """An Apache Kafka that has served each request once at a tenth of the size."""

    def __init__(self, folder: Path, bytes_max: int, apis: Sequence[str]) -> None:
        self._folder = folder
        self._cases = list(cases(bytes_max // 10, apis))
        self._starts = 0
        self._stack = contextlib.ExitStack()
        self._kafka = self._start()

    def _start(self) -> ApacheKafka:
        self._starts += 1
        folder = self._folder / str(self._starts)
        folder.mkdir(parents=True)
        kafka = self._stack.enter_context(ApacheKafka(folder, jvm=JVM_AS_SHIPPED))
        for case in self._cases:
            measure(case, kafka.bootstrap, kafka.pid)
        return kafka

    def measure(self, case: Case) -> Cost:
        cost = measure(case, self._kafka.bootstrap, self._kafka.pid)
        if not cost.is_done:
            self._stack.close()
            self._kafka = self._start()
        return cost

    def __enter__(self) -> WarmKafka:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


HEADINGS = (
    "| API | filled | here: CPU s | longest turn ms | neighbour ms | RSS MB | response "
    "| Kafka: CPU s | neighbour ms | response |"
)


def row(case: Case, cost: Cost, turn_ms: float, kafka: Cost | None) -> str:
    cells = [
        f"{api_name(case.api)} v{case.version}",
        case.filled,
        f"{cost.cpu_s:.2f}",
        f"{turn_ms:.1f}",
        f"{cost.neighbour_ms:.1f}",
        f"{cost.rss_mb:.0f}",
        cost.outcome,
    ]
    if kafka is not None:
        more = "" if kafka.is_done else "more than "
        cells += [f"{more}{kafka.cpu_s:.2f}", f"{kafka.neighbour_ms:.1f}", kafka.outcome]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.request_costs", description=__doc__)
    parser.add_argument("--bytes", type=int, default=BYTES)
    parser.add_argument("--api", action="append", default=[], help="only this API; may be repeated")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # brokers are stopped
    wanted = list(cases(given.bytes, given.api))
    if unknown := set(given.api) - {api_name(case.api) for case in wanted}:
        parser.error(f"no requests of {', '.join(sorted(unknown))} are measured; for example: Metadata")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"metrics.listener": "127.0.0.1:0"}
        broker = stack.enter_context(NilometerBroker(folder / "data", settings))
        for case in cases(given.bytes // 10, given.api):
            measure(case, broker.bootstrap, broker.pid)
        kafka = (
            None if given.alone else stack.enter_context(WarmKafka(folder / "kafka", given.bytes, given.api))
        )
        print(HEADINGS)
        print("|" + " --- |" * HEADINGS.count(" | "), flush=True)
        for case in wanted:
            cost = measure(case, broker.bootstrap, broker.pid)
            turn_ms = longest_turns_ms(broker).get(api_name(case.api), 0.0)
            beside = None if kafka is None else kafka.measure(case)
            print(row(case, cost, turn_ms, beside), flush=True)
        turns = longest_turns_ms(broker)
    for name in sorted(turns, key=turns.__getitem__, reverse=True):
        print(f"{name:40} {turns[name]:8.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
