"""Scripted brokers in a simulation: the same handlers, with a virtual network and clock."""

from __future__ import annotations

import asyncio
from typing import Any

from nilometer.runtime import Runtime
from nilometer.wire.frames import FrameSplitter
from support.scripted.scripted_broker import ScriptedBroker


class _Session(asyncio.Protocol):
    """One connection: requests are processed one after the other, as in Kafka."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._splitter = FrameSplitter()
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._worker = asyncio.create_task(self._work())

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            self._frames.put_nowait(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._worker is not None:
            self._worker.cancel()

    async def _work(self) -> None:
        transport = self._transport
        assert transport is not None
        while True:
            try:
                await self._broker._answer(await self._frames.get(), transport)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                transport.abort()
                if type(error).__name__ != "_HungUp":
                    failure = {"message": "a handler failed", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(failure)
                return


async def serve(runtime: Runtime, brokers: list[Any], host: str, first_port: int = 9092) -> None:
    """Have ``brokers`` listen on consecutive ports from ``first_port``, as long as the process runs."""
    for index, broker in enumerate(brokers):
        broker.host, broker.port = host, first_port + index
        listener = await runtime.network.listen(
            lambda broker=broker: _Session(broker), "0.0.0.0", broker.port
        )
        await listener.start()
