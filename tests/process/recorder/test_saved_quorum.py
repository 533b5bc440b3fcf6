"""Recordings of brokers that keep the metadata themselves are saved without the secrets of its log."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nilometer.broker.quorum.key_file import SEALED, QuorumKey, key_id
from nilometer.cli.recorder import recorder
from nilometer.coordination.quorum.commands import SnapshotPart, encode
from nilometer.security.scram import ScramMechanism, credential_of, salted_password
from nilometer.simulation.recorded_cluster import recordings_in
from nilometer.simulation.stand_ins import SecretsInPieces, StandIns, forms_of
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.brokers.quorum_brokers import KEY, QuorumBrokers
from support.brokers.sasl_broker import ITERATIONS, SALT, upsertion
from support.wire.wire_peer import WirePeer

PASSWORD = "a password of alice"
TIMEOUT_S = 60.0
ENCRYPTED_BYTES = 60
"""Of the cluster's secret, encrypted, so many at least."""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(recorder, [str(one) for one in arguments])


def contents(path: Path) -> bytes:
    return b"".join(frame for recording in recordings_in(path) for frame in recording.frames())


def found_in(content: bytes, secrets: set[bytes]) -> set[bytes]:
    return {secret for secret in secrets if any(form in content for form in forms_of(secret))}


@pytest.mark.parametrize("has_key", [True, False])
def test_a_saved_file_has_no_secret_of_the_metadata_log(has_key: bool, tmp_path: Path) -> None:
    recorded = tmp_path / "recordings"
    settings = {"nilometer.recorder": "on", "nilometer.recorder.dir": str(recorded)}
    with QuorumBrokers(tmp_path / "cluster", 3, settings, has_key=has_key) as cluster:
        cluster.create_topic("t")
        for broker in cluster.brokers.values():  # two of them send it on
            for mechanism in ScramMechanism:
                with WirePeer(broker.bootstrap) as peer:
                    user = upsertion("alice", PASSWORD, mechanism)
                    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
                    answer = peer.ask(key, 0, deletions=(), upsertions=(user,))
                    assert answer.results[0].error_code == ErrorCode.none
        cluster.kill(1)
        cluster.start(1)  # it reads its log
        cluster.wait_full_isr("t", TIMEOUT_S)
        for broker_id in cluster.brokers:
            cluster.stop(broker_id)
    raw = b"".join(contents(path) for path in recorded.iterdir())
    keys = {base64.b64decode(one) for one in re.findall(rb'"current":"([^"]{44})"', raw)}
    assert keys, "the cluster's secret, and those that were too late to become it"
    secrets = set[bytes](keys)
    for mechanism in ScramMechanism:
        salted = salted_password(mechanism, PASSWORD, SALT, ITERATIONS)
        credential = credential_of(mechanism, salted, SALT, ITERATIONS)
        secrets |= {salted, credential.stored_key, credential.server_key}
    if has_key:
        secrets.add(KEY.strip().encode())
        sealed = SEALED + bytes.fromhex(key_id(QuorumKey.of(KEY.strip().encode()).secret))
        encrypted = {
            raw[one.end() : one.end() + ENCRYPTED_BYTES] for one in re.finditer(re.escape(sealed), raw)
        }
        assert encrypted
        secrets |= encrypted
    assert found_in(raw, secrets) == secrets

    for more in ((), ("--without-payloads",)):
        out = tmp_path / f"out{len(more)}.zip"
        saved = run("save", recorded, "--output", out, *more)
        assert saved.exit_code == 0, saved.output
        assert found_in(contents(out), secrets) == set()
        assert run("replay", out, "--quiet").exit_code == 0


def test_a_snapshot_in_parts_is_refused_by_name() -> None:
    part = encode(SnapshotPart(session=None, number=1, position=10, data=b'{"stored_k', is_last=False))
    with pytest.raises(SecretsInPieces, match="a snapshot of the metadata that was written in parts"):
        StandIns(b"key").command(part)
    builder = BatchBuilder()
    builder.append(1, None, b"a part of an image")
    path = "/logs/__cluster_metadata-0/00000000000000000007-0000000001.checkpoint"
    with pytest.raises(SecretsInPieces, match="a snapshot of the metadata that was read"):
        StandIns(b"key").read(path, bytes(builder.build()))
