"""What clients may cost a broker by TLS handshakes: those that stay half open, and whole ones without end.

They count as the connections of their address, from the first byte on. Meanwhile clients of other addresses
are served. Nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from random import Random

import pytest

from nilometer.quotas import CONNECTION_CREATION_RATE, IP
from nilometer.runtime.tls import RECORDS_WITHOUT_DATA_MAX
from support.brokers.abuse import Producing, descriptors, is_ended, may_log_in, rss_bytes
from support.brokers.quota_requests import alter
from support.brokers.secured_broker import PREFIX, SecuredBroker
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.ports import HOST
from support.wire.mutated_logins import client_hello

KIB, MIB = 1024, 1024 * 1024
OPEN_MAX = 30
"""How many connections of one address may not have authenticated."""
FEW_MAX, FEW_ADDRESS = 3, "127.0.3.1"
RATED_ADDRESS, FLOODING_ADDRESS, OTHER_ADDRESS = "127.0.3.2", "127.0.3.3", "127.0.3.4"
TOPIC = f"{PREFIX}topic"
HELLO = client_hello(Random(7))
TOO_MANY = "too many connections"
FLOODING_THREADS = 4


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {
        "nilometer.unauthenticated.connections.max.per.ip": str(OPEN_MAX),
        "nilometer.authentication.timeout.ms": "6000",
        "max.connections.per.ip.overrides": f"{FEW_ADDRESS}:{FEW_MAX}",
        "quota.window.num": "2",
    }
    with SecuredBroker(tmp_path_factory.mktemp("handshakes"), settings) as secured:
        admin = Side("admin", secured.bootstrap)
        admin.create(TOPIC)
        admin.hang_up()
        yield secured
        assert "Traceback" not in secured.broker.output
        assert " ERROR " not in secured.broker.output


@pytest.mark.parametrize("begun", [b"", HELLO[: len(HELLO) // 2], HELLO], ids=["nothing", "a part", "whole"])
@pytest.mark.parametrize("listener", ["mutual", "sasl_ssl"])
def test_half_open_handshakes_of_an_address_are_few_and_end(
    secured: SecuredBroker, listener: str, begun: bytes
) -> None:
    """``begun``: what of its first message the client has sent."""
    port, address = getattr(secured, listener), f"127.0.4.{len(begun) % 250 + 1}"
    open_before = descriptors(secured)
    with ExitStack() as stack:
        clients = half_open(secured, stack, port, address, OPEN_MAX, begun)
        check_refused(secured, port, address)
        assert may_log_in(secured, port, OTHER_ADDRESS)
        assert all(is_ended(client) for client in clients), "their time is over"
    eventually(lambda: descriptors(secured) <= open_before, "their descriptors are given back")
    assert may_log_in(secured, port, address)


def test_half_open_handshakes_are_connections_of_their_address(secured: SecuredBroker) -> None:
    with ExitStack() as stack:
        half_open(secured, stack, secured.mutual, FEW_ADDRESS, FEW_MAX, b"")
        check_refused(secured, secured.mutual, FEW_ADDRESS)
        assert may_log_in(secured, secured.mutual, OTHER_ADDRESS)
    eventually(lambda: may_log_in(secured, secured.mutual, FEW_ADDRESS), "those that have left do not count")


def test_handshakes_that_fail_do_not_count_any_longer(secured: SecuredBroker) -> None:
    """Of clients that send no TLS, that go away at each point of it, and that have no certificate."""
    address = "127.0.3.5"
    for number in range(3 * OPEN_MAX):
        with secured.connect(secured.mutual, address) as client:
            match number % 5:
                case 0:
                    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    assert is_ended(client)
                case 1:
                    client.sendall(HELLO[: len(HELLO) // 2])
                    client.shutdown(socket.SHUT_WR)
                    assert is_ended(client)
                case 2:
                    client.sendall(HELLO)
                    assert client.recv(1), "the broker answers"
                case 3:
                    client.shutdown(socket.SHUT_WR)
                    assert is_ended(client)
                case _:
                    with suppress(ssl.SSLError, ConnectionError):
                        shaken = secured.context.wrap_socket(client, server_hostname=HOST)
                        assert is_ended(shaken)
    eventually(lambda: may_log_in(secured, secured.mutual, address), "its place is free")
    assert f"from {address}:" in secured.broker.output
    refused = [line for line in secured.broker.output.splitlines() if address in line and TOO_MANY in line]
    assert not refused


def test_a_handshake_above_the_rate_of_its_address_does_not_begin(secured: SecuredBroker) -> None:
    """As in Kafka a connection is counted when it is accepted: it costs no signature."""
    limited = {IP: RATED_ADDRESS}
    alter(secured.bootstrap, limited, **{CONNECTION_CREATION_RATE: 2.0})
    began, done = time.monotonic(), 0
    try:
        for _ in range(4):
            with ExitStack() as stack:
                clients = [
                    stack.enter_context(secured.connect(secured.mutual, RATED_ADDRESS))
                    for _ in range(OPEN_MAX // 2)
                ]
                for client in clients:
                    client.sendall(HELLO)
                done += sum(is_answered(client) for client in clients)
    finally:
        alter(secured.bootstrap, limited, **{CONNECTION_CREATION_RATE: None})
    assert 0 < done <= 10 + 4 * (time.monotonic() - began), "the rate, and what a window holds"
    assert done < 2 * OPEN_MAX


def test_a_flood_of_whole_handshakes_leaves_others_served(secured: SecuredBroker) -> None:
    flood = Flood(secured)
    before = rss_bytes(secured)
    with Producing(secured, TOPIC, OTHER_ADDRESS), flood:
        for _ in range(10):
            assert may_log_in(secured, secured.mutual, OTHER_ADDRESS)
            assert may_log_in(secured, secured.sasl_ssl, OTHER_ADDRESS)
        eventually(lambda: flood.done >= 300, "the flood goes on", 120)
    print(f"handshakes: {flood.done}")
    assert rss_bytes(secured) - before < 32 * MIB
    assert may_log_in(secured, secured.mutual, FLOODING_ADDRESS)


def test_connections_with_tls_leave_no_memory_behind(secured: SecuredBroker) -> None:
    """Each holds some 30 KiB of OpenSSL's, which must not wait for a collection of garbage."""

    def connect(count: int) -> None:
        for _ in range(count):
            with (
                secured.connect(secured.sasl_ssl) as client,
                secured.context.wrap_socket(client, server_hostname=HOST) as encrypted,
            ):
                encrypted.sendall(b"\0\0\0\1x")
                assert is_ended(encrypted)

    connect(100)
    before = rss_bytes(secured)
    connect(600)
    growth = rss_bytes(secured) - before
    print(f"resident set: {growth / KIB / 600:+.1f} KiB for each")
    assert growth < 5 * MIB


