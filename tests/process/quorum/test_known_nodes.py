"""By what the nodes of a metadata quorum know each other: relayed proofs, and silent connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from nilometer.broker.process import ABOUT_CONNECTIONS
from nilometer.broker.quorum import serving
from nilometer.broker.quorum.links import QuorumLinks
from nilometer.broker.settings.quorum import Admittance
from nilometer.coordination.quorum.peers import PeerUnavailable
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import api, encode_request
from nilometer.wire.own_apis import AskCommitted, AskQuorumRequest
from support.authority import Authority
from support.brokers.quorum_nodes import LET_IN, links_of, listening, refusal_of, settings_of, tls_of, voter
from support.ports import HOST, free_ports

TIMEOUT_S = 60.0


async def frame(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame with its length; nothing at the end of the connection."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        size = await reader.readexactly(4)
        return size + await reader.readexactly(int.from_bytes(size, "big"))
    return b""


class Thief:
    """Listens at ``port``, relays a proof, which is two requests, to ``target``, and asks that what only
    a node is told."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_target = await asyncio.open_connection(HOST, self._target)
        for _ in range(2):
            to_target.write(await frame(reader))
            writer.write(await frame(theirs))
        to_target.write(encode_request(9, "thief", AskQuorumRequest(question=AskCommitted(), cluster_id="x")))
        self.told.set_result(await frame(theirs))
        for one in (writer, to_target):
            one.close()


@asynccontextmanager
async def thief(port: int, target: int) -> AsyncIterator[Thief]:
    found = Thief(target)
    async with await asyncio.start_server(found, HOST, port):
        yield found


@pytest.mark.parametrize("target", [1, 2], ids=["the asking node", "another one"])
def test_the_proof_of_a_node_that_asks_who_listens_lets_nothing_else_in(target: int) -> None:
    port, away = free_ports(2)

    async def run() -> None:
        async with listening(settings_of(target, port)), thief(away, port) as middle:
            with links_of(1) as links:
                with pytest.raises(PeerUnavailable, match="itself" if target == 1 else "another address"):
                    await links.standing(HOST, away)
                assert await middle.told == b""
                if target != 1:
                    found = await links.standing(HOST, port)
                    assert (found.node_id, found.directory_id) == (2, "folder-2")

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_a_connection_that_asks_who_listens_is_served_nothing_else_even_at_the_nodes_address() -> None:
    port, away = free_ports(2)

    async def run() -> None:
        async with listening(settings_of(2, away, listens_at=port)), thief(away, port) as middle:
            with links_of(1) as links, pytest.raises(PeerUnavailable):
                await links.standing(HOST, away)
            assert await middle.told == b""

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_a_proof_for_a_voter_is_refused_by_another_node() -> None:
    port, away = free_ports(2)

    async def run() -> None:
        async with listening(settings_of(2, port)), thief(away, port) as middle:
            with links_of(1) as links:
                assert "another node than 3 listens there" in await refusal_of(links, voter(3, away))
                assert await middle.told == b""
                assert "another node than 3 listens there" in await refusal_of(links, voter(3, port))
                assert await refusal_of(links, voter(2, port)) == LET_IN
                assert await refusal_of(links, voter(-1, port)) == LET_IN, "a bootstrap server"
            with links_of(2) as links:
                assert "connected to itself" in await refusal_of(links, voter(-1, port))

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


