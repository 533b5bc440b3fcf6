"""Connections over a link that is cut, slow or reset: what arrives, and what each end sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from nilometer.runtime.network import SocketNetwork
from nilometer.testing.faults import CLIENTS, BrokerFaults
from nilometer.testing.faulty_runtime import (
    HELD_BYTES_MAX,
    Change,
    CurrentFaults,
    FaultyBroker,
    FaultyNetwork,
)
from support.ports import HOST

CUT = BrokerFaults(cut_to=(2,), cut_from=(2,))
MEBIBYTE = b"x" * 2**20


class Peer(asyncio.Protocol):
    """One end of a connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_paused = False
        self.has_eof = False
        self.lost: list[Exception | None] = []
        self.happened = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not derived from it
        self.happened.set()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.happened.set()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.happened.set()

    def eof_received(self) -> bool:
        self.has_eof = True
        self.happened.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.happened.set()

    async def until(self, condition: Callable[[Peer], object]) -> None:
        async with asyncio.timeout(20):
            while not condition(self):
                self.happened.clear()
                await self.happened.wait()


class Pair:
    """``near`` connects as broker 1 to ``far``, broker 2; ``of_client`` is what broker 1 accepts."""

    def __init__(self, current: CurrentFaults, network: FaultyNetwork, port: int) -> None:
        self.current = current
        self.network = network
        self.port = port
        self.far = Peer()
        self.near: Peer

    async def connect(self) -> Peer:
        found = await self.network.connect(Peer, HOST, self.port)
        assert isinstance(found, Peer)
        return found

    def fault(self, faults: BrokerFaults | None = None, *reset: int) -> None:
        self.current.change(Change(faults or BrokerFaults(), reset))


@asynccontextmanager
async def connected() -> AsyncGenerator[Pair]:
    pair: Pair
    listener = await SocketNetwork().listen(lambda: pair.far, HOST, 0)
    await listener.start()
    current = CurrentFaults(BrokerFaults())
    network = FaultyNetwork(current, FaultyBroker(1, {listener.port: 2}, "/nowhere", BrokerFaults()))
    pair = Pair(current, network, listener.port)
    pair.near = await pair.connect()
    await pair.far.until(lambda peer: hasattr(peer, "transport"))
    try:
        yield pair
    finally:
        listener.close()
        pair.near.transport.abort()
        pair.far.transport.abort()


async def settle() -> None:
    """Let the event loop do what it can do at once."""
    for _ in range(20):
        await asyncio.sleep(0.005)


async def test_what_is_sent_while_a_link_is_cut_arrives_in_order_when_it_is_healed():
    async with connected() as pair:
        pair.near.transport.write(b"a")
        await pair.far.until(lambda peer: peer.received == b"a")
        pair.fault(CUT)
        pair.near.transport.writelines([b"b", b"c"])
        pair.far.transport.write(b"1")
        await settle()
        assert (bytes(pair.far.received), bytes(pair.near.received)) == (b"a", b"")
        pair.fault(BrokerFaults(cut_to=(2,)))
        await pair.near.until(lambda peer: peer.received == b"1")
        assert bytes(pair.far.received) == b"a"
        pair.fault()
        pair.near.transport.write(b"d")
        await pair.far.until(lambda peer: peer.received == b"abcd")


async def test_a_link_that_is_slow_no_more_delivers_at_once():
    async with connected() as pair:
        pair.fault(BrokerFaults(slow_ms={2: 20}))
        for byte in b"abc":
            pair.near.transport.write(bytes([byte]))
        await pair.far.until(lambda peer: peer.received == b"abc")
        pair.fault(BrokerFaults(slow_ms={2: 600_000}))
        pair.near.transport.write(b"d")
        await settle()
        assert bytes(pair.far.received) == b"abc"
        pair.fault()
        await pair.far.until(lambda peer: peer.received == b"abcd")


