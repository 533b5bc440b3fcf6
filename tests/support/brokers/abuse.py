"""What tests of abuse share: a client that must be served meanwhile, and what the broker's process holds."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..eventually import eventually
from ..wire.wire_peer import ConnectionEnded
from .secured_broker import SecuredBroker
from .two_brokers import batch, produce_fields

PAUSE_S = 0.01
"""Of the producing client, so that the abuse has the machine, too."""


class Producing:
    """A client that logs in once and produces, one record after the other, until the block ends."""

    def __init__(self, secured: SecuredBroker, topic: str, source: str) -> None:
        """``source``: the address from which it connects."""
        self._secured = secured
        self._topic = topic
        self._source = source
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self.latencies_ms: list[float] = []

    def __enter__(self) -> Producing:
        self._thread.start()
        eventually(lambda: len(self.latencies_ms) > 20 or self._error is not None, "it produces", 60)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        count = len(self.latencies_ms)
        if kind is None:
            eventually(
                lambda: len(self.latencies_ms) > count + 5 or self._error is not None, "it goes on", 60
            )
        self._ends.set()
        self._thread.join()
        if self._error is not None:
            raise AssertionError("the client that had logged in was not served") from self._error
        ordered = sorted(self.latencies_ms)
        print(f"produce: {len(ordered)} requests, p99 {ordered[int(len(ordered) * 0.99)]:.1f} ms")

    def _run(self) -> None:
        fields = produce_fields(9, self._topic, {0: batch(b"value")})
        try:
            with self._secured.log_in(self._secured.sasl, self._source) as peer:
                while not self._ends.is_set():
                    began = time.monotonic()
                    answer = peer.ask(ApiKey.PRODUCE, 9, **fields)
                    self.latencies_ms.append((time.monotonic() - began) * 1000)
                    outcome = answer.responses[0].partition_responses[0].error_code
                    assert outcome == ErrorCode.none, outcome
                    self._ends.wait(PAUSE_S)
        except BaseException as error:  # shown by the thread of the test
            self._error = error


def rss_bytes(secured: SecuredBroker) -> int:
    status = Path(f"/proc/{secured.broker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def descriptors(secured: SecuredBroker) -> int:
    return len(list(Path(f"/proc/{secured.broker.pid}/fd").iterdir()))


def may_log_in(secured: SecuredBroker, port: int, source: str) -> bool:
    try:
        with secured.log_in(port, source) as peer:
            answer = peer.ask(ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False)
            return answer.controller_id == 1
    except (ConnectionEnded, OSError):
        return False


def is_ended(client: socket.socket) -> bool:
    """Wait until the broker has closed the connection; whether it did so within 20 s."""
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True
