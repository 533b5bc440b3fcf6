"""What a request or a connection has used is freed when it ends, without a collection of garbage.

A collection of the oldest generation comes once in some 50 million objects: cycles of references would hold
megabytes of responses for hours.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

from nilometer.wire.api_keys import ApiKey
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.wire.filled_requests import cases
from support.wire.new_topics import new_topic
from support.wire.wire_peer import ConnectionEnded, WirePeer, make

FILLED_BYTES = 60_000
"""Decoded in slices, and handled in parts."""
OBJECTS_MAX = 5_000
"""What may be left of all requests together: exceptions of libraries, for example."""

PROGRAM = """
import collections, gc, json, os, runpy, signal

gc.set_threshold = lambda *_: gc.disable()

def write(*_):
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = collections.Counter(type(one).__name__ for one in gc.garbage)
    with open(path + ".part", "w") as file:
        json.dump(dict(found.most_common()), file)
    os.rename(path + ".part", path)
    gc.set_debug(0)
    gc.garbage.clear()

path = {path!r}
signal.signal(signal.SIGUSR2, write)
runpy.run_module("nilometer.broker", run_name="__main__")
"""


def test_requests_and_connections_leave_no_garbage(tmp_path: Path) -> None:
    path = tmp_path / "garbage.json"
    broker = NilometerBroker(tmp_path / "data")
    broker.program = ("-c", PROGRAM.replace("{path!r}", repr(str(path))))
    with broker:
        with WirePeer(broker.bootstrap) as peer:
            peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(new_topic("t"),), timeout_ms=10_000)
        use(broker)  # the first use of an API makes classes
        garbage(broker, path)
        use(broker)
        left = garbage(broker, path)
    assert sum(left.values()) < OBJECTS_MAX, left
    for name in ("PartOfRequest", "Connection", "FetchSession", "CDLL", "KeptResponse"):
        assert name not in left, left


def use(broker: NilometerBroker) -> None:
    """Send the worst request of each API, and open and close fetch sessions."""
    for case in cases(FILLED_BYTES):
        with WirePeer(broker.bootstrap) as peer, contextlib.suppress(ConnectionEnded, TimeoutError):
            peer.socket.settimeout(30)
            peer.socket.sendall(case.frame)
            peer.receive()
    partition = make(ApiKey.FETCH, 11, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = (make(ApiKey.FETCH, 11, "FetchTopic", topic="t", partitions=(partition,)),)
    with WirePeer(broker.bootstrap) as peer:
        for _ in range(20):
            opened = peer.ask(ApiKey.FETCH, 11, topics=topics, max_wait_ms=0, session_epoch=0)
            peer.ask(ApiKey.FETCH, 11, session_id=opened.session_id, session_epoch=-1, max_wait_ms=0)


def garbage(broker: NilometerBroker, path: Path) -> dict[str, int]:
    """Return the number of objects, by type, that only a collection of garbage frees."""
    path.unlink(missing_ok=True)
    os.kill(broker.pid, signal.SIGUSR2)
    eventually(path.exists, "the broker counts its garbage")
    return json.loads(path.read_text())
