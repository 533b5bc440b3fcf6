"""The APIs between brokers, fed with what is nearly their requests, by strangers and by a proved broker.

The broker answers or ends the connection; it goes on, says nothing of a failure, and trusts no sender.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.broker_identity import NONCE, Identity, prove
from support.brokers.nilometer_cluster import NilometerCluster
from support.wire.wire_peer import ConnectionEnded, WirePeer

SEED = 20
FRAMES = 600
VALUES: tuple[object, ...] = (-1, 0, 1, 2, 1 << 40, "", "x" * 50, None, b"", NONCE, b"\xff" * 32, True)


def random_frame(chance: random.Random, cluster_id: str) -> bytes:
    key = chance.choice((NilometerApiKey.PROVE_BROKER, NilometerApiKey.FORWARD_REQUEST))
    inner = messages.api(ApiKey.DELETE_TOPICS, 6).request(topics=(), timeout_ms=10)
    fields: dict[str, object] = {
        NilometerApiKey.PROVE_BROKER: {
            "cluster_id": cluster_id,
            "broker_id": 2,
            "expected_broker_id": 1,
            "secret_number": 0,
            "nonce": NONCE,
            "proof": b"" if chance.random() < 0.7 else NONCE,
        },
        NilometerApiKey.FORWARD_REQUEST: {
            "principal_type": "User",
            "principal_name": "p",
            "client_address": "a",
            "client_port": 1,
            "listener": "l",
            "request": messages.encode_request(1, "c", inner)[4:],
        },
    }[key]
    for name in chance.sample(list(fields), chance.choice((0, 1, 1, 2))):
        fields[name] = chance.choice(VALUES)
    if isinstance(request := fields.get("request"), bytes) and request and chance.random() < 0.5:
        damaged = bytearray(request)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        fields["request"] = bytes(damaged)
    codec = messages.api(key, 0)
    frame = bytearray(messages.encode_request(7, "fuzz", codec.request(**fields))[4:])
    if chance.random() < 0.3:
        frame[chance.randrange(8, len(frame))] = chance.randrange(256)
    if chance.random() < 0.1:
        del frame[chance.randrange(10, len(frame)) :]
    return bytes(frame)


@pytest.mark.parametrize("proved", [False, True], ids=["stranger", "broker"])
def test_nothing_that_is_nearly_a_request_harms_or_is_believed(tmp_path: Path, proved: bool) -> None:
    with NilometerCluster(tmp_path, 1) as cluster:
        broker = cluster.brokers[1]
        identity = Identity.of_store(tmp_path / "coordination")
        for index in range(FRAMES):
            frame = random_frame(random.Random(f"{SEED}.{index}"), identity.cluster_id)
            with WirePeer(broker.bootstrap) as peer:
                if proved:
                    prove(peer, identity, as_broker=2, to_broker=1)
                peer.tell_bytes(frame)
                try:
                    peer.receive()
                    asked = peer.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=2, broker_epoch=-1)
                except (ConnectionEnded, ConnectionError, struct.error):
                    continue
                refused = asked.error_code == ErrorCode.cluster_authorization_failed
                assert refused is not proved, f"frame {index} of seed {SEED}"
        assert broker.alive()
        assert "Traceback" not in broker.output
