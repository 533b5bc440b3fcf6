"""`nilometer recorder save`: one file of recordings, which has no secret, and replays equal on its own."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import resource
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nilometer.broker.settings.listeners import METRICS_LISTENER
from nilometer.cli.recorder import recorder
from nilometer.recorder.collection import COMMENT
from nilometer.security.scram import ScramMechanism, credential_of, salted_password
from nilometer.simulation.recorded_cluster import recordings_in
from nilometer.testing import Cluster
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import api, encode_request
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.sasl_broker import ITERATIONS, SALT, upsertion
from support.brokers.values import produce, side_of
from support.ports import HOST
from support.wire.wire_peer import ConnectionEnded, WirePeer, make

TOPIC = "orders"
PASSWORD = "a password of alice"
LOGIN = b"\0alice\0what a client sends to log in"
COOKIE = b"session=a-cookie-of-a-browser"
SENSITIVE = "the password of a key store"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(recorder, [str(one) for one in arguments])


def recordings(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.recording"))


def keys_in(content: bytes) -> set[bytes]:
    """Return the keys in documents of a coordination store: the cluster's, and those of SCRAM users."""
    found = re.findall(rb'"(?:current|previous|stored_key|server_key)":"([^"]+)"', content)
    return {base64.b64decode(key) for key in found}


def keys_of(password: str) -> Iterator[bytes]:
    for mechanism in ScramMechanism:
        salted = salted_password(mechanism, password, SALT, ITERATIONS)
        credential = credential_of(mechanism, salted, SALT, ITERATIONS)
        yield from (salted, credential.stored_key, credential.server_key)


def forms(secret: bytes) -> list[bytes]:
    coded = base64.b64encode(secret)
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), coded.rstrip(b"=")]


def contents(path: Path) -> bytes:
    """Return all that is in a file of recordings: the headers and all entries."""
    parts = list[bytes]()
    for recording in recordings_in(path):
        parts += [repr(recording.header).encode(), *recording.frames()]
    return b"".join(parts)


def found_in(content: bytes, secrets: set[bytes]) -> list[bytes]:
    return [secret for secret in secrets if any(form in content for form in forms(secret))]


def add_alice(server: str) -> None:
    with WirePeer(server) as peer:
        users = tuple(upsertion("alice", PASSWORD, mechanism) for mechanism in ScramMechanism)
        for user in users:
            answer = peer.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=(), upsertions=(user,))
            assert [one.error_code for one in answer.results] == [ErrorCode.none]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cluster that ran, with its recordings: all brokers were told of a SCRAM user, one of
    them was killed, and started again."""
    folder = tmp_path_factory.mktemp("recorded")
    settings = {"nilometer.recorder": "on", "nilometer.recorder.dir": str(folder / "recordings")}
    with Cluster(brokers=3, settings=settings) as brokers:
        brokers.create_topic(TOPIC, partitions=1)
        for broker in brokers.broker_ids:
            add_alice(brokers.address(broker))
        killed = brokers.leader(TOPIC)
        brokers.kill(killed)
        brokers.restart(killed)
        for broker in brokers.broker_ids:
            brokers.stop(broker)
    return folder


def test_a_saved_file_has_no_secret_of_the_cluster_and_replays_equal(cluster: Path, tmp_path: Path) -> None:
    raw = b"".join(contents(path) for path in recordings(cluster))
    secrets = keys_in(raw) | set(keys_of(PASSWORD))
    assert len(secrets) == 1 + 3 * len(ScramMechanism), "the cluster's secret and the user's keys"
    assert len(found_in(raw, secrets)) == len(secrets), "the brokers had them all"

    out = tmp_path / "night.zip"
    saved = run("save", cluster / "recordings", "--output", out, "--json")
    assert saved.exit_code == 0, saved.output
    assert len(json.loads(saved.stdout)["recordings"]) == 4
    assert out.stat().st_mode & 0o777 == 0o600
    assert found_in(contents(out), secrets) == []
    assert found_in(out.read_bytes(), secrets) == []

    rows = json.loads(run("info", out, "--json").stdout)
    assert [row["left_out"] for row in rows] == [["secrets"]] * 4
    replayed = json.loads(run("replay", out, "--why", f"{TOPIC}-0", "--json").stdout)
    assert len(replayed["brokers"]) == 4
    assert all(one["is_at_end"] for one in replayed["brokers"])
    again = tmp_path / "again.zip"
    assert run("save", out, "--output", again).exit_code == 0, "a copy can be copied"


def setting(name: str, value: str) -> object:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    config = make(key, 1, "AlterableConfig", name=name, config_operation=0, value=value)
    return make(key, 1, "AlterConfigsResource", resource_type=4, resource_name="1", configs=(config,))


def test_what_clients_send_to_log_in_or_set_is_not_in_a_saved_file(tmp_path: Path) -> None:
    """No broker that is recorded lets them log in, or takes the setting; they may try."""
    settings = {"nilometer.recorder": "on", METRICS_LISTENER: f"http://{HOST}:0"}
    with NilometerBroker(tmp_path / "logs", settings) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        assert produce(side, TOPIC, b"a record") is ErrorCode.none
        with WirePeer(broker.bootstrap) as peer:
            key = ApiKey.INCREMENTAL_ALTER_CONFIGS
            asked = setting("listener.name.one.ssl.key.password", SENSITIVE)
            answer = peer.ask(key, 1, resources=(asked,), validate_only=False)
            assert answer.responses[0].error_code != ErrorCode.none
        for whole in (True, False):
            with WirePeer(broker.bootstrap) as peer, contextlib.suppress(ConnectionEnded):
                request = api(ApiKey.SASL_AUTHENTICATE, 2).request(auth_bytes=LOGIN)
                frame = encode_request(1, "test", request)
                peer.socket.sendall(frame[:20])
                peer.socket.sendall(frame[20:] if whole else frame[20:-3])
                if whole:
                    peer.receive()
        page = request_of(broker)
        assert b"200 OK" in page
        broker.stop()
    (path,) = recordings(tmp_path)
    secrets = {LOGIN, LOGIN[:-3], SENSITIVE.encode(), COOKIE}
    assert len(found_in(contents(path), secrets)) == len(secrets)
    out = tmp_path / "out.zip"
    assert run("save", path, "--output", out).exit_code == 0
    assert found_in(contents(out), secrets) == []


def request_of(broker: NilometerBroker) -> bytes:
    """Read the page of a broker's metrics as a browser with a cookie does."""
    assert broker.metrics_url is not None
    host, _, rest = broker.metrics_url.removeprefix("http://").partition(":")
    port = int(rest.partition("/")[0])
    with socket.create_connection((host, port), 60) as browser:
        browser.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\nCookie: " + COOKIE + b"\r\n\r\n")
        return browser.recv(1 << 16)


