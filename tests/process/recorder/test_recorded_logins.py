"""Brokers with SASL and TLS are recorded, if that is asked for, and saved without what clients log in by."""

from __future__ import annotations

import base64
import contextlib
import re
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.recorder import recorded_settings
from nilometer.cli.recorder import recorder
from nilometer.config import ConfigError
from nilometer.security.sasl import PlainClient
from nilometer.security.scram import ScramClient, ScramMechanism, credential_of, salted_password
from nilometer.simulation.recorded_cluster import recordings_in
from nilometer.simulation.stand_ins import forms_of
from nilometer.testing import Cluster
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.sasl_broker import ITERATIONS, SALT
from support.brokers.secured_broker import ALICE, PASSWORD, SecuredBroker
from support.ports import HOST
from support.wire.wire_peer import ConnectionEnded, WirePeer

WRONG = "what alice mistook for her password"
BARE = "what bob sends in the oldest way"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(recorder, [str(one) for one in arguments])


def contents(path: Path) -> bytes:
    parts = list[bytes]()
    for recording in recordings_in(path):
        parts += [repr(recording.header).encode(), *recording.frames()]
    return b"".join(parts)


def found_in(content: bytes, secrets: set[bytes]) -> set[bytes]:
    return {secret for secret in secrets if any(form in content for form in forms_of(secret))}


def private_keys(folder: Path) -> set[bytes]:
    """Return the lines of all private keys below a folder: each is enough to tell that a key is there."""
    keys = b"".join(path.read_bytes() for path in folder.rglob("*.pem"))
    blocks = re.findall(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\n(.*?)-----END", keys, re.DOTALL)
    return {line for block in blocks for line in block.splitlines() if len(line) > 20}


def log_in_by_scram(secured: SecuredBroker, mechanism: ScramMechanism, password: str) -> set[bytes]:
    """Log in over TLS; return what is enough to guess the password."""
    client = ScramClient(mechanism, ALICE, password, "a nonce".replace(" ", "-"))
    sent = set[bytes]()
    with WirePeer(f"{HOST}:{secured.sasl_ssl}", tls=secured.context) as peer:
        peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism.value)
        message: bytes | None = client.begin()
        while message is not None:
            sent |= set(message.partition(b",p=")[2:]) - {b""}
            answer = peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message)
            if answer.error_code != ErrorCode.none:
                return sent
            sent |= set(answer.auth_bytes.partition(b"v=")[2:]) - {b""}
            message = client.respond(answer.auth_bytes)
        peer.ask(ApiKey.METADATA, 9, topics=None)
    return sent


def test_a_saved_file_has_nothing_by_which_to_log_in(tmp_path: Path) -> None:
    settings = {"nilometer.recorder": "with-logins"}
    secrets = {PASSWORD.encode(), WRONG.encode(), BARE.encode()}
    for mechanism in ScramMechanism:
        salted = salted_password(mechanism, PASSWORD, SALT, ITERATIONS)
        credential = credential_of(mechanism, salted, SALT, ITERATIONS)
        secrets |= {salted, credential.stored_key, credential.server_key}
    with SecuredBroker(tmp_path, settings) as secured:
        for port in (secured.sasl, secured.sasl_ssl, secured.mutual):
            with secured.log_in(port) as peer:
                peer.ask(ApiKey.METADATA, 9, topics=None)
        for mechanism in ScramMechanism:
            said = log_in_by_scram(secured, mechanism, PASSWORD)
            assert len(said) == 2, "a proof and a signature"
            secrets |= said | log_in_by_scram(secured, mechanism, WRONG)
        with WirePeer(f"{HOST}:{secured.sasl}") as peer:
            peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
            refused = peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=PlainClient(ALICE, WRONG).begin())
            assert refused.error_code == ErrorCode.sasl_authentication_failed
        for user, password in ((ALICE, PASSWORD), ("bob", BARE)):
            with WirePeer(f"{HOST}:{secured.sasl}") as peer, contextlib.suppress(ConnectionEnded):
                peer.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")
                message = PlainClient(user, password).begin()
                peer.socket.sendall(struct.pack(">i", len(message)) + message)
                assert peer.receive() == b""
                peer.ask(ApiKey.METADATA, 9, topics=None)
    (path,) = tmp_path.rglob("*.recording")
    raw = contents(path)
    assert found_in(raw, secrets) >= {PASSWORD.encode(), WRONG.encode(), BARE.encode()}
    keys = private_keys(tmp_path)
    assert keys
    assert found_in(raw, keys) == set(), "keys of TLS are never in a recording"
    assert (
        f'user_{ALICE}="left-out"'
        in recordings_in(path)[0].header.settings["listener.name.sasl_ssl.plain.sasl.jaas.config"]
    )
    assert run("replay", path, "--quiet").exit_code == 0
    out = tmp_path / "out.zip"
    saved = run("save", path, "--output", out)
    assert saved.exit_code == 0, saved.output
    assert found_in(contents(out), secrets | keys) == set()
    assert found_in(out.read_bytes(), secrets | keys) == set()


def test_brokers_that_log_in_to_each_other_are_saved_without_their_passwords(tmp_path: Path) -> None:
    settings = {"nilometer.recorder": "with-logins", "nilometer.recorder.dir": str(tmp_path / "recordings")}
    with Cluster(brokers=2, secure=True, settings=settings) as cluster:
        security = Path(cluster.client_settings["ssl.truststore.location"]).parent
        texts = b"".join(path.read_bytes() for path in security.iterdir())
        passwords = set(re.findall(rb'password="([^"]+)"', texts))
        keys = private_keys(security)
        cluster.create_topic("orders", partitions=1)
        for broker in cluster.broker_ids:
            cluster.stop(broker)
    assert len(passwords) == 3, "of the brokers, the administrator and the demo"
    assert len(keys) > 2
    out = tmp_path / "out.zip"
    saved = run("save", tmp_path / "recordings", "--output", out)
    assert saved.exit_code == 0, saved.output
    raw = b"".join(contents(path) for path in tmp_path.rglob("*.recording"))
    proofs = set(re.findall(rb"(?:,p|v)=([A-Za-z0-9+/]{86}==)", raw))
    assert len(proofs) >= 4, "the brokers logged in to each other"
    for content in (contents(out), out.read_bytes()):
        assert found_in(content, passwords | keys | proofs) == set()
        assert found_in(content, {base64.b64decode(proof) for proof in proofs}) == set()
    assert run("replay", out, "--quiet").exit_code == 0


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"nilometer.recorder": "on"}, "on is not possible with SASL"),
        (
            {"nilometer.recorder": "with-logins", "delegation.token.secret.key": "k" * 32},
            "with-logins is not possible with delegation tokens",
        ),
    ],
)
def test_what_cannot_be_left_out_is_refused_by_name(more: dict[str, str], why: str) -> None:
    given = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,SASL_PLAINTEXT://127.0.0.1:9093",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "log.dirs": "/logs",
        "node.id": "1",
    }
    BrokerConfig({**given, "nilometer.recorder": "with-logins"})
    with pytest.raises(ConfigError, match=why):
        BrokerConfig({**given, **more})


def test_settings_of_a_recording_have_users_and_no_passwords() -> None:
    name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    jaas = r'a.PlainLoginModule required username="me" password="pass\"word" user_bob="bob\\s" other=secret;'
    shown = recorded_settings({name: jaas, "node.id": "1"})
    assert shown == {
        name: 'a.PlainLoginModule required username="me" password="left-out" user_bob="left-out" '
        'other="left-out";',
        "node.id": "1",
    }