async def test_who_sends_more_than_a_cut_link_holds_has_to_wait():
    async with connected() as pair:
        pair.fault(CUT)
        for _ in range(3):
            pair.near.transport.write(MEBIBYTE)
            pair.far.transport.write(8 * MEBIBYTE)
        await settle()
        assert pair.near.is_paused and pair.far.is_paused
        assert pair.near.transport.get_write_buffer_size() > HELD_BYTES_MAX
        pair.fault()
        await pair.near.until(lambda peer: len(peer.received) == 24 * 2**20 and not peer.is_paused)
        await pair.far.until(lambda peer: len(peer.received) == 3 * 2**20 and not peer.is_paused)


async def test_the_peer_of_a_connection_that_ends_while_its_link_is_cut_learns_it_when_that_is_healed():
    async with connected() as pair:
        pair.fault(CUT)
        pair.near.transport.write(b"last")
        pair.near.transport.close()
        await pair.near.until(lambda peer: peer.lost == [None])
        await settle()
        assert not pair.far.lost
        pair.fault()
        await pair.far.until(lambda peer: peer.lost == [None])
        assert bytes(pair.far.received) == b"last"
        assert not pair.current.wires


async def test_a_peer_that_ends_while_its_link_is_cut_is_seen_to_end_when_that_is_healed():
    async with connected() as pair:
        pair.fault(CUT)
        pair.far.transport.write(b"last")
        pair.far.transport.close()
        await settle()
        assert not pair.near.lost
        pair.fault()
        await pair.near.until(lambda peer: peer.lost)
        assert bytes(pair.near.received) == b"last"
        assert not pair.current.wires


@pytest.mark.parametrize("aborts", [False, True])
async def test_a_connection_without_faults_ends_as_any_other(aborts: bool):
    async with connected() as pair:
        pair.near.transport.pause_reading()
        pair.far.transport.write(b"1")
        await settle()
        assert not pair.near.received
        pair.near.transport.resume_reading()
        await pair.near.until(lambda peer: peer.received == b"1")
        if aborts:
            pair.near.transport.abort()
        else:
            pair.near.transport.write(b"a")
            pair.near.transport.write_eof()
            await pair.far.until(lambda peer: peer.has_eof and peer.received == b"a")
        await pair.near.until(lambda peer: peer.lost == [None])
        await pair.far.until(lambda peer: peer.lost)
        assert pair.near.transport.is_closing()
        pair.near.transport.write(b"too late")
        pair.near.transport.close()
        assert not pair.current.wires


async def test_a_reset_ends_the_connections_of_its_link_at_both_ends():
    async with connected() as pair:
        pair.fault(None, 3)
        await settle()
        assert not pair.near.lost
        pair.fault(None, 2)
        assert [type(one) for one in pair.near.lost] == [ConnectionResetError]
        await pair.far.until(lambda peer: peer.lost)
        assert isinstance(pair.far.lost[0], ConnectionResetError)
        await settle()
        assert len(pair.near.lost) == 1


async def test_no_connection_is_made_over_a_link_that_is_cut():
    async with connected() as pair:
        pair.fault(BrokerFaults(cut_from=(2,)))
        connecting = asyncio.ensure_future(pair.connect())
        await settle()
        assert not connecting.done()
        pair.fault(BrokerFaults(slow_ms={2: 600_000}))
        await settle()
        assert not connecting.done()
        pair.fault()
        (await connecting).transport.abort()


async def test_connections_of_clients_are_told_from_those_of_brokers():
    async with connected() as pair:
        accepted: list[Peer] = []

        def accept() -> Peer:
            accepted.append(Peer())
            return accepted[-1]

        listener = await pair.network.listen(accept, HOST, 0)
        await listener.start()
        pair.fault(BrokerFaults(cut_from=(CLIENTS,)))
        for network in (SocketNetwork(), SocketNetwork("127.0.1.3"), SocketNetwork("127.0.2.1")):
            sender = await network.connect(Peer, HOST, listener.port)
            assert isinstance(sender, Peer)
            sender.transport.write(b"a")
            sender.transport.write_eof()
        await settle()
        for _ in range(100):
            if [bytes(one.received) for one in accepted] == [b"", b"a", b"a"]:
                break
            await settle()
        assert [bytes(one.received) for one in accepted] == [b"", b"a", b"a"]
        pair.fault()
        await accepted[0].until(lambda peer: peer.received == b"a")
        listener.close()
        for one in accepted:
            one.transport.abort()
