"""The seam's contract for the network: the same scenarios on the system and in the simulated world."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nilometer.runtime import Network, Runtime
from nilometer.runtime.handshakes import Admitted
from nilometer.runtime.tls import ClientTls, ServerTls, TlsFiles
from support.authority import Authority
from support.simulation.seam_scenarios import Play


class Recorder(asyncio.Protocol):
    """Keeps what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.events: list[str] = []
        self.error: Exception | None = None
        self._changed = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._note("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._changed.set()

    def eof_received(self) -> bool | None:
        self._note("eof")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._note("lost")

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    async def until(self, condition: Callable[[Recorder], bool]) -> None:
        while not condition(self):
            self._changed.clear()
            await self._changed.wait()

    def _note(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()


class BufferedRecorder(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.buffer = bytearray(1000)
        self.data = bytearray()
        self.changed = asyncio.Event()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]
        self.changed.set()


async def pair(network: Network) -> tuple[Recorder, Recorder]:
    accepted: asyncio.Future[Recorder] = asyncio.get_running_loop().create_future()

    class Accepting(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            accepted.set_result(self)

    listener = await network.listen(Accepting, "127.0.0.1", 0)
    await listener.start()
    client = await network.connect(Recorder, "127.0.0.1", listener.port)
    assert isinstance(client, Recorder)
    server = await accepted
    listener.close()
    return client, server


def test_bytes_arrive_in_order_both_ways(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        client, server = await pair(runtime.network)
        content = bytes(range(256)) * 400
        for start in range(0, len(content), 1000):
            client.transport.write(content[start : start + 1000])
        server.transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
        await server.until(lambda recorder: len(recorder.data) == len(content))
        await client.until(lambda recorder: len(recorder.data) == 3)
        assert server.data == content
        assert client.data == b"abc"
        ends = client.transport.get_extra_info("peername"), server.transport.get_extra_info("sockname")
        assert ends[0][1] == ends[1][1]
        client.transport.close()
        assert client.transport.is_closing()
        await client.until(lambda recorder: "lost" in recorder.events)
        await server.until(lambda recorder: "lost" in recorder.events)
        assert client.events == ["made", "lost"]
        assert server.events == ["made", "eof", "lost"]
        assert client.error is server.error is None

    play(scenario)


def test_close_delivers_what_was_written_abort_does_not_wait(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        client, server = await pair(runtime.network)
        client.transport.write(b"x" * 3_000_000)
        client.transport.close()
        client.transport.write(b"too late")
        await server.until(lambda recorder: "lost" in recorder.events)
        assert len(server.data) == 3_000_000
        client, server = await pair(runtime.network)
        server.transport.pause_reading()
        client.transport.write(b"x" * 20_000_000)
        client.transport.abort()
        await client.until(lambda recorder: "lost" in recorder.events)
        server.transport.resume_reading()
        await server.until(lambda recorder: "lost" in recorder.events)
        assert len(server.data) < 20_000_000

    play(scenario)


def test_a_reader_that_pauses_pauses_the_writer(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        client, server = await pair(runtime.network)
        server.transport.pause_reading()
        client.transport.set_write_buffer_limits(high=100_000)
        sent = 0
        while "pause" not in client.events:
            client.transport.write(bytes(50_000))
            sent += 50_000
            await asyncio.sleep(0)
        assert client.transport.get_write_buffer_size() > 100_000
        server.transport.resume_reading()
        await client.until(lambda recorder: "resume" in recorder.events)
        await server.until(lambda recorder: len(recorder.data) == sent)
        client.transport.close()
        await server.until(lambda recorder: "lost" in recorder.events)

    play(scenario)


def test_half_closed_by_write_eof(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        client, server = await pair(runtime.network)
        server.eof_received = lambda: server._note("eof") or True  # type: ignore[method-assign]
        client.transport.write(b"question")
        client.transport.write_eof()
        await server.until(lambda recorder: "eof" in recorder.events)
        assert server.data == b"question"
        server.transport.write(b"answer")
        server.transport.close()
        await client.until(lambda recorder: "lost" in recorder.events)
        assert client.data == b"answer"

    play(scenario)


def test_buffered_protocols_are_fed_through_their_buffer(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        network = runtime.network
        served: list[BufferedRecorder] = []

        def factory() -> BufferedRecorder:
            served.append(BufferedRecorder())
            return served[-1]

        listener = await network.listen(factory, "127.0.0.1", 0)
        await listener.start()
        client = await network.connect(Recorder, "127.0.0.1", listener.port)
        assert isinstance(client, Recorder)
        content = bytes(range(250)) * 50
        client.transport.write(content)
        while not served or len(served[0].data) < len(content):
            if served:
                served[0].changed.clear()
                await served[0].changed.wait()
            else:
                await asyncio.sleep(0.001)
        assert served[0].data == content
        client.transport.abort()
        listener.close()

    play(scenario)


def test_streams_run_on_it(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        loop = asyncio.get_running_loop()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
            writer.close()

        def factory() -> asyncio.BaseProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), serve, loop=loop)

        listener = await runtime.network.listen(factory, "127.0.0.1", 0)
        await listener.start()
        client, _ = await pair(runtime.network)
        client.transport.abort()
        asker = await runtime.network.connect(Recorder, "127.0.0.1", listener.port)
        assert isinstance(asker, Recorder)
        asker.transport.write(b"one\ntwo\n")
        await asker.until(lambda recorder: recorder.data == b"ONE\nTWO\n")
        asker.transport.write_eof()
        await asker.until(lambda recorder: "lost" in recorder.events)
        listener.close()

    play(scenario)


def test_addresses_are_taken_refused_and_given_back(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        network = runtime.network
        listener = await network.listen(Recorder, "127.0.0.1", 0)
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Recorder, "127.0.0.1", listener.port)
        await listener.start()
        with pytest.raises(OSError) as taken:
            await network.listen(Recorder, "127.0.0.1", listener.port)
        assert taken.value.errno == errno.EADDRINUSE
        first = await network.connect(Recorder, "127.0.0.1", listener.port)
        assert isinstance(first, Recorder)
        port = listener.port
        listener.close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Recorder, "127.0.0.1", port)
        assert not first.transport.is_closing(), "connections already made live on"
        first.transport.abort()

    play(scenario)


class Gate:
    """Admits connections as the test says, in turn, and keeps what it is told."""

    def __init__(self, *answers: Admitted | None) -> None:
        self._answers = iter(answers)
        self.open = 0
        self.events: list[str] = []

    def begin(self, address: str, port: int) -> Admitted | None:
        assert address
        assert port
        answer = next(self._answers)
        self.open += answer is not None
        self.events.append("refused" if answer is None else "begun")
        return answer

    def end(self, address: str) -> None:
        self.open -= 1
        self.events.append("ended")


def test_a_gate_decides_which_handshakes_begin(play: Play, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    key = str(authority.issue("broker", "/CN=broker"))
    server = ServerTls(files=TlsFiles(key_file=key), handshake_timeout_ms=60_000)
    client = ClientTls(files=TlsFiles(trusted_file=str(authority.certificate)))

    async def scenario(runtime: Runtime, folder: str) -> None:
        gate = Gate(Admitted(), Admitted(50), None, Admitted(50, ends=True))
        made: asyncio.Queue[Recorder] = asyncio.Queue()

        class Accepted(Recorder):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                gate.events.append("made")
                made.put_nowait(self)
                super().connection_made(transport)

        listener = await runtime.network.listen(Accepted, "127.0.0.1", 0, server, gate)
        await listener.start()
        for _ in range(2):
            protocol = await runtime.network.connect(Recorder, "127.0.0.1", listener.port, client)
            assert isinstance(protocol, Recorder)
            protocol.transport.write(b"hello")
            accepted = await made.get()
            await accepted.until(lambda recorder: recorder.data == b"hello")
            protocol.transport.abort()
        assert gate.events == ["begun", "ended", "made"] * 2
        for _ in range(2):
            with suppress(OSError):  # where the handshake is part of connecting
                lost = await runtime.network.connect(Recorder, "127.0.0.1", listener.port, client)
                assert isinstance(lost, Recorder)
                await lost.until(lambda recorder: "lost" in recorder.events)
        assert gate.events[6:] == ["refused", "begun", "ended"]
        assert gate.open == 0
        listener.close()

    play(scenario)
