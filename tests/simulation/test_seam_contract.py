"""The seam's contract, kept alike by the system and the virtual world: the same scenarios, played on both."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nilometer.runtime import Disk, LockHeld, Network, Runtime
from nilometer.simulation.world import World

Scenario = Callable[[Runtime, str], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture(params=["system", "virtual"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    def on_system(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                await scenario(Runtime.system(), str(tmp_path))

        asyncio.run(main())

    def in_world(scenario: Scenario) -> None:
        async def main(runtime: Runtime) -> None:
            runtime.disk.make_directories("/folder")
            await scenario(runtime, "/folder")

        async def whole(world: World) -> None:
            error = await world.host("a").start("p", main).exited
            if error is not None:
                raise error

        world = World(11)
        world.run(whole)
        assert world.failures == []

    return on_system if request.param == "system" else in_world


# ---- disk


def test_what_is_created_private_is_its_owners_alone(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk: Disk = runtime.disk
        disk.make_directories(f"{folder}/open/closed", private=True)
        assert not disk.is_private(f"{folder}/open")
        assert disk.is_private(f"{folder}/open/closed")
        for name, private in (("own", True), ("shared", False)):
            disk.open(f"{folder}/{name}", create=True, private=private).close()
            assert disk.is_private(f"{folder}/{name}") is private
            disk.open(f"{folder}/{name}", create=True, private=not private).close()
            assert disk.is_private(f"{folder}/{name}") is private  # it was there
        disk.link(f"{folder}/own", f"{folder}/linked")
        assert disk.is_private(f"{folder}/linked")
        with pytest.raises(FileNotFoundError):
            disk.is_private(f"{folder}/none")

    play(scenario)


def test_files_are_appended_rewritten_and_cut(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk: Disk = runtime.disk
        path = f"{folder}/file"
        with pytest.raises(FileNotFoundError):
            disk.open(path)
        file = disk.open(path, create=True)
        assert file.path == path
        assert file.append([b"abc", bytearray(b"def"), memoryview(b"ghi")]) == 9
        assert file.read_at(2, 4) == b"cdef"
        assert file.read_at(7, 100) == b"hi"
        assert file.read_at(50, 1) == b""
        assert file.read_at_if_cached(0, 3) in (b"abc", None)
        file.write_at(1, b"XY")
        file.truncate(5)
        assert file.read_at(0, 10) == b"aXYde"
        file.append([b"!"])
        file.truncate(8)
        assert file.size() == disk.file_size(path) == 8
        await disk.offload(file.sync)
        file.close()
        file.close()
        with pytest.raises(OSError):
            file.append([b"late"])
        assert disk.read_file(path) == b"aXYde!\0\0"
        again = disk.open(path, writable=False)
        with pytest.raises(OSError):
            again.append([b"x"])
        assert again.read_at(0, 2) == b"aX"
        again.close()

    play(scenario)


def test_names_come_and_go(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        disk.make_directories(f"{folder}/a/b")
        disk.make_directories(f"{folder}/a/b")
        assert disk.is_directory(f"{folder}/a/b")
        assert not disk.exists(f"{folder}/a/c")
        disk.replace_file(f"{folder}/a/one", b"1")
        disk.replace_file(f"{folder}/a/two", b"2", sync=False)
        assert disk.list_directory(f"{folder}/a") == ["b", "one", "two"]
        disk.rename(f"{folder}/a/one", f"{folder}/a/two")
        assert disk.read_file(f"{folder}/a/two") == b"1"
        disk.link(f"{folder}/a/two", f"{folder}/a/three")
        with pytest.raises(FileExistsError):
            disk.link(f"{folder}/a/two", f"{folder}/a/three")
        with pytest.raises(FileNotFoundError):
            disk.link(f"{folder}/a/none", f"{folder}/a/four")
        disk.remove(f"{folder}/a/two")
        assert disk.read_file(f"{folder}/a/three") == b"1"
        with pytest.raises(FileNotFoundError):
            disk.remove(f"{folder}/a/two")
        with pytest.raises(FileNotFoundError):
            disk.list_directory(f"{folder}/nowhere")
        with pytest.raises(FileNotFoundError):
            disk.sync_directory(f"{folder}/nowhere")
        disk.rename(f"{folder}/a", f"{folder}/moved")
        assert disk.list_directory(f"{folder}/moved") == ["b", "three"]
        assert not disk.exists(f"{folder}/a/three")
        disk.sync_directory(f"{folder}/moved")
        disk.remove_tree(f"{folder}/moved")
        assert disk.list_directory(folder) == []
        with pytest.raises(FileNotFoundError):
            disk.remove_tree(f"{folder}/moved")
        assert 0 < disk.free_bytes(folder) <= disk.total_bytes(folder)

    play(scenario)


def test_a_file_is_replaced_by_several_at_once(play: Play) -> None:
    """Each replacement has a temporary name of its own: all succeed, and none leaves a file behind."""

    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        contents = [b"%d" % number * 5_000 for number in range(8)]

        async def replace(data: bytes) -> None:
            await disk.offload(lambda: [disk.replace_file(f"{folder}/file", data) for _ in range(5)])

        await asyncio.gather(*(replace(data) for data in contents))
        assert disk.read_file(f"{folder}/file") in contents
        assert [name for name in disk.list_directory(folder) if name.startswith("file")] == ["file"]

    play(scenario)


def test_an_open_file_outlives_its_name(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        file = disk.open(f"{folder}/file", create=True)
        file.append([b"still here"])
        disk.remove(f"{folder}/file")
        assert file.read_at(0, 100) == b"still here"
        disk.open(f"{folder}/file", create=True).close()
        assert disk.file_size(f"{folder}/file") == 0
        file.close()

    play(scenario)


def test_a_lock_is_held_once(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        path = f"{folder}/lock"
        assert not disk.is_locked(path)
        lock = disk.lock(path)
        assert disk.is_locked(path)
        with pytest.raises(LockHeld):
            disk.lock(path)
        assert disk.is_locked(path), "asking must not drop it"
        lock.release()
        lock.release()
        assert not disk.is_locked(path)
        disk.lock(path).release()

    play(scenario)


def test_offloaded_work_returns_raises_and_is_not_cancelled(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        assert await disk.offload(lambda: 42) == 42
        with pytest.raises(FileNotFoundError):
            await disk.offload(lambda: disk.read_file(f"{folder}/none"))
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            disk.replace_file(f"{folder}/done", b"", sync=False)
            loop.call_soon_threadsafe(done.set)

        waiting = loop.create_task(disk.offload(work))
        await asyncio.sleep(0)
        waiting.cancel()
        await done.wait()
        assert disk.exists(f"{folder}/done")

    play(scenario)


def test_a_watch_tells_of_names_and_locks(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        watch = disk.watch([folder])

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():
                await watch.wait(60_000)

        loop = asyncio.get_running_loop()
        loop.call_later(0.02, lambda: disk.replace_file(f"{folder}/new", b"", sync=False))
        await until(lambda: disk.exists(f"{folder}/new"))
        lock = disk.lock(f"{folder}/lock")
        loop.call_later(0.02, lock.release)
        await until(lambda: not disk.is_locked(f"{folder}/lock"))
        watch.close()

    play(scenario)


# ---- network


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
