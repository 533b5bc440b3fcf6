"""What clients may cost a broker before they have logged in: slow and half-open handshakes, large frames,
thousands of connections, a flood of failed logins. Meanwhile a client that has logged in goes on producing.

Each bound on memory is a sentence about the broker's resident set, measured on a process of its own. How long
the producing client waits is printed, and not judged: other processes share the machine.
"""

from __future__ import annotations

import resource
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from random import Random

import pytest

from nilometer.broker.connection_memory import AHEAD_BYTES_MAX
from nilometer.broker.process import LINES_PER_SECOND
from nilometer.security.scram import ScramClient, ScramMechanism
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import api, encode_request
from support.brokers.abuse import Producing, descriptors, is_ended, may_log_in, rss_bytes
from support.brokers.secured_broker import ALICE, PASSWORD, PREFIX, SecuredBroker
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.ports import HOST
from support.wire.mutated_logins import client_hello
from support.wire.wire_peer import WirePeer

KIB, MIB = 1024, 1024 * 1024
UNAUTHENTICATED_MAX = 200
"""Of one address."""
RECEIVE_BYTES_MAX = 524_288
TIMEOUT_MS = 8_000
TOPIC = f"{PREFIX}topic"
OTHER_ADDRESS, ANNOUNCING_ADDRESS = "127.0.0.77", "127.0.0.78"
SHAKING_ADDRESSES = [f"127.0.2.{number}" for number in range(1, 4)]
IDLE_ADDRESSES = [f"127.0.1.{number}" for number in range(1, 10)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {
        "nilometer.unauthenticated.connections.max.per.ip": str(UNAUTHENTICATED_MAX),
        "nilometer.authentication.timeout.ms": str(TIMEOUT_MS),
        "connection.failed.authentication.delay.ms": "100",
    }
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_000)), hard))
    with SecuredBroker(tmp_path_factory.mktemp("abuse"), settings) as secured:
        admin = Side("admin", secured.bootstrap)
        admin.create(TOPIC)
        admin.hang_up()
        yield secured
        assert "Traceback" not in secured.broker.output
        assert " ERROR " not in secured.broker.output


def test_connections_that_never_log_in_cost_little_and_end(secured: SecuredBroker) -> None:
    """2,600 of them in all; the time for a login ends them."""
    open_before = descriptors(secured)
    with Producing(secured, TOPIC, OTHER_ADDRESS), ExitStack() as stack:
        clients = [
            *half_open_tls(secured, stack),
            *slow_logins(secured, stack),
            *announced_frames(secured, stack),
            *idle_connections(secured, stack),
        ]
        assert all(is_ended(client) for client in clients)
        eventually(lambda: descriptors(secured) <= open_before + 10, "their descriptors are given back")
    assert may_log_in(secured, secured.sasl, IDLE_ADDRESSES[0])


