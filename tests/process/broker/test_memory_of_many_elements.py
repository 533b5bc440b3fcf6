"""Requests of few bytes with many elements, whose values take a hundred times as much memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.body_reader import ELEMENTS_MAX
from nilometer.wire.primitives import encode_unsigned
from support.brokers.nilometer_broker import NilometerBroker
from support.wire.wire_peer import ConnectionEnded, WirePeer

CONNECTIONS = 6
PARTITIONS = 150_000
"""Of a Produce without records: 0.9 MB, whose values and response take 70."""
GROWTH_KB = 190_000


def produce(partitions: int) -> bytes:
    """Return a Produce of version 9 that has no records for so many partitions of an absent topic."""
    indexes = b"".join(index.to_bytes(4, "big") + b"\x01\x00" for index in range(partitions))
    header = b"\x00\x00" + b"\x00\x09" + b"\x00\x00\x00\x01" + b"\xff\xff" + b"\x00"
    start = b"\x00" + b"\x00\x01" + b"\x00\x00\x03\xe8" + b"\x02" + b"\x07absent"
    return header + start + encode_unsigned(partitions + 1) + indexes + b"\x00\x00"


def memory_kb(broker: NilometerBroker, name: str) -> int:
    lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def test_many_requests_of_many_elements_take_turns(tmp_path: Path) -> None:
    body = produce(PARTITIONS)
    with NilometerBroker(tmp_path / "data") as broker, ExitStack() as stack:
        peers = [stack.enter_context(WirePeer(broker.bootstrap, timeout_s=120)) for _ in range(CONNECTIONS)]
        before_kb = memory_kb(broker, "VmRSS")
        for peer in peers:
            peer.tell_bytes(body)
        for peer in peers:
            assert len(peer.receive()) > 10 * PARTITIONS
        assert memory_kb(broker, "VmHWM") - before_kb < GROWTH_KB


def test_a_request_of_more_elements_than_a_cluster_has_is_refused(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data") as broker:
        with WirePeer(broker.bootstrap) as peer:
            peer.tell_bytes(produce(ELEMENTS_MAX + 1))
            with pytest.raises(ConnectionEnded):
                peer.receive()
        with WirePeer(broker.bootstrap) as peer:
            assert peer.ask(ApiKey.API_VERSIONS, 3, client_software_name="n", client_software_version="1")