def test_a_recording_is_saved_while_it_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out.zip"
    with NilometerBroker(tmp_path / "logs", {"nilometer.recorder": "on"}) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        assert produce(side, TOPIC, b"a record") is ErrorCode.none
        assert run("save", tmp_path / "logs-recordings", "--output", out).exit_code == 0
        broker.stop()
    (row,) = json.loads(run("info", out, "--json").stdout)
    assert row["end"] == "it was being written when it was copied"
    assert run("replay", out, "--quiet").exit_code == 0


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    with NilometerBroker(folder / "logs", {"nilometer.recorder": "on"}) as broker:
        broker.stop()
    (path,) = recordings(folder)
    return path


def test_a_file_that_exists_stays_as_it_is(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zip"
    out.write_text("mine")
    saved = run("save", recording, "--output", out)
    assert saved.exit_code == 1
    assert f"{out} exists already" in saved.stderr
    assert out.read_text() == "mine"


def test_no_file_is_left_where_none_can_be_made(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = run("save", recording, "--output", tmp_path / "no folder" / "out.zip")
    assert missing.exit_code == 1
    assert "No such file or directory" in missing.stderr
    other = tmp_path / "other"
    other.write_text("no recording")
    assert run("save", other, "--output", tmp_path / "out.zip").exit_code == 2
    assert run("save", tmp_path / "none", "--output", tmp_path / "out.zip").exit_code == 2
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as on a full disk
    try:
        full = run("save", recording, "--output", tmp_path / "out.zip")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert full.exit_code == 1
    assert "out.zip cannot be written: " in full.stderr
    monkeypatch.setattr("nilometer.simulation.recorded_cluster.digest_of_sources", lambda: "another")
    others = run("save", recording, "--output", tmp_path / "out.zip")
    assert others.exit_code == 1
    assert "was recorded by other sources" in others.stderr
    assert sorted(tmp_path.iterdir()) == [other]


def test_a_recording_that_does_not_replay_is_not_copied(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nilometer.broker.api.between_brokers.NONCE_BYTES", 7)
    monkeypatch.setattr("nilometer.broker.control.secret_keeper.KEY_BYTES", 31)
    out = tmp_path / "out.zip"
    saved = run("save", recording, "--output", out)
    assert saved.exit_code == 1
    assert "cannot be copied: its replay" in saved.stderr
    assert not out.exists()


def test_a_damaged_file_of_recordings_is_refused(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zip"
    assert run("save", recording, "--output", out).exit_code == 0
    whole = out.read_bytes()
    half = tmp_path / "half.zip"
    half.write_bytes(whole[: len(whole) // 2])
    assert run("info", half).exit_code == 2
    changed = tmp_path / "changed.zip"
    at = len(whole) // 3
    changed.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert run("info", changed).exit_code in (1, 2)
    assert run("replay", changed, "--quiet").exit_code in (1, 2)
    foreign = tmp_path / "foreign.zip"
    with zipfile.ZipFile(foreign, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"\xff\xff\xff\xff")
        archive.comment = COMMENT
    assert "is damaged" in run("info", foreign).stderr