def half_open_tls(secured: SecuredBroker, stack: ExitStack) -> list[socket.socket]:
    """450 connections with no TLS handshake, a part of its first message, or all of that; of three addresses,
    since none may have as many."""
    hello = client_hello(Random(20))
    before = rss_bytes(secured)
    sources = [address for address in SHAKING_ADDRESSES for _ in range(150)]
    clients = [stack.enter_context(secured.connect(secured.mutual, source)) for source in sources]
    for number, client in enumerate(clients):
        client.sendall((b"", hello[: len(hello) // 2], hello)[number % 3])
    assert may_log_in(secured, secured.mutual, OTHER_ADDRESS), (
        "the broker has accepted them, and serves others"
    )
    check_growth(secured, before, len(clients) * 128 * KIB)
    return clients


def slow_logins(secured: SecuredBroker, stack: ExitStack) -> list[socket.socket]:
    """150 connections that send a SaslHandshake byte by byte, and never its end."""
    handshake = encode_request(1, "slow", api(ApiKey.SASL_HANDSHAKE, 1).request(mechanism="PLAIN"))
    before = rss_bytes(secured)
    clients = [stack.enter_context(secured.connect(secured.sasl)) for _ in range(150)]
    for byte in handshake[:8]:
        for client in clients:
            with suppress(ConnectionError):  # its time may be over on a busy machine
                client.sendall(bytes([byte]))
    assert may_log_in(secured, secured.sasl, OTHER_ADDRESS)
    check_growth(secured, before, len(clients) * 64 * KIB)
    return clients


def announced_frames(secured: SecuredBroker, stack: ExitStack) -> list[socket.socket]:
    """As many connections as an address may have announce the largest request that they may send."""
    before = rss_bytes(secured)
    clients = [
        stack.enter_context(secured.connect(secured.sasl, ANNOUNCING_ADDRESS))
        for _ in range(UNAUTHENTICATED_MAX)
    ]
    for client in clients:
        client.sendall(struct.pack(">ihhi", RECEIVE_BYTES_MAX, ApiKey.SASL_AUTHENTICATE, 2, 1))
    assert may_log_in(secured, secured.sasl, OTHER_ADDRESS)
    check_growth(secured, before, AHEAD_BYTES_MAX + len(clients) * 64 * KIB)
    return clients


def idle_connections(secured: SecuredBroker, stack: ExitStack) -> list[socket.socket]:
    """1,800 connections of nine addresses: all that these may have; one more is closed at once."""
    question = encode_request(1, "idle", api(ApiKey.API_VERSIONS, 0).request())
    before = rss_bytes(secured)
    clients: list[socket.socket] = []
    for address in IDLE_ADDRESSES:
        for _ in range(UNAUTHENTICATED_MAX):
            client = stack.enter_context(secured.connect(secured.sasl, address))
            client.sendall(question)
            clients.append(client)
        with secured.connect(secured.sasl, address) as one_more:
            port = one_more.getsockname()[1]
            assert is_ended(one_more)
        wait_logged(secured, f"Closing the connection from {address}:{port}: too many connections")
    assert may_log_in(secured, secured.sasl, OTHER_ADDRESS)
    check_growth(secured, before, len(clients) * 16 * KIB)
    return clients


def wait_logged(secured: SecuredBroker, line: str) -> None:
    eventually(lambda: line in secured.broker.output, f"the log has: {line}")


def check_growth(secured: SecuredBroker, before: int, bytes_max: int) -> None:
    growth = rss_bytes(secured) - before
    print(f"resident set: {growth / MIB:+.1f} MiB of {bytes_max / MIB:.1f} MiB allowed")
    assert growth < bytes_max


def test_a_request_above_the_limit_is_refused_unread(secured: SecuredBroker) -> None:
    with secured.connect(secured.sasl) as client:
        client.sendall(struct.pack(">i", RECEIVE_BYTES_MAX + 1))
        assert is_ended(client)


def test_large_sasl_messages_are_refused_and_forgotten(secured: SecuredBroker) -> None:
    """They may grow the process by what one of them takes, but not each time."""
    before = rss_bytes(secured)
    with Producing(secured, TOPIC, OTHER_ADDRESS):
        for _ in range(4):
            send_large_messages(secured)
            check_growth(secured, before, 32 * MIB)


def send_large_messages(secured: SecuredBroker) -> None:
    size = RECEIVE_BYTES_MAX - 100
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        for filler in (b"n", b"\0", b",", b"\xff"):
            with WirePeer(f"{HOST}:{secured.sasl}") as peer:
                peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
                answer = peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=filler * size)
                assert answer.error_code == ErrorCode.sasl_authentication_failed
                assert peer.is_ended()


def test_a_login_that_was_overheard_cannot_be_repeated(secured: SecuredBroker) -> None:
    mechanism = ScramMechanism.SHA_512
    client = ScramClient(mechanism, ALICE, PASSWORD, "nonceOfTheClient")
    first = client.begin()

    def begin(peer: WirePeer) -> bytes:
        peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism.value)
        challenge: bytes = peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=first).auth_bytes
        return challenge

    with WirePeer(f"{HOST}:{secured.sasl}") as peer:
        challenge = begin(peer)
        last = client.respond(challenge)
        assert last is not None
        assert peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=last).error_code == ErrorCode.none
    with WirePeer(f"{HOST}:{secured.sasl}") as peer:
        assert begin(peer) != challenge
        answer = peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=last)
        assert answer.error_code == ErrorCode.sasl_authentication_failed


def test_a_flood_of_failed_logins(secured: SecuredBroker) -> None:
    """Fifty at once, ten times: each is answered after the delay, and counted until then."""
    before = rss_bytes(secured)
    begin = encode_request(1, "flood", api(ApiKey.SASL_HANDSHAKE, 1).request(mechanism="PLAIN"))
    wrong = api(ApiKey.SASL_AUTHENTICATE, 2).request(auth_bytes=f"\0{ALICE}\0wrong".encode())
    with Producing(secured, TOPIC, OTHER_ADDRESS):
        for _ in range(10):
            with ExitStack() as stack:
                peers = [stack.enter_context(WirePeer(f"{HOST}:{secured.sasl}")) for _ in range(50)]
                for peer in peers:
                    peer.socket.sendall(begin + encode_request(2, "flood", wrong))
                for peer in peers:
                    assert peer.hear(ApiKey.SASL_HANDSHAKE, 1).error_code == ErrorCode.none
                    answer = peer.hear(ApiKey.SASL_AUTHENTICATE, 2)
                    assert answer.error_code == ErrorCode.sasl_authentication_failed
                    assert is_ended(peer.socket)
            assert may_log_in(secured, secured.sasl, HOST), "the address is not locked out"
    lines = [line for line in secured.broker.output.splitlines() if "Authentication failed" in line]
    assert max(Counter(line.partition(",")[0] for line in lines).values()) <= LINES_PER_SECOND
    check_growth(secured, before, 16 * MIB)
