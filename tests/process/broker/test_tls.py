"""TLS listeners of a broker process: who is served, and certificates that are replaced."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.security.sasl import PlainClient
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.authority import Authority
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.sasl_broker import PASSWORDS, sasl_settings
from support.eventually import eventually
from support.ports import HOST, free_ports
from support.wire.wire_peer import ConnectionEnded, WirePeer

PASSWORD = "key-secret"


class Secured:
    """A broker with all four protocols, and the files of its listeners."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.others = Authority(folder / "own"), Authority(folder / "other", "Other")
        self.key = self.authority.issue("broker", "/O=Nilometer/CN=broker-1", password=PASSWORD)
        self.trusted = folder / "trusted.pem"
        self.trusted.write_text(self.authority.certificate.read_text())
        self.alice = self.authority.issue("alice", "/O=Nilometer/CN=alice")
        self.mallory = self.others.issue("mallory", "/O=Nilometer/CN=alice")
        plain, sasl, self.mutual, self.one_way, self.sasl = free_ports(5)
        listeners = (
            f"MUTUAL://{HOST}:{self.mutual},ONE_WAY://{HOST}:{self.one_way},SASL_SSL://{HOST}:{self.sasl}"
        )
        settings = sasl_settings(plain, sasl)
        users = settings["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
        settings |= {
            "listeners": f"{settings['listeners']},{listeners}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,"
            "MUTUAL:SSL,ONE_WAY:SSL,SASL_SSL:SASL_SSL",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": users,
            "ssl.keystore.location": str(self.key),
            "ssl.keystore.type": "PEM",
            "ssl.key.password": PASSWORD,
            "ssl.truststore.location": str(self.trusted),
            "ssl.truststore.type": "PEM",
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/,DEFAULT",
            "nilometer.authentication.timeout.ms": "2000",
        }
        self.broker = NilometerBroker(folder / "data", settings, plain)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("tls"))
    with secured.broker:
        yield secured


def is_served(port: int, context: ssl.SSLContext) -> bool:
    """Whether a client with this context gets a response; false if the handshake fails or it is cut off."""
    try:
        with WirePeer(f"{HOST}:{port}", tls=context) as peer:
            answer = peer.ask(ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False)
            return [broker.port for broker in answer.brokers] == [port]
    except (ssl.SSLError, ConnectionEnded, ConnectionError):
        return False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_of_both_versions_is_served(secured: Secured, version: ssl.TLSVersion) -> None:
    context = secured.authority.context()
    context.minimum_version = context.maximum_version = version
    assert is_served(secured.one_way, context)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_an_older_version_is_refused(secured: Secured) -> None:
    context = secured.authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    assert not is_served(secured.one_way, context)


def test_a_client_that_does_not_trust_the_broker_goes_away(secured: Secured) -> None:
    assert not is_served(secured.one_way, secured.others.context())


def test_a_required_certificate_is_of_a_trusted_authority(secured: Secured) -> None:
    trusting = secured.authority
    assert is_served(secured.mutual, trusting.context(secured.alice))
    assert not is_served(secured.mutual, trusting.context())
    assert not is_served(secured.mutual, trusting.context(secured.mallory))


def test_sasl_follows_after_the_handshake(secured: Secured) -> None:
    context = secured.authority.context()
    with WirePeer(f"{HOST}:{secured.sasl}", tls=context) as peer, pytest.raises(ConnectionEnded):
        peer.ask(ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False)
    for password, error in (
        (PASSWORDS["alice"], ErrorCode.none),
        ("wrong", ErrorCode.sasl_authentication_failed),
    ):
        with WirePeer(f"{HOST}:{secured.sasl}", tls=context) as peer:
            peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
            message = PlainClient("alice", password).begin()
            assert peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message).error_code == error


def test_a_client_without_tls_is_not_served(secured: Secured) -> None:
    for port in (secured.one_way, secured.mutual, secured.sasl):
        with WirePeer(f"{HOST}:{port}") as peer, pytest.raises(ConnectionEnded):
            peer.ask(ApiKey.API_VERSIONS, 0)


def test_a_handshake_that_does_not_go_on_is_ended(secured: Secured) -> None:
    with WirePeer(f"{HOST}:{secured.one_way}") as peer:
        peer.socket.sendall(b"\x16\x03\x01\x02")
        assert peer.is_ended(), "after nilometer.authentication.timeout.ms"


def test_a_session_of_tls_1_2_ends_with_the_files_it_was_checked_against(secured: Secured) -> None:
    context = secured.authority.context(secured.alice)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def connect(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
        with socket.create_connection((HOST, secured.mutual)) as plain:
            client = context.wrap_socket(plain, server_hostname=HOST, session=session)
            try:
                return client.session, bool(client.session_reused)
            finally:
                client.unwrap()

    session, _ = connect(None)
    assert connect(session)[1], "a session is resumed while the files are the same"
    secured.trusted.write_text(secured.others.certificate.read_text())
    try:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(session)
    finally:
        secured.trusted.write_text(secured.authority.certificate.read_text())


def test_replaced_files_are_used_for_the_next_connections(secured: Secured) -> None:
    def subject() -> object:
        with WirePeer(f"{HOST}:{secured.one_way}", tls=secured.authority.context()) as peer:
            assert isinstance(peer.socket, ssl.SSLSocket)
            peer.ask(ApiKey.API_VERSIONS, 0)
            found = peer.socket.getpeercert()
            assert found is not None
            return found["subject"]

    before = subject()
    with WirePeer(f"{HOST}:{secured.mutual}", tls=secured.authority.context(secured.alice)) as open_one:
        secured.authority.issue("broker", "/O=Nilometer/CN=broker-2", password=PASSWORD)
        secured.trusted.write_text(secured.others.certificate.read_text())
        assert subject() != before
        assert is_served(secured.mutual, secured.authority.context(secured.mallory))
        assert not is_served(secured.mutual, secured.authority.context(secured.alice))
        assert open_one.ask(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.none
        secured.key.write_text("not a key")
        assert subject() != before
        eventually(lambda: "The previous certificates stay in use" in secured.broker.output, "it is logged")
    assert PASSWORD not in secured.broker.output
    assert "Traceback" not in secured.broker.output


def test_a_key_that_cannot_be_read_is_an_error_at_startup(tmp_path: Path) -> None:
    key = Authority(tmp_path).issue("broker", "/CN=b", password=PASSWORD)
    for password, path in (("wrong", key), (None, key), (PASSWORD, tmp_path / "none.pem")):
        settings = {
            "listeners": f"PLAINTEXT://{HOST}:{free_ports(1)[0]},SSL://{HOST}:{free_ports(1)[0]}",
            "ssl.keystore.location": str(path),
            "ssl.keystore.type": "PEM",
            **({} if password is None else {"ssl.key.password": password}),
        }
        broker = NilometerBroker(tmp_path / "data", settings)
        with pytest.raises(RuntimeError, match=f"the listener SSL cannot use TLS: {path}"):
            broker.start()
        broker.kill()
        assert "Traceback" not in broker.output