async def is_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether a connection that has proved nothing is told the versions."""
    with suppress(ConnectionError):
        writer.write(encode_request(1, "silent", api(ApiKey.API_VERSIONS, 0).request()))
        return await frame(reader) != b""
    return False


def test_silent_connections_keep_no_node_out(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_ports(1)[0]
    monkeypatch.setattr(serving, "UNPROVED_MAX", 5)
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 1)

    async def run() -> None:
        async with listening(settings_of(2, port)):
            silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
            for _ in range(5):
                silent.append(await asyncio.open_connection(HOST, port))
                assert await is_open(*silent[-1])
            with links_of(1) as links, links_of(3) as others:
                assert await refusal_of(links, voter(2, port)) == LET_IN
                found = [await is_open(*one) for one in silent]
                assert found == [False, True, True, True, True], "the oldest one was closed for the node"
                assert await refusal_of(others, voter(2, port)) != LET_IN, "one is let in at most"
            for _, writer in silent:
                writer.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_an_address_has_as_many_handshakes_as_connections_that_are_not_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(1)[0]
    tls = tls_of(Authority(tmp_path / "authority"), "/CN=node")
    monkeypatch.setattr(serving, "PER_ADDRESS_MAX", 2)

    async def run() -> None:
        async with listening(settings_of(2, port, more=tls)):
            with links_of(1, tls) as links:
                assert await refusal_of(links, voter(2, port)) == LET_IN
                silent = [await asyncio.open_connection(HOST, port) for _ in range(3)]
                assert await frame(silent[2][0]) == b""
                with pytest.raises(PeerUnavailable):
                    await links.standing(HOST, port)
                assert await refusal_of(links, voter(2, port)) == LET_IN, "it is let in already"
                for _, writer in silent:
                    writer.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_silent_handshakes_of_all_addresses_keep_no_node_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(1)[0]
    tls = tls_of(Authority(tmp_path / "authority"), "/CN=node")
    monkeypatch.setattr(serving, "HANDSHAKES_MAX", 3)
    of_others = [f"127.0.0.{number}" for number in range(2, 6)]

    async def run() -> None:
        async with listening(settings_of(2, port, more=tls)):
            silent = [
                await asyncio.open_connection(HOST, port, local_addr=(address, 0)) for address in of_others
            ]
            assert await frame(silent[0][0]) == b"", "the oldest one ended for the fourth"
            with links_of(1, tls) as links, links_of(3, tls) as others:
                assert await refusal_of(links, voter(2, port)) == LET_IN
                assert await frame(silent[1][0]) == b"", "it ended for the node"
                assert await refusal_of(others, voter(2, port)) == LET_IN, "a done handshake counts no more"
            for reader, writer in silent[2:]:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.05)
                writer.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_a_certificate_of_a_super_user_is_let_in_and_no_other_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_ports(1)[0]
    authority, elsewhere = Authority(tmp_path / "authority"), Authority(tmp_path / "elsewhere")
    rules = {"super.users": "User:CN=node-1;User:CN=node-2", "ssl.client.auth": "required"}
    node = {**tls_of(authority, "/CN=node-1"), **rules}
    stranger = {**tls_of(authority, "/CN=stranger"), **rules}
    trusted = {key: node[key] for key in node if "truststore" in key}
    foreign = {**tls_of(elsewhere, "/CN=node-1"), **trusted, **rules}

    async def run() -> None:
        settings = settings_of(2, port, more={**tls_of(authority, "/CN=node-2"), **rules})
        assert settings.admittance is Admittance.CERTIFICATE
        async with listening(settings):
            with links_of(1, node) as links:
                assert await refusal_of(links, voter(2, port)) == LET_IN
                assert (await links.standing(HOST, port)).node_id == 2
            for number, tls in enumerate((stranger, foreign), 3):
                with links_of(number, tls) as links:
                    assert await refusal_of(links, voter(2, port)) != LET_IN
            context = authority.context()
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
            assert not await is_open(reader, writer), "it has no certificate"
            writer.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
    said = [(one.name, one.getMessage()) for one in caplog.records]
    assert {name for name, _ in said if name.startswith("nilometer")} == set(ABOUT_CONNECTIONS), "bounded"
    refused = [text for name, text in said if name == serving.connections_logger.name and "let in" in text]
    assert len(refused) == 1 and "its user, 'User:CN=stranger', is none of super.users" in refused[0]
    failed = [text for name, text in said if name == "nilometer.tls" and "its TLS handshake failed" in text]
    assert len(failed) == 2, failed


def test_nothing_is_kept_of_addresses_that_were_named() -> None:
    port, nothing = free_ports(2)

    def kept(links: QuorumLinks) -> int:
        found = [held for held in vars(links).values() if isinstance(held, dict)]
        assert found, "what is kept by address"
        return sum(map(len, found))

    async def run() -> None:
        with links_of(1) as links:
            async with listening(settings_of(2, port)):
                assert (await links.standing(HOST, port)).node_id == 2
                for refused in (voter(3, port), voter(2, nothing)):
                    await asyncio.gather(*(refusal_of(links, refused) for _ in range(3)))
                assert kept(links) == 0
                assert await refusal_of(links, voter(2, port)) == LET_IN
                assert kept(links) == 1, "the connection to a voter is used again"
            for _ in range(10_000):
                await asyncio.sleep(0.001 if kept(links) else 0)
            assert kept(links) == 0, "the connection has ended"

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
