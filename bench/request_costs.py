"""What the worst legal request of each API costs a broker, beside Apache Kafka: ``bench.request_costs``.

For each API that clients may send, each array of the request's newest version is filled with distinct
elements up to ``--bytes``. The request is sent alone, while another client sends ApiVersions every few
milliseconds. A row says how much processor time the process used and how long the other client waited at
most, here and in Apache Kafka, and the longest turn of the API's requests so far by the broker's own
measurement. Both systems get a round of all requests before the one that is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from tests.support.brokers.nilometer_broker import NilometerBroker
from tests.support.kafka.apache_kafka import ApacheKafka

from nilometer.broker.api.registry import APIS
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey, api_name
from nilometer.wire.building import implicit_default
from nilometer.wire.schema import FieldShape, shape_of

BYTES = 1_000_000
TIMEOUT_S = 300.0
PULSE_S = 0.005
NOT_SENT = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""Without SASL they cost nothing."""

Path_ = tuple[str, ...]


class Case(NamedTuple):
    api: ApiKey
    version: int
    filled: str
    frame: bytes


class Cost(NamedTuple):
    cpu_s: float
    neighbour_ms: float
    rss_mb: float
    outcome: str


def cases(size: int, only: Sequence[str]) -> Iterator[Case]:
    for key, spec in APIS.items():
        if key > max(ApiKey) or spec.between_brokers or spec.key in NOT_SENT:
            continue
        if only and api_name(key) not in only:
            continue
        version = spec.versions[1]
        codec = messages.api(key, version)
        for path in array_paths(codec.request_type):
            yield Case(ApiKey(key), version, ".".join(path), filled_frame(codec, path, size))


def array_paths(entity: type[Any]) -> Iterator[Path_]:
    """Yield the path of each array, from the outermost on."""
    for field in shape_of(entity).fields:
        if field.is_array:
            yield (field.name,)
            if field.entity is not None:
                for inner in array_paths(field.entity):
                    yield (field.name, *inner)


def filled_frame(codec: messages.Api, path: Path_, size: int) -> bytes:
    """Return a request of about ``size`` bytes whose array at ``path`` has distinct elements."""
    few = len(encoded(codec, path, 1_000))
    per_element = max(1.0, (len(encoded(codec, path, 2_000)) - few) / 1_000)
    count = int((size - few) / per_element) + 1_000
    return encoded(codec, path, max(1, count - int(count * 0.02)))


def encoded(codec: messages.Api, path: Path_, count: int) -> bytes:
    return messages.encode_request(1, "cost", entity(codec.request_type, path, count, 0))


def entity(kind: type[Any], path: Path_, count: int, number: int) -> Any:
    values: dict[str, Any] = {}
    for field in shape_of(kind).fields:
        if field.is_array:
            values[field.name] = array(field, path, count)
        elif field.entity is not None:
            values[field.name] = None if field.nullable else entity(field.entity, (), 0, 0)
        else:
            values[field.name] = value(field, number)
    return kind(**values)


def array(field: FieldShape, path: Path_, count: int) -> Any:
    if not path or path[0] != field.name:
        return ()
    inner = path[1:]
    if inner:
        assert field.entity is not None
        return (entity(field.entity, inner, count, 0),)
    if field.entity is not None:
        return tuple(entity(field.entity, (), 0, number) for number in range(count))
    return tuple(value(field, number) for number in range(count))


def value(field: FieldShape, number: int) -> Any:
    kind = field.kafka_type
    if kind == "string":
        return "timeout" if field.name == "transactional_id" and not number else f"{number:x}"
    if field.name in _VALUES:
        return _VALUES[field.name]
    if kind.startswith(("int", "uint")) and kind not in ("int8", "uint8", "int16", "uint16"):
        return number
    if kind in ("int8", "uint8"):
        return _SMALL.get(field.name, 1)
    if kind in ("int16", "uint16"):
        return _SMALL.get(field.name, number % 30_000)
    if kind == "bool":
        return False
    if kind == "uuid":
        return UUID(int=number + 1)
    if kind == "bytes":
        return b"x"
    if kind.startswith("timedelta"):
        return timedelta(seconds=60)
    return field.default if field.has_default else implicit_default(field)


_VALUES = {"session_epoch": -1, "max_wait_ms": 0, "replica_id": -1, "replica_epoch": -1}
"""Of a consumer's fetch without a session."""
_SMALL = {
    "resource_type": 2,
    "key_type": 0,
    "coordinator_type": 0,
    "resource_type_filter": 2,
    "replication_factor": 7,
    "acks": 1,
}


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


def longest_turns(metrics_url: str) -> dict[str, float]:
    """Return the longest turn (ms) of each API and task, from the broker's metrics."""
    with urllib.request.urlopen(metrics_url, timeout=TIMEOUT_S) as page:
        text = page.read().decode()
    pattern = r'^nilometer_event_loop_longest_turn_seconds\{work="([^"]*)"\} (\S+)$'
    return {name: 1000 * float(seconds) for name, seconds in re.findall(pattern, text, re.MULTILINE)}


def measure(case: Case, bootstrap: str, pid: int) -> Cost:
    pulse = Pulse(bootstrap)
    began = cpu_s(pid)
    outcome = "closed"
    with connect(bootstrap) as client, contextlib.suppress(OSError):
        client.sendall(case.frame)
        if size := read_frame(client):
            outcome = f"{size} bytes"
    return Cost(cpu_s(pid) - began, pulse.stop() * 1000, rss_mb(pid), outcome)


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
        cells += [f"{kafka.cpu_s:.2f}", f"{kafka.neighbour_ms:.1f}", kafka.outcome]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.request_costs", description=__doc__)
    parser.add_argument("--bytes", type=int, default=BYTES)
    parser.add_argument("--api", action="append", default=[], help="only this API; may be repeated")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    given = parser.parse_args(arguments)
    wanted = list(cases(given.bytes, given.api))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"metrics.listener": "127.0.0.1:0"}
        broker = stack.enter_context(NilometerBroker(folder / "data", settings))
        assert broker.metrics_url is not None, "metrics.listener is set"
        kafka = None if given.alone else stack.enter_context(ApacheKafka(folder / "kafka"))
        for case in wanted if kafka is not None else ():
            assert kafka is not None
            measure(case, broker.bootstrap, broker.pid)
            measure(case, kafka.bootstrap, kafka.pid)
        print(HEADINGS)
        print("|" + " --- |" * HEADINGS.count(" | "), flush=True)
        for case in wanted:
            cost = measure(case, broker.bootstrap, broker.pid)
            turn_ms = longest_turns(broker.metrics_url).get(api_name(case.api), 0.0)
            beside = None if kafka is None else measure(case, kafka.bootstrap, kafka.pid)
            print(row(case, cost, turn_ms, beside), flush=True)
        turns = longest_turns(broker.metrics_url)
    for name in sorted(turns, key=turns.__getitem__, reverse=True):
        print(f"{name:40} {turns[name]:8.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