class Flood:
    """Threads that do one whole handshake after another, with a certificate, until the block ends."""

    def __init__(self, secured: SecuredBroker) -> None:
        self._secured = secured
        self._ends = threading.Event()
        self._counts = [0] * FLOODING_THREADS
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(FLOODING_THREADS)
        ]

    @property
    def done(self) -> int:
        return sum(self._counts)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()
        eventually(lambda: all(self._counts), "each thread has a handshake done", 60)

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        while not self._ends.is_set():
            with (
                self._secured.connect(self._secured.mutual, FLOODING_ADDRESS) as client,
                self._secured.certified.wrap_socket(client, server_hostname=HOST),
            ):
                self._counts[number] += 1


def half_open(
    secured: SecuredBroker, stack: ExitStack, port: int, address: str, count: int, begun: bytes
) -> list[socket.socket]:
    clients = [stack.enter_context(secured.connect(port, address)) for _ in range(count)]
    for client in clients:
        client.sendall(begun)
    return clients


def check_refused(secured: SecuredBroker, port: int, address: str) -> None:
    """One more connection is closed at once, and the log says why."""
    with secured.connect(port, address) as one_more:
        line = f"Closing the connection from {address}:{one_more.getsockname()[1]}: {TOO_MANY}"
        assert is_ended(one_more)
        eventually(lambda: line in secured.broker.output, f"the log has: {line}")


def is_answered(client: socket.socket) -> bool:
    try:
        return client.recv(1) != b""
    except ConnectionError:
        return False


@pytest.mark.parametrize("listener", ["mutual", "sasl_ssl"])
def test_a_client_that_only_updates_its_keys_is_disconnected(secured: SecuredBroker, listener: str) -> None:
    """Each KeyUpdate message of TLS 1.3 costs the broker new keys and an answer, before any login."""
    command = ["openssl", "s_client", "-tls1_3", "-connect", f"{HOST}:{getattr(secured, listener)}"]
    if listener == "mutual":
        command += ["-cert", str(secured.certificate), "-key", str(secured.certificate)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as client:
        assert client.stdin is not None
        assert client.stderr is not None
        sent = 0
        # The client learns of the broker's end only when it is told: meanwhile it sends more.
        many = 1_000 * RECORDS_WITHOUT_DATA_MAX
        with suppress(BrokenPipeError):
            while sent < many:
                client.stdin.write(b"K\n")  # requests the broker's update, too
                client.stdin.flush()
                while (told := client.stderr.readline()) not in {b"KEYUPDATE\n", b""}:
                    pass
                if not told:
                    break
                sent += 1
        with suppress(BrokenPipeError):  # what was not flushed
            client.stdin.close()
        assert RECORDS_WITHOUT_DATA_MAX // 2 < sent < many
        client.kill()
    reason = f"{RECORDS_WITHOUT_DATA_MAX + 1} records of its TLS had no data"
    eventually(lambda: reason in secured.broker.output, "the reason is logged")
